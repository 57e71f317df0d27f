"""One batch of one partition into the database: position and rows in one transaction, or nothing.

The usual case is fast: rows are copied straight into the large tables. Only where the database refuses something (a row
that is there already, a text it cannot store, a number out of range) is the batch done again through staging tables;
and where it refuses something then, record by record, halved until the bad one stands alone: that record becomes a
dead letter, and the others go in.
"""

import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from stepwell.engine.ports import RecordBatch
from stepwell.engine.publish import dead_letter
from stepwell.events.topics import DEAD_LETTERS, EPISODE_EVENTS
from stepwell.exceptions import EventError, SinkFencedError
from stepwell.projections import queries
from stepwell.projections.database import Connection
from stepwell.projections.schema.generations import Homes
from stepwell.projections.sums.rollups import Derivation, counted, deltas_of
from stepwell.projections.tables import KINDS, Kind, Row, Values, reduce_rows
from stepwell.projections.writing.columns.batch import ColumnRows
from stepwell.projections.writing.columns.deltas import WALL_BOUNDS, step_deltas
from stepwell.projections.writing.copy_format import TYPE_NAMES, encode_rows
from stepwell.projections.writing.rows import Source, rows_of

__all__ = ["ROW_ERRORS", "BatchWriter", "Item", "Written", "refusal", "set_aside", "unreadable"]

ROW_ERRORS = (
    psycopg.DataError, psycopg.IntegrityError, psycopg.errors.ProgramLimitExceeded,
    struct.error, OverflowError, UnicodeEncodeError,
)  # fmt: skip
"""What the database, or the packing for it, says of a row that it will never take. Anything else is no row's fault."""
# Whose unreadable records the engine sets aside, on the dead-letter topic. Its word is the only one: a row of the
# projector's own would have other words, and which of the two stood would depend on who came first.
_JUDGED_BY_ENGINE = frozenset({EPISODE_EVENTS})
_DETAIL_MAX = 2000


@dataclass(frozen=True, slots=True)
class Item:
    """The rows of one record, which go in together or not at all. ``index``: its place in the batch."""

    index: int
    rows: Sequence[Row]


@dataclass(slots=True)
class Written:
    """What a batch came to.

    Attributes:
        rows: handed to the database (those it had already are counted too).
        refused: place in the batch and reason of each record that it would not take.
        slow: whether the batch had to be done again through staging.
    """

    rows: int
    refused: list[tuple[int, str]]
    slow: bool


