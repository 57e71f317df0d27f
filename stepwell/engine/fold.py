"""The fold: events of an episode in, state out. Pure and total.

`apply` is the fold, in place; `evolve` is the same without touching its input. Neither knows a clock, and neither
raises, whatever the events say: an event that breaks the protocol is recorded in the state and returned as a `Finding`.

`_regular_step` and `_regular_action` are the hot path: the next fact of the attempt's own incarnation, nothing waiting,
nothing ended. They only skip questions whose answer is known; `_general` is the definition, a test holds them equal.
"""

from collections.abc import Callable, Sequence
from copy import copy
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec

from stepwell.engine import ranges
from stepwell.engine.effects import CODES, apply_action, apply_end, apply_step, end_code
from stepwell.engine.facts import FACT_OF, EndFact
from stepwell.engine.findings import Finding, Findings, rule_failed
from stepwell.engine.machine import TRIGGER_OF
from stepwell.engine.nonfinite import has_nonfinite
from stepwell.engine.ordering import apply_in_turn, drain, give_up, hold, owed, waits_for
from stepwell.engine.state import (
    HOLD_LIMIT,
    LIST_LIMIT,
    NUMBER_LIMIT,
    PREVIOUS_FAILED,
    PREVIOUS_OPEN,
    PREVIOUS_SUCCEEDED,
    PRODUCERS,
    AttemptState,
    EpisodeState,
    Held,
    Position,
    ProducerState,
    SealedAttempt,
    Violation,
    new_attempt,
)
from stepwell.engine.steps.judge import judge_step, judge_tick, keep_action, keep_for_rules
from stepwell.engine.steps.memory import copy_kept, copy_memory
from stepwell.engine.verdict import revise
from stepwell.events import model
from stepwell.events.model import Event

_NOTHING: Final[tuple[Finding, ...]] = ()
_ENDS: Final = (model.EpisodeEnded, model.EpisodeFailed, model.EpisodeAborted)
_FRAME_BYTES: Final = 5
"""Magic byte and schema id in front of an encoded event; the id may differ where a log or a bundle moved."""
_SILENT_TIMEOUT: Final = "silent_timeout"
_HOST_LOST: Final = "host_lost"

_encode = msgspec.msgpack.Encoder().encode


def content_digest(value: bytes) -> int:
    """Digest of an event's content from its encoded record value (with its five bytes of framing). For `Position`.

    63 bits of BLAKE2b, never 0: to find another content for a given digest takes 2**62 tries. Who writes both facts
    and means to hide that they differ needs about 2**32.
    """
    return _digest(value[_FRAME_BYTES:])


def event_digest(event: Event) -> int:
    """Digest of an event's content where the encoded record is not at hand."""
    return _digest(_encode(event))


def _digest(content: bytes) -> int:
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "big") >> 1 or 1


def apply(state: EpisodeState, event: Event, position: Position) -> Sequence[Finding]:
    """Fold one event into the state, in place.

    Args:
        state: the episode; attempts that were sealed and put away must be there again (`SealedAttempt` is enough).
        event: any event.
        position: where its record stands.

    Returns:
        What was noticed; empty for a regular fact.
    """
    attempt = state.attempts.get(event.attempt)
    if not isinstance(attempt, AttemptState) or attempt.sealed or event.episode_id != state.episode_id:
        starts = type(event) in FACT_OF and event.attempt >= 1 and event.episode_id == state.episode_id
        if attempt is not None or not starts:
            return _outside(state, event, position)
        attempt = new_attempt(state.episode_id, event.attempt, event.run_id, event.trace_id, position)
        adopt(state, attempt)
    attempt.last_offset = position.offset
    attempt.last_event_at = position.timestamp
    if not attempt.held_count and attempt.end_state < 0:
        kind = event.__class__
        if kind is model.StepDone:
            if _regular_step(attempt, event, position):  # type: ignore[arg-type]  # its class was just looked at
                return _judged(attempt, event, position) if attempt.rules else _NOTHING  # type: ignore[arg-type]
        elif kind is model.ActionSent and _regular_action(attempt, event, position):  # type: ignore[arg-type]
            return _NOTHING
    stood = attempt.end_stands_at
    findings = _general(attempt, event, position)
    if attempt.end_stands_at != stood:
        findings.extend(_tell_next(state, attempt))
    return findings


