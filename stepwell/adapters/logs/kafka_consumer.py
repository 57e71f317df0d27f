"""The consumer on confluent-kafka: committed records, in batches of one partition, positions never reset."""

import contextlib
import gc
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as DriverPartition

from stepwell.adapters.logs.kafka_client import (
    CALL_TIMEOUT_S,
    Availability,
    Outage,
    base_options,
    make_client,
    patiently,
)
from stepwell.adapters.logs.kafka_errors import classify, kafka_error, to_log_error
from stepwell.engine.ports import GroupMembership, RecordBatch, TopicPartition, Watermarks
from stepwell.events.model import Headers
from stepwell.exceptions import FencedError, LogError, LogUnavailableError, PositionLostError

__all__ = ["KafkaConsumer", "KafkaMembership"]

SESSION_TIMEOUT_MS = 6_000
"""A member that has not been heard of for so long loses its partitions; Kafka's brokers allow no less by default."""

_NO_GROUP = "stepwell-without-group"  # the driver wants a name; nothing is ever joined or committed under it
_log = structlog.get_logger(__name__)

OnAssign = Callable[[list[TopicPartition]], Mapping[TopicPartition, int] | None]
OnRevoke = Callable[[list[TopicPartition]], None]

CONFIRM_TIMEOUT_S = 5.0
"""How long `KafkaMembership.confirm` waits for the group's positions (s)."""


class KafkaMembership(GroupMembership):
    """The driver's proof of membership, and what the member owned when it was taken."""

    def __init__(self, metadata: object, owned: frozenset[TopicPartition] | None, confirm: Callable[[], None]) -> None:
        self.metadata = metadata
        self.confirm = confirm
        """Asks the group's coordinator whether the consumer is a member now; raises `FencedError` where it is not."""
        self._owned = owned

    def check_owns(self, positions: Iterable[TopicPartition]) -> None:
        """Raises `FencedError` for a partition that is not the member's; the broker itself does not check that."""
        _check_owned(self._owned, positions)


def _check_owned(owned: frozenset[TopicPartition] | None, positions: Iterable[TopicPartition]) -> None:
    if owned is None:  # assigned by hand, outside the group's protocol
        return
    if foreign := sorted(set(positions) - owned):
        names = ", ".join(f"{topic}/{partition}" for topic, partition in foreign)
        raise FencedError(f"This member does not own {names} (any more); its positions may not be committed here.")


def _consumer_options(group: str | None, instance_id: str | None, base: dict[str, Any]) -> dict[str, Any]:
    ours: dict[str, Any] = {
        "group.id": group or _NO_GROUP,
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        # Never start anywhere but where we say: a lost position must be seen.
        "auto.offset.reset": "error",
        # The end of a partition is told even where only transaction markers lie before it.
        "enable.partition.eof": True,
        # Eager: all is given back before anything is handed out, so that nobody folds beside a successor.
        "partition.assignment.strategy": "range",
        "session.timeout.ms": SESSION_TIMEOUT_MS,
        "heartbeat.interval.ms": 1_500,
        "max.poll.interval.ms": 300_000,
        # A full prefetch queue pauses the partition for a second by default; 1 ms keeps the loop fed. Memory stays
        # bounded by the kilobytes.
        "fetch.queue.backoff.ms": 1,
        "queued.min.messages": 100_000,
        "queued.max.messages.kbytes": 65_536,
        "fetch.wait.max.ms": 100,
        "fetch.error.backoff.ms": 100,
    }
    if instance_id is not None:
        ours["group.instance.id"] = instance_id
    return {**ours, **base}


