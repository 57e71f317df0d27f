"""From a record to what goes to the log: encoded, with topic and key; and dead letters for what could not be used."""

from collections.abc import Iterable
from typing import Any, Protocol

import msgspec

from stepwell.engine.ports import OutgoingRecord, RecordBatch
from stepwell.events.guards import LETTER_KEY_MAX, MAX_STORED_BYTES, stored_bytes
from stepwell.events.model import DeadLetter, Event, HeaderField, Headers, LogRecord
from stepwell.events.routing import key_of, partition_key, topic_of
from stepwell.exceptions import EncodeError

DETAIL_MAX = 500
"""Longest ``detail`` of a dead letter (characters)."""


class Encoder(Protocol):
    """The writing half of `stepwell.events.codec.Codec`."""

    def encode(self, record: LogRecord) -> tuple[bytes, Headers]:
        """The record's bytes and headers."""


def outgoing(encoder: Encoder, record: LogRecord, partition: int | None = None) -> OutgoingRecord:
    """The record as it goes to the log: to the partition of its key, or to ``partition``.

    Raises:
        EncodeError: it does not fit its schema, or no log takes it (reason ``too-large``).
    """
    value, headers = encoder.encode(record)
    made = OutgoingRecord(topic_of(record), key_of(record), value, headers, partition)
    check_size(made)
    return made


def partition_copies(encoder: Encoder, event: Event, topic: str, partitions: Iterable[int]) -> list[OutgoingRecord]:
    """An event that concerns whole partitions (`stepwell.events.routing.PARTITION_WIDE`), once for each of them.

    Sent by number, whatever the key would say: ``RulesActivated`` to every partition of the episode and of the policy
    events (beside its home, see `outgoing`), ``DetectorTicked`` to the one where something waits.

    Raises:
        EncodeError: as `outgoing`.
    """
    value, headers = encoder.encode(event)
    made = [OutgoingRecord(topic, partition_key(event, number), value, headers, number) for number in partitions]
    for copy in made:
        check_size(copy)
    return made


def check_size(record: OutgoingRecord) -> None:
    """Judge whether every log takes a record with its key and headers.

    Raises:
        EncodeError: reason ``too-large``.
    """
    size = stored_bytes(record.key, record.value, record.headers)
    if size > MAX_STORED_BYTES:
        raise EncodeError(
            f"{size} bytes with key and headers are more than the {MAX_STORED_BYTES} of a record in the log",
            reason="too-large",
        )


def all_outgoing(encoder: Encoder, records: Iterable[LogRecord], partition: int | None = None) -> list[OutgoingRecord]:
    """Several records, in order; see `outgoing`."""
    return [outgoing(encoder, record, partition) for record in records]


def outgoing_letter(encoder: Encoder, letter: DeadLetter) -> OutgoingRecord:
    """A dead letter as it goes to the log. One that is too large for it leaves raw bytes where they stand.

    Value, headers and the end of the key are left out in turn, the largest first, until the rest fits; ``detail`` says
    what was left out.
    """
    try:
        return outgoing(encoder, letter)
    except EncodeError as error:
        failure = error
    reason = failure.reason
    cuts: list[tuple[int, str, dict[str, Any]]] = [
        (len(letter.source_value or b""), "value", {"source_value": None}),
        (stored_bytes(None, None, _plain(letter.source_headers)), "headers", {"source_headers": ()}),
        (
            len((letter.source_key or b"")[LETTER_KEY_MAX:]),
            "key",
            {"source_key": (letter.source_key or b"")[:LETTER_KEY_MAX]},
        ),
    ]
    fields: dict[str, Any] = {}
    left_out: dict[str, int] = {}
    for size, name, cut in sorted(cuts, key=lambda entry: entry[0], reverse=True):
        fields |= cut
        if size:
            left_out[name] = size
        place = f"left at their place ({' and '.join(left_out)}: {reason})"
        detail = _shorten(f"{sum(left_out.values())} bytes were {place}; {letter.detail}")
        short = msgspec.structs.replace(letter, **fields, detail=detail)
        try:
            return outgoing(encoder, short)
        except EncodeError as error:
            failure = error
    raise failure  # its own few texts do not fit, which only a defect can bring about


def _plain(headers: Iterable[HeaderField]) -> Headers:
    return tuple((header.name, header.value) for header in headers)


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
