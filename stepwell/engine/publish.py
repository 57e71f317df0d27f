"""From a record to what goes to the log: encoded, with topic and key; and dead letters for what could not be used."""

from collections.abc import Iterable
from typing import Protocol

from stepwell.engine.ports import OutgoingRecord, RecordBatch
from stepwell.events.model import DeadLetter, HeaderField, Headers, LogRecord
from stepwell.events.routing import key_of, topic_of

DETAIL_MAX = 500
"""Longest ``detail`` of a dead letter (characters)."""


class Encoder(Protocol):
    """The writing half of `stepwell.events.codec.Codec`."""

    def encode(self, record: LogRecord) -> tuple[bytes, Headers]:
        """The record's bytes and headers."""


def outgoing(encoder: Encoder, record: LogRecord, partition: int | None = None) -> OutgoingRecord:
    """The record as it goes to the log: to the partition of its key, or to ``partition``.

    Raises:
        EncodeError: it does not fit its schema.
    """
    value, headers = encoder.encode(record)
    return OutgoingRecord(topic_of(record), key_of(record), value, headers, partition)


def all_outgoing(encoder: Encoder, records: Iterable[LogRecord], partition: int | None = None) -> list[OutgoingRecord]:
    """Several records, in order; see `outgoing`."""
    return [outgoing(encoder, record, partition) for record in records]


def dead_letter(
    batch: RecordBatch,
    index: int,
    *,
    kind: str,
    reason: str,
    detail: str,
    reported_by: str,
    episode_id: str | None = None,
    attempt: int | None = None,
    event_type: str | None = None,
) -> DeadLetter:
    """The record at ``index`` of a batch, whole, with where it stood and why it was refused."""
    return DeadLetter(
        kind=kind,
        reason=reason,
        detail=detail if len(detail) <= DETAIL_MAX else detail[: DETAIL_MAX - 1] + "…",
        source_topic=batch.source.topic,
        source_partition=batch.source.partition,
        source_offset=batch.offsets[index],
        source_timestamp=batch.timestamps[index],
        source_key=batch.keys[index],
        source_value=batch.values[index],
        source_headers=tuple(HeaderField(name=name, value=value) for name, value in batch.headers[index]),
        episode_id=episode_id,
        attempt=attempt,
        event_type=event_type,
        reported_by=reported_by,
    )
