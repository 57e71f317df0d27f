"""Sums by minute, hour and day say what counting the rows says, on PostgreSQL and on TimescaleDB."""

import itertools
import math
import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepwell.engine.ports import MessageLog, RecordBatch
from stepwell.events.model import LogRecord
from stepwell.projections.database import connect
from stepwell.projections.schema.generations import read_homes
from stepwell.projections.sums.wall_buckets import ERROR
from tests.integration.projections import facts
from tests.integration.projections.batches import cut, write
from tests.integration.projections.sums import Query, assert_sums_are_right, kept, refresh

DAY_US = 24 * 3600 * 1_000_000
HOUR_US = 3600 * 1_000_000
HOSTS = ("lab-1", "lab-2")


def episode(name: str, number: int, at: int, steps: int = 4) -> list[LogRecord]:
    """The facts of one episode, with times from ``at`` (µs) on, imported."""
    about = {
        "task": f"sim/task-{number % 2}", "policy": f"policy-{number % 3}", "policy_version": str(number % 2),
        "scene": f"scene-{number % 2}", "perturbation": ("none", "dim")[number % 2],
    }  # fmt: skip
    when = {"origin": "import"}
    first = facts.requested(name, **about, occurred_at=at, **when)
    claim = facts.claimed(name, host=HOSTS[number % 2], occurred_at=at, **when)
    walls = (0.01, 0.0, None, 1e300, 0.25, 3.5)
    done = [
        facts.step(name, n, occurred_at=at + n * 37 * 1_000_000, step_wall_s=walls[(number + n) % len(walls)], **when)
        for n in range(steps)
    ]
    return [first, claim, *done]


def verdict(name: str, number: int, at: int, outcome: str, attempt: int = 1, revision: int = 1) -> LogRecord:
    failed = {} if outcome == "success" else {"failure_type": f"{outcome}_type", "fault": "policy"}
    return facts.verdict(
        name, revision, attempt=attempt, outcome=outcome, requested_at=at, task=f"sim/task-{number % 2}",
        policy=f"policy-{number % 3}", policy_version=str(number % 2), scene=f"scene-{number % 2}",
        checkpoint=(None, "c-1")[number % 2], n_steps=number, **failed,
    )  # fmt: skip


def counters(worker: str, number: int, at: int) -> LogRecord:
    """What counts, and histograms of every kind, with numbers that no sum holds among them."""
    named = [
        ("requests", "counter", "delta"), ("requests.since", "counter", "cumulative"),
        ("waiting", "up_down_counter", "cumulative"), ("took", "histogram", "delta"),
        ("took.since", "histogram", "cumulative"), ("odd", "histogram", "delta"), ("huge", "gauge", "none"),
    ]  # fmt: skip
    series = tuple(
        facts.model.Series(metric=name, unit="1", kind=kind, temporality=temporality)
        for name, kind, temporality in named
    )
    spreads = [(3, number, 0.25, number + 0.5), (4, 9, 0.0, 99.0), (5, (0, 2**63 - 1, 5)[number % 3], None, math.nan)]
    return facts.telemetry(
        worker, 1000 + number, at=at, series=series, point_series=tuple(range(7)), point_start_at=(at - 1_000_000,) * 7,
        point_at=(at,) * 7,
        point_value=(2.0, float(number), number - 4.0, number / 8, 70.5, 1.5, (1e308, 1e299)[number % 2]),
        distributions=tuple(
            facts.model.Distribution(point=point, count=count, min=least, max=most)
            for point, count, least, most in spreads
        ),
    )  # fmt: skip


def history(count: int) -> list[LogRecord]:
    """Episodes of today, of this week and of two months ago; outcomes of all kinds, revised, tried again."""
    now = facts.now_us()
    records: list[LogRecord] = []
    for number in range(count):
        at = now - (0, 3 * HOUR_US, 5 * DAY_US, 61 * DAY_US)[number % 4] - number * 71 * 1_000_000
        name = f"e-{number}"
        outcome = ("success", "failure", "error", "aborted")[number % 4]
        records += [*episode(name, number, at), verdict(name, number, at, outcome)]
        if number % 3 == 0:
            records.append(verdict(name, number, at, "failure", revision=2))
        if number % 5 == 0:
            records.append(verdict(name, number, at + HOUR_US, "success", attempt=2))
        records.append(facts.telemetry(f"w-{number % 2}", number, at=at, point_value=(number / 4, 3.0)))
        records.append(counters(f"w-{number % 2}", number, at))
    return records


