"""From the log into the tables, exactly once.

The position of each partition stands in the database (``sink_offsets``) and moves in one transaction with the rows, so
the database's position is the truth; what is committed on the log is advice for people who look there. Whenever there
is doubt (a new assignment, a lost connection, a position that another projector moved), the position is read again and
the partition goes on from there.

While the database works on a batch, in a thread of its own, the next ones are read and their rows are made. There are
never more than `_ON_ITS_WAY` on their way, one after the other, and nothing else touches the connection meanwhile
(`Projector._settle`).
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import structlog

from stepwell.engine.ports import Consumer, MessageLog, RecordBatch, TopicPartition
from stepwell.engine.vitals import DATABASE, LOG, Unwatched, Vitals
from stepwell.events.codec import Codec
from stepwell.exceptions import (
    DatabaseUnavailableError,
    GenerationMovedError,
    LogError,
    LogUnavailableError,
    SinkFencedError,
)
from stepwell.projections import queries
from stepwell.projections.database import Connection, Deadline, connect, named_errors
from stepwell.projections.progress.log_watch import LogWatch
from stepwell.projections.progress.reporter import ProgressReporter
from stepwell.projections.schema import migrate
from stepwell.projections.schema.generations import Homes, read_homes
from stepwell.projections.writing.batch_reader import BatchReader, BatchRows, without_collector
from stepwell.projections.writing.columns.batch import COLUMNS_FROM
from stepwell.projections.writing.rows import PROJECTED_TOPICS
from stepwell.projections.writing.writer import BatchWriter, Written
from stepwell.redaction import redact_text

__all__ = ["BATCH_RECORDS", "GROUP", "Projector"]

GROUP = "stepwell-projector"
BATCH_RECORDS = 20_000
"""One poll takes what is there: a single record when little happens, up to this many when behind."""
_ON_ITS_WAY = 2
"""So many batches at most are handed to the database: one poll reads a batch of each partition, which takes longer than
the database takes for one of them, and it should not be idle then."""
_POLL_S = 0.2
_COMMIT_INTERVAL_S = 1.0
_RETRY_MIN_S, _RETRY_MAX_S = 0.1, 5.0

_log = structlog.get_logger("stepwell.projector")


@dataclass(frozen=True, slots=True)
class _Write:
    """A batch on its way into the database."""

    batch: RecordBatch
    rows: BatchRows
    outcome: Future[Written]


class Projector:
    """Reads the partitions that its group gives it, and writes their rows.

    Args:
        log: where to read.
        database_url: where to write; the schema must be this version's (`stepwell db migrate`).
        codec: decodes the records.
        group: all projectors of one database share it; it also names the position rows.
        slot: tells this projector from the others of the group; a restart under the same slot takes its partitions
            back at once.
        topics: what to read.
        watch: groups whose position on the log is to be shown beside ours, each with the topics it reads.
        batch_records: the most records of one poll.
        statement_timeout_s: the database gives up on a statement after so long; this side gives up on a whole batch,
            whose server may have vanished without a word, after twice that.
        locate: gives the URL anew before each connection, and sees to it that the server runs where that is its task;
            may raise `DatabaseUnavailableError`. None: the URL stays.
        sink: names the position rows; None: the group. A generation that is being built is filled by a group of its
            own, and has the positions of those who go on with it.
        homes: tells at each connection where the tables are that it writes; default: those in force.
        columns_from: so many records of one type in a batch are read by columns, fewer one by one.
        looks: looks at the topics and the groups of ``watch``, and outlives us; None: we have one of our own.
        vitals: where to tell those who watch the worker what it does.
    """

    def __init__(
        self,
        log: MessageLog,
        database_url: str,
        codec: Codec,
        *,
        group: str = GROUP,
        slot: str | int = 0,
        topics: Sequence[str] = PROJECTED_TOPICS,
        watch: Mapping[str, Sequence[str]] | None = None,
        batch_records: int = BATCH_RECORDS,
        statement_timeout_s: float = 30.0,
        locate: Callable[[], str] | None = None,
        sink: str | None = None,
        homes: Callable[[Connection], Homes] = read_homes,
        columns_from: int = COLUMNS_FROM,
        looks: LogWatch | None = None,
        vitals: Vitals | None = None,
    ) -> None:
        self._message_log = log
        self._url = database_url
        self._locate = locate
        self._group = group
        self._sink = sink or group
        self._reader = BatchReader(codec, self._sink, columns_from=columns_from)
        self._read_homes = homes
        self._name = f"{group}-{slot}"
        self._topics = tuple(topics)
        self._batch_records = batch_records
        self._statement_timeout_s = statement_timeout_s
        self._queries = queries.load("projector")
        watched = {group: [topic for topic in read if topic in self._topics] for group, read in (watch or {}).items()}
        self._own_looks = LogWatch(log, self._topics, lambda: watched) if looks is None else None
        looks = looks or self._own_looks
        assert looks is not None
        self._progress = ProgressReporter(looks, self._sink, self._name, watched)
        self._vitals = vitals or Unwatched()
        self._owned: set[TopicPartition] = set()
        # The database's position of those that are read from there. Owned partitions that are not in it must be sought
        # to the database's position before anything of them is written.
        self._placed: dict[TopicPartition, int] = {}
        # Where the reader stood when it was last placed, for those who watch.
        self._stands: dict[TopicPartition, int] = {}
        self._connection: Connection | None = None
        self._homes: Homes | None = None
        self._writer: BatchWriter | None = None
        self._deadline: Deadline | None = None
        self._hands = ThreadPoolExecutor(1, thread_name_prefix="projector-database")
        self._on_its_way: deque[_Write] = deque()
        self._away_since: float | None = None
        self._retry_s = _RETRY_MIN_S
        self._retry_at = 0.0
        self._log_away = False
        self._commit_at = 0.0
        self.batches_written = 0
        self.records_written = 0

    def run(self, stop: threading.Event) -> None:
        """Project until ``stop`` is set; the batch in hand is finished first.

        A database or log that is away is waited for. Raises what waiting cannot mend:

        Raises:
            MigrationError: the schema is not this version's.
            DatabaseError: the database refuses us.
            PositionLostError: records that are not in the tables yet are no longer in the log.
            FencedError: another projector runs under the same slot.
        """
        self._deadline = Deadline(self._statement_timeout_s * 2)
        consumer = self._message_log.consumer(self._group, self._name)
        try:
            if self._own_looks is not None:
                self._own_looks.start()
            consumer.subscribe(
                self._topics, lambda new: self._assigned(consumer, new), lambda gone: self._revoked(consumer, gone)
            )
            while not stop.is_set():
                self._turn(consumer, stop)
            self._settle(consumer)
            self._commit_advice(consumer)
        finally:
            self._hands.shutdown()  # waits for the batch on its way
            consumer.close()
            if self._own_looks is not None:
                self._own_looks.close()
            self._drop_connection()
            self._deadline.close()

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """The database's position of every partition that is being read now."""
        return dict(self._placed)

    # --- one turn of the loop ---

    def _turn(self, consumer: Consumer, stop: threading.Event) -> None:
        """What the log does not answer, wherever it is asked, is asked again in the next turn."""
        self._ensure_connection(consumer)
        try:
            self._place(consumer)
            self._work(consumer)
        except LogUnavailableError as error:
            self._say_log_away(consumer, error)
            stop.wait(_POLL_S)

    def _work(self, consumer: Consumer) -> None:
        self._vitals.doing("reading the log")
        # With a batch on its way, only what is there already: where there is nothing, its outcome comes first.
        with without_collector():
            batches = consumer.poll(self._batch_records, 0.0 if self._on_its_way else _POLL_S)
        self._vitals.has(LOG)
        if self._log_away:
            self._log_away = False
            _log.info("log is back", projector=self._name)
        for batch in batches:
            # A batch read before its partition was placed (or after it was lost) starts where nobody knows.
            if batch.source in self._placed:
                self._handle(consumer, batch)
        if not batches:
            self._settle(consumer)
        self._tell(consumer)

    def _handle(self, consumer: Consumer, batch: RecordBatch) -> None:
        """Make the batch's rows, and send them off once there is room."""
        self._vitals.doing(f"making rows of {_stretch(batch)}")
        rows = self._reader.read(batch)
        self._settle(consumer, leave=_ON_ITS_WAY - 1)
        if batch.source not in self._placed:
            return
        if self._writer is None or self._connection is None or self._deadline is None:
            self._placed.pop(batch.source, None)
            return
        outcome = self._hands.submit(self._write, self._writer, self._connection, self._deadline, batch, rows)
        self._on_its_way.append(_Write(batch, rows, outcome))

    def _write(
        self, writer: BatchWriter, connection: Connection, deadline: Deadline, batch: RecordBatch, rows: BatchRows
    ) -> Written:
        """In the other thread."""
        with named_errors(self._url), deadline.on(connection):
            return writer.write(batch, rows.items, rows.columns, lambda: self._reader.read_one_by_one(batch))

    def _settle(self, consumer: Consumer, *, leave: int = 0, pause: bool = True) -> None:
        """Wait until no more than ``leave`` batches are on their way, and take note of what became of the others.

        To be called, leaving none, before anything else uses the connection, and before a partition is given away.
        """
        away: DatabaseUnavailableError | None = None
        # The connection is dropped only when nobody uses it any more.
        while len(self._on_its_way) > (leave if away is None else 0):
            try:
                self._note(self._on_its_way.popleft())
            except DatabaseUnavailableError as error:
                away = away or error
        if away is not None:
            self._database_away(consumer, away, pause=pause)

    def _note(self, write: _Write) -> None:
        batch = write.batch
        self._vitals.doing(f"writing the rows of {_stretch(batch)}")
        try:
            written = write.outcome.result()
        except SinkFencedError as error:
            _log.warning(
                "another projector moved the position, reading it again", projector=self._name, reason=str(error)
            )
            self._placed.pop(batch.source, None)
            return
        if batch.source in self._placed:  # else the batch before was fenced, and the position is read again
            self._placed[batch.source] = batch.end
        # Not when it is connected: what fails at the same batch again and again must not fill the log.
        self._retry_s = _RETRY_MIN_S
        self.batches_written += 1
        self.records_written += len(batch)
        self._vitals.took(batch.source, len(batch), batch.timestamps[-1] if batch.timestamps else None)
        if write.rows.given_up or written.refused:
            found = sorted([*write.rows.given_up, *written.refused])
            self._say_set_aside(batch, found, refused=len(written.refused))

    def _say_set_aside(self, batch: RecordBatch, found: list[tuple[int, str]], *, refused: int) -> None:
        """One line a batch, however many there are: a broken producer makes thousands."""
        self._vitals.set_aside("unreadable", len(found) - refused)
        self._vitals.set_aside("refused", refused)
        _log.warning(
            "records became dead letters", projector=self._name, topic=batch.source.topic,
            partition=batch.source.partition, count=len(found), first_offset=batch.offsets[found[0][0]],
            reasons=sorted({reason for _, reason in found}), look="table stepwell.dead_letters",
        )  # fmt: skip

    # --- partitions ---

    def _assigned(self, consumer: Consumer, new: list[TopicPartition]) -> Mapping[TopicPartition, int]:
        positions = self._starting_positions(consumer, new)
        self._owned.update(new)  # not before: where the log does not answer, they are not ours yet
        return positions

    def _starting_positions(self, consumer: Consumer, new: list[TopicPartition]) -> Mapping[TopicPartition, int]:
        self._settle(consumer, pause=False)
        if self._connection is not None and self._deadline is not None:
            try:
                with named_errors(self._url), self._deadline.on(self._connection):
                    positions = self._positions(consumer, new)
            except DatabaseUnavailableError as error:
                self._database_away(consumer, error, pause=False)
            else:
                self._placed.update(positions)
                return positions
        # Not from the committed position, which is mere advice and may lie below the log's start by now.
        return {source: consumer.watermarks(source).low for source in new}

    def _revoked(self, consumer: Consumer, gone: list[TopicPartition]) -> None:
        self._settle(consumer, pause=False)
        self._owned.difference_update(gone)
        for source in gone:
            self._placed.pop(source, None)
            self._stands.pop(source, None)
        self._progress.forget(gone)

    def _place(self, consumer: Consumer) -> None:
        """Seek every unplaced partition to the database's position, and let it go on."""
        if self._owned.difference(self._placed):
            self._settle(consumer)
        waiting = [source for source in self._owned if source not in self._placed]
        if self._connection is None or self._deadline is None or not waiting:
            return
        try:
            with named_errors(self._url), self._deadline.on(self._connection):
                positions = self._positions(consumer, waiting)
        except DatabaseUnavailableError as error:
            self._database_away(consumer, error)
            return
        for source, position in positions.items():
            consumer.seek(source, position)
        consumer.resume(waiting)
        self._placed.update(positions)

    def _positions(self, consumer: Consumer, sources: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        assert self._connection is not None
        assert self._homes is not None
        with self._connection.transaction():
            self._homes.enter(self._connection)
            known = self._read_positions(self._connection)
            new = [source for source in sources if source not in known]
            for source in new:
                marks = consumer.watermarks(source)
                self._connection.execute(
                    self._queries["first_position"],
                    {"sink": self._sink, **source._asdict(), "low": marks.low, "log_end": marks.high},
                )
            if new:
                known = self._read_positions(self._connection)
        return {source: known[source] for source in sources}

    def _read_positions(self, connection: Connection) -> dict[TopicPartition, int]:
        rows = connection.execute(self._queries["positions"], {"sink": self._sink})
        return {TopicPartition(topic, partition): position for topic, partition, position in rows}

    # --- the database comes and goes ---

    def _ensure_connection(self, consumer: Consumer) -> None:
        if self._connection is not None or time.monotonic() < self._retry_at:
            return
        self._vitals.doing("connecting to the database")
        try:
            if self._locate is not None:
                self._url = self._locate()
            connection = connect(
                self._url, application=self._name, statement_timeout_s=self._statement_timeout_s, connect_timeout_s=5.0
            )
            try:
                assert self._deadline is not None
                with named_errors(self._url), self._deadline.on(connection):
                    migrate.require_current(self._url, connection)
                    homes = self._read_homes(connection)
            except BaseException:
                connection.close()
                raise
        except DatabaseUnavailableError as error:
            self._database_away(consumer, error)
            return
        self._connection, self._homes = connection, homes
        self._writer = BatchWriter(connection, self._sink, homes)
        self._vitals.has(DATABASE)
        if self._away_since is not None:
            _log.info("database is back", projector=self._name, away_s=round(time.monotonic() - self._away_since, 1))
            self._away_since = None

    def _database_away(self, consumer: Consumer, error: DatabaseUnavailableError, *, pause: bool = True) -> None:
        """Say so once, hold the partitions (the membership lives on through `poll`), and try again later."""
        if isinstance(error, GenerationMovedError):
            _log.info("the tables have moved, following them", projector=self._name, reason=str(error))
        else:
            self._vitals.waits(DATABASE, str(error))
            if self._away_since is None:
                self._away_since = time.monotonic()
                _log.warning("database is away, waiting", projector=self._name, reason=str(error))
        self._drop_connection()
        self._placed.clear()
        if pause:
            consumer.pause(self._owned)
        self._retry_at = time.monotonic() + self._retry_s
        self._retry_s = min(self._retry_s * 2, _RETRY_MAX_S)

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = self._writer = None

    # --- what others see of us ---

    def _say_log_away(self, consumer: Consumer, error: LogError) -> None:
        self._vitals.waits(LOG, str(error))
        if not self._log_away:
            self._log_away = True
            _log.warning("log is away, waiting", projector=self._name, reason=str(error))
        self._settle(consumer)
        if self._connection is None or self._homes is None or self._deadline is None:
            return
        if not self._progress.wait_due():
            return
        try:
            with named_errors(self._url), self._deadline.on(self._connection):
                self._progress.write_wait(self._connection, self._homes, self._owned, f"log: {redact_text(str(error))}")
        except DatabaseUnavailableError as gone:
            self._database_away(consumer, gone)

    def _tell(self, consumer: Consumer) -> None:
        """Once a second; what was read must be written before, for where the reader stands is what others are told."""
        if not self._progress.due() and time.monotonic() < self._commit_at:
            return
        self._settle(consumer)
        self._report_progress(consumer)
        self._commit_advice(consumer)

    def _report_progress(self, consumer: Consumer) -> None:
        if not self._placed or not self._progress.due():
            return
        if self._connection is None or self._homes is None or self._deadline is None:
            return
        try:
            with named_errors(self._url), self._deadline.on(self._connection):
                self._progress.write(self._connection, self._homes, consumer, self._placed)
        except DatabaseUnavailableError as error:
            self._database_away(consumer, error)

    def _commit_advice(self, consumer: Consumer) -> None:
        self._commit_at = time.monotonic() + _COMMIT_INTERVAL_S
        try:
            positions = {source: consumer.position(source) for source in self._placed}
            self._stands |= positions
            self._vitals.turned({source: at for source, at in self._stands.items() if source in self._owned})
            if positions:
                consumer.commit(positions)
        except LogError as error:
            _log.debug("position not committed on the log", projector=self._name, reason=str(error))


def _stretch(batch: RecordBatch) -> str:
    return f"{batch.source.topic}/{batch.source.partition} from {batch.start} to {batch.end}"
