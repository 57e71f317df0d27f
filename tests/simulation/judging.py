"""Oracle and engine side by side: the same history through both, brought to one form and compared."""

from collections.abc import Sequence
from typing import Any

import msgspec

from stepwell.engine.findings import DEAD_LETTER_KINDS
from stepwell.engine.fold import apply
from stepwell.engine.snapshot import snapshot_record
from stepwell.engine.state import AttemptState, EpisodeState
from stepwell.engine.verdict import verdict_of
from stepwell.events.model import Event, SequenceRange, VerdictIssued
from tests.simulation.oracle import Episode, Fact, Letter, same
from tests.unit.engine.stories import EPISODE, position_at

SHOWN = {"episode::timed_out", "episode::aborted"}


def fact_of(event: Event, offset: int) -> Fact:
    """An event as the oracle takes it."""
    body = plain(event)
    content = msgspec.msgpack.encode(event)
    fingerprint = position_at(offset, event).fingerprint
    return Fact(event.TYPE, event.PRODUCER, event.producer_seq, content, body, offset, fingerprint)


def plain(value: Any) -> Any:
    """Structs as dictionaries, all the way down."""
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def members(ranges: Sequence[SequenceRange]) -> list[tuple[str, int]]:
    """Every sequence of the ranges."""
    return sorted((part.producer, seq) for part in ranges for seq in range(part.first, part.last + 1))


def content_of(verdict: VerdictIssued) -> dict[str, Any]:
    """An issued verdict in the oracle's form."""
    certificate, provenance = verdict.certificate, verdict.provenance
    names = (
        "run_id", "policy", "policy_version", "checkpoint", "task", "scene", "perturbation", "cell", "seed",
        "repetition", "purpose", "requested_at", "started_at", "ended_at", "outcome", "failure_type", "fault",
        "message", "autonomous", "n_steps", "total_reward", "success_once", "success_at_end",
    )  # fmt: skip
    return {
        **{name: getattr(verdict, name) for name in names},
        "labels": list(verdict.labels),
        "label_steps": list(verdict.label_steps),
        "rule_set": provenance.rule_set,
        "metrics": {metric.name: metric.value for metric in verdict.metrics},
        "completeness": certificate.status,
        "completeness_notes": sorted(certificate.notes),
        "lost": members(certificate.lost),
        "late": members(certificate.late),
        **{name: getattr(certificate, name) for name in ("lost_count", "late_count", "violation_count")},
        "nonfinite_count": certificate.nonfinite_count,
        "schema_fingerprints": list(provenance.schema_fingerprints),
        "reported_seed": provenance.seed,
        "reported_checkpoint": provenance.checkpoint,
        **{
            name: getattr(provenance, name)
            for name in ("simulator", "simulator_version", "adapter_version", "environment_digest")
        },
    }


def differences(expected: dict[str, Any], found: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Field -> (what the oracle says, what is there). A message needs to name only what the oracle says."""
    wrong = {}
    for name in expected.keys() | found.keys():
        want, have = expected.get(name), found.get(name)
        if not (same(want, have) or (name == "message" and want and want in have)):
            wrong[name] = (want, have)
    return wrong


def told(event: Event) -> str:
    """One event in a line."""
    names = ("producer_id", "step", "first_step", "n_steps", "action_seq", "last_sim_seq", "last_agent_seq", "owed",
             "owed_seq", "flips", "success")  # fmt: skip
    more = " ".join(f"{name}={getattr(event, name)}" for name in names if getattr(event, name, None) is not None)
    return f"{event.attempt} {event.TYPE} {event.PRODUCER} {event.producer_seq} {more}"


def compare(
    events: Sequence[Event], rules: str = "", later: str | None = None, changes_at: int = 0, *, every: bool = True
) -> None:
    """Fold by both: the same verdicts, revisions, states, duplicates and dead letters, after every record.

    Args:
        events: in the order of the log.
        rules: the step rules in force.
        later: those in force from the record ``changes_at`` on, where they change.
        changes_at: see ``later``.
        every: False: compare after the last record only.
    """
    oracle = Episode(EPISODE)
    state = EpisodeState(EPISODE)
    letters: list[Letter] = []
    for offset, event in enumerate(events):
        oracle.rules = rules if later is None or offset < changes_at else later
        oracle.take(fact_of(event, offset))
        for finding in apply(state, event, position_at(offset, event, oracle.rules)):
            if finding.kind in DEAD_LETTER_KINDS:
                letters.append(Letter(offset if finding.offset < 0 else finding.offset, finding.kind, finding.code))
        if not every and offset < len(events) - 1:
            continue
        wrong = _wrong(oracle, state)
        if sorted(letters) != sorted(oracle.letters):
            wrong["letters"] = (sorted(oracle.letters), sorted(letters))
        history = "\n".join(f"{at:3} {told(known)}" for at, known in enumerate(events[: offset + 1]))
        assert not wrong, f"oracle and fold disagree (oracle, fold): {wrong}\nafter\n{history}"


def _wrong(oracle: Episode, state: EpisodeState) -> dict[str, Any]:
    wrong: dict[str, Any] = {}
    if set(oracle.attempts) != set(state.attempts):
        return {"attempts": (set(oracle.attempts), set(state.attempts))}
    for number, expected in oracle.attempts.items():
        found = state.attempts[number]
        assert isinstance(found, AttemptState)
        issued = verdict_of(found)
        verdict = {} if issued is None else content_of(issued)
        here: dict[str, Any] = differences(expected.verdict() or {}, verdict)
        owed = expected.owes()
        other = snapshot_record(found)
        pairs = {
            "phase": (expected.phase(), found.phase),
            "paused": (expected.paused, found.paused),
            "next_step": (expected.next_step, found.next_step),
            "covered_to": (expected.covered_to, found.covered_to),
            "revision": (len(expected.revisions), found.revision),
            "duplicates": (expected.duplicates, found.duplicate_count),
            "violations": (expected.violations, found.violation_count),
            "sealed": (expected.sealed, found.sealed),
            "owes": (owed or (None, None), (other.owes, other.owes_seq)),
            "held": (
                {name: sorted(stream.held) for name, stream in expected.streams.items()},
                {producer.name: sorted(producer.held) for producer in found.producers()},
            ),
        }
        here |= {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
        wrong |= {f"{number} {name}": pair for name, pair in here.items()}
    return wrong
