"""Crashes on real Kafka and PostgreSQL: whatever dies, the outputs equal the oracle's."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stepwell.adapters.parts.kafka import KafkaPart
from tests.simulation import crashing
from tests.simulation.pipeline import pipeline
from tests.simulation.workload import Workload

KILLS, EPISODES = 10, 100


@pytest.fixture
def node() -> Iterator[KafkaPart]:
    """A node of its own: the workers use the topics' real names, and one test kills it."""
    part = KafkaPart()
    try:
        part.start()
        yield part
    finally:
        part.stop()


def url_of(node: KafkaPart) -> str:
    return f"kafka://{node.bootstrap}"


def test_killed_at_seeded_points_nothing_is_lost_or_doubled(
    node: KafkaPart, tmp_path: Path, new_database: Callable[[], str]
) -> None:
    """10 kills -9 of engine, projector and detector; readers of committed records never see what was aborted."""
    crashing.crash(url_of(node), new_database(), tmp_path, seed=3, kills=KILLS, episodes=EPISODES)


def test_more_seeds_when_asked_for(soak_seeds: int, tmp_path: Path, new_database: Callable[[], str]) -> None:
    """``make soak``: one more schedule a seed."""
    for seed in range(200, 200 + soak_seeds):
        place = tmp_path / str(seed)
        place.mkdir()
        part = KafkaPart()
        try:
            part.start()
            crashing.crash(url_of(part), new_database(), place, seed=seed, kills=KILLS, episodes=EPISODES)
        finally:
            part.stop()


def test_a_frozen_worker_wakes_up_replaced(node: KafkaPart, tmp_path: Path, new_database: Callable[[], str]) -> None:
    crashing.freeze(url_of(node), new_database(), tmp_path, seed=21)


def test_the_broker_dies_and_comes_back(node: KafkaPart, tmp_path: Path, new_database: Callable[[], str]) -> None:
    """Every worker waits, says so once, and goes on."""
    first, second = Workload(23, 50).chunks(2)
    with pipeline(url_of(node), new_database(), tmp_path) as pipe:
        pipe.feed(first)
        crashing.wait_until(lambda: pipe.handled("engine") > 20, "at work")
        node.kill9()
        time.sleep(8.0)
        node.start()
        pipe.feed(second)
        # A join whose answer died with the broker makes Kafka take the member's next try for another member's, and the
        # driver ends it as fenced. That ends the worker, loudly; nothing is lost.
        pipe.restarts_fenced = True
        counted = crashing.finish(pipe)
        assert counted["verdicts"] > 0
        for worker in pipe.workers.values():
            said = worker.said()
            assert said.count("log is away, waiting") <= 1, worker.kind
            over = said.count("log is back") + said.count("another worker runs this slot")
            assert said.count("log is away, waiting") <= over, worker.kind
        assert any("log is away, waiting" in worker.said() for worker in pipe.workers.values())
