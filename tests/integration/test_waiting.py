"""The log is away: workers wait and warn of it once, however many clients they have. And one supervisor a home."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from stepwell.adapters.parts.kafka import KafkaPart


class Said:
    """A ``stepwell`` process and its log lines."""

    def __init__(self, url: str, home: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "stepwell", *arguments],
            env={**os.environ, "STEPWELL_LOG": url, "STEPWELL_HOME": str(home), "STEPWELL_LOG_FORMAT": "json"},
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[dict[str, Any]] = []
        assert self.process.stderr is not None
        self._reader = threading.Thread(target=self._read, args=(self.process.stderr,), daemon=True)
        self._reader.start()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            self.lines.append(json.loads(line) if line.startswith("{") else {"event": line, "level": "error"})

    def events(self) -> list[str]:
        return [line["event"] for line in self.lines]

    def warnings(self) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["level"] in ("warning", "error", "critical")]

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(90)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self._reader.join(10)
            for stream in (self.process.stdin, self.process.stderr):
                if stream is not None:
                    stream.close()


@contextmanager
def running(url: str, home: Path, *arguments: str) -> Iterator[Said]:
    said = Said(url, home, *arguments)
    try:
        yield said
    finally:
        said.end()


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.1)


def test_an_engine_with_telemetry_warns_once_while_the_log_is_away(tmp_path: Path) -> None:
    """Long enough that each of its clients has given up once, and telemetry several times."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody answers, and nobody else can take it
        url = f"kafka://127.0.0.1:{taken.getsockname()[1]}"
        with running(url, tmp_path, "engine") as engine:
            wait_for(lambda: "log is away, waiting" in engine.events(), "the engine gives up for the first time")
            assert engine.end() == 0
        assert [line["event"] for line in engine.warnings()] in (["log_away"], ["log is away, waiting"])


def test_work_waits_for_a_broker_that_is_away_at_the_start(tmp_path: Path) -> None:
    with KafkaPart() as part:
        url = f"kafka://{part.start()}"
        part.stop()
        with running(url, tmp_path, "work", "--no-projector") as work:
            wait_for(lambda: "log is away, waiting" in work.events(), "it says that it waits")
            assert work.process.poll() is None
            assert [line["event"] for line in work.warnings()] in (["log_away"], ["log is away, waiting"])
            assert f"kafka://{part.start()}" == url
            wait_for(lambda: "partitions restored" in work.events(), "the engine is at work")
            assert work.end() == 0


def test_a_second_supervisor_of_a_home_and_log_is_refused(tmp_path: Path) -> None:
    url = f"local:{tmp_path}/log"
    with running(url, tmp_path, "work", "--no-projector", "--no-telemetry") as first:
        wait_for(lambda: first.events().count("worker started") == 2, "its workers run")
        second = subprocess.run(
            [sys.executable, "-m", "stepwell", "work", "--no-projector"],
            env={**os.environ, "STEPWELL_LOG": url, "STEPWELL_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert second.returncode == 2
        assert "another `stepwell work` runs on this log" in " ".join(second.stderr.split())
        other = subprocess.run(
            [sys.executable, "-m", "stepwell", "work", "--no-projector", "--until-idle", "--no-telemetry"],
            env={**os.environ, "STEPWELL_LOG": f"local:{tmp_path}/other", "STEPWELL_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert other.returncode == 0, other.stderr
        assert first.process.poll() is None
        assert first.end() == 0
    assert first.warnings() == []
