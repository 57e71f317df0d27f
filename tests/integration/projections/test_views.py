"""The questions that operations and analysts ask, with known answers."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from stepwell.adapters.runs.summary import summarise
from stepwell.engine.cover import Cover
from stepwell.engine.fold import apply
from stepwell.engine.intervals import wilson
from stepwell.engine.ports import MessageLog
from stepwell.engine.snapshot import snapshot_record
from stepwell.engine.state import AttemptState, EpisodeState, Position
from stepwell.engine.timers import Timeouts, due_facts
from stepwell.engine.verdict import verdict_of
from stepwell.events import model
from stepwell.events.topics import EPISODE_EVENTS
from tests.integration.projections import facts
from tests.unit.engine.episodes import Facts
from tests.unit.engine.stories import fold
from tests.unit.runs import retried

Query = Callable[..., list[tuple[Any, ...]]]
SECOND = 1_000_000


def test_running_now_and_stuck_episodes(log: MessageLog, running: Callable[..., Any], query: Query) -> None:
    long_ago = facts.now_us() - 120 * SECOND
    stale = {"since_at": long_ago, "last_event_at": long_ago}
    for name in ("queued", "fresh", "paused", "hung", "busy", "ended", "judged"):
        facts.publish(log, [facts.requested(name)])
        if name != "queued":
            facts.publish(log, [facts.claimed(name, occurred_at=long_ago)])
    facts.publish(log, [
        facts.snapshot("fresh"),
        facts.snapshot("paused", paused=True, owes="host", **stale),
        facts.snapshot("hung", owes="agent", **stale),
        facts.snapshot("busy", owes="sim", **stale),  # its snapshot is old, its steps are not
        facts.step("busy", 41),
        facts.snapshot("ended", phase="EPISODE_DONE", outcome="success", owes=None, **stale),
        facts.snapshot("judged", **stale),  # its verdict is here before its last snapshot
        facts.verdict("judged"),
    ])  # fmt: skip
    with running() as projector:
        projector.wait_reported()
    assert query("SELECT episode_id, paused, owes, steps_done FROM stepwell.running_now ORDER BY 1") == [
        ("busy", False, "sim", 42), ("fresh", False, "sim", 2), ("hung", False, "agent", 2),
        ("paused", True, "host", 2),
    ]  # fmt: skip
    stuck = query("SELECT episode_id, stuck_on, stuck_s, stuck_since FROM stepwell.stuck_episodes ORDER BY 1")
    assert [row[:2] for row in stuck] == [("hung", "agent"), ("paused", "host")]
    assert all(119 <= row[2] <= 600 for row in stuck)
    query("UPDATE stepwell.settings SET value = 3600 WHERE name = 'stuck_after_s'")
    try:
        assert query("SELECT FROM stepwell.stuck_episodes") == []
    finally:
        query("UPDATE stepwell.settings SET value = 30 WHERE name = 'stuck_after_s'")


def test_a_report_of_silence_leaves_an_attempt_stuck(
    log: MessageLog, running: Callable[..., Any], query: Query
) -> None:
    """All by default: stalled after 30 s, stuck after 30 s; 75 s after the last fact, 44 s after the report."""
    start = facts.now_us() - 75 * SECOND
    told = [facts.again(event, occurred_at=start) for event in Facts("hung").begun()]
    state = EpisodeState("hung")
    for offset, event in enumerate(told):
        apply(state, event, Position(0, offset, start, "f"))
    attempt = state.attempts[1]
    assert isinstance(attempt, AttemptState)
    (stalled,) = due_facts(Cover(attempt), Timeouts(), start, start + 31 * SECOND, "engine-0")
    assert isinstance(stalled, model.EpisodeStalled)
    apply(state, stalled, Position(0, len(told), start + 31 * SECOND, "f"))
    assert attempt.stalled
    requested = next(event for event in told if isinstance(event, model.EpisodeRequested))
    facts.publish(log, [requested, snapshot_record(attempt)])
    with running() as projector:
        projector.wait_reported()
    ((stuck_on, stuck_s),) = query("SELECT stuck_on, stuck_s FROM stepwell.stuck_episodes")
    assert stuck_on == "agent"
    assert stuck_s >= 75


def test_while_no_projector_reports_nothing_grows_idle(
    log: MessageLog, running: Callable[..., Any], query: Query
) -> None:
    """An attempt that was busy when the projector stopped is not stuck, however long ago that is."""
    facts.publish(log, [facts.requested("busy"), facts.claimed("busy"), facts.snapshot("busy"), facts.step("busy", 3)])
    freshness = (
        "SELECT state, age_s > 3000, as_of = (SELECT as_of FROM stepwell.running_now)"
        " FROM stepwell.projection_freshness"
    )
    assert query(freshness) == [("silent", None, None)]  # no projector has ever run
    with running() as projector:
        projector.wait_reported()
        assert query(freshness) == [("current", False, True)]
    ago = "interval '1 h'"
    query(f"UPDATE stepwell.episode_attempts SET claimed_at = claimed_at - {ago}, since_at = since_at - {ago},"
          f" last_event_at = last_event_at - {ago}")  # fmt: skip
    query(f"UPDATE stepwell.steps SET logged_at = logged_at - {ago}")
    query(f"UPDATE stepwell.sink_offsets SET complete_until = complete_until - {ago}")
    assert query(freshness) == [("behind", True, True)]
    query(f"UPDATE stepwell.sink_offsets SET seen_at = seen_at - {ago}")
    assert query(freshness) == [("silent", True, True)]
    assert query("SELECT idle_s < 30, running_s < 30 FROM stepwell.running_now") == [(True, True)]
    assert query("SELECT FROM stepwell.stuck_episodes") == []


def test_pipeline_lag(log: MessageLog, running: Callable[..., Any], query: Query) -> None:
    group = log.consumer("stepwell-engine")
    group.subscribe([EPISODE_EVENTS])
    facts.publish(log, facts.episode("e-1", 3))
    engine: dict[Any, int] = {}
    while not engine:
        engine = {batch.source: batch.end for batch in group.poll(100, 5)}
    group.commit(engine)
    facts.publish(log, facts.episode("e-1", 1))
    with running(watch={"stepwell-engine": [EPISODE_EVENTS]}) as projector:
        projector.wait_caught_up()
        lag = "SELECT sum(behind_events), max(behind_s), max(state) FROM stepwell.pipeline_lag WHERE consumer = %s"
        projector.wait(lambda: query(lag, "stepwell-projector") == [(0, 0, "caught up")])
        projector.wait(lambda: query(lag, "stepwell-engine")[0][0] == 4)
    group.close()
    ((behind_s,),) = query(
        "SELECT max(behind_s) FROM stepwell.pipeline_lag WHERE consumer = 'stepwell-projector' AND topic = %s",
        EPISODE_EVENTS,
    )
    assert behind_s == 0
    # Nobody reports any more: the answer says so, and does not claim to be up to date.
    query("UPDATE stepwell.sink_offsets SET seen_at = now() - interval '1 h', complete_until = now() - interval '1 h'")
    states = query(
        "SELECT DISTINCT state, behind_s > 3500 FROM stepwell.pipeline_lag WHERE consumer = 'stepwell-projector'"
    )
    assert states == [("silent", True)]


@pytest.fixture
def judged_run(log: MessageLog, drain: Callable[..., None]) -> None:
    """Ten episodes: 4 successes, 2 failures, 1 error, 1 aborted, 1 running, 1 not begun; one took two tries."""
    endings = {
        "s-1": ("success", None, None), "s-2": ("success", None, None), "s-3": ("success", None, None),
        "s-4": ("success", None, None), "f-1": ("failure", "task_not_completed", "policy"),
        "f-2": ("failure", "agent_exception", "policy"), "x-1": ("error", "sim_killed", "infrastructure"),
        "a-1": ("aborted", "aborted_by_operator", "operator"),
    }  # fmt: skip
    for name in (*endings, "r-1", "q-1"):
        facts.publish(log, [facts.requested(name)])
        if name != "q-1":
            facts.publish(log, [facts.claimed(name), facts.snapshot(name)])
    for name, (outcome, failure_type, fault) in endings.items():
        verdict = facts.verdict(name, outcome=outcome, failure_type=failure_type, fault=fault)
        if name == "s-4":  # failed by the infrastructure first, then tried again
            facts.publish(log, [facts.verdict(name, outcome="error", failure_type="host_lost", fault="infrastructure")])
            facts.publish(log, [facts.snapshot(name, attempt=2), facts.again(verdict, attempt=2)])
        elif name == "f-1":  # judged a success first, then amended
            facts.publish(log, [facts.verdict(name), facts.again(verdict, revision=3, producer_seq=3)])
        else:
            facts.publish(log, [verdict])
    drain()


@pytest.mark.usefixtures("judged_run")
def test_run_summary(query: Query) -> None:
    ((*counts, rate, low, high, hard_rate, hard_low, hard_high),) = query(
        "SELECT planned, attempted, pending, running, scored, succeeded, failed, errored, aborted, success_rate,"
        " success_rate_low, success_rate_high, success_rate_errors_as_failures, success_rate_errors_as_failures_low,"
        " success_rate_errors_as_failures_high FROM stepwell.run_summary"
    )
    assert counts == [10, 9, 1, 1, 6, 4, 2, 1, 1]
    assert (rate, hard_rate) == (4 / 6, 4 / 7)
    assert (low, high) == pytest.approx(wilson(4, 6), abs=1e-12)
    assert (hard_low, hard_high) == pytest.approx(wilson(4, 7), abs=1e-12)


def test_run_summary_and_the_command_line_s_summary_agree_on_retries(
    log: MessageLog, drain: Callable[..., None], query: Query
) -> None:
    states = []
    for number, facts_told in enumerate(retried.histories()):
        name = f"ep-{number}"
        events = [facts.again(event, episode_id=name, occurred_at=facts.now_us()) for event in facts_told]
        state = fold(events, EpisodeState(name))
        states.append(state)
        attempts = [attempt for attempt in state.attempts.values() if isinstance(attempt, AttemptState)]
        facts.publish(log, events)
        facts.publish(log, [verdict for attempt in attempts if (verdict := verdict_of(attempt)) is not None])
        facts.publish(log, [snapshot_record(attempt) for attempt in attempts])
    drain()
    told = summarise(states)
    ((planned, attempted, scored, succeeded, errored, aborted, missing),) = query(
        "SELECT planned, attempted, scored, succeeded, errored, aborted, pending + running FROM stepwell.run_summary"
    )
    total = told.total
    assert (planned, attempted, scored, succeeded) == (total.planned, total.attempted, total.scored, total.succeeded)
    assert (errored, aborted, missing) == (total.errored, total.aborted, total.missing)
    assert (planned, scored, errored, aborted, missing) == (8, 3, 2, 1, 2), "the histories hold every case"
    (group,) = told.groups
    causes = query(
        "SELECT fault, failure_type, sum(episodes)::int FROM stepwell.outcome_summary WHERE outcome <> 'success'"
        " GROUP BY 1, 2"
    )
    assert {(fault, kind): count for fault, kind, count in causes} == group.causes


@pytest.mark.usefixtures("judged_run")
def test_outcome_summary(query: Query) -> None:
    rows = query(
        "SELECT policy, scene, outcome, failure_type, fault, episodes FROM stepwell.outcome_summary ORDER BY 3, 4"
    )
    assert rows == [
        ("reach-expert", "table", "aborted", "aborted_by_operator", "operator", 1),
        ("reach-expert", "table", "error", "sim_killed", "infrastructure", 1),
        ("reach-expert", "table", "failure", "agent_exception", "policy", 1),
        ("reach-expert", "table", "failure", "task_not_completed", "policy", 1),
        ("reach-expert", "table", "success", None, None, 4),
    ]


@pytest.mark.parametrize(("successes", "trials"), [(0, 0), (0, 5), (5, 5), (1, 3), (499, 1000)])
def test_intervals_equal_the_engine_s(query: Query, successes: int, trials: int) -> None:
    ((low, high),) = query("SELECT stepwell.wilson_low(%s, %s), stepwell.wilson_high(%s, %s)", *[successes, trials] * 2)
    assert ((low, high) if low is not None else None) == (
        pytest.approx(wilson(successes, trials), abs=1e-12) if trials else None
    )


def test_step_log_joins_steps_with_the_actions_they_applied(
    log: MessageLog, drain: Callable[..., None], query: Query
) -> None:
    chunk = model.Tensor(
        name="action", dtype="int32", shape=(3, 2), data=b"".join(n.to_bytes(4, "little") for n in range(6))
    )
    facts.publish(log, [facts.action("e-1", 0, n_steps=3, action=chunk)])
    facts.publish(log, [facts.step("e-1", n, action_seq=0) for n in range(3)])
    # A foreign simulator told step 1 too, and its telling was refused; step 2 of the right one came too late.
    facts.publish(log, [facts.step("e-1", 1, action_seq=0, producer_id="sim-2", reward=math.inf)])
    drain()
    ((partition, offset),) = query(
        "SELECT source_partition, source_offset FROM stepwell.steps WHERE producer_id = 'sim-2'"
    )
    late = facts.again(
        facts.verdict("e-1").certificate, late=(model.SequenceRange(producer="sim", first=3, last=3),), late_count=1
    )
    facts.publish(log, [facts.dead_letter(source_partition=partition, source_offset=offset)])
    facts.publish(log, [facts.verdict("e-1", certificate=late)])
    drain()
    assert query("SELECT step, action, reward FROM stepwell.step_log WHERE episode_id = 'e-1' ORDER BY step") == [
        (0, [0.0, 1.0], 1.5), (1, [2.0, 3.0], 1.5),
    ]  # fmt: skip
