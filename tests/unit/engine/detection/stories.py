"""Histories of ``stepwell.policy-events`` for tests of the detector: short ways to write events, and to fold them."""

from typing import Any

import msgspec

from stepwell.engine.detection.policies import Place, Policies
from stepwell.engine.detection.state import PolicyState
from stepwell.engine.ruleset import RuleSet
from stepwell.events.model import (
    EVALUATION,
    DetectorTicked,
    Event,
    PatternDetected,
    RetrainAcknowledged,
    RetrainAnswered,
    RetrainExpired,
    RetrainMuted,
    RetrainRequested,
    RetrainUnmuted,
    RetrainWithdrawn,
    RulesActivated,
    VerdictExpected,
    VerdictIssued,
)
from tests.unit.engine.verdicts import verdict

SECOND = 1_000_000
START = 1_000 * SECOND

HEAD: dict[str, Any] = {
    "event_id": b"\0" * 16,
    "run_id": "run-1",
    "episode_id": "",
    "attempt": 1,
    "producer_id": "p",
    "producer_seq": 0,
    "occurred_at": 1,
    "trace_id": "2" * 32,
}


def rules(*verdicts: dict[str, Any], name: str = "tested", wait_s: float = 60.0) -> RuleSet:
    """A rule set of these verdict rules."""
    return RuleSet.model_validate({"rule_set": name, "wait_s": wait_s, "verdicts": list(verdicts)}, strict=False)


def failed(episode: str, failure_type: str = "task_not_completed", **more: Any) -> VerdictIssued:
    """A failure; ``labels``, ``perturbation``, ``purpose``, ``seed`` and ``task`` beside what `verdict` takes."""
    return _more(verdict, episode, failure_type, more)


def won(episode: str, **more: Any) -> VerdictIssued:
    """A success."""
    return _more(verdict, episode, None, more)


def broken(episode: str, **more: Any) -> VerdictIssued:
    """An episode that infrastructure lost."""
    return _more(verdict, episode, "host_lost", more)


def _more(make: Any, episode: str, failure_type: str | None, more: dict[str, Any]) -> VerdictIssued:
    fields = {name: more.pop(name) for name in ("labels", "perturbation", "purpose", "seed", "task") if name in more}
    made: VerdictIssued = make(episode, failure_type, **more)
    return msgspec.structs.replace(made, **fields)


def expected(episode: str, policy: str = "expert", purpose: str = EVALUATION) -> VerdictExpected:
    return VerdictExpected(
        **(HEAD | {"episode_id": episode}), policy=policy, policy_version="1", task="t", scene="plain",
        perturbation="none", requested_at=1, purpose=purpose,
    )  # fmt: skip


def answer(trigger_id: str, status: str = "done", policy: str = "expert") -> RetrainAnswered:
    return RetrainAnswered(**HEAD, trigger_id=trigger_id, policy=policy, status=status, detail="told")


def acknowledged(trigger_id: str, policy: str = "expert") -> RetrainAcknowledged:
    return RetrainAcknowledged(**HEAD, trigger_id=trigger_id, policy=policy, detail="", acknowledged_by="ann")


def muted(rule: str | None = None, until: int | None = None, policy: str = "expert") -> RetrainMuted:
    return RetrainMuted(**HEAD, policy=policy, rule=rule, until=until, reason="", muted_by="ann")


def unmuted(rule: str | None = None, policy: str = "expert") -> RetrainUnmuted:
    return RetrainUnmuted(**HEAD, policy=policy, rule=rule, unmuted_by="ann")


def ticked(now: int) -> DetectorTicked:
    return DetectorTicked(**HEAD, now=now)


def activated(rule_set: RuleSet) -> RulesActivated:
    return RulesActivated(
        **HEAD, rule_set=rule_set.rule_set, version=rule_set.version, rules_json=rule_set.canonical(),
        sha256=rule_set.sha256(), activated_by="ann",
    )  # fmt: skip


class Story:
    """Folds events one after the other, a second apart, under one rule set."""

    def __init__(self, rule_set: RuleSet | None = None) -> None:
        self.policies = Policies(rule_set.canonical() if rule_set else "")
        self.now = START
        self.offset = 0
        self.history: list[tuple[Event, Place]] = []
        self.published: list[Event] = []

    def tell(self, *events: Event, pause_s: float = 1.0) -> list[Event]:
        """What is published because of these."""
        out: list[Event] = []
        for event in events:
            self.now += int(pause_s * SECOND)
            place = Place(0, self.offset, self.now)
            self.offset += 1
            self.history.append((event, place))
            out += [item for item in self.policies.take(event, place) if isinstance(item, Event)]
        self.published += out
        return out

    def tick(self, after_s: float) -> list[Event]:
        """Time passes, and the detector says so."""
        self.now += int(after_s * SECOND)
        return self.tell(ticked(self.now), pause_s=0.0)

    @property
    def state(self) -> PolicyState:
        return self.policies.states["expert"]

    def statuses(self) -> list[str]:
        return [trigger.status for trigger in self.state.ledger.triggers.values()]


SHORT: dict[type[Event], str] = {
    PatternDetected: "pattern",
    RetrainRequested: "request",
    RetrainWithdrawn: "withdrawn",
    RetrainExpired: "expired",
}


def kinds(events: list[Event]) -> list[str]:
    """What was published, in short."""
    return [SHORT[type(event)] for event in events]


def the_request(events: list[Event]) -> RetrainRequested:
    """The only request among these."""
    (request,) = [event for event in events if isinstance(event, RetrainRequested)]
    return request


OPENED = ["pattern", "request"]
