"""What follows from the rows of a batch, and is written in its transaction.

On both storages the changes of the verdicts that count (`stepwell.projections.sums.standing`). On plain tables also
sums by minute, hour and day, which on hypertables are continuous aggregates; only rows that really went in are counted,
so what comes twice counts once. Each row of a sum belongs to one partition of the log, so that two projectors never
wait for each other.

Sums over steps are by what the episode's request and claim say. Where those come after steps, on plain tables the sums
are moved over, and on hypertables the steps are touched, so that the aggregates are refreshed there.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from psycopg import sql

from stepwell.projections import queries
from stepwell.projections.database import Connection
from stepwell.projections.schema.files import PLAIN
from stepwell.projections.sums.standing import VERDICT_COLUMNS, changes_of
from stepwell.projections.sums.wall_buckets import wall_bucket, wall_us
from stepwell.projections.tables import KINDS, Values, reduce_rows

__all__ = ["ROLLUPS", "UNITS", "Derivation", "Rollup", "StepDelta", "counted", "deltas_of", "recount"]

UNITS = {"minute": "minutes", "hour": "hours", "day": "days"}
"""Lengths of a bucket, and how the tables that have them are called."""
_MINUTE_US = 60_000_000


class StepDelta(NamedTuple):
    """Steps of one attempt, minute and bucket of wall time that went in."""

    minute: int
    episode_id: str
    attempt: int
    wall_bucket: int | None
    source_partition: int
    steps: int
    wall_us: int
    logged: int


class TelemetryDelta(NamedTuple):
    """Points of one series and minute that went in."""

    minute: int
    series_id: int
    source_partition: int
    points: int
    measurements: int | None
    value_sum: float | None
    value_min: float | None
    value_max: float | None
    logged: int


class OutcomeDelta(NamedTuple):
    """One change of the verdicts that count."""

    episode_id: str
    change: int


@dataclass(frozen=True, slots=True)
class Rollup:
    """One family of sums: three tables ``<name>_minutes``, ``_hours`` and ``_days``.

    Attributes:
        name: the family's.
        kind: the kind of row that is summed.
        dimensions: what a row is of, beside its bucket and its partition.
        measures: what is kept of it -> how two are put together: ``+``, ``least`` or ``greatest``.
        delta: what the rows of a batch are boiled down to before they are added.
    """

    name: str
    kind: str
    dimensions: tuple[str, ...]
    measures: dict[str, str]
    delta: type[StepDelta] | type[TelemetryDelta] | type[OutcomeDelta]

    def statement(self, told: str) -> sql.SQL:
        """Adds what the query ``told`` gives (at, dimensions, source_partition, measures) to the three tables."""
        parts = [self._insert(unit) for unit in UNITS]
        named = ", ".join(f"{unit} AS ({part})" for unit, part in zip(UNITS, parts[:-1], strict=False))
        return sql.SQL(f"WITH told AS MATERIALIZED ({told}), {named} {parts[-1]}")

    def over(self, measure: str) -> str:
        """Expression that puts a measure of several rows together."""
        return f"{_OVER[self.measures[measure]]}({measure})"

    def _insert(self, unit: str) -> str:
        keys = ", ".join((*self.dimensions, "source_partition"))
        sums = ", ".join(map(self.over, self.measures))
        added = ", ".join(f"{name} = {_ADDED[how].format(name=name)}" for name, how in self.measures.items())
        return _INSERT.format(
            table=f"{self.name}_{UNITS[unit]}", unit=unit, keys=keys, measures=", ".join(self.measures), sums=sums,
            added=added,
        )  # fmt: skip


_INSERT = """
INSERT INTO {table} AS r (bucket, {keys}, {measures})
SELECT date_trunc('{unit}', at, 'UTC') AS bucket, {keys}, {sums} FROM told GROUP BY bucket, {keys}
ON CONFLICT (bucket, {keys}) DO UPDATE SET {added}
"""
_OF_DAYS = "SELECT * FROM ({every}) AS every WHERE date_trunc('day', at, 'UTC') = ANY(%(days)s)"
_OVER = {"+": "sum", "least": "min", "greatest": "max"}
_ADDED = {
    "+": "coalesce(r.{name} + EXCLUDED.{name}, r.{name}, EXCLUDED.{name})",
    "least": "least(r.{name}, EXCLUDED.{name})",
    "greatest": "greatest(r.{name}, EXCLUDED.{name})",
}  # fmt: skip

ROLLUPS: dict[str, Rollup] = {
    rollup.kind: rollup
    for rollup in (
        Rollup(
            "step", "steps", ("policy", "policy_version", "task", "scene", "perturbation", "host", "wall_bucket"),
            {"steps": "+", "wall_us": "+", "logged_at": "greatest"}, StepDelta,
        ),
        Rollup(
            "outcome", "verdict_changes",
            ("policy", "policy_version", "checkpoint", "task", "scene", "perturbation", "purpose", "outcome",
             "failure_type", "fault"),
            {"episodes": "+", "steps": "+", "logged_at": "greatest"}, OutcomeDelta,
        ),
        Rollup(
            "telemetry", "telemetry_points", ("series_id",),
            {"points": "+", "measurements": "+", "value_sum": "+", "value_min": "least", "value_max": "greatest",
             "logged_at": "greatest"},
            TelemetryDelta,
        ),
    )
}  # fmt: skip
"""Every family by the kind of row that it sums."""

Delta = StepDelta | TelemetryDelta | OutcomeDelta


def deltas_of(kind: str, rows: Iterable[Values]) -> list[Delta]:
    """What rows come to that were all copied into their table."""
    return _DELTAS[kind](rows)


def counted(kind: str, insert: sql.Composed) -> sql.Composed:
    """An ``INSERT`` of rows of a kind in `ROLLUPS` that gives the deltas of those that really went in."""
    deltas = sql.SQL(queries.load("rollups")[f"new_{kind}"])
    return sql.SQL("WITH new AS ({} RETURNING *) {}").format(insert, deltas)


def recount(connection: Connection, kind: str, days: Sequence[datetime] | None = None) -> None:
    """Fill the sums over a kind of row, which must be empty, from the rows that are there. For plain tables.

    Args:
        connection: in a transaction. The tables' bare names must be understood.
        kind: of row.
        days: starts of the only days (UTC) to be filled; None: all.
    """
    rollup = ROLLUPS[kind]
    every = queries.load("rollups")[f"every_{rollup.name}"]
    if days is None:
        connection.execute(rollup.statement(every))
        return
    connection.execute(rollup.statement(_OF_DAYS.format(every=every)), {"days": list(days)})


class Derivation:
    """What follows from one set of rows. Make it before they are written, tell it what went in, and finish it.

    All within a transaction; where that is rolled back, so is what was done here, and the object is of no use.

    Args:
        connection: bare names are understood as the homes say.
        storage: ``hypertables`` or ``plain``.
        by_kind: the rows that are to be written; those of ``verdict_changes`` are added.
    """

    def __init__(self, connection: Connection, storage: str, by_kind: dict[str, list[Values]]) -> None:
        self._connection = connection
        self._plain = storage == PLAIN
        self._queries = queries.load("rollups")
        self._deltas: dict[str, list[Delta]] = {}
        if changes := self._changes(by_kind.get("verdicts", ())):
            by_kind["verdict_changes"] = changes
        self._told = self._newly_told(by_kind)
        self._gaps = self._gaps_of(self._told)
        self._moved = [delta for gap in self._gaps for delta in self._steps_of(gap)] if self._plain else []
        # Out of the sums that say too little of them, while that is still all that is known.
        self._add(ROLLUPS["steps"], [_negated(delta) for delta in self._moved])

    def takes(self, kind: str) -> bool:
        """Whether it wants to know what went in of this kind."""
        return kind == "steps" or (self._plain and kind in ROLLUPS)

    def went_in(self, kind: str, deltas: Iterable[Delta | tuple[Any, ...]]) -> None:
        """Tell what went in: deltas, or what a statement of `counted` gives."""
        make = ROLLUPS[kind].delta._make
        self._deltas.setdefault(kind, []).extend(make(delta) for delta in deltas)

    def finish(self) -> None:
        """Write what follows, when all rows are written."""
        steps = self._deltas.get("steps", [])
        if steps:
            self._connection.execute(self._queries["note_gaps"], _columns(StepDelta, steps))
        if self._gaps:
            if not self._plain:
                self._connection.execute(self._queries["decompress_all"])
                for gap in self._gaps:
                    self._connection.execute(self._queries["touch_gap"], gap)
            self._connection.execute(self._queries["close_gaps"], {"episodes": self._told})
        if self._plain:
            self._deltas["steps"] = [*self._moved, *steps]
            for kind, deltas in self._deltas.items():
                self._add(ROLLUPS[kind], deltas)

    def _changes(self, rows: Sequence[Values]) -> list[Values]:
        """The rows of ``verdict_changes`` that new verdicts make: all of an episode's are gone through in order."""
        if not rows:
            return []
        kind = KINDS["verdicts"]
        places = [kind.columns.index(name) for name in VERDICT_COLUMNS]
        new = [tuple([values[place] for place in places]) for values in reduce_rows(kind, rows)]
        episodes = sorted({verdict[0] for verdict in new})
        known = self._connection.execute(self._queries["known_verdicts"], {"episodes": episodes}).fetchall()
        there = {verdict[:3] for verdict in known}
        histories: dict[str, list[Values]] = {episode: [] for episode in episodes}
        for verdict in (*known, *(verdict for verdict in new if verdict[:3] not in there)):
            histories[verdict[0]].append(verdict)
        return [
            row
            for history in histories.values()
            for verdict, made in changes_of(history)
            if verdict[:3] not in there
            for row in made
        ]

    def _newly_told(self, by_kind: dict[str, list[Values]]) -> list[str]:
        """Episodes whose request or claim is among the rows."""
        told = {values[0] for values in by_kind.get("episodes", ())}
        told |= {values[0] for values in by_kind.get("attempt_facts", ()) if values[7] is not None}
        return sorted(told)

    def _gaps_of(self, episodes: list[str]) -> list[dict[str, Any]]:
        if not episodes:
            return []
        found = self._connection.execute(self._queries["gaps"], {"episodes": episodes}).fetchall()
        return [dict(zip(("episode_id", "attempt", "first_at", "last_at"), row, strict=True)) for row in found]

    def _steps_of(self, gap: dict[str, Any]) -> list[StepDelta]:
        statement = f"{self._queries['steps_of_gap']} {self._queries['new_steps']}"
        return [StepDelta(*row) for row in self._connection.execute(statement, gap)]

    def _add(self, rollup: Rollup, deltas: Sequence[Delta]) -> None:
        if deltas:
            told = self._queries[f"told_{rollup.name}"]
            self._connection.execute(rollup.statement(told), _columns(rollup.delta, deltas))


