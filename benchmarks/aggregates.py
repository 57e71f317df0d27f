"""Sums over any dimensions of steps and episodes: how long they take, how that grows, and what TimescaleDB makes of it.

Rows are made by the database itself, and summed by the statements that the projector uses. On PostgreSQL every query
must answer within a second over the largest size; its plan is kept beside the figures.
"""

import math
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from psycopg import sql

from stepwell.adapters.parts.embedded_postgres import EmbeddedPostgres
from stepwell.adapters.parts.timescale import TimescalePart
from stepwell.exceptions import StepwellError
from stepwell.projections.database import Connection, connect
from stepwell.projections.schema.generations import read_homes
from stepwell.projections.schema.migrate import migrate
from stepwell.projections.sums.rollups import ROLLUPS, recount
from stepwell.projections.upkeep import tune
from stepwell.projections.upkeep.retention import upkeep
from stepwell.projections.upkeep.tuning import AGGREGATES, Tuning


class SlowError(StepwellError):
    """A query took longer than it may."""


STEPS_EACH = 50
LIMIT_MS = 1_000.0

# The same on every server: no chance is in it. Step times lie within a tenth of their episode's, one in a hundred is
# five times as long. Ten tasks, four policies in two versions, five scenes, three perturbations, twenty hosts, over
# ninety days.
EPISODES = """
INSERT INTO episodes (episode_id, run_id, task, policy, policy_version, checkpoint, scene, perturbation, seed,
                      repetition, cell, max_steps, requested_by, requested_at,
                      trace_id, purpose, source_partition, source_offset)
SELECT 'e-' || n, 'run-' || n %% 40, 'sim/task-' || n %% 10, 'policy-' || n %% 4, ((n / 4) %% 2)::text, NULL,
       'scene-' || n %% 5, (ARRAY['none', 'dim', 'shift'])[n %% 3 + 1], n, 0, 'cell', 500, 'bench',
       timestamptz '2026-01-01 00:00+00' + (n::double precision / %(episodes)s) * interval '90 days', '', 'evaluation',
       n %% 8, n
FROM generate_series(%(first)s::integer, %(last)s::integer) AS n
"""
ATTEMPTS = """
INSERT INTO episode_attempts (episode_id, attempt, run_id, requested_at, claimed_at, host, host_pid)
SELECT episode_id, 1, run_id, requested_at, requested_at, 'lab-' || (seed / 7) %% 20, 1 FROM episodes
WHERE seed BETWEEN %(first)s AND %(last)s
"""
CHANGES = """
INSERT INTO verdict_changes (at, episode_id, change, sign, attempt, revision, run_id, policy,
                             policy_version, checkpoint, task, scene, perturbation, purpose, outcome, failure_type,
                             fault, n_steps, issued_at, logged_at, source_partition, source_offset)
SELECT requested_at, episode_id, 1, 1, 1, 1, run_id, policy, policy_version, checkpoint, task, scene, perturbation,
       purpose, CASE WHEN seed %% 7 < 5 THEN 'success' ELSE 'failure' END,
       CASE WHEN seed %% 7 >= 5 THEN 'task_not_completed' END,
       CASE WHEN seed %% 7 >= 5 THEN 'policy' END, %(each)s, requested_at, requested_at, seed %% 8, seed
FROM episodes WHERE seed BETWEEN %(first)s AND %(last)s
"""
STEPS = """
INSERT INTO steps (occurred_at, logged_at, episode_id, attempt, step, producer_id, producer_seq, event_id, action_seq,
                   sim_time, reward, success, terminated, truncated, step_wall_s, metrics, state_digest,
                   source_partition, source_offset)
SELECT e.requested_at + n * interval '50 ms', e.requested_at + n * interval '50 ms', e.episode_id, 1, n,
       'sim-' || e.seed, n + 1, md5(e.episode_id || n)::uuid, n, n * 0.05, n * 0.5, false, false,
       n = %(each)s::integer - 1,
       0.01 * (1 + e.seed %% 5 * 0.2) * (0.9 + (e.seed * 7919 + n * 1049) %% 200 / 1000.0)
       * CASE WHEN (e.seed * 31 + n * 17) %% 100 = 0 THEN 5 ELSE 1 END,
       NULL, NULL, e.source_partition, e.seed * 1000 + n
FROM episodes e, generate_series(0, %(each)s::integer - 1) AS n
WHERE e.seed BETWEEN %(first)s AND %(last)s
"""

