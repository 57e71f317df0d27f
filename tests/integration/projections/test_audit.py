"""The audit finds each kind of damage in the tables, names row and record, and takes nothing else for damage."""

import math
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from stepwell.adapters.workers.markers import MemoryMarkers
from stepwell.engine.loop import ExactlyOnceLoop
from stepwell.engine.ports import MessageLog
from stepwell.engine.restore import GROUP as ENGINE_GROUP
from stepwell.engine.restore import TOPICS as ENGINE_TOPICS
from stepwell.engine.restore import EngineRestore
from stepwell.engine.timers import Timeouts
from stepwell.events.model import StepDone
from stepwell.events.topics import EPISODE_EVENTS
from stepwell.projections.audit.rows import TableAudit, audit_tables
from stepwell.projections.schema.migrate import migrate
from tests.integration.projections import facts
from tests.simulation.bad_records import bad_records
from tests.unit.engine.running import FakeClock, Notes
from tests.unit.engine.running import drain as settle

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
        facts.telemetry("w-1", 1), facts.spans("w-1", 2), facts.dead_letter(), facts.acknowledged("t-1"),
        facts.worker("w-1", last_error="away", last_error_at=facts.now_us()), facts.worker("w-1"), facts.worker("w-2"),
        facts.muted("p"), facts.unmuted("p"), facts.activated(), facts.expected("e-1"),
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
    "changed telemetry": (
        "UPDATE stepwell.telemetry_points SET value = 1 WHERE value = 3", "telemetry_points", "value is 1.0",
    ),
    "changed measurements": (
        "UPDATE stepwell.telemetry_points SET measurements = 3 WHERE value = 3", "telemetry_points",
        "measurements is 3",
    ),
    "a changed worker": (
        "UPDATE stepwell.worker_status SET state = 'failed' WHERE worker_id = 'w-1'", "worker_status",
        "state is 'failed'",
    ),
    "a lost partition of a worker": ("DELETE FROM stepwell.worker_partitions", "worker_partitions", "missing"),
    "a changed dead letter": ("UPDATE stepwell.dead_letters SET detail = 'x'", "dead_letters", "detail is 'x'"),
    "a dead letter for another reason": ("UPDATE stepwell.dead_letters SET reason = 'x'", "dead_letters", "missing"),
    "a closing of another kind": (
        "UPDATE stepwell.retrain_closings SET closed_as = 'expired'", "retrain_closings", "closed_as is 'expired'",
    ),
    "a lost closing": ("DELETE FROM stepwell.retrain_closings", "retrain_closings", "missing"),
    "changed hard negatives": (
        "UPDATE stepwell.retrain_requests SET hard_negatives = '[]'", "retrain_requests", "hard_negatives is []",
    ),
    "a changed acknowledgement": (
        "UPDATE stepwell.retrain_acknowledgements SET acknowledged_by = 'eve'", "retrain_acknowledgements",
        "acknowledged_by is 'eve'",
    ),
    "a mute that was not ended": (
        "UPDATE stepwell.retrain_mutes SET muted = true WHERE NOT muted", "retrain_mutes", "muted is True",
    ),
    "a lost rule set": ("DELETE FROM stepwell.rule_sets", "rule_sets", "missing"),
    "changed rules": (
        "UPDATE stepwell.rule_sets SET rules = jsonb_set(rules, '{steps,0,steps}', '21')", "rule_sets", "rules is ",
    ),
    "a forged expectation": (
        """INSERT INTO stepwell.expected_verdicts
        SELECT (jsonb_populate_record(e, '{"episode_id": "e-forged"}')).* FROM stepwell.expected_verdicts e""",
        "expected_verdicts", "stands in the table, but no record asks for it",
    ),
    "a label at another step": ("UPDATE stepwell.verdicts SET label_steps = '{2}'", "verdicts", "label_steps is [2]"),
    "a lost definition": ("UPDATE stepwell.episodes SET definition = NULL", "episodes", "definition is None"),
}  # fmt: skip


@pytest.mark.usefixtures("projected")
def test_what_was_projected_is_what_the_log_says(audit: Callable[[], TableAudit]) -> None:
    result = audit()
    assert result.differences == []
    assert result.rows >= 23


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


def refusable(number: int = 77) -> Any:
    """A step of 1970, brought in later: the codec reads it, the table refuses it."""
    return facts.step("e-1", number, occurred_at=5, origin="import")


def test_rows_that_the_database_refused_are_expected_to_be_absent(
    log: MessageLog, drain: Callable[..., None], query: Query, audit: Callable[[], TableAudit]
) -> None:
    facts.publish(log, [facts.step("e-1", 1), refusable(), facts.step("e-1", 3_000_000_000), facts.step("e-1", 2)])
    drain()
    assert query("SELECT count(*) FROM stepwell.dead_letters WHERE kind = 'refused'") == [(2,)]
    assert audit().differences == []
    query("DELETE FROM stepwell.dead_letters WHERE reason = 'check-violation'")
    assert [difference.table for difference in audit().differences] == ["steps"], "its row is wanted, and missing"
    query("DELETE FROM stepwell.dead_letters")
    (difference,) = [difference for difference in audit().differences if difference.table == "dead_letters"]
    assert difference.what == "missing", "a number that no column takes cannot even be compared"


