"""Do the changes of verdicts, and the sums that the projector keeps, say what counting the rows again says?"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from stepwell.projections import queries
from stepwell.projections.database import Connection
from stepwell.projections.schema.files import PLAIN
from stepwell.projections.sums.rollups import ROLLUPS, UNITS, Rollup

__all__ = ["WrongSum", "wrong_sums"]


@dataclass(frozen=True, slots=True)
class WrongSum:
    """The first row of a table that is not what counting gives: the table, the row's key, and both figures."""

    table: str
    key: dict[str, Any]
    what: str


# What a family of sums is made of; where that is wrong itself, its sums are wrong with it.
_MADE_OF = {
    "steps": {"steps", "episodes", "episode_attempts"},
    "verdict_changes": {"verdicts", "verdict_changes"},
    "telemetry_points": {"telemetry_points"},
}


def wrong_sums(connection: Connection, storage: str, wrong: Collection[str]) -> Iterator[WrongSum]:
    """The first difference of each table that has one. The tables' bare names must be understood.

    Args:
        connection: in a transaction.
        storage: ``hypertables`` or ``plain``.
        wrong: tables that are known to be wrong; what is summed from them is not looked at.

    Sums over times of which retention took rows away cannot be counted again, and are not looked at; nor are those of
    continuous aggregates where the database knows that it has something to refresh.
    """
    wrong = set(wrong)
    row = None if "verdicts" in wrong else connection.execute(queries.load("rollups")["wrong_change"]).fetchone()
    if row is not None:
        wrong.add("verdict_changes")
        key = dict(zip(("episode_id", "attempt", "revision"), row, strict=False))
        yield WrongSum("verdict_changes", key, f"signs add up to {row[3]}, by the verdicts it should be {row[4]}")
    for rollup in ROLLUPS.values():
        if not wrong.isdisjoint(_MADE_OF[rollup.kind]):
            continue
        below = [rollup.kind]
        for unit, units in UNITS.items():
            table = f"{rollup.name}_{units}"
            below.append(table)
            if storage == PLAIN:
                unknown = [_times(connection, "retired", [rollup.kind, table])]
            else:
                unknown = [_times(connection, query, below) for query in ("retired", "unsummed")]
            yield from _wrong(connection, rollup, unit, table, unknown, partitioned=storage == PLAIN)


def _times(connection: Connection, query: str, relations: list[str]) -> str:
    """A multirange as text."""
    row = connection.execute(queries.load("rollups")[query], {"relations": relations}).fetchone()
    assert row is not None
    return str(row[0])


def _wrong(
    connection: Connection, rollup: Rollup, unit: str, table: str, unknown: list[str], *, partitioned: bool
) -> Iterator[WrongSum]:
    # The order in which doubles were added is not known any more.
    measures = [name for name in rollup.measures if name not in ("logged_at", "value_sum")]
    key = ("bucket", *rollup.dimensions, *(["source_partition"] if partitioned else []))
    statement = sql.SQL(_FIRST_WRONG).format(
        told=sql.SQL(queries.load("rollups")[f"every_{rollup.name}"]),
        unit=sql.Literal(unit),
        length=sql.Literal(f"1 {unit}"),
        unknown=sql.SQL(" + ").join(sql.SQL("{}::tstzmultirange").format(sql.Literal(times)) for times in unknown),
        table=sql.Identifier(table),
        keys=sql.SQL(", ").join(map(sql.Identifier, key[1:])),
        counted=sql.SQL(", ").join(sql.SQL(f"{rollup.over(name)} AS {name}") for name in measures),
        measures=sql.SQL(", ").join(map(sql.Identifier, measures)),
        count=sql.Identifier(measures[0]),
    )
    row = connection.execute(statement).fetchone()
    if row is not None:
        side, *values = row
        figures = ", ".join(f"{name} {value}" for name, value in zip(measures, values[len(key) :], strict=True))
        what = (
            f"counting the rows gives {figures}" if side == "counted" else f"{figures} stands, counting says otherwise"
        )
        yield WrongSum(table, dict(zip(key, values, strict=False)), what)


_FIRST_WRONG = """
WITH unknown AS MATERIALIZED (SELECT {unknown} AS times), told AS MATERIALIZED ({told}), counted_all AS (
    SELECT date_trunc({unit}, at, 'UTC') AS bucket, {keys}, {counted} FROM told GROUP BY bucket, {keys}
), counted AS (
    SELECT c.* FROM counted_all c, unknown WHERE NOT times && tstzrange(bucket, bucket + {length}::interval)
), kept AS (
    SELECT bucket, {keys}, {measures} FROM {table}, unknown
    WHERE NOT times && tstzrange(bucket, bucket + {length}::interval)
)
(SELECT 'counted', * FROM (SELECT * FROM counted WHERE {count} <> 0 EXCEPT SELECT * FROM kept) AS missing LIMIT 1)
UNION ALL
(SELECT 'kept', * FROM (SELECT * FROM kept WHERE {count} <> 0 EXCEPT SELECT * FROM counted) AS extra LIMIT 1)
LIMIT 1
"""
