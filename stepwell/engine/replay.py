"""Fold an episode again, from its events alone, and say at each one what it did. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from stepwell.engine.findings import Finding
from stepwell.engine.fold import apply
from stepwell.engine.machine import TRIGGER_OF
from stepwell.engine.ordering import owed
from stepwell.engine.state import PRODUCERS, AttemptState, EpisodeState, Position, SealedAttempt
from stepwell.engine.verdict import verdict_of
from stepwell.events.model import Event, VerdictIssued

Fate = Literal["applied", "held", "duplicate", "late", "lost_claim", "stale", "noted", "refused", "after_seal"]
"""What became of an event. ``noted``: the engine's own facts, which the fold took. ``refused``: a violation."""

_FATE_OF_FINDING: dict[str, Fate] = {
    "after_seal": "after_seal",
    "violation": "refused",
    "late": "late",
    "stale": "stale",
}


class ReplayStep(NamedTuple):
    """One event of a replay.

    Attributes:
        event, position: the event, and where its record stands.
        fate: what became of it.
        trigger: the state machine's trigger that its type fires, or None.
        before, after: the attempt's state as users see it; empty before the first event.
        paused: whether the attempt is paused afterwards.
        released: how many facts that had been waiting were applied in its wake.
        waiting: how many facts wait afterwards.
        next_step, covered_to: steps done and steps covered by actions, afterwards.
        total_reward: sum of rewards so far.
        owes, owes_seq: who owes the next event and its sequence, afterwards; None once ended.
        revision: the verdict's revision afterwards; 0 before the end.
        findings: violations, losses and the like that it brought up.
    """

    event: Event
    position: Position
    fate: Fate
    trigger: str | None
    before: str
    after: str
    paused: bool
    released: int
    waiting: int
    next_step: int
    covered_to: int
    total_reward: float
    owes: str | None
    owes_seq: int | None
    revision: int
    findings: Sequence[Finding]


class FoldedHistory(NamedTuple):
    """An episode folded from its events alone.

    Attributes:
        state: the episode's state.
        verdicts: the current verdict of each attempt that has ended, by attempt.
        findings: everything that was noticed, in order.
    """

    state: EpisodeState
    verdicts: dict[int, VerdictIssued]
    findings: list[Finding]


def fold_history(history: Iterable[tuple[Event, Position]]) -> FoldedHistory:
    """Fold the events of one episode, in the log's order. An empty history gives a state without attempts."""
    state: EpisodeState | None = None
    findings: list[Finding] = []
    for event, position in history:
        if state is None:
            state = EpisodeState(event.episode_id)
        findings.extend(apply(state, event, position))
    if state is None:
        state = EpisodeState("")
    verdicts = {}
    for number, attempt in sorted(state.attempts.items()):
        verdict = verdict_of(attempt) if isinstance(attempt, AttemptState) else None
        if verdict is not None:
            verdicts[number] = verdict
    return FoldedHistory(state, verdicts, findings)


def replay(history: Iterable[tuple[Event, Position]]) -> Iterator[ReplayStep]:
    """Fold the events of one episode, in the log's order, and tell about each. See `ReplayStep`."""
    state: EpisodeState | None = None
    for event, position in history:
        if state is None:
            state = EpisodeState(event.episode_id)
        yield _one(state, event, position)


class _Counts(NamedTuple):
    """What is compared before and after an event."""

    phase: str
    held: int
    duplicates: int
    lost_claims: int


def _counts(attempt: AttemptState | SealedAttempt | None) -> _Counts:
    if not isinstance(attempt, AttemptState):
        return _Counts("", 0, 0, 0)
    return _Counts(attempt.phase, attempt.held_count, attempt.duplicate_count, attempt.lost_claims)


def _one(state: EpisodeState, event: Event, position: Position) -> ReplayStep:
    before = _counts(state.attempts.get(event.attempt))
    findings = apply(state, event, position)
    attempt = state.attempts.get(event.attempt)
    after = _counts(attempt)
    fate = _fate(attempt, event, position, before, after, findings)
    live = attempt if isinstance(attempt, AttemptState) else None
    waiting_for = owed(live) if live is not None else None
    return ReplayStep(
        event=event,
        position=position,
        fate=fate,
        trigger=TRIGGER_OF.get(type(event)),
        before=before.phase,
        after=after.phase,
        paused=live.paused if live else False,
        released=max(0, before.held + (fate == "held") - after.held),
        waiting=after.held,
        next_step=live.next_step if live else 0,
        covered_to=live.covered_to if live else 0,
        total_reward=live.total_reward if live else 0.0,
        owes=PRODUCERS[waiting_for.producer] if waiting_for else None,
        owes_seq=waiting_for.seq if waiting_for else None,
        revision=live.revision if live else 0,
        findings=findings,
    )


def _fate(
    attempt: AttemptState | SealedAttempt | None,
    event: Event,
    position: Position,
    before: _Counts,
    after: _Counts,
    findings: Sequence[Finding],
) -> Fate:
    """What became of the event, told from what it changed."""
    own = {finding.kind for finding in findings if finding.offset == position.offset}
    for kind, fate in _FATE_OF_FINDING.items():
        if kind in own:
            return fate
    if event.PRODUCER == "engine":
        return "noted"
    if not isinstance(attempt, AttemptState) or after.duplicates > before.duplicates:
        return "duplicate"
    if after.lost_claims > before.lost_claims:
        return "lost_claim"
    held = attempt.producers()[PRODUCERS.index(event.PRODUCER)].held.get(event.producer_seq)
    if held is not None and held.offset == position.offset:
        return "held"
    # A request for an attempt that is sealed does nothing, as a duplicate.
    return "duplicate" if attempt.last_offset != position.offset else "applied"
