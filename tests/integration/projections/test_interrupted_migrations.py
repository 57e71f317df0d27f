"""A migration that is cut off after any of its statements can be run again, and comes to the same."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from stepwell.exceptions import DatabaseUnavailableError, MigrationError
from stepwell.projections import migrate as module
from stepwell.projections.migrate import migrate, status

CATALOGUE = """
SELECT n.nspname, c.relname, c.relkind::text,
       string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod), ', ' ORDER BY a.attnum)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE n.nspname ~ '^stepwell' AND c.relkind IN ('r', 'v', 'i', 'S') GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""


class Cutting(psycopg.Connection[tuple[Any, ...]]):
    """Its backend is killed after so many statements."""

    left = 0

    def execute(self, *arguments: Any, **options: Any) -> psycopg.Cursor[tuple[Any, ...]]:
        cursor = super().execute(*arguments, **options)
        Cutting.left -= 1
        if Cutting.left == 0:
            self.pgconn.finish()
        return cursor


@pytest.fixture
def cutting(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect_to_cut(url: str, **_: Any) -> Cutting:
        return Cutting.connect(url, autocommit=True)

    monkeypatch.setattr(module, "connect", connect_to_cut)


def catalogue(url: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(CATALOGUE).fetchall()


@pytest.fixture
def whole(new_database: Callable[[], str]) -> list[tuple[Any, ...]]:
    """What a database has whose migration nobody interrupted."""
    url = new_database()
    migrate(url)
    return catalogue(url)


@pytest.mark.usefixtures("cutting")
def test_cut_off_after_each_statement_it_can_be_run_again(
    new_database: Callable[[], str], whole: list[tuple[Any, ...]]
) -> None:
    """What was done stays done: the statements of each part are gone through one by one, and then the next part's."""
    url, cut, runs, states = new_database(), 0, 0, [-1]
    while True:
        cut += 1
        runs += 1
        Cutting.left = cut
        try:
            migrate(url)
        except (DatabaseUnavailableError, MigrationError, psycopg.Error):
            reached = applied(url)
            assert reached >= states[-1], "what was applied is gone"
            if reached > states[-1]:
                states.append(reached)
                cut = max(0, cut - 3)
            continue
        if Cutting.left > 0:
            break
    assert runs > 60, "each file of the schema is a statement"
    assert len(states) > 5, "the parts are applied one after the other"
    assert status(url).current
    assert catalogue(url) == whole
    assert migrate(url) == []


def applied(url: str) -> int:
    with psycopg.connect(url) as connection:
        if connection.execute("SELECT to_regclass('stepwell.schema_migrations')").fetchone() == (None,):
            return 0
        row = connection.execute("SELECT count(*) FROM stepwell.schema_migrations").fetchone()
    assert row is not None
    return int(row[0])
