"""A migrated, empty database for each test, on PostgreSQL and on TimescaleDB, and a projector to run on it."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

import psycopg
import pytest

from stepwell.adapters.logs.memory import MemoryLog
from stepwell.engine.ports import MessageLog
from stepwell.projections.audit.rows import audit_tables
from stepwell.projections.rebuild.rebuilder import Outcome, Rebuilder
from stepwell.projections.schema.migrate import migrate
from stepwell.projections.writing.projector import Projector
from stepwell.projections.writing.rows import PROJECTED_TOPICS
from tests.integration.projections.facts import CODEC

# Continuous aggregates keep what they have when the table under them is emptied. None on plain PostgreSQL.
_AGGREGATES = """
SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname ~ '^stepwell_g' AND c.relkind = 'v'
"""


@pytest.fixture(scope="module", params=["postgres", "timescale"])
def migrated_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue("postgres_url" if request.param == "postgres" else "timescale_url")
    migrate(url)
    return url


@pytest.fixture
def database(migrated_url: str) -> str:
    """URL of a database with the current schema and nothing in it."""
    with psycopg.connect(migrated_url, autocommit=True) as connection:
        tables = connection.execute("SELECT schemaname, tablename FROM pg_tables WHERE schemaname ~ '^stepwell_g'")
        for schema, table in tables.fetchall():
            connection.execute(f"TRUNCATE {schema}.{table}")
        connection.execute("TRUNCATE stepwell.retirements")
        for (name,) in connection.execute(_AGGREGATES).fetchall():
            connection.execute(f"TRUNCATE {name}")
    return migrated_url


@pytest.fixture
def log() -> Iterator[MessageLog]:
    memory = MemoryLog()
    yield memory
    memory.close()


@pytest.fixture
def query(database: str) -> Callable[..., list[tuple[object, ...]]]:
    """Runs one statement in a connection of its own; its rows."""

    def run(statement: str, *parameters: object) -> list[tuple[object, ...]]:
        with psycopg.connect(database, autocommit=True) as connection:
            cursor = connection.execute(statement, parameters or None)
            return cursor.fetchall() if cursor.description else []

    return run


class Running:
    """A projector in a thread. Leaving the block stops it and raises what it raised."""

    def __init__(self, projector: Projector, log: MessageLog) -> None:
        self.projector = projector
        self.error: BaseException | None = None
        self._log = log
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.projector.run(self._stop)
        except BaseException as error:  # noqa: BLE001 - raised again by the test
            self.error = error

    def wait(self, ready: Callable[[], bool], timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not ready():
            if self.error is not None or not self._thread.is_alive():
                raise self.error or AssertionError("the projector ended by itself")
            assert time.monotonic() < deadline, f"not ready within {timeout_s} s; positions: {self.projector.positions}"
            time.sleep(0.02)

    def wait_caught_up(self) -> None:
        """Until everything that is in the log now is in the database."""
        admin = self._log.admin()
        ends = {s: marks.high for topic in PROJECTED_TOPICS for s, marks in admin.watermarks(topic).items()}
        admin.close()
        self.wait(lambda: all(self.projector.positions.get(source, -1) >= end for source, end in ends.items()))

    def wait_reported(self) -> None:
        """Until the database says that all which is in the log now is in its tables."""
        self.wait_caught_up()
        now = time.time()
        newest = "SELECT extract(epoch FROM as_of) FROM stepwell.projection_freshness"
        with psycopg.connect(self.projector._url, autocommit=True) as connection:
            self.wait(lambda: any((at or 0) >= now for (at,) in connection.execute(newest)))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "the projector does not stop"


@pytest.fixture
def running(database: str, log: MessageLog) -> Callable[..., Running]:
    """Makes a projector on the test's log and database; enter the result to start it."""

    def make(**options: object) -> Running:
        return Running(Projector(log, database, CODEC, **options), log)  # type: ignore[arg-type]

    return make


@pytest.fixture
def drain(running: Callable[..., Running]) -> Callable[..., None]:
    """Projects all that is in the log now, and stops."""

    def run(**options: object) -> None:
        with running(**options) as projector:
            projector.wait_caught_up()

    return run


@pytest.fixture
def rebuild(log: MessageLog, database: str) -> Callable[..., Outcome]:
    def run(*tables: str, **options: Any) -> Outcome:
        return Rebuilder(log, lambda: database, CODEC, tables=tables or None, **options).run()

    return run


@pytest.fixture
def no_difference(log: MessageLog, database: str) -> Callable[[], None]:
    def check() -> None:
        with psycopg.connect(database) as connection:
            assert audit_tables(log, CODEC, connection).differences == []

    return check
