"""What is old goes by the time of the log, sums outlive it, and what comes late into old chunks is right."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from stepwell.engine.ports import MessageLog
from stepwell.events.model import LogRecord
from stepwell.projections.audit.rows import audit_tables
from stepwell.projections.audit.sums import wrong_sums
from stepwell.projections.database import Connection, connect
from stepwell.projections.schema.generations import read_homes
from stepwell.projections.upkeep import tune
from stepwell.projections.upkeep.retention import Done, upkeep
from stepwell.projections.upkeep.tuning import Tuning
from tests.integration.projections import facts
from tests.integration.projections.batches import write_by_topic
from tests.integration.projections.conftest import Running
from tests.integration.projections.sums import LEVELS, Query, anew, kept, on_timescale

DAY_US = 24 * 3600 * 1_000_000
TUNING = Tuning()
FAMILIES = ("outcome", "step", "telemetry")


@pytest.fixture
def connection(database: str) -> Iterator[Connection]:
    """On TimescaleDB with everything set as configured."""
    with connect(database, application="test") as opened:
        tune.apply_all(opened, TUNING)
        yield opened


def keep_up(connection: Connection, tuning: Tuning = TUNING) -> dict[tuple[str, str], Done]:
    """Do what is due now; what was done by relation and kind."""
    return {(done.relation, done.what): done for done in upkeep(connection, tuning)}


def day_of(name: str, at: int, steps: int = 5, *, measured: bool = True) -> list[LogRecord]:
    """One episode of that time (µs), with its verdict and what was measured."""
    when = {"occurred_at": at, "origin": "import"}
    return [
        facts.requested(name, **when), facts.claimed(name, **when),
        *(facts.step(name, n, **{**when, "occurred_at": at + n * 1_000_000}, step_wall_s=0.02) for n in range(steps)),
        facts.verdict(name, requested_at=at, n_steps=steps),
        *([facts.telemetry("w-1", at // DAY_US, at=at)] if measured else []),
    ]  # fmt: skip


def sums(query: Query) -> dict[tuple[str, str], list[tuple[Any, ...]]]:
    return {(family, level): kept(query, family, level) for family in FAMILIES for level in LEVELS}


def assert_right(query: Query) -> None:
    for family in FAMILIES:
        for level in LEVELS:
            assert kept(query, family, level) == anew(query, family, level), (family, level)


def test_sums_outlive_what_they_are_of_and_imported_history_stays(
    connection: Connection, database: str, query: Query
) -> None:
    now = facts.now_us()
    write_by_topic(connection, day_of("old", now - 200 * DAY_US), logged_at=now - 200 * DAY_US)
    write_by_topic(connection, day_of("imported", now - 700 * DAY_US, measured=False), logged_at=now - DAY_US)
    write_by_topic(connection, day_of("new", now - 2 * DAY_US), logged_at=now - 2 * DAY_US)
    wanted = {(family, level): anew(query, family, level) for family in FAMILIES for level in LEVELS}
    # Nothing was ever refreshed: what goes is summed first.
    done = keep_up(connection)
    gone = done["steps", "retired"]
    assert (gone.count, gone.unit) == ((1, "chunks") if on_timescale(database) else (5, "rows"))
    assert query("SELECT episode_id, count(*) FROM stepwell.steps GROUP BY 1 ORDER BY 1") == [
        ("imported", 5),
        ("new", 5),
    ]
    assert query("SELECT count(*) FROM stepwell.telemetry_points") == [(2,)]
    assert query("SELECT count(*) FROM stepwell.verdict_changes") == [(3,)]
    assert sums(query) == wanted
    assert keep_up(connection)["steps", "retired"].count == 0
    assert sums(query) == wanted
    storage = "hypertables" if on_timescale(database) else "plain"
    assert query("SELECT storage, ended_s_ago BETWEEN 0 AND 60 FROM stepwell.upkeep") == [(storage, True)]


def test_a_late_row_where_retention_has_been_does_not_take_history_away(
    connection: Connection, database: str, query: Query
) -> None:
    now = facts.now_us()
    write_by_topic(connection, day_of("old", now - 200 * DAY_US), logged_at=now - 200 * DAY_US)
    keep_up(connection)
    before = sums(query)
    late = facts.step("old", 7, occurred_at=now - 200 * DAY_US, origin="import", step_wall_s=0.02)
    write_by_topic(connection, [late], logged_at=now)
    keep_up(connection)
    assert query("SELECT step FROM stepwell.steps") == [(7,)]
    steps = [sum(row[-2] for row in kept(query, "step", level)) for level in LEVELS]
    # A continuous aggregate cannot be refreshed from what is left; the projector adds to what it has.
    assert steps == ([5, 5, 5] if on_timescale(database) else [6, 6, 6])
    assert {key: value for key, value in sums(query).items() if key[0] != "step"} == {
        key: value for key, value in before.items() if key[0] != "step"
    }


def test_a_verdict_revised_after_years_is_summed(connection: Connection, query: Query) -> None:
    now = facts.now_us()
    then = now - 1000 * DAY_US  # longer ago than sums by minute are kept
    write_by_topic(connection, day_of("old", then), logged_at=then)
    keep_up(connection)
    write_by_topic(connection, day_of("imported", then + 60_000_000, measured=False), logged_at=now)
    revised = facts.verdict("old", 2, requested_at=then, n_steps=5, outcome="failure", failure_type="x", fault="policy")
    write_by_topic(connection, [revised], logged_at=now)
    keep_up(connection)
    for level in LEVELS:
        assert kept(query, "outcome", level) == anew(query, "outcome", level), level
    assert query("SELECT sum(succeeded), sum(failed) FROM stepwell.success_by_day") == [(1, 1)]


def test_rows_two_months_late_are_kept_and_summed(connection: Connection, query: Query) -> None:
    now = facts.now_us()
    write_by_topic(connection, [*day_of("then", now - 61 * DAY_US), *day_of("now", now - DAY_US)], logged_at=now)
    keep_up(connection)
    assert_right(query)
    late = [
        facts.step("then", n, occurred_at=now - 61 * DAY_US + n * 1_000_000, step_wall_s=0.5, origin="import")
        for n in range(3, 12)
    ]
    revised = facts.verdict(
        "then", 2, requested_at=now - 61 * DAY_US, outcome="failure", failure_type="x", fault="policy"
    )
    write_by_topic(connection, [*late, revised], logged_at=now)
    keep_up(connection)
    assert_right(query)
    assert query("SELECT sum(steps) FROM stepwell.step_days") == [(17,)]
    assert query("SELECT sum(succeeded), sum(failed) FROM stepwell.success_by_day") == [(1, 1)]


def test_what_comes_twice_into_a_compressed_chunk_is_one_row(
    connection: Connection, database: str, query: Query
) -> None:
    now = facts.now_us()
    records = day_of("e-1", now - 20 * DAY_US, steps=8)
    write_by_topic(connection, records, logged_at=now - 20 * DAY_US)
    keep_up(connection)
    if on_timescale(database):
        compressed = (
            "SELECT bool_and(is_compressed) FROM timescaledb_information.chunks WHERE hypertable_name = 'steps'"
        )
        assert query(compressed) == [(True,)]
    more = day_of("e-1", now - 20 * DAY_US, steps=12)[2 + 8 : 2 + 12]
    write_by_topic(connection, [*records, *more], logged_at=now)  # every old row conflicts, every new one goes in
    write_by_topic(connection, [*more, *more, *records], logged_at=now)
    assert query("SELECT step FROM stepwell.steps ORDER BY step") == [(n,) for n in range(12)]
    assert query("SELECT count(*) FROM stepwell.telemetry_points") == [(2,)]
    assert query("SELECT count(*) FROM stepwell.verdict_changes") == [(1,)]
    assert query("SELECT count(*) FROM stepwell.dead_letters") == [(0,)]
    keep_up(connection)
    assert_right(query)


def test_times_that_make_no_sense_open_no_chunks(connection: Connection, database: str, query: Query) -> None:
    now = facts.now_us()
    times = [0, 10**6, 32_503_680_000_000_000, 2**55, now]
    wild = [facts.step("e-1", n, occurred_at=at, origin="import") for n, at in enumerate(times)]
    write_by_topic(connection, wild, logged_at=now)
    assert query("SELECT step FROM stepwell.steps") == [(4,)]
    assert query("SELECT count(*) FROM stepwell.dead_letters WHERE kind = 'refused'") == [(4,)]
    letters = [facts.dead_letter(source_offset=n, source_timestamp=at) for n, at in enumerate([-1, 2**62, 0, now])]
    write_by_topic(connection, letters, logged_at=now)
    assert query("SELECT count(*) FROM stepwell.dead_letters") == [(8,)]
    if on_timescale(database):
        chunks = (
            "SELECT count(*) FROM timescaledb_information.chunks WHERE hypertable_name IN ('steps', 'dead_letters')"
        )
        assert query(chunks)[0][0] <= 4
    keep_up(connection)  # a dead letter with a wild time was taken in just now, and so it stays
    assert query("SELECT count(*) FROM stepwell.dead_letters") == [(8,)]


def test_an_audit_knows_what_was_taken_away(
    connection: Connection, log: MessageLog, drain: Callable[..., None], query: Query
) -> None:
    now = facts.now_us()
    facts.publish(log, day_of("e-1", now - 300 * DAY_US, measured=False))
    cut = time.time()
    facts.publish(log, day_of("e-2", now))
    drain()
    assert audit_tables(log, facts.CODEC, connection).differences == []
    # As if the log had taken the first long ago.
    ((schema,),) = query("SELECT name FROM stepwell.generations")
    query(f"UPDATE {schema}.steps SET logged_at = logged_at - interval '300 days' WHERE episode_id = 'e-1'")
    keep_up(connection)
    assert query("SELECT DISTINCT episode_id FROM stepwell.steps") == [("e-2",)]
    assert [found.table for found in audit_tables(log, facts.CODEC, connection).differences] == ["steps"]
    query("UPDATE stepwell.retirements SET logged_before = to_timestamp(%s)", cut)
    assert audit_tables(log, facts.CODEC, connection).differences == []
    query(f"DELETE FROM {schema}.steps WHERE step = 3")
    assert [found.what for found in audit_tables(log, facts.CODEC, connection).differences] == ["missing"]


@pytest.mark.parametrize("damage", ["step_hours", "outcome_days", "telemetry_minutes"])
def test_an_audit_finds_a_wrong_sum(
    damage: str, connection: Connection, log: MessageLog, drain: Callable[..., None], database: str, query: Query
) -> None:
    now = facts.now_us()
    facts.publish(log, day_of("e-1", now - 3 * DAY_US))
    drain()
    # That some rows were retired says nothing about the sums of other days.
    write_by_topic(connection, day_of("old", now - 300 * DAY_US, measured=False), logged_at=now - 300 * DAY_US)
    assert keep_up(connection)["steps", "retired"].count
    assert wrong_in(connection) == []
    ((relation,),) = [(f"stepwell_g1.{damage}",)] if not on_timescale(database) else query(MATERIALIZED, damage)
    count = {"step_hours": "steps", "outcome_days": "episodes", "telemetry_minutes": "measurements"}[damage]
    query(f"UPDATE {relation} SET {count} = {count} + 1 WHERE bucket > now() - interval '30 days'")
    ((table, what),) = wrong_in(connection)[:1]
    assert table == damage
    assert "counting the rows gives" in what


def test_an_audit_knows_what_is_not_summed_yet(connection: Connection, query: Query) -> None:
    now = facts.now_us()
    write_by_topic(connection, day_of("e-1", now - 20 * DAY_US), logged_at=now)
    keep_up(connection)
    late = [facts.step("e-1", n, occurred_at=now - 20 * DAY_US, origin="import") for n in (7, 8)]
    write_by_topic(connection, late, logged_at=now)
    assert wrong_in(connection) == []
    keep_up(connection)
    assert_right(query)
    assert wrong_in(connection) == []


MATERIALIZED = """
SELECT format('%%I.%%I', materialization_hypertable_schema, materialization_hypertable_name)
FROM timescaledb_information.continuous_aggregates WHERE view_name = %s
"""


def wrong_in(connection: Connection) -> list[tuple[str, str]]:
    homes = read_homes(connection)
    with connection.transaction():
        homes.show(connection)
        return [(found.table, found.what) for found in wrong_sums(connection, homes.storage, ())]


@pytest.mark.parametrize("migrated_url", ["timescale"], indirect=True)
def test_an_audit_finds_a_wrong_change_of_verdicts(
    connection: Connection, log: MessageLog, drain: Callable[..., None], query: Query
) -> None:
    facts.publish(log, day_of("e-1", facts.now_us()))
    drain()
    query("UPDATE stepwell_g1.verdict_changes SET sign = -1")
    (difference,) = audit_tables(log, facts.CODEC, connection).differences
    assert (difference.table, difference.key["episode_id"]) == ("verdict_changes", "e-1")


# TimescaleDB's one backend here serves all clients in turn: nothing can happen at once.
@pytest.mark.parametrize("migrated_url", ["postgres"], indirect=True)
def test_writers_go_on_while_old_rows_are_taken_away(
    connection: Connection, log: MessageLog, running: Callable[..., Running], query: Query, database: str
) -> None:
    now = facts.now_us()
    write_by_topic(connection, day_of("old", now - 200 * DAY_US, steps=50), logged_at=now - 200 * DAY_US)
    stop, errors = threading.Event(), []

    def keep_taking() -> None:
        try:
            with connect(database, application="upkeep") as own:
                while not stop.is_set():
                    keep_up(own)
        except psycopg.Error as error:
            errors.append(error)

    taking = threading.Thread(target=keep_taking)
    taking.start()
    try:
        with running(batch_records=5) as projector:
            for number in range(6):
                facts.publish(log, day_of(f"e-{number}", now - number * 15 * DAY_US, steps=10))
            projector.wait_caught_up()
    finally:
        stop.set()
        taking.join(60)
    assert not errors
    assert query("SELECT count(*), count(DISTINCT episode_id) FROM stepwell.steps WHERE episode_id <> 'old'") == [
        (60, 6)
    ]
    assert keep_up(connection)
    assert query("SELECT sum(steps) FROM stepwell.step_days") == [(110,)]
