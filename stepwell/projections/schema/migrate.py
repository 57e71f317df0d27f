"""Brings a database's schema to this version, and tells how it stands.

Numbered SQL files, each applied in a transaction of its own: first those of the schema ``stepwell``, then those of the
tables in each generation, then the views, which are no state and made anew as they are to be. What was interrupted left
nothing behind and is simply run again. What was applied is kept with a digest of its file, so that a file changed
afterwards is noticed. An advisory lock makes migrators that start together take turns.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import psycopg

from stepwell import __version__
from stepwell.exceptions import DatabaseError, MigrationError
from stepwell.projections import queries
from stepwell.projections.database import Connection, connect, named_errors
from stepwell.projections.schema import generations
from stepwell.projections.schema.files import SchemaFile, SchemaFiles, packaged
from stepwell.projections.schema.generations import FIRST, RETIRED
from stepwell.projections.schema.public_views import make_views
from stepwell.redaction import redact_url

__all__ = ["AppliedMigration", "PendingMigration", "SchemaStatus", "migrate", "migrating", "require_current", "status"]

CONTROL = "stepwell"
"""The scope of what stands beside the generations: the name of its schema."""
_LOCK_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class AppliedMigration:
    """One row of ``schema_migrations``. ``scope``: the schema that it was applied to."""

    scope: str
    version: int
    name: str
    sha256: str
    applied_at: datetime
    applied_by: str


@dataclass(frozen=True, slots=True)
class PendingMigration:
    """A file that a schema lacks."""

    scope: str
    file: SchemaFile


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """How a database's schema stands to this version of Stepwell.

    Attributes:
        applied: what the database has.
        pending: what it lacks; of a database without tables, what its first generation will get.
        changed: names of applied files that have changed since.
        unknown: applied files that this version does not know: the database is newer.
        storage: of the newest generation in force: ``hypertables`` or ``plain``; ``none`` before the first.
    """

    applied: tuple[AppliedMigration, ...]
    pending: tuple[PendingMigration, ...]
    changed: tuple[str, ...]
    unknown: tuple[AppliedMigration, ...]
    storage: str

    @property
    def current(self) -> bool:
        return not (self.pending or self.changed or self.unknown)


def migrate(url: str, files: SchemaFiles | None = None) -> list[AppliedMigration]:
    """Bring the schema up to this version; what was applied now. ``files`` None: the packaged ones.

    Raises:
        MigrationError: the database is newer than this version, an applied file has changed, or a statement failed
            (its migration was rolled back; those before it stand).
        DatabaseUnavailableError: no server answers.
    """
    wanted = files or packaged()
    with migrating(url) as connection:
        before = _bootstrap(connection)
        _refuse_misfit(url, _compare(connection, wanted))
        for pending in _compare(connection, wanted).pending:
            if pending.scope == CONTROL:
                _apply(connection, pending)
        _make_first_generation(connection, wanted)
        for pending in _compare(connection, wanted).pending:
            _apply(connection, pending)
        with _named("The views", connection):
            make_views(connection, wanted.views)
        done = _applied(connection)
    return done[before:]


@contextlib.contextmanager
def migrating(url: str) -> Iterator[Connection]:
    """A connection that holds the migrators' lock: nobody else changes the schema meanwhile.

    Raises:
        DatabaseUnavailableError: no server answers, or another migrator does not end.
    """
    sql = queries.load("migrate")
    with connect(url, application="stepwell migrate") as connection, named_errors(url):
        connection.execute("SELECT set_config('lock_timeout', %s, false)", (f"{_LOCK_TIMEOUT_S}s",))
        connection.execute(sql["lock"])
        try:
            yield connection
        finally:
            if not connection.closed:
                connection.execute(sql["unlock"])


def status(url: str, files: SchemaFiles | None = None) -> SchemaStatus:
    """How the schema stands; changes nothing. Raises `DatabaseUnavailableError` when no server answers."""
    with connect(url, application="stepwell status") as connection, named_errors(url):
        return _compare(connection, files or packaged())


def require_current(url: str, connection: Connection) -> None:
    """Refuse to work on a schema of another version.

    Raises:
        MigrationError: says which side is older and the command to run.
        DatabaseError: the user is a reader, who may not see that, nor do what it is asked for.
    """
    try:
        state = _compare(connection, packaged())
    except psycopg.errors.InsufficientPrivilege as error:
        raise DatabaseError(
            f"The user of the database {redact_url(url)} may only read views, and this command needs more: use one "
            "with the role stepwell_writer or stepwell_owner (stepwell db roles --grant)"
        ) from error
    _refuse_misfit(url, state)
    if state.pending:
        names = ", ".join(dict.fromkeys(pending.file.name for pending in state.pending))
        raise MigrationError(f"The database {redact_url(url)} lacks the migrations {names}. Run: stepwell db migrate")


def _bootstrap(connection: Connection) -> int:
    """Make what notes the migrations; how many are noted."""
    sql = queries.load("migrate")
    connection.execute(sql["take_up_timescale"])
    with connection.transaction():
        for entry in ("bootstrap_schema", "bootstrap_table", "bootstrap_comments"):
            connection.execute(sql[entry])
    return len(_applied(connection)) if _has_scopes(connection) else 0


def _make_first_generation(connection: Connection, files: SchemaFiles) -> None:
    if connection.execute(queries.load("migrate")["has_generation"]).fetchone() == (True,):
        return
    with _named("The first generation of the tables", connection):
        homes = generations.make_generation(connection, files.tables, made_from="live")
        generations.activate(connection, homes.schemas[0])


def _apply(connection: Connection, pending: PendingMigration) -> None:
    with _named(f"Migration {pending.file.name}", connection):
        if pending.scope == CONTROL:
            connection.execute(pending.file.sql)
            file = pending.file
            row = {
                "scope": CONTROL,
                "version": file.version,
                "name": file.name,
                "sha256": file.sha256,
                "by": __version__,
            }
            connection.execute(queries.load("migrate")["record"], row)
        else:
            generations.run_in_schema(connection, pending.scope, pending.file)


@contextlib.contextmanager
def _named(what: str, connection: Connection) -> Iterator[None]:
    """One transaction, and its failure in words. A connection that broke stays a matter of the database."""
    try:
        with connection.transaction():
            yield
    except psycopg.OperationalError:
        raise
    except psycopg.Error as error:
        raise MigrationError(f"{what} failed and was rolled back: {str(error).strip()}") from error


def _compare(connection: Connection, known: SchemaFiles) -> SchemaStatus:
    sql = queries.load("migrate")
    if connection.execute(sql["exists"]).fetchone() != (True,):
        return SchemaStatus((), tuple(_first_of_all(known)), (), (), "none")
    if not _has_scopes(connection):
        raise MigrationError(
            "The database was made by a version of Stepwell before 0.1.0, whose tables cannot be taken along. All that "
            "is in them is in the log: drop them (DROP SCHEMA stepwell CASCADE), then run: stepwell db migrate"
        )
    applied = tuple(_applied(connection))
    wanted = {(CONTROL, file.name): file for file in known.control}
    storage = "none"
    if connection.execute(sql["has_generations"]).fetchone() == (True,):
        for name, kind, state in connection.execute(sql["generations"]):
            storage = kind if state == generations.ACTIVE else storage
            if state != RETIRED:
                wanted |= {(name, file.name): file for file in known.tables if file.fits(kind)}
    if storage == "none":
        wanted |= {(pending.scope, pending.file.name): pending.file for pending in _first_of_all(known)}
    there = {(row.scope, row.name): row for row in applied}
    retired = {scope for scope, _ in there} - {scope for scope, _ in wanted}
    return SchemaStatus(
        applied,
        pending=tuple(
            PendingMigration(scope, file) for (scope, _), file in wanted.items() if (scope, file.name) not in there
        ),
        changed=tuple(
            sorted({file.name for key, file in wanted.items() if key in there and there[key].sha256 != file.sha256})
        ),
        unknown=tuple(row for key, row in there.items() if key not in wanted and row.scope not in retired),
        storage=storage,
    )


def _first_of_all(known: SchemaFiles) -> list[PendingMigration]:
    """What a database without tables gets, as far as it does not depend on the server."""
    tables = (PendingMigration(FIRST, file) for file in known.tables if file.storage is None)
    return [*(PendingMigration(CONTROL, file) for file in known.control), *tables]


def _has_scopes(connection: Connection) -> bool:
    return connection.execute(queries.load("migrate")["has_scopes"]).fetchone() == (True,)


def _applied(connection: Connection) -> list[AppliedMigration]:
    return [AppliedMigration(*row) for row in connection.execute(queries.load("migrate")["applied"])]


def _refuse_misfit(url: str, state: SchemaStatus) -> None:
    where = redact_url(url)
    if state.unknown:
        newest = state.unknown[-1]
        raise MigrationError(
            f"The database {where} has migration {newest.name}, applied by Stepwell {newest.applied_by}; this is "
            f"Stepwell {__version__}, which does not know it. Run: pip install --upgrade stepwell"
        )
    if state.changed:
        raise MigrationError(
            f"{', '.join(state.changed)} changed after it was applied to the database {where}. Applied files must stay "
            "as they were: restore the file and put the change into a new migration."
        )
