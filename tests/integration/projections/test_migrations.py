"""The schema: made, made again, interrupted, changed, too new; and described to the last column."""

import threading
from collections.abc import Callable

import psycopg
import pytest
from psycopg.types.json import Jsonb

from stepwell.engine.ports import MessageLog
from stepwell.events import model
from stepwell.exceptions import DatabaseUnavailableError, MigrationError
from stepwell.projections.audit import audit_tables
from stepwell.projections.copy_format import TYPE_NAMES
from stepwell.projections.database import connect
from stepwell.projections.migrate import Migration, migrate, packaged, require_current, status
from stepwell.projections.projector import Projector
from stepwell.projections.tables import KINDS
from tests.integration.projections import facts
from tests.integration.projections.conftest import Running
from tests.integration.projections.facts import CODEC


def test_what_is_there(database: str, request: pytest.FixtureRequest) -> None:
    state = status(database)
    assert state.current
    assert [row.name for row in state.applied] == [m.name for m in packaged()]
    assert state.storage == ("hypertables" if "timescale" in request.node.callspec.id else "plain")
    assert migrate(database) == []


def test_every_table_column_and_view_says_what_it_holds(query: Callable[..., list[tuple[str, ...]]]) -> None:
    silent = query("""
        SELECT c.relname, NULL FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = 'stepwell' AND c.relkind IN ('r', 'p', 'v') AND obj_description(c.oid, 'pg_class') IS NULL
        UNION ALL
        SELECT c.relname, a.attname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        WHERE n.nspname = 'stepwell' AND c.relkind IN ('r', 'p') AND col_description(c.oid, a.attnum) IS NULL""")
    assert silent == []


def test_numbers_and_times_name_their_unit(query: Callable[..., list[tuple[str, ...]]]) -> None:
    columns = query("""
        SELECT c.relname, a.attname, col_description(c.oid, a.attnum) FROM pg_class c
        JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'stepwell'
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
            JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'stepwell'
            JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped""")
    }
    for kind in KINDS.values():
        for column, type_ in zip(kind.columns, kind.types, strict=True):
            assert found[kind.target, column] == TYPE_NAMES[type_], (kind.name, column)


def test_an_interrupted_migration_leaves_nothing_and_runs_again(new_database: Callable[[], str]) -> None:
    url = new_database()
    broken = Migration(2, "0002_more.sql", "CREATE TABLE stepwell.more (a int); SELECT 1/0")
    first = Migration(1, "0001_first.sql", "CREATE TABLE stepwell.first (a int)")
    with pytest.raises(MigrationError, match=r"0002_more\.sql failed and was rolled back: division by zero"):
        migrate(url, (first, broken))
    state = status(url, (first, broken))
    assert [row.version for row in state.applied] == [1]
    whole = Migration(2, "0002_more.sql", "CREATE TABLE stepwell.more (a int)")
    assert migrate(url, (first, whole)) == [whole]


def test_rows_from_before_the_rules_say_what_the_log_says_of_them(
    new_database: Callable[[], str], log: MessageLog
) -> None:
    """Rows that schema 4 held are taken along, and are what the same records make under the new one."""
    told = [
        facts.requested("e-1", definition_json=""), facts.verdict("e-1", label_steps=()),
        facts.again(facts.pattern("t-1"), evidence=(OLD_EVIDENCE,), detail=""),
        facts.again(
            facts.retrain("t-1"), evidence=(OLD_EVIDENCE,), detail="", hard_negatives=(), weights_formula="",
            regression_spec_json="",
        ),
        facts.again(facts.pattern("t-2"), evidence=(), detail=""),
        facts.withdrawn("t-1"), facts.dead_letter(),
    ]  # fmt: skip
    facts.publish(log, told)
    new, old = new_database(), new_database()
    migrate(new)
    with Running(Projector(log, new, CODEC), log) as projector:
        projector.wait_caught_up()
    migrate(old, packaged()[:4])
    with psycopg.connect(new) as source, psycopg.connect(old) as target:
        for table in (
            "runs",
            "episodes",
            "episode_attempts",
            "verdicts",
            "failure_patterns",
            "dead_letters",
            "sink_offsets",
        ):
            copy(source, target, table, "to_jsonb(t)")
        copy(
            source, target, "retrain_requests",
            "to_jsonb(t) || (SELECT jsonb_build_object('withdrawn_at', closed_at, 'withdrawn_reason', reason)"
            " FROM stepwell.retrain_closings c WHERE c.trigger_id = t.trigger_id)",
        )  # fmt: skip
        known = "'task', 'events_partition', 'first_offset', 'last_offset'"
        for table in ("failure_patterns", "retrain_requests"):
            target.execute(
                f"UPDATE stepwell.{table} SET evidence = (SELECT coalesce(jsonb_agg(e - ARRAY[{known}]), '[]')"
                " FROM jsonb_array_elements(evidence) AS e)"
            )
    assert [migration.version for migration in migrate(old)] == [migration.version for migration in packaged()[4:]]
    with psycopg.connect(old) as connection:
        assert connection.execute("SELECT status FROM stepwell.retrain_status ORDER BY trigger_id").fetchall() == [
            ("withdrawn",), ("muted",),
        ]  # fmt: skip
    with psycopg.connect(old) as connection:
        audit = audit_tables(log, CODEC, connection)
    assert (audit.differences, audit.rows) == ([], 9)


OLD_EVIDENCE = model.EvidenceEpisode(
    episode_id="e", attempt=1, revision=1, partition=0, offset=5, scene="table", perturbation="none", seed=7, n_steps=2
)


def copy(source: psycopg.Connection, target: psycopg.Connection, table: str, row: str) -> None:
    """The rows of a table, as far as the other schema has their columns."""
    for (found,) in source.execute(f"SELECT {row} FROM stepwell.{table} t").fetchall():
        target.execute(
            f"INSERT INTO stepwell.{table} SELECT (jsonb_populate_record(NULL::stepwell.{table}, %s)).*",
            (Jsonb(found),),
        )


def test_a_changed_file_is_named(new_database: Callable[[], str]) -> None:
    url = new_database()
    migrate(url, (Migration(1, "0001_first.sql", "SELECT 1"),))
    changed = (Migration(1, "0001_first.sql", "SELECT 2"), Migration(2, "0002_more.sql", "SELECT 3"))
    with pytest.raises(MigrationError, match=r"0001_first\.sql changed after it was applied"):
        migrate(url, changed)
    assert status(url, changed).changed == ("0001_first.sql",)


def test_a_newer_schema_is_refused(new_database: Callable[[], str]) -> None:
    url = new_database()
    newer = (*packaged(), Migration(len(packaged()) + 1, "9999_later.sql", "SELECT 1"))
    migrate(url, newer)
    with pytest.raises(MigrationError, match=r"9999_later\.sql.*pip install --upgrade stepwell"):
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
    done: list[list[Migration]] = []
    threads = [threading.Thread(target=lambda: done.append(migrate(url))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(len(applied) for applied in done) == [0, 0, 0, len(packaged())]


def test_a_database_that_is_not_there(new_database: Callable[[], str]) -> None:
    url = new_database()
    with pytest.raises(DatabaseUnavailableError, match=r"stepwell:\*\*\*@127\.0\.0\.1:1/"):
        migrate(psycopg_url(url, port=1))


def psycopg_url(url: str, port: int) -> str:
    info = psycopg.conninfo.conninfo_to_dict(url)
    return f"postgresql://{info['user']}:{info['password']}@127.0.0.1:{port}/{info['dbname']}"
