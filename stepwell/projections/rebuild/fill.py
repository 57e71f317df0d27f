"""Fills a generation from the log: first as projectors do, far behind, then step by step behind those in force."""

import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

from stepwell.engine.ports import Consumer, MessageLog, RecordBatch, TopicPartition
from stepwell.engine.reading import watermarks_of
from stepwell.events.codec import Codec
from stepwell.exceptions import LogUnavailableError
from stepwell.projections import queries
from stepwell.projections.database import Connection
from stepwell.projections.schema.generations import Homes
from stepwell.projections.writing.batch_reader import BatchReader
from stepwell.projections.writing.projector import GROUP, Projector
from stepwell.projections.writing.writer import BatchWriter

__all__ = ["Filler", "Follower", "Positions", "read_positions", "take_up_all"]

Positions = Mapping[TopicPartition, int]

_BATCH_RECORDS = 10_000
_POLL_S = 0.1
_SILENT_POLLS_MAX = 300


class Filler:
    """A projector of a generation's own, in a thread, for as long as the block lasts."""

    def __init__(
        self, log: MessageLog, locate: Callable[[], str], codec: Codec, homes: Homes, topics: Sequence[str]
    ) -> None:
        self._projector = Projector(
            log, locate(), codec, group=f"{GROUP}-{homes.schemas[0]}", sink=GROUP, topics=topics,
            homes=lambda _: homes, locate=locate,
        )  # fmt: skip
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"fill-{homes.schemas[0]}")

    def check(self) -> None:
        """Raise what the projector ended with."""
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if error is None:
            self.check()

    def _run(self) -> None:
        try:
            self._projector.run(self._stop)
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
            self._error = error


class Follower:
    """Brings the tables of one generation exactly to given positions, through a connection of the caller's.

    A consumer stays where it was from call to call, so that little has to be opened while others wait.
    """

    def __init__(self, log: MessageLog, codec: Codec, connection: Connection, homes: Homes) -> None:
        self._log = log
        self._connection = connection
        self._homes = homes
        self._reader = BatchReader(codec, GROUP)
        self._writer = BatchWriter(connection, GROUP, homes)
        self._consumer: Consumer | None = None
        self._stands: dict[TopicPartition, int] = {}

    def follow(self, goals: Positions) -> int:
        """Write what lies before the goals and is not in the tables yet; how many records that was.

        Each batch is a transaction of its own, or within the caller's.

        Raises:
            SinkFencedError: another projector writes the same tables; nothing is lost, call again.
            PositionLostError: the log no longer has what is needed.
            LogUnavailableError: the log does not answer.
        """
        at = read_positions(self._connection, self._homes)
        behind = {source: goal for source, goal in goals.items() if at[source] < goal}
        if not behind:
            return 0
        consumer = self._seek({source: at[source] for source in behind})
        records = silent = 0
        while behind:
            batches = [batch for batch in consumer.poll(_BATCH_RECORDS, _POLL_S) if batch.source in behind]
            silent = 0 if batches else silent + 1
            for batch in batches:
                records += self._write(_up_to(batch, behind[batch.source]))
            for source, goal in list(behind.items()):
                if consumer.position(source) >= goal:
                    # What is left before the goal are marks of transactions alone.
                    self._write(RecordBatch(source, self._stands[source], goal))
                    if consumer.position(source) != goal:
                        consumer.seek(source, goal)
                    consumer.pause([source])
                    del behind[source]
            if silent > _SILENT_POLLS_MAX:
                raise LogUnavailableError(f"Nothing comes from the log any more, although there is more of {behind}")
        return records

    def close(self) -> None:
        """Let go of the consumer."""
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = None

    def _seek(self, starts: Positions) -> Consumer:
        if self._consumer is None:
            self._consumer = self._log.consumer()
        if not set(starts) <= set(self._stands):
            self._stands.update(starts)
            self._consumer.assign(self._stands)
            self._consumer.pause(self._stands)
        for source, start in starts.items():
            if self._consumer.position(source) != start:
                self._consumer.seek(source, start)
            self._stands[source] = start
        self._consumer.resume(starts)
        return self._consumer

    def _write(self, batch: RecordBatch) -> int:
        if batch.start >= batch.end:
            return 0
        rows = self._reader.read(batch)
        self._writer.write(batch, rows.items, rows.columns, lambda: self._reader.read_one_by_one(batch))
        self._stands[batch.source] = batch.end
        return len(batch)


def read_positions(connection: Connection, homes: Homes) -> dict[TopicPartition, int]:
    """How far the tables that live there follow the log."""
    with connection.transaction():
        homes.show(connection)
        rows = connection.execute(queries.load("projector")["positions"], {"sink": GROUP}).fetchall()
    return {TopicPartition(topic, partition): position for topic, partition, position in rows}


def take_up_all(log: MessageLog, connection: Connection, homes: Homes, topics: Sequence[str]) -> None:
    """Give every partition a position: the log's start, where it has none yet or one that the log has left behind.

    The latter is for generations that are being built: what the log no longer tells is carried over.
    """
    sql = queries.load("projector")
    marks = {source: mark for topic in topics for source, mark in watermarks_of(log, topic).items()}
    with connection.transaction():
        homes.enter(connection)
        known = {
            TopicPartition(topic, partition): position
            for topic, partition, position in connection.execute(sql["positions"], {"sink": GROUP})
        }
        for source, mark in marks.items():
            where = {"sink": GROUP, **source._asdict(), "low": mark.low}
            if source not in known:
                connection.execute(sql["first_position"], {**where, "log_end": mark.high})
            elif known[source] < mark.low and not homes.active:
                connection.execute(queries.load("rebuild")["skip_to"], where)


def _up_to(batch: RecordBatch, end: int) -> RecordBatch:
    """The batch without records at or above ``end``."""
    if batch.end <= end:
        return batch
    count = sum(1 for offset in batch.offsets if offset < end)
    return RecordBatch(
        batch.source, batch.start, end, batch.offsets[:count], batch.timestamps[:count], batch.keys[:count],
        batch.values[:count], batch.headers[:count],
    )  # fmt: skip
