"""Crashes on the local log and PostgreSQL: whatever dies, the outputs equal the oracle's."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.simulation import crashing

KILLS, EPISODES = 25, 200


@pytest.mark.parametrize("seed", [1, 2])
def test_killed_at_seeded_points_nothing_is_lost_or_doubled(
    seed: int, tmp_path: Path, new_database: Callable[[], str]
) -> None:
    """25 kills -9 of engine, projector and detector, after a while or after so many records."""
    crashing.crash(f"local:{tmp_path}/log", new_database(), tmp_path, seed=seed, kills=KILLS, episodes=EPISODES)


def test_more_seeds_when_asked_for(soak_seeds: int, tmp_path: Path, new_database: Callable[[], str]) -> None:
    """``make soak``: one more schedule a seed; in an ordinary run a very short one."""
    for seed in range(100, 100 + soak_seeds) or [100]:
        kills, episodes = (KILLS, EPISODES) if soak_seeds else (2, 16)
        place = tmp_path / str(seed)
        place.mkdir()
        crashing.crash(f"local:{place}/log", new_database(), place, seed=seed, kills=kills, episodes=episodes)


def test_a_frozen_worker_wakes_up_replaced(tmp_path: Path, postgres_url: str) -> None:
    crashing.freeze(f"local:{tmp_path}/log", postgres_url, tmp_path, seed=11)


def test_two_workers_under_one_name(tmp_path: Path, new_database: Callable[[], str]) -> None:
    crashing.doubled(f"local:{tmp_path}/log", new_database(), tmp_path, seed=12)


def test_the_database_dies_and_comes_back(tmp_path: Path) -> None:
    crashing.database_dies(f"local:{tmp_path}/log", tmp_path, seed=13)