def test_sums_are_right_whatever_comes_late_or_twice(
    log: MessageLog, drain: Callable[..., None], database: str, query: Query
) -> None:
    records = history(12)
    facts.publish(log, records[:40])
    drain()
    refresh(database)  # so that what follows changes what is summed already
    facts.publish(log, [*records[20:], *records[:15]])
    drain(batch_records=7)
    assert_sums_are_right(database, query)
    facts.publish(log, records)  # all of it once more
    drain()
    assert_sums_are_right(database, query)


def test_what_is_newer_than_the_last_refresh_is_in_the_sums(
    log: MessageLog, drain: Callable[..., None], database: str, query: Query
) -> None:
    at = facts.now_us() - HOUR_US
    facts.publish(log, [*episode("e-1", 1, at), verdict("e-1", 1, at, "failure")])
    drain()
    refresh(database)
    later = at + 30 * 60 * 1_000_000
    facts.publish(log, [*episode("e-2", 1, later), verdict("e-2", 1, later, "success")])
    drain()
    assert query("SELECT sum(scored), sum(succeeded) FROM stepwell.success_by_minute") == [(2, 1)]
    assert query("SELECT sum(steps) FROM stepwell.step_minutes") == [(8,)]


@pytest.mark.parametrize("first", ["steps", "claim"])
def test_steps_that_come_before_their_request_are_summed_under_it_in_the_end(
    first: str, log: MessageLog, drain: Callable[..., None], database: str, query: Query
) -> None:
    request, claim, *steps = episode("e-1", 1, facts.now_us() - HOUR_US)
    before = {"steps": [*steps[:2]], "claim": [claim, *steps[:2]]}[first]
    facts.publish(log, before)
    drain()
    refresh(database)
    assert [row[1:3] for row in kept(query, "step", "day")] == [(None, None)] * 2
    facts.publish(log, [request, *steps[2:], claim])
    drain(batch_records=2)
    assert_sums_are_right(database, query, ("step",))
    assert {row[1] for row in kept(query, "step", "hour")} == {"policy-1"}
    assert {row[6] for row in kept(query, "step", "minute")} == {"lab-2"}
    assert query("SELECT count(*) FROM stepwell.step_gaps") == [(0,)]


def test_views_are_as_the_results_of_the_episodes(
    log: MessageLog, drain: Callable[..., None], database: str, query: Query
) -> None:
    facts.publish(log, history(12))
    drain()
    refresh(database)
    for level in ("minute", "hour", "day"):
        found = query(
            "SELECT policy, sum(scored)::int, sum(succeeded)::int, sum(failed)::int, sum(errored)::int,"
            f" sum(aborted)::int FROM stepwell.success_by_{level} GROUP BY policy ORDER BY policy"
        )
        assert found == query(
            "SELECT policy, count(*) FILTER (WHERE outcome IN ('success', 'failure'))::int,"
            " count(*) FILTER (WHERE outcome = 'success')::int, count(*) FILTER (WHERE outcome = 'failure')::int,"
            " count(*) FILTER (WHERE outcome = 'error')::int, count(*) FILTER (WHERE outcome = 'aborted')::int"
            " FROM stepwell.episode_results WHERE state = 'ended' GROUP BY policy ORDER BY policy"
        )
        assert query(f"SELECT sum(episodes)::int FROM stepwell.failures_by_{level}") == query(
            "SELECT count(*)::int FROM stepwell.episode_results WHERE outcome <> 'success'"
        )
    assert query(
        "SELECT worker, sum(episodes)::int FROM stepwell.episode_facts GROUP BY 1 HAVING sum(episodes) > 0 ORDER BY 1"
    ) == query(
        "SELECT a.host, count(*)::int FROM stepwell.episode_results r LEFT JOIN stepwell.episode_attempts a"
        " USING (episode_id, attempt) WHERE r.outcome IS NOT NULL GROUP BY 1 ORDER BY 1"
    )
    rates = query(
        "SELECT success_rate, success_rate_low, success_rate_high FROM stepwell.success_by_day WHERE scored > 0"
    )
    assert rates
    assert all(0 <= low <= rate <= high <= 1 for rate, low, high in rates)


def test_the_examples_of_the_docs_answer(
    log: MessageLog, drain: Callable[..., None], database: str, query: Query
) -> None:
    facts.publish(log, history(8))
    drain()
    refresh(database)
    text = (Path(__file__).parents[3] / "docs" / "timescaledb.md").read_text(encoding="utf-8")
    examples = re.findall(r"```sql\n(.*?)```", text, re.DOTALL)
    assert len(examples) == 2
    assert all(query(example.replace("2026-01-01", "2020-01-01")) for example in examples)