def evolve(state: EpisodeState | None, event: Event, position: Position) -> EpisodeState:
    """The state after one more event; the given state stays as it is. See `apply`."""
    after = EpisodeState(event.episode_id)
    if state is not None:
        after.episode_id = state.episode_id
        after.attempts = dict(state.attempts)
        for number in (event.attempt, event.attempt + 1):  # no other attempt can be touched
            attempt = after.attempts.get(number)
            if isinstance(attempt, AttemptState):
                after.attempts[number] = copy_attempt(attempt)
    apply(after, event, position)
    return after


def adopt(state: EpisodeState, attempt: AttemptState | SealedAttempt) -> Sequence[Finding]:
    """Put an attempt (new, or loaded from a snapshot or marker) into the episode and tell its neighbours."""
    state.attempts[attempt.attempt] = attempt
    before = state.attempts.get(attempt.attempt - 1)
    findings: Sequence[Finding] = _NOTHING
    if before is not None and before is not attempt:
        findings = _tell_next(state, before)
    return [*findings, *_tell_next(state, attempt)]


def copy_attempt(attempt: AttemptState) -> AttemptState:
    """A copy that shares nothing that can change."""
    after = copy(attempt)
    after.sim, after.agent, after.host = (_copy_producer(producer) for producer in attempt.producers())
    after.actions = {seq: list(entry) for seq, entry in attempt.actions.items()}
    after.fingerprints = list(attempt.fingerprints)
    after.violations = list(attempt.violations)
    after.step_memory = copy_memory(attempt.step_memory)
    after.kept_actions = copy_kept(attempt.kept_actions)
    return after


def _copy_producer(producer: ProducerState) -> ProducerState:
    after = copy(producer)
    after.digests = list(producer.digests)
    after.held = dict(producer.held)
    after.lost = [list(entry) for entry in producer.lost]
    after.late = [list(entry) for entry in producer.late]
    return after


# --- the hot path -------------------------------------------------------------------------------------------------


def _regular_step(attempt: AttemptState, event: model.StepDone, position: Position) -> bool:
    """Fold the step that the simulator owes. False: it is anything else, and nothing was changed."""
    sim = attempt.sim
    seq = event.producer_seq
    if (
        seq != sim.next_seq
        or event.producer_id != sim.producer_id
        or event.action_seq >= attempt.agent.next_seq
        or attempt.covered_to <= attempt.next_step
    ):
        return False
    before = attempt.state
    if apply_step(attempt, event, has_nonfinite(event.observation)) is not None:
        return False
    sim.digests[seq % HOLD_LIMIT] = position.digest or event_digest(event)
    sim.next_seq = seq + 1
    timestamp = position.timestamp
    attempt.changed_at = timestamp
    if attempt.state != before:
        attempt.since_at = timestamp
    if not attempt.paused:
        attempt.owed_since = timestamp
        attempt.stalled = False
    if position.fingerprint not in attempt.fingerprints:
        _note_fingerprint(attempt, position.fingerprint)
    return True


def _regular_action(attempt: AttemptState, event: model.ActionSent, position: Position) -> bool:
    """Fold the agent's next action. False: it is anything else, and nothing was changed."""
    agent = attempt.agent
    seq = event.producer_seq
    if seq != agent.next_seq or event.producer_id != agent.producer_id or not attempt.ready:
        return False
    before = attempt.state
    agent_owed = attempt.covered_to <= attempt.next_step
    if apply_action(attempt, event, has_nonfinite((event.action,))) is not None:
        return False
    agent.digests[seq % HOLD_LIMIT] = position.digest or event_digest(event)
    agent.next_seq = seq + 1
    timestamp = position.timestamp
    attempt.changed_at = timestamp
    if attempt.state != before:
        attempt.since_at = timestamp
    if agent_owed and not attempt.paused:
        attempt.owed_since = timestamp
        attempt.stalled = False
    if position.fingerprint not in attempt.fingerprints:
        _note_fingerprint(attempt, position.fingerprint)
    if attempt.rules:
        keep_action(attempt, event)
    return True


