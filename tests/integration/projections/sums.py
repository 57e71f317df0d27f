"""The sums of the database, and the same counted anew from the rows that they are of."""

from collections.abc import Callable
from typing import Any

import psycopg

from stepwell.projections.database import connect
from stepwell.projections.schema.files import PLAIN
from stepwell.projections.schema.generations import read_homes
from stepwell.projections.upkeep.tuning import AGGREGATES

Query = Callable[..., list[tuple[Any, ...]]]

LEVELS = ("minute", "hour", "day")
OUTCOMES = "policy, policy_version, checkpoint, task, scene, perturbation, purpose, outcome, failure_type, fault"
STEPS = "policy, policy_version, task, scene, perturbation, host, wall_bucket"

# By the words of the view that everybody reads, and not by those of the projector.
_OUTCOMES_ANEW = f"""
SELECT date_trunc(%s, coalesce(v.requested_at, v.started_at, v.ended_at), 'UTC') AS bucket, v.policy, v.policy_version,
       v.checkpoint, v.task, v.scene, v.perturbation, v.purpose, v.outcome, v.failure_type, v.fault,
       count(*), sum(v.n_steps)
FROM (
    SELECT DISTINCT ON (episode_id) *
    FROM (SELECT DISTINCT ON (episode_id, attempt) *, outcome IN ('success', 'failure') AS scored
          FROM stepwell.verdicts ORDER BY episode_id, attempt, revision DESC) AS latest
    ORDER BY episode_id, scored DESC, CASE WHEN scored THEN attempt ELSE -attempt END
) AS v
GROUP BY bucket, {OUTCOMES}
"""
_STEPS_ANEW = """
SELECT date_trunc(%s, s.occurred_at, 'UTC') AS bucket, e.policy, e.policy_version, e.task, e.scene, e.perturbation,
       a.host, stepwell.wall_bucket(stepwell.wall_us(s.step_wall_s)) AS wall_bucket, count(*),
       coalesce(sum(stepwell.wall_us(s.step_wall_s)), 0)
FROM stepwell.steps s
LEFT JOIN stepwell.episodes e USING (episode_id)
LEFT JOIN stepwell.episode_attempts a USING (episode_id, attempt)
GROUP BY 1, 2, 3, 4, 5, 6, 7, 8
"""
_TELEMETRY_ANEW = """
SELECT date_trunc(%s, sampled_at, 'UTC') AS bucket, series_id, count(*), sum(measured),
       round(sum(value) FILTER (WHERE measured IS NOT NULL)::numeric, 6),
       min(CASE WHEN kind <> 'histogram' THEN value WHEN measured > 0 THEN told_least END),
       max(CASE WHEN kind <> 'histogram' THEN value WHEN measured > 0 THEN told_most END)
FROM (
    SELECT series_id, kind, sampled_at, value,
           CASE WHEN kind IN ('counter', 'histogram') AND temporality = 'cumulative' THEN NULL
                WHEN kind <> 'histogram' THEN 1
                WHEN (distribution -> 'count')::numeric BETWEEN 0 AND 2 ^ 40 THEN (distribution -> 'count')::bigint
           END AS measured,
           nullif(distribution ->> 'min', 'nan')::double precision AS told_least,
           nullif(distribution ->> 'max', 'nan')::double precision AS told_most
    FROM stepwell.telemetry_points JOIN stepwell.telemetry_series USING (series_id) WHERE abs(value) < 1e300
) AS told
GROUP BY 1, 2
"""


def refresh(url: str) -> None:
    """Bring continuous aggregates up to date, from the first row to the last; plain tables always are."""
    with connect(url, application="test") as connection:
        homes = read_homes(connection)
        if homes.storage == PLAIN:
            return
        for aggregate in AGGREGATES:
            connection.execute(f"CALL refresh_continuous_aggregate('{homes.schemas[0]}.{aggregate.name}', NULL, NULL)")


def kept(query: Query, family: str, level: str) -> list[tuple[Any, ...]]:
    """What the database keeps, without what adds up to nothing."""
    columns = {
        "outcome": (OUTCOMES, "sum(episodes), sum(steps)", "sum(episodes)"),
        "step": (STEPS, "sum(steps), sum(wall_us)", "sum(steps)"),
        "telemetry": (
            "series_id",
            "sum(points), sum(measurements), round(sum(value_sum)::numeric, 6), min(value_min), max(value_max)",
            "sum(points)",
        ),
    }  # fmt: skip
    dimensions, sums, count = columns[family]
    return ordered(query(
        f"SELECT bucket, {dimensions}, {sums} FROM stepwell.{family}_{level}s GROUP BY bucket, {dimensions}"
        f" HAVING {count} <> 0"
    ))  # fmt: skip


def anew(query: Query, family: str, level: str) -> list[tuple[Any, ...]]:
    """The same, counted from the rows."""
    statement = {"outcome": _OUTCOMES_ANEW, "step": _STEPS_ANEW, "telemetry": _TELEMETRY_ANEW}[family]
    return ordered(query(statement, level))


def ordered(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=repr)


def assert_sums_are_right(url: str, query: Query, families: tuple[str, ...] = ("outcome", "step", "telemetry")) -> None:
    """Every sum at every level is what counting the rows gives; there is at least one of each."""
    refresh(url)
    for family in families:
        for level in LEVELS:
            found = kept(query, family, level)
            assert found, family
            assert found == anew(query, family, level), (family, level)


def on_timescale(url: str) -> bool:
    with psycopg.connect(url) as connection:
        return connection.execute(
            "SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'timescaledb')"
        ).fetchone() == (True,)
