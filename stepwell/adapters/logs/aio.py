"""Kafka where the process is asyncio: live tails for the API, the training subscriber. On aiokafka.

aiokafka's own defaults commit by themselves, start at the end, show uncommitted records and acknowledge by one broker;
`consumer_options` and `producer_options` turn every one of these round. No transactions here: aiokafka 0.14 sends no
proof of membership with a transaction's positions, so a zombie would not be fenced.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

import structlog

from stepwell.engine.ports import OutgoingRecord, TopicPartition
from stepwell.events.model import Headers
from stepwell.exceptions import (
    FencedError,
    LogError,
    LogUnavailableError,
    MissingPartError,
    PositionLostError,
    TopicError,
)

try:
    import aiokafka
    from aiokafka import errors as driver_errors
except ImportError as error:
    raise MissingPartError("Kafka in asyncio needs aiokafka: pip install 'stepwell[kafka]'") from error

__all__ = ["Record", "Tail", "consumer_options", "open_producer", "producer_options", "send_durably", "tail"]

_log = structlog.get_logger(__name__)
_SAY_AGAIN_AFTER_S = 300.0
Start = Literal["beginning", "end"]


class Record(NamedTuple):
    """One record of a tail. ``timestamp`` is the log's time of append (µs)."""

    source: TopicPartition
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def consumer_options(bootstrap: str, group: str | None, instance_id: str | None = None) -> dict[str, Any]:
    """Safe options of `aiokafka.AIOKafkaConsumer`."""
    return {
        "bootstrap_servers": bootstrap,
        "client_id": "stepwell",
        "group_id": group,
        "group_instance_id": instance_id,
        "enable_auto_commit": False,
        "auto_offset_reset": "none",
        "isolation_level": "read_committed",
        "session_timeout_ms": 6_000,
        "heartbeat_interval_ms": 1_500,
        "fetch_max_wait_ms": 200,
    }


def producer_options(bootstrap: str) -> dict[str, Any]:
    """Safe options of `aiokafka.AIOKafkaProducer`. Its default partitioner is murmur2, as everywhere here."""
    return {
        "bootstrap_servers": bootstrap,
        "client_id": "stepwell",
        "acks": "all",
        "enable_idempotence": True,
        "linger_ms": 5,
        "request_timeout_ms": 60_000,
    }


@contextlib.asynccontextmanager
async def open_producer(bootstrap: str, options: Mapping[str, Any] | None = None) -> AsyncIterator[Any]:
    """A started `aiokafka.AIOKafkaProducer` with safe options; flushed and stopped at the end.

    Args:
        bootstrap: one or more ``host:port``, separated by commas.
        options: options of aiokafka on top (security and the like); never logged.

    Raises:
        LogUnavailableError: no broker answers.
    """
    _collect_driver_logs()
    producer = aiokafka.AIOKafkaProducer(**{**producer_options(bootstrap), **(options or {})})
    try:
        with _translated(f"connecting to {bootstrap}"):
            await producer.start()
        yield producer
    finally:
        await producer.stop()


async def send_durably(producer: Any, record: OutgoingRecord, timeout_s: float) -> None:
    """Send one record with `open_producer`'s producer; returns once every replica has it.

    Raises:
        LogUnavailableError: it may or may not be in the log.
        LogError: it was refused.
    """
    with _translated(f"writing to {record.topic}"):
        sending = producer.send_and_wait(
            record.topic, record.value, record.key, record.partition, headers=list(record.headers)
        )
        try:
            await asyncio.wait_for(sending, timeout_s)
        except TimeoutError:
            raise LogUnavailableError(f"Kafka: {record.topic}: not written in {timeout_s:g} s.") from None


