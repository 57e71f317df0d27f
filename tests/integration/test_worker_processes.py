"""Workers as real processes: killed, doubled, stopped, and their outputs still exactly once.

The local log and a real Kafka run the same cases.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from stepwell.adapters.logs import open_log
from stepwell.adapters.workers.idle import IdleCheck
from stepwell.adapters.workers.process import EXIT_FENCED
from stepwell.engine import restore
from stepwell.engine.detection import restore as detector_restore
from stepwell.engine.ports import MessageLog
from stepwell.engine.publish import outgoing
from stepwell.engine.reading import read_range
from stepwell.events.codec import Codec
from stepwell.events.model import Event, LogRecord, RetrainRequested, VerdictIssued
from stepwell.events.topics import DEAD_LETTERS, POLICY_EVENTS, RETRAIN_REQUESTS, TOPICS
from tests.unit.engine.episodes import Facts

CODEC = Codec()
GROUPS = {restore.GROUP: restore.TOPICS, detector_restore.GROUP: detector_restore.TOPICS}


@pytest.fixture(params=["local", "kafka"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A log of its own, empty, with all topics."""
    if request.param == "local":
        yield f"local:{tmp_path / 'log'}"
        return
    from stepwell.adapters.parts.kafka import KafkaPart

    node = KafkaPart()
    try:
        url = f"kafka://{node.start()}"
        with opened(url) as log:
            log.admin().create(TOPICS)
        yield url
    finally:
        node.stop()


@contextmanager
def opened(url: str) -> Iterator[MessageLog]:
    log = open_log(url)
    try:
        yield log
    finally:
        log.close()


class Worker:
    """One ``stepwell`` process; what it says is collected."""

    def __init__(self, url: str, home: Path, *arguments: str) -> None:
        environment = {**os.environ, "STEPWELL_LOG": url, "STEPWELL_HOME": str(home), "STEPWELL_LOG_FORMAT": "json"}
        if arguments[0] != "work":
            arguments = (*arguments, "--end-with-stdin")  # so that it never outlives the tests
        self.process = subprocess.Popen(
            [sys.executable, "-m", "stepwell", *arguments, "--no-telemetry"],
            env=environment,
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said: list[str] = []
        assert self.process.stderr is not None
        self._reader = threading.Thread(target=self._read, args=(self.process.stderr,), daemon=True)
        self._reader.start()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            self.said.append(json.loads(line).get("event", line) if line.startswith("{") else line)

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self._reader.join(10)
            for stream in (self.process.stdin, self.process.stderr):
                if stream is not None:
                    stream.close()
        return code

    def kill9(self) -> None:
        self.process.kill()
        self.stop()


def send(log: MessageLog, events: list[Event]) -> None:
    producer = log.producer()
    producer.send([outgoing(CODEC, event) for event in events])
    producer.flush(30)
    producer.close()


def read(log: MessageLog, topic: str) -> list[LogRecord]:
    out = []
    for source, marks in sorted(log.admin().watermarks(topic).items()):
        for batch in read_range(log, source, marks.low, marks.high):
            out += [CODEC.decode(value, headers) for value, headers in zip(batch.values, batch.headers, strict=True)]
    return out


def verdicts_in(log: MessageLog) -> list[VerdictIssued]:
    return [record for record in read(log, POLICY_EVENTS) if isinstance(record, VerdictIssued)]


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.1)


def wait_until_idle(log: MessageLog, groups: Mapping[str, Sequence[str]]) -> None:
    check = IdleCheck(log, groups)
    try:
        wait_for(check, "all processed")
    finally:
        check.close()


def test_killed_again_and_again_every_verdict_and_request_comes_once(url: str, tmp_path: Path) -> None:
    """Engine and detector, each killed with -9 in the middle of work and started again."""
    episodes = [Facts(f"ep-{i:02d}").whole(steps=30) for i in range(40)]
    with opened(url) as log:
        workers = {kind: Worker(url, tmp_path, kind, "--slot", "0") for kind in ("engine", "detector")}
        try:
            for turn, kind in enumerate(("engine", "detector", "engine", "detector")):
                rows = [event for episode in episodes for event in episode[turn * 16 : (turn + 1) * 16]]
                send(log, rows)
                time.sleep(0.3 + 0.4 * turn)
                workers[kind].kill9()
                workers[kind] = Worker(url, tmp_path, kind, "--slot", "0")
            send(log, [event for episode in episodes for event in episode[64:]])
            wait_until_idle(log, GROUPS)
        finally:
            codes = {kind: worker.stop() for kind, worker in workers.items()}
        assert codes == {"engine": 0, "detector": 0}
        verdicts = verdicts_in(log)
        assert Counter(verdict.episode_id for verdict in verdicts) == {f"ep-{i:02d}": 1 for i in range(40)}
        assert {(verdict.n_steps, verdict.certificate.status) for verdict in verdicts} == {(30, "complete")}
        requests = [record for record in read(log, RETRAIN_REQUESTS) if isinstance(record, RetrainRequested)]
        assert len(requests) == 1
        assert read(log, DEAD_LETTERS) == []


def test_the_second_worker_of_a_slot_wins_and_the_first_ends_with_its_own_exit_code(url: str, tmp_path: Path) -> None:
    """Two processes under one name: the older one is refused and says so; the newer goes on."""
    with opened(url) as log:
        first = Worker(url, tmp_path / "a", "engine", "--slot", "0")
        second = None
        try:
            send(log, Facts("ep-0").whole())
            wait_for(lambda: len(verdicts_in(log)) == 1, "the first verdict")
            second = Worker(url, tmp_path / "b", "engine", "--slot", "0")
            wait_for(lambda: "partitions restored" in second.said, "the second worker at work")
            send(log, Facts("ep-1").whole())
            wait_for(lambda: first.process.poll() is not None, "the first worker ended")
            assert first.process.returncode == EXIT_FENCED
            wait_for(lambda: len(verdicts_in(log)) == 2, "the second verdict")
        finally:
            first.stop()
            if second is not None:
                assert second.stop() == 0
        assert "another worker runs this slot" in first.said


def test_two_slots_share_the_work(url: str, tmp_path: Path) -> None:
    """Both get partitions; together they give every verdict once."""
    with opened(url) as log:
        workers = [Worker(url, tmp_path / str(n), "engine", "--slot", str(n)) for n in range(2)]
        try:
            for turn in range(4):
                send(log, [event for i in range(8) for event in Facts(f"ep-{turn}-{i}").whole()])
                time.sleep(0.5)
            wait_for(lambda: all("partitions restored" in worker.said for worker in workers), "both at work")
            wait_until_idle(log, {restore.GROUP: restore.TOPICS})
        finally:
            codes = [worker.stop() for worker in workers]
        assert codes == [0, 0]
        verdicts = verdicts_in(log)
        assert Counter(verdict.episode_id for verdict in verdicts) == {
            f"ep-{turn}-{i}": 1 for turn in range(4) for i in range(8)
        }


def test_work_until_idle_processes_what_is_there_and_ends(url: str, tmp_path: Path) -> None:
    """``stepwell work --until-idle`` without a database: engine and detector as its children."""
    with opened(url) as log:
        send(log, [event for i in range(6) for event in Facts(f"ep-{i}").whole()])
        worker = Worker(url, tmp_path, "work", "--until-idle", "--no-projector", "--engines", "2")
        assert worker.process.wait(120) == 0
        worker.stop()
        assert len(verdicts_in(log)) == 6
        assert len(read(log, RETRAIN_REQUESTS)) == 1
        assert worker.said.count("worker started") == 3
