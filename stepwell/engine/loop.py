"""The exactly-once loop that every worker on the log runs: poll, process, commit outputs and positions as one.

A worker owns partitions through its consumer group and keeps one `Processor` per partition. Whatever a processor holds
in memory follows from the log, so the answer to every doubt is the same: drop it and restore what is committed.

What can happen, and what follows:

* partitions come: each is restored before its first record is processed;
* partitions go: their processors are dropped, nothing of them is committed any more;
* the transaction is rolled back, or the group moved on while we worked: everything is dropped and restored;
* the log is away: said once, waited for, everything is restored (the log tells whether the last commit happened);
* a processor's state may be wrong (`stepwell.engine.doubt`): everything is dropped and restored;
* another worker took this slot: `FencedError` ends the loop;
* a needed position is gone: `PositionLostError` ends the loop.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from stepwell.engine.doubt import StateDoubtError
from stepwell.engine.ports import (
    Consumer,
    MessageLog,
    OutgoingRecord,
    RecordBatch,
    TopicPartition,
    Touches,
    TransactionalProducer,
)
from stepwell.engine.vitals import CACHE, LOG, Unwatched, Vitals
from stepwell.events.topics import DEAD_LETTERS
from stepwell.exceptions import FencedError, LogError, LogUnavailableError, TransactionAbortedError

POLL_TIMEOUT_S = 0.05
"""Bounds the latency of a live partition: a poll gives what has come after this at the latest."""

TICK_INTERVAL_US = 1_000_000
COMMIT_INTERVAL_US = 1_000_000
"""What brought nothing to write is committed after so long at the latest, and at once where nothing follows it."""
BACK_OFF_FIRST_S = 0.2
BACK_OFF_MAX_S = 5.0
STALE_MEMBERSHIPS_MAX = 5
"""So often in a row the group may have moved on while we worked, before the loop gives up."""


class Clock(Protocol):
    """Time from outside."""

    def now_us(self) -> int:
        """Microseconds since 1970 UTC."""

    def wait(self, seconds: float) -> None:
        """Return after so long, or earlier when the worker shall stop."""


class Report(Protocol):
    """Where a worker says what happened; `structlog` loggers' ``info`` and ``warning`` fit."""

    def info(self, event: str, **values: Any) -> Any:
        """Something worth knowing."""

    def warning(self, event: str, **values: Any) -> Any:
        """Something that needs a look."""


class Processor(ABC):
    """The state of one partition.

    Attributes:
        position: where it stands: everything below has been processed.
        caught_up_since: since when nothing was left to read after a poll (the worker's clock, µs); None while behind.
            Kept by the loop.
    """

    position: int
    caught_up_since: int | None = None

    @abstractmethod
    def process(self, batch: RecordBatch, now_us: int) -> list[OutgoingRecord]:
        """Take in the batch that follows ``position``; what has to be written with it.

        An empty batch means that only transaction markers lie between ``position`` and its end. Where nothing is to be
        written, several batches may be committed together.
        """

    def committing(self) -> list[OutgoingRecord]:
        """What has to be written beside every commit of the position where it stands now."""
        return []

    def tick(self, now_us: int) -> list[OutgoingRecord]:
        """What has to be written because time has passed. Called about once a second while caught up."""
        del now_us
        return []

    def finish(self, now_us: int) -> list[OutgoingRecord]:
        """What should be written before a graceful stop."""
        del now_us
        return []


class Restore(Protocol):
    """Makes the processor of a newly owned partition."""

    def __call__(self, source: TopicPartition, committed: int | None, consumer: Consumer) -> Processor:
        """The state at the committed position (None: the group has none yet)."""


