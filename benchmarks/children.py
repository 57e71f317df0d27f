"""What runs in a process of its own: ``python -m benchmarks.children CASE PARAMETERS``. Prints its figures as JSON."""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.measure import Timed, peak_mb, resident_mb
from benchmarks.workload import Workload, episode_facts
from stepwell.adapters.logs import open_log
from stepwell.adapters.workers.markers import DiskMarkers, MemoryMarkers
from stepwell.adapters.workers.process import SystemClock, stopping_by_signal, tune_garbage_collection
from stepwell.engine.fold import apply, content_digest
from stepwell.engine.loop import ExactlyOnceLoop
from stepwell.engine.partition import EpisodePartition
from stepwell.engine.ports import Consumer, OutgoingRecord, RecordBatch, TopicPartition
from stepwell.engine.publish import outgoing
from stepwell.engine.restore import GROUP, TOPICS, EngineRestore
from stepwell.engine.state import EpisodeState, Position
from stepwell.engine.timers import Timeouts
from stepwell.events.codec import Codec
from stepwell.events.model import VerdictIssued
from stepwell.events.topics import EPISODE_EVENTS, POLICY_EVENTS, WRITTEN_BY_ENGINE
from stepwell.structured_logging import configure_logging

BATCH = 10_000
PARTITIONS = 4
EPISODE_ID = "ep-%018d"
IS_VERDICT = ("ce_type", VerdictIssued.TYPE.encode())
MEMORY_STEP, MEMORY_BLOCK = 5_000, 250


