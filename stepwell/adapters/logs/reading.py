"""Reads a topic from its start to where it ends now: for looking things up, not for following along."""

from collections.abc import Callable, Iterator

from stepwell.engine.ports import MessageLog, RecordBatch, TopicPartition
from stepwell.events.codec import Codec
from stepwell.events.model import LogRecord
from stepwell.exceptions import EventError, LogUnavailableError

BATCH_RECORDS_MAX = 5_000
POLL_S = 0.5
SILENCE_LIMIT_POLLS = 60


def read_batches(log: MessageLog, topic: str) -> Iterator[RecordBatch]:
    """Every committed record of a topic up to its end at the time of the call, partition by partition in batches.

    Raises:
        LogUnavailableError: the log stopped answering before the end was reached.
    """
    admin = log.admin()
    try:
        marks = admin.watermarks(topic)
    finally:
        admin.close()
    ends = {source: mark.high for source, mark in marks.items() if mark.high > mark.low}
    if not ends:
        return
    consumer = log.consumer()
    try:
        consumer.assign({source: marks[source].low for source in ends})
        silent = 0
        while ends:
            batches = consumer.poll(BATCH_RECORDS_MAX, POLL_S)
            silent = 0 if batches else silent + 1
            for batch in batches:
                if batch.source in ends:
                    yield _until(batch, ends[batch.source])
            # A position can pass records that are not handed out (markers, aborted ones), so ask rather than compute.
            for source in [source for source, end in ends.items() if consumer.position(source) >= end]:
                del ends[source]
                consumer.pause([source])
            if silent > SILENCE_LIMIT_POLLS:
                raise LogUnavailableError(f"{topic}: nothing more came before the end of {_named(ends)}")
    finally:
        consumer.close()


def read_all(log: MessageLog, codec: Codec, topic: str, keep: Callable[[bytes | None], bool] | None = None) -> Iterator[LogRecord]:
    """Every readable record of a topic, decoded; those whose key ``keep`` refuses and unreadable ones are passed over."""
    for batch in read_batches(log, topic):
        for key, value, headers in zip(batch.keys, batch.values, batch.headers, strict=True):
            if keep is not None and not keep(key):
                continue
            try:
                yield codec.decode(value, headers)
            except EventError:
                continue


def _until(batch: RecordBatch, end: int) -> RecordBatch:
    """The part of a batch below ``end``."""
    n = sum(1 for offset in batch.offsets if offset < end)
    if n == len(batch):
        return batch
    return RecordBatch(
        batch.source, batch.start, min(batch.end, end),
        batch.offsets[:n], batch.timestamps[:n], batch.keys[:n], batch.values[:n], batch.headers[:n],
    )  # fmt: skip


def _named(ends: dict[TopicPartition, int]) -> str:
    return ", ".join(f"partition {source.partition} (to {end})" for source, end in ends.items())
