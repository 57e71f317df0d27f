"""What the owner of a partition appends because time has passed: stalled, timed out, sealed.

Time is data here: the log's time of the facts, the worker's clock, and since when the partition has been caught up.
Each fact carries the token of the moment it was made for, and the fold ignores it where the token no longer fits; so a
fact that lands meanwhile wins, and appending one twice is harmless.
"""

from typing import Final, NamedTuple

from stepwell.engine.cover import Cover
from stepwell.engine.ordering import Owed, is_queued, owed
from stepwell.engine.state import PRODUCERS, AttemptState
from stepwell.events.ids import derived_event_id
from stepwell.events.model import EpisodeSealed, EpisodeStalled, EpisodeTimedOut, Event

US: Final = 1_000_000

PAUSE_TIMEOUT_S: Final = 24 * 3600.0
"""A pause is somebody's decision, so the resume may take this long before the host counts as lost."""


class Timeouts(NamedTuple):
    """How long to wait, in seconds.

    Attributes:
        stall_after_s: without the owed event, until the attempt counts as stalled.
        timeout_after_s: without the owed event, until it is given up; longer than the longest outage of a site.
        seal_grace_s: after the end, until an incomplete attempt is sealed all the same.
        pause_timeout_s: without the resume of a paused attempt.
    """

    stall_after_s: float = 30.0
    timeout_after_s: float = 300.0
    seal_grace_s: float = 60.0
    pause_timeout_s: float = PAUSE_TIMEOUT_S


def is_complete(attempt: AttemptState) -> bool:
    """Whether everything that the end announced is in, so that nothing need be waited for."""
    if not attempt.ended or attempt.held_count:
        return False
    for producer in (attempt.sim, attempt.agent):
        if producer.limit is None or producer.next_seq <= producer.limit or producer.lost_count:
            return False
    return not attempt.host.lost_count


def seal_if_complete(cover: Cover, now_us: int, worker_id: str) -> list[Event]:
    """The seal, if nothing need be waited for."""
    if not is_complete(cover.attempt):
        return []
    return _seal(cover, "complete", now_us, worker_id)


def due_facts(cover: Cover, timeouts: Timeouts, caught_up_since: int, now_us: int, worker_id: str) -> list[Event]:
    """What has to be appended about one attempt now.

    Args:
        cover: the attempt, with what was appended already.
        timeouts: how long to wait.
        caught_up_since: since when the worker knows all that is in the log (µs); silence counts from then at most.
        now_us: the worker's clock.
        worker_id: who says so.
    """
    attempt = cover.attempt
    if attempt.end_stands_at is not None:
        # Applied, or held back by facts that are missing; the seal gives those up.
        waited_us = now_us - max(attempt.end_stands_at, caught_up_since)
        return _seal(cover, "grace", now_us, worker_id) if waited_us >= timeouts.seal_grace_s * US else []
    waits = owed(attempt)
    if waits is None or is_queued(attempt):
        return []  # queued: nobody has taken it yet, no clock runs
    idle_s = (now_us - max(attempt.owed_since, caught_up_since)) / US
    paused = attempt.paused and not attempt.held_count
    if idle_s >= (timeouts.pause_timeout_s if paused else timeouts.timeout_after_s):
        return _token_fact(EpisodeTimedOut, cover, waits, idle_s, now_us, worker_id)
    if idle_s >= timeouts.stall_after_s and not attempt.stalled and not paused:
        return _token_fact(EpisodeStalled, cover, waits, idle_s, now_us, worker_id)
    return []


def _token_fact(
    kind: type[EpisodeStalled] | type[EpisodeTimedOut],
    cover: Cover,
    waits: Owed,
    idle_s: float,
    now_us: int,
    worker_id: str,
) -> list[Event]:
    attempt = cover.attempt
    producer = PRODUCERS[waits.producer]
    token = (kind.TYPE, producer, waits.seq, attempt.flips)
    if token in cover.sent:
        return []
    cover.sent = {sent for sent in cover.sent if sent[1:] == token[1:]} | {token}
    return [
        kind(
            event_id=derived_event_id(
                kind.TYPE, attempt.episode_id, attempt.attempt, producer, waits.seq, attempt.flips
            ),
            run_id=attempt.run_id,
            episode_id=attempt.episode_id,
            attempt=attempt.attempt,
            producer_id=worker_id,
            producer_seq=0,
            occurred_at=now_us,
            trace_id=attempt.trace_id,
            owed=producer,
            owed_seq=waits.seq,
            flips=attempt.flips,
            idle_s=idle_s,
        )
    ]


def _seal(cover: Cover, reason: str, now_us: int, worker_id: str) -> list[Event]:
    attempt = cover.attempt
    ended_at = attempt.end_stands_at or 0
    token = (EpisodeSealed.TYPE, "", ended_at, 0)
    if token in cover.sent:
        return []
    cover.sent.add(token)
    return [
        EpisodeSealed(
            event_id=derived_event_id(EpisodeSealed.TYPE, attempt.episode_id, attempt.attempt, ended_at),
            run_id=attempt.run_id,
            episode_id=attempt.episode_id,
            attempt=attempt.attempt,
            producer_id=worker_id,
            producer_seq=0,
            occurred_at=now_us,
            trace_id=attempt.trace_id,
            reason=reason,
        )
    ]