DIMENSIONS = ("task", "policy, policy_version", "scene", "perturbation", "worker", "day")
QUERIES = {
    f"episodes by {dimension}": f"SELECT {dimension}, sum(episodes), sum(episodes) FILTER (WHERE outcome = 'success')"
    f" FROM stepwell.episode_facts GROUP BY {dimension}"
    for dimension in DIMENSIONS
}
QUERIES |= {
    f"steps by {dimension}": f"SELECT {dimension}, sum(steps), sum(wall_us) / 1e6"
    f" FROM stepwell.step_facts GROUP BY {dimension}"
    for dimension in DIMENSIONS
}
# The percentile of many rows: counted by bucket first, which is quick, and read from the buckets then.
QUERIES |= {
    f"p99 of step time by {dimension}": f"SELECT {dimension}, stepwell.wall_percentile(0.99, array_agg(wall_bucket),"
    f" array_agg(steps)) FROM (SELECT {dimension}, wall_bucket, sum(steps) AS steps FROM stepwell.step_facts"
    f" GROUP BY {dimension}, wall_bucket) AS counted GROUP BY {dimension}"
    for dimension in DIMENSIONS
}
QUERIES["episodes by all"] = (
    "SELECT task, policy, policy_version, scene, perturbation, worker, sum(episodes) FROM stepwell.episode_facts"
    " GROUP BY task, policy, policy_version, scene, perturbation, worker"
)
QUERIES["steps by all"] = (
    "SELECT task, policy, policy_version, scene, perturbation, worker, sum(steps) FROM stepwell.step_facts"
    " GROUP BY task, policy, policy_version, scene, perturbation, worker"
)
QUERIES["success_by_day, one week"] = (
    "SELECT policy, scene, perturbation, sum(succeeded)::float / sum(scored) FROM stepwell.success_by_day"
    " WHERE bucket >= '2026-02-01' AND bucket < '2026-02-08' GROUP BY policy, scene, perturbation"
)
QUERIES["step_latency_by_hour, one day"] = (
    "SELECT bucket, task, max(p99_s) FROM stepwell.step_latency_by_hour"
    " WHERE bucket >= '2026-02-01' AND bucket < '2026-02-02' GROUP BY bucket, task"
)
RAW = "raw steps by task (no sums)"
RAW_QUERY = "SELECT e.task, count(*) FROM stepwell.steps s JOIN stepwell.episodes e USING (episode_id) GROUP BY e.task"


