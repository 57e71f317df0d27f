"""Views of the schema ``stepwell_views``: a typed column for each key that was seen in a JSON column.

New metrics, definitions and attributes need no migration: they stand in JSON, and these views show them as columns.
Which columns there are is kept in ``stepwell.fields`` (`stepwell.projections.on_read.fields` fills it from the data),
so views are made again from there alone, without a look at any row. A column's name, place and type are for good; a key
whose values changed their kind has a column for each kind, so that none ever mixes two; whatever no column shows stands
in ``rest``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from stepwell.projections import queries
from stepwell.projections.access.grants import settle
from stepwell.projections.database import Connection

__all__ = ["FIELDS_VIEW", "METRIC_HEAD", "SCHEMA", "SOURCES", "Source", "drop", "head_of", "make"]

SCHEMA = "stepwell_views"
FIELDS_VIEW = "fields"
"""The one view there that shows the catalogue itself."""
_COMMENT = "Views made by stepwell db views, from keys found in the data. Nothing here is the only copy of anything."


@dataclass(frozen=True, slots=True)
class Source:
    """A JSON column of a view of ``stepwell``, and the view of its keys.

    Attributes:
        view: name of the view of the keys.
        relation: the view that has the column.
        document: the JSON column.
        depth: how deep nested objects are taken apart (count from 1).
        at: the column of time by which fields are told apart.
        head: columns that stand before those of the keys.
        says: what the view shows.
    """

    view: str
    relation: str
    document: str
    depth: int
    at: str
    head: tuple[str, ...]
    says: str


_CELL = ("policy", "policy_version", "task", "scene", "perturbation")
SOURCES = (
    Source(
        "step_metrics", "steps", "metrics", 1, "occurred_at", ("episode_id", "attempt", "step", "occurred_at"),
        "Named numbers of each simulator step.",
    ),
    Source(
        "verdict_metrics", "latest_verdicts", "metrics", 1, "ended_at",
        ("episode_id", "attempt", "revision", "run_id", *_CELL, "checkpoint", "outcome", "ended_at"),
        "Named numbers of each attempt, as its last verdict gives them.",
    ),
    Source(
        "episode_definitions", "episodes", "definition", 4, "requested_at",
        ("episode_id", "run_id", *_CELL, "requested_at"),
        "Scene, policy and perturbation of each episode, as the task spec defines them.",
    ),
    Source(
        "span_attributes", "spans", "attributes", 1, "started_at",
        ("trace_id", "span_id", "started_at", "name", "worker_id", "episode_id", "attempt"),
        "Attributes of each span.",
    ),
)  # fmt: skip
METRIC_HEAD = ("sampled_at", "started_at", "worker_id", "host", "episode_id", "attempt", "value", "mean")
"""Columns of a view of one metric, before those of its attributes."""


def head_of(view: str) -> tuple[str, ...]:
    """The columns that stand before those of the keys."""
    return next((source.head for source in SOURCES if source.view == view), METRIC_HEAD)


def make(connection: Connection) -> list[str]:
    """Bring the views up to what ``stepwell.fields`` has, in the caller's transaction; their names.

    Raises:
        psycopg.errors.DependentObjectsStillExist: a view must change its types, and another is built on it.
    """
    sql_ = queries.load("fields")
    connection.execute(sql_["make_schema"])
    connection.execute(sql.SQL("COMMENT ON SCHEMA stepwell_views IS {}").format(_COMMENT))
    fields: dict[str, list[_Field]] = {}
    for view, *field in connection.execute(sql_["fields"]):
        fields.setdefault(view, []).append(_Field(*field))
    statements = {FIELDS_VIEW: sql_["fields_view"].encode()}
    for source in SOURCES:
        if source.view in fields and _exists(connection, source.relation):
            statements[source.view] = _view(connection, source, sql.SQL("true"), fields[source.view])
    for view, metric, unit, kind in connection.execute(sql_["metric_views"]):
        says = f"The metric {metric} ({kind}) in {unit or 'no unit'}, with its attributes."
        source = Source(view, "telemetry", "attributes", 1, "sampled_at", METRIC_HEAD, says)
        only = sql.SQL("s.metric = {} AND s.unit = {} AND s.kind = {}").format(metric, unit, kind)
        statements[view] = _view(connection, source, only, fields.get(view, ()))
    for name in _there(connection):
        if name not in statements:
            connection.execute(sql.SQL("DROP VIEW {}").format(sql.Identifier(SCHEMA, name)))
    for name, statement in statements.items():
        try:
            with connection.transaction():
                connection.execute(statement)
        except psycopg.errors.InvalidTableDefinition:
            connection.execute(sql.SQL("DROP VIEW {}").format(sql.Identifier(SCHEMA, name)))
            connection.execute(statement)
    settle(connection)
    return sorted(statements)


def drop(connection: Connection) -> bool:
    """Drop the views; whether there were any. The catalogue stays: made again, they have the same columns.

    Raises:
        psycopg.errors.DependentObjectsStillExist: somebody else's view is built on one of them.
    """
    names = _there(connection)
    if names:
        listed = sql.SQL(", ").join(sql.Identifier(SCHEMA, name) for name in names)
        connection.execute(sql.SQL("DROP VIEW {}").format(listed))
    return bool(names)


@dataclass(frozen=True, slots=True)
class _Field:
    column: str
    path: list[str]
    kind: str
    from_at: str | None
    until_at: str | None
    known: str
    says: str


def _there(connection: Connection) -> list[str]:
    return [name for (name,) in connection.execute(queries.load("fields")["there"])]


def _exists(connection: Connection, relation: str) -> bool:
    return connection.execute(queries.load("fields")["exists"], {"relation": relation}).fetchone() == (True,)


def _view(connection: Connection, source: Source, only: sql.Composable, fields: Sequence[_Field]) -> bytes:
    """Statements that make one view and describe its columns."""
    view, at = sql.Identifier(SCHEMA, source.view), sql.Identifier("s", source.at)
    document = sql.Identifier("s", source.document)
    known = sql.SQL("ARRAY[{}]::text[]").format(sql.SQL(", ").join(sql.Literal(field.known) for field in fields))
    columns = [
        *(sql.Identifier("s", name) for name in source.head),
        # Before the keys: a view that is replaced in place can only grow at its end.
        sql.SQL("stepwell.json_rest({}, {}, {}) AS rest").format(document, source.depth, known),
        *(_column(document, at, field) for field in fields),
    ]
    parts = [
        sql.SQL("CREATE OR REPLACE VIEW {} AS SELECT {} FROM {} s WHERE {}").format(
            view, sql.SQL(", ").join(columns), sql.Identifier("stepwell", source.relation), only
        ),
        sql.SQL("COMMENT ON VIEW {} IS {}").format(view, source.says),
        sql.SQL("COMMENT ON COLUMN {}.rest IS {}").format(view, "What no column shows (JSON object); null: nothing."),
    ]
    parts += [
        sql.SQL("COMMENT ON COLUMN {}.{} IS {}").format(view, sql.Identifier(field.column), field.says)
        for field in fields
    ]
    return sql.SQL(";\n").join(parts).as_bytes(connection)


def _column(document: sql.Identifier, at: sql.Identifier, field: _Field) -> sql.Composed:
    value = sql.SQL("{} #> {}::text[]").format(document, field.path)
    if len(field.path) == 1:
        value = sql.SQL("{} -> {}").format(document, field.path[0])
    read = sql.SQL("stepwell.{}({})").format(sql.SQL(f"json_{field.kind}"), value)
    limits = [
        sql.SQL("{} {} {}::timestamptz").format(at, sql.SQL(sign), limit)
        for sign, limit in ((">=", field.from_at), ("<", field.until_at))
        if limit is not None
    ]
    if limits:
        read = sql.SQL("CASE WHEN {} THEN {} END").format(sql.SQL(" AND ").join(limits), read)
    return sql.SQL("{} AS {}").format(read, sql.Identifier(field.column))
