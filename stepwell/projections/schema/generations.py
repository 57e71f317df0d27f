"""Generations of the tables: each is a schema of its own, and the views of the schema ``stepwell`` show one of them.

The tables can be made again from the log beside those in use. So they do not stand in the schema that people query, but
in ``stepwell_g1``, ``stepwell_g2`` and so on; ``stepwell.homes`` says where each of them lives. Whoever writes holds a
shared lock for as long as a transaction lasts, and looks first whether the tables still live where it thinks; whoever
moves them holds the lock exclusively. See docs/decisions/0045-generations.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from stepwell import __version__
from stepwell.exceptions import GenerationMovedError, MigrationError
from stepwell.projections import queries
from stepwell.projections.database import Connection
from stepwell.projections.schema.files import HYPERTABLES, PLAIN, SchemaFile

__all__ = [
    "ACTIVE",
    "BUILDING",
    "FIRST",
    "RETIRED",
    "Homes",
    "make_generation",
    "read_homes",
    "run_in_schema",
    "storage_of_server",
]

FIRST = "stepwell_g1"
"""Name of the first generation."""
BUILDING, ACTIVE, RETIRED = "building", "active", "retired"


@dataclass(frozen=True, slots=True)
class Homes:
    """Where the tables live.

    Attributes:
        schemas: the generations that hold them, the newest first.
        storage: of the newest: ``hypertables`` or ``plain``.
        active: whether these are the tables that the views show; a generation that is being built is not.
        relations: the only ones that are to be written; None: all.
    """

    schemas: tuple[str, ...]
    storage: str
    active: bool = True
    relations: frozenset[str] | None = None

    def takes(self, relation: str) -> bool:
        """Whether rows of this table are to be written."""
        return self.relations is None or relation in self.relations

    @property
    def search_path(self) -> str:
        return ", ".join(f'"{schema}"' for schema in self.schemas)

    def show(self, connection: Connection) -> None:
        """Let the tables' bare names be understood until the end of this transaction, which only reads what stays."""
        connection.execute(queries.load("generations")["show"], {"path": self.search_path})

    def enter(self, connection: Connection) -> None:
        """Begin a transaction's work on the tables: from here on their bare names are understood.

        Call it first thing in a transaction. Until its end, nobody can move the tables.

        Raises:
            GenerationMovedError: the tables live elsewhere now; read the homes, and every position, again.
        """
        sql_ = queries.load("generations")
        connection.execute(sql_["enter"], {"path": self.search_path})
        if not self.active:
            return
        # A statement of its own: the lock may have been waited for, and a snapshot is older than the wait.
        found = connection.execute(sql_["homes"]).fetchone()
        if found is None or tuple(found[0] or ()) != self.schemas:
            now = ", ".join((found and found[0]) or ["nowhere"])
            raise GenerationMovedError(f"The tables have moved from {', '.join(self.schemas)} to {now}")


def read_homes(connection: Connection) -> Homes:
    """Where the tables live now.

    Raises:
        MigrationError: there are none yet.
    """
    row = connection.execute(queries.load("generations")["homes"]).fetchone()
    if row is None or not row[0]:
        raise MigrationError("The database has no tables yet. Run: stepwell db migrate")
    return Homes(tuple(row[0]), row[1])


def storage_of_server(connection: Connection) -> str:
    """What a new generation of this database is made of: ``hypertables`` where TimescaleDB is there."""
    found = connection.execute(queries.load("generations")["has_timescale"]).fetchone()
    return HYPERTABLES if found == (True,) else PLAIN


def make_generation(
    connection: Connection, files: Sequence[SchemaFile], *, made_from: str, relations: Sequence[str] | None = None
) -> Homes:
    """Make the schema and tables of a new generation, in a transaction that the caller has opened; its homes.

    Args:
        connection: within a transaction, under the migrators' lock.
        files: of the tables; those that the storage does not fit are passed over.
        made_from: ``live``, ``log`` or ``archive``.
        relations: the tables that it is made for; None: all. (All are made.)
    """
    queries_ = queries.load("generations")
    storage = storage_of_server(connection)
    row = connection.execute(queries_["next_name"]).fetchone()
    assert row is not None
    name: str = row[0]
    connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
    comment = "One generation of the tables. Query the views in the schema stepwell, which show the one in force."
    connection.execute(sql.SQL("COMMENT ON SCHEMA {} IS {}").format(sql.Identifier(name), comment))
    connection.execute(
        queries_["new_generation"],
        {
            "name": name, "storage": storage, "relations": None if relations is None else list(relations),
            "made_from": made_from, "made_by": __version__,
        },
    )  # fmt: skip
    for file in files:
        if file.fits(storage):
            run_in_schema(connection, name, file)
    return Homes((name,), storage, active=False)


def run_in_schema(connection: Connection, schema: str, file: SchemaFile) -> None:
    """Run a file of the tables in a generation, within a transaction, and note it.

    Raises:
        psycopg.Error: what a statement failed with.
    """
    queries_ = queries.load("generations")
    connection.execute(queries_["file_path"], {"schema": schema})
    connection.execute(file.sql)
    row = {"scope": schema, "version": file.version, "name": file.name, "sha256": file.sha256, "by": __version__}
    connection.execute(queries.load("migrate")["record"], row)


def activate(connection: Connection, schema: str) -> None:
    """Let every table of a generation live there from now on; within a transaction, under the exclusive lock.

    The views still show the old ones until they are made again (`stepwell.projections.schema.public_views`).
    """
    connection.execute(queries.load("generations")["take_homes"], {"schema": schema})
    connection.execute(queries.load("generations")["settle_states"])


def lock_exclusively(connection: Connection) -> None:
    """Wait until no writer is in a transaction, and let none begin one, until the end of this transaction."""
    connection.execute(queries.load("generations")["lock"])
