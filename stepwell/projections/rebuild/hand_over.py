"""Puts the new tables in the place of the old ones, and drops what is looked at no more.

A whole generation takes over by its name: ``stepwell.homes`` and the views point to its schema. Of a rebuild of some
tables only these change places with the old ones, so that the generation in force stays one schema with every table.
"""

from collections.abc import Collection

import psycopg
from psycopg import sql

from stepwell.exceptions import RebuildError
from stepwell.projections import queries
from stepwell.projections.database import Connection
from stepwell.projections.rebuild.carry_over import columns_of
from stepwell.projections.rebuild.state import RebuildState
from stepwell.projections.schema import generations
from stepwell.projections.schema.files import HYPERTABLES, packaged
from stepwell.projections.schema.generations import read_homes
from stepwell.projections.schema.public_views import make_views
from stepwell.projections.upkeep import tune

__all__ = ["drop_retired", "put_in_force", "relations_of", "rest_retired", "storage_of"]


def put_in_force(connection: Connection, state: RebuildState) -> None:
    """Let the views show the new tables; within a transaction, under the exclusive lock, both as far as each other."""
    old = read_homes(connection).schemas[0]
    connection.execute(queries.load("rebuild")["brief_limits"])
    connection.execute(queries.load("rebuild")["lock_views"])
    connection.execute(queries.load("rebuild")["low_limits"])
    names = {"generation": state.generation}
    if state.scope.relations is None:
        _carry_reports(connection, old, state.generation)
        generations.activate(connection, state.generation)
        connection.execute(queries.load("rebuild")["forget_other_homes"], {"schema": state.generation})
        connection.execute(queries.load("generations")["settle_states"])
    else:
        _swap(connection, old, state.generation, state.scope.relations)
        connection.execute(queries.load("rebuild")["retire"], names)
        connection.execute(queries.load("rebuild")["views_anew"])
    make_views(connection, packaged().views)
    connection.execute(queries.load("rebuild")["handed_over"], names)


def _carry_reports(connection: Connection, old: str, new: str) -> None:
    """What projectors saw of others: no record tells it, and it is out of date in a second."""
    columns = sql.SQL(", ").join(map(sql.Identifier, columns_of(connection, old, "consumer_positions")))
    connection.execute(
        sql.SQL("INSERT INTO {} ({columns}) SELECT {columns} FROM {} ON CONFLICT DO NOTHING").format(
            sql.Identifier(new, "consumer_positions"), sql.Identifier(old, "consumer_positions"), columns=columns
        )
    )


def relations_of(connection: Connection, schema: str) -> dict[str, bool]:
    """Names of the relations there, and whether each is a view (a continuous aggregate); those made last come first."""
    return dict(connection.execute(queries.load("rebuild")["relations_of"], {"schema": schema}).fetchall())


def _swap(connection: Connection, old: str, new: str, relations: Collection[str]) -> None:
    """Let tables of two schemas change places. By a third, because a table's indexes go with it, and their names."""
    aside = f"{new}_aside"
    connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(aside)))
    for source, target in ((old, aside), (new, old), (aside, new)):
        for name, is_view in relations_of(connection, source).items():
            if source == aside or name in relations:
                _move(connection, source, name, target, is_view=is_view)
    connection.execute(sql.SQL("DROP SCHEMA {}").format(sql.Identifier(aside)))


def _move(connection: Connection, schema: str, name: str, target: str, *, is_view: bool) -> None:
    what = sql.SQL("MATERIALIZED VIEW" if is_view else "TABLE")
    connection.execute(
        sql.SQL("ALTER {} {} SET SCHEMA {}").format(what, sql.Identifier(schema, name), sql.Identifier(target))
    )


def drop_retired(connection: Connection) -> list[str]:
    """Drop the schemas of retired generations; their names. Can be interrupted and called again.

    Raises:
        RebuildError: something that is not ours is built on the tables.
    """
    names = [name for (name,) in connection.execute(queries.load("rebuild")["retired"])]
    for name in names:
        try:
            _drop(connection, name)
        except psycopg.errors.DependentObjectsStillExist as error:
            raise RebuildError(
                f"The old tables in {name} cannot be dropped, because something else is built on them: "
                f"{error.diag.message_detail}. Build it on the views of the schema stepwell, drop the old one, then "
                "run: stepwell db rebuild --drop-old"
            ) from error
    return names


def rest_retired(connection: Connection) -> None:
    """Switch off the jobs of retired generations: nobody looks at what they would keep in order."""
    for (name,) in connection.execute(queries.load("rebuild")["retired"]).fetchall():
        if storage_of(connection, name) == HYPERTABLES:
            for _, _, job_id in tune.jobs_of(connection, name):
                connection.execute(queries.load("rebuild")["switch_job"], {"job_id": job_id, "on": False})


def _drop(connection: Connection, schema: str) -> None:
    """Chunk by chunk and table by table: in one transaction, months of chunks would need more locks than there are."""
    hypertables = storage_of(connection, schema) == HYPERTABLES
    for _, _, job_id in tune.jobs_of(connection, schema) if hypertables else ():
        connection.execute(queries.load("tune")["delete_job"], {"job_id": job_id})
    for name, is_view in relations_of(connection, schema).items():
        table = sql.Identifier(schema, name)
        if hypertables and not is_view:
            where = {"schema": schema, "table": name}
            for chunk_schema, chunk, _ in connection.execute(queries.load("rebuild")["chunks"], where).fetchall():
                connection.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(chunk_schema, chunk)))
        connection.execute(sql.SQL("DROP {} {}").format(sql.SQL("MATERIALIZED VIEW" if is_view else "TABLE"), table))
    connection.execute(queries.load("rebuild")["forget_retirements"], {"schema": schema})
    connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))


def storage_of(connection: Connection, schema: str) -> str:
    """How a generation keeps its large tables."""
    row = connection.execute("SELECT storage FROM stepwell.generations WHERE name = %s", (schema,)).fetchone()
    assert row is not None
    return str(row[0])
