"""The engine over both logs: what reading, decoding, folding and the whole exactly-once loop take."""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

from benchmarks.measure import child, figures, finish_child, start_child
from benchmarks.workload import Workload
from stepwell.adapters.logs import open_log
from stepwell.adapters.parts.kafka import KafkaPart
from stepwell.engine.ports import OutgoingRecord, TopicPartition
from stepwell.events.codec import Codec
from stepwell.events.model import VerdictIssued
from stepwell.events.topics import POLICY_EVENTS, TOPICS

FILL_BATCH = 5_000
VERDICTS_WITHIN_S = 300.0
KAFKA_HEAP = "768m"


@contextmanager
def new_log(kind: str) -> Iterator[str]:
    """URL of an empty log with all topics: a new Kafka node, or a new directory."""
    if kind == "kafka":
        with KafkaPart(heap=KAFKA_HEAP) as node:
            url = f"kafka://{node.bootstrap}"
            _create_topics(url)
            yield url
        return
    directory = tempfile.mkdtemp(prefix="stepwell-bench-")
    try:
        url = f"local:{directory}"
        _create_topics(url)
        yield url
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _create_topics(url: str) -> None:
    log = open_log(url)
    admin = log.admin()
    admin.create(TOPICS)
    admin.close()
    log.close()


def fill(url: str, records: Sequence[OutgoingRecord]) -> dict[str, float]:
    """Append all records through our producer."""
    log = open_log(url)
    producer = log.producer()
    started, cpu = time.perf_counter(), time.process_time()
    source = iter(records)
    while some := list(islice(source, FILL_BATCH)):
        producer.send(some)
    producer.flush(300)
    run = figures(len(records), time.perf_counter() - started, time.process_time() - cpu)
    producer.close()
    log.close()
    return run


class Verdicts:
    """Reads verdicts as anybody outside would, committed ones only, and keeps when each one came.

    Args:
        url: the log.
        count: how many episodes must have one.
        now: the clock to note (s).
    """

    def __init__(self, url: str, count: int, now: Callable[[], float] = time.time) -> None:
        self._log = open_log(url)
        self._consumer = self._log.consumer()
        self._consumer.assign({TopicPartition(POLICY_EVENTS, n): 0 for n in range(4)})
        self._count = count
        self._now = now
        self._codec = Codec()
        self.seen: list[VerdictIssued] = []
        self.came: dict[str, float] = {}

    def expect(self, count: int) -> None:
        """Wait for so many episodes from now on."""
        self._count = count

    def wait(self, within_s: float = VERDICTS_WITHIN_S) -> float:
        """Read until every episode has a verdict; when the last one came."""
        deadline = time.monotonic() + within_s
        last = self._now()
        while len(self.came) < self._count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(self.came)} of {self._count} verdicts after {within_s:.0f} s")
            for batch in self._consumer.poll(10_000, 0.05):
                last = self._now()
                for value, headers in zip(batch.values, batch.headers, strict=True):
                    verdict = self._codec.decode(value, headers)
                    if not isinstance(verdict, VerdictIssued):
                        continue  # an announcement, say
                    self.seen.append(verdict)
                    self.came.setdefault(verdict.episode_id, last)
        return last

    def close(self) -> None:
        """Let go."""
        self._consumer.close()
        self._log.close()

    def check(self, load: Workload) -> None:
        """Every episode once, with the right outcome and number of steps. Raises `AssertionError`."""
        check_outcomes(load, [(v.episode_id, v.outcome, v.n_steps) for v in self.seen])
        assert all(v.certificate.status == "complete" for v in self.seen), "an incomplete certificate"


def check_outcomes(load: Workload, found: Sequence[tuple[str, str, int]]) -> None:
    """Compare (episode, outcome, steps) with what was written. Raises `AssertionError`."""
    assert len(found) == load.episodes, f"{len(found)} outcomes for {load.episodes} episodes"
    assert {episode: outcome for episode, outcome, _ in found} == load.outcomes(), "wrong outcomes"
    wrong = [episode for episode, _, steps in found if steps != load.steps]
    assert not wrong, f"wrong number of steps: {wrong[:3]}"


def engine_run(url: str, load: Workload) -> dict[str, Any]:
    """The engine from the first record until an outside reader has every verdict."""
    verdicts = Verdicts(url, load.episodes)
    process = start_child("engine", log=url)
    try:
        last = verdicts.wait()
        result = finish_child(process)
    finally:
        if process.poll() is None:
            process.kill()
        verdicts.close()
    verdicts.check(load)
    return {**figures(load.events, last - result.pop("first"), result.pop("cpu_s")), **result}


def log_runs(kind: str, load: Workload, records: Sequence[OutgoingRecord]) -> Iterator[tuple[str, dict[str, Any]]]:
    """One turn over a new log: every case once."""
    with new_log(kind) as url:
        yield "fill", fill(url, records)
        place = url.partition(":")[2].removeprefix("//")
        if kind == "kafka":
            yield "raw", child("raw_kafka", bootstrap=place, events=load.events)
        else:
            yield "raw", child("raw_sqlite", directory=place, events=load.events)
        yield from child("stages", log=url, events=load.events).items()
        yield "engine", engine_run(url, load)