class KafkaConsumer:
    """See `stepwell.engine.ports.Consumer`. One thread at a time.

    While the cluster is away `poll` returns nothing (said once in the log) and goes on when it is back; calls that
    need an answer raise `LogUnavailableError` after `CALL_TIMEOUT_S`.
    """

    def __init__(
        self,
        bootstrap: str,
        group: str | None,
        instance_id: str | None,
        options: Mapping[str, Any],
        outage: Outage | None = None,
    ) -> None:
        if instance_id is not None and group is None:
            raise LogError("An instance id makes sense only in a group; name the group.")
        self.group = group
        self._instance_id = instance_id
        self._availability = Availability(f"consumer {instance_id or group or ''}".strip(), outage)
        base = base_options(bootstrap, options, self._availability.on_error)
        self._driver = make_client(Consumer, _consumer_options(group, instance_id, base))
        self._topics: list[str] = []
        self._on_assign: OnAssign | None = None
        self._on_revoke: OnRevoke | None = None
        self._rejoin = False
        self._callback_error: BaseException | None = None
        # Per assigned partition: what is read next, and where the last batch handed out ended. They differ where the
        # reader passed transaction markers after that batch: the next batch still starts where the last one ended.
        self._position: dict[TopicPartition, int] = {}
        self._handed: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._lost: dict[TopicPartition, PositionLostError] = {}
        self._next_error: LogError | None = None
        self._fenced: FencedError | None = None
        self._closed = False

    # -- assignment -----------------------------------------------------------------------------------------------

    def subscribe(
        self, topics: Sequence[str], on_assign: OnAssign | None = None, on_revoke: OnRevoke | None = None
    ) -> None:
        """See `stepwell.engine.ports.Consumer.subscribe`."""
        self._need_group("subscribe")
        self._topics, self._on_assign, self._on_revoke = list(topics), on_assign, on_revoke
        self._join()

    def _join(self) -> None:
        self._rejoin = False
        try:
            self._driver.subscribe(
                self._topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
            )
        except KafkaException as error:
            raise to_log_error(error, f"joining group {self.group}") from error

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """See `stepwell.engine.ports.Consumer.assign`."""
        self._check_open()
        if self._topics:
            self._topics = []
            self._driver.unsubscribe()
        self._take(dict(positions))

    def _take(self, positions: dict[TopicPartition, int]) -> None:
        self._forget_assignment()
        try:
            taken = [DriverPartition(s.topic, s.partition, at) for s, at in positions.items()]
            self._driver.assign(taken)
            # The driver forgets no pause with an assignment; a partition that goes and comes back would stay mute.
            self._driver.resume(taken)
        except KafkaException as error:
            raise to_log_error(error, "taking partitions") from error
        self._position = dict(positions)
        self._handed = dict(positions)

    def _forget_assignment(self) -> None:
        self._position, self._handed = {}, {}
        self._paused.clear()
        self._lost.clear()
        self._next_error = None

    def _assigned(self, driver: Consumer, partitions: list[DriverPartition]) -> None:
        """The driver's callback, inside `poll`. What it raises is kept and raised by `poll` itself.

        On a failure nothing is assigned, and the next `poll` joins anew, so that the caller's ``on_assign`` runs again.
        Until then the caller must not take for its own what its ``on_assign`` was told of: it is told of a revocation.
        """
        sources = [TopicPartition(p.topic, p.partition) for p in partitions]
        try:
            chosen = dict((self._on_assign(sources) if self._on_assign else None) or {})
            if stray := set(chosen) - set(sources):
                raise LogError(f"on_assign gave positions of partitions that were not assigned: {sorted(stray)}.")
            missing = [source for source in sources if source not in chosen]
            chosen.update(self._starting_positions(missing))
            self._take({source: chosen[source] for source in sources})
        except BaseException as error:  # noqa: BLE001 - raised again by poll, outside the driver's C frames
            self._callback_error, self._rejoin = error, True
            self._forget_assignment()
            try:
                if self._on_revoke is not None:
                    self._on_revoke(sources)
            finally:
                driver.assign([])

    def _starting_positions(self, sources: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Committed positions; the log's start where there is none. Said to the driver, not left to a reset policy."""
        if not sources:
            return {}
        committed = self.committed(sources)
        return {source: self.watermarks(source).low if at is None else at for source, at in committed.items()}

    def _revoked(self, driver: Consumer, partitions: list[DriverPartition]) -> None:
        """The driver's callback for partitions that are revoked or lost: the same to us, nothing more is committed."""
        held = [source for source in map(_source, partitions) if source in self._position]
        self._forget_assignment()
        try:
            if self._on_revoke is not None and held and not self._closed:
                self._on_revoke(held)
        except BaseException as error:  # noqa: BLE001 - raised again by poll
            self._callback_error = error
        finally:
            driver.unassign()

    # -- reading --------------------------------------------------------------------------------------------------

    def poll(self, max_records: int, timeout_s: float) -> list[RecordBatch]:
        """See `stepwell.engine.ports.Consumer.poll`."""
        self._check_open()
        deadline = time.monotonic() + timeout_s
        while True:
            self._raise_pending()
            if self._rejoin:
                self._driver.unsubscribe()
                self._join()
            messages = self._consume(max_records, max(0.0, deadline - time.monotonic()))
            if self._callback_error is not None:
                raised, self._callback_error = self._callback_error, None
                raise raised
            with _without_collector():
                batches = self._batches(messages)
            # What came may have been no record but an event, such as the end of a partition: then wait on.
            if batches or (not messages and time.monotonic() >= deadline):
                return batches

    def _consume(self, max_records: int, timeout_s: float) -> list[Message]:
        """Wait for the first record only, then take what is there: the driver alone would wait for all of them."""
        try:
            messages = self._driver.consume(1, timeout_s)
            if messages and max_records > 1:
                messages += self._driver.consume(max_records - 1, 0)
        except KafkaException as error:
            raise self._failure(error, f"reading as a member of {self.group}" if self._topics else "reading") from error
        return messages

    def _failure(self, error: KafkaException, doing: str) -> LogError:
        failure = to_log_error(error, doing)
        inner = kafka_error(error)
        fatal = inner.fatal() or inner.code() == KafkaError._FATAL
        if fatal and self._instance_id is not None:
            failure = FencedError(str(failure))  # see `_note`
        if fatal and isinstance(failure, FencedError):
            self._fence(failure)  # anything less than fatal is over at the next join
        return failure

    def _fence(self, failure: FencedError) -> None:
        self._forget_assignment()
        self._fenced = failure

    def _raise_pending(self) -> None:
        """Fencing is for good; a lost position is raised until somebody seeks or assigns; anything else once."""
        if self._fenced is not None:
            raise self._fenced
        for lost in self._lost.values():
            raise lost
        if self._next_error is not None:
            error, self._next_error = self._next_error, None
            raise error

    def _batches(self, messages: list[Message]) -> list[RecordBatch]:
        batches: dict[TopicPartition, RecordBatch] = {}
        columns: dict[TopicPartition, list[Headers]] = {}
        topic, partition, batch, column = None, None, None, []
        for message in messages:
            error = message.error()
            if error is not None:
                self._note(error, message, batches)
                continue
            if batch is None or message.partition() != partition or message.topic() != topic:
                topic, partition = message.topic(), message.partition()
                source = TopicPartition(topic, partition)  # type: ignore[arg-type]
                if source not in self._position:
                    batch = None  # taken away between the fetch and now
                    continue
                batch = batches.get(source)
                if batch is None:
                    at = self._handed[source]
                    columns[source] = []
                    batch = batches[source] = RecordBatch(source, at, at, headers=columns[source])
                column = columns[source]
            batch.offsets.append(message.offset())  # type: ignore[arg-type]
            batch.timestamps.append(message.timestamp()[1] * 1000)
            batch.keys.append(message.key())
            batch.values.append(message.value())
            headers = message.headers()
            column.append(tuple(headers) if headers else ())  # type: ignore[arg-type]
        for source, batch in batches.items():
            # An end of partition in the same poll may have moved the end beyond markers already.
            batch.end = max(batch.end, batch.offsets[-1] + 1)
            self._position[source] = self._handed[source] = batch.end
        if batches:
            self._availability.on_success()
        return list(batches.values())

    def _note(self, error: KafkaError, message: Message, batches: dict[TopicPartition, RecordBatch]) -> None:
        """An event of the driver in place of a record."""
        number = message.partition()
        source = TopicPartition(message.topic() or "", -1 if number is None else number)
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            self._availability.on_success()
            if source in self._position:
                end = message.offset() or 0
                self._position[source] = max(self._position[source], end)
                if (batch := batches.get(source)) is not None:
                    batch.end = max(batch.end, end)
            return
        kind = classify(error)
        if code == KafkaError._FATAL and self._instance_id is not None:
            # The driver says "fatal" without a code here. In this group protocol only one thing is: fencing.
            self._fence(FencedError(f"Kafka: member {self._instance_id} of group {self.group}: {error.str()}."))
        elif kind is PositionLostError:
            if source in self._position:
                self._lost[source] = self._position_lost(source, error)
        elif kind is LogUnavailableError:
            self._availability.on_error(error)
        else:
            self._next_error = to_log_error(error, f"reading {source.topic or self.group}")

    def _position_lost(self, source: TopicPartition, error: KafkaError) -> PositionLostError:
        at = self._position[source]
        try:
            low, high = self.watermarks(source)
            found = f"the log holds {low} to {high}"
            why = "retention has removed it" if at < low else "the log was cut or made anew"
        except LogError:
            found, why = "the log's own range could not be asked for", error.str()
        return PositionLostError(
            f"Position {at} of {source.topic}/{source.partition} cannot be read: {found} ({why}). Nothing was skipped; "
            "seek to a position on purpose, or restore the log."
        )

    # -- positions ------------------------------------------------------------------------------------------------

    def position(self, source: TopicPartition) -> int:
        """See `stepwell.engine.ports.Consumer.position`. Beyond markers, where the partition's end has been seen."""
        self._need_assigned(source)
        return self._position[source]

    def seek(self, source: TopicPartition, position: int) -> None:
        """See `stepwell.engine.ports.Consumer.seek`."""
        self._need_assigned(source)
        if source in self._lost:
            # The driver does not fetch this partition any more and refuses to seek in it: take everything anew.
            paused = set(self._paused)
            others = {**self._lost}
            self._take({**self._handed, source: position})
            others.pop(source)
            self._lost.update(others)
            self.pause(paused)
            return
        try:
            self._driver.seek(DriverPartition(source.topic, source.partition, position))
        except KafkaException as error:
            if kafka_error(error).code() not in (KafkaError._STATE, KafkaError._UNKNOWN_PARTITION):
                raise to_log_error(error, f"seeking in {source.topic}/{source.partition}") from error
            # Right after an assignment fetching has not begun, and the driver cannot seek yet.
            paused = set(self._paused)
            self._take({**self._handed, source: position})
            self.pause(paused)
        self._position[source] = self._handed[source] = position

    def pause(self, sources: Iterable[TopicPartition]) -> None:
        """See `stepwell.engine.ports.Consumer.pause`."""
        chosen = [source for source in sources if source in self._position]
        if chosen:
            self._driver.pause([DriverPartition(*source) for source in chosen])
            self._paused.update(chosen)

    def resume(self, sources: Iterable[TopicPartition]) -> None:
        """See `stepwell.engine.ports.Consumer.resume`."""
        chosen = [source for source in sources if source in self._paused]
        if chosen:
            self._driver.resume([DriverPartition(*source) for source in chosen])
            self._paused.difference_update(chosen)

    def committed(self, sources: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """See `stepwell.engine.ports.Consumer.committed`."""
        return self._committed(sources, CALL_TIMEOUT_S)

    def _committed(self, sources: Iterable[TopicPartition], timeout_s: float) -> dict[TopicPartition, int | None]:
        self._need_group("committed")
        wanted = list(sources)
        if not wanted:
            return {}
        try:
            found = self._driver.committed([DriverPartition(*source) for source in wanted], timeout_s)
        except KafkaException as error:
            raise to_log_error(error, f"asking for the committed positions of group {self.group}") from error
        for partition in found:
            if partition.error is not None:
                raise to_log_error(partition.error, f"asking for the committed position of {_name(partition)}")
        return {_source(p): p.offset if p.offset >= 0 else None for p in found}

    def commit(self, positions: Mapping[TopicPartition, int]) -> None:
        """See `stepwell.engine.ports.Consumer.commit`."""
        self._need_group("commit")
        if not positions:
            return
        _check_owned(self._owned(), positions)
        try:
            done = self._driver.commit(
                offsets=[DriverPartition(s.topic, s.partition, at) for s, at in positions.items()], asynchronous=False
            )
        except KafkaException as error:
            raise self._failure(error, f"committing positions of group {self.group}") from error
        for partition in done:
            if partition.error is not None:
                raise to_log_error(partition.error, f"committing the position of {_name(partition)}")
        self._availability.on_success()

    def watermarks(self, source: TopicPartition) -> Watermarks:
        """See `stepwell.engine.ports.Consumer.watermarks`."""
        self._check_open()
        return patiently(lambda: self._watermarks(source), CALL_TIMEOUT_S)

    def _watermarks(self, source: TopicPartition) -> Watermarks:
        try:
            found = self._driver.get_watermark_offsets(DriverPartition(*source), CALL_TIMEOUT_S)
        except KafkaException as error:
            doing = f"asking for the range of {source.topic}/{source.partition}"
            if kafka_error(error).code() == KafkaError._UNKNOWN_PARTITION:
                # A broker that is just coming back may tell of a topic without its partitions.
                raise LogUnavailableError(f"Kafka: {doing}: the partition is not there (now).") from error
            raise to_log_error(error, doing) from error
        if found is None:  # the driver's way of saying that the time ran out
            raise LogUnavailableError(f"Kafka did not tell the range of {source.topic}/{source.partition} in time.")
        return Watermarks(*found)

    def membership(self) -> KafkaMembership:
        """See `stepwell.engine.ports.Consumer.membership`."""
        self._need_group("membership")
        return KafkaMembership(self._driver.consumer_group_metadata(), self._owned(), self._confirm)

    def _confirm(self) -> None:
        """Commits what is committed already: the coordinator checks member, generation and instance at a commit."""
        if self._fenced is not None:
            raise self._fenced
        if self._closed or not self._topics or not self._position:
            raise FencedError(f"This consumer has no partitions in group {self.group} any more.")
        source = min(self._position)
        # Not for long: where the transaction in question hides the positions, only taking the id over shows them again.
        at = self._committed([source], CONFIRM_TIMEOUT_S)[source]
        self.commit({source: self.watermarks(source).low if at is None else at})

    def close(self) -> None:
        """See `stepwell.engine.ports.Consumer.close`. A static member stays in the group for its session's time."""
        if self._closed:
            return
        self._closed = True
        try:
            self._driver.close()
        except (KafkaException, RuntimeError) as error:
            _log.warning("log_consumer_close", group=self.group, reason=str(error))
        self._forget_assignment()

    # -- checks ---------------------------------------------------------------------------------------------------

    def _owned(self) -> frozenset[TopicPartition] | None:
        return frozenset(self._position) if self._topics else None

    def _check_open(self) -> None:
        if self._closed:
            raise LogError("This consumer is closed.")

    def _need_group(self, call: str) -> None:
        self._check_open()
        if self.group is None:
            raise LogError(f"{call}() needs a group; make the consumer with one.")

    def _need_assigned(self, source: TopicPartition) -> None:
        self._check_open()
        if source not in self._position:
            raise LogError(f"{source.topic}/{source.partition} is not assigned to this consumer.")


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Hold Python's cycle collector back while a batch is built.

    A batch makes tens of thousands of objects and no cycle; the collector would walk them all again and again, which
    takes half of the time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _source(partition: DriverPartition) -> TopicPartition:
    return TopicPartition(partition.topic, partition.partition)


def _name(partition: DriverPartition) -> str:
    return f"{partition.topic}/{partition.partition}"
