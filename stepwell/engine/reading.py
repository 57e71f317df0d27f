"""Reading a known stretch of one partition, outside any group."""

from collections.abc import Iterator

from stepwell.engine.ports import MessageLog, RecordBatch, TopicPartition, Watermarks
from stepwell.exceptions import LogUnavailableError

BATCH_RECORDS = 10_000
POLL_TIMEOUT_S = 0.1
"""Short, because a poll that passes nothing but marks of transactions at the end lasts the whole of it."""
SILENT_POLLS_MAX = 300
"""Polls in a row that may give nothing although there is something to read, before the log counts as away."""


def watermarks_of(log: MessageLog, topic: str) -> dict[TopicPartition, Watermarks]:
    """Start and end of every partition of a topic now.

    Raises:
        TopicError: there is no such topic.
        LogUnavailableError: the log does not answer.
    """
    admin = log.admin()
    try:
        return admin.watermarks(topic)
    finally:
        admin.close()


def read_range(log: MessageLog, source: TopicPartition, start: int, end: int) -> Iterator[RecordBatch]:
    """The committed records of a partition from ``start`` up to, not including, ``end``, in batches.

    Ends at ``end`` even where only transaction markers or compacted records lie before it.

    Raises:
        PositionLostError: ``start`` lies outside of the log.
        LogUnavailableError: nothing came for `SILENT_POLLS_MAX` polls.
    """
    if start >= end:
        return
    consumer = log.consumer()
    try:
        consumer.assign({source: start})
        silent = 0
        while consumer.position(source) < end:
            batches = consumer.poll(BATCH_RECORDS, POLL_TIMEOUT_S)
            if not batches:
                silent += 1
                if silent > SILENT_POLLS_MAX and consumer.position(source) < end:
                    raise LogUnavailableError(
                        f"{source.topic}/{source.partition}: nothing came between {consumer.position(source)} and {end}"
                    )
                continue
            silent = 0
            for batch in batches:
                yield _up_to(batch, end)
    finally:
        consumer.close()


def _up_to(batch: RecordBatch, end: int) -> RecordBatch:
    """The batch without records at or above ``end``."""
    if batch.end <= end:
        return batch
    count = sum(1 for offset in batch.offsets if offset < end)
    return RecordBatch(
        batch.source,
        batch.start,
        end,
        batch.offsets[:count],
        batch.timestamps[:count],
        batch.keys[:count],
        batch.values[:count],
        batch.headers[:count],
    )
