"""The schema: made, made again, interrupted, changed, too new; and described to the last column."""

import threading
from collections.abc import Callable
from dataclasses import replace

import psycopg
import pytest

from stepwell.engine.ports import MessageLog
from stepwell.exceptions import DatabaseUnavailableError, MigrationError
from stepwell.projections.audit.rows import audit_tables
from stepwell.projections.database import connect
from stepwell.projections.schema.files import SchemaFile, SchemaFiles, packaged
from stepwell.projections.schema.migrate import AppliedMigration, migrate, require_current, status
from stepwell.projections.tables import KINDS
from stepwell.projections.writing.copy_format import TYPE_NAMES
from stepwell.projections.writing.projector import Projector
from tests.integration.projections.facts import CODEC


def test_what_is_there(database: str, request: pytest.FixtureRequest) -> None:
    state = status(database)
    assert state.current
    storage = "hypertables" if "timescale" in request.node.callspec.id else "plain"
    assert state.storage == storage
    assert [row.name for row in state.applied if row.scope == "stepwell"] == [file.name for file in packaged().control]
    assert [row.name for row in state.applied if row.scope == "stepwell_g1"] == [
        file.name for file in packaged().tables if file.fits(storage)
    ]
    assert migrate(database) == []


def test_every_table_column_and_view_says_what_it_holds(query: Callable[..., list[tuple[str, ...]]]) -> None:
    silent = query(r"""
        SELECT c.relname, NULL FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname ~ '^stepwell(_g\d+)?$' AND c.relkind IN ('r', 'p', 'v')
        AND obj_description(c.oid, 'pg_class') IS NULL
        UNION ALL
        SELECT c.relname, a.attname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        WHERE n.nspname ~ '^stepwell(_g\d+)?$' AND c.relkind IN ('r', 'p')
        AND col_description(c.oid, a.attnum) IS NULL""")
    assert silent == []


def test_numbers_and_times_name_their_unit(query: Callable[..., list[tuple[str, ...]]]) -> None:
    columns = query(r"""
        SELECT c.relname, a.attname, col_description(c.oid, a.attnum) FROM pg_class c
        JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname ~ '^stepwell(_g\d+)?$'
        JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        WHERE c.relkind = 'r' AND format_type(a.atttypid, NULL) <> ALL(ARRAY['text', 'uuid'])""")
    assert len(columns) > 100
    allowed = ("(", "in the unit of the column", "numbers may skip")
    unclear = [column for column in columns if not any(word in column[2] for word in allowed)]
    assert unclear == []


def test_rows_are_packed_as_their_columns_want(query: Callable[..., list[tuple[str, ...]]]) -> None:
    """Binary COPY checks no types: four bytes too few would be refused, eight bytes of another type would not."""
    found = {
        (table, column): type_
        for table, column, type_ in query("""
            SELECT c.relname, a.attname, format_type(a.atttypid, NULL) FROM pg_class c
            JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'stepwell_g1'
            JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped""")
    }
    for kind in KINDS.values():
        for column, type_ in zip(kind.columns, kind.types, strict=True):
            assert found[kind.target, column] == TYPE_NAMES[type_], (kind.name, column)


def control(*statements: str) -> SchemaFiles:
    """The packaged files, and after those of the control schema these."""
    known = packaged()
    more = [SchemaFile(len(known.control) + n, f"more_{n}.sql", text) for n, text in enumerate(statements, 1)]
    return replace(known, control=(*known.control, *more))


def test_an_interrupted_migration_leaves_nothing_and_runs_again(new_database: Callable[[], str]) -> None:
    url = new_database()
    first = "CREATE TABLE stepwell.first (a int)"
    broken = control(first, "CREATE TABLE stepwell.more (a int); SELECT 1/0")
    with pytest.raises(MigrationError, match=r"more_2\.sql failed and was rolled back: division by zero"):
        migrate(url, broken)
    state = status(url, broken)
    assert [row.name for row in state.applied] == [*(file.name for file in packaged().control), "more_1.sql"]
    whole = control(first, "CREATE TABLE stepwell.more (a int)")
    assert next(row.name for row in migrate(url, whole)) == "more_2.sql"
    assert status(url, whole).current


