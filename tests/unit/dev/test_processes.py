"""Processes are told apart by number and start, and ended without touching others."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepwell.adapters.dev import processes
from stepwell.adapters.dev.processes import Process
from stepwell.adapters.dev.state import State, load, save
from stepwell.exceptions import ConfigurationError


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[Process]]:
    """Put what you start in here: it is ended at the end."""
    made: list[Process] = []
    yield made
    for process in made:
        processes.end(process, 0.0)


def launch(directory: Path, *command: str) -> Process:
    return processes.launch(command, log=directory / "log", cwd=directory, env=os.environ, mark=directory)


def test_a_process_is_found_by_its_folder_with_its_children(tmp_path: Path, started: list[Process]) -> None:
    parent = launch(tmp_path, sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '60'])")
    started.append(parent)
    while len(found := processes.members(tmp_path)) < 2:
        assert processes.lives(parent)
    assert parent in found
    started += found
    assert processes.members(tmp_path / "other") == []


def test_who_ends_when_asked_is_not_killed(tmp_path: Path) -> None:
    assert processes.end(launch(tmp_path, "sleep", "60"), 10.0) is True
    assert processes.members(tmp_path) == []


def test_who_does_not_is_killed(tmp_path: Path) -> None:
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    )
    process = launch(tmp_path, sys.executable, "-c", deaf)
    while "deaf" not in (tmp_path / "log").read_text():
        assert processes.lives(process)
    assert processes.end(process, 0.2) is False
    assert not processes.lives(process)


def test_another_process_with_the_same_number_is_left_alone(tmp_path: Path, started: list[Process]) -> None:
    process = launch(tmp_path, "sleep", "60")
    started.append(process)
    for other in (
        Process(process.pid, process.started + 1, process.boot),
        Process(process.pid, process.started, "another start of the machine"),
    ):
        assert not processes.lives(other)
        assert processes.end(other, 0.0) is True
    assert processes.lives(process)


def test_a_zombie_has_ended() -> None:
    child = subprocess.Popen(["true"])
    try:
        while processes.find(child.pid) is not None:
            pass
        assert Path(f"/proc/{child.pid}").exists()
    finally:
        child.wait()


def test_the_state_comes_back_as_it_was_and_for_its_owner_only(tmp_path: Path) -> None:
    assert load(tmp_path) is None
    state = State(database="postgresql://me:secret@db/x", engines=3, processes={"kafka": Process(1, 2, "boot")})
    port = state.port("kafka")
    assert state.port("kafka") == port
    save(tmp_path, state)
    assert load(tmp_path) == state
    assert (tmp_path / "state.json").stat().st_mode & 0o777 == 0o600
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(ConfigurationError, match="stepwell dev down --wipe"):
        load(tmp_path)
