"""Appending to the local log: which slot a record goes to, and many records in few statements."""

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import repeat
from typing import NamedTuple

from stepwell.adapters.logs.local_store import Store, address_of, now_us
from stepwell.adapters.logs.partitioner import Partitioner, partition_for_key
from stepwell.engine.headers import pack_headers
from stepwell.engine.ports import OutgoingRecord, TopicPartition
from stepwell.events.guards import MAX_STORED_BYTES, stored_bytes
from stepwell.events.model import Headers
from stepwell.exceptions import LogError, TopicError

_PACKED_FACTOR = 4
"""A header takes three packed bytes at least, and ten and its own in `stored_bytes`."""


class TopicSlots(NamedTuple):
    """The slots of one topic, by partition."""

    slots: tuple[int, ...]
    compacted: bool


class Catalog:
    """What topics there are, remembered: topics are added, but never changed or taken away."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, TopicSlots] = {}

    def topic(self, name: str) -> TopicSlots:
        """Raises `TopicError` where there is no such topic."""
        found = self._known.get(name)
        if found is None:
            with self._store.read() as connection:
                found = read_topic(connection, name)
            if found is None:
                raise TopicError(
                    f"{self._store.where} has no topic {name!r}; make it with `stepwell topics create` or Admin.create"
                )
            self._known[name] = found
        return found

    def slot(self, source: TopicPartition) -> int:
        """Raises `TopicError` where there is no such topic or partition."""
        slots = self.topic(source.topic).slots
        if not 0 <= source.partition < len(slots):
            raise TopicError(
                f"{self._store.where}: topic {source.topic!r} has partitions 0 to {len(slots) - 1}, "
                f"there is no partition {source.partition}"
            )
        return slots[source.partition]


def _check_size(topic: str, key: bytes | None, value: bytes | None, headers: Headers) -> None:
    """The same limit as Kafka's, so that what works here works there."""
    size = stored_bytes(key, value, headers)
    if size > MAX_STORED_BYTES:
        raise LogError(
            f"{topic}: a record of {size} bytes with key and headers is larger than the {MAX_STORED_BYTES} that a log "
            "takes; large observations belong in artifacts, the event holds their digest"
        )


def read_topic(connection: sqlite3.Connection, name: str) -> TopicSlots | None:
    """A topic's slots; None where there is no such topic."""
    row = connection.execute("SELECT compacted FROM topics WHERE topic = ?", (name,)).fetchone()
    if row is None:
        return None
    slots = connection.execute("SELECT slot FROM slots WHERE topic = ? ORDER BY partition", (name,))
    return TopicSlots(tuple(slot for (slot,) in slots), bool(row[0]))


@dataclass(slots=True)
class _Column:
    """Records for one slot, side by side."""

    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    headers: list[bytes | None] = field(default_factory=list)


class Outbox:
    """Records that wait to be appended, by slot, each slot in the order of `add`.

    Attributes:
        count: how many records wait.
        size: how many bytes their values have.
    """

    def __init__(self, catalog: Catalog, partitioner: Partitioner) -> None:
        self._catalog = catalog
        self._partitioner = partitioner
        self._columns: dict[int, _Column] = {}
        self.count = 0
        self.size = 0

    def add(self, records: Iterable[OutgoingRecord]) -> None:
        """Add records.

        Raises:
            TopicError: no such topic or partition.
            LogError: a key or value that is not bytes; a record without a key for a compacted topic; one that is
                larger than `MAX_STORED_BYTES`.
        """
        # The hot loop of every append: names are local, and a record costs a few look-ups and three list appends.
        columns, topic_of, choose = self._columns, self._catalog.topic, self._partitioner.choose
        last, count, size = "", 0, 0
        slots: tuple[int, ...] = ()
        compacted = False
        for topic, key, value, headers, partition in records:
            if topic != last:
                slots, compacted = topic_of(topic)
                last = topic
            if type(key) is not bytes and (key is not None or compacted):
                raise LogError(f"{topic}: a key must be bytes{'' if compacted else ' or None'}, not {key!r:.80}")
            if type(value) is not bytes and value is not None:
                raise LogError(f"{topic}: a value must be bytes or None, not {type(value).__name__}")
            if partition is not None:
                slot = self._catalog.slot(TopicPartition(topic, partition))
            elif key is not None:
                slot = slots[partition_for_key(key, len(slots))]
            else:
                slot = slots[choose(key, len(slots))]
            column = columns.get(slot)
            if column is None:
                column = columns[slot] = _Column()
            packed = pack_headers(headers) if headers else None
            value_size = len(value) if value is not None else 0
            # Never below `stored_bytes`, and at hand.
            bound = value_size + (len(key) if key is not None else 0) + (_PACKED_FACTOR * len(packed) if packed else 0)
            if bound > MAX_STORED_BYTES:
                _check_size(topic, key, value, headers)
            column.keys.append(key)
            column.values.append(value)
            column.headers.append(packed)
            count += 1
            size += value_size
        self.count += count
        self.size += size

    def extend(self, other: "Outbox") -> None:
        """Add another outbox's records behind these."""
        for slot, theirs in other._columns.items():
            mine = self._columns.get(slot)
            if mine is None:
                self._columns[slot] = theirs
            else:
                mine.keys += theirs.keys
                mine.values += theirs.values
                mine.headers += theirs.headers
        self.count += other.count
        self.size += other.size

    def write(self, connection: sqlite3.Connection) -> None:
        """Append everything, inside the caller's write transaction. The outbox keeps it, for a second try."""
        timestamp = now_us()
        for slot, column in self._columns.items():
            (high,) = connection.execute("SELECT high FROM slots WHERE slot = ?", (slot,)).fetchone()
            end = high + len(column.keys)
            addresses = range(address_of(slot, high), address_of(slot, end))
            connection.executemany(
                "INSERT INTO records (address, timestamp, key, value, headers) VALUES (?, ?, ?, ?, ?)",
                zip(addresses, repeat(timestamp), column.keys, column.values, column.headers, strict=False),
            )
            connection.execute("UPDATE slots SET high = ? WHERE slot = ?", (end, slot))
