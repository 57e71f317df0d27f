"""Engine, projector and detector as real processes on a real log and database, and the comparison with the oracle."""

import base64
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from stepwell.adapters.logs import open_log
from stepwell.adapters.workers.idle import IdleCheck
from stepwell.adapters.workers.process import EXIT_FENCED
from stepwell.engine import restore
from stepwell.engine.detection import restore as detector_restore
from stepwell.engine.ports import MessageLog, OutgoingRecord, TopicPartition
from stepwell.engine.reading import read_range
from stepwell.events.topics import EPISODE_EVENTS, POLICY_EVENTS, TELEMETRY, TOPICS
from stepwell.exceptions import LogError
from stepwell.projections.schema.migrate import migrate
from stepwell.projections.writing.projector import GROUP
from stepwell.projections.writing.rows import PROJECTED_TOPICS
from tests.simulation.oracle_records import Raw
from tests.simulation.oracle_tables import World

KINDS = ("engine", "projector", "detector")
SETTLE_S = 120.0
# Short, so that silence is noticed within a test; longer than any pause that a test makes between two parts.
TIMES = {"STEPWELL_STALL_AFTER_S": "3", "STEPWELL_TIMEOUT_AFTER_S": "6", "STEPWELL_SEAL_GRACE_S": "2"}
GROUPS = {
    restore.GROUP: restore.TOPICS,
    detector_restore.GROUP: detector_restore.TOPICS,
    GROUP: tuple(topic for topic in PROJECTED_TOPICS if topic != TELEMETRY),
}
GROUP_OF = dict(zip(KINDS, (restore.GROUP, GROUP, detector_restore.GROUP), strict=True))
READS = {"engine": (EPISODE_EVENTS,), "projector": (EPISODE_EVENTS,), "detector": (POLICY_EVENTS,)}


