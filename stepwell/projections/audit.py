"""Do the tables say what the log says? Makes every row again from the log and compares, up to where the projector is.

The rows that the log asks for go into temporary tables, and the database compares whole tables at once. What the database
refused (dead letters of kind ``refused``) is expected to be absent.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from stepwell.engine.ports import MessageLog, RecordBatch, TopicPartition
from stepwell.engine.reading import read_range
from stepwell.events.codec import Codec
from stepwell.exceptions import EventError
from stepwell.projections import queries
from stepwell.projections.copy_format import TYPE_NAMES, encode_rows
from stepwell.projections.database import Connection
from stepwell.projections.rows import PROJECTED_TOPICS, Source, rows_of
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


def audit_tables(log: MessageLog, codec: Codec, connection: Connection, sink: str = "projector") -> TableAudit:
    """Compare the tables with the log, in one snapshot of the database; writes to temporary tables only.

    Raises:
        LogUnavailableError: the log stopped answering.
    """
    audit = TableAudit(0, [])
    with connection.transaction(force_rollback=True):
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        positions = _positions(connection, sink)
        whole = True
        for kind in _kinds():
            _create(connection, kind)
        for source, end in sorted(positions.items()):
            if source.topic not in PROJECTED_TOPICS:
                continue
            start = _start(log, source)
            whole = whole and start == 0
            for batch in read_range(log, source, start, end):
                audit.rows += _stage(connection, codec, batch)
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


def _start(log: MessageLog, source: TopicPartition) -> int:
    admin = log.admin()
    try:
        return admin.watermarks(source.topic)[source].low
    finally:
        admin.close()


def _staging(kind: Kind) -> sql.Identifier:
    return sql.Identifier(f"audit_{kind.name}")


def _create(connection: Connection, kind: Kind) -> None:
    columns = [(name, TYPE_NAMES[type_]) for name, type_ in (*_ORIGIN_COLUMNS, *zip(kind.columns, kind.types, strict=True))]
    definitions = sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(type_)) for name, type_ in columns
    )
    connection.execute(
        sql.SQL("CREATE TEMP TABLE {} (audit_order bigserial, {}) ON COMMIT DROP").format(_staging(kind), definitions)
    )


def _stage(connection: Connection, codec: Codec, batch: RecordBatch) -> int:
    """The rows of one batch into the temporary tables."""
    topic, partition = batch.source
    by_kind: dict[str, list[Values]] = {}
    for offset, timestamp, value, headers in zip(
        batch.offsets, batch.timestamps, batch.values, batch.headers, strict=True
    ):
        try:
            record = codec.decode(value, headers)
        except EventError:
            continue
        for name, values in rows_of(record, Source(topic, partition, offset, timestamp)):
            by_kind.setdefault(name, []).append((topic, partition, offset, *values))
    rows = 0
    for kind in _kinds():
        found = by_kind.get(kind.name)
        if found:
            rows += len(found)
            _copy(connection, kind, found)
    return rows


def _copy(connection: Connection, kind: Kind, rows: list[Values]) -> None:
    names = (*(name for name, _ in _ORIGIN_COLUMNS), *kind.columns)
    types = (*(type_ for _, type_ in _ORIGIN_COLUMNS), *kind.types)
    statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT binary)").format(
        _staging(kind), sql.SQL(", ").join(map(sql.Identifier, names))
    )
    # A row that cannot be packed or stored was refused in the same way when it was projected; it is left out here too.
    for part in _storable_parts(connection, kind, types, rows, statement):
        with connection.cursor() as cursor, cursor.copy(statement) as copy:
            copy.write(part)
