"""The dead-letter topic, read and retried without a database.

An id is ``PARTITION-OFFSET`` of the letter on ``stepwell.dead-letters``.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from stepwell.engine.ports import MessageLog, OutgoingRecord, TopicPartition
from stepwell.engine.reading import read_range, watermarks_of
from stepwell.events.codec import Codec
from stepwell.events.guards import check_time
from stepwell.events.model import DeadLetter, Event
from stepwell.events.topics import BY_NAME, DEAD_LETTERS
from stepwell.exceptions import ConfigurationError, EventError, NotFoundError, StepwellError

RETRIED_HEADER = "stepwell-retried"
"""On a record that was appended again: the id of its dead letter."""

FLUSH_TIMEOUT_S = 30.0

_ID = re.compile(r"(\d{1,6})-(\d{1,19})")


class RetryRefusedError(StepwellError):
    """Appending the record again would not help; says why and what would."""


@dataclass(frozen=True, slots=True)
class StoredLetter:
    """A dead letter with where it stands.

    Attributes:
        id: ``PARTITION-OFFSET``.
        recorded_at: log time of the letter (µs).
        letter: the letter.
    """

    id: str
    recorded_at: int
    letter: DeadLetter


def letters(log: MessageLog, codec: Codec) -> Iterator[StoredLetter]:
    """All dead letters, partition by partition, oldest first. A letter that is itself unreadable is left out."""
    for source, marks in sorted(watermarks_of(log, DEAD_LETTERS).items()):
        yield from _between(log, codec, source, marks.low, marks.high)


def find(log: MessageLog, codec: Codec, letter_id: str) -> StoredLetter:
    """The letter with this id.

    Raises:
        ConfigurationError: no id.
        NotFoundError: there is no such letter, or not any more.
    """
    match = _ID.fullmatch(letter_id)
    if not match:
        raise ConfigurationError(f"{letter_id!r} is no id of a dead letter; expected PARTITION-OFFSET, e.g. 0-17")
    source, offset = TopicPartition(DEAD_LETTERS, int(match[1])), int(match[2])
    marks = watermarks_of(log, DEAD_LETTERS).get(source)
    if marks is not None and marks.low <= offset < marks.high:
        for stored in _between(log, codec, source, offset, offset + 1):
            if stored.id == letter_id:
                return stored
    raise NotFoundError(f"there is no dead letter {letter_id}; 'stepwell dead-letters list' shows those there are")


def retry(log: MessageLog, codec: Codec, stored: StoredLetter) -> OutgoingRecord:
    """Append the raw record to its source topic again, marked with `RETRIED_HEADER`.

    Raises:
        RetryRefusedError: it would be refused again, or its bytes are not at hand.
    """
    record = retry_record(codec, stored)
    producer = log.producer()
    try:
        producer.send([record])
        producer.flush(FLUSH_TIMEOUT_S)
    finally:
        producer.close()
    return record


def retry_record(codec: Codec, stored: StoredLetter) -> OutgoingRecord:
    """What `retry` would append.

    Raises:
        RetryRefusedError: see `retry`.
    """
    letter = stored.letter
    if letter.kind == "after_seal":
        raise RetryRefusedError(
            f"{stored.id} came after its attempt was sealed, and a seal is for good: ask for another attempt instead"
        )
    if letter.kind == "violation":
        raise RetryRefusedError(
            f"{stored.id} breaks the protocol ({letter.reason}): the fold has judged it, and would judge it the same "
            "again; its producer has to be put right"
        )
    if letter.kind == "rule_failed":
        raise RetryRefusedError(
            f"{stored.id} tells of a rule that raised ({letter.reason}); its event was folded, and again it would be a "
            "duplicate: correct the rule and activate the set (stepwell patterns activate)"
        )
    if letter.source_topic not in BY_NAME:
        raise RetryRefusedError(f"{stored.id} comes from {letter.source_topic}, which is no topic of Stepwell")
    if letter.source_value is None:
        raise RetryRefusedError(
            f"{stored.id} holds no raw bytes ({letter.detail}); its record stands at "
            f"{letter.source_topic}/{letter.source_partition} offset {letter.source_offset}"
        )
    headers = tuple((field.name, field.value) for field in letter.source_headers)
    try:
        record = codec.decode(letter.source_value, headers)
        if isinstance(record, Event):
            check_time(record, stored.recorded_at)
    except EventError as error:
        raise RetryRefusedError(f"{stored.id} still cannot be read ({error.reason}): {error}") from error
    if letter.kind == "unreadable" and letter.reason in {"no-key", "bad-key", "wrong-topic"}:
        raise RetryRefusedError(f"{stored.id} can be read, but it would be refused again: {letter.detail}")
    kept = tuple((name, value) for name, value in headers if name != RETRIED_HEADER)
    mark = ((RETRIED_HEADER, stored.id.encode()),)
    return OutgoingRecord(letter.source_topic, letter.source_key, letter.source_value, kept + mark)


def _between(log: MessageLog, codec: Codec, source: TopicPartition, start: int, end: int) -> Iterator[StoredLetter]:
    for batch in read_range(log, source, start, end):
        for offset, at, value, headers in zip(
            batch.offsets, batch.timestamps, batch.values, batch.headers, strict=True
        ):
            try:
                letter = codec.decode(value, headers)
            except EventError:
                continue
            if isinstance(letter, DeadLetter):
                yield StoredLetter(f"{source.partition}-{offset}", at, letter)
