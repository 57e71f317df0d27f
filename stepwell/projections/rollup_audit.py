"""Do the changes of verdicts, and the sums that the projector keeps, say what counting the rows again says?"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from psycopg import sql

from stepwell.projections import queries
from stepwell.projections.database import Connection
from stepwell.projections.rollups import ROLLUPS, UNITS, Rollup
from stepwell.projections.schema_files import PLAIN

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

    Sums are looked at on plain tables, where the projector keeps them; continuous aggregates are the database's, which
    may still have something to refresh. Sums over rows some of which retention took away cannot be counted again.
    """
    wrong = set(wrong)
    row = None if "verdicts" in wrong else connection.execute(queries.load("rollups")["wrong_change"]).fetchone()
    if row is not None:
        wrong.add("verdict_changes")
        key = dict(zip(("episode_id", "attempt", "revision"), row, strict=False))
        yield WrongSum("verdict_changes", key, f"signs add up to {row[3]}, by the verdicts it should be {row[4]}")
    if storage != PLAIN:
        return
    retired = {name for (name,) in connection.execute(queries.load("rollups")["retired"])}
    for rollup in ROLLUPS.values():
        if not wrong.isdisjoint(_MADE_OF[rollup.kind]):
            continue
        for unit, units in UNITS.items():
            table = f"{rollup.name}_{units}"
            if retired.isdisjoint({rollup.kind, table}):
                yield from _wrong(connection, rollup, unit, table)


def _wrong(connection: Connection, rollup: Rollup, unit: str, table: str) -> Iterator[WrongSum]:
    # The order in which doubles were added is not known any more.
    measures = [name for name in rollup.measures if name not in ("logged_at", "value_sum")]
    key = ("bucket", *rollup.dimensions, "source_partition")
    statement = sql.SQL(_FIRST_WRONG).format(
        told=sql.SQL(queries.load("rollups")[f"every_{rollup.name}"]),
        unit=sql.Literal(unit),
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
WITH told AS MATERIALIZED ({told}), counted AS (
    SELECT date_trunc({unit}, at, 'UTC') AS bucket, {keys}, {counted} FROM told GROUP BY bucket, {keys}
), kept AS (
    SELECT bucket, {keys}, {measures} FROM {table}
)
(SELECT 'counted', * FROM (SELECT * FROM counted WHERE {count} <> 0 EXCEPT SELECT * FROM kept) AS missing LIMIT 1)
UNION ALL
(SELECT 'kept', * FROM (SELECT * FROM kept WHERE {count} <> 0 EXCEPT SELECT * FROM counted) AS extra LIMIT 1)
LIMIT 1
"""