def _judged(attempt: AttemptState, event: model.StepDone, position: Position) -> Sequence[Finding]:
    """Let the attempt's step rules see the step that was just folded."""
    failures = judge_step(attempt, event)
    if not failures:
        return _NOTHING
    at = (event.PRODUCER, event.producer_seq)
    return [rule_failed(attempt, entry, event.TYPE, at, position.offset, position.timestamp) for entry in failures]


# --- the definition -----------------------------------------------------------------------------------------------


class _Before(NamedTuple):
    """What is compared before and after an event."""

    token: tuple[int, int, int] | None
    state: int
    end_state: int


def _look(attempt: AttemptState) -> _Before:
    next_owed = owed(attempt)
    token = None if next_owed is None else (next_owed.producer, next_owed.seq, attempt.flips)
    return _Before(token, attempt.state, attempt.end_state)


def _settle(attempt: AttemptState, before: _Before, timestamp: int) -> None:
    """Bring what follows from the state up to date: since when it is so, and the verdict's revision."""
    after = _look(attempt)
    if after.token != before.token:
        attempt.owed_since = timestamp
        attempt.stalled = False
    if (after.state if after.end_state < 0 else after.end_state) != (
        before.state if before.end_state < 0 else before.end_state
    ):
        attempt.since_at = timestamp
    if attempt.end_state >= 0:
        revise(attempt)


def _general(attempt: AttemptState, event: Event, position: Position) -> Findings:
    """Fold any event of a known, unsealed attempt."""
    findings = Findings()
    before = _look(attempt)
    kind = type(event)
    if kind in FACT_OF:
        _sequenced(attempt, event, position, findings)
    elif isinstance(event, model.EpisodeStalled | model.EpisodeTimedOut):
        _silence(attempt, event, position, findings)
    elif kind is model.EpisodeSealed:
        _seal(attempt, event, position, findings)
    else:
        findings.append(outside("violation", "unexpected_type", event, position))
    _settle(attempt, before, position.timestamp)
    return findings


def _sequenced(attempt: AttemptState, event: Event, position: Position, findings: Findings) -> None:
    """A fact of the simulator, the agent or the host."""
    producer = attempt.producers()[PRODUCERS.index(event.PRODUCER)]
    seq = event.producer_seq
    digest = position.digest or event_digest(event)

    def refuse(code: str) -> None:
        entry = Violation(code, event.TYPE, event.PRODUCER, event.producer_id, seq, digest, position.offset)
        findings.record(attempt, entry, position.timestamp)

    if not 0 <= seq <= NUMBER_LIMIT:
        refuse("bad_sequence")
    elif not _is_own(producer, event):
        if isinstance(event, model.EpisodeClaimed):
            attempt.lost_claims += 1
        else:
            refuse("foreign")
    elif seq < producer.next_seq:
        _repeated(attempt, producer, event, digest, position, findings, refuse)
    elif seq in producer.held:
        if digest == producer.held[seq].digest or isinstance(event, model.Request):
            attempt.duplicate_count += 1
        else:
            refuse("equivocation")
    elif producer.limit is not None and seq > producer.limit:
        refuse("second_end" if type(event) in _ENDS else "beyond_end")
    else:
        _accept(attempt, producer, event, digest, position, findings)


