"""What hangs on sessions and locks, and what is refused. On PostgreSQL; the WebAssembly build has no sessions."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from stepwell.adapters.logs import open_log
from stepwell.engine.ports import MessageLog
from stepwell.exceptions import ConfigurationError, RebuildError
from stepwell.projections.rebuild.cancel import cancel, drop_old
from stepwell.projections.rebuild.compare import compare_table
from stepwell.projections.rebuild.rebuilder import Outcome
from stepwell.projections.rebuild.state import read_status
from stepwell.projections.schema.migrate import migrate
from stepwell.projections.writing.projector import Projector
from tests.integration.projections import facts
from tests.integration.projections.conftest import Running
from tests.integration.projections.rebuilds import HOME, Query, caught_up, some_of_everything


@pytest.fixture(scope="module")
def migrated_url(postgres_url: str) -> str:
    migrate(postgres_url)
    return postgres_url


@pytest.fixture
def filled(log: MessageLog, drain: Callable[..., None]) -> None:
    some_of_everything(log)
    drain()


@pytest.fixture
def reader(database: str) -> Iterator[psycopg.Connection]:
    """A transaction that has looked at a view and does not end."""
    with psycopg.connect(database, application_name="a dashboard") as connection:
        connection.execute("SELECT count(*) FROM stepwell.steps")
        yield connection


@pytest.mark.usefixtures("filled")
def test_a_difference_is_named_and_nothing_is_handed_over(
    query: Query, rebuild: Callable[..., Outcome], no_difference: Callable[[], None]
) -> None:
    before = query(HOME, "steps")
    query("UPDATE stepwell.steps SET reward = 7 WHERE episode_id = 'e-1' AND step = 2")
    query("DELETE FROM stepwell.actions WHERE episode_id = 'e-2'")
    outcome = rebuild()
    told = [str(each) for each in outcome.differing]
    assert outcome.ended == "differs"
    assert told[0].startswith("table actions: 4 rows differ (old 8, new 12); the first: (episode_id='e-2', attempt=1, ")
    assert told[0].endswith("stands in the new table only")
    assert told[1].startswith("table steps: 1 rows differ (old 12, new 12); the first: (episode_id='e-1'")
    assert told[1].endswith("reward is 7.0 in the old table, 1.5 in the new one")
    assert query(HOME, "steps") == before
    again = rebuild(accept_differences=True)
    assert (again.ended, again.generation, len(again.differing)) == ("done", outcome.generation, 2)
    no_difference()


@pytest.mark.usefixtures("filled")
def test_a_long_transaction_is_waited_for_and_holds_nobody_else_up(
    query: Query, database: str, reader: psycopg.Connection, rebuild: Callable[..., Outcome],
    log: MessageLog, running: Callable[..., Running],
) -> None:  # fmt: skip
    said: list[str] = []
    with pytest.raises(RebuildError, match=r"somebody has stood in the way: process \d+ \(a dashboard\)"):
        rebuild(patience_s=1.0, say=said.append)
    assert any("Waiting for others: process" in words for words in said)
    done: list[Outcome] = []
    thread = threading.Thread(target=lambda: done.append(rebuild(say=said.append)))
    with running() as projector:
        thread.start()
        for number in range(5):
            facts.publish(log, facts.episode(f"meanwhile-{number}", 2))
            started = time.monotonic()
            projector.wait(lambda: caught_up(log, query))
            assert query("SELECT count(*) FROM stepwell.episodes") == [(4 + number,)]
            assert time.monotonic() - started < 10
        assert not done
        assert reader.execute("SELECT count(*) FROM stepwell.verdicts").fetchone() == (2,)
        reader.rollback()
        thread.join(60)
    assert [outcome.ended for outcome in done] == ["done"]


@pytest.mark.usefixtures("filled")
def test_two_at_once_are_refused_and_one_can_be_cancelled(
    query: Query, database: str, reader: psycopg.Connection, rebuild: Callable[..., Outcome]
) -> None:
    before = query(HOME, "steps")
    done: list[Outcome] = []
    thread = threading.Thread(target=lambda: done.append(rebuild()))
    thread.start()
    wait(lambda: query("SELECT count(*) FROM stepwell.rebuilds WHERE step = 'handing over'") == [(1,)])
    with pytest.raises(RebuildError, match="A rebuild is running already"):
        rebuild()
    with pytest.raises(RebuildError, match="A rebuild is running already"):
        drop_old(lambda: database)
    name = cancel(lambda: database)
    thread.join(60)
    assert [(outcome.ended, outcome.generation) for outcome in done] == [("cancelled", name)]
    assert query("SELECT count(*) FROM pg_namespace WHERE nspname = %s", name) == [(0,)]
    assert query(HOME, "steps") == before
    with pytest.raises(RebuildError, match="no unfinished rebuild"):
        cancel(lambda: database)


@pytest.mark.usefixtures("filled")
def test_what_was_stopped_goes_on_or_is_cancelled(query: Query, database: str, rebuild: Callable[..., Outcome]) -> None:
    stop = threading.Event()
    stop.set()
    stopped = rebuild("verdicts", stop=stop)
    assert stopped.ended == "stopped"
    with pytest.raises(ConfigurationError, match="is of other tables"):
        rebuild("steps")
    assert cancel(lambda: database) == stopped.generation
    stopped = rebuild("verdicts", stop=stop)
    with psycopg.connect(database, autocommit=True) as connection:
        status = read_status(connection)
    assert status is not None
    assert (status.tables, status.ended_at, status.generation) == (("verdicts",), None, stopped.generation)
    outcome = rebuild()
    assert (outcome.ended, outcome.generation) == ("done", stopped.generation)
    assert {each.table for each in outcome.comparisons} >= {"verdicts", "verdict_changes", "outcome_days"}
    assert "steps" not in {each.table for each in outcome.comparisons}


@pytest.mark.usefixtures("filled")
def test_old_tables_are_kept_where_asked_and_dropped_later(
    query: Query, database: str, rebuild: Callable[..., Outcome]
) -> None:
    ((old,),) = query(HOME, "steps")
    assert rebuild(keep_old=True).dropped == ()
    assert query(f"SELECT count(*) FROM {old}.steps") == [(12,)]
    query(f"CREATE VIEW public.mine AS SELECT episode_id FROM {old}.steps")
    with pytest.raises(RebuildError, match=r"view mine depends on table .*steps.*--drop-old"):
        drop_old(lambda: database)
    query("DROP VIEW public.mine")
    assert drop_old(lambda: database) == [old]
    assert drop_old(lambda: database) == []


@pytest.mark.usefixtures("filled")
def test_a_view_of_somebody_else_s_on_ours_follows(query: Query, rebuild: Callable[..., Outcome]) -> None:
    query("CREATE VIEW public.mine AS SELECT count(*) FROM stepwell.steps")
    assert rebuild().ended == "done"
    assert query("SELECT * FROM public.mine") == [(12,)]
    assert rebuild("steps").ended == "done"
    assert query("SELECT * FROM public.mine") == [(12,)]
    query("DROP VIEW public.mine")


@pytest.mark.usefixtures("filled")
def test_another_version_s_unfinished_rebuild_is_not_gone_on_with(
    query: Query, database: str, rebuild: Callable[..., Outcome]
) -> None:
    stop = threading.Event()
    stop.set()
    name = rebuild(stop=stop).generation
    query("UPDATE stepwell.generations SET made_by = '0.0.1' WHERE name = %s", name)
    with pytest.raises(RebuildError, match=r"was begun by Stepwell 0\.0\.1"):
        rebuild()
    assert cancel(lambda: database) == name


def test_what_makes_no_sense_is_refused(rebuild: Callable[..., Outcome]) -> None:
    with pytest.raises(ConfigurationError, match=r"There is no archive of the log yet: .* carried over"):
        rebuild(made_from="archive")
    with pytest.raises(ConfigurationError, match="Tables cannot be made from 'disk'; only from: log"):
        rebuild(made_from="disk")
    with pytest.raises(ConfigurationError, match=r"No table of this name can be made again: step\. Those there"):
        rebuild("step")
    with pytest.raises(ConfigurationError, match="sink_offsets"):
        rebuild("sink_offsets")


def test_an_empty_database_is_rebuilt_too(query: Query, rebuild: Callable[..., Outcome]) -> None:
    assert rebuild().ended == "done"
    assert query("SELECT count(*) FROM stepwell.steps") == [(0,)]


def wait(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < deadline, "not within 60 s"
        time.sleep(0.05)


def test_from_the_command_line(query: Query, database: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STEPWELL_")}
    environment |= {
        "STEPWELL_HOME": str(tmp_path), "STEPWELL_LOG": f"local:{tmp_path / 'log'}", "STEPWELL_DATABASE": database,
    }  # fmt: skip

    def run(*words: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "stepwell", "db", "rebuild", *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90, check=False)
        return done.returncode, done.stdout + done.stderr

    log = open_log(environment["STEPWELL_LOG"])
    some_of_everything(log)
    with Running(Projector(log, database, facts.CODEC), log) as projector:
        projector.wait_caught_up()
    log.close()
    query("UPDATE stepwell.steps SET reward = 7 WHERE episode_id = 'e-1' AND step = 2")
    code, said = run("--table", "steps")
    assert (code, "table steps: 1 rows differ" in said, "Nothing was handed over" in said) == (1, True, True)
    code, said = run("--status", "--json")
    told = json.loads(said)
    assert (code, told["tables"], told["step"], told["ended_at"]) == (0, ["steps"], "comparing", None)
    assert told["differences"][0].startswith("table steps: 1 rows differ")
    code, said = run("--accept-differences")
    assert (code, "1 tables differed, which was accepted" in said) == (0, True), said
    assert query("SELECT count(*) FROM stepwell.steps WHERE reward = 7") == [(0,)]
    assert run("--drop-old") == (0, "There are no old tables.\n")


SUMS_IN_BOTH = """INSERT INTO {0}.telemetry_days
(bucket, series_id, source_partition, points, measurements, value_sum, value_min, value_max, logged_at)
VALUES ('2026-03-01Z', 1, 0, 3, 3, {1}, -0.1, 0.3, '2026-03-02Z'),
       ('2026-03-01Z', 2, 0, 1, NULL, NULL, 1, 1, '2026-03-02Z')"""


@pytest.mark.parametrize(
    ("sums", "differing", "first"),
    [
        (("0.1::float8 + 0.2::float8", "0.3"), 0, ""),
        (("1e-17", "0"), 0, ""),
        (("0.3", "0.30001"), 1, "value_sum is 0.3 in the old table, 0.30001 in the new one"),
        (("0.3", "NULL"), 1, "value_sum is 0.3 in the old table, None in the new one"),
    ],
    ids=["another order", "cancelled out", "another sum", "no sum"],
)
def test_sums_that_were_added_in_another_order_are_the_same(
    database: str, sums: tuple[str, str], differing: int, first: str
) -> None:
    with psycopg.connect(database) as connection:
        ((old,),) = connection.execute(HOME, ["telemetry_days"]).fetchall()
        connection.execute("CREATE SCHEMA beside")
        connection.execute(f"CREATE TABLE beside.telemetry_days (LIKE {old}.telemetry_days INCLUDING ALL)")
        for schema, value in zip((old, "beside"), sums, strict=True):
            connection.execute(SUMS_IN_BOTH.format(schema, value))
        found = compare_table(connection, "telemetry_days", old, "beside")
        connection.execute("UPDATE beside.telemetry_days SET points = 4 WHERE series_id = 2")
        counted = compare_table(connection, "telemetry_days", old, "beside")
        connection.rollback()
    assert (found.old, found.new, found.differing) == (2, 2, differing)
    assert found.first.endswith(first)
    assert counted.differing > 0, "what is counted is compared to the last one"