def aggregate_runs(episodes: int, small: int, turns: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Growth on PostgreSQL up to so many episodes, fifty steps each; and TimescaleDB beside it at a smaller size."""
    growth: dict[str, list[tuple[int, float]]] = {}
    slow: list[str] = []
    with _postgres() as url, connect(url, application="bench") as connection:
        _tune_session(connection)
        done = 0
        for size in (episodes // 100, episodes // 10, episodes):
            filled = _fill(connection, done + 1, size, episodes)
            done = size
            summed = _recount(connection)
            _check(connection, size)
            yield f"aggregates fill, {size * STEPS_EACH:,} steps", {"rows_s": filled, "sums_s": summed}
            for name, query in {**QUERIES, RAW: RAW_QUERY}.items():
                run = _timed(connection, query, turns if name != RAW else 1)
                growth.setdefault(name, []).append((size, run["median_ms"]))
                if size == episodes:
                    run["plan"] = _plan(connection, query)
                    if name != RAW and run["median_ms"] >= LIMIT_MS:
                        slow.append(f"{name} took {run['median_ms']:.0f} ms over {size * STEPS_EACH:,} steps")
                yield f"aggregates {size * STEPS_EACH:,} steps: {name}", run
    for name, points in growth.items():
        yield f"aggregates growth: {name}", {"exponent": _exponent(points), "ms": [ms for _, ms in points]}
    yield from _timescale_runs(small, turns)
    yield "aggregates timescaledb compression of steps", compression_run(small)
    if slow:
        raise SlowError("; ".join(slow))


def _timescale_runs(episodes: int, turns: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Compression, refresh, and the same answers as PostgreSQL gives at that size."""
    with _postgres() as url, connect(url, application="bench") as connection:
        _fill(connection, 1, episodes, episodes)
        _recount(connection)
        answers = {name: _answer(connection, query) for name, query in QUERIES.items()}
        plain = {name: _timed(connection, query, turns)["median_ms"] for name, query in QUERIES.items()}
    with TimescalePart() as part, connect(_migrated(part.start()), application="bench") as connection:
        _fill(connection, 1, episodes, episodes)
        schema = read_homes(connection).schemas[0]
        for aggregate in AGGREGATES:
            if aggregate.name.startswith("telemetry"):
                continue
            started = time.perf_counter()
            connection.execute(f"CALL refresh_continuous_aggregate('{schema}.{aggregate.name}', NULL, NULL)")
            yield f"aggregates timescaledb refresh {aggregate.name}", {"first_s": time.perf_counter() - started}
        yield "aggregates timescaledb refresh again, one late episode", _late_refresh(connection, schema, episodes)
        for name, query in QUERIES.items():
            run = _timed(connection, query, turns)
            if _answer(connection, query) != answers[name]:
                raise RuntimeError(f"{name}: TimescaleDB answers otherwise than PostgreSQL")
            yield (
                f"aggregates timescaledb {episodes * STEPS_EACH:,} steps: {name}",
                run | {"postgresql_ms": plain[name]},
            )
        tune.apply(connection, schema, Tuning(retention_steps_days=0))
        for done in upkeep(connection, Tuning()):
            if (done.relation, done.what) == ("steps", "compressed"):
                break
        for name, query in QUERIES.items():
            if _answer(connection, query) != answers[name]:
                raise RuntimeError(f"{name}: another answer once compressed")


def compression_run(episodes: int) -> dict[str, Any]:
    """One day of so many episodes, with digests that nothing can compress and two metrics."""
    with TimescalePart() as part, connect(_migrated(part.start()), application="bench") as connection:
        _fill(connection, 1, episodes, 90 * episodes)
        schema = read_homes(connection).schemas[0]
        connection.execute(
            f"UPDATE {schema}.steps SET state_digest = sha256(event_id::text::bytea), metrics = jsonb_build_object("
            "'path_length_m', step * 0.0137, 'contact_force_N', hashtext(event_id::text) / 1e6)"
        )
        connection.execute(f"VACUUM FULL {schema}.steps")
        tune.apply(connection, schema, Tuning(retention_steps_days=0))
        started = time.perf_counter()
        connection.execute("SELECT compress_chunk(c) FROM show_chunks(%s::regclass) AS c", (f"{schema}.steps",))
        seconds = time.perf_counter() - started
        return {**_compression(connection, schema), "rows": episodes * STEPS_EACH, "seconds": seconds}


def _late_refresh(connection: Connection, schema: str, episodes: int) -> dict[str, Any]:
    """One episode two months old changes; what it costs to sum that again."""
    connection.execute(
        f"UPDATE {schema}.steps SET logged_at = logged_at WHERE episode_id = %s", (f"e-{episodes // 3}",)
    )  # fmt: skip
    started = time.perf_counter()
    for level in ("minutes", "hours", "days"):
        connection.execute(f"CALL refresh_continuous_aggregate('{schema}.step_{level}', NULL, NULL)")
    return {"seconds": time.perf_counter() - started}


def _compression(connection: Connection, schema: str) -> dict[str, Any]:
    found = connection.execute(
        "SELECT sum(before_compression_total_bytes)::float, sum(after_compression_total_bytes)::float,"
        " count(*) FILTER (WHERE compression_status = 'Compressed') FROM chunk_compression_stats(%s)",
        (f"{schema}.steps",),
    ).fetchone()
    if found is None or not found[2]:
        raise RuntimeError("no chunk of steps was compressed")
    return {
        "before_mb": found[0] / 2**20,
        "after_mb": found[1] / 2**20,
        "ratio": found[0] / found[1],
        "chunks": found[2],
    }


@contextmanager
def _postgres() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="stepwell-bench-") as directory:
        server = EmbeddedPostgres(directory)
        try:
            yield _migrated(server.start())
        finally:
            server.stop(force=True)


