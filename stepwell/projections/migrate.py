"""The database's schema: plain SQL files, numbered, applied in order, each in a transaction of its own.

A migration that was interrupted left nothing behind and is simply run again. What was applied is kept with a digest of
its file, so that a file changed afterwards is noticed. An advisory lock makes migrators that start together take turns.
"""

import hashlib
import re
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib import resources

from stepwell import __version__
from stepwell.exceptions import MigrationError
from stepwell.projections import queries
from stepwell.projections.database import Connection, connect, named_errors
from stepwell.redaction import redact_url

__all__ = ["AppliedMigration", "Migration", "SchemaStatus", "migrate", "packaged", "require_current", "status"]

_FILE = re.compile(r"^(\d{4})_[a-z0-9_]+\.sql$")
_LOCK_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class Migration:
    """One packaged file."""

    version: int
    name: str
    sql: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class AppliedMigration:
    """One row of ``schema_migrations``."""

    version: int
    name: str
    sha256: str
    applied_at: datetime
    applied_by: str


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """How a database's schema stands to this version of Stepwell.

    Attributes:
        applied: what the database has.
        pending: what it lacks.
        changed: names of applied migrations whose packaged file has changed since.
        unknown: applied migrations that this version does not know: the database is newer.
        storage: ``hypertables``, ``plain``, or ``none`` before the first migration.
    """

    applied: tuple[AppliedMigration, ...]
    pending: tuple[Migration, ...]
    changed: tuple[str, ...]
    unknown: tuple[AppliedMigration, ...]
    storage: str

    @property
    def current(self) -> bool:
        return not (self.pending or self.changed or self.unknown)


@cache
def packaged() -> tuple[Migration, ...]:
    """The migrations of this version, by number; the numbers run from 1 without a hole."""
    folder = resources.files(__package__).joinpath("migrations")
    found = [
        Migration(int(match[1]), entry.name, entry.read_text())
        for entry in folder.iterdir()
        if (match := _FILE.match(entry.name))
    ]
    found.sort(key=lambda migration: migration.version)
    if [migration.version for migration in found] != list(range(1, len(found) + 1)):
        raise MigrationError(f"The packaged migrations are not numbered 1, 2, ...: {[m.name for m in found]}")
    return tuple(found)


def migrate(url: str, migrations: tuple[Migration, ...] | None = None) -> list[Migration]:
    """Bring the schema up to this version; what was applied now. ``migrations`` None: the packaged ones.

    Raises:
        MigrationError: the database is newer than this version, an applied file has changed, or a statement failed
            (its migration was rolled back; those before it stand).
        DatabaseUnavailableError: no server answers.
    """
    wanted = packaged() if migrations is None else migrations
    sql = queries.load("migrate")
    done: list[Migration] = []
    with connect(url, application="stepwell migrate") as connection, named_errors(url):
        connection.execute("SELECT set_config('lock_timeout', %s, false)", (f"{_LOCK_TIMEOUT_S}s",))
        connection.execute(sql["lock"])
        try:
            connection.execute(sql["take_up_timescale"])
            with connection.transaction():
                for entry in ("bootstrap_schema", "bootstrap_table", "bootstrap_comments"):
                    connection.execute(sql[entry])
            state = _compare(connection, wanted)
            _refuse_misfit(url, state)
            for migration in state.pending:
                _apply(connection, migration)
                done.append(migration)
            if connection.execute("SELECT to_regproc('stepwell.ensure_hypertables')").fetchone() != (None,):
                connection.execute(sql["ensure_hypertables"])
        finally:
            if not connection.closed:
                connection.execute(sql["unlock"])
    return done


def _apply(connection: Connection, migration: Migration) -> None:
    import psycopg

    try:
        with connection.transaction():
            connection.execute(migration.sql)
            row = (migration.version, migration.name, migration.sha256, __version__)
            connection.execute(queries.load("migrate")["record"], row)
    except psycopg.OperationalError:
        raise
    except psycopg.Error as error:
        raise MigrationError(f"Migration {migration.name} failed and was rolled back: {str(error).strip()}") from error


def status(url: str, migrations: tuple[Migration, ...] | None = None) -> SchemaStatus:
    """How the schema stands; changes nothing. Raises `DatabaseUnavailableError` when no server answers."""
    with connect(url, application="stepwell status") as connection, named_errors(url):
        return _compare(connection, packaged() if migrations is None else migrations)


def require_current(url: str, connection: Connection) -> None:
    """Refuse to work on a schema of another version.

    Raises:
        MigrationError: says which side is older and the command to run.
    """
    state = _compare(connection, packaged())
    _refuse_misfit(url, state)
    if state.pending:
        names = ", ".join(migration.name for migration in state.pending)
        raise MigrationError(f"The database {redact_url(url)} lacks the migrations {names}. Run: stepwell db migrate")


def _compare(connection: Connection, known: tuple[Migration, ...]) -> SchemaStatus:
    sql = queries.load("migrate")
    if connection.execute(sql["exists"]).fetchone() != (True,):
        return SchemaStatus((), known, (), (), "none")
    applied = tuple(AppliedMigration(*row) for row in connection.execute(sql["applied"]))
    by_version = {row.version: row for row in applied}
    changed = tuple(m.name for m in known if m.version in by_version and by_version[m.version].sha256 != m.sha256)
    pending = tuple(m for m in known if m.version not in by_version)
    versions = {m.version for m in known}
    unknown = tuple(row for row in applied if row.version not in versions)
    return SchemaStatus(applied, pending, changed, unknown, _storage(connection, bool(applied)))


def _storage(connection: Connection, has_tables: bool) -> str:
    if not has_tables:
        return "none"
    if connection.execute("SELECT to_regclass('timescaledb_information.hypertables') IS NULL").fetchone() == (True,):
        return "plain"
    found = connection.execute(
        "SELECT count(*) FROM timescaledb_information.hypertables WHERE hypertable_schema = 'stepwell'"
    ).fetchone()
    return "hypertables" if found and found[0] else "plain"


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
