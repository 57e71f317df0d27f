"""When silence means something: which facts the engine has to append about an attempt, and when.

Time is data. All waiting is counted on the log's clock (the time at which the log appended a record), so a decision
follows from the attempt's state and ``now``; deciding again from the same state gives the same bytes, however late.
"""

from typing import Any, Final

from stepwell.engine.certificate import tail_known
from stepwell.engine.ordering import Owed, is_queued, owed
from stepwell.engine.state import PRODUCERS, AttemptState
from stepwell.engine.verdict import ENGINE_ID
from stepwell.events.ids import derived_event_id
from stepwell.events.model import EpisodeSealed, EpisodeStalled, EpisodeTimedOut, Event

_US_PER_S: Final = 1_000_000
DAY_S: Final = 86_400.0


def due(
    attempt: AttemptState,
    now_us: int,
    stall_after_s: float,
    timeout_after_s: float,
    grace_s: float,
    pause_timeout_s: float = DAY_S,
) -> list[Event]:
    """The facts that the engine has to append now; at most one.

    Args:
        attempt: as folded to the end of the log (or as far as it was read).
        now_us: the log's time now (µs).
        stall_after_s: an owed fact that has not come for so long makes the attempt ``stalled``.
        timeout_after_s: after so long the owed fact is given up. Must exceed the longest outage of an edge site.
        grace_s: how long after its end an attempt with missing facts stays open for late ones.
        pause_timeout_s: in place of ``timeout_after_s`` while the episode is paused and the host owes the resume.

    A queued attempt, which no host has taken, is never stalled: it waits for its turn. A paused one is not stalled
    either, but times out in the end, so that a host that is lost meanwhile does not leave it open for ever.
    """
    facts = [
        make
        for at_us, make in _coming(attempt, stall_after_s, timeout_after_s, grace_s, pause_timeout_s)
        if now_us >= at_us
    ]
    return [facts[-1]] if facts else []


def next_due_us(
    attempt: AttemptState,
    stall_after_s: float,
    timeout_after_s: float,
    grace_s: float,
    pause_timeout_s: float = DAY_S,
) -> int | None:
    """The earliest time (µs) at which `due` has something to say, should nothing else happen; None: never."""
    coming = _coming(attempt, stall_after_s, timeout_after_s, grace_s, pause_timeout_s)
    return min((at_us for at_us, _ in coming), default=None)


def is_complete(attempt: AttemptState) -> bool:
    """Whether nothing can be missing: ended, all last sequences named and in, nothing lost and nothing waiting."""
    return (
        tail_known(attempt)
        and not attempt.held_count
        and not any(producer.lost_count for producer in attempt.producers())
    )


def _coming(
    attempt: AttemptState, stall_after_s: float, timeout_after_s: float, grace_s: float, pause_timeout_s: float
) -> list[tuple[int, Event]]:
    """What would have to be appended and when, later and weightier ones last."""
    if attempt.sealed:
        return []
    coming: list[tuple[int, Event]] = []
    waiting = owed(attempt) if attempt.end_state < 0 and not is_queued(attempt) else None
    if waiting is not None:
        paused = attempt.paused and waiting.gap_to is None and not waiting.previous_end
        if not attempt.stalled and not paused:
            coming.append(_silence(EpisodeStalled, attempt, waiting, stall_after_s))
        coming.append(_silence(EpisodeTimedOut, attempt, waiting, pause_timeout_s if paused else timeout_after_s))
        coming.sort(key=lambda entry: entry[0])
    if attempt.end_state >= 0 and is_complete(attempt):
        coming.append(_seal(attempt, "complete", attempt.changed_at))
    elif attempt.end_stands_at is not None:
        coming.append(_seal(attempt, "grace", attempt.end_stands_at + round(grace_s * _US_PER_S)))
    return coming


def _silence(
    kind: type[EpisodeStalled | EpisodeTimedOut], attempt: AttemptState, waiting: Owed, after_s: float
) -> tuple[int, Event]:
    at_us = attempt.owed_since + round(after_s * _US_PER_S)
    token = (PRODUCERS[waiting.producer], waiting.seq, attempt.flips)
    fact = kind(
        **_head(attempt, at_us, kind.TYPE, *token),
        owed=token[0],
        owed_seq=waiting.seq,
        flips=attempt.flips,
        idle_s=float(after_s),
    )
    return at_us, fact


def _seal(attempt: AttemptState, reason: str, at_us: int) -> tuple[int, Event]:
    return at_us, EpisodeSealed(**_head(attempt, at_us, EpisodeSealed.TYPE, reason), reason=reason)


def _head(attempt: AttemptState, at_us: int, *what: str | int) -> dict[str, Any]:
    return {
        "event_id": derived_event_id(*what, attempt.episode_id, attempt.attempt),
        "run_id": attempt.run_id,
        "episode_id": attempt.episode_id,
        "attempt": attempt.attempt,
        "producer_id": ENGINE_ID,
        "producer_seq": 0,
        "occurred_at": at_us,
        "trace_id": attempt.trace_id,
    }