class Tail:
    """Records as they come, endless; made by `tail`. An async context manager and an async iterator."""

    def __init__(
        self,
        consumer: Any,
        topics: Sequence[str],
        group: str | None,
        start: Start | Mapping[TopicPartition, int],
        on_revoke: Callable[[list[TopicPartition]], None] | None = None,
    ) -> None:
        self._consumer = consumer
        self._on_revoke = on_revoke
        self._topics = list(topics)
        self._group = group
        self._start = start
        self._waiting: deque[Record] = deque()
        self._done: dict[TopicPartition, int] = {}

    async def __aenter__(self) -> Self:
        _collect_driver_logs()
        try:
            with _translated(f"opening a tail of {', '.join(self._topics)}"):
                await self._consumer.start()
                if self._group is None:
                    await self._take_all()
                else:
                    self._consumer.subscribe(self._topics, listener=_Forgetful(self))
        except BaseException:
            await self._consumer.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(driver_errors.KafkaError):
            await self._consumer.stop()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        """The next record; waits for it, also while the cluster is away.

        Raises:
            PositionLostError: the next position is not in the log any more; nothing is skipped.
        """
        while not self._waiting:
            await self._fetch()
        record = self._waiting.popleft()
        self._done[record.source] = record.offset + 1
        return record

    async def batch(self, timeout_s: float) -> list[Record]:
        """All records that have come, at least one; none where nothing came in time.

        Raises:
            PositionLostError: as ``anext``.
        """
        if not self._waiting:
            await self._fetch(timeout_s)
        records = list(self._waiting)
        self._waiting.clear()
        for record in records:
            self._done[record.source] = record.offset + 1
        return records

    def uncommitted(self) -> dict[TopicPartition, int]:
        """The positions that `commit` would commit now: of what was handed out and is still this member's."""
        return dict(self._done)

    async def committed(self) -> dict[TopicPartition, int]:
        """The group's committed positions in the partitions that are assigned to this member.

        Raises:
            LogUnavailableError: the cluster does not answer now.
        """
        positions = {}
        with _translated(f"asking for positions of group {self._group}"):
            for partition in self._consumer.assignment():
                position = await self._consumer.committed(partition)
                if position is not None:
                    positions[TopicPartition(partition.topic, partition.partition)] = position
        return positions

    def pause(self, sources: Collection[TopicPartition]) -> None:
        """Fetch nothing of these, and of all others again. What was fetched of them may still be handed out."""
        assigned = self._consumer.assignment()
        chosen = {partition for partition in assigned if (partition.topic, partition.partition) in sources}
        paused = self._consumer.paused() & assigned
        if chosen - paused:
            self._consumer.pause(*(chosen - paused))
        if paused - chosen:
            self._consumer.resume(*(paused - chosen))

    async def commit(self, positions: Mapping[TopicPartition, int] | None = None) -> dict[TopicPartition, int]:
        """Commit that records have been dealt with; the positions that were committed.

        Args:
            positions: up to where, by partition; None: every record handed out so far.

        Raises:
            FencedError: a rebalance has taken partitions away; they start again from their last commit elsewhere.
            LogUnavailableError: the cluster does not answer now.
        """
        if self._group is None:
            raise LogError("A tail without a group has no positions to commit; give it a group.")
        chosen = dict(self._done if positions is None else positions)
        if not chosen:
            return {}
        done = {aiokafka.TopicPartition(*source): end for source, end in chosen.items()}
        with _translated(f"committing positions of group {self._group}"):
            await self._consumer.commit(done)
        if positions is None:
            self._done.clear()
        return chosen

    async def _fetch(self, timeout_s: float = 1.0) -> None:
        try:
            found = await self._consumer.getmany(timeout_ms=round(timeout_s * 1_000), max_records=500)
        except driver_errors.NoOffsetForPartitionError:
            await self._start_uncommitted()
            return
        except driver_errors.OffsetOutOfRangeError as error:
            raise await self._position_lost(error) from error
        except driver_errors.KafkaError as error:
            failure = _to_log_error(error, f"reading {', '.join(self._topics)}")
            if failure.retriable:  # aiokafka goes on by itself
                return
            raise failure from error
        for partition, records in found.items():
            source = TopicPartition(partition.topic, partition.partition)
            self._waiting.extend(
                Record(source, r.offset, r.timestamp * 1_000, r.key, r.value, tuple(r.headers)) for r in records
            )

    async def _take_all(self) -> None:
        """Outside a group: every partition of the topics, from where the caller said."""
        partitions = []
        for topic in self._topics:
            numbers = await self._partition_numbers(topic)
            partitions += [aiokafka.TopicPartition(topic, number) for number in sorted(numbers)]
        self._consumer.assign(partitions)
        for partition in partitions:
            source = TopicPartition(partition.topic, partition.partition)
            if not isinstance(self._start, str) and source in self._start:
                self._consumer.seek(partition, self._start[source])
            elif self._start == "end":
                await self._consumer.seek_to_end(partition)
            else:
                await self._consumer.seek_to_beginning(partition)

    async def _partition_numbers(self, topic: str) -> Collection[int]:
        await self._consumer._client.force_metadata_update()
        numbers: Collection[int] | None = self._consumer.partitions_for_topic(topic)
        if not numbers:
            # Metadata of a single topic: tells "missing" from "not looked at yet".
            known = await self._consumer.topics()
            numbers = self._consumer.partitions_for_topic(topic) if topic in known else None
        if not numbers:
            raise TopicError(f"There is no topic {topic}; make it with 'stepwell topics create'.")
        return numbers

    async def _start_uncommitted(self) -> None:
        """A group's first reading of a partition: from where the caller said, on purpose and not by a reset."""
        for partition in self._consumer.assignment():
            if await self._consumer.committed(partition) is None:
                if self._start == "end":
                    await self._consumer.seek_to_end(partition)
                else:
                    await self._consumer.seek_to_beginning(partition)

    async def _position_lost(self, error: Exception) -> PositionLostError:
        lost = error.args[0] if error.args and isinstance(error.args[0], dict) else {}
        told = []
        for partition, at in lost.items():
            low = (await self._consumer.beginning_offsets([partition]))[partition]
            high = (await self._consumer.end_offsets([partition]))[partition]
            told.append(f"position {at} of {partition.topic}/{partition.partition} (the log holds {low} to {high})")
        return PositionLostError(f"Cannot be read any more: {'; '.join(told) or error}. Nothing was skipped.")

    def _forget(self, sources: set[TopicPartition]) -> None:
        self._waiting = deque(record for record in self._waiting if record.source not in sources)
        for source in sources:
            self._done.pop(source, None)
        if self._on_revoke is not None:
            self._on_revoke(sorted(sources))


