"""Does now what is due: on TimescaleDB what its background jobs do, on plain PostgreSQL what nobody else does.

What goes is judged by when the log took it, never by when it happened: an imported recording of last year stays as long
as one of today. On hypertables whole chunks go, when all that is in them is old enough; on plain tables rows go, a
bounded number at a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from psycopg import sql

from stepwell.projections import queries
from stepwell.projections.database import Connection
from stepwell.projections.schema.files import PLAIN
from stepwell.projections.schema.generations import Homes, read_homes
from stepwell.projections.upkeep import tune
from stepwell.projections.upkeep.tuning import AGGREGATES, HYPERTABLES, Tuning

__all__ = ["Done", "upkeep"]

_PIECE_ROWS = 10_000
_WORDS = {
    "policy_refresh_continuous_aggregate": "refreshed",
    "refresh_history": "history refreshed",
    "policy_compression": "compressed",
    "retire_chunks": "retired",
}


@dataclass(frozen=True, slots=True)
class Done:
    """One thing that was done.

    Attributes:
        relation: the table or aggregate.
        what: refreshed, history refreshed, compressed or retired.
        count: chunks or rows that went; None where nothing is counted.
        unit: ``chunks`` or ``rows``; empty where nothing is counted.
    """

    relation: str
    what: str
    count: int | None = None
    unit: str = ""


def upkeep(connection: Connection, tuning: Tuning) -> Iterator[Done]:
    """Do what is due in the generations in force, one piece after the other; each tells of itself when it is done.

    Args:
        connection: in autocommit mode.
        tuning: says what goes when on plain tables. On hypertables the jobs go by what
            `stepwell.projections.upkeep.tune` has set there.

    Raises:
        MigrationError: the database has no tables yet.
        psycopg.Error: what a job or statement failed with; what was done before stays done.
    """
    homes = read_homes(connection)
    if homes.storage == PLAIN:
        yield from _retire_rows(connection, homes, tuning)
    else:
        for schema in homes.schemas:
            yield from _run_jobs(connection, schema)
    connection.execute(queries.load("tune")["note_upkeep"], {"storage": homes.storage})


def _run_jobs(connection: Connection, schema: str) -> Iterator[Done]:
    sql_ = queries.load("tune")
    for kind, relation, job_id in tune.jobs_of(connection, schema):
        since = _now(connection)
        connection.execute(sql_["run_job"], {"job_id": job_id})
        if kind == "retire_chunks":
            of = {"schema": schema, "relation": relation, "since": since}
            row = connection.execute(sql_["retired_chunks"], of).fetchone()
            yield Done(relation, "retired", row[0] if row else 0, "chunks")
        else:
            yield Done(relation, _WORDS[kind])


def _retire_rows(connection: Connection, homes: Homes, tuning: Tuning) -> Iterator[Done]:
    sql_ = queries.load("tune")
    columns = {table.name: (table.time, table.ingested) for table in HYPERTABLES}
    columns |= {aggregate.name: ("bucket", "logged_at") for aggregate in AGGREGATES}
    for relation, (time, ingested) in columns.items():
        kept = tuning.kept(relation)
        if kept is None:
            continue
        cut = _now(connection) - kept
        statement = sql.SQL(sql_["retire_rows"]).format(
            relation=sql.Identifier(relation), time=sql.Identifier(time), ingested=sql.Identifier(ingested)
        )
        count = 0
        while True:
            with connection.transaction():
                homes.enter(connection)
                of = {"relation": relation, "cut": cut, "limit": _PIECE_ROWS}
                row = connection.execute(statement, of).fetchone()
            assert row is not None
            count += row[0]
            if row[0] < _PIECE_ROWS:
                break
        yield Done(relation, "retired", count, "rows")


def _now(connection: Connection) -> datetime:
    row = connection.execute("SELECT now()").fetchone()
    assert row is not None
    at: datetime = row[0]
    return at