def _is_own(producer: ProducerState, event: Event) -> bool:
    """Whether the fact comes from the attempt's incarnation; the first in the log is bound here.

    A request may come from any process. A host is bound by its claim, or by its first fact that is no request.
    """
    if isinstance(event, model.Request):
        return True
    if producer.producer_id is None:
        producer.producer_id = event.producer_id
    return producer.producer_id == event.producer_id


def _repeated(
    attempt: AttemptState,
    producer: ProducerState,
    event: Event,
    digest: int,
    position: Position,
    findings: Findings,
    refuse: Callable[[str], None],
) -> None:
    """A sequence that had its turn: late where it was lost, else a duplicate or an equivocation."""
    seq = event.producer_seq
    dropped = ranges.remove(producer.lost, seq, LIST_LIMIT)
    recent = seq >= producer.next_seq - HOLD_LIMIT
    if dropped is not None:
        producer.lost_count -= 1
        producer.unlisted += dropped
        producer.late_count += 1
        if not ranges.insert(producer.late, seq, LIST_LIMIT):
            producer.unlisted += 1
        if recent:
            producer.digests[seq % HOLD_LIMIT] = digest
        attempt.changed_at = position.timestamp
        detail = f"{event.TYPE} {seq} of {event.PRODUCER} came after it had been given up; it is not in the numbers"
        findings.note("late", detail, attempt, event.TYPE, (event.PRODUCER, seq), position)
        return
    known = producer.digests[seq % HOLD_LIMIT] if recent else -1
    if known in {-1, digest} or isinstance(event, model.Request):
        attempt.duplicate_count += 1
    else:
        refuse("equivocation")


def _accept(
    attempt: AttemptState, producer: ProducerState, event: Event, digest: int, position: Position, findings: Findings
) -> None:
    """A new fact: apply it where it has its turn, else hold it."""
    attempt.changed_at = position.timestamp
    if position.fingerprint not in attempt.fingerprints:
        _note_fingerprint(attempt, position.fingerprint)
    fact = FACT_OF[type(event)](event)
    if attempt.rules:
        fact = keep_for_rules(attempt.rules, event, fact)
    if attempt.end_stands_at is None and isinstance(fact, EndFact) and end_code(attempt, fact) is None:
        attempt.end_stands_at = position.timestamp
    seq = event.producer_seq
    held = Held(fact, digest, position.offset, position.timestamp, event.TYPE, event.producer_id)
    if seq == producer.next_seq and waits_for(attempt, fact) is None:
        apply_in_turn(attempt, producer, seq, held, findings)
        drain(attempt, findings)
    else:
        hold(attempt, producer, seq, held, findings)
        if isinstance(fact, EndFact):
            drain(attempt, findings)  # an end says what will never come


def _note_fingerprint(attempt: AttemptState, fingerprint: str) -> None:
    if len(attempt.fingerprints) < LIST_LIMIT:
        attempt.fingerprints.append(fingerprint)


def _silence(
    attempt: AttemptState,
    event: model.EpisodeStalled | model.EpisodeTimedOut,
    position: Position,
    findings: Findings,
) -> None:
    """``episode::stalled`` or ``episode::timed_out``: counts only while its token fits."""
    now = owed(attempt)
    if now is None or (PRODUCERS[now.producer], now.seq, attempt.flips) != (event.owed, event.owed_seq, event.flips):
        attempt.stale_count += 1
        detail = f"{event.TYPE}: {event.owed} does not owe fact {event.owed_seq} any more"
        findings.note("stale", detail, attempt, event.TYPE, (event.owed, event.owed_seq), position)
        return
    if attempt.rules:
        for failure in judge_tick(attempt, event.occurred_at):
            at = (event.PRODUCER, event.producer_seq)
            findings.append(rule_failed(attempt, failure, event.TYPE, at, position.offset, position.timestamp))
    if isinstance(event, model.EpisodeStalled):
        attempt.stalled = True
        return
    attempt.changed_at = position.timestamp
    if now.previous_end or now.gap_to is not None:
        give_up(attempt, now, "timed_out", findings)
        return
    attempt.end_stands_at = position.timestamp
    apply_end(
        attempt,
        EndFact(
            producer_seq=-1,
            occurred_at=event.occurred_at,
            kind="timed_out",
            n_steps=None,
            last_sim_seq=None,
            last_agent_seq=None,
            success=None,
            reason=event.owed,
            failure_type=_HOST_LOST if event.owed == "host" else _SILENT_TIMEOUT,
            message=f"{event.owed} owed its fact {event.owed_seq}, nothing came, and no component reported why",
        ),
    )


