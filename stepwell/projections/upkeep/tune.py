"""Brings TimescaleDB to what is configured, and tells where it differs.

Everything that is set beside the schema is here: chunk intervals, the columnstore's keys, when chunks are compressed,
how sums are refreshed, and what goes when. Each is one `Setting` with what is wanted and what the database has, so that
showing, applying and applying again are one thing.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
from psycopg import sql

from stepwell.projections import queries
from stepwell.projections.database import Connection
from stepwell.projections.schema.files import HYPERTABLES as ON_HYPERTABLES
from stepwell.projections.upkeep.tuning import AGGREGATES, HYPERTABLES, LEVELS, Tuning

__all__ = ["Setting", "apply", "apply_all", "apply_where_new", "jobs_of", "settings_of", "show"]

_DAILY = timedelta(days=1)
_COMPRESSION, _REFRESH, _RETIRE, _HISTORY = (
    "policy_compression", "policy_refresh_continuous_aggregate", "retire_chunks", "refresh_history",
)  # fmt: skip
JOB_ORDER = (_REFRESH, _HISTORY, _COMPRESSION, _RETIRE)
"""The kinds of jobs, in the order in which one run of all of them makes sense."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing that is set.

    Attributes:
        schema: the generation.
        relation: the table or continuous aggregate.
        name: what is set.
        wanted: what the configuration says, as text; None: nothing is to be set.
        found: what the database has; None: nothing.
    """

    schema: str
    relation: str
    name: str
    wanted: str | None
    found: str | None

    @property
    def right(self) -> bool:
        return self.wanted == self.found


def show(connection: Connection, tuning: Tuning) -> list[Setting]:
    """Every setting of every generation that is in force or being built. Plain tables have none."""
    found = []
    for schema, storage, _ in connection.execute(queries.load("tune")["generations"]).fetchall():
        if storage == ON_HYPERTABLES:
            found += settings_of(connection, schema, tuning)
    return found


def apply_all(connection: Connection, tuning: Tuning) -> list[Setting]:
    """Bring every generation to the configuration; what was changed."""
    changed = []
    for schema, _, _ in connection.execute(queries.load("tune")["generations"]).fetchall():
        changed += apply(connection, schema, tuning)
    return changed


def apply(connection: Connection, schema: str, tuning: Tuning) -> list[Setting]:
    """Bring one generation to the configuration, all in one transaction; what was changed. Plain tables: nothing."""
    with connection.transaction():
        if not _has_hypertables(connection, schema):
            return []
        # The extension's functions are found wherever it was put.
        connection.execute(queries.load("generations")["file_path"], {"schema": schema})
        wrong = [setting for setting in settings_of(connection, schema, tuning) if not setting.right]
        tuner = _Tuner(connection, schema, tuning)
        for relation in dict.fromkeys(setting.relation for setting in wrong):
            tuner.set(relation, {setting.name for setting in wrong if setting.relation == relation})
    return wrong


def apply_where_new(connection: Connection, tuning: Tuning) -> list[Setting]:
    """Bring those generations to the configuration that have no job yet; what was changed."""
    changed = []
    for schema, storage, _ in connection.execute(queries.load("tune")["generations"]).fetchall():
        if storage == ON_HYPERTABLES and not jobs_of(connection, schema):
            changed += apply(connection, schema, tuning)
    return changed


def settings_of(connection: Connection, schema: str, tuning: Tuning) -> list[Setting]:
    """Every setting of one generation of hypertables."""
    with connection.transaction():
        there = _relations(connection, schema)
        found = dict(_found(connection, schema))
        wanted = {key: value for key, value in _wanted(tuning) if key[0] in there}
    keys = [*wanted, *(key for key in found if key not in wanted and key[0] in there)]
    return [Setting(schema, relation, name, wanted.get((relation, name)), found.get((relation, name)))
            for relation, name in keys]  # fmt: skip


def jobs_of(connection: Connection, schema: str) -> list[tuple[str, str, int]]:
    """Kind, relation and id of each job of a generation, in the order in which to run them."""
    rows = connection.execute(queries.load("tune")["policies"], {"schema": schema}).fetchall()
    places = {aggregate.name: place for place, aggregate in enumerate(AGGREGATES)}
    jobs = [(kind, relation, job_id) for job_id, kind, relation, *_ in rows]
    return sorted(jobs, key=lambda job: (JOB_ORDER.index(job[0]), places.get(job[1], -1), job[1]))


# --- what is wanted, and what there is: (relation, name) -> text ---


def _wanted(tuning: Tuning) -> Iterator[tuple[tuple[str, str], str]]:
    for table in HYPERTABLES:
        yield (table.name, "chunk length"), _text(tuning.chunk(table.name))
        yield (table.name, "columnstore"), _keys(table.segment_by, table.order_by, (table.ingested,))
        yield (table.name, "compressed after"), _text(tuning.compress_after(table.name))
        if (kept := tuning.kept(table.name)) is not None:
            yield (table.name, "kept for"), _text(kept)
    for aggregate in AGGREGATES:
        level = LEVELS[aggregate.level]
        yield (aggregate.name, "chunk length"), _text(tuning.chunk(aggregate.name))
        yield (aggregate.name, "real time"), "on"
        yield (aggregate.name, "columnstore"), _keys(aggregate.segment_by, ("bucket",), ())
        yield (
            (aggregate.name, "refreshed"),
            _refresh(tuning.refresh_window, level.until, level.every, level.batch),
        )
        yield (aggregate.name, "history refreshed"), f"before {_text(tuning.refresh_window)}"
        yield (aggregate.name, "compressed after"), _text(tuning.compress_after(aggregate.name))
        if (kept := tuning.kept(aggregate.name)) is not None:
            yield (aggregate.name, "kept for"), _text(kept)


def _found(connection: Connection, schema: str) -> Iterator[tuple[tuple[str, str], str]]:
    sql_ = queries.load("tune")
    of = {"schema": schema}
    for relation, length in connection.execute(sql_["chunk_intervals"], of).fetchall():
        yield (relation, "chunk length"), _text(length)
    for relation, segment_by, order_by, indexed in connection.execute(sql_["columnstore"], of).fetchall():
        keys = [tuple(filter(None, (text or "").replace(" ", "").split(","))) for text in (segment_by, order_by)]
        yield (relation, "columnstore"), _keys(keys[0], keys[1], tuple(indexed or ()))
    for relation, materialized_only in connection.execute(sql_["real_time"], of).fetchall():
        yield (relation, "real time"), "off" if materialized_only else "on"
    for _, kind, relation, every, config, scheduled in connection.execute(sql_["policies"], of).fetchall():
        off = "" if scheduled else ", switched off"
        name, value = _policy(connection, kind, every, config)
        yield (relation, name), value + off


def _policy(connection: Connection, kind: str, every: timedelta, config: dict[str, Any]) -> tuple[str, str]:
    def length(key: str) -> timedelta | None:
        return _interval(connection, config.get(key))

    if kind == _COMPRESSION:
        return "compressed after", _text(length("compress_after"))
    if kind == _REFRESH:
        return "refreshed", _refresh(
            length("start_offset"), length("end_offset"), every, config.get("buckets_per_batch")
        )
    if kind == _HISTORY:
        return "history refreshed", f"before {_text(length('before'))}"
    return "kept for", _text(length("keep"))


def _interval(connection: Connection, text: str | None) -> timedelta | None:
    if text is None:
        return None
    row = connection.execute(queries.load("tune")["interval"], {"text": text}).fetchone()
    assert row is not None
    length: timedelta = row[0]
    return length


def _keys(segment_by: tuple[str, ...], order_by: tuple[str, ...], indexed: tuple[str, ...]) -> str:
    parts = [f"segments by {', '.join(segment_by)}" if segment_by else "", f"in the order of {', '.join(order_by)}"]
    parts.append(f"least and most of {', '.join(indexed)}" if indexed else "")
    return "; ".join(filter(None, parts))


def _refresh(start: timedelta | None, until: timedelta | None, every: timedelta, batch: int | None) -> str:
    return f"from {_text(start)} to {_text(until)} ago, every {_text(every)}, {batch} buckets at a time"


def _text(length: timedelta | None) -> str:
    if length is None:
        return "unknown"
    seconds = length.total_seconds()
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"


# --- setting it ---


class _Tuner:
    """Sets what is named, in the caller's transaction."""

    def __init__(self, connection: Connection, schema: str, tuning: Tuning) -> None:
        self._connection = connection
        self._schema = schema
        self._tuning = tuning
        self._queries = queries.load("tune")
        self._tables = {table.name: table for table in HYPERTABLES}
        self._aggregates = {aggregate.name: aggregate for aggregate in AGGREGATES}

    def set(self, relation: str, names: set[str]) -> None:
        if "chunk length" in names:
            self._run("set_chunk", relation, length=self._tuning.chunk(relation))
        if "real time" in names:
            self._alter(relation, "timescaledb.materialized_only = false")
        if "columnstore" in names:
            self._columnstore(relation)
        if names & {"refreshed", "compressed after"}:
            # Of an aggregate, the policy that compresses hangs on the one that refreshes.
            self._run("remove_compression", relation)
            if "refreshed" in names:
                self._refresh(relation)
            self._run("add_compression", relation, after=self._tuning.compress_after(relation))
        if "history refreshed" in names:
            self._refresh_history(relation)
        if "kept for" in names:
            self._retire(relation)

    def _columnstore(self, relation: str) -> None:
        if relation in self._tables:
            table = self._tables[relation]
            keys = (table.segment_by, table.order_by)
            more = f", timescaledb.sparse_index = 'minmax({table.ingested})'"
        else:
            keys, more = (self._aggregates[relation].segment_by, ("bucket",)), ""
        segment_by, order_by = (", ".join(key) for key in keys)
        names = f"timescaledb.segmentby = '{segment_by}', timescaledb.orderby = '{order_by}'"
        self._alter(relation, f"timescaledb.enable_columnstore, {names}{more}")

    def _refresh(self, relation: str) -> None:
        level = LEVELS[self._aggregates[relation].level]
        self._run("remove_refresh", relation)
        window = self._tuning.refresh_window
        added = self._run("add_refresh", relation, start=window, until=level.until, every=level.every).fetchone()
        assert added is not None
        self._connection.execute(self._queries["set_refresh_batch"], {"job_id": added[0], "batch": level.batch})

    def _refresh_history(self, relation: str) -> None:
        aggregate = self._aggregates[relation]
        bucket, before = LEVELS[aggregate.level].bucket, self._tuning.refresh_window
        self._job(_HISTORY, relation, {"source": aggregate.source, "bucket": _iso(bucket), "before": _iso(before)})

    def _retire(self, relation: str) -> None:
        kept = self._tuning.kept(relation)
        if kept is None:
            self._job(_RETIRE, relation, None)
            return
        table = self._tables.get(relation)
        config = {"ingested": table.ingested if table else "logged_at", "keep": _iso(kept)}
        feeds = table.feeds if table else self._aggregates[relation].feeds
        self._job(_RETIRE, relation, config | ({"feeds": feeds} if feeds else {}))

    def _job(self, kind: str, relation: str, config: dict[str, str] | None) -> None:
        for job_kind, of, job_id in jobs_of(self._connection, self._schema):
            if (job_kind, of) == (kind, relation):
                self._connection.execute(self._queries["delete_job"], {"job_id": job_id})
        if config is not None:
            wanted = {"schema": self._schema, "relation": relation, **config}
            self._connection.execute(
                self._queries["add_job"],
                {"procedure": f"stepwell.{kind}", "every": _DAILY, "config": json.dumps(wanted)},
            )

    def _run(self, query: str, relation: str, **parameters: Any) -> psycopg.Cursor[tuple[Any, ...]]:
        name = sql.Identifier(self._schema, relation).as_string(self._connection)
        return self._connection.execute(self._queries[query], {"relation": name, **parameters})

    def _alter(self, relation: str, options: str) -> None:
        kind = "MATERIALIZED VIEW" if relation in self._aggregates else "TABLE"
        statement = sql.SQL("ALTER {} {} SET ({})").format(
            sql.SQL(kind), sql.Identifier(self._schema, relation), sql.SQL(options)
        )
        self._connection.execute(statement)


def _iso(length: timedelta) -> str:
    return f"{length.total_seconds():.0f} seconds"


def _relations(connection: Connection, schema: str) -> set[str]:
    return {name for (name,) in connection.execute(queries.load("tune")["relations"], {"schema": schema})}


def _has_hypertables(connection: Connection, schema: str) -> bool:
    rows = connection.execute(queries.load("tune")["generations"]).fetchall()
    return any(name == schema and storage == ON_HYPERTABLES for name, storage, _ in rows)