def test_gpu_and_telemetry_views(log: MessageLog, drain: Callable[..., None], database: str, query: Query) -> None:
    at = facts.now_us() // HOUR_US * HOUR_US - DAY_US
    values = {
        "hw.gpu.utilization": (0.25, 0.75), "hw.gpu.memory.usage": (1e9, 3e9), "hw.temperature": (40.0, 70.0),
        "hw.power": (100.0, 200.0), "hw.gpu.memory.limit": (8e9, 8e9),
    }  # fmt: skip
    gpu = (facts.model.Attribute(name="hw.index", value="3"),)
    series = [facts.model.Series(metric=metric, unit="1", attributes=gpu) for metric in values]
    series.append(facts.model.Series(metric="hw.temperature", unit="Cel"))  # of the room, not of a GPU
    points = [(place, value) for place, pair in enumerate([*values.values(), (math.nan, 21.0)]) for value in pair]
    times = tuple(at + second * 1_000_000 for second in range(len(points)))
    sample = facts.telemetry(
        "w-1", 1, at=at, series=tuple(series), point_series=tuple(place for place, _ in points), point_at=times,
        point_start_at=times, point_value=tuple(value for _, value in points), distributions=(),
    )  # fmt: skip
    facts.publish(log, [sample])
    drain()
    refresh(database)
    for level in ("minute", "hour", "day"):
        assert query(
            "SELECT host, gpu, utilization, memory_used, memory_limit, temperature, power"
            f" FROM stepwell.gpu_by_{level}"
        ) == [("lab-3", "3", 0.5, 3e9, 8e9, 70.0, 150.0)]  # fmt: skip
        room = f"SELECT points, mean, min, max FROM stepwell.telemetry_by_{level} WHERE attributes = '{{}}'"
        assert query(room) == [(1, 21.0, 21.0, 21.0)]


def test_histograms_count_what_was_measured_and_what_is_cumulative_is_not_added_up(
    log: MessageLog, drain: Callable[..., None], database: str, query: Query
) -> None:
    at = facts.now_us() // HOUR_US * HOUR_US - DAY_US
    for number in (1, 2, 4):  # together and one by one, copied and merged
        facts.publish(log, [counters("w-1", number, at + number * 1_000_000)])
        if number != 1:
            drain()
    facts.publish(log, [counters("w-1", 2, at + 2_000_000)])  # once more
    drain()
    refresh(database)
    for level in ("minute", "hour", "day"):
        found = query(
            "SELECT metric, points, measurements, sum, mean, min, max"
            f" FROM stepwell.telemetry_by_{level} WHERE temporality <> 'none' ORDER BY metric"
        )
        assert found == [
            # Of the counts 2**63 - 1, 5 and 2**63 - 1 only one is believed.
            ("odd", 3, 5, 1.5, 0.3, None, None),
            ("requests", 3, 3, 6.0, 2.0, 2.0, 2.0),
            ("requests.since", 3, None, None, None, 1.0, 4.0),
            ("took", 3, 7, 0.875, 0.125, 0.25, 4.5),
            ("took.since", 3, None, None, None, None, None),
            ("waiting", 3, 3, -5.0, -5 / 3, -3.0, 0.0),
        ], level
    huge = "SELECT points, sum, max FROM stepwell.telemetry_by_day WHERE metric = 'huge'"
    assert query(huge) == [(1, 1e299, 1e299)]  # and not 1e308, twice


def test_percentiles_are_as_near_to_the_exact_ones_as_is_said(
    log: MessageLog, drain: Callable[..., None], database: str, query: Query
) -> None:
    chance = random.Random(7)
    walls = [chance.lognormvariate(-4, 1.5) for _ in range(400)]
    at = facts.now_us() // HOUR_US * HOUR_US - HOUR_US
    request, claim = episode("e-1", 1, at, steps=0)
    steps = [
        facts.step("e-1", n, occurred_at=at + n * 1000, step_wall_s=wall, origin="import")
        for n, wall in enumerate(walls)
    ]
    facts.publish(log, [request, claim, *steps])
    drain()
    refresh(database)
    for level in ("minute", "hour", "day"):
        ((count, mean, *found),) = query(
            f"SELECT steps, mean_s, p50_s, p90_s, p99_s FROM stepwell.step_latency_by_{level}"
        )
        assert (count, mean) == (400, pytest.approx(sum(walls) / 400, abs=1e-6))
        assert_near(walls, found)
    ((*anyhow,),) = query(
        "SELECT stepwell.wall_percentile(0.5, array_agg(wall_bucket), array_agg(steps)),"
        " stepwell.wall_percentile(0.9, array_agg(wall_bucket), array_agg(steps)),"
        " stepwell.wall_percentile(0.99, array_agg(wall_bucket), array_agg(steps)) FROM stepwell.step_facts"
    )
    assert_near(walls, anyhow)
    assert query("SELECT host, task, steps, steps_per_s, wall_s FROM stepwell.simulator_rate_by_day") == [
        ("lab-2", "sim/task-1", 400, pytest.approx(400 / sum(walls), rel=1e-4), pytest.approx(sum(walls), rel=1e-4))
    ]


