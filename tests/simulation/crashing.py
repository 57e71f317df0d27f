"""The crash cases, for any log: real workers, something breaks, all settles, everything equals the oracle's."""

import os
import signal
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stepwell.adapters.parts.embedded_postgres import EmbeddedPostgres
from stepwell.adapters.rules.activate import activate
from stepwell.adapters.workers.idle import IdleCheck
from stepwell.adapters.workers.process import EXIT_FENCED
from stepwell.engine.ruleset import BUILT_IN, RuleSet
from stepwell.events.topics import FAILURE_PATTERNS, POLICY_EVENTS, RETRAIN_REQUESTS
from tests.simulation.comparison import compare_with_oracle
from tests.simulation.pipeline import GROUPS, Pipeline, Tail, Worker, pipeline, run_with_kills
from tests.simulation.workload import CODEC, Workload

FREEZE_S = 60.0
EPISODES_FOR_LABELS = 50
"""With fewer, chance may leave step rules without anything to find."""
# None assigns a failure type: the detector's oracle does without amendments of those.
STEP_RULES: tuple[dict[str, Any], ...] = (
    {"kind": "frozen", "name": "frozen", "signal": "action", "steps": 3},
    {"kind": "stale", "name": "stale", "signal": "observation.camera", "steps": 3},
    {"kind": "limit", "name": "slow", "signal": "latency_s", "above": 0.5, "steps": 2, "within": 4},
    {"kind": "saturated", "name": "at_bounds", "signal": "action[0]", "steps": 2, "within": 3},
    {"kind": "oscillating", "name": "shaky", "signal": "observation.proprio", "reversals": 2, "within": 6},
    {"kind": "stagnation", "name": "stuck", "signal": "metric.distance", "direction": "falling", "steps": 4},
    {"kind": "nonfinite", "name": "not_finite", "signal": "action_jerk"},
    {
        "kind": "sequence", "name": "no_lift", "first": {"signal": "reward", "above": 0.5},
        "then": {"signal": "metric.distance", "above": 0.5}, "within_sim_s": 0.03,
    },
)  # fmt: skip
WATCHED = (POLICY_EVENTS, FAILURE_PATTERNS, RETRAIN_REQUESTS)


def finish(pipe: Pipeline, tails: dict[str, Tail] | None = None) -> dict[str, int]:
    """Let all settle; compare everything with the oracle; end the workers. What was compared, counted."""
    counted = compare_with_oracle(pipe, pipe.settle())
    for topic, tail in (tails or {}).items():
        seen = tail.end()
        assert seen == [(raw.partition, raw.offset, raw.value) for raw in pipe.read(topic)], f"{topic} was seen torn"
    codes = {name: worker.end() for name, worker in pipe.workers.items()}
    assert set(codes.values()) == {0}, codes
    return counted


def crash(url: str, database: str, directory: Path, *, seed: int, kills: int, episodes: int) -> None:
    """Feed, kill -9 at seeded points, restart. The seed alone gives workload and kills again."""
    workload = Workload(seed, episodes)
    began = time.monotonic()
    with pipeline(url, database, directory) as pipe:
        tails = {topic: Tail(pipe.log, topic) for topic in WATCHED}
        chunks = workload.chunks(kills)
        put_into_force(pipe, STEP_RULES[:3], version=1)
        run_with_kills(pipe, chunks[: kills // 2], seed, kills // 2)
        put_into_force(pipe, STEP_RULES, version=2)
        run_with_kills(pipe, chunks[kills // 2 :], seed + 1, len(chunks[kills // 2 :]))
        counted = finish(pipe, tails)
    print(f"seed {seed}: {kills} kills in {time.monotonic() - began:.0f} s, {counted}")
    assert counted["verdicts"] > episodes / 2
    assert counted["dead letters"] > 0
    assert counted["labels found by rules"] > episodes / 4 or episodes < EPISODES_FOR_LABELS


def put_into_force(pipe: Pipeline, steps: Sequence[dict[str, Any]], version: int) -> None:
    """Activate step rules beside the built-in rule over verdicts, while the workers run."""
    rules = RuleSet.model_validate({"rule_set": "crashes", "version": version, "steps": list(steps)})
    activate(pipe.log, CODEC, rules.model_copy(update={"verdicts": BUILT_IN.verdicts}), "ops")


def freeze(url: str, database: str, directory: Path, *, seed: int) -> None:
    """Two workers of each kind; one of each sleeps through a rebalance and wakes up as a zombie."""
    first, second, third = Workload(seed, 60).chunks(3)
    with pipeline(url, database, directory, "engine", "projector", "detector") as pipe:
        for kind in ("engine", "projector"):
            pipe.start(kind, "1")
        pipe.feed(first)
        wait_until(lambda: pipe.handled("engine") > 50, "both at work")
        sleepers = [pipe.workers[kind, "0"] for kind in ("engine", "projector")]
        for worker in sleepers:
            _freeze(worker, url)
        pipe.feed(second)
        check = IdleCheck(pipe.log, GROUPS)
        try:
            wait_until(check, "the others took over")
        finally:
            check.close()
        for worker in sleepers:
            os.kill(worker.process.pid, signal.SIGCONT)
        pipe.feed(third)
        pipe.restarts_fenced = True  # a zombie may go on as a member, or end and say that it was replaced
        finish(pipe)


def _freeze(worker: Worker, url: str) -> None:
    """Stop it at a moment at which it does not hold the local log's write lock: with that it would stop everybody."""
    while True:
        os.kill(worker.process.pid, signal.SIGSTOP)
        if not url.startswith("local:"):
            return
        connection = sqlite3.connect(f"{url.removeprefix('local:')}/log.db", timeout=1.0, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        except sqlite3.OperationalError:
            os.kill(worker.process.pid, signal.SIGCONT)
            time.sleep(0.05)
        else:
            return
        finally:
            connection.close()


def doubled(url: str, database: str, directory: Path, *, seed: int) -> None:
    """A second worker under the name of one that lives: the older is refused and ends, saying so; the newer goes on."""
    first, second = Workload(seed, 30).chunks(2)
    with pipeline(url, database, directory) as pipe:
        pipe.feed(first)
        wait_until(lambda: pipe.handled("engine") > 20, "the first at work")
        for kind in ("engine", "detector"):
            older = pipe.workers[kind, "0"]
            pipe.start(kind, "0")
            pipe.feed(second[: len(second) // 2] if kind == "engine" else second[len(second) // 2 :])
            wait_until(lambda older=older: older.process.poll() is not None, f"the older {kind} ended")  # type: ignore[misc]
            assert older.process.returncode == EXIT_FENCED
        finish(pipe)


def database_dies(url: str, directory: Path, *, seed: int) -> None:
    """kill -9 of the database in the middle: the projector waits, says so once, and goes on."""
    first, second, third = Workload(seed, 60).chunks(3)
    server = EmbeddedPostgres(directory / "database", fast=True)
    try:
        database = server.start()
        with pipeline(url, database, directory) as pipe:
            pipe.feed(first)
            wait_until(lambda: pipe.handled("projector") > 20, "rows are written")
            server.kill9()
            pipe.feed(second)
            projector = pipe.workers["projector", "0"]
            wait_until(lambda: "database is away, waiting" in projector.said(), "it noticed")
            time.sleep(3.0)
            assert server.start() == database
            pipe.feed(third)
            finish(pipe)
            said = projector.said()
            assert said.count("database is away, waiting") == 1
            assert said.count("database is back") == 1
    finally:
        server.stop(force=True)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait until it holds; fail after a minute."""
    deadline = time.monotonic() + FREEZE_S
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.05)
