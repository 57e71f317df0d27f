"""Honest histories, built fact by fact: what simulator, agent and host of one attempt would write."""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from stepwell.engine.findings import Finding
from stepwell.engine.fold import apply, event_digest
from stepwell.engine.state import AttemptState, EpisodeState, Position
from stepwell.engine.verdict import verdict_of
from stepwell.events import model
from stepwell.events.ids import derived_event_id
from stepwell.events.model import VerdictIssued

EPISODE = "ep-story"
FINGERPRINTS = {"sim": "5157a0", "agent": "a6e270", "host": "4057b0", "engine": "e6161e"}


def tensor(values: Iterable[float], name: str = "qpos") -> model.Tensor:
    """A float64 vector."""
    numbers = list(values)
    return model.Tensor(
        name=name, dtype="float64", shape=(len(numbers),), data=struct.pack(f"<{len(numbers)}d", *numbers)
    )


def head(producer: str, attempt: int, seq: int, producer_id: str | None = None, **more: Any) -> dict[str, Any]:
    """The head of one event; its time follows from producer and sequence."""
    name = producer_id or f"{producer}-1"
    return {
        "event_id": derived_event_id("story", attempt, name, seq),
        "run_id": "run-1",
        "episode_id": EPISODE,
        "attempt": attempt,
        "producer_id": name,
        "producer_seq": seq,
        "occurred_at": 1_000_000_000 + attempt * 10_000_000 + seq * 1000,
        "trace_id": "0" * 31 + "1",
        **more,
    }


REQUEST = {
    "task": "metaworld/reach-v3",
    "policy": "expert",
    "policy_version": "1",
    "scene": "reach-v3",
    "perturbation": "none",
    "seed": 7,
    "repetition": 0,
    "cell": "policy=expert,scene=reach-v3",
    "max_steps": 100,
    "requested_by": "test",
}


@dataclass
class Story:
    """Facts of one attempt in the order in which they were written; sequences count by themselves."""

    attempt: int = 1
    facts: list[model.Event] = field(default_factory=list)
    next_seq: dict[str, int] = field(default_factory=lambda: {"sim": 0, "agent": 0, "host": 0})

    def _add(self, cls: type[model.Event], **fields: Any) -> model.Event:
        producer = cls.PRODUCER
        more = {name: fields.pop(name) for name in ("step", "sim_time") if name in fields}
        event = cls(**head(producer, self.attempt, self.next_seq[producer], **more), **fields)
        self.next_seq[producer] += 1
        self.facts.append(event)
        return event

    def request(self, **more: Any) -> model.Event:
        if self.attempt == 1:
            return self._add(model.EpisodeRequested, **(REQUEST | more))
        return self._add(model.RetryRequested, **(REQUEST | {"reason": "it failed"} | more))

    def claim(self) -> model.Event:
        return self._add(model.EpisodeClaimed, host="lab-1", pid=41)

    def ready(self, first_step: int = 0, observation: tuple[float, ...] = (0.0,), **more: Any) -> model.Event:
        defaults: dict[str, Any] = {
            "simulator": "metaworld",
            "simulator_version": "3.1.1",
            "adapter_version": "1",
            "environment_digest": "sha256:00",
            "seed": 7,
            "step_duration_s": 0.0125,
            "sim_time": 0.0,
        }
        return self._add(model.SimReady, first_step=first_step, observation=(tensor(observation),), **(defaults | more))

    def started(self) -> model.Event:
        return self._add(model.AgentStarted, policy="expert", policy_version="1")

    def action(self, first_step: int, n_steps: int = 1, values: tuple[float, ...] = (0.5,), **more: Any) -> model.Event:
        return self._add(
            model.ActionSent,
            step=first_step,
            first_step=first_step,
            n_steps=n_steps,
            action=tensor(values, "action"),
            **({"inference_s": 0.01} | more),
        )

    def step(self, step: int, action_seq: int, reward: float | None = 1.0, **more: Any) -> model.Event:
        values = more.pop("values", (0.25, float(step)))
        defaults: dict[str, Any] = {
            "success": False,
            "terminated": False,
            "truncated": False,
            "step_wall_s": 0.002,
            "sim_time": 0.0125 * (step + 1),
        }
        return self._add(
            model.StepDone,
            step=step,
            action_seq=action_seq,
            reward=reward,
            observation=(tensor(values),),
            **(defaults | more),
        )

    def begin(self, *, started: bool = True) -> "Story":
        """Request, claim, ready and, where asked for, the agent's start."""
        self.request()
        self.claim()
        self.ready()
        if started:
            self.started()
        return self

    def run(self, n_steps: int, first_step: int = 0, **more: Any) -> "Story":
        """Action and step in turn."""
        for step in range(first_step, first_step + n_steps):
            action = self.action(step)
            self.step(step, action.producer_seq, **more)
        return self

    def _named(self, *, named: bool, n_steps: int | None) -> dict[str, Any]:
        if not named:
            return {"n_steps": n_steps}
        done = sum(isinstance(fact, model.StepDone) for fact in self.facts)
        return {
            "n_steps": done if n_steps is None else n_steps,
            "last_sim_seq": self.next_seq["sim"] - 1,
            "last_agent_seq": self.next_seq["agent"] - 1,
        }

    def end(
        self, *, success: bool | None = True, reason: str = "success", named: bool = True, n_steps: int | None = None
    ) -> model.Event:
        numbers = self._named(named=named, n_steps=n_steps)
        return self._add(model.EpisodeEnded, success=success, reason=reason, **numbers)

    def fail(
        self, failure_type: str = "agent_exited", *, named: bool = True, n_steps: int | None = None
    ) -> model.Event:
        return self._add(
            model.EpisodeFailed,
            failure_type=failure_type,
            component=failure_type.split("_", maxsplit=1)[0],
            message=f"{failure_type}: told by the host",
            **self._named(named=named, n_steps=n_steps),
        )

    def abort(self, *, named: bool = True) -> model.Event:
        return self._add(
            model.EpisodeAborted, reason="wrong cell", aborted_by="ops", **self._named(named=named, n_steps=None)
        )

    def pause(self) -> model.Event:
        return self._add(model.EpisodePaused, reason="look")

    def resume(self) -> model.Event:
        return self._add(model.EpisodeResumed, reason="go on")

    def checkpoint(self, step: int) -> model.Event:
        return self._add(
            model.CheckpointSaved, step=step, uri=f"s3://b/{step}", sha256=bytes(32), size_bytes=1, fidelity="bit_exact"
        )

    def intervene(self) -> model.Event:
        return self._add(model.EpisodeIntervened, kind="goal", detail="left", intervened_by="ops")


