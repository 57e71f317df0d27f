"""Reading batches of the local log from a set of positions."""

import json
import sqlite3
from collections.abc import Iterable, Mapping

from stepwell.adapters.logs.local_append import Catalog
from stepwell.adapters.logs.local_store import Store, address_of
from stepwell.engine.headers import PackedHeaders
from stepwell.engine.ports import RecordBatch, TopicPartition, Watermarks
from stepwell.exceptions import LogError, PositionLostError

_BYTES_MAX = 32 * 1024 * 1024
"""A batch ends after the chunk in which its values pass this size."""

_CHUNK = 1_000


class LocalReader:
    """Positions in partitions, and what lies behind them."""

    def __init__(self, store: Store, catalog: Catalog) -> None:
        self._store = store
        self._catalog = catalog
        self._positions: dict[TopicPartition, int] = {}
        # Where the next batch starts: behind `_positions` where a hole was passed that gave no record. So the batches
        # of a partition join up without a gap, and whoever keeps their ends can compare them with the next start.
        self._starts: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._turn = 0

    def sources(self) -> list[TopicPartition]:
        """What is read now, paused or not."""
        return list(self._positions)

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read these and nothing else."""
        for source in positions:
            self._catalog.slot(source)
        self._positions = dict(positions)
        self._starts = dict(positions)
        self._paused.clear()

    def add(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read these too."""
        self._positions |= positions
        self._starts |= positions
        self._paused.difference_update(positions)

    def remove(self, sources: Iterable[TopicPartition]) -> None:
        """Read these no more."""
        for source in sources:
            self._positions.pop(source, None)
            self._starts.pop(source, None)
            self._paused.discard(source)

    def position(self, source: TopicPartition) -> int:
        """The position to be read next."""
        return self._positions[self._assigned(source)]

    def seek(self, source: TopicPartition, position: int) -> None:
        """Read this one from here."""
        self._positions[self._assigned(source)] = position
        self._starts[source] = position

    def pause(self, sources: Iterable[TopicPartition]) -> None:
        """Hand out nothing of these."""
        self._paused.update(self._assigned(source) for source in sources)

    def resume(self, sources: Iterable[TopicPartition]) -> None:
        """Hand out records of these again."""
        self._paused.difference_update([self._assigned(source) for source in sources])

    def _assigned(self, source: TopicPartition) -> TopicPartition:
        if source not in self._positions:
            raise LogError(f"{source.topic}/{source.partition} is not assigned to this consumer")
        return source

    def watermarks(self, source: TopicPartition) -> Watermarks:
        """Start and end of the partition now."""
        slot = self._catalog.slot(source)
        with self._store.read() as connection:
            low, high = connection.execute("SELECT low, high FROM slots WHERE slot = ?", (slot,)).fetchone()
        return Watermarks(low, high)

    def read(self, max_records: int) -> list[RecordBatch]:
        """What lies behind the positions, spread fairly over the partitions; moves the positions.

        Raises:
            PositionLostError: see `stepwell.engine.ports.Consumer.poll`.
        """
        wanted = {self._catalog.slot(source): source for source in self._positions if source not in self._paused}
        if not wanted or max_records < 1:
            return []
        batches: list[RecordBatch] = []
        # One read transaction: retention cannot take records away between the look at the watermarks and the read.
        with self._store.read() as connection:
            marks = connection.execute(
                "SELECT slot, low, high FROM slots WHERE slot IN (SELECT value FROM json_each(?))",
                (json.dumps(list(wanted)),),
            ).fetchall()
            ready = [row for row in marks if self._check(wanted[row[0]], row[1], row[2])]
            self._turn += 1
            left, size = max_records, 0
            for number in range(len(ready)):
                slot, _, high = ready[(number + self._turn) % len(ready)]
                share = -(-left // (len(ready) - number))
                if share < 1 or (size > _BYTES_MAX and batches):
                    break
                batch = RecordBatch(wanted[slot], self._starts[wanted[slot]], high)
                size += _fill(connection.cursor(), batch, slot, self._positions[batch.source], share)
                left -= len(batch)
                batches.append(batch)
        for batch in batches:
            self._positions[batch.source] = batch.end
            if batch.offsets:
                self._starts[batch.source] = batch.end
        return [batch for batch in batches if batch.offsets]

    def _check(self, source: TopicPartition, low: int, high: int) -> bool:
        position = self._positions[source]
        if low <= position <= high:
            return position < high
        where = "below the log's start (retention has taken the records)" if position < low else "above the log's end"
        raise PositionLostError(
            f"{source.topic}/{source.partition}: position {position} lies {where}; the log holds {low} to {high}. "
            "Nothing was reset: restore the records, or choose a new position on purpose"
        )


def _fill(cursor: sqlite3.Cursor, batch: RecordBatch, slot: int, position: int, limit: int) -> int:
    """Read up to ``limit`` records of a slot, from a position on, into the batch; the size of their values (bytes)."""
    base = address_of(slot, 0)
    cursor.execute(
        "SELECT address - ?1, timestamp, key, value, headers FROM records WHERE address >= ?2 AND address < ?3"
        " ORDER BY address LIMIT ?4",
        (base, base + position, base + batch.end, limit),
    )
    size = 0
    packed: list[bytes | None] = []
    while rows := cursor.fetchmany(min(_CHUNK, limit)):
        offsets, timestamps, keys, values, headers = zip(*rows, strict=True)
        batch.offsets += offsets
        batch.timestamps += timestamps
        batch.keys += keys
        batch.values += values
        packed += headers
        size += sum(map(len, filter(None, values)))
        if size > _BYTES_MAX:
            break
    batch.headers = PackedHeaders(packed, batch.offsets, f"{batch.source.topic}/{batch.source.partition}")
    # Fewer than asked for: the rest up to the end is a hole, left by compaction, that is passed over.
    if len(batch) == limit or size > _BYTES_MAX:
        batch.end = batch.offsets[-1] + 1
    cursor.close()
    return size
