"""What the conformance cases of message logs do over and over: make clients, append, read, and close it all again."""

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

from stepwell.engine.ports import (
    Admin,
    Consumer,
    MessageLog,
    OutgoingRecord,
    Producer,
    RecordBatch,
    TopicPartition,
    TransactionalProducer,
)
from stepwell.events.model import Headers
from stepwell.events.topics import Topic


class _Closable(Protocol):
    def close(self) -> None: ...


_ClientT = TypeVar("_ClientT", bound=_Closable)


class Seen(NamedTuple):
    """One record that was read."""

    source: TopicPartition
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def records_of(batches: Iterable[RecordBatch]) -> list[Seen]:
    """The records of some batches, one by one."""
    return [
        Seen(batch.source, *columns)
        for batch in batches
        for columns in zip(batch.offsets, batch.timestamps, batch.keys, batch.values, batch.headers, strict=True)
    ]


@dataclass
class Member:
    """A consumer in a group, with what its callbacks and polls gave.

    Attributes:
        consumer: the consumer.
        start_at: positions that ``on_assign`` returns.
        owned: the partitions it has now.
        revocations: how often ``on_revoke`` was called.
        seen: all records, in the order in which they came.
        ends: the end of the last batch of each partition it has.
    """

    consumer: Consumer
    start_at: Mapping[TopicPartition, int] = field(default_factory=dict)
    owned: set[TopicPartition] = field(default_factory=set)
    revocations: int = 0
    seen: list[Seen] = field(default_factory=list)
    ends: dict[TopicPartition, int] = field(default_factory=dict)

    def subscribe(self, *topics: str) -> "Member":
        """Subscribe; the member itself."""
        self.consumer.subscribe(topics, self._assigned, self._revoked)
        return self

    def _assigned(self, sources: list[TopicPartition]) -> Mapping[TopicPartition, int] | None:
        assert not self.owned.intersection(sources), "a partition was handed out twice"
        self.owned.update(sources)
        return {source: self.start_at[source] for source in sources if source in self.start_at}

    def _revoked(self, sources: list[TopicPartition]) -> None:
        assert self.owned.issuperset(sources), "a partition was taken that the member did not have"
        self.owned.difference_update(sources)
        for source in sources:
            self.ends.pop(source, None)
        self.revocations += 1

    def poll(self, max_records: int = 500, timeout_s: float = 0.05) -> list[RecordBatch]:
        """Poll once."""
        batches = self.consumer.poll(max_records, timeout_s)
        for batch in batches:
            assert batch.source in self.owned, "records of a partition that the member does not have"
            self.ends[batch.source] = batch.end
        self.seen += records_of(batches)
        return batches

    def values(self) -> list[bytes | None]:
        """The values of what it has seen."""
        return [record.value for record in self.seen]


class LogLab:
    """A log under test and its clients.

    Args:
        log: the log.
        partitions: how many partitions `topic` gives.
        patience_s: how long to wait for what must come.
        silence_s: how long to wait to see that nothing comes.
    """

    def __init__(self, log: MessageLog, partitions: int, patience_s: float, silence_s: float) -> None:
        self.log = log
        self.partitions = partitions
        self.patience_s = patience_s
        self.silence_s = silence_s
        self._clients: list[_Closable] = []
        self._producer: Producer | None = None
        self._admin: Admin | None = None

    def unique(self, word: str) -> str:
        """A name that no other case uses."""
        return f"conformance-{word}-{uuid.uuid4().hex[:12]}"

    def topic(self, word: str = "topic", *, partitions: int | None = None) -> str:
        """A new topic."""
        name = self.unique(word)
        assert self.admin().create([Topic(name, "key", partitions or self.partitions)]) == [name]
        return name

    def sources(self, topic: str) -> list[TopicPartition]:
        """All partitions of a topic of this lab."""
        return [TopicPartition(topic, number) for number in range(self.admin().partitions(topic))]

    def keep(self, client: _ClientT) -> _ClientT:
        """Close this client at the end."""
        self._clients.append(client)
        return client

    def admin(self) -> Admin:
        """The lab's admin."""
        if self._admin is None:
            self._admin = self.keep(self.log.admin())
        return self._admin

    def producer(self) -> Producer:
        """The lab's producer outside transactions."""
        if self._producer is None:
            self._producer = self.keep(self.log.producer())
        return self._producer

    def transactional(self, transactional_id: str | None = None) -> TransactionalProducer:
        """A new transactional producer."""
        return self.keep(self.log.transactional_producer(transactional_id or self.unique("transactions")))

    def consumer(self, group: str | None = None, instance_id: str | None = None) -> Consumer:
        """A new consumer."""
        return self.keep(self.log.consumer(group, instance_id))

    def member(self, group: str, *topics: str, instance_id: str | None = None) -> Member:
        """A new consumer that has subscribed, and has not polled yet."""
        return Member(self.consumer(group, instance_id)).subscribe(*topics)

    def append(self, topic: str, values: Iterable[bytes], *, key: bytes | None = None, partition: int = 0) -> None:
        """Append values to one partition, durably."""
        self.send([OutgoingRecord(topic, key, value, (), partition) for value in values])

    def send(self, records: Iterable[OutgoingRecord]) -> None:
        """Append records, durably."""
        self.producer().send(records)
        self.producer().flush(self.patience_s)

    def read(self, topic: str, count: int) -> list[Seen]:
        """The first ``count`` records of a topic, by a new consumer without a group; fails when they don't come."""
        consumer = self.consumer()
        consumer.assign({source: marks.low for source, marks in self.admin().watermarks(topic).items()})
        seen: list[Seen] = []
        self.wait_until(lambda: self._read_more(consumer, seen) >= count, f"{count} records of {topic}")
        return seen

    def read_settled(self, topic: str, count: int) -> list[Seen]:
        """As `read`, and then for a while whatever else comes."""
        consumer = self.consumer()
        consumer.assign({source: marks.low for source, marks in self.admin().watermarks(topic).items()})
        seen: list[Seen] = []
        self.wait_until(lambda: self._read_more(consumer, seen) >= count, f"{count} records of {topic}")
        end = time.monotonic() + self.silence_s
        while time.monotonic() < end:
            self._read_more(consumer, seen)
        return seen

    @staticmethod
    def _read_more(consumer: Consumer, seen: list[Seen]) -> int:
        seen += records_of(consumer.poll(500, 0.05))
        return len(seen)

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Call until it is true; fails when that takes too long."""
        deadline = time.monotonic() + self.patience_s
        while not condition():
            assert time.monotonic() < deadline, f"did not come within {self.patience_s} s: {what}"

    def poll_until(self, members: Sequence[Member], condition: Callable[[], bool], what: str) -> None:
        """Poll the members in turn until the condition is true."""

        def step() -> bool:
            for member in members:
                member.poll()
            return condition()

        self.wait_until(step, what)

    def settle(self, members: Sequence[Member], topics: Sequence[str]) -> None:
        """Poll until the members share all partitions of the topics among them, each having some, none having two."""
        everything = {source for topic in topics for source in self.sources(topic)}

        def shared() -> bool:
            parts = [member.owned for member in members]
            return all(parts) and set().union(*parts) == everything and sum(map(len, parts)) == len(everything)

        self.poll_until(members, shared, f"{len(members)} members sharing {sorted(everything)}")

    def close(self) -> None:
        """Close every client, and the log."""
        for client in reversed(self._clients):
            client.close()
        self.log.close()