class _Forgetful(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
    """Drops what was fetched of partitions that go: their next owner reads it again from the last commit."""

    def __init__(self, owner: Tail) -> None:
        self._owner = owner

    async def on_partitions_revoked(self, revoked: Collection[Any]) -> None:
        self._owner._forget({TopicPartition(p.topic, p.partition) for p in revoked})

    async def on_partitions_assigned(self, assigned: Collection[Any]) -> None:
        """Nothing: positions are looked for when the first fetch finds none."""


def tail(
    bootstrap: str,
    topics: Sequence[str],
    group: str | None = None,
    *,
    start: Start | Mapping[TopicPartition, int] = "beginning",
    instance_id: str | None = None,
    on_revoke: Callable[[list[TopicPartition]], None] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Tail:
    """Follow topics.

    Open it with ``async with``, go through it with ``async for``, and call `Tail.commit` when what came has been dealt
    with. Delivery is at least once: after a crash the records since the last `Tail.commit` come again.

    Args:
        bootstrap: one or more ``host:port``, separated by commas.
        topics: what to read.
        group: share the partitions with the group's other members and go on from its commits. None: read all
            partitions, alone, with no memory.
        start: where to start without a committed position; without a group also positions by partition (partitions
            that are not named start at the beginning).
        instance_id: static membership; a restart with the same id takes its partitions back at once.
        on_revoke: gets the partitions that go to another member, before they do; what was not committed of them it
            reads again.
        options: options of aiokafka on top (security and the like); never logged.
    """
    consumer = aiokafka.AIOKafkaConsumer(**{**consumer_options(bootstrap, group, instance_id), **(options or {})})
    return Tail(consumer, topics, group, start, on_revoke)


@contextlib.contextmanager
def _translated(doing: str) -> Any:
    try:
        yield
    except (driver_errors.KafkaError, driver_errors.ConsumerStoppedError) as error:
        raise _to_log_error(error, doing) from error


_FENCED = (
    driver_errors.CommitFailedError,
    driver_errors.IllegalGenerationError,
    driver_errors.UnknownMemberIdError,
    driver_errors.ProducerFenced,
    # A commit of a partition that a rebalance took away.
    driver_errors.IllegalStateError,
)
_TOPIC = (
    driver_errors.UnknownTopicOrPartitionError,
    driver_errors.TopicAuthorizationFailedError,
    driver_errors.InvalidTopicError,
)
_UNAVAILABLE = (
    driver_errors.KafkaConnectionError,
    driver_errors.KafkaTimeoutError,
    driver_errors.KafkaUnavailableError,
    driver_errors.NoBrokersAvailable,
    driver_errors.NodeNotReadyError,
    driver_errors.StaleMetadata,
)


def _to_log_error(error: Exception, doing: str) -> LogError:
    kind: type[LogError] = LogError
    if isinstance(error, _FENCED):
        kind = FencedError
    elif isinstance(error, _TOPIC):
        kind = TopicError
    elif isinstance(error, (driver_errors.OffsetOutOfRangeError, driver_errors.NoOffsetForPartitionError)):
        kind = PositionLostError
    elif isinstance(error, _UNAVAILABLE) or getattr(error, "retriable", False):
        kind = LogUnavailableError
    return kind(f"Kafka: {doing}: {error} ({type(error).__name__}).")


class _Rarely(logging.Handler):
    """Hands aiokafka's warnings to our log, each kind once in five minutes: it repeats itself."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._said: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        now = time.monotonic()
        if now - self._said.get(str(record.msg), -_SAY_AGAIN_AFTER_S) >= _SAY_AGAIN_AFTER_S:
            self._said[str(record.msg)] = now
            _log.warning("log_client_warning", client=record.name, reason=record.getMessage())


def _collect_driver_logs() -> None:
    logger = logging.getLogger("aiokafka")
    if not any(isinstance(handler, _Rarely) for handler in logger.handlers):
        logger.addHandler(_Rarely())
        logger.propagate = False
