"""Looking at and making topics of the local log."""

from collections.abc import Mapping, Sequence

from stepwell.adapters.logs.local_append import Catalog, read_topic
from stepwell.adapters.logs.local_groups import read_positions
from stepwell.adapters.logs.local_store import Store
from stepwell.adapters.logs.local_upkeep import compact, delete_before, maintain
from stepwell.engine.ports import TopicPartition, Watermarks
from stepwell.events.topics import Topic


class LocalAdmin:
    """See `stepwell.engine.ports.Admin`; besides, what an operator of a local log can do by hand."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._catalog = Catalog(store)

    def partitions(self, topic: str) -> int:
        """How many partitions the topic has."""
        return len(self._catalog.topic(topic).slots)

    def create(self, topics: Sequence[Topic]) -> list[str]:
        """Make those that do not exist; the names of the new ones."""
        with self._store.read() as connection:
            missing = [topic for topic in topics if read_topic(connection, topic.name) is None]
        if not missing:
            return []
        new: list[str] = []
        with self._store.write() as connection:
            for topic in missing:
                added = connection.execute(
                    "INSERT INTO topics (topic, partitions, compacted, retention_ms, timestamps) VALUES (?, ?, ?, ?, ?)"
                    " ON CONFLICT DO NOTHING",
                    (topic.name, topic.partitions, int(topic.compacted), topic.retention_ms, topic.timestamps),
                )
                if added.rowcount:
                    connection.executemany(
                        "INSERT INTO slots (topic, partition) VALUES (?, ?)",
                        [(topic.name, number) for number in range(topic.partitions)],
                    )
                    new.append(topic.name)
        return new

    def check(self, topics: Sequence[Topic]) -> list[str]:
        """What is wrong with existing topics, one sentence each."""
        wrong: list[str] = []
        for topic in topics:
            with self._store.read() as connection:
                row = connection.execute(
                    "SELECT partitions, compacted, retention_ms, timestamps FROM topics WHERE topic = ?", (topic.name,)
                ).fetchone()
            if row is None:
                wrong.append(f"{topic.name} does not exist: `stepwell topics create` makes it.")
                continue
            partitions, compacted, retention_ms, timestamps = row
            if partitions < topic.partitions:
                wrong.append(f"{topic.name}: partitions is {partitions}, wanted at least {topic.partitions}.")
            if bool(compacted) != topic.compacted:
                wrong.append(f"{topic.name}: compacted is {bool(compacted)}, wanted {topic.compacted}.")
            if not topic.compacted and retention_ms != topic.retention_ms:
                wrong.append(f"{topic.name}: retention_ms is {retention_ms}, wanted {topic.retention_ms}.")
            if timestamps != topic.timestamps:
                wrong.append(f"{topic.name}: timestamps is {timestamps!r}, wanted {topic.timestamps!r}.")
        return wrong

    def watermarks(self, topic: str) -> dict[TopicPartition, Watermarks]:
        """Start and end of every partition."""
        self._catalog.topic(topic)
        with self._store.read() as connection:
            rows = connection.execute(
                "SELECT partition, low, high FROM slots WHERE topic = ? ORDER BY partition", (topic,)
            ).fetchall()
        return {TopicPartition(topic, partition): Watermarks(low, high) for partition, low, high in rows}

    def group_positions(self, group: str, topic: str) -> dict[TopicPartition, int | None]:
        """What a group has committed, without joining it."""
        slots = self._catalog.topic(topic).slots
        with self._store.read() as connection:
            known = read_positions(connection, group, slots)
        return {TopicPartition(topic, partition): known.get(slot) for partition, slot in enumerate(slots)}

    def delete_records(self, before: Mapping[TopicPartition, int]) -> int:
        """Drop the records below these positions for good; the number of records dropped."""
        return sum(delete_before(self._store, self._catalog.slot(source), end) for source, end in before.items())

    def compact(self, topic: str) -> int:
        """Keep only the last record of each key, now; the number of records dropped."""
        return sum(compact(self._store, slot) for slot in self._catalog.topic(topic).slots)

    def maintain(self) -> int:
        """Do now what appenders do each minute: retention and compaction; the number of records dropped."""
        return maintain(self._store)

    def close(self) -> None:
        """Let go."""
        self._store.close()
