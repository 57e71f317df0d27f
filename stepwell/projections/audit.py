"""Do the tables say what the log says? Makes every row again from the log and compares, up to where the projector is.

The rows that the log asks for go into temporary tables, and the database compares whole tables at once. What it refused
(dead letters of kind ``refused``) is expected to be absent.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from stepwell.engine.ports import MessageLog, RecordBatch, TopicPartition
from stepwell.engine.reading import read_range, watermarks_of
from stepwell.events.codec import Codec
from stepwell.exceptions import EventError
from stepwell.projections import queries
from stepwell.projections.copy_format import TYPE_NAMES, encode_rows
from stepwell.projections.database import Connection
from stepwell.projections.migrate import require_current
from stepwell.projections.projector import GROUP
from stepwell.projections.rows import PROJECTED_TOPICS, project
from stepwell.projections.tables import KINDS, Kind, Values

__all__ = ["Difference", "TableAudit", "audit_tables"]

# Rows that one record determines alone. The first record of a key in the log stands, as in the projector.
FIRST_STANDS = (
    "episodes", "steps", "actions", "telemetry", "verdicts", "failure_patterns", "retrain_requests", "retrain_answers",
    "dead_letters",
)  # fmt: skip
# Rows of which the last record stands.
LAST_STANDS = ("attempt_status",)
# Tables that hold rows from other sources as well: the projector's own dead letters, columns of other kinds.
OPEN_TABLES = ("dead_letters", "attempt_status")

_ORIGIN_COLUMNS = (("audit_topic", "text"), ("audit_partition", "int"), ("audit_offset", "long"))

_REFUSED = "SELECT source_topic, source_partition, source_offset FROM stepwell.dead_letters WHERE kind = 'refused'"


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
    """Compare the tables with the log, in one snapshot of the database; writes to temporary tables only.

    Raises:
        MigrationError: the schema is not this version's, or there are no tables yet.
        LogUnavailableError: the log stopped answering.
    """
    server = connection.info
    require_current(f"postgresql://{server.user}@{server.host}:{server.port}/{server.dbname}", connection)
    audit = TableAudit(0, [])
    with connection.transaction(force_rollback=True):
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        positions = _positions(connection, sink)
        refused = set(connection.execute(_REFUSED).fetchall())
        whole = True
        for kind in _kinds():
            _create(connection, kind)
        for source, end in sorted(positions.items()):
            if source.topic not in PROJECTED_TOPICS:
                continue
            start = watermarks_of(log, source.topic)[source].low
            whole = whole and start == 0
            for batch in read_range(log, source, start, end):
                audit.rows += _stage(connection, codec, batch, refused)
        for kind in _kinds():
            # Where the log no longer has its beginning, rows without a record are what is to be expected.
            difference = _compare(connection, kind, both_ways=whole and kind.name not in OPEN_TABLES)
            if difference is not None:
                audit.differences.append(difference)
    return audit


def _kinds() -> Iterator[Kind]:
    return (KINDS[name] for name in (*FIRST_STANDS, *LAST_STANDS))


def _positions(connection: Connection, sink: str) -> dict[TopicPartition, int]:
    rows = connection.execute(queries.load("projector")["positions"], {"sink": sink}).fetchall()
    return {TopicPartition(topic, partition): offset for topic, partition, offset in rows}


def _staging(kind: Kind) -> sql.Identifier:
    return sql.Identifier(f"audit_{kind.name}")


def _create(connection: Connection, kind: Kind) -> None:
    columns = [
        (name, TYPE_NAMES[type_]) for name, type_ in (*_ORIGIN_COLUMNS, *zip(kind.columns, kind.types, strict=True))
    ]
    definitions = sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(type_)) for name, type_ in columns
    )
    connection.execute(
        sql.SQL("CREATE TEMP TABLE {} (audit_order bigserial, {}) ON COMMIT DROP").format(_staging(kind), definitions)
    )


def _stage(connection: Connection, codec: Codec, batch: RecordBatch, refused: set[tuple[str, int, int]]) -> int:
    """The rows of one batch into the temporary tables; how many."""
    topic, partition = batch.source
    by_kind: dict[str, list[Values]] = {}
    for index, offset in enumerate(batch.offsets):
        if (topic, partition, offset) in refused:
            continue
        try:
            rows_found = project(codec, batch, index)
        except EventError:
            continue
        for name, values in rows_found:
            by_kind.setdefault(name, []).append((topic, partition, offset, *values))
    rows = 0
    for kind in _kinds():
        found = by_kind.get(kind.name, [])
        rows += len(found)
        if found:
            _copy(connection, kind, found)
    return rows


def _copy(connection: Connection, kind: Kind, rows: list[Values]) -> None:
    names = (*(name for name, _ in _ORIGIN_COLUMNS), *kind.columns)
    types = (*(type_ for _, type_ in _ORIGIN_COLUMNS), *kind.types)
    statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT binary)").format(
        _staging(kind), sql.SQL(", ").join(map(sql.Identifier, names))
    )
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        copy.write(encode_rows(types, rows))


def _compare(connection: Connection, kind: Kind, *, both_ways: bool) -> Difference | None:
    """The first row in the order of the log that is not as it should be; else a row that should not be there."""
    names = {
        "staging": _staging(kind),
        "target": sql.Identifier("stepwell", kind.target),
        "key": _list(kind.columns[position] for position in kind.key),
        "columns": _list(kind.columns),
        "direction": sql.SQL("DESC" if kind.name in LAST_STANDS else "ASC"),
        "same_key": _same_key(kind, "t", "e"),
    }
    row = connection.execute(sql.SQL(_FIRST_WRONG).format(**names)).fetchone()
    if row is not None:
        return _describe(connection, kind, row)
    if both_ways:
        extra = connection.execute(sql.SQL(_FIRST_UNEXPECTED).format(**names)).fetchone()
        if extra is not None:
            return Difference(kind.target, _key(kind, extra), "stands in the table, but no record asks for it", "")
    return None


# NULLs and NaNs count as equal to themselves, as IS DISTINCT FROM and row comparison have it.
_FIRST_WRONG = """
WITH expected AS (
    SELECT DISTINCT ON ({key}) audit_topic, audit_partition, audit_offset, audit_order, {columns}
    FROM {staging} ORDER BY {key}, audit_order {direction}
), wrong AS (
    SELECT {columns} FROM expected EXCEPT SELECT {columns} FROM {target}
)
SELECT e.audit_topic, e.audit_partition, e.audit_offset, w.*
FROM wrong w JOIN expected e USING ({key}) ORDER BY e.audit_order LIMIT 1
"""
_FIRST_UNEXPECTED = """
SELECT {columns} FROM {target} AS t
WHERE NOT EXISTS (SELECT FROM {staging} AS e WHERE {same_key})
ORDER BY {key} LIMIT 1
"""


def _describe(connection: Connection, kind: Kind, row: Values) -> Difference:
    topic, partition, offset = row[:3]
    expected = row[3:]
    key = _key(kind, expected)
    condition = sql.SQL(" AND ").join(
        sql.SQL("{} = {}").format(sql.Identifier(name), sql.Placeholder(name)) for name in key
    )
    found = connection.execute(
        sql.SQL("SELECT {} FROM {} WHERE {} LIMIT 1").format(
            _list(kind.columns), sql.Identifier("stepwell", kind.target), condition
        ),
        key,
    ).fetchone()
    where = f"{topic}/{partition} offset {offset}"
    if found is None:
        return Difference(kind.target, key, "missing", where)
    differing = [
        f"{name} is {_brief(there)}, the log says {_brief(wanted)}"
        for name, wanted, there in zip(kind.columns, expected, found, strict=True)
        if repr(wanted) != repr(there)
    ]
    return Difference(kind.target, key, "; ".join(differing) or "differs", where)


def _key(kind: Kind, values: Values) -> dict[str, Any]:
    return {kind.columns[position]: values[position] for position in kind.key}


def _same_key(kind: Kind, one: str, other: str) -> sql.Composed:
    return sql.SQL(" AND ").join(
        sql.SQL("{} = {}").format(sql.Identifier(one, name), sql.Identifier(other, name))
        for name in (kind.columns[position] for position in kind.key)
    )


def _list(names: Iterable[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"
