"""What row filters cost: the same questions to the views without filters, and with them to a writer and to a team."""

import tempfile
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg

from benchmarks.measure import figures
from stepwell.adapters.parts.embedded_postgres import EmbeddedPostgres
from stepwell.projections.access import roles
from stepwell.projections.access.row_filters import RowFilter
from stepwell.projections.schema.migrate import migrate

RUNS, STEPS = 20, 50
"""Runs, of which the team has one in ten; steps of each episode."""

QUESTIONS = {
    "one episode's steps": "SELECT count(*) FROM stepwell.steps WHERE episode_id = 'ep-0-7'",
    "one episode, told whole": "SELECT count(*) FROM stepwell.step_log WHERE episode_id = 'ep-0-7'",
    "results of one run": "SELECT outcome, count(*) FROM stepwell.episode_results WHERE run_id = 'run-0' GROUP BY 1",
    "outcomes of all runs": "SELECT policy, outcome, count(*) FROM stepwell.latest_verdicts GROUP BY 1, 2",
    "every step": "SELECT count(*), avg(step_wall_s) FROM stepwell.steps",
    "steps of twenty episodes, by a join": (
        "SELECT count(*) FROM stepwell.episodes e JOIN stepwell.steps s USING (episode_id)"
        " WHERE e.run_id = 'run-0' AND e.repetition < 20"
    ),
    "steps of twenty episodes, by an array": (
        "SELECT count(*) FROM stepwell.steps WHERE episode_id = ANY (ARRAY("
        "SELECT e.episode_id FROM stepwell.episodes e WHERE e.run_id = 'run-0' AND e.repetition < 20))"
    ),
}
_FILL = """
INSERT INTO stepwell_g1.runs SELECT 'run-' || r, 'ops', now() FROM generate_series(0, %(runs)s - 1) r;
INSERT INTO stepwell_g1.episodes (episode_id, run_id, task, policy, policy_version, scene, perturbation, seed,
    repetition, cell, max_steps, requested_by, requested_at, trace_id, purpose, source_partition, source_offset)
SELECT 'ep-' || r || '-' || n, 'run-' || r, 'sim/task', 'policy-' || r %% 7, '1', 'table', 'none', n, n, '', 100, 'ops',
       now(), '', 'evaluation', 0, n
FROM generate_series(0, %(runs)s - 1) r, generate_series(0, %(each)s - 1) n;
INSERT INTO stepwell_g1.episode_attempts (episode_id, attempt, run_id, phase)
SELECT episode_id, 1, run_id, 'EPISODE_DONE' FROM stepwell_g1.episodes;
INSERT INTO stepwell_g1.steps (occurred_at, logged_at, episode_id, attempt, step, producer_id, producer_seq, event_id,
    action_seq, sim_time, reward, terminated, truncated, step_wall_s, source_partition, source_offset)
SELECT now(), now(), episode_id, 1, s, 'sim', s, gen_random_uuid(), s, s * 0.1, 1, false, false, 0.001, 0, s
FROM stepwell_g1.episodes, generate_series(0, %(steps)s - 1) s;
ANALYZE
"""


def row_filter_runs(episodes: int, turns: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each question in turn: without filters, then with them to a writer (who sees all rows) and to a team.

    Args:
        episodes: in all; each has `STEPS` steps and a verdict.
        turns: how often each question is asked.
    """
    with tempfile.TemporaryDirectory(prefix="stepwell-bench-") as directory:
        url = (server := EmbeddedPostgres(directory)).start()
        try:
            migrate(url)
            _fill(url, episodes)
            roles.apply(url)
            limits = roles.Limits(600, 600)
            users = {"writer": _user(url, "writer", limits)}
            yield from _asked("no filter", users["writer"], turns)
            roles.set_filter(url, RowFilter("team", runs="run-0"))
            roles.set_filter(url, RowFilter("others", runs="run-1%"))
            users["team"] = _user(url, "team", limits)
            for case, user in users.items():
                yield from _asked(f"filters, {case}", user, turns)
        finally:
            server.stop(force=True)


def _asked(case: str, url: str, turns: int) -> Iterator[tuple[str, dict[str, Any]]]:
    with psycopg.connect(url, autocommit=True) as connection:
        for name, question in QUESTIONS.items():
            connection.execute(question)  # what is read once is in memory from then on, for every case
            for _ in range(turns):
                began = time.perf_counter()
                rows = connection.execute(question).fetchall()
                assert rows
                yield f"{name}: {case}", figures(1, time.perf_counter() - began, None)


def _user(url: str, role: str, limits: roles.Limits) -> str:
    name = f"bench_{role}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'bench'")
    roles.grant(url, role, name, limits)
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{name}:bench@{parts.hostname}:{parts.port}"))


def _fill(url: str, episodes: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        given = {"runs": RUNS, "each": episodes // RUNS, "steps": STEPS}
        for statement in _FILL.split(";"):
            connection.execute(statement.strip(), given)
        columns = connection.execute(
            "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute WHERE attnum > 0 AND NOT attisdropped"
            " AND attnotnull AND attrelid = 'stepwell_g1.verdicts'::regclass"
        ).fetchall()
        fillers = {
            "integer": "0", "bigint": "0", "text": "''", "boolean": "false", "jsonb": "'{}'", "text[]": "'{}'",
            "integer[]": "'{}'", "double precision": "0", "uuid": "gen_random_uuid()",
            "timestamp with time zone": "now()",
        }  # fmt: skip
        given_columns = {
            "episode_id": "episode_id", "run_id": "run_id", "policy": "policy", "attempt": "1", "revision": "1",
            "outcome": "CASE repetition % 3 WHEN 0 THEN 'success' ELSE 'failure' END",
        }  # fmt: skip
        made = {name: given_columns.get(name, fillers[kind]) for name, kind in columns}
        names, values = ", ".join(made), ", ".join(made.values())
        connection.execute(f"INSERT INTO stepwell_g1.verdicts ({names}) SELECT {values} FROM stepwell_g1.episodes")
        connection.execute("ANALYZE")