class BatchSizer:
    """How many records to ask for: few while live (latency), many when behind (a commit costs the same for both)."""

    def __init__(self, smallest: int = 500, largest: int = 16_000) -> None:
        self.smallest = smallest
        self.largest = largest
        self.size = smallest

    def saw(self, records: int) -> None:
        """Learn from what a poll gave."""
        if records >= self.size:
            self.size = min(self.size * 2, self.largest)
        elif records < self.size // 4:
            self.size = max(self.size // 2, self.smallest)


class ExactlyOnceLoop:
    """Runs processors over the partitions that the group gives to this worker.

    Args:
        log: the message log.
        group: consumer group of all workers of this kind.
        worker_id: stable name of this worker's slot: transactional id and instance id.
        topics: what to read.
        writes: the topics that the processors write to.
        restore: makes a partition's processor.
        clock: time.
        report: where to say what happened.
        sizer: batch sizes.
        poll_timeout_s: how long a poll may wait for records.
        vitals: where to tell those who watch the worker what it does.
    """

    def __init__(
        self,
        log: MessageLog,
        *,
        group: str,
        worker_id: str,
        topics: Sequence[str],
        writes: Sequence[str] = (),
        restore: Restore,
        clock: Clock,
        report: Report,
        sizer: BatchSizer | None = None,
        poll_timeout_s: float = POLL_TIMEOUT_S,
        vitals: Vitals | None = None,
    ) -> None:
        self._log = log
        self._group = group
        self._worker_id = worker_id
        self._topics = list(topics)
        self._touches = Touches(tuple(writes), group)
        self._restore = restore
        self._clock = clock
        self._report = report
        self._sizer = sizer or BatchSizer()
        self._poll_timeout_s = poll_timeout_s
        self._vitals = vitals or Unwatched()
        self._consumer: Consumer | None = None
        self._producer: TransactionalProducer | None = None
        self._owned: set[TopicPartition] = set()
        self._processors: dict[TopicPartition, Processor] = {}
        self._ticked_at: dict[TopicPartition, int] = {}
        # What was processed and brought nothing to write, not committed yet; since when; and how many records of each.
        self._pending: dict[TopicPartition, int] = {}
        self._pending_since = 0
        self._taken: dict[TopicPartition, tuple[int, int | None]] = {}  # records, and when the last was logged
        self._stale_memberships = 0
        self._away_for_s = 0.0
        self._doubt_wait_s = 0.0
        self.records = 0
        self.transactions = 0

    @property
    def processors(self) -> Mapping[TopicPartition, Processor]:
        """The state of each partition that is owned and restored."""
        return self._processors

    def run(self, should_stop: Callable[[], bool]) -> None:
        """Work until told to stop; then write what should be written and leave.

        Raises:
            FencedError: another worker runs this slot.
            PositionLostError: a needed record is gone.
            LogError: the log refused for good.
        """
        try:
            while not should_stop():
                self.step()
            self._finish()
        finally:
            self.close()

    def step(self) -> int:
        """One poll and what follows from it; how many records it took in. Waits where the log is away."""
        try:
            count = self._step()
        except LogUnavailableError as error:
            self._vitals.waits(LOG, str(error))
            self._abandon(renew_producer=True)
            if self._away_for_s == 0.0:
                # Where a client of the log has warned already, this is worth a line, but no second warning.
                say = self._report.info if self._log.said_away else self._report.warning
                say("log is away, waiting", worker_id=self._worker_id, reason=str(error))
            self._away_for_s = min(max(2 * self._away_for_s, BACK_OFF_FIRST_S), BACK_OFF_MAX_S)
            self._clock.wait(self._away_for_s)
            return 0
        except StateDoubtError as error:
            self._abandon(renew_producer=False)
            self._doubted(error)
            return 0
        except TransactionAbortedError as error:
            self._vitals.erred(f"transaction rolled back: {error}")
            self._report.warning("transaction rolled back, restoring", worker_id=self._worker_id, reason=str(error))
            self._abandon(renew_producer=False)
            return 0
        if self._away_for_s > 0.0:
            self._report.info("log is back", worker_id=self._worker_id)
            self._away_for_s = 0.0
        self._doubt_wait_s = 0.0
        self._vitals.has(LOG)
        self._vitals.has(CACHE)
        self._vitals.turned({source: processor.position for source, processor in self._processors.items()})
        return count

    def _doubted(self, error: StateDoubtError) -> None:
        """Say it, with the traceback of what caused it; where it may go on, once, with ever longer pauses."""
        if self._doubt_wait_s == 0.0:
            self._report.warning(
                "state is in doubt, restoring", worker_id=self._worker_id, reason=str(error), exc_info=error
            )
        if not error.wait:
            self._vitals.erred(f"state is in doubt: {error}")
        else:
            self._vitals.waits(CACHE, str(error))
            self._doubt_wait_s = min(max(2 * self._doubt_wait_s, BACK_OFF_FIRST_S), BACK_OFF_MAX_S)
            self._clock.wait(self._doubt_wait_s)

    def close(self) -> None:
        """Leave the group and let go. Never raises."""
        self._processors.clear()
        self._owned.clear()
        if self._producer is not None:
            self._producer.close()
            self._producer = None
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _connect(self) -> tuple[Consumer, TransactionalProducer]:
        # The producer first: starting it fences the slot's predecessor and resolves what that left open, so that the
        # positions read afterwards are the last word.
        if self._producer is None:
            self._producer = self._log.transactional_producer(self._worker_id, self._touches)
        self._producer.hold()
        if self._consumer is None:
            self._consumer = self._log.consumer(self._group, self._worker_id)
            self._consumer.subscribe(self._topics, self._assigned, self._revoked)
        return self._consumer, self._producer

    def _assigned(self, sources: list[TopicPartition]) -> None:
        self._owned.update(sources)

    def _revoked(self, sources: list[TopicPartition]) -> None:
        for source in sources:
            self._owned.discard(source)
            self._processors.pop(source, None)
            self._ticked_at.pop(source, None)
            self._pending.pop(source, None)  # the next owner processes it again
            self._taken.pop(source, None)

    def _step(self) -> int:
        self._vitals.doing("joining its group")
        consumer, producer = self._connect()
        self._vitals.doing("reading the log")
        batches = consumer.poll(self._sizer.size, self._poll_timeout_s)
        restored = self._owned - self._processors.keys()
        for source in sorted(restored):
            self._restore_one(consumer, source)
        if restored:
            self._say_restored(restored)
        now = self._clock.now_us()
        outgoing: list[OutgoingRecord] = []
        positions: dict[TopicPartition, int] = {}
        handed_out = sum(len(batch) for batch in batches)
        # A poll that gave less than was asked for has drained every partition; one that was full, those it left out.
        drained = set(self._processors)
        if handed_out >= self._sizer.size:
            drained -= {batch.source for batch in batches}
        for batch in batches:
            processor = self._processors.get(batch.source)
            if processor is None or batch.source in restored:
                continue  # not ours any more, or read from before the restored position
            self._vitals.doing(
                f"processing {batch.source.topic}/{batch.source.partition} from {batch.start} to {batch.end}"
            )
            outgoing += processor.process(batch, now)
            positions[batch.source] = batch.end
            count, logged_at = self._taken.get(batch.source, (0, None))
            self._taken[batch.source] = count + len(batch), batch.timestamps[-1] if batch.timestamps else logged_at
            self.records += len(batch)
        for source, processor in self._processors.items():
            if source not in drained:
                processor.caught_up_since = None
                continue
            if processor.caught_up_since is None:
                processor.caught_up_since = now
            if now - self._ticked_at.get(source, 0) < TICK_INTERVAL_US:
                continue
            self._ticked_at[source] = now
            end = consumer.position(source)
            if end > processor.position:
                outgoing += processor.process(RecordBatch(source, processor.position, end), now)
                positions[source] = end
            ticked = processor.tick(now)
            if ticked:
                outgoing += ticked
                positions.setdefault(source, processor.position)
        if not self._pending:
            self._pending_since = now
        self._pending |= positions
        late = now - self._pending_since >= COMMIT_INTERVAL_US
        if self._pending and (outgoing or late or not handed_out):
            self._commit(consumer, producer, outgoing)
        self._sizer.saw(handed_out)
        return handed_out

    def _restore_one(self, consumer: Consumer, source: TopicPartition) -> None:
        self._vitals.doing(f"restoring {source.topic}/{source.partition}")
        committed = consumer.committed([source]).get(source)
        processor = self._restore(source, committed, consumer)
        # Whatever this poll has handed out of it already is read again.
        consumer.seek(source, processor.position)
        self._processors[source] = processor

    def _say_restored(self, restored: Collection[TopicPartition]) -> None:
        numbers: dict[str, list[int]] = {}
        for source in sorted(restored):
            numbers.setdefault(source.topic, []).append(source.partition)
        self._report.info("partitions restored", worker_id=self._worker_id, count=len(restored), partitions=numbers)

    def _commit(
        self,
        consumer: Consumer,
        producer: TransactionalProducer,
        outgoing: list[OutgoingRecord],
    ) -> None:
        """Commit what is to be written, and the positions that are pending; else drop everything, to be restored."""
        self._vitals.doing("committing to the log")
        outgoing = [
            *outgoing,
            *(record for source in self._pending for record in self._processors[source].committing()),
        ]
        producer.begin()
        producer.send(outgoing)
        try:
            # Positions that have not moved as well: they are what the group checks our membership by.
            producer.send_offsets(self._pending, consumer.membership())
        except FencedError as error:
            self._stale_memberships += 1
            if self._stale_memberships >= STALE_MEMBERSHIPS_MAX:
                raise
            self._vitals.erred(f"the group moved on: {error}")
            self._report.warning("the group moved on, restoring", worker_id=self._worker_id, reason=str(error))
            self._abandon(renew_producer=False)
            return
        producer.commit()
        self._stale_memberships = 0
        self.transactions += 1
        for source, (count, logged_at) in self._taken.items():
            self._vitals.took(source, count, logged_at)
        self._pending.clear()
        self._taken.clear()
        self._vitals.wrote(outgoing)
        letters = [record for record in outgoing if record.topic == DEAD_LETTERS]
        if letters:
            self._report.warning(
                "records became dead letters",
                worker_id=self._worker_id,
                count=len(letters),
                look="stepwell dead-letters list",
            )

    def _abandon(self, *, renew_producer: bool) -> None:
        """Drop everything that may be ahead of what is committed; the next step restores it.

        A renewed producer takes the transactional id over, which settles a commit whose outcome is unknown.
        """
        self._processors.clear()
        self._pending.clear()
        self._taken.clear()
        if self._producer is None:
            return
        if renew_producer:
            self._producer.close()
            self._producer = None
        else:
            self._producer.abort()

    def _finish(self) -> None:
        if self._consumer is None or self._producer is None:
            return
        now = self._clock.now_us()
        outgoing: list[OutgoingRecord] = []
        for source, processor in self._processors.items():
            last = processor.finish(now)
            if last:
                outgoing += last
                self._pending[source] = processor.position
        if not self._pending:
            return
        try:
            self._commit(self._consumer, self._producer, outgoing)
        except LogError as error:
            self._report.warning("stopped without a last snapshot", worker_id=self._worker_id, reason=str(error))
