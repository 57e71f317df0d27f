"""``stepwell work`` in a shell that works with a set, whose own workers have the same slots."""

import os
from pathlib import Path

import pytest

from stepwell.adapters.dev import processes
from stepwell.adapters.dev.processes import Process
from stepwell.adapters.dev.stack import workers_on
from stepwell.adapters.dev.state import State, save
from stepwell.cli.workers import work
from stepwell.exceptions import ConfigurationError
from stepwell.settings import get_settings

LOG = "kafka://127.0.0.1:4000"


@pytest.fixture
def ours() -> Process:
    found = processes.find(os.getpid())
    assert found is not None
    return found


def test_the_sets_own_workers_are_found_by_their_log(tmp_path: Path, ours: Process) -> None:
    assert workers_on(tmp_path, LOG) is None
    (tmp_path / "dev").mkdir()
    save(tmp_path / "dev", State(ports={"kafka": 4000}))
    assert workers_on(tmp_path, LOG) is None
    save(tmp_path / "dev", State(ports={"kafka": 4000}, processes={"workers": ours}))
    assert workers_on(tmp_path, LOG) == os.getpid()
    assert workers_on(tmp_path, "kafka://127.0.0.1:4001") is None
    gone = Process(ours.pid, ours.started - 1, ours.boot)
    save(tmp_path / "dev", State(ports={"kafka": 4000}, processes={"workers": gone}))
    assert workers_on(tmp_path, LOG) is None


def test_work_is_refused_beside_them(tmp_path: Path, ours: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_HOME", str(tmp_path))
    monkeypatch.setenv("STEPWELL_LOG", LOG)
    get_settings.cache_clear()
    (tmp_path / "dev").mkdir()
    save(tmp_path / "dev", State(ports={"kafka": 4000}, processes={"workers": ours}))
    try:
        with pytest.raises(ConfigurationError, match=f"runs the workers of {LOG} already.*same slots"):
            work()
    finally:
        get_settings.cache_clear()
