"""``stepwell dev``: the whole set as real processes; up from nothing, mended after kills, down without a trace."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from stepwell.adapters.dev import processes
from stepwell.adapters.dev.stack import Stack
from stepwell.adapters.dev.state import held, load, save
from stepwell.exceptions import ConfigurationError, StepwellError

WAIT_S = 60.0


class Dev:
    """The command, in a home of the test's own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.directory = home / "dev"
        self._env = {**os.environ, "STEPWELL_HOME": str(home)}

    def __call__(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "stepwell", "dev", *words], env=self._env, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=280, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def states(self) -> dict[str, str]:
        return {shown.name: shown.state for shown in Stack(self.home).status()}

    def pids(self) -> dict[str, int]:
        state = load(self.directory)
        assert state is not None
        return {name: process.pid for name, process in state.processes.items()}

    def client(self) -> dict[str, str]:
        lines = [line for line in self("env").splitlines() if line.startswith("export ")]
        return dict(line.removeprefix("export ").split("=", 1) for line in lines)


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """The set with all that it can have, up; its first start is from nothing."""
    made = Dev(tmp_path_factory.mktemp("home"))
    try:
        assert "no set in" in made("status", code=1)
        said = made("up", "--registry")
        assert 'eval "$(stepwell dev env)"' in said
        yield made
    finally:
        made("down", "--wipe")
    assert processes.members(made.directory) == []


def test_everything_is_ready_and_can_be_worked_with(dev: Dev) -> None:
    shown = [json.loads(line) for line in dev("status", "--json").splitlines()]
    services = ["kafka", "timescaledb", "registry", "workers", "otlp", "prometheus"]
    assert [row["service"] for row in shown] == services
    assert {row["state"] for row in shown} == {"ready"}
    client = dev.client()
    assert set(client) == {
        "STEPWELL_LOG", "STEPWELL_DATABASE", "STEPWELL_SCHEMA_REGISTRY", "OTEL_EXPORTER_OTLP_ENDPOINT",
        "OTEL_EXPORTER_OTLP_PROTOCOL",
    }  # fmt: skip
    assert "stepwell:" not in dev("env"), "all of it runs"
    for words in (("topics", "check"), ("schemas", "check"), ("episodes", "--json"), ("status", "--json")):
        done = subprocess.run(
            [sys.executable, "-m", "stepwell", *words], env={**os.environ, **client}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, (words, done.stdout + done.stderr)
    listening = [each.laddr for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
    state = load(dev.directory)
    assert state is not None
    for name, port in state.ports.items():
        addresses = {address.ip for address in listening if address.port == port}
        assert addresses
        assert addresses <= {"127.0.0.1", "::ffff:127.0.0.1"}, name


def test_prometheus_watches_every_worker(dev: Dev) -> None:
    (address,) = [shown.address for shown in Stack(dev.home).status() if shown.name == "prometheus"]
    deadline = time.monotonic() + WAIT_S
    while True:
        with urllib.request.urlopen(f"{address}/api/v1/query?query=stepwell_worker_info", timeout=5) as answer:
            found = json.load(answer)["data"]["result"]
        if {each["metric"]["kind"] for each in found} >= {"engine", "detector", "projector", "otlp"}:
            break
        assert time.monotonic() < deadline, found
        time.sleep(0.5)
    with urllib.request.urlopen(f"{address}/api/v1/rules", timeout=5) as answer:
        assert json.load(answer)["data"]["groups"]


def test_up_mends_what_was_killed_and_leaves_the_rest_alone(dev: Dev) -> None:
    before = dev.pids()
    for name in ("workers", "kafka"):
        os.kill(before[name], signal.SIGKILL)
    waited = time.monotonic() + WAIT_S
    while any(processes.find(before[name]) for name in ("workers", "kafka")):
        assert time.monotonic() < waited
        time.sleep(0.05)
    assert {name for name, state in dev.states().items() if state == "ended"} == {"workers", "kafka"}
    # What a crashed start would leave behind: a process of the set that no file knows.
    stray = processes.launch(
        ["sleep", "600"], log=dev.directory / "stray.log", cwd=dev.directory, env=os.environ, mark=dev.directory
    )
    said = dev("up")
    assert f"process {stray.pid}, left behind by a crash, is ended" in said
    assert not processes.lives(stray)
    after = dev.pids()
    assert {name for name in after if after[name] != before[name]} == {"workers", "kafka"}
    assert set(dev.states().values()) == {"ready"}


def test_two_at_once_are_refused(dev: Dev) -> None:
    stack = Stack(dev.home)
    with held(dev.directory):
        assert "is at work on" in dev("up", code=1)
        with pytest.raises(StepwellError, match="is at work on"):
            stack.down()
    with pytest.raises(ConfigurationError, match="was made with another database"):
        stack.up(database="embedded")
    assert "expected timescaledb, embedded or postgresql://" in dev("up", "--database", "sqlite", code=2)


def test_down_leaves_no_process_and_keeps_the_data(dev: Dev) -> None:
    """And a stranger that was given a remembered process's number in the meantime lives on."""
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        state = load(dev.directory)
        assert state is not None
        known = processes.find(stranger.pid)
        assert known is not None
        prometheus = state.processes["prometheus"]
        state.processes["prometheus"] = processes.Process(stranger.pid, known.started - 1, known.boot)
        save(dev.directory, state)
        said = dev("down")
        assert f"process {prometheus.pid}, which nobody remembers, is ended" in said
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
    assert processes.members(dev.directory) == []
    assert dev.pids() == {}
    assert set(dev.states().values()) == {"away"}
    assert "away" in dev("status", code=1)
    assert (dev.directory / "kafka" / "data" / "meta.properties").exists()
    assert Stack(dev.home).down(wipe=True) == 0
    assert [path.name for path in dev.directory.iterdir()] == ["lock"]


def test_the_embedded_database_is_part_of_a_set(dev: Dev) -> None:
    """It is a server of its own way, kept up by nobody's process, and ends with the set all the same."""
    dev("up", "--database", "embedded", "--engines", "2", "--no-prometheus")
    try:
        assert dev.states() == dict.fromkeys(["kafka", "database", "workers", "otlp"], "ready")
        assert dev.client()["STEPWELL_DATABASE"] == f"embedded:{dev.directory / 'database'}"
    finally:
        dev("down", "--wipe")
    assert processes.members(dev.directory) == []
