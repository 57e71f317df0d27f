"""kill -9 of engine, projector and detector on the local log and PostgreSQL: the outputs equal the oracle's."""

from collections.abc import Callable
from pathlib import Path

import pytest

from stepwell.events.topics import POLICY_EVENTS
from tests.simulation.comparison import compare_with_oracle
from tests.simulation.pipeline import Tail, pipeline, run_with_kills
from tests.simulation.workload import Workload

KILLS = 25
EPISODES = 200
SEEDS = (1, 2)


def crash(seed: int, directory: Path, database: str) -> None:
    """One seeded run: feed, kill, restart, settle, compare."""
    workload = Workload(seed, EPISODES)
    with pipeline(f"local:{directory / 'log'}", database, directory) as pipe:
        tail = Tail(pipe.log, POLICY_EVENTS)
        run_with_kills(pipe, workload.chunks(KILLS), seed, KILLS)
        world = pipe.settle()
        counted = compare_with_oracle(pipe, world)
        print(f"seed {seed}: {KILLS} kills, {counted}")
        assert counted["verdicts"] > EPISODES / 2
        assert counted["triggers"] > 0
        seen = tail.end()
        assert seen == [(raw.partition, raw.offset, raw.value) for raw in pipe.read(POLICY_EVENTS)]
        assert {worker.end() for worker in pipe.workers.values()} == {0}


@pytest.mark.parametrize("seed", SEEDS)
def test_killed_at_seeded_points_nothing_is_lost_or_doubled(
    seed: int, tmp_path: Path, new_database: Callable[[], str]
) -> None:
    crash(seed, tmp_path, new_database())
