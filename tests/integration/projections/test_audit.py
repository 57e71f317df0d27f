"""The audit finds each kind of damage in the tables, names row and record, and takes nothing else for damage."""

import math
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from stepwell.engine.ports import MessageLog
from stepwell.events.topics import EPISODE_EVENTS
from stepwell.projections.audit import TableAudit, audit_tables
from stepwell.projections.migrate import migrate
from tests.integration.projections import facts

Query = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture(scope="module")
def migrated_url(postgres_url: str) -> str:
    """PostgreSQL alone: the audit compares by plain SQL. That it works on hypertables is tested with the whole."""
    migrate(postgres_url)
    return postgres_url


@pytest.fixture
def audit(log: MessageLog, database: str) -> Callable[[], TableAudit]:
    def run() -> TableAudit:
        with psycopg.connect(database) as connection:
            return audit_tables(log, facts.CODEC, connection)

    return run


@pytest.fixture
def projected(log: MessageLog, drain: Callable[..., None]) -> None:
    """Rows in every table, among them NaN, infinities, NULLs, arrays and JSON."""
    facts.publish(log, facts.episode("e-1", 3))
    facts.publish(log, [
        facts.step("e-1", 3, reward=math.nan), facts.step("e-1", 4, reward=-math.inf, sim_time=None),
        facts.step("e-1", 5, metrics=()), facts.snapshot("e-1"),
        facts.verdict("e-1", total_reward=math.nan), facts.verdict("e-1", revision=2, total_reward=-0.0),
        facts.pattern("t-1"), facts.retrain("t-1"), facts.withdrawn("t-1"), facts.answered("t-1", "done"),
        facts.telemetry("w-1", 1), facts.dead_letter(),
    ])  # fmt: skip
    drain()


ONE_STEP = "WHERE episode_id = 'e-1' AND step = 1"
DAMAGES = {
    "a changed number": (
        f"UPDATE stepwell.steps SET reward = 7 {ONE_STEP}", "steps", "reward is 7.0, the log says 1.5",
    ),
    "a number that was NaN": (
        "UPDATE stepwell.steps SET reward = 0 WHERE step = 3", "steps", "reward is 0.0, the log says nan",
    ),
    "a NULL": (f"UPDATE stepwell.steps SET sim_time = NULL {ONE_STEP}", "steps", "sim_time is None"),
    "a changed array": (
        "UPDATE stepwell.actions SET action = ARRAY[0, 0]::real[] WHERE first_step = 1", "actions",
        "action is [0.0, 0.0]",
    ),
    "a lost row": (f"DELETE FROM stepwell.steps {ONE_STEP}", "steps", "missing"),
    "a lost revision": ("DELETE FROM stepwell.verdicts WHERE revision = 1", "verdicts", "missing"),
    "a changed verdict": ("UPDATE stepwell.verdicts SET outcome = 'error'", "verdicts", "outcome is 'error'"),
    "a changed evidence": (
        "UPDATE stepwell.retrain_requests SET evidence = '[]'", "retrain_requests", "evidence is []",
    ),
    "a changed answer": (
        "UPDATE stepwell.retrain_answers SET status = 'failed'", "retrain_answers", "status is 'failed'",
    ),
    "a changed phase": (
        "UPDATE stepwell.episode_attempts SET phase = 'FAILED'", "episode_attempts", "phase is 'FAILED'",
    ),
    "a forged episode": (
        """INSERT INTO stepwell.episodes
        SELECT (jsonb_populate_record(e, '{"episode_id": "e-forged"}')).* FROM stepwell.episodes e""",
        "episodes", "stands in the table, but no record asks for it",
    ),
    "changed telemetry": ("UPDATE stepwell.telemetry SET value = 1 WHERE point = 1", "telemetry", "value is 1.0"),
    "a changed dead letter": ("UPDATE stepwell.dead_letters SET reason = 'x'", "dead_letters", "reason is 'x'"),
}  # fmt: skip


@pytest.mark.usefixtures("projected")
def test_what_was_projected_is_what_the_log_says(audit: Callable[[], TableAudit]) -> None:
    result = audit()
    assert result.differences == []
    assert result.rows >= 18


@pytest.mark.usefixtures("projected")
@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_named(name: str, query: Query, audit: Callable[[], TableAudit]) -> None:
    statement, table, told = DAMAGES[name]
    query(statement)
    (difference,) = audit().differences
    assert difference.table == table
    assert told in difference.what
    if "no record" not in told:
        assert difference.where.startswith("stepwell.")
        assert f"(record {difference.where})" in str(difference)
    assert str(difference).startswith(f"table {table}, row (")


def test_a_record_that_came_twice_is_one_row(
    log: MessageLog, drain: Callable[..., None], audit: Callable[[], TableAudit]
) -> None:
    told = facts.episode("e-1", 2)
    facts.publish(log, told)
    facts.publish(log, told)
    drain()
    facts.publish(log, told)
    drain()
    assert audit().differences == []


def test_rows_that_the_database_refused_are_expected_to_be_absent(
    log: MessageLog, drain: Callable[..., None], query: Query, audit: Callable[[], TableAudit]
) -> None:
    facts.publish(log, [facts.requested("e-1"), facts.requested("e-zero", scene="a\0b"), facts.requested("e-2")])
    drain()
    assert query("SELECT count(*) FROM stepwell.dead_letters WHERE kind = 'refused'") == [(1,)]
    assert audit().differences == []


def test_what_the_projector_has_not_read_yet_is_left_out(
    log: MessageLog, drain: Callable[..., None], audit: Callable[[], TableAudit]
) -> None:
    facts.publish(log, facts.episode("e-1", 1))
    drain()
    facts.publish(log, facts.episode("e-1", 2))
    assert audit().differences == []


def test_where_the_log_s_beginning_is_gone_its_rows_stay_and_the_rest_is_compared(
    log: MessageLog, drain: Callable[..., None], query: Query, audit: Callable[[], TableAudit]
) -> None:
    facts.publish(log, facts.episode("e-1", 3))
    drain()
    ((partition, low),) = query("SELECT source_partition, source_offset FROM stepwell.steps WHERE step = 1")
    store: Any = log
    with store._store().write() as connection:
        connection.execute(
            "UPDATE slots SET low = ? WHERE topic = ? AND partition = ?", (low, EPISODE_EVENTS, partition)
        )
    assert audit().differences == []
    query("UPDATE stepwell.steps SET reward = 9 WHERE step = 0")
    assert audit().differences == []
    query("UPDATE stepwell.steps SET reward = 9 WHERE step = 2")
    (difference,) = audit().differences
    assert difference.key["producer_seq"] == 3