def test_tables_of_a_generation_are_migrated_too(new_database: Callable[[], str]) -> None:
    migrate(url := new_database())
    known = packaged()
    number = known.tables[-1].version + 1
    added = "ALTER TABLE runs ADD COLUMN site text; COMMENT ON COLUMN runs.site IS 'Where (name).'"
    more = replace(known, tables=(*known.tables, SchemaFile(number, "more.sql", added)))
    assert [pending.scope for pending in status(url, more).pending] == ["stepwell_g1"]
    assert [(row.scope, row.name) for row in migrate(url, more)] == [("stepwell_g1", "more.sql")]
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT site FROM stepwell.runs").fetchall() == []


def test_somebody_elses_view_stays_where_ours_can_be_replaced_and_is_named_where_not(
    new_database: Callable[[], str],
) -> None:
    migrate(url := new_database())
    known = packaged()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE VIEW public.mine AS SELECT run_id FROM stepwell.run_summary")
    more = SchemaFile(99, "more.sql", "CREATE OR REPLACE VIEW stepwell.more AS SELECT 1 AS one")
    migrate(url, replace(known, views=(*known.views, more)))
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT * FROM stepwell.more, public.mine").fetchall() == []
    last = SchemaFile(99, "more.sql", "CREATE OR REPLACE VIEW stepwell.more AS SELECT 'two' AS other")
    with pytest.raises(MigrationError, match=r"view public\.mine depends on view stepwell\.run_summary"):
        migrate(url, replace(known, views=(*known.views, last)))
    with psycopg.connect(url, autocommit=True) as connection:
        assert connection.execute("SELECT one FROM stepwell.more").fetchall() == [(1,)]
        connection.execute("DROP VIEW public.mine")
    migrate(url, replace(known, views=(*known.views, last)))
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT other FROM stepwell.more").fetchall() == [("two",)]


def test_tables_of_a_development_version_are_named(new_database: Callable[[], str]) -> None:
    url = new_database()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA stepwell CREATE TABLE schema_migrations (version integer PRIMARY KEY)")
    with pytest.raises(MigrationError, match=r"before 0\.1\.0.*DROP SCHEMA stepwell CASCADE"):
        migrate(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA stepwell CASCADE")
    migrate(url)
    assert status(url).current


def test_a_changed_file_is_named(new_database: Callable[[], str]) -> None:
    url = new_database()
    migrate(url, control("SELECT 1"))
    changed = control("SELECT 2", "SELECT 3")
    with pytest.raises(MigrationError, match=r"more_1\.sql changed after it was applied"):
        migrate(url, changed)
    assert status(url, changed).changed == ("more_1.sql",)


def test_a_newer_schema_is_refused(new_database: Callable[[], str]) -> None:
    url = new_database()
    migrate(url, control("SELECT 1"))
    with pytest.raises(MigrationError, match=r"more_1\.sql.*pip install --upgrade stepwell"):
        migrate(url)
    with connect(url, application="test") as connection, pytest.raises(MigrationError, match="--upgrade"):
        require_current(url, connection)


def test_a_projector_refuses_an_older_schema(new_database: Callable[[], str], log: MessageLog) -> None:
    projector = Projector(log, new_database(), CODEC)
    with pytest.raises(MigrationError, match="Run: stepwell db migrate"):
        projector.run(threading.Event())


def test_the_audit_of_a_database_without_tables_says_what_to_do(
    new_database: Callable[[], str], log: MessageLog
) -> None:
    with psycopg.connect(new_database()) as connection, pytest.raises(MigrationError, match="Run: stepwell db migrate"):
        audit_tables(log, CODEC, connection)


def test_migrators_that_start_together_take_turns(new_database: Callable[[], str]) -> None:
    url = new_database()
    done: list[list[AppliedMigration]] = []
    threads = [threading.Thread(target=lambda: done.append(migrate(url))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(len(applied) for applied in done) == [0, 0, 0, len(status(url).applied)]


def test_a_database_that_is_not_there(new_database: Callable[[], str]) -> None:
    url = new_database()
    with pytest.raises(DatabaseUnavailableError, match=r"stepwell:\*\*\*@127\.0\.0\.1:1/"):
        migrate(psycopg_url(url, port=1))


def psycopg_url(url: str, port: int) -> str:
    info = psycopg.conninfo.conninfo_to_dict(url)
    return f"postgresql://{info['user']}:{info['password']}@127.0.0.1:{port}/{info['dbname']}"
