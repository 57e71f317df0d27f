"""One record's turn: the policy's state, and what is published because of the record."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from stepwell.engine.detection.bearing import Entry, Key, Reading
from stepwell.engine.detection.ledger import STANDING_MAX, Sample, Trigger
from stepwell.engine.detection.requests import (
    cells_of_window,
    expired_of,
    hard_negatives,
    pattern_of,
    request_of,
    withdrawn_of,
)
from stepwell.engine.detection.state import Cell, PolicyState, RuleState, Tally
from stepwell.engine.ruleset import InARowRule, RateRule, ShiftRule, WindowRateRule
from stepwell.events.model import Event, EvidenceEpisode


class Parked(NamedTuple):
    """A rule that raised or would need too much, and what was wrong."""

    rule: str
    detail: str


class Refused(NamedTuple):
    """A record that the detector did not act on, though it is well formed, and why."""

    reason: str
    detail: str


class TooMuchError(Exception):
    """A rule would have to remember more than it may; it has to be parked."""


Said = Event | Parked | Refused
"""What follows from a record: events to publish, rules that were parked, and that the record itself was refused."""

AnyVerdictRule = InARowRule | WindowRateRule | RateRule | ShiftRule


@dataclass(frozen=True, slots=True)
class Opening:
    """Why a trigger opens.

    Attributes:
        key, key_text: what for; the text stands in pattern and request.
        about: what goes into the trigger's id for the key.
        failure_type, evidence, seen, sample: as in `Trigger`.
        cause: the entry whose verdict opened it.
        merged: further episodes that belong to it already.
    """

    key: Key
    key_text: str
    about: str
    failure_type: str
    evidence: tuple[EvidenceEpisode, ...]
    seen: str
    cause: Entry
    sample: Sample | None = None
    merged: int = 0


class Turn:
    """What the rules act through. ``out`` grows with what has to be published, in order."""

    __slots__ = ("_judges", "now", "out", "state")

    def __init__(self, state: PolicyState, judges: Mapping[str, "Judge"]) -> None:
        self.state = state
        self.now = state.now
        self.out: list[Said] = []
        self._judges = judges

    def judge_of(self, trigger: Trigger) -> "Judge | None":
        """Who opened a trigger; None where that rule is not in force any more, or parked."""
        if trigger.orphaned or trigger.rule in self.state.parked:
            return None
        return self._judges.get(trigger.rule)

    def open(self, judge: "Judge", opening: Opening) -> Trigger:
        """Enter a trigger into the ledger and publish its pattern, and its request unless that is muted."""
        state, rule = self.state, judge.rule
        standing = state.ledger.standing()
        if len(standing) >= STANDING_MAX:
            self.expire(standing[0], f"more than {STANDING_MAX} triggers of the policy would stand")
        trigger = state.ledger.open(
            Trigger(
                trigger_id="",
                rule=rule.name,
                rule_version=rule.version,
                key=opening.key,
                rule_key=opening.key_text,
                failure_type=opening.failure_type,
                evidence=opening.evidence,
                seen=opening.seen,
                opened_at=state.now,
                run_id=opening.cause.run_id,
                trace_id=opening.cause.trace_id,
                sample=opening.sample,
                merged=opening.merged,
                expires_us=0 if rule.expires_s is None else int(rule.expires_s * 1_000_000),
                types=tuple(rule.counts.failure_types or ()),
                labels=tuple(rule.counts.labels or ()),
            ),
            opening.about,
        )
        self._publish(pattern_of(state, trigger, judge.promise))
        if state.muted(rule.name):
            trigger.status = "muted"
        else:
            self.request(trigger)
        return trigger

    def request(self, trigger: Trigger) -> None:
        """Publish a trigger's request."""
        judge = self.judge_of(trigger)
        trigger.status = "open"
        if trigger.expires_us:
            trigger.expires_at = self.state.now + trigger.expires_us
            self.state.ledger.changed()
        reading = trigger.reading
        hard = hard_negatives(self.state, trigger, reading)
        # Its rule may have changed while it was muted: then what it had counted is gone, and the window has to do.
        cells = cells_of_window(self.state, trigger, reading) if judge is None else judge.cells(self.state, trigger)
        self._publish(request_of(self.state, trigger, hard, cells))

    def withdraw(self, trigger: Trigger, reason: str) -> None:
        """Say that a trigger has lost its evidence."""
        trigger.status, trigger.detail = "withdrawn", reason
        self.state.ledger.changed()
        self._publish(withdrawn_of(self.state, trigger))
        self.released(trigger)

    def expire(self, trigger: Trigger, reason: str) -> None:
        """Say that nobody has closed a trigger in time."""
        trigger.status, trigger.detail = "expired", reason
        self.state.ledger.changed()
        self._publish(expired_of(self.state, trigger))
        self.released(trigger)

    def let_go(self, episodes: Iterable[str]) -> None:
        """These belong to no row of some rule any more: those beyond the window go, unless another keeps them."""
        state = self.state
        for episode in episodes:
            entry = state.kept.get(episode)
            if entry is not None and not self.keeps(entry):
                state.forget(episode)

    def keeps(self, entry: Entry) -> bool:
        """Whether some rule needs the episode although it leaves the window."""
        state = self.state
        return any(
            judge.keeps(state.rules[name], entry) for name, judge in self._judges.items() if name not in state.parked
        )

    def park(self, rule: str, detail: str) -> None:
        """Judge by a rule no more, drop what it has seen, and say so."""
        state = self.state
        state.parked[rule] = state.last_offset
        state.rules[rule] = RuleState(state.rules[rule].digest)
        self.let_go(list(state.kept))
        self.out.append(Parked(rule, detail))

    def released(self, trigger: Trigger) -> None:
        """A trigger stands no more: its rule may go on."""
        judge = self.judge_of(trigger)
        if judge is not None:
            judge.released(self.state.rules[trigger.rule], trigger)

    def _publish(self, event: Event) -> None:
        self.out.append(event)
        self.state.published += 1


