"""Do the tables say what the log says? Makes every row again from the log and compares, up to where the projector is.

The rows that the log asks for go into temporary tables, and the database compares whole tables at once, both ways. A
record that it is said to have refused is offered to it once more: it must be refused again, and then has no rows.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from stepwell.engine.ports import MessageLog, RecordBatch, TopicPartition
from stepwell.engine.reading import read_range, watermarks_of
from stepwell.events.codec import Codec
from stepwell.exceptions import EventError
from stepwell.projections import queries
from stepwell.projections.audit.expected import Expected, expectations, staging_of
from stepwell.projections.audit.sums import wrong_sums
from stepwell.projections.database import Connection
from stepwell.projections.schema.generations import Homes, read_homes
from stepwell.projections.schema.migrate import require_current
from stepwell.projections.tables import KINDS, Kind, Row, Values
from stepwell.projections.upkeep.tuning import HYPERTABLES
from stepwell.projections.writing.copy_format import TYPE_NAMES, encode_rows
from stepwell.projections.writing.projector import GROUP
from stepwell.projections.writing.rows import PROJECTED_TOPICS, project
from stepwell.projections.writing.writer import ROW_ERRORS, BatchWriter, set_aside, unreadable

__all__ = ["Difference", "TableAudit", "audit_tables"]

_ORIGIN_COLUMNS = (("audit_topic", "text"), ("audit_partition", "int"), ("audit_offset", "long"))

_REFUSED = (
    "SELECT source_topic, source_partition, source_offset, detail FROM stepwell.dead_letters WHERE kind = 'refused'"
)

Refused = dict[tuple[str, int, int], str]
"""Places of the records that the database is said to have refused, each with the detail that stands there."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One row that is not as the log says.

    Attributes:
        table: the table.
        key: the row's key columns and their values.
        what: ``missing``, ``unexpected``, or ``differs`` with the columns, each with what the log says and what stands.
        where: the record that the row comes from; empty for an unexpected row.
    """

    table: str
    key: dict[str, Any]
    what: str
    where: str

    def __str__(self) -> str:
        key = ", ".join(f"{name}={value}" for name, value in self.key.items())
        return f"table {self.table}, row ({key}): {self.what}" + (f" (record {self.where})" if self.where else "")


@dataclass(slots=True)
class TableAudit:
    """What was compared.

    Attributes:
        rows: rows made again from the log.
        differences: at most one a table: its first.
    """

    rows: int
    differences: list[Difference]


def audit_tables(log: MessageLog, codec: Codec, connection: Connection, sink: str = GROUP) -> TableAudit:
    """Compare the tables with the log, in one snapshot of the database, and leave nothing in it.

    Raises:
        MigrationError: the schema is not this version's, or there are no tables yet.
        LogUnavailableError: the log stopped answering.
    """
    server = connection.info
    audit = TableAudit(0, [])
    with connection.transaction(force_rollback=True):
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        require_current(f"postgresql://{server.user}@{server.host}:{server.port}/{server.dbname}", connection)
        homes = read_homes(connection)
        homes.show(connection)
        positions = _positions(connection, sink)
        maker = _Maker(codec, connection, sink, homes)
        cut: set[str] = set()
        for source, end in sorted(positions.items()):
            if source.topic not in PROJECTED_TOPICS:
                continue
            start = watermarks_of(log, source.topic)[source].low
            if start > 0:
                cut.add(source.topic)
            for batch in read_range(log, source, start, end):
                audit.rows += maker.stage(batch)
        for expected in expectations(cut):
            difference = _compare(connection, expected, cut)
            if difference is not None:
                audit.differences.append(difference)
        wrong = {difference.table for difference in audit.differences}
        for found in wrong_sums(connection, homes.storage, wrong):
            audit.differences.append(Difference(found.table, found.key, found.what, ""))
    return audit


def _positions(connection: Connection, sink: str) -> dict[TopicPartition, int]:
    rows = connection.execute(queries.load("projector")["positions"], {"sink": sink}).fetchall()
    return {TopicPartition(topic, partition): offset for topic, partition, offset in rows}


# --- the rows that the log asks for ---


class _Maker:
    """Makes rows from records, as the projector does, and puts them into the staging tables."""

    def __init__(self, codec: Codec, connection: Connection, sink: str, homes: Homes) -> None:
        self._codec = codec
        self._connection = connection
        self._sink = sink
        self._writer = BatchWriter(connection, sink, homes)
        self._refused: Refused = {tuple(place): detail for *place, detail in connection.execute(_REFUSED)}
        for kind in KINDS.values():
            _create(connection, kind)

    def stage(self, batch: RecordBatch) -> int:
        """The rows of one batch into the staging tables; how many."""
        records = list(enumerate(self._rows(batch, index) for index in range(len(batch))))
        named = {index for index, offset in enumerate(batch.offsets) if (*batch.source, offset) in self._refused}
        try:
            return self._put(self._taken(batch, records, named))
        except ROW_ERRORS:
            # The database refuses what no dead letter tells of; which record is it?
            return self._put(self._taken(batch, records, range(len(batch))))

    def _rows(self, batch: RecordBatch, index: int) -> Sequence[Row]:
        try:
            return project(self._codec, batch, index)
        except EventError as error:
            return unreadable(batch, index, error, self._sink)

    def _taken(
        self, batch: RecordBatch, records: Iterable[tuple[int, Sequence[Row]]], suspects: Collection[int]
    ) -> dict[str, list[Values]]:
        """The rows by kind, with their origin; of a suspect that the database refuses, the dead letter alone."""
        by_kind: dict[str, list[Values]] = {}
        topic, partition = batch.source
        for index, found in records:
            rows = found
            reason = self._writer.refuses(rows) if rows and index in suspects else None
            if reason is not None:
                # The words differ between servers, languages and the names of chunks; the reason does not.
                detail = self._refused.get((topic, partition, batch.offsets[index]), "")
                letter = set_aside(batch, index, "refused", reason, "", self._sink)
                rows = (_with_detail(letter, detail),)
            for name, values in rows:
                by_kind.setdefault(name, []).append((topic, partition, batch.offsets[index], *values))
        return by_kind

    def _put(self, by_kind: dict[str, list[Values]]) -> int:
        with self._connection.transaction():
            for name, rows in by_kind.items():
                _copy(self._connection, KINDS[name], rows)
        return sum(map(len, by_kind.values()))


def _with_detail(letter: Row, detail: str) -> Row:
    at = KINDS["dead_letters"].columns.index("detail")
    return letter._replace(values=(*letter.values[:at], detail, *letter.values[at + 1 :]))


def _create(connection: Connection, kind: Kind) -> None:
    columns = [
        (name, TYPE_NAMES[type_]) for name, type_ in (*_ORIGIN_COLUMNS, *zip(kind.columns, kind.types, strict=True))
    ]
    definitions = sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(type_)) for name, type_ in columns
    )
    connection.execute(
        sql.SQL("CREATE TEMP TABLE {} (audit_order bigserial, {}) ON COMMIT DROP").format(
            sql.Identifier(staging_of(kind.name)), definitions
        )
    )


def _copy(connection: Connection, kind: Kind, rows: list[Values]) -> None:
    names = (*(name for name, _ in _ORIGIN_COLUMNS), *kind.columns)
    types = (*(type_ for _, type_ in _ORIGIN_COLUMNS), *kind.types)
    statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT binary)").format(
        sql.Identifier(staging_of(kind.name)), _list(names)
    )
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        copy.write(encode_rows(types, rows))


# --- the comparison ---


def _compare(connection: Connection, expected: Expected, cut: set[str]) -> Difference | None:
    """The first row in the order of the log that is not as it should be; else a row that should not be there."""
    names = {
        "candidates": expected.candidates,
        "target": sql.Identifier("stepwell", expected.table),
        "key": _list(expected.key),
        "columns": _list(expected.columns),
    }
    row = connection.execute(sql.SQL(_FIRST_WRONG).format(retired=_not_retired(expected.table), **names)).fetchone()
    if row is not None:
        return _describe(connection, expected, row)
    # Where the log no longer has its beginning, rows without a record are what is to be expected.
    if not cut.isdisjoint(expected.sources):
        return None
    # Of a topic without its beginning, the projector's own dead letters may be about what is gone.
    about = sql.SQL("AND source_topic <> ALL({})").format(sql.Literal(sorted(cut)))
    letters = about if expected.table == "dead_letters" else sql.SQL("")
    extra = connection.execute(sql.SQL(_FIRST_UNEXPECTED).format(letters=letters, **names)).fetchone()
    if extra is None:
        return None
    return Difference(expected.table, _key(expected, extra), "stands in the table, but no record asks for it", "")


# NULLs and NaNs count as equal to themselves, as INTERSECT has it.
_FIRST_WRONG = """
WITH candidate AS MATERIALIZED ({candidates}), right_one AS (
    SELECT {columns} FROM candidate INTERSECT SELECT {columns} FROM {target}
)
SELECT audit_topic, audit_partition, audit_offset, {columns}
FROM candidate LEFT JOIN (SELECT DISTINCT {key}, true AS found FROM right_one) AS r USING ({key})
WHERE r.found IS NULL {retired} ORDER BY audit_topic, audit_partition, audit_offset, audit_order LIMIT 1
"""
_FIRST_UNEXPECTED = """
WITH candidate AS MATERIALIZED ({candidates})
SELECT {columns} FROM {target} LEFT JOIN (SELECT DISTINCT {key}, true AS found FROM candidate) AS c USING ({key})
WHERE c.found IS NULL {letters} ORDER BY {key} LIMIT 1
"""


def _not_retired(table: str) -> sql.Composed:
    """What retention has taken away is missing rightly."""
    kept = {each.name: each for each in HYPERTABLES}.get(table)
    if kept is None:
        return sql.SQL("").format()
    return sql.SQL(_NOT_RETIRED).format(table=sql.Literal(table), time=sql.Identifier(kept.time))


_NOT_RETIRED = """
AND NOT EXISTS (
    SELECT FROM stepwell.retirements x JOIN stepwell.homes h ON h.relation = x.relation AND h.schema = x.schema
    WHERE x.relation = {table} AND candidate.{time} >= x.range_start AND candidate.{time} < x.range_end
      AND candidate.logged_at < x.logged_before)
"""


def _describe(connection: Connection, expected: Expected, row: Values) -> Difference:
    topic, partition, offset = row[:3]
    wanted_row = row[3:]
    key = _key(expected, wanted_row)
    condition = sql.SQL(" AND ").join(
        sql.SQL("{} = {}").format(sql.Identifier(name), sql.Placeholder(name)) for name in key
    )
    found = connection.execute(
        sql.SQL("SELECT {} FROM {} WHERE {} LIMIT 1").format(
            _list(expected.columns), sql.Identifier("stepwell", expected.table), condition
        ),
        key,
    ).fetchone()
    where = f"{topic}/{partition} offset {offset}"
    if found is None:
        return Difference(expected.table, key, "missing", where)
    differing = [
        f"{name} is {_brief(there)}, the log says {_brief(wanted)}"
        for name, wanted, there in zip(expected.columns, wanted_row, found, strict=True)
        if repr(wanted) != repr(there)
    ]
    return Difference(expected.table, key, "; ".join(differing) or "differs", where)


def _key(expected: Expected, values: Values) -> dict[str, Any]:
    return {name: values[expected.columns.index(name)] for name in expected.key}


def _list(names: Iterable[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"