def assert_near(walls: Sequence[float], found: Sequence[float]) -> None:
    exact = [sorted(walls)[math.ceil(share * len(walls)) - 1] for share in (0.5, 0.9, 0.99)]
    for right, got in zip(exact, found, strict=True):
        # Half a microsecond more: durations are kept in whole ones.
        assert abs(got - right) <= ERROR * right + 5e-7
        assert got != pytest.approx(right, rel=1e-9), "read from a bucket, so it would be odd to be exact"


# --- however batches are cut ---

RECORDS = st.lists(
    st.one_of(
        st.tuples(st.just("verdict"), st.integers(0, 2), st.integers(1, 3), st.integers(1, 3),
                  st.sampled_from(["success", "failure", "error", "aborted"])),
        st.tuples(st.just("refused"), st.integers(0, 2), st.integers(1, 3), st.integers(1, 3), st.just("success")),
    ),
    min_size=1, max_size=12,
)  # fmt: skip
EPISODE_RECORDS = st.lists(
    st.one_of(
        st.tuples(st.just("request"), st.integers(0, 1), st.just(0)),
        st.tuples(st.just("claim"), st.integers(0, 1), st.just(0)),
        st.tuples(st.sampled_from(["step", "refused"]), st.integers(0, 1), st.integers(0, 5)),
    ),
    min_size=1, max_size=14,
)  # fmt: skip
NOW = facts.now_us()
_sinks = itertools.count()


def made_verdict(kind: str, episode: int, attempt: int, revision: int, outcome: str) -> LogRecord:
    record = verdict(f"e-{episode}", episode, NOW - attempt * DAY_US, outcome, attempt, revision)
    # More than an integer of the database holds.
    return facts.again(record, n_steps=2**40) if kind == "refused" else record


def made_fact(kind: str, number: int, step: int) -> LogRecord:
    request, claim, *steps = episode(f"e-{number}", number, NOW - DAY_US, steps=6)
    if kind == "refused":
        return facts.again(steps[step], action_seq=0, occurred_at=steps[step].occurred_at - 10**6, step=2**40)
    return {"request": request, "claim": claim}.get(kind, steps[step])


def written(url: str, batches: Iterator[RecordBatch], tables: Sequence[str]) -> list[list[tuple[Any, ...]]]:
    """What is in the tables afterwards; they are empty again."""
    with connect(url, application="test") as connection:
        homes = read_homes(connection)
        write(connection, batches, f"s-{next(_sinks)}")
        found = [sorted(connection.execute(f"SELECT * FROM stepwell.{name}").fetchall(), key=repr) for name in tables]
        with connection.transaction():
            homes.enter(connection)
            for name in ("runs", "episodes", "episode_attempts", "step_gaps", "dead_letters", *tables):
                connection.execute(f"DELETE FROM {name.split()[0]}")
    return found


def plain_sums(url: str, family: str) -> list[str]:
    with psycopg.connect(url) as connection:
        there = connection.execute("SELECT storage FROM stepwell.generations").fetchone()
    return [f"{family}_{level}s" for level in ("minute", "hour", "day")] if there == ("plain",) else []


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(RECORDS, st.sets(st.integers(1, 11)))
def test_changes_do_not_depend_on_how_batches_are_cut(
    database: str, told: list[tuple[Any, ...]], cuts: set[int]
) -> None:
    records = [made_verdict(*each) for each in told]
    names = ["verdicts", "verdict_changes", *plain_sums(database, "outcome")]
    whole = written(database, cut(records, (), NOW), names)
    assert whole == written(database, cut(records, cuts, NOW), names)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(EPISODE_RECORDS, st.sets(st.integers(1, 13)))
def test_sums_of_steps_do_not_depend_on_how_batches_are_cut(
    database: str, told: list[tuple[str, int, int]], cuts: set[int]
) -> None:
    records = [made_fact(*each) for each in told]
    # Rows that were moved over to other dimensions leave nothing behind that counts.
    names = ["steps", "step_gaps", *(f"{name} WHERE steps <> 0" for name in plain_sums(database, "step"))]
    whole = written(database, cut(records, (), NOW), names)
    assert whole == written(database, cut(records, cuts, NOW), names)