def _migrated(url: str) -> str:
    migrate(url)
    return url


def _tune_session(connection: Connection) -> None:
    """What a server for this size has; the embedded one is set for a small machine."""
    for name, value in (("work_mem", "64MB"), ("maintenance_work_mem", "256MB"), ("synchronous_commit", "off")):
        connection.execute("SELECT set_config(%s, %s, false)", (name, value))


def _fill(connection: Connection, first: int, last: int, episodes: int) -> float:
    """Episodes of these numbers, of so many in all; seconds."""
    started = time.perf_counter()
    values = {"first": first, "last": last, "episodes": episodes, "each": STEPS_EACH}
    with connection.transaction():
        read_homes(connection).enter(connection)
        for statement in (EPISODES, ATTEMPTS, CHANGES, STEPS):
            connection.execute(statement, values)
    return time.perf_counter() - started


def _recount(connection: Connection) -> float:
    """The sums over all that is there, by the projector's own statements; seconds."""
    started = time.perf_counter()
    with connection.transaction():
        read_homes(connection).enter(connection)
        for kind in ("steps", "verdict_changes"):
            for units in ("minutes", "hours", "days"):
                connection.execute(sql.SQL("TRUNCATE {}").format(sql.Identifier(f"{ROLLUPS[kind].name}_{units}")))
            recount(connection, kind)
    seconds = time.perf_counter() - started
    for schema in read_homes(connection).schemas:
        for name in (
            "episodes",
            "episode_attempts",
            "verdict_changes",
            "steps",
            "step_days",
            "step_hours",
            "outcome_days",
        ):
            connection.execute(f"VACUUM ANALYZE {schema}.{name}")
    return seconds


def _check(connection: Connection, episodes: int) -> None:
    query = (
        "SELECT (SELECT sum(steps) FROM stepwell.step_days), (SELECT sum(steps) FROM stepwell.step_hours),"
        " (SELECT sum(episodes) FROM stepwell.outcome_days)"
    )
    found = connection.execute(query).fetchone()
    if found != (episodes * STEPS_EACH, episodes * STEPS_EACH, episodes):
        raise RuntimeError(f"the sums over {episodes} episodes are {found}")


def _timed(connection: Connection, query: str, turns: int) -> dict[str, Any]:
    """Milliseconds of a query, which has run once before."""
    connection.execute(query).fetchall()
    taken = []
    for _ in range(max(turns, 1)):
        started = time.perf_counter()
        connection.execute(query).fetchall()
        taken.append((time.perf_counter() - started) * 1e3)
    return {"median_ms": statistics.median(taken), "most_ms": max(taken)}


def _plan(connection: Connection, query: str) -> list[str]:
    return [line for (line,) in connection.execute(f"EXPLAIN (ANALYZE, BUFFERS) {query}")]


def _answer(connection: Connection, query: str) -> list[str]:
    def brief(value: Any) -> str:
        return f"{float(value):.6g}" if isinstance(value, int | float) or hasattr(value, "as_tuple") else str(value)

    return sorted(" ".join(map(brief, row)) for row in connection.execute(query))


def _exponent(points: list[tuple[int, float]]) -> float:
    """Of growth: 1 is as many times the time as there are times the rows; by least squares over the logarithms."""
    xs, ys = ([math.log(point[place]) for point in points] for place in (0, 1))
    x, y = statistics.fmean(xs), statistics.fmean(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)
