"""Folded attempts as bytes and as records of the snapshot topic.

A snapshot is a cache of a fold that can be repeated: exact to the bit, and refused by any other version of the fold.
"""

from typing import Any, Final

import msgspec

from stepwell.engine.effects import live_actions
from stepwell.engine.ordering import owed
from stepwell.engine.state import PRODUCERS, AttemptState, EpisodeState, ProducerState, SealedAttempt
from stepwell.engine.verdict import outcome_of
from stepwell.engine.version import FOLD_HASH, FOLD_VERSION
from stepwell.events.model import SnapshotTaken
from stepwell.exceptions import StepwellError

__all__ = [
    "FOLD_HASH",
    "FOLD_VERSION",
    "SnapshotRefusedError",
    "canonical",
    "dump",
    "load",
    "restore",
    "seal_marker",
    "snapshot_record",
]

SNAPSHOT: Final = "snapshot"
SEALED: Final = "sealed"

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[str, AttemptState])


class SnapshotRefusedError(StepwellError):
    """The snapshot was made by another version of the fold, or is damaged; fold the attempt again from the log."""


def dump(attempt: AttemptState) -> bytes:
    """An attempt as bytes, with the hash of the fold that made it."""
    return _encoder.encode((FOLD_HASH, attempt))


def load(state: bytes) -> AttemptState:
    """The attempt that `dump` was given, exact to the bit.

    Raises:
        SnapshotRefusedError: made by another version of the fold, or no snapshot at all.
    """
    try:
        fold_hash, attempt = _decoder.decode(state)
    except msgspec.MsgspecError as error:
        raise SnapshotRefusedError(f"these {len(state)} bytes are no snapshot of this fold: {error}") from error
    if fold_hash != FOLD_HASH:
        raise SnapshotRefusedError(
            f"the snapshot was made by fold {fold_hash}, this is {FOLD_HASH}; fold the attempt again from the log"
        )
    return attempt


def snapshot_record(attempt: AttemptState) -> SnapshotTaken:
    """The record for the snapshot topic: the snapshot, or of a sealed attempt its marker."""
    next_owed = owed(attempt)
    return SnapshotTaken(
        run_id=attempt.run_id,
        episode_id=attempt.episode_id,
        attempt=attempt.attempt,
        kind=SEALED if attempt.sealed else SNAPSHOT,
        fold_hash=FOLD_HASH,
        partition=attempt.partition,
        first_offset=attempt.first_offset,
        last_offset=attempt.last_offset,
        phase=attempt.phase,
        paused=attempt.paused and not attempt.ended,
        since_at=attempt.since_at,
        owes=None if next_owed is None else PRODUCERS[next_owed.producer],
        owes_seq=None if next_owed is None else next_owed.seq,
        next_step=attempt.next_step,
        # Not the time of the last record: a report of silence, by the engine itself, would end the silence it reports.
        last_event_at=attempt.changed_at,
        outcome=outcome_of(attempt)[0] if attempt.end is not None else None,
        revision=attempt.revision,
        state=b"" if attempt.sealed else dump(attempt),
    )


def seal_marker(attempt: AttemptState) -> SealedAttempt:
    """What stays in memory of a sealed attempt, once its last verdict and its marker have been written."""
    return SealedAttempt(
        attempt.episode_id, attempt.attempt, outcome_of(attempt)[0], attempt.revision, attempt.last_offset
    )


def restore(record: SnapshotTaken) -> AttemptState | SealedAttempt:
    """What a record of the snapshot topic holds.

    Raises:
        SnapshotRefusedError: see `load`. A marker is never refused.
    """
    if record.kind == SEALED:
        return SealedAttempt(
            record.episode_id, record.attempt, record.outcome or "error", record.revision, record.last_offset
        )
    if record.fold_hash != FOLD_HASH:
        raise SnapshotRefusedError(
            f"snapshot of {record.episode_id}/{record.attempt} was made by fold {record.fold_hash}, this is {FOLD_HASH}"
        )
    return load(record.state)


_TRANSPORT: Final = frozenset({
    "trace_id", "partition", "first_offset", "last_offset", "duplicate_count", "stale_count", "lost_claims",
    "since_at", "owed_since", "changed_at", "last_event_at", "end_stands_at", "stalled", "held_count",
    "revision", "content", "published", "announced", "actions", "actions_forgotten_to", "kept_actions", "violations",
    "fingerprints", "sim", "agent", "host",
})  # fmt: skip
"""Fields that depend on how and when records were delivered, or that `canonical` writes in an order of its own."""


def canonical(state: EpisodeState | AttemptState) -> bytes:
    """The canonical state: all but transport counters, offsets and the log's times, in an order that content fixes.

    Two deliveries of the same facts give the same bytes (see the promise in ``docs/state-machine.md``).
    """
    if isinstance(state, AttemptState):
        return _encoder.encode(_canonical(state))
    attempts = [
        _canonical(attempt) if isinstance(attempt, AttemptState) else [number, attempt.outcome]
        for number, attempt in sorted(state.attempts.items())
    ]
    return _encoder.encode([state.episode_id, attempts])


def _canonical(attempt: AttemptState) -> list[Any]:
    plain = [(name, getattr(attempt, name)) for name in AttemptState.__struct_fields__ if name not in _TRANSPORT]
    return [
        plain,
        sorted(attempt.fingerprints),
        sorted(
            [entry.code, entry.event_type, entry.producer, entry.producer_id, entry.seq, entry.digest]
            for entry in attempt.violations
        ),
        [[seq, entry, attempt.kept_actions.get(seq)] for seq, entry in live_actions(attempt).items()],
        [_canonical_producer(producer) for producer in attempt.producers()],
    ]


def _canonical_producer(producer: ProducerState) -> list[Any]:
    return [
        producer.producer_id,
        producer.next_seq,
        producer.limit,
        producer.digests,
        [(seq, held.fact, held.digest) for seq, held in sorted(producer.held.items())],
        producer.lost,
        producer.late,
        producer.lost_count,
        producer.late_count,
        producer.unlisted,
    ]
