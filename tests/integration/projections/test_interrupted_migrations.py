"""A migration that is cut off anywhere, between its files or within one, can be run again, and comes to the same."""

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from stepwell.exceptions import DatabaseError, DatabaseUnavailableError, MigrationError
from stepwell.projections.schema import migrate as module
from stepwell.projections.schema.migrate import migrate, status

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


# Fires within a file, whose statements go to the server all at once. What a sequence counts is not rolled back.
CUT_WITHIN = """
CREATE SEQUENCE public.commands;
CREATE TABLE public.cut_at (command bigint);
INSERT INTO public.cut_at VALUES (0);
CREATE FUNCTION public.cut() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
    IF tg_tag <> 'COMMENT' AND nextval('public.commands') = (SELECT command FROM public.cut_at) THEN
        RAISE EXCEPTION 'cut off after %', tg_tag;
    END IF;
END $$;
CREATE EVENT TRIGGER cut ON ddl_command_end EXECUTE FUNCTION public.cut();
"""


@pytest.fixture
def cut_within(request: pytest.FixtureRequest) -> Iterator[str]:
    """A database without our schema, which fails after the command that ``cut_at`` says."""
    url: str = request.getfixturevalue("timescale_url") if request.param == "timescale" else request.getfixturevalue("new_database")()  # fmt: skip # noqa: E501
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(CUT_WITHIN)
    yield url
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP EVENT TRIGGER cut")


@pytest.mark.parametrize(("cut_within", "stride"), [("postgres", 5), ("timescale", 12)], indirect=["cut_within"])
def test_cut_off_within_each_file_it_can_be_run_again(cut_within: str, stride: int) -> None:
    """Nothing of a file stays that was not done to its end; the next run does it, and comes to the same."""
    migrate(cut_within)
    whole = catalogue(cut_within)
    with psycopg.connect(cut_within, autocommit=True) as connection:
        connection.execute("DROP SCHEMA stepwell_g1 CASCADE")
        connection.execute("DROP SCHEMA stepwell CASCADE")
    cut, states, told = 0, [0], set()
    while True:
        cut += stride
        with psycopg.connect(cut_within, autocommit=True) as connection:
            connection.execute("UPDATE public.cut_at SET command = %s", (cut,))
            connection.execute("ALTER SEQUENCE public.commands RESTART")
        before = catalogue(cut_within)
        try:
            migrate(cut_within)
        except DatabaseError as error:
            told.add(str(error).split(" failed and was rolled back: cut off after ")[0])
        else:
            break
        reached = applied(cut_within)
        assert reached >= states[-1], "what was applied is gone"
        if reached > states[-1]:
            states.append(reached)
            cut = 0
        elif cut > stride:
            assert catalogue(cut_within) == before, "of what was cut off, something has stayed"
    assert told >= {"The views", "The first generation of the tables"}, told
    assert any(each.startswith("Migration ") for each in told), told
    assert status(cut_within).current
    assert catalogue(cut_within) == whole
    assert migrate(cut_within) == []


@pytest.mark.usefixtures("cutting")
def test_cut_off_after_each_file_it_can_be_run_again(
    new_database: Callable[[], str], whole: list[tuple[Any, ...]]
) -> None:
    """The backend is killed. What was done stays done: each part's calls are gone through, then the next part's."""
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