def _seal(attempt: AttemptState, event: Event, position: Position, findings: Findings) -> None:
    """``episode::sealed``: give up what is missing, let go on what waits, close the attempt."""
    while attempt.held_count and attempt.end_stands_at is not None:
        now = owed(attempt)
        assert now is not None  # something is held, so something is waited for
        give_up(attempt, now, "seal", findings)
    if attempt.end_state < 0:
        attempt.end_stands_at = None
        attempt.stale_count += 1
        detail = f"{event.TYPE}: the attempt has not ended"
        findings.note("stale", detail, attempt, event.TYPE, (event.PRODUCER, event.producer_seq), position)
        return
    attempt.sealed = True
    attempt.changed_at = position.timestamp


# --- between attempts, and outside of them ------------------------------------------------------------------------


def _tell_next(state: EpisodeState, attempt: AttemptState | SealedAttempt) -> Sequence[Finding]:
    """An attempt's end stands in the log: the retry request that waits for it may go on, or is refused."""
    after = state.attempts.get(attempt.attempt + 1)
    if not isinstance(after, AttemptState) or after.previous != PREVIOUS_OPEN:
        return _NOTHING
    success = _succeeded(attempt)
    if success is None:
        return _NOTHING
    before = _look(after)
    findings = Findings()
    after.previous = PREVIOUS_SUCCEEDED if success else PREVIOUS_FAILED
    drain(after, findings)
    _settle(after, before, attempt.last_event_at if isinstance(attempt, AttemptState) else after.last_event_at)
    return findings


def _succeeded(attempt: AttemptState | SealedAttempt) -> bool | None:
    """Whether the end that stands, applied or held, is a success; None where none stands."""
    if isinstance(attempt, SealedAttempt):
        return attempt.outcome == "success"
    if attempt.end is not None:
        return attempt.end.success is True
    if attempt.end_stands_at is None:
        return None
    for _, held in sorted(attempt.host.held.items()):
        if isinstance(held.fact, EndFact) and end_code(attempt, held.fact) is None:
            return held.fact.success is True
    return None


def outside(kind: str, code: str, event: Event, position: Position) -> Finding:
    """A finding about an event that touches no state."""
    meaning = {
        "after_seal": "came after the attempt was sealed",
        "stale": "concerns an attempt that is sealed or of which nothing is known",
    }.get(code) or CODES[code]
    detail = f"{event.TYPE} {event.producer_seq} of {event.PRODUCER} {event.producer_id}: {meaning}"
    return Finding(
        kind,
        code,
        detail,
        event.episode_id,
        event.attempt,
        event.TYPE,
        event.PRODUCER,
        event.producer_seq,
        event.producer_seq,
        position.partition,
        position.offset,
        position.timestamp,
    )


def _outside(state: EpisodeState, event: Event, position: Position) -> Sequence[Finding]:
    """An event that may touch no state: of another episode, of no attempt, or of a sealed one."""
    if type(event) not in TRIGGER_OF:
        return (outside("violation", "unexpected_type", event, position),)
    if event.episode_id != state.episode_id:
        return (outside("violation", "wrong_episode", event, position),)
    if event.attempt < 1:
        return (outside("violation", "bad_attempt", event, position),)
    if type(event) not in FACT_OF:
        return (outside("stale", "stale", event, position),)
    if isinstance(event, model.Request):
        return _NOTHING  # asking again for what is done does nothing
    return (outside("after_seal", "after_seal", event, position),)