class Judge:
    """One rule of the set in force, compiled. Holds no state of its own, so one instance serves every policy.

    Attributes:
        rule: the rule.
        digest: of its canonical form.
        reading: how it reads entries.
        promise: what it promises, in words.
    """

    promise: str = ""

    def __init__(self, rule: AnyVerdictRule, digest: str) -> None:
        self.rule = rule
        self.digest = digest
        self.reading = Reading(rule.per, rule.counts)

    def recorded(self, turn: Turn, own: RuleState, entry: Entry) -> None:
        """A first verdict was recorded."""

    def admitted(self, turn: Turn, own: RuleState, entry: Entry) -> None:
        """An entry has its turn in the order of requests."""

    def amended(self, turn: Turn, own: RuleState, old: Entry, new: Entry) -> None:
        """A verdict in the window was amended; ``new`` stands there already."""

    def amended_late(self, turn: Turn, own: RuleState, new: Entry) -> None:
        """A verdict that left the window was amended."""

    def cells(self, state: PolicyState, trigger: Trigger) -> dict[Cell, Tally]:
        """Failures and episodes by cell, of the sample that a trigger rests on."""
        return cells_of_window(state, trigger, self.reading)

    def keeps(self, own: RuleState, entry: Entry) -> bool:
        """Whether the entry must not be forgotten yet."""
        del own, entry
        return False

    def released(self, own: RuleState, trigger: Trigger) -> None:
        """A trigger of this rule was closed by an answer, has expired or was withdrawn."""

    def own_standing(self, turn: Turn) -> list[Trigger]:
        """The standing triggers of this rule, without those from before it was in force."""
        name = self.rule.name
        return [item for item in turn.state.ledger.standing() if item.rule == name and not item.orphaned]