def _columns(delta: type[Delta], deltas: Sequence[Delta]) -> dict[str, list[Any]]:
    return dict(zip(delta._fields, map(list, zip(*deltas, strict=True)), strict=True))


def _negated(delta: StepDelta) -> StepDelta:
    return delta._replace(steps=-delta.steps, wall_us=-delta.wall_us)


def _step_deltas(rows: Iterable[Values]) -> list[Delta]:
    at, logged, episode, attempt, wall, partition = _places(
        "steps", "occurred_at logged_at episode_id attempt step_wall_s source_partition"
    )
    found: dict[tuple[Any, ...], list[int]] = {}
    for row in rows:
        us = wall_us(row[wall])
        key = (row[at] - row[at] % _MINUTE_US, row[episode], row[attempt], wall_bucket(us), row[partition])
        sums = found.setdefault(key, [0, 0, row[logged]])
        sums[0] += 1
        sums[1] += us or 0
        sums[2] = max(sums[2], row[logged])
    return [StepDelta(*key, *sums) for key, sums in found.items()]


def _telemetry_deltas(rows: Iterable[Values]) -> list[Delta]:
    at, series, value, measured, spread, logged, partition = _places(
        "telemetry_points", "sampled_at series_id value measurements distribution logged_at source_partition"
    )
    found: dict[tuple[Any, ...], list[Any]] = {}
    for row in rows:
        number, count = row[value], row[measured]
        if not -_SUMMED_BELOW < number < _SUMMED_BELOW:
            continue
        key = (row[at] - row[at] % _MINUTE_US, row[series], row[partition])
        sums = found.setdefault(key, [0, None, None, None, None, row[logged]])
        sums[0] += 1
        if count is not None:
            sums[1] = count + (sums[1] or 0)
            sums[2] = number + (sums[2] or 0.0)
        least, most = (number, number) if row[spread] is None else _edges(count, row[spread])
        if least is not None and (sums[3] is None or least < sums[3]):
            sums[3] = least
        if most is not None and (sums[4] is None or most > sums[4]):
            sums[4] = most
        sums[5] = max(sums[5], row[logged])
    return [TelemetryDelta(*key, *sums) for key, sums in found.items()]


def _edges(measurements: int | None, distribution: str) -> tuple[float | None, float | None]:
    """Least and most of what a histogram measured, as ``stepwell.measured`` in the database has them."""
    if not measurements:
        return None, None
    told = json.loads(distribution)
    # NaN and infinities are texts there.
    least, most = (told[edge] if isinstance(told[edge], int | float) else None for edge in ("min", "max"))
    return least, most


def _outcome_deltas(rows: Iterable[Values]) -> list[Delta]:
    episode, change = _places("verdict_changes", "episode_id change")
    return [OutcomeDelta(row[episode], row[change]) for row in rows]


def _places(kind: str, names: str) -> list[int]:
    columns = KINDS[kind].columns
    return [columns.index(name) for name in names.split()]


_SUMMED_BELOW = 1e300
"""As ``stepwell.summed`` in the database."""
_DELTAS: dict[str, Callable[[Iterable[Values]], list[Delta]]] = {
    "steps": _step_deltas, "telemetry_points": _telemetry_deltas, "verdict_changes": _outcome_deltas,
}  # fmt: skip
