"""From Kafka into the inbox where the process is asyncio: a task instead of a thread, on aiokafka."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator

import structlog

from stepwell.adapters.inbox.desk import SIGNS_PER_SILENCE, Desk
from stepwell.adapters.inbox.intake import (
    CLOSED_EVERY_S,
    LOOK_ROUND_MIN_S,
    POLL_S,
    QUICK_POLL_S,
    SIBLINGS_EVERY_S,
    Ledge,
)
from stepwell.adapters.inbox.places import take_over
from stepwell.adapters.inbox.store import Entry
from stepwell.adapters.inbox.window import Windows
from stepwell.adapters.logs.aio import Record, Tail, tail
from stepwell.engine.ports import MessageLog, RecordBatch, TopicPartition
from stepwell.events.model import Headers
from stepwell.events.topics import RETRAIN_REQUESTS
from stepwell.exceptions import FencedError, LogError, LogUnavailableError, StepwellError

_logger = structlog.get_logger(__name__)


class KafkaIntake:
    """The task; see `stepwell.adapters.inbox.intake.Intake`. `failure` holds what ended it.

    The inbox's writes (a few milliseconds each, one a batch) are made in the event loop, so that a cancellation cannot
    come between a write and its notice.
    """

    def __init__(
        self, bootstrap: str, log: MessageLog, group: str, instance_id: str | None, desk: Desk, *, log_name: str,
        shares_folder: bool, say: Callable[[Entry], Awaitable[None]],
    ) -> None:  # fmt: skip
        self.failure: StepwellError | None = None
        self._bootstrap = bootstrap
        self._log = log
        self._group = group
        self._instance_id = instance_id
        self._desk = desk
        self._log_name = log_name
        self._shares_folder = shares_folder
        self._say = say
        self._ledge = Ledge(desk)
        self._windows = Windows(desk)
        self._next_look = {"siblings": 0.0, "silent": 0.0, "closed": 0.0}
        self._stop = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name="subscription")

    async def close(self) -> None:
        """Commit what is stored, leave the group. Raises nothing but a cancellation."""
        self._stop.set()
        try:
            await asyncio.shield(self._task)
        except asyncio.CancelledError:
            self._task.cancel()
            raise

    async def _run(self) -> None:
        told = False
        while not self._stop.is_set():
            try:
                records = tail(
                    self._bootstrap, [RETRAIN_REQUESTS], self._group, instance_id=self._instance_id,
                    on_revoke=self._on_revoke,
                )  # fmt: skip
                # What an earlier one read and did not commit, this one reads again.
                self._on_revoke([*self._windows.sources, *self._ledge.ends])
                async with records:
                    told = False
                    while not self._stop.is_set():
                        await self._patiently(records)
                    await self._commit(records)
            except LogUnavailableError as error:
                if not told:
                    _logger.warning("log_away", reason=str(error))
                    told = True
                await asyncio.sleep(POLL_S)
            except StepwellError as error:
                self.failure = error
                return
            except Exception as error:
                _logger.exception("subscription_broke")
                self.failure = LogError(f"the subscription broke: {error!r}")
                return

    async def _patiently(self, records: Tail) -> None:
        try:
            await self._turn(records)
        except LogUnavailableError as error:
            _logger.warning("log_away", reason=str(error))
            await asyncio.sleep(POLL_S)

    async def _turn(self, records: Tail) -> None:
        await self._commit(records)
        if self._shares_folder and self._time_for("siblings", SIBLINGS_EVERY_S):
            take_over(self._desk.inbox, self._log_name)
            self._ledge.in_doubt = True
        if self._ledge.in_doubt:
            await self._settle()
        await self._store(records)
        await self._commit(records)
        for entry in self._desk.unsaid():
            await self._say(entry)
        silence_s = self._desk.wanted.adopt_after_s
        if silence_s is not None and self._time_for("silent", silence_s / SIGNS_PER_SILENCE):
            owned = await records.committed()
            await asyncio.to_thread(self._desk.adopt, owned)

    async def _store(self, records: Tail) -> None:
        records.pause(self._windows.full())
        fresh = False
        # Nothing waits between the batch and the windows: a partition that goes takes its window along.
        for batch in _batches(await records.batch(QUICK_POLL_S if self._windows else POLL_S)):
            fresh = self._windows.add(batch) or fresh
        if self._desk.wanted.only_open and (
            fresh or self._windows.wanted() or (self._windows and self._time_for("closed", CLOSED_EVERY_S))
        ):
            with contextlib.suppress(LogUnavailableError):
                await asyncio.to_thread(self._desk.watch.refresh)
        # From here on nothing waits.
        for taken in self._windows.take():
            self._desk.inbox.store(taken.arrivals)
            self._ledge.stored(taken.source, taken.end)

    async def _commit(self, records: Tail) -> None:
        ends = self._ledge.ends
        if not ends:
            return
        self._ledge.unsure()  # its partitions may go while we wait for the answer
        try:
            positions = await records.commit(ends)
        except FencedError as error:
            _logger.info("commit_refused", reason=str(error))
            return
        self._ledge.committed(positions)

    def _on_revoke(self, sources: list[TopicPartition]) -> None:
        self._windows.drop(sources)
        self._ledge.revoked(sources)

    async def _settle(self) -> None:
        if not self._desk.inbox.unconfirmed() - self._ledge.ends.keys():
            self._ledge.in_doubt = False
            return
        admin = self._log.admin()
        try:
            positions = await asyncio.to_thread(admin.group_positions, self._group, RETRAIN_REQUESTS)
        finally:
            admin.close()
        self._ledge.settle(positions)

    def _time_for(self, name: str, every_s: float) -> bool:
        now = time.monotonic()
        if now < self._next_look[name]:
            return False
        self._next_look[name] = now + max(every_s, LOOK_ROUND_MIN_S)
        return True


def _batches(records: Iterable[Record]) -> Iterator[RecordBatch]:
    """Records as batches of one partition. Committed is, as `Tail` does, the place behind a record."""
    found: dict[TopicPartition, RecordBatch] = {}
    headers: dict[TopicPartition, list[Headers]] = {}
    for record in records:
        theirs = headers.setdefault(record.source, [])
        batch = found.setdefault(record.source, RecordBatch(record.source, record.offset, 0, headers=theirs))
        batch.offsets.append(record.offset)
        batch.timestamps.append(record.timestamp)
        batch.keys.append(record.key)
        batch.values.append(record.value)
        theirs.append(record.headers)
        batch.end = record.offset + 1
    yield from found.values()