class BatchWriter:
    """Writes batches through one connection, which the caller opens, watches and closes.

    Args:
        connection: in autocommit mode; staging tables are made in its session on first use.
        sink: name of the projector in ``sink_offsets``, and in its dead letters: one name for all that share the
            work, so that the rows can be made again.
        homes: where the tables live.
    """

    def __init__(self, connection: Connection, sink: str, homes: Homes) -> None:
        self._connection = connection
        self._sink = sink
        self._homes = homes
        self._queries = queries.load("projector")
        self._staged: set[str] = set()

    def write(
        self,
        batch: RecordBatch,
        items: Sequence[Item],
        columns: Sequence[ColumnRows] = (),
        one_by_one: Callable[[], Sequence[Item]] | None = None,
    ) -> Written:
        """Move the position from the batch's start to its end, and write the rows, in one transaction.

        Args:
            batch: the records.
            items: rows of records.
            columns: rows of the other records, by columns.
            one_by_one: gives the rows of all records as items; None: that is what ``items`` has.

        Raises:
            SinkFencedError: the position is not at the batch's start: another projector moved it. Nothing is written.
            GenerationMovedError: the tables live elsewhere now. Nothing is written.
            psycopg.Error: the database is away, or refuses something that is no row's fault. Nothing is written, unless
                the connection broke during COMMIT: read the position before going on.
        """
        try:
            with self._connection.transaction():
                self._homes.enter(self._connection)
                return self._write(batch, items, columns, one_by_one or (lambda: items))
        except BaseException:
            self._staged.clear()  # a staging table made in a transaction that was rolled back is gone
            raise

    def refuses(self, rows: Sequence[Row]) -> str | None:
        """Why the database would not take a record's rows; None where it would. Nothing stays written."""
        known = set(self._staged)
        try:
            with self._connection.transaction(force_rollback=True):
                self._homes.show(self._connection)
                self._put(_by_kind([Item(0, rows)]), direct=False)
        except ROW_ERRORS as error:
            return refusal(error)[0]
        finally:
            self._staged = known
        return None

    def _write(
        self,
        batch: RecordBatch,
        items: Sequence[Item],
        columns: Sequence[ColumnRows],
        one_by_one: Callable[[], Sequence[Item]],
    ) -> Written:
        self._advance(batch)
        by_kind = _by_kind(items)
        if not by_kind and not columns:
            return Written(0, [], slow=False)
        written = self._try(by_kind, columns, direct=True)
        # Of a kind with rows of both sorts, which of two with one key came first is seen record by record only.
        if written is None and columns and not any(rows.kind in by_kind for rows in columns):
            written = self._try(by_kind, columns, direct=False)
        if written is None:
            written = Written(0, [], slow=True)
            self._put_bisecting(batch, one_by_one(), written)
        return written

    def _try(self, by_kind: dict[str, list[Values]], columns: Sequence[ColumnRows], *, direct: bool) -> Written | None:
        """Put all rows at once; None where the database refuses one, and nothing stays written."""
        known = set(self._staged)
        try:
            with self._connection.transaction():
                return Written(self._put(by_kind, columns, direct=direct), [], slow=not direct)
        except ROW_ERRORS:
            self._staged = known
            return None

    def _advance(self, batch: RecordBatch) -> None:
        topic, partition = batch.source
        moved = self._connection.execute(
            self._queries["advance"],
            {
                "sink": self._sink, "topic": topic, "partition": partition, "start": batch.start, "end": batch.end,
                "records": len(batch), "logged_at": batch.timestamps[-1] if batch.timestamps else None,
            },
        ).rowcount  # fmt: skip
        if moved != 1:
            raise SinkFencedError(
                f"The position of {topic}/{partition} in the database is not {batch.start}, where this batch was read: "
                f"another projector of '{self._sink}' works on it. The batch is dropped; nothing was written."
            )

    def _put(self, by_kind: dict[str, list[Values]], columns: Sequence[ColumnRows] = (), *, direct: bool) -> int:
        count = 0
        # A generation that is being built may be for some tables only.
        by_kind = {name: rows for name, rows in by_kind.items() if self._homes.takes(KINDS[name].target)}
        columns = [each for each in columns if self._homes.takes(KINDS[each.kind].target)]
        derivation = Derivation(self._connection, self._homes.storage, by_kind)
        for name, kind in KINDS.items():
            rows = reduce_rows(kind, by_kind.get(name, ()))
            alike = [each for each in columns if each.kind == name]
            streams: list[bytes | memoryview] = [each.stream for each in alike]
            count += len(rows) + sum(map(len, alike))
            if rows:
                streams.append(encode_rows(kind.types, rows))
            if streams and direct and kind.direct:
                self._copy(sql.Identifier(kind.target), kind, streams)
                if derivation.takes(name):
                    derivation.went_in(name, deltas_of(name, rows))
                    for each in alike:
                        derivation.went_in(name, step_deltas(each, WALL_BOUNDS))
            elif streams:
                self._merge(kind, streams, derivation)
        derivation.finish()
        return count

    def _copy(self, target: sql.Identifier, kind: Kind, streams: Sequence[bytes | memoryview]) -> None:
        statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT binary)").format(target, _columns(kind))
        for stream in streams:
            with self._connection.cursor() as cursor, cursor.copy(statement) as copy:
                copy.write(stream)

    def _merge(self, kind: Kind, streams: Sequence[bytes | memoryview], derivation: Derivation) -> None:
        staging = sql.Identifier(f"staging_{kind.name}")
        if kind.name not in self._staged:
            definitions = sql.SQL(", ").join(
                sql.SQL("{} {}").format(sql.Identifier(column), sql.SQL(TYPE_NAMES[type_]))
                for column, type_ in zip(kind.columns, kind.types, strict=True)
            )
            self._connection.execute(
                sql.SQL("CREATE TEMP TABLE IF NOT EXISTS {} ({}) ON COMMIT DELETE ROWS").format(staging, definitions)
            )
            self._staged.add(kind.name)
        self._copy(staging, kind, streams)
        insert = sql.SQL("INSERT INTO {} ({columns}) SELECT {columns} FROM {} ON CONFLICT DO NOTHING").format(
            sql.Identifier(kind.target), staging, columns=_columns(kind)
        )
        if kind.merge is not None:
            self._connection.execute(self._queries[kind.merge])
        elif derivation.takes(kind.name):
            derivation.went_in(kind.name, self._connection.execute(counted(kind.name, insert)))
        else:
            self._connection.execute(insert)
        self._connection.execute(sql.SQL("DELETE FROM {}").format(staging))

    def _put_bisecting(self, batch: RecordBatch, items: Sequence[Item], result: Written) -> None:
        known = set(self._staged)
        try:
            with self._connection.transaction():
                result.rows += self._put(_by_kind(items), direct=False)
        except ROW_ERRORS as error:
            self._staged = known
            if len(items) > 1:
                middle = len(items) // 2
                self._put_bisecting(batch, items[:middle], result)
                self._put_bisecting(batch, items[middle:], result)
            else:
                self._refuse(batch, items[0], error, result)

    def _refuse(self, batch: RecordBatch, item: Item, error: Exception, result: Written) -> None:
        reason, detail = refusal(error)
        row = set_aside(batch, item.index, "refused", reason, detail, self._sink)
        with self._connection.transaction():
            result.rows += self._put({row.kind: [row.values]}, direct=False)
        result.refused.append((item.index, reason))


def unreadable(batch: RecordBatch, index: int, error: EventError, reported_by: str) -> Sequence[Row]:
    """The dead-letter row of a record that nobody can read; none where the engine tells of it on the dead-letter topic.

    Raises nothing: whatever the record holds can be stored.
    """
    if batch.source.topic in _JUDGED_BY_ENGINE:
        return ()
    return (set_aside(batch, index, "unreadable", error.reason, str(error), reported_by),)


def refusal(error: Exception) -> tuple[str, str]:
    """Short stable code and words for what a row was refused with: PostgreSQL's own name of the condition."""
    if not isinstance(error, psycopg.Error):
        return "out-of-range" if not isinstance(error, UnicodeEncodeError) else "text", str(error)
    name = re.sub(r"(?<!^)(?=[A-Z])", "-", type(error).__name__).lower()
    return name, str(error).strip()[:_DETAIL_MAX]


def set_aside(batch: RecordBatch, index: int, kind: str, reason: str, detail: str, reported_by: str) -> Row:
    """The dead-letter row of one record of a batch."""
    letter = dead_letter(batch, index, kind=kind, reason=reason, detail=detail, reported_by=reported_by)
    source = Source(DEAD_LETTERS, batch.source.partition, batch.offsets[index], batch.timestamps[index])
    return rows_of(letter, source)[0]


def _by_kind(items: Sequence[Item]) -> dict[str, list[Values]]:
    by_kind: dict[str, list[Values]] = {}
    for item in items:
        for kind, values in item.rows:
            by_kind.setdefault(kind, []).append(values)
    return by_kind


def _columns(kind: Kind) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(column) for column in kind.columns)
