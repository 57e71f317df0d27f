"""What the engine needs of a message log. Adapters implement these protocols; one conformance suite holds them to it.

Everything moves in batches of one partition, columns side by side (`RecordBatch`), so that a caller can decode a whole
batch at once. Offsets are sparse (transaction markers, compaction): never compute with "offset + 1" of a record; use
`RecordBatch.start` and `RecordBatch.end`.

All calls raise `stepwell.exceptions.LogError` or a subclass; `LogUnavailableError` and `TransactionAbortedError` are
retriable.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from stepwell.events.model import Event, Headers, LogRecord
from stepwell.events.topics import Topic


class EventCodec(Protocol):
    """What the workers need of `stepwell.events.codec.Codec`."""

    def encode(self, record: LogRecord) -> tuple[bytes, Headers]:
        """The record's bytes and headers."""

    def decode(self, value: bytes | None, headers: Headers) -> LogRecord:
        """The record behind a value and its headers."""

    def decode_event(self, value: bytes | None, headers: Headers) -> Event:
        """As `decode`, for topics that hold events only."""

    def fingerprint_of(self, value: bytes, headers: Headers) -> str:
        """The fingerprint of the schema that a record was written with, once it was decoded."""


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int


@dataclass(slots=True)
class RecordBatch:
    """Records of one partition, in order, as columns of equal length.

    Attributes:
        source: the partition.
        start: the position from which the batch was read (at or below the first offset).
        end: the position to read from next (above the last offset); commit this.
        offsets, timestamps, keys, values, headers: one entry a record. Timestamps are the log's time of append (µs).
            Headers may be taken apart only when they are looked at; damaged ones raise `LogError` then.
    """

    source: TopicPartition
    start: int
    end: int
    offsets: list[int] = field(default_factory=list)
    timestamps: list[int] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    headers: Sequence[Headers] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.offsets)


class OutgoingRecord(NamedTuple):
    """A record to be appended. ``partition`` None: chosen from the key by murmur2, as Kafka's Java client does.

    Every log takes one of up to `stepwell.events.guards.MAX_STORED_BYTES`, key and headers counted
    (`stepwell.events.guards.stored_bytes`); one of 1 % more is refused with `LogError`, by ``send`` or by ``flush``.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    partition: int | None = None


class Watermarks(NamedTuple):
    """``low``: the first offset still kept. ``high``: the end for readers of committed records (last stable offset)."""

    low: int
    high: int


class GroupMembership(Protocol):
    """Proof of membership in a consumer group, to be handed to `TransactionalProducer.send_offsets`. Opaque."""


class Producer(Protocol):
    """Appends records. Idempotent: a retry inside the client never doubles or reorders."""

    def send(self, records: Iterable[OutgoingRecord]) -> None:
        """Queue records. Blocks while the client's queue is full (back-pressure); order per partition is kept."""

    def flush(self, timeout_s: float) -> None:
        """Wait until every queued record is durable.

        Raises:
            LogError: one or more were refused; the first reason is told.
            StillQueuedError: not done in time; they stay queued, and may or may not be in the log already. Flush again.
            LogUnavailableError: refused, because the log is away. Send them again.
        """

    def close(self) -> None:
        """Flush what can be flushed and let go. Never raises."""


class Touches(NamedTuple):
    """What transactions of one id may touch.

    Attributes:
        topics: where they append.
        group: whose positions they move.
    """

    topics: tuple[str, ...]
    group: str


class TransactionalProducer(Protocol):
    """Appends records and consumed offsets as one: readers of committed records see all of it or nothing."""

    def begin(self) -> None:
        """Start a transaction."""

    def send(self, records: Iterable[OutgoingRecord]) -> None:
        """Add records to the open transaction."""

    def send_offsets(self, positions: Mapping[TopicPartition, int], membership: GroupMembership) -> None:
        """Add consumed positions (`RecordBatch.end`) to the open transaction.

        Raises:
            FencedError: the membership is stale; another member owns the partitions.
        """

    def commit(self) -> None:
        """Make it all visible.

        Raises:
            FencedError: another producer with the same transactional id has started.
            TransactionAbortedError: rolled back; read the batch again from the committed positions.
        """

    def abort(self) -> None:
        """Throw away the open transaction."""

    def hold(self) -> None:
        """Make sure that the id is ours and nothing is left open under it; before committed positions are read.

        Raises:
            FencedError: another producer with the same transactional id has started.
            LogUnavailableError: the log cannot say so now; make another producer.
        """

    def close(self) -> None:
        """Abort what is open and let go. Never raises."""