def stages(log: str, events: int) -> dict[str, Any]:
    """Read through the port, then decode, fold and process the same batches: what each stage takes by itself."""
    tune_garbage_collection()
    # The driver reads ahead in its own threads meanwhile: only reading is charged with those.
    read, decode, fold, process = Timed(), *(Timed(time.thread_time) for _ in range(3))
    codec = Codec()
    states: dict[str, EpisodeState] = {}
    partitions = [_partition(number, codec) for number in range(PARTITIONS)]
    for batch in _batches(log, events, read):
        with decode.more(len(batch)):
            pairs = zip(batch.values, batch.headers, strict=True)
            decoded = [codec.decode_event(value, headers) for value, headers in pairs]
        positions = [
            Position(batch.source.partition, offset, timestamp, "f", content_digest(value or b""))
            for offset, timestamp, value in zip(batch.offsets, batch.timestamps, batch.values, strict=True)
        ]
        with fold.more(len(batch)):
            for event, position in zip(decoded, positions, strict=True):
                state = states.get(event.episode_id)
                if state is None:
                    state = states[event.episode_id] = EpisodeState(event.episode_id)
                apply(state, event, position)
        del decoded, positions
        with process.more(len(batch)):
            partitions[batch.source.partition].process(batch, time.time_ns() // 1000)
    return {name: timed.figures() for name, timed in
            {"read": read, "decode": decode, "fold": fold, "process": process}.items()}  # fmt: skip


def _batches(log: str, events: int, read: Timed, size: int = BATCH) -> Iterator[RecordBatch]:
    opened = open_log(log)
    consumer = opened.consumer()
    consumer.assign(dict.fromkeys((TopicPartition(EPISODE_EVENTS, n) for n in range(PARTITIONS)), 0))
    first = consumer.poll(1, 30)  # connected, and the prefetch filled, before the clock starts
    yield from first
    left = events - sum(map(len, first))
    while left > 0:
        with read.more(0):
            batches = consumer.poll(size, 10)
        count = sum(map(len, batches))
        read.count += count
        left -= count
        yield from batches
    consumer.close()
    opened.close()


def _partition(number: int, codec: Codec, markers: Any = None) -> EpisodePartition:
    return EpisodePartition(
        TopicPartition(EPISODE_EVENTS, number), 0, codec=codec, markers=markers or MemoryMarkers(), timeouts=Timeouts(),
        worker_id="benchmark", fetch=lambda offset: None,
    )  # fmt: skip


def raw_kafka(bootstrap: str, events: int) -> dict[str, Any]:
    """The driver alone, tuned as the port tunes it: messages handed out, nothing looked at."""
    from confluent_kafka import Consumer as Driver

    driver = Driver({
        "bootstrap.servers": bootstrap, "group.id": "benchmark-raw", "auto.offset.reset": "earliest",
        "enable.auto.commit": False, "queued.min.messages": 1_000_000, "fetch.queue.backoff.ms": 1,
    })  # fmt: skip
    driver.subscribe([EPISODE_EVENTS])
    timed = Timed()
    left = events - len(driver.consume(1, 30))
    while left > 0:
        with timed.more(0):
            count = len(driver.consume(BATCH, 0.1))
        timed.count += count
        left -= count
    driver.close()
    return timed.figures()


def raw_sqlite(directory: str, events: int) -> dict[str, Any]:
    """The local log's rows, selected by SQLite alone."""
    import sqlite3

    timed = Timed()
    connection = sqlite3.connect(Path(directory) / "log.db")
    with timed.more(events):
        cursor = connection.execute("SELECT * FROM records LIMIT ?", (events,))
        while cursor.fetchmany(BATCH):
            pass
    return timed.figures()


def engine(log: str) -> dict[str, Any]:
    """The engine's worker, put together as ``stepwell engine`` does; runs until its standard input ends."""
    import structlog

    seen: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as home, stopping_by_signal(with_stdin=True) as stop:
        opened, codec = open_log(log), Codec()
        markers = DiskMarkers(Path(home) / "markers.db")
        report = structlog.get_logger("benchmark")
        restore = EngineRestore(
            opened, codec=codec, markers=markers, timeouts=Timeouts(), worker_id="stepwell-engine-0", report=report
        )
        loop = ExactlyOnceLoop(
            opened, group=GROUP, worker_id="stepwell-engine-0", topics=TOPICS, writes=WRITTEN_BY_ENGINE,
            restore=_stamping(restore, seen), clock=SystemClock(stop), report=report,
        )  # fmt: skip
        tune_garbage_collection()
        loop.run(stop)
        markers.close()
        opened.close()
    return {
        "first": seen["wall"], "cpu_s": time.process_time() - seen["cpu"], "records": loop.records,
        "transactions": loop.transactions, "peak_mb": peak_mb(),
    }  # fmt: skip


def _stamping(restore: EngineRestore, seen: dict[str, float]) -> Callable[..., EpisodePartition]:
    """Note when the first record comes to a partition, then step aside."""

    def make(source: TopicPartition, committed: int | None, consumer: Consumer) -> EpisodePartition:
        partition = restore(source, committed, consumer)
        process = partition.process

        def first(batch: RecordBatch, now_us: int) -> Any:
            del partition.process  # the class's own again
            if not seen:
                seen.update(wall=time.time(), cpu=time.process_time())
            return process(batch, now_us)

        partition.process = first  # type: ignore[method-assign]
        return partition

    return make


def memory(finished: int, live: int) -> dict[str, Any]:
    """Resident memory of one partition's engine with live episodes, and after many more have come and gone.

    Records come from templates and go straight to the partition; seals come back to it as they do through a log.
    """
    tune_garbage_collection()
    with tempfile.TemporaryDirectory() as home:
        markers = DiskMarkers(Path(home) / "markers.db")
        feed = _Feed(_partition(0, Codec(), markers))
        before = resident_mb()
        feed.episodes(range(live), ended=False)
        seen = [(0, resident_mb())]
        for start in range(0, finished, MEMORY_STEP):
            feed.episodes(range(live + start, live + min(start + MEMORY_STEP, finished)), ended=True)
            seen.append((min(start + MEMORY_STEP, finished), resident_mb()))
        assert len(feed.partition.episodes) == live, "finished episodes are still in memory"
        size = sum(path.stat().st_size for path in Path(home).iterdir()) / 2**20
        assert len(markers.get(0, EPISODE_ID % live)) == (1 if finished else 0)
        markers.close()
    return {"start_mb": before, "rss_mb": seen, "markers_mb": size, "verdicts": feed.verdicts, "peak_mb": peak_mb()}


class _Feed:
    """Short episodes for one partition, at the next offsets."""

    def __init__(self, partition: EpisodePartition) -> None:
        self.partition = partition
        self.verdicts = 0
        load = Workload("memory", 1, steps=1)
        records = [outgoing(Codec(), fact) for fact in episode_facts(load, EPISODE_ID % 0, 1)]
        self._template = [(record.value or b"", record.headers) for record in records]

    def episodes(self, numbers: range, ended: bool) -> None:
        """Whole episodes, or all but their ends, in blocks that alternate between episodes."""
        zero = (EPISODE_ID % 0).encode()
        template = self._template if ended else self._template[:-1]
        for start in range(0, len(numbers), MEMORY_BLOCK):
            keys = [(EPISODE_ID % number).encode() for number in numbers[start : start + MEMORY_BLOCK]]
            rows = [(key, value.replace(zero, key), headers) for value, headers in template for key in keys]
            seals = [(r.key, r.value, r.headers) for r in self._process(rows) if r.topic == EPISODE_EVENTS]
            assert len(seals) == (len(keys) if ended else 0), "a seal is missing"
            if seals:
                self._process(seals)

    def _process(self, rows: list[Any]) -> list[OutgoingRecord]:
        now = time.time_ns() // 1000
        start = self.partition.position
        end = start + len(rows)
        keys, values, headers = (list(column) for column in zip(*rows, strict=True))
        batch = RecordBatch(
            TopicPartition(EPISODE_EVENTS, 0), start, end, list(range(start, end)), [now] * len(rows), keys, values,
            headers,
        )  # fmt: skip
        out = self.partition.process(batch, now)
        self.verdicts += sum(record.topic == POLICY_EVENTS and IS_VERDICT in record.headers for record in out)
        return out


def copy(log: str, database: str, events: int, group: str, rows: int) -> dict[str, Any]:
    """The rows of steps and actions, ready made, copied batch by batch into their indexed tables."""
    import psycopg

    from stepwell.projections.schema.generations import read_homes
    from stepwell.projections.tables import KINDS
    from stepwell.projections.writing.copy_format import encode_rows
    from stepwell.projections.writing.projector import BATCH_RECORDS
    from stepwell.projections.writing.rows import Source, rows_of

    codec, timed = Codec(), Timed()
    with psycopg.connect(database, autocommit=True) as connection:
        homes = read_homes(connection)
        for batch in _batches(log, events, Timed(), BATCH_RECORDS):
            by_kind: dict[str, list[Any]] = {"steps": [], "actions": []}
            for index, value in enumerate(batch.values):
                source = Source(*batch.source, batch.offsets[index], batch.timestamps[index])
                for kind, values in rows_of(codec.decode(value, batch.headers[index]), source):
                    if kind in by_kind:
                        by_kind[kind].append(values)
            streams = {name: encode_rows(KINDS[name].types, rows) for name, rows in by_kind.items()}
            with timed.more(sum(map(len, by_kind.values()))), connection.transaction():
                homes.enter(connection)
                for name, stream in streams.items():
                    columns = ", ".join(KINDS[name].columns)
                    statement = f"COPY {name} ({columns}) FROM STDIN (FORMAT binary)"
                    with connection.cursor().copy(statement.encode()) as copying:
                        copying.write(stream)
    assert timed.count == rows, f"{timed.count} rows instead of {rows}; {group}"
    return timed.figures()


def projector(
    log: str, database: str, events: int, group: str, rows: int, columns_from: int | None = None
) -> dict[str, Any]:
    """The projector as it is, over the topic of events, from its first batch to its last commit.

    ``columns_from``: as of `Projector`; None: as usual.
    """
    import threading

    from stepwell.projections.writing.columns.batch import COLUMNS_FROM
    from stepwell.projections.writing.projector import Projector

    tune_garbage_collection()
    stop, failed = threading.Event(), []
    opened = open_log(log)
    made = Projector(
        opened, database, Codec(), group=group, topics=(EPISODE_EVENTS,), columns_from=columns_from or COLUMNS_FROM
    )

    def run() -> None:
        try:
            made.run(stop)
        except BaseException as error:  # noqa: BLE001 - said below
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while not made.positions and not failed:
        time.sleep(0.001)
    timed = Timed()
    with timed.more(0):
        while made.records_written < events and not failed:
            time.sleep(0.005)
    stop.set()
    thread.join()
    opened.close()
    if failed:
        raise failed[0]
    # Only steps and actions, as raw COPY counts them; episodes and attempts come on top.
    timed.count = rows
    return timed.figures() | {"batches": made.batches_written, "peak_mb": peak_mb()}


def project(log: str, database: str) -> dict[str, Any]:
    """The projector as it is, over the topic of events, until its standard input ends."""
    from stepwell.projections.writing.projector import Projector

    tune_garbage_collection()
    opened = open_log(log)
    made = Projector(opened, database, Codec(), topics=(EPISODE_EVENTS,))
    with stopping_by_signal(with_stdin=True) as stop:
        made.run(stop)
    opened.close()
    return {
        "batches": made.batches_written, "written": made.records_written, "cpu_s": time.process_time(),
        "peak_mb": peak_mb(),
    }  # fmt: skip


def live(**parameters: Any) -> dict[str, Any]:
    """See `benchmarks.live_workers`; imported here, so that the other cases' memory stays their own."""
    from benchmarks.live_workers import live as run

    return run(**parameters)


def detector_memory(**parameters: Any) -> dict[str, Any]:
    """See `benchmarks.detector`."""
    from benchmarks.detector import memory as run

    return run(**parameters)


CASES: dict[str, Callable[..., dict[str, Any]]] = {
    "stages": stages, "raw_kafka": raw_kafka, "raw_sqlite": raw_sqlite, "engine": engine,
    "memory": memory, "copy": copy, "projector": projector, "project": project, "live": live,
    "detector_memory": detector_memory,
}  # fmt: skip


def main() -> None:
    configure_logging("warning")
    case, parameters = sys.argv[1:]
    print(json.dumps(CASES[case](**json.loads(parameters))), flush=True)


if __name__ == "__main__":
    main()
