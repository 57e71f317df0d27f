"""Workers that hang, as real processes: the watchdog ends them, says why on the log, and the next one goes on."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import IO, Any

import psycopg
import pytest

from stepwell.adapters.logs import open_log
from stepwell.adapters.parts.debian import program
from stepwell.adapters.workers.process import EXIT_FAILED, EXIT_OK, EXIT_STUCK
from stepwell.engine.ports import MessageLog
from stepwell.engine.publish import outgoing
from stepwell.engine.reading import read_range
from stepwell.events.codec import Codec
from stepwell.events.model import WorkerReported
from stepwell.events.topics import EPISODE_EVENTS, TELEMETRY
from stepwell.projections.schema.migrate import migrate
from tests.integration.projections import facts
from tests.unit.engine.episodes import Facts

CODEC = Codec()


def wait_for(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
    return found


def free_port() -> int:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def get(port: int, path: str) -> tuple[int, str]:
    """Code and body; 0 where nobody listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


class Process:
    """One process; the lines that it says are collected."""

    def __init__(self, home: Path, command: list[str], environment: Mapping[str, str]) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("STEPWELL_")}
        self.process = subprocess.Popen(
            [sys.executable, *command],
            env=clean | {"STEPWELL_HOME": str(home), "STEPWELL_LOG_FORMAT": "json", **environment},
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said: list[str] = []
        assert self.process.stderr is not None
        self._reader = threading.Thread(target=self._read, args=(self.process.stderr,), daemon=True)
        self._reader.start()

    def _read(self, stream: IO[str]) -> None:
        self.said += stream

    def event(self, words: str) -> dict[str, Any] | None:
        """The first message with these words."""
        for line in list(self.said):
            if line.startswith("{") and words in line:
                message: dict[str, Any] = json.loads(line)
                return message
        return None

    def end(self, *, tell: bool = True) -> int:
        """The exit code; told to stop unless ``tell`` is False."""
        if tell and self.process.poll() is None:
            self.process.terminate()
        try:
            code = self.process.wait(60)
        finally:
            self.process.kill()
            self.process.wait()
            self._reader.join(10)
            for stream in (self.process.stdin, self.process.stderr):
                if stream is not None:
                    stream.close()
        return code


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Starts Python with these arguments in a home of its own; what is left at the end is killed."""
    every: list[Process] = []

    def start(*command: str, **environment: str) -> Process:
        every.append(Process(tmp_path, list(command), environment))
        return every[-1]

    yield start
    for each in every:
        if each.process.poll() is None:
            each.process.kill()
            each.end()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[MessageLog]:
    log = open_log(f"local:{tmp_path / 'log'}")
    yield log
    log.close()


def reports(log: MessageLog) -> list[WorkerReported]:
    out = []
    for source, marks in log.admin().watermarks(TELEMETRY).items():
        for batch in read_range(log, source, marks.low, marks.high):
            out += [CODEC.decode(value, headers) for value, headers in zip(batch.values, batch.headers, strict=True)]
    return [record for record in out if isinstance(record, WorkerReported)]


def stepwell(*arguments: str) -> list[str]:
    return ["-m", "stepwell", *arguments, "--no-telemetry"]


def test_a_projector_whose_database_hangs_ends_itself_and_the_next_one_loses_nothing(
    started: Callable[..., Process], log: MessageLog, new_database: Callable[[], str]
) -> None:
    """The server's process is stopped in the middle: it answers nothing, and the connection stays up."""
    url, port = new_database(), free_port()
    migrate(url)
    environment = {"STEPWELL_DATABASE": url, "STEPWELL_STUCK_EXIT_AFTER_S": "8"}
    worker = started(*stepwell("projector", "--listen", str(port)), **environment)
    wait_for(lambda: get(port, "/readyz")[0] == 200)
    facts.publish(log, facts.episode("e-1", 3))
    with psycopg.connect(url, autocommit=True) as connection:

        def steps() -> int:
            found = connection.execute("SELECT count(*) FROM stepwell.steps").fetchone()
            assert found is not None
            return int(found[0])

        wait_for(lambda: steps() == 3)
        asked = "SELECT pid FROM pg_stat_activity WHERE application_name = 'stepwell-projector-0'"
        servers = [pid for (pid,) in connection.execute(asked)]
        for pid in servers:
            os.kill(pid, signal.SIGSTOP)
        try:
            facts.publish(log, facts.episode("e-2", 3))
            wait_for(lambda: get(port, "/healthz")[0] == 503)  # after half the time
            assert worker.end(tell=False) == EXIT_STUCK
        finally:
            for pid in servers:
                os.kill(pid, signal.SIGCONT)
        said = worker.event("worker is stuck")
        assert said is not None
        assert "no sign of life" in said["reason"]
        assert any("stepwell/projections/writing/projector.py" in line for line in said["stack_of_its_thread"])
        assert any("psycopg" in line for lines in said["other_threads"].values() for line in lines)
        last = reports(log)[-1]
        assert (last.worker_id, last.state) == ("stepwell-projector-0", "failed")
        assert last.last_error.startswith("stuck: its thread gave no sign of life for")
        successor = started(*stepwell("projector"), **environment)
        wait_for(lambda: steps() == 6)
        status = "SELECT state, last_error LIKE 'stuck: %' FROM stepwell.workers"
        wait_for(lambda: connection.execute(status).fetchall() == [("running", True)])
        assert successor.end() == EXIT_OK
        assert steps() == 6
    assert reports(log)[-1].state == "stopped"


HANGS = """
import ctypes, sys, time
from functools import partial
from stepwell.adapters.logs import open_log
from stepwell.adapters.workers.monitoring import monitored
from stepwell.adapters.workers.process import SystemClock, run_as_worker, stopping_by_signal
from stepwell.adapters.workers.vitals import WorkerVitals
from stepwell.engine.loop import ExactlyOnceLoop, Processor
from stepwell.engine.publish import outgoing
from stepwell.events.codec import Codec
from stepwell.events.topics import EPISODE_EVENTS
from stepwell.structured_logging import configure_logging
import structlog

class Hangs(Processor):
    def __init__(self, position):
        self.position = position

    def process(self, batch, now_us):
        {hang}

configure_logging("info", "json")
log = open_log(sys.argv[1])
codec = Codec()

def work():
    with stopping_by_signal() as stop:
        vitals = WorkerVitals("hanging-0", "engine", "hanging", codec, stopping=stop)
        with monitored(vitals, log, partial(outgoing, codec), topics=[EPISODE_EVENTS], stuck_exit_after_s=3):
            ExactlyOnceLoop(
                log, group="hanging", worker_id="hanging-0", topics=[EPISODE_EVENTS],
                restore=lambda source, committed, consumer: Hangs(committed or 0), clock=SystemClock(stop),
                report=structlog.get_logger("hanging"), vitals=vitals,
            ).run(stop)

sys.exit(run_as_worker(work, "hanging-0"))
"""


def publish_episode(log: MessageLog) -> None:
    producer = log.producer()
    producer.send([outgoing(CODEC, event) for event in Facts("hung").begun()])
    producer.flush(30)
    producer.close()


def test_a_handler_that_never_returns_ends_the_process(
    started: Callable[..., Process], log: MessageLog, tmp_path: Path
) -> None:
    publish_episode(log)
    worker = started("-c", HANGS.replace("{hang}", "time.sleep(600)"), f"local:{tmp_path / 'log'}")
    assert worker.end(tell=False) == EXIT_STUCK
    said = worker.event("worker is stuck")
    assert said is not None
    assert said["was_doing"].startswith("processing stepwell.episode-events/")
    assert any("in process" in line for line in said["stack_of_its_thread"])
    states = [each.state for each in reports(log)]
    assert states[-1] == "failed"
    assert reports(log)[-1].last_error.startswith("stuck: its thread gave no sign of life")
    # The database is dead as well: the log alone tells what is left to do, and why nobody does it.
    environment = {"STEPWELL_HOME": str(tmp_path), "STEPWELL_DATABASE": "postgresql://u:secret@127.0.0.1:1/x"}
    clean = {name: value for name, value in os.environ.items() if not name.startswith("STEPWELL_")}
    asked = subprocess.run(
        [sys.executable, "-m", "stepwell", "status", "--json"],
        env=clean | environment, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert asked.returncode == 1
    assert "secret" not in asked.stdout + asked.stderr
    answer = json.loads(asked.stdout)
    assert "not available" in answer["database_error"]
    (told,) = answer["asked_of_log"]["reports"]
    assert (told["worker_id"], told["state"]) == ("hanging-0", "failed")
    left = {each["consumer"]: each for each in answer["asked_of_log"]["partitions"] if each["behind_events"]}
    assert left["stepwell-engine"]["behind_events"] == len(Facts("hung").begun())
    assert left["stepwell-engine"]["oldest_logged_at"] is not None


def test_code_that_also_holds_pythons_lock_ends_the_process(
    started: Callable[..., Process], log: MessageLog, tmp_path: Path
) -> None:
    """No thread of Python's runs then; the interpreter's own timer prints the stacks and exits."""
    publish_episode(log)
    hang = "ctypes.PyDLL(None).sleep(600)"
    worker = started("-c", HANGS.replace("{hang}", hang), f"local:{tmp_path / 'log'}")
    assert worker.end(tell=False) == EXIT_FAILED
    said = "".join(worker.said)
    assert "Timeout (" in said
    assert "in process" in said


def test_a_process_that_was_stopped_for_longer_goes_on(started: Callable[..., Process], log: MessageLog) -> None:
    """SIGSTOP and SIGCONT, as when a machine sleeps: nobody in it is to blame."""
    port = free_port()
    worker = started(*stepwell("detector", "--listen", str(port)), STEPWELL_STUCK_EXIT_AFTER_S="6")
    wait_for(lambda: get(port, "/readyz")[0] == 200)
    worker.process.send_signal(signal.SIGSTOP)
    time.sleep(8)
    worker.process.send_signal(signal.SIGCONT)
    time.sleep(3)
    assert get(port, "/readyz")[0] == 200
    assert worker.end() == EXIT_OK
    assert reports(log)[-1].state == "stopped"


def test_a_real_prometheus_scrapes_workers_on_consecutive_ports(
    started: Callable[..., Process], log: MessageLog, tmp_path: Path
) -> None:
    """`stepwell work --listen PORT`: engines, then the detector, each on a port of its own."""
    publish_episode(log)
    port, own = free_port(), free_port()
    worker = started(*stepwell("work", "--no-projector", "--engines", "2", "--listen", str(port)))
    for number, name in enumerate(("engine-0", "engine-1", "detector-0")):
        code, body = wait_for(lambda number=number: (found := get(port + number, "/healthz"))[0] == 200 and found)
        assert json.loads(body)["worker_id"] == f"stepwell-{name}", code
    (tmp_path / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s}\nscrape_configs: [{job_name: stepwell, static_configs: [{targets: ["
        + ", ".join(f'"127.0.0.1:{port + number}"' for number in range(3))
        + "]}]}]\n"
    )
    server = subprocess.Popen(
        [
            program("prometheus"), f"--config.file={tmp_path / 'prometheus.yml'}",
            f"--storage.tsdb.path={tmp_path / 'tsdb'}", f"--web.listen-address=127.0.0.1:{own}",
        ],
        stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def asked(query: str) -> list[tuple[dict[str, str], float]]:
        code, body = get(own, f"/api/v1/query?query={urllib.parse.quote(query)}")
        rows = json.loads(body)["data"]["result"] if code == 200 else []
        return [(row["metric"], float(row["value"][1])) for row in rows]

    try:
        assert wait_for(lambda: asked("sum(up)") == [({}, 3.0)])
        records = wait_for(lambda: asked(f'sum(stepwell_records_total{{topic="{EPISODE_EVENTS}"}})'))
        assert records[0][1] == len(Facts("hung").begun())
        lag = wait_for(lambda: len(found := asked("stepwell_lag_seconds")) == 4 + 8 and found)
        assert {metric["consumer"] for metric, _ in lag} == {"stepwell-engine", "stepwell-detector"}
        wait_for(lambda: {value for _, value in asked("stepwell_lag_seconds")} == {0.0})
    finally:
        server.terminate()
        server.wait(30)
    assert worker.end() == EXIT_OK
