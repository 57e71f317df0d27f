"""The engine's disk cache is damaged, or its disk is full: it is filled again from the log, and the engine goes on."""

import subprocess
import sys
from pathlib import Path

import pytest

from stepwell.adapters.logs.memory import MemoryLog
from stepwell.adapters.workers.markers import DiskMarkers
from stepwell.engine.doubt import StateDoubtError
from stepwell.engine.loop import ExactlyOnceLoop
from stepwell.engine.restore import GROUP, TOPICS, EngineRestore
from stepwell.engine.state import SealedAttempt
from stepwell.engine.timers import Timeouts
from stepwell.events.model import DeadLetter, VerdictIssued
from stepwell.events.topics import DEAD_LETTERS, POLICY_EVENTS
from tests.unit.engine.episodes import Facts
from tests.unit.engine.running import CODEC, FakeClock, Notes, drain, read, send


def many(number: int) -> list[SealedAttempt]:
    return [SealedAttempt(f"episode-{i:06d}", 1, "success", 1, i) for i in range(number)]


def spoil(path: Path) -> None:
    with path.open("r+b") as file:
        size = file.seek(0, 2)
        file.seek(0)
        file.write(b"\xa5" * size)


def test_a_damaged_file_is_thrown_away(tmp_path: Path) -> None:
    path = tmp_path / "markers.db"
    markers = DiskMarkers(path)
    markers.put(0, many(100_000))
    spoil(path)

    def read_all() -> None:
        for one in many(100_000):
            markers.get(0, one.episode_id)

    with pytest.raises(StateDoubtError, match="disk cache failed") as caught:
        read_all()
    assert caught.value.wait
    assert markers.get(0, "episode-000001") == []
    markers.put(0, many(10))
    assert markers.get(0, "episode-000001") == many(2)[1:]
    markers.close()
    assert list(tmp_path.iterdir()) == []


FULL = """
import pathlib, resource, signal, sys
from stepwell.adapters.workers.markers import DiskMarkers
from stepwell.engine.doubt import StateDoubtError
from stepwell.engine.state import SealedAttempt
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = pathlib.Path(sys.argv[1])
markers = DiskMarkers(path)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
many = [SealedAttempt(f"episode-{i:06d}", 1, "success", 1, i) for i in range(100_000)]
for _ in range(2):
    try:
        markers.put(0, many)
    except StateDoubtError as error:
        print("lost", error.wait, path.exists())
resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, hard))
try:
    markers.get(0, "episode-000001")
except StateDoubtError:
    print("cannot even be made")
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
markers.put(0, many)
print(len(markers.get(0, "episode-099999")))
"""


def test_a_full_disk_is_waited_for(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "markers.db")], capture_output=True, text=True, check=False
    )
    said = done.stdout.splitlines()
    assert said == ["lost True False", "lost True False", "cannot even be made", "1"], done.stderr


def test_the_engine_fills_a_lost_cache_again_and_knows_what_was_sealed(tmp_path: Path) -> None:
    log, notes, path = MemoryLog(), Notes(), tmp_path / "markers.db"
    markers = DiskMarkers(path)
    made = EngineRestore(log, codec=CODEC, markers=markers, timeouts=Timeouts(), worker_id="e", report=notes)
    loop = ExactlyOnceLoop(
        log, group=GROUP, worker_id="e", topics=TOPICS, restore=made, clock=FakeClock(), report=notes,
        poll_timeout_s=0.005,
    )  # fmt: skip
    events = Facts("ep-1").whole()
    send(log, *events)
    drain(loop, 10)
    assert sum(len(markers.get(partition, "ep-1")) for partition in range(64)) == 1
    markers.put(63, many(100_000))  # more than the driver keeps in memory
    spoil(path)
    # A fact after the seal, and another episode: the first needs the cache, the second writes to it.
    send(log, Facts("ep-1").paused(), *Facts("ep-2").whole())
    drain(loop, 10)
    loop.close()
    assert notes.said.count("state is in doubt, restoring") == 1
    (letter,) = [record for record in read(log, DEAD_LETTERS) if isinstance(record, DeadLetter)]
    assert letter.kind == "after_seal"
    verdicts = [record.episode_id for record in read(log, POLICY_EVENTS) if isinstance(record, VerdictIssued)]
    assert verdicts == ["ep-1", "ep-2"]
    markers.close()
    log.close()
