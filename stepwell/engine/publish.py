"""From a record to what goes to the log: encoded, with topic and key; and dead letters for what could not be used."""

from collections.abc import Iterable
from typing import Protocol

import msgspec

from stepwell.engine.ports import OutgoingRecord, RecordBatch
from stepwell.events.model import DeadLetter, HeaderField, Headers, LogRecord
from stepwell.events.routing import key_of, topic_of
from stepwell.exceptions import EncodeError

DETAIL_MAX = 500
"""Longest ``detail`` of a dead letter (characters)."""

KEY_MAX = 10_000
"""Longest key that a dead letter without its raw bytes keeps (bytes)."""


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


def outgoing_letter(encoder: Encoder, letter: DeadLetter) -> OutgoingRecord:
    """A dead letter as it goes to the log. One that is too large for it leaves the raw bytes where they stand."""
    try:
        return outgoing(encoder, letter)
    except EncodeError as error:
        size = len(letter.source_value or b"")
        short = msgspec.structs.replace(
            letter,
            source_key=(letter.source_key or b"")[:KEY_MAX],
            source_value=None,
            source_headers=(),
            detail=_shorten(f"{size} bytes were left at their place ({error.reason}); {letter.detail}"),
        )
        return outgoing(encoder, short)


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
        detail=_shorten(detail),
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


def _shorten(text: str) -> str:
    # Half characters (lone surrogates) cannot be written, and hostile input may have brought some.
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= DETAIL_MAX else text[: DETAIL_MAX - 1] + "…"
