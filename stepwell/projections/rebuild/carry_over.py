"""Takes over from the old tables what the log no longer tells.

A topic whose beginning is gone cannot give back what came from there. **Before** the new tables are filled, rows that
name a place in the log before its beginning are copied; and, of tables whose rows several records make, all rows, onto
which the records that are left are then merged, as they once were. **After** that, rows whose key no record has told.

On plain tables, the days of rows that were copied are then summed anew from the new tables: nobody has counted them.
Only of days from which retention took rows away the old sums are taken over, where they say more: they alone know.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from psycopg import sql

from stepwell.engine.ports import MessageLog
from stepwell.engine.reading import watermarks_of
from stepwell.events.topics import (
    DEAD_LETTERS,
    EPISODE_EVENTS,
    EPISODE_SNAPSHOTS,
    FAILURE_PATTERNS,
    POLICY_EVENTS,
    RETRAIN_REQUESTS,
    RETRAIN_RESULTS,
    RULE_SETS,
    TELEMETRY,
)
from stepwell.projections import queries
from stepwell.projections.database import Connection
from stepwell.projections.schema.generations import Homes
from stepwell.projections.sums.rollups import ROLLUPS, UNITS, Rollup, recount
from stepwell.projections.upkeep.tuning import HYPERTABLES

__all__ = [
    "COUNTED_BY",
    "SUMMED_FROM",
    "Lows",
    "carry_after",
    "carry_before",
    "carry_sums",
    "columns_of",
    "lows_of",
    "recount_carried",
    "recount_outcomes",
]

Lows = Mapping[str, Mapping[int, int]]
"""Where the log begins now: topic -> partition -> first offset kept; only topics whose beginning is gone."""

_BY_PLACE = {
    "episodes": EPISODE_EVENTS,
    "steps": EPISODE_EVENTS,
    "actions": EPISODE_EVENTS,
    "verdicts": POLICY_EVENTS,
    "verdict_changes": POLICY_EVENTS,
    "expected_verdicts": POLICY_EVENTS,
    "retrain_acknowledgements": POLICY_EVENTS,
    "retrain_mutes": POLICY_EVENTS,
    "retrain_answers": RETRAIN_RESULTS,
    "rule_sets": RULE_SETS,
    "telemetry_points": TELEMETRY,
    "spans": TELEMETRY,
}
"""Tables that name the place in the log that each row comes from, with the topic."""
_PLACES = {"verdicts": ("verdict_partition", "verdict_offset")}
"""Where that place does not stand in ``source_partition`` and ``source_offset``."""
_PUT_TOGETHER = {
    "runs": (EPISODE_EVENTS,),
    "episode_attempts": (EPISODE_EVENTS, EPISODE_SNAPSHOTS),
    "telemetry_series": (TELEMETRY,),
    "worker_status": (TELEMETRY,),
    "worker_partitions": (TELEMETRY,),
}
"""Tables whose rows several records make, with the topics that tell of them."""
_BY_KEY = {
    "failure_patterns": (FAILURE_PATTERNS,),
    "retrain_requests": (RETRAIN_REQUESTS,),
    "retrain_closings": (RETRAIN_REQUESTS,),
}
"""Tables whose rows name no place, with the topics that feed them."""
SUMMED_FROM = {"step": EPISODE_EVENTS, "outcome": POLICY_EVENTS, "telemetry": TELEMETRY}
"""Each family of sums, with the topic that feeds what is summed."""
_TIMES = {table.name: table.time for table in HYPERTABLES}
COUNTED_BY = {"step": "steps", "telemetry": "points"}
"""Sums that only grow, with what says how much is in one."""


def lows_of(log: MessageLog, topics: Collection[str]) -> dict[str, dict[int, int]]:
    """Topics whose beginning is gone, with where each partition begins now.

    Raises:
        LogUnavailableError: the log does not answer.
    """
    marks = {topic: watermarks_of(log, topic) for topic in topics}
    return {
        topic: {source.partition: mark.low for source, mark in found.items()}
        for topic, found in marks.items()
        if any(mark.low > 0 for mark in found.values())
    }


def carry_before(connection: Connection, old: str, new: str, tables: Collection[str], lows: Lows) -> dict[str, int]:
    """Take over what comes from before the log's beginning, a transaction a table; how many rows of each.

    Args:
        connection: to work through. Others may write the old tables meanwhile.
        old: schema of the tables in force.
        new: schema of those that are to be filled.
        tables: those that are to be filled.
        lows: where the log begins.
    """
    carried = {}
    for table, topic in _BY_PLACE.items():
        if table in tables and topic in lows:
            carried[table] = _copy(connection, table, old, new, _before(table, lows[topic]))
    for table, topics in _PUT_TOGETHER.items():
        if table in tables and any(topic in lows for topic in topics):
            carried[table] = _copy(connection, table, old, new, sql.SQL("true"))
    return carried


def carry_after(connection: Connection, old: str, new: str, tables: Collection[str], lows: Lows) -> dict[str, int]:
    """Take over rows whose key no record has told; within a transaction in which both are as far as each other.

    A dead letter names the record that it is about; which record told of it, nobody can say afterwards.
    """
    by_key = {**_BY_KEY, "dead_letters": (DEAD_LETTERS, *lows)}
    carried = {
        table: _copy(connection, table, old, new, sql.SQL("true"))
        for table, topics in by_key.items()
        if table in tables and any(topic in lows for topic in topics)
    }
    if "dead_letters" in tables:
        names = {"old": sql.Identifier(old, "dead_letters"), "new": sql.Identifier(new, "dead_letters")}
        connection.execute(sql.SQL(queries.load("rebuild")["keep_recorded"]).format(**names))
    return carried


def recount_outcomes(connection: Connection, homes: Homes) -> None:
    """Sum the changes of verdicts anew, on plain tables: those that were copied were not counted. In a transaction."""
    homes.show(connection)
    rollup = ROLLUPS["verdict_changes"]
    for unit in UNITS.values():
        connection.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(f"{rollup.name}_{unit}")))
    recount(connection, "verdict_changes")


def recount_carried(connection: Connection, homes: Homes, old: str, new: str, lows: Lows) -> None:
    """Sum anew, on plain tables, the days of steps and points that were copied. In a transaction.

    Args:
        connection: to work through.
        homes: of the new tables.
        old: schema of the tables in force.
        new: schema of the new ones, which nobody else writes.
        lows: where the log begins.
    """
    homes.show(connection)
    for rollup in ROLLUPS.values():
        counter = COUNTED_BY.get(rollup.name)
        if counter is None or SUMMED_FROM[rollup.name] not in lows or not homes.takes(rollup.kind):
            continue
        days = {"days": _carried_days(connection, rollup, old, lows)}
        if days["days"]:
            _recount_days(connection, rollup, old, new, counter, days)


def _carried_days(connection: Connection, rollup: Rollup, old: str, lows: Lows) -> list[datetime]:
    statement = sql.SQL(queries.load("rebuild")["carried_days"]).format(
        time=sql.Identifier(_TIMES[rollup.kind]), table=sql.Identifier(rollup.kind),
        carried=_before(rollup.kind, lows[SUMMED_FROM[rollup.name]]),
    )  # fmt: skip
    row = connection.execute(statement, {"old": old, "kind": rollup.kind}).fetchone()
    assert row is not None
    days: list[datetime] = row[0]
    return days


def _recount_days(
    connection: Connection, rollup: Rollup, old: str, new: str, counter: str, days: Mapping[str, list[datetime]]
) -> None:
    sql_ = queries.load("rebuild")
    tables = [f"{rollup.name}_{unit}" for unit in UNITS.values()]
    for table in tables:
        connection.execute(sql.SQL(sql_["empty_days"]).format(table=sql.Identifier(table)), days)
    recount(connection, rollup.kind, days["days"])
    for table in tables:
        names = {
            "old": sql.Identifier(old, table), "new": sql.Identifier(new, table), "measures": _list(rollup.measures),
            "keys": _list(("bucket", *rollup.dimensions, "source_partition")), "counter": sql.Identifier(counter),
        }  # fmt: skip
        connection.execute(sql.SQL(sql_["keep_empty_sums"]).format(**names), days)
    if rollup.kind == "steps":
        connection.execute(sql_["note_carried_gaps"], days)


def carry_sums(
    connection: Connection, old: str, new: str, lows: Lows, *, after: datetime | None, before: datetime | None
) -> dict[str, int]:
    """Bring sums on plain tables over what retention took to what the old ones say, where those say more; how many of
    each table.

    Args:
        connection: to work through.
        old: schema of the tables in force.
        new: schema of the new ones.
        lows: where the log begins.
        after: sums whose newest fact was logged then or later; None: all.
        before: sums whose newest fact was logged before then, all of which the new tables have read; None: all, and
            both are as far as each other.
    """
    carried = {}
    for rollup in ROLLUPS.values():
        counter = COUNTED_BY.get(rollup.name)
        if counter is None or SUMMED_FROM[rollup.name] not in lows:
            continue
        for unit in UNITS.values():
            carried[f"{rollup.name}_{unit}"] = _raise_sums(
                connection, rollup, unit, old, new, counter,
                {"after": after, "before": before, "schema": old, "kind": rollup.kind},
            )  # fmt: skip
    return carried


def _raise_sums(
    connection: Connection, rollup: Rollup, unit: str, old: str, new: str, counter: str,
    bounds: Mapping[str, datetime | str | None],
) -> int:  # fmt: skip
    table = f"{rollup.name}_{unit}"
    keys = ("bucket", *rollup.dimensions, "source_partition")
    return connection.execute(
        sql.SQL(queries.load("rebuild")["raise_sums"]).format(
            old=sql.Identifier(old, table), new=sql.Identifier(new, table), keys=_list(keys),
            measures=_list(rollup.measures), counter=sql.Identifier(counter),
            taken=sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(m)) for m in rollup.measures),
        ),
        bounds,
    ).rowcount  # fmt: skip


def _before(table: str, lows: Mapping[int, int]) -> sql.Composed:
    partition, offset = map(sql.Identifier, _PLACES.get(table, ("source_partition", "source_offset")))
    return sql.SQL(
        "EXISTS (SELECT FROM unnest({}::integer[], {}::bigint[]) AS low (partition, at) "
        "WHERE low.partition = {} AND {} < low.at)"
    ).format(list(lows), list(lows.values()), partition, offset)


def _copy(connection: Connection, table: str, old: str, new: str, which: sql.Composable) -> int:
    statement = sql.SQL("INSERT INTO {} ({columns}) SELECT {columns} FROM {} WHERE {} ON CONFLICT DO NOTHING").format(
        sql.Identifier(new, table), sql.Identifier(old, table), which,
        columns=_list(columns_of(connection, old, table)),
    )  # fmt: skip
    return connection.execute(statement).rowcount


def columns_of(connection: Connection, schema: str, table: str) -> Sequence[str]:
    """A table's columns, in their order."""
    relation = sql.Identifier(schema, table).as_string(connection)
    return [name for (name,) in connection.execute(queries.load("rebuild")["columns"], {"relation": relation})]


def _list(names: Collection[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))