class Worker:
    """One ``stepwell`` process. What it says goes to a file, which later incarnations share."""

    def __init__(self, kind: str, slot: str, environment: dict[str, str], directory: Path) -> None:
        self.kind = kind
        self.said_to = directory / f"{kind}-{slot}.log"
        with self.said_to.open("ab") as stream:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "stepwell", kind, "--slot", slot, "--no-telemetry"],
                env=environment,
                stderr=stream,
            )

    def kill9(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        """Ask it to stop; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill9()
            raise

    def said(self) -> list[str]:
        """The events of its log lines."""
        lines = self.said_to.read_text(encoding="utf-8").splitlines()
        return [json.loads(line)["event"] if line.startswith("{") else line for line in lines]


class Pipeline:
    """A log, a database, and the workers between them."""

    def __init__(self, url: str, database: str, directory: Path) -> None:
        self.url, self.database, self.directory = url, database, directory
        self.workers: dict[tuple[str, str], Worker] = {}
        self.restarts_fenced = False
        """Start a worker again that ended because another took its place, as an operator would."""
        self.log: MessageLog = open_log(url)
        self.log.admin().create(TOPICS)
        migrate(database)

    def start(self, kind: str, slot: str = "0") -> Worker:
        """Start a worker, or start it again."""
        home = self.directory / "home" / slot
        environment = {**os.environ, **TIMES, "STEPWELL_LOG": self.url, "STEPWELL_DATABASE": self.database}
        environment |= {"STEPWELL_HOME": str(home), "STEPWELL_LOG_FORMAT": "json"}
        worker = self.workers[kind, slot] = Worker(kind, slot, environment, self.directory)
        return worker

    def feed(self, records: Sequence[OutgoingRecord]) -> None:
        """Append; returns once they are durable."""
        producer = self.log.producer()
        try:
            producer.send(records)
            producer.flush(60)
        finally:
            producer.close()

    def handled(self, kind: str) -> int:
        """How far a kind of worker has come: its committed positions summed up."""
        admin = self.log.admin()
        try:
            positions = [admin.group_positions(GROUP_OF[kind], topic) for topic in READS[kind]]
        finally:
            admin.close()
        return sum(position or 0 for of_topic in positions for position in of_topic.values())

    def read(self, topic: str) -> list[Raw]:
        """Every record of a topic, partition by partition."""
        admin = self.log.admin()
        marks = sorted(admin.watermarks(topic).items())
        admin.close()
        return [
            Raw(topic, batch.source.partition, *columns)
            for source, mark in marks
            for batch in read_range(self.log, source, mark.low, mark.high)
            for columns in zip(batch.offsets, batch.timestamps, batch.keys, batch.values, batch.headers, strict=True)
        ]

    def settle(self) -> World:
        """Wait until nothing is left to do: every attempt sealed, everything read, everything written."""
        deadline = time.monotonic() + SETTLE_S
        check = IdleCheck(self.log, GROUPS)
        world = World(self.read(EPISODE_EVENTS))
        try:
            while True:
                self._all_alive()
                assert time.monotonic() < deadline, f"not settled: {world.open_attempts()[:5]}\n{self.complaints()}"
                if check():
                    world = World(self.read(EPISODE_EVENTS))
                    if not world.open_attempts() and check_again(check):
                        return world
                time.sleep(0.1)
        finally:
            check.close()

    def _all_alive(self) -> None:
        for name, worker in list(self.workers.items()):
            if self.restarts_fenced and worker.process.poll() == EXIT_FENCED:
                self.start(*name)
                continue
            assert worker.process.poll() is None, f"{name} ended by itself\n{self.complaints()}"

    def complaints(self) -> str:
        """The last lines of every worker, for failures."""
        said = {worker.said_to for worker in self.workers.values()}
        return "\n".join(f"--- {path.name}\n{path.read_text(encoding='utf-8')[-1500:]}" for path in sorted(said))

    def close(self) -> None:
        """End what runs."""
        for worker in self.workers.values():
            worker.kill9()
        self.log.close()


def check_again(check: IdleCheck) -> bool:
    """Whether it still holds a moment later."""
    for _ in range(20):
        time.sleep(0.1)
        if check():
            return True
    return False


@contextmanager
def pipeline(url: str, database: str, directory: Path, *kinds: str) -> Iterator[Pipeline]:
    """A pipeline with its workers; everything is ended at the end."""
    made = Pipeline(url, database, directory)
    with ExitStack() as stack:
        stack.callback(made.close)
        for kind in kinds or KINDS:
            made.start(kind)
        yield made


class Tail:
    """A reader of committed records that looks on all the time."""

    def __init__(self, log: MessageLog, topic: str) -> None:
        self._consumer = log.consumer()
        admin = log.admin()
        self._consumer.assign({TopicPartition(topic, number): 0 for number in range(admin.partitions(topic))})
        admin.close()
        self.seen: list[tuple[int, int, bytes | None]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                for batch in self._consumer.poll(1000, 0.1):
                    partition = batch.source.partition
                    self.seen += [(partition, *pair) for pair in zip(batch.offsets, batch.values, strict=True)]
            except LogError:
                time.sleep(0.1)

    def end(self) -> list[tuple[int, int, bytes | None]]:
        """Everything seen, in the order of partitions and offsets."""
        time.sleep(1.0)
        self._stop.set()
        self._thread.join(10)
        self._consumer.close()
        return sorted(self.seen, key=lambda entry: entry[:2])


def kill_schedule(seed: int, kills: int) -> Iterator[tuple[str, Callable[[Pipeline], None]]]:
    """Who is killed, and what is waited for before: some time, or so many more records handled."""
    dice = random.Random(seed)
    for number in range(kills):
        kind = KINDS[number % len(KINDS)] if dice.random() < 0.8 else dice.choice(KINDS)
        if dice.random() < 0.5:
            seconds = dice.random() * 0.9
            yield kind, lambda _, seconds=seconds: time.sleep(seconds)  # type: ignore[misc]
        else:
            yield kind, _records_later(kind, dice.randint(1, 120))


def _records_later(kind: str, count: int) -> Callable[[Pipeline], None]:
    def wait(pipe: Pipeline) -> None:
        goal, deadline = pipe.handled(kind) + count, time.monotonic() + 1.5
        while pipe.handled(kind) < goal and time.monotonic() < deadline:
            time.sleep(0.005)

    return wait


def run_with_kills(pipe: Pipeline, chunks: Sequence[Sequence[OutgoingRecord]], seed: int, kills: int) -> None:
    """Feed the log while workers die and start again."""
    died: Counter[str] = Counter()
    for chunk, (kind, wait) in zip(chunks, kill_schedule(seed, kills), strict=True):
        pipe.feed(chunk)
        wait(pipe)
        pipe.workers[kind, "0"].kill9()
        died[kind] += 1
        pipe.start(kind)
    assert died.total() == kills


def header_rows(raw: Raw) -> list[dict[str, Any]]:
    """Headers as the table of dead letters holds them."""
    return [
        {"name": name, "value": None if value is None else base64.b64encode(value).decode()}
        for name, value in raw.headers
    ]
