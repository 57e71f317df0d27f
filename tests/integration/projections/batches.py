"""Batches of records as a log would give them, with times of one's own, and what writes them."""

import itertools
from collections.abc import Collection, Iterator, Sequence

from stepwell.engine.ports import RecordBatch, TopicPartition
from stepwell.events.model import LogRecord
from stepwell.events.routing import key_of, topic_of
from stepwell.projections.database import Connection
from stepwell.projections.schema.generations import read_homes
from stepwell.projections.writing.rows import project
from stepwell.projections.writing.writer import BatchWriter, Item
from tests.integration.projections import facts

_starts = itertools.count(0, 1_000_000)


def cut(records: Sequence[LogRecord], cuts: Collection[int], logged_at: int, start: int = 0) -> Iterator[RecordBatch]:
    """Records that stand one after the other in partition 0 of their topic, in batches that end at the cuts."""
    bounds = [0, *sorted(set(cuts) & set(range(1, len(records)))), len(records)]
    source = TopicPartition(topic_of(records[0]), 0)
    for first, last in itertools.pairwise(bounds):
        encoded = [facts.CODEC.encode(record) for record in records[first:last]]
        places = range(start + first, start + last)
        yield RecordBatch(
            source, start + first, start + last, list(places), [logged_at + place for place in places],
            [(key_of(record) or b"") for record in records[first:last]], [value for value, _ in encoded],
            [headers for _, headers in encoded],
        )  # fmt: skip


def write(connection: Connection, batches: Iterator[RecordBatch], sink: str) -> None:
    """Write batches that follow each other."""
    homes = read_homes(connection)
    writer = BatchWriter(connection, sink, homes)
    for batch in batches:
        with connection.transaction():
            homes.enter(connection)
            connection.execute(
                "INSERT INTO sink_offsets (sink, topic, partition, next_offset, read_to, log_end)"
                " VALUES (%s, %s, 0, %s, 0, 0) ON CONFLICT DO NOTHING", (sink, batch.source.topic, batch.start),
            )  # fmt: skip
        items = [Item(index, rows) for index in range(len(batch)) if (rows := project(facts.CODEC, batch, index))]
        writer.write(batch, items)


def write_by_topic(connection: Connection, records: Sequence[LogRecord], logged_at: int) -> None:
    """Write records of several topics, all taken by the log at one time (µs), at offsets that nobody had before."""
    for topic in dict.fromkeys(map(topic_of, records)):
        start = next(_starts)
        own = [record for record in records if topic_of(record) == topic]
        write(connection, cut(own, (), logged_at - start, start), f"test-{start}")
