"""What retention took from the old tables goes from the new ones, too; the sums over it stay.

The log may still tell of steps that the tables let go long ago. They are filled in like all others, and summed; then
what retention took away is taken away again. Where the log no longer tells of them either, their sums are copied.
"""

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime

from psycopg import sql

from stepwell.projections import queries
from stepwell.projections.database import Connection
from stepwell.projections.rebuild.carry_over import COUNTED_BY, SUMMED_FROM, Lows
from stepwell.projections.sums.rollups import ROLLUPS, UNITS, Rollup
from stepwell.projections.upkeep.tuning import AGGREGATES, LEVELS

__all__ = ["copy_lost_sums", "retire_again", "sum_up"]

_TIMES = {
    "steps": "occurred_at", "actions": "occurred_at", "telemetry_points": "sampled_at", "spans": "started_at",
    "verdict_changes": "at", "dead_letters": "logged_at",
}  # fmt: skip
_SUMS = {f"{rollup.name}_{unit}" for rollup in ROLLUPS.values() for unit in UNITS.values()}

Range = tuple[str, datetime | str, datetime | str, datetime]
"""Relation, start and end of its own time, and before when all that went was logged."""


def sum_up(connection: Connection, new: str, relations: Collection[str]) -> None:
    """Sum the rows of new hypertables, unless that was done before: what then was retired is not there any more.

    Outside of transactions, each aggregate in its own.
    """
    sql_ = queries.load("rebuild")
    if _retirements(connection, new):
        return
    for aggregate in AGGREGATES:  # each after what it is summed from
        if aggregate.name not in relations:
            continue
        relation = sql.Identifier(new, aggregate.name).as_string(connection)
        # Newer than that, sums are made when they are asked: what is summed already hides rows that still come.
        values = {"aggregate": relation, "until": LEVELS[aggregate.level].until}
        row = connection.execute(sql_["refresh_of"], values).fetchone()
        assert row is not None
        connection.execute(row[0])


def retire_again(connection: Connection, old: str, new: str, tables: Collection[str], *, hypertables: bool) -> None:
    """Take from the new tables what retention took from the old ones, and note it; within a transaction."""
    # The extension's functions are found wherever it was put.
    connection.execute(queries.load("generations")["file_path"], {"schema": new})
    for relation, start, end, before in _retirements(connection, old):
        if relation not in tables:
            continue
        if hypertables:
            _drop_chunks(connection, new, relation, start, end, before)
        if relation in _TIMES or not hypertables:
            _delete(connection, old, new, relation, start, end, before)
    queries_ = queries.load("rebuild")
    connection.execute(queries_["copy_retirements"], {"old": old, "new": new, "relations": list(tables)})


def copy_lost_sums(connection: Connection, old: str, new: str, lows: Lows) -> dict[str, int]:
    """Copy the sums of continuous aggregates over what neither the log nor the tables have any more; within a
    transaction. How many of each.
    """
    copied: dict[str, int] = {}
    hidden = {name: sql.Identifier(schema, table) for name, schema, table in _aggregates(connection, new)}
    for rollup in ROLLUPS.values():
        if rollup.name not in COUNTED_BY or SUMMED_FROM[rollup.name] not in lows:
            continue
        gone = [(start, end) for start, end in _ranges(connection, old, rollup)]
        for unit in UNITS.values():
            name = f"{rollup.name}_{unit}"
            if name in hidden and gone:
                copied[name] = _copy_sums(connection, rollup, sql.Identifier(old, name), hidden[name], gone)
    return copied


def _copy_sums(
    connection: Connection, rollup: Rollup, old: sql.Identifier, new: sql.Identifier,
    gone: Sequence[tuple[datetime | str, datetime | str]],
) -> int:  # fmt: skip
    keys, counter = ("bucket", *rollup.dimensions), sql.Identifier(COUNTED_BY[rollup.name])
    values = {"starts": [start for start, _ in gone], "ends": [end for _, end in gone]}
    names = {
        "old": old, "new": new, "counter": counter,
        "columns": sql.SQL(", ").join(map(sql.Identifier, (*keys, *rollup.measures))),
        "same": sql.SQL(" AND ").join(
            sql.SQL("o.{0} IS NOT DISTINCT FROM n.{0}").format(sql.Identifier(key)) for key in keys
        ),
    }  # fmt: skip
    connection.execute(sql.SQL(queries.load("rebuild")["drop_lesser_sums"]).format(**names), values)
    return connection.execute(sql.SQL(queries.load("rebuild")["copy_sums"]).format(**names), values).rowcount


def _ranges(connection: Connection, old: str, rollup: Rollup) -> Iterator[tuple[datetime | str, datetime | str]]:
    of = {rollup.kind, *(f"{rollup.name}_{unit}" for unit in UNITS.values())}
    for relation, start, end, _ in _retirements(connection, old):
        if relation in of:
            yield start, end


def _aggregates(connection: Connection, schema: str) -> list[tuple[str, str, str]]:
    return connection.execute(queries.load("rebuild")["aggregates"], {"schema": schema}).fetchall()


def _retirements(connection: Connection, schema: str) -> list[Range]:
    return connection.execute(queries.load("rebuild")["retirements"], {"schema": schema}).fetchall()


def _drop_chunks(
    connection: Connection, new: str, relation: str, start: datetime | str, end: datetime | str, before: datetime
) -> None:
    """The cheap way, for chunks that go whole."""
    table = sql.Identifier(new, relation)
    values = {"relation": table.as_string(connection), "start": start, "end": end, "before": before}
    left = sql.SQL(queries.load("rebuild")["logged_later"]).format(
        table=table, time=sql.Identifier(_TIMES.get(relation, "bucket"))
    )
    if connection.execute(left, values).fetchone() == (False,):
        connection.execute(queries.load("rebuild")["drop_chunks"], values)


def _delete(
    connection: Connection, old: str, new: str, relation: str, start: datetime | str, end: datetime | str,
    before: datetime,
) -> None:  # fmt: skip
    names = {
        "old": sql.Identifier(old, relation), "new": sql.Identifier(new, relation),
        "time": sql.Identifier(_TIMES.get(relation, "bucket")),
    }  # fmt: skip
    # A dead letter is new in the new table. That it was retired is known by its not being in the old one.
    query = "delete_retired_letters" if relation == "dead_letters" else "delete_retired"
    statement = sql.SQL(queries.load("rebuild")[query]).format(**names)
    connection.execute(statement, {"start": start, "end": end, "before": before})