class Consumer(Protocol):
    """Reads committed records, as a member of a group (`subscribe`) or by itself (`assign`)."""

    def subscribe(
        self,
        topics: Sequence[str],
        on_assign: Callable[[list[TopicPartition]], Mapping[TopicPartition, int] | None] | None = None,
        on_revoke: Callable[[list[TopicPartition]], None] | None = None,
    ) -> None:
        """Join the group. Callbacks run inside `poll`.

        ``on_assign`` gets the newly owned partitions and may return positions to start from (for those it leaves out:
        the committed position, else the log's start). ``on_revoke`` gets those that are going; whether they are revoked
        or lost, nothing of them may be committed afterwards.
        """

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read these partitions from these positions, outside any group protocol. Replaces what was assigned."""

    def poll(self, max_records: int, timeout_s: float) -> list[RecordBatch]:
        """Up to ``max_records`` records, one batch per partition; empty when nothing came in time.

        Raises:
            PositionLostError: a position lies below the log's start (retention), or above its end (truncation);
                names partition, position and watermarks. Nothing is reset.
        """

    def position(self, source: TopicPartition) -> int:
        """The position to be read next."""

    def seek(self, source: TopicPartition, position: int) -> None:
        """Read this assigned partition from here."""

    def pause(self, sources: Iterable[TopicPartition]) -> None:
        """Hand out nothing of these until `resume`; the membership stays alive through `poll`."""

    def resume(self, sources: Iterable[TopicPartition]) -> None:
        """Hand out records of these again."""

    def committed(self, sources: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """The group's committed positions (stable ones: waits out an open transaction); None where there is none."""

    def commit(self, positions: Mapping[TopicPartition, int]) -> None:
        """Commit positions outside a transaction.

        Raises:
            FencedError: this member no longer owns them.
        """

    def watermarks(self, source: TopicPartition) -> Watermarks:
        """Start and end of the partition now."""

    def membership(self) -> GroupMembership:
        """Proof of membership for a transaction, as of now."""

    def close(self) -> None:
        """Leave the group and let go. Never raises."""


class Admin(Protocol):
    """Looks at topics and groups, and makes topics."""

    def partitions(self, topic: str) -> int:
        """How many partitions the topic has. Raises `TopicError` where there is no such topic."""

    def create(self, topics: Sequence[Topic]) -> list[str]:
        """Make those that do not exist; the names of the new ones."""

    def check(self, topics: Sequence[Topic]) -> list[str]:
        """What is wrong with existing topics, a sentence each (name, setting, found, wanted); empty: all is well."""

    def watermarks(self, topic: str) -> dict[TopicPartition, Watermarks]:
        """Start and end of every partition."""

    def group_positions(self, group: str, topic: str) -> dict[TopicPartition, int | None]:
        """What a group has committed, without joining it."""

    def close(self) -> None:
        """Let go. Never raises."""


class MessageLog(Protocol):
    """A message log: topics of keyed records in partitions, consumer groups, transactions."""

    @property
    def said_away(self) -> bool:
        """Whether one of its clients has logged by itself that the log is away; then nobody else need say it."""

    def producer(self, *, quiet: bool = False) -> Producer:
        """A producer outside transactions (idempotent, all replicas acknowledge).

        ``quiet``: for records that may be lost; it logs nothing of an outage, and closes quickly.
        """

    def transactional_producer(self, transactional_id: str, touches: Touches | None = None) -> TransactionalProducer:
        """A producer with a stable id. Starting it fences the older one of that id and aborts what that left open.

        ``touches`` says where transactions of this id may have left something, for logs that can lose track of it.
        """

    def consumer(self, group: str | None = None, instance_id: str | None = None) -> Consumer:
        """A consumer of committed records. ``group`` is needed for `subscribe`, `committed` and `commit`.

        ``instance_id`` makes the membership static: a restart with the same id takes its partitions back at once.
        """

    def admin(self) -> Admin:
        """For looking at and making topics."""

    def close(self) -> None:
        """Let go of everything that the log itself holds. Never raises."""
