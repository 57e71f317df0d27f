"""The public views: one a table, which shows it where it lives, and those that answer questions.

Views are no state: they are made anew, all in one transaction, whenever a file of them or a table's home has changed.
They are replaced in place where that can be done, so that views which somebody else has built on them stay; where
columns went or changed their types, they are dropped and made, and a view of somebody else's stands in the way of that.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence

import psycopg
from psycopg import sql

from stepwell.exceptions import MigrationError
from stepwell.projections import queries
from stepwell.projections.access.grants import settle
from stepwell.projections.access.row_filters import any_filter, filtered_select
from stepwell.projections.database import Connection
from stepwell.projections.on_read import views as generated_views
from stepwell.projections.schema.files import SchemaFile
from stepwell.projections.schema.generations import read_homes

__all__ = ["make_views"]

_VIEW = re.compile(r"^CREATE OR REPLACE VIEW stepwell\.(\w+)", re.MULTILINE)


def make_views(connection: Connection, files: Sequence[SchemaFile]) -> bool:
    """Bring all views up to date, within a transaction of the caller's; whether there was something to do.

    Raises:
        MigrationError: a view of somebody else's depends on one of ours that must be dropped.
    """
    # Files use qualified names only, whatever the transaction did before.
    connection.execute("SELECT set_config('search_path', 'pg_catalog', true)")
    storage = read_homes(connection).storage
    statements = [*_tables(connection), *(file.sql for file in files if file.fits(storage))]
    digest = hashlib.sha256("\0".join(statements).encode()).hexdigest()
    queries_ = queries.load("views")
    if connection.execute(queries_["made"]).fetchone() == (digest,):
        return False
    wanted = {name for statement in statements for name in _VIEW.findall(statement)}
    try:
        with connection.transaction():
            _drop(connection, [name for name in _there(connection) if name not in wanted])
            for statement in statements:
                connection.execute(statement)
    except (psycopg.errors.InvalidTableDefinition, psycopg.errors.DependentObjectsStillExist):
        _make_anew(connection, statements)
    settle(connection)
    connection.execute(queries_["note"], {"sha256": digest})
    return True


def _make_anew(connection: Connection, statements: Sequence[str]) -> None:
    try:
        generated = generated_views.drop(connection)
        _drop(connection, _there(connection))
    except psycopg.errors.DependentObjectsStillExist as error:
        raise MigrationError(
            f"A view of Stepwell's must change, and something else is built on it: {error.diag.message_detail}. Drop "
            "that, run the command again, and make it again."
        ) from error
    for statement in statements:
        connection.execute(statement)
    if generated:
        generated_views.make(connection)


def _there(connection: Connection) -> list[str]:
    return [name for (name,) in connection.execute(queries.load("views")["there"])]


def _drop(connection: Connection, names: Sequence[str]) -> None:
    if names:
        listed = sql.SQL(", ").join(sql.Identifier("stepwell", name) for name in names)
        connection.execute(sql.SQL("DROP VIEW {}").format(listed))


def _tables(connection: Connection) -> list[str]:
    """For each table the view of its name, with the table's own words about it."""
    queries_ = queries.load("generations")
    homes: dict[str, str] = dict(connection.execute(queries_["homes_of_relations"]).fetchall())
    filtered = any_filter(connection)
    statements = []
    for schema in sorted(set(homes.values())):
        for name, columns, notes, note in connection.execute(queries_["relations"], {"schema": schema}):
            if homes.get(name) == schema:
                statements.append(_table(connection, schema, name, columns, notes, note, homes if filtered else None))
    return statements


def _table(
    connection: Connection,
    schema: str,
    name: str,
    columns: Sequence[str],
    notes: Sequence[str | None],
    note: str | None,
    homes: Mapping[str, str] | None,
) -> str:
    """The view of a table. ``homes``: where every table lives, when rows are to be filtered."""
    view = sql.Identifier("stepwell", name)
    table = sql.Identifier(schema, name)
    if homes is None:
        barrier, select = sql.SQL(""), sql.SQL("SELECT {} FROM {}").format(_listed(columns), table)
    else:
        barrier, select = sql.SQL(" WITH (security_barrier)"), filtered_select(name, columns, homes)
    # In two pieces, so that it reads like the files: the pattern above looks for the first words.
    parts = [sql.SQL("CREATE OR REPLACE VIEW stepwell.{}{} AS {}").format(sql.SQL(name), barrier, select)]
    if note is not None:
        parts.append(sql.SQL("COMMENT ON VIEW {} IS {}").format(view, note))
    parts += [
        sql.SQL("COMMENT ON COLUMN {}.{} IS {}").format(view, sql.Identifier(column), text)
        for column, text in zip(columns, notes, strict=True)
        if text is not None
    ]
    return sql.SQL(";\n").join(parts).as_string(connection)


def _listed(columns: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, columns))