@pytest.mark.parametrize("column", ["source_value", "source_key", "logged_at", "reported_by"])
def test_a_refusal_must_be_told_as_it_was(
    column: str, log: MessageLog, drain: Callable[..., None], query: Query, audit: Callable[[], TableAudit]
) -> None:
    facts.publish(log, [refusable()])
    drain()
    query(f"UPDATE stepwell.dead_letters SET {column} = {'now()' if column == 'logged_at' else repr('x')}")
    (difference,) = audit().differences
    # Its time is part of its key: under another one it is another row.
    told = "missing" if column == "logged_at" else column
    assert (difference.table, told in difference.what) == ("dead_letters", True)


def test_a_refusal_for_another_reason_is_named(
    log: MessageLog, drain: Callable[..., None], query: Query, audit: Callable[[], TableAudit]
) -> None:
    facts.publish(log, [refusable()])
    drain()
    query("UPDATE stepwell.dead_letters SET reason = 'x'")
    (difference,) = audit().differences
    assert (difference.table, difference.what) == ("dead_letters", "missing")


@pytest.mark.usefixtures("projected")
@pytest.mark.parametrize("damage", ["DELETE FROM stepwell.steps WHERE step = 1", "SELECT 1"])
def test_a_refusal_that_nobody_made_excuses_nothing(damage: str, query: Query, audit: Callable[[], TableAudit]) -> None:
    query(
        """INSERT INTO stepwell.dead_letters (source_topic, source_partition, source_offset, kind, reason, detail,
        source_headers, reported_by, logged_at)
        SELECT 'stepwell.episode-events', source_partition, source_offset, 'refused', 'text', '', '[]',
        'stepwell-projector', now() FROM stepwell.steps WHERE step = 1"""
    )
    query(damage)
    found = {difference.table: difference.what for difference in audit().differences}
    assert found.pop("dead_letters") == "stands in the table, but no record asks for it"
    assert found == ({"steps": "missing"} if damage.startswith("DELETE") else {})


def judge(log: MessageLog) -> None:
    """Run the engine until nothing is left."""
    made = EngineRestore(
        log, codec=facts.CODEC, markers=MemoryMarkers(), timeouts=Timeouts(), worker_id="engine-7", report=Notes()
    )
    loop = ExactlyOnceLoop(
        log, group=ENGINE_GROUP, worker_id="engine-7", topics=ENGINE_TOPICS, restore=made, clock=FakeClock(),
        report=Notes(), poll_timeout_s=0.005,
    )  # fmt: skip
    try:
        settle(loop, 20)
    finally:
        loop.close()


@pytest.mark.parametrize("order", ["engine first", "projector first"])
def test_bad_records_are_one_row_whoever_comes_first(
    order: str, log: MessageLog, drain: Callable[..., None], query: Query, audit: Callable[[], TableAudit]
) -> None:
    told = facts.episode("e-1", 3)
    tensor = facts.model.Tensor(name="camera", dtype="uint8", shape=(2,), data=b"ab")
    genuine = told[3] = facts.again(told[3], observation=(tensor,))
    assert isinstance(genuine, StepDone)
    bad = [entry.record for entry in bad_records(genuine)]
    facts.publish(log, told)
    facts.send(log, [*bad, bad[0]._replace(key=None), bad[0]._replace(key=b"e-9")])
    if order == "projector first":
        drain()
        assert audit().differences == []
    judge(log)
    drain()
    rows = query("SELECT kind, reported_by, source_value FROM stepwell.dead_letters")
    assert {row[:2] for row in rows} == {("unreadable", "engine-7")}
    assert len(rows) == len(bad) + 2
    assert audit().differences == []


@pytest.mark.parametrize("at_once", [True, False])
def test_what_stands_does_not_hang_on_how_the_log_was_cut_into_batches(
    at_once: bool, log: MessageLog, drain: Callable[..., None], query: Query, audit: Callable[[], TableAudit]
) -> None:
    asked = facts.requested("e-1")
    retry = facts.retry("e-1", occurred_at=asked.occurred_at + 1)
    for record in [
        facts.snapshot("e-1", last_offset=7), asked, retry, facts.claimed("e-1"),
        facts.claimed("e-1", host="lab-9", pid=1), facts.snapshot("e-1", last_offset=5, phase="FAILED"),
        facts.requested("e-2", requested_by="zoe", occurred_at=asked.occurred_at),
        facts.retrain("t-1"), facts.withdrawn("t-1"), facts.again(facts.withdrawn("t-1"), reason="later"),
    ]:  # fmt: skip
        facts.publish(log, [record])
        if not at_once:
            drain()
    drain()
    assert query("SELECT host, retry_reason, phase FROM stepwell.episode_attempts WHERE episode_id = 'e-1'") == [
        ("lab-3", None, "AGENT_RUNNING")
    ]
    assert query("SELECT r.requested_by, c.reason FROM stepwell.runs r, stepwell.retrain_closings c") == [
        ("ada", "amended")
    ]
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