def engine_fact(cls: type[model.Event], attempt: int = 1, at: int = 0, **fields: Any) -> model.Event:
    """A fact that the engine would write."""
    named = head("engine", attempt, 0, "engine")
    named["occurred_at"] = at or named["occurred_at"]
    return cls(**named, **fields)


def sealed(attempt: int = 1, reason: str = "complete") -> model.Event:
    return engine_fact(model.EpisodeSealed, attempt, reason=reason)


def timed_out(owed: str, owed_seq: int, flips: int = 0, attempt: int = 1) -> model.Event:
    return engine_fact(model.EpisodeTimedOut, attempt, owed=owed, owed_seq=owed_seq, flips=flips, idle_s=300.0)


def stalled(owed: str, owed_seq: int, flips: int = 0, attempt: int = 1) -> model.Event:
    return engine_fact(model.EpisodeStalled, attempt, owed=owed, owed_seq=owed_seq, flips=flips, idle_s=30.0)


def position_at(offset: int, event: model.Event, rules: str = "") -> Position:
    """Where the ``offset``-th record of a partition stands; the log's time goes up by 1 ms a record."""
    fingerprint = FINGERPRINTS[event.PRODUCER]
    return Position(0, offset, 2_000_000_000 + offset * 1000, fingerprint, event_digest(event), rules)


def fold(
    events: Iterable[model.Event], state: EpisodeState | None = None, start: int = 0, rules: str = ""
) -> EpisodeState:
    """Fold events that lie one after the other in the log, ``rules`` being in force."""
    return fold_with_findings(events, state, start, rules)[0]


def fold_with_findings(
    events: Iterable[model.Event], state: EpisodeState | None = None, start: int = 0, rules: str = ""
) -> tuple[EpisodeState, list[Finding]]:
    """As `fold`, with everything that was noticed."""
    state = EpisodeState(EPISODE) if state is None else state
    findings: list[Finding] = []
    for offset, event in enumerate(events, start):
        findings.extend(apply(state, event, position_at(offset, event, rules)))
    return state, findings


def attempt_of(state: EpisodeState, attempt: int = 1) -> AttemptState:
    """The attempt's state; it must not be put away."""
    found = state.attempts[attempt]
    assert isinstance(found, AttemptState)
    return found


def verdict(state: EpisodeState, attempt: int = 1) -> VerdictIssued:
    found = verdict_of(attempt_of(state, attempt))
    assert found is not None
    return found


def codes(findings: list[Any]) -> list[tuple[str, str]]:
    return [(finding.kind, finding.code) for finding in findings]


def lost_of(found: VerdictIssued) -> list[tuple[str, int, int]]:
    return [(entry.producer, entry.first, entry.last) for entry in found.certificate.lost]


def metric(found: VerdictIssued, name: str) -> float:
    return {entry.name: entry.value for entry in found.metrics}[name]
