"""How long a fact takes from its append until its row can be seen, at a steady rate and when more comes than fits.

A row is visible as soon as its partition's position has passed it: both move in one transaction. So a reader beside the
projector asks for the positions again and again, and when the log is read afterwards, each record's own time of append
is compared with the first moment at which the position lay above it.
"""

import threading
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from benchmarks.latency import Sender, staggered
from benchmarks.logs import fill, new_log
from benchmarks.measure import finish_child, percentile, start_child
from benchmarks.projector import databases
from benchmarks.workload import Workload, realistic
from stepwell.adapters.logs import open_log
from stepwell.adapters.logs.reading import read_batches
from stepwell.events.topics import EPISODE_EVENTS

GROUP = "stepwell-projector"
LOOK_EVERY_S = 0.001
ALL_VISIBLE_WITHIN_S = 120.0
WARM_S = 2.0
"""What is appended in the first seconds does not count: a worker joins, and a new process compiles its readers."""


def row_latency_runs(kind: str, seconds: float, timescale: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
    """At 1,000 events/s, and at saturation: as many as the log takes, for a fifth of the time."""
    yield "1,000 events/s", row_latency_run(kind, 1_000, seconds, timescale)
    yield "saturation", row_latency_run(kind, None, seconds / 5, timescale)


def row_latency_run(kind: str, events_per_s: int | None, seconds: float, timescale: bool = False) -> dict[str, Any]:
    """One run; every record must be in the tables at its end. ``events_per_s``: None: as many as the log takes."""
    with new_log(kind) as log, databases(timescale) as urls:
        child = start_child("project", log=log, database=urls["projector"])
        looking = _Positions(urls["projector"])
        try:
            # A few records first: the projector has its partitions, and the database its plans.
            _send_steadily(log, Workload("warm", episodes=4, steps=18), 500)
            count = looking.wait_for(4 * 41)
            if events_per_s is None:
                load = realistic(round(seconds * 50_000))
                records = list(load.records())
                began = time.time()
                appended = fill(log, records)
            else:
                load = Workload("live", episodes=max(8, round(events_per_s * seconds / 41)), steps=18, live=40)
                began = time.time()
                appended = _send_steadily(log, load, events_per_s)
            ended = time.time()
            looking.wait_for(count + load.events)
            drained = time.time()
            result = finish_child(child)
        finally:
            looking.close()
            if child.poll() is None:
                child.kill()
        _check(urls["projector"], load.episodes * load.steps + 4 * 18)
        # At saturation the log may take everything at its beginning: all of it counts.
        warm_s = min(WARM_S, (ended - began) / 4) if events_per_s else 0.0
        return _figures(looking, log, began, ended, drained, warm_s) | {"events_per_s": appended["per_s"], **result}


def _send_steadily(log: str, load: Workload, events_per_s: int) -> dict[str, float]:
    sender, began = Sender(log), time.monotonic()
    try:
        sender.pace(staggered(load), events_per_s)
    finally:
        sender.close()
    return {"per_s": load.events / (time.monotonic() - began)}


@dataclass
class _Positions:
    """Looks at the positions as fast as the database tells them.

    Attributes:
        seen: of each partition, when its position was seen to have changed (s), and what it was then.
    """

    url: str
    seen: dict[int, tuple[list[float], list[int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with psycopg.connect(self.url, autocommit=True, prepare_threshold=1) as connection:
                while not self._stop.wait(LOOK_EVERY_S):
                    rows = connection.execute(
                        "SELECT partition, next_offset FROM stepwell.sink_offsets WHERE sink = %s AND topic = %s",
                        (GROUP, EPISODE_EVENTS),
                    ).fetchall()
                    now = time.time()
                    for partition, position in rows:
                        times, positions = self.seen.setdefault(partition, ([], []))
                        if not positions or position > positions[-1]:
                            times.append(now)
                            positions.append(position)
        except BaseException as error:  # noqa: BLE001 - said by `wait_for`
            self._failed.append(error)

    def wait_for(self, records: int) -> int:
        """Until the positions have passed so many records; how many they have passed."""
        deadline = time.monotonic() + ALL_VISIBLE_WITHIN_S
        while (passed := sum(positions[-1] for _, positions in self.seen.values())) < records:
            if self._failed:
                raise self._failed[0]
            if time.monotonic() > deadline:
                raise TimeoutError(f"{passed} of {records} records after {ALL_VISIBLE_WITHIN_S:.0f} s")
            time.sleep(0.002)
        return passed

    def close(self) -> None:
        """Look no more."""
        self._stop.set()
        self._thread.join()


def _figures(
    looking: _Positions, url: str, began: float, ended: float, drained: float, warm_s: float
) -> dict[str, Any]:
    log = open_log(url)
    took: list[float] = []
    behind: list[tuple[float, int]] = []
    try:
        for batch in read_batches(log, EPISODE_EVENTS):
            times, positions = looking.seen[batch.source.partition]
            for offset, timestamp in zip(batch.offsets, batch.timestamps, strict=True):
                appended = timestamp / 1e6
                if appended >= began + warm_s:
                    visible = times[bisect_right(positions, offset)]
                    took.append((visible - appended) * 1000)
                    behind += [(appended, 1), (visible, -1)]
    finally:
        log.close()
    return {
        "records": len(took), "p50_ms": percentile(took, 0.5), "p99_ms": percentile(took, 0.99), "max_ms": max(took),
        "most_behind": _most(behind), "sent_s": ended - began, "drained_s": drained - ended,
        "rows_per_s": len(took) / (drained - began),
    }  # fmt: skip


def _most(changes: Sequence[tuple[float, int]]) -> int:
    """The most records that were appended and not visible yet."""
    waiting = most = 0
    for _, change in sorted(changes):
        waiting += change
        most = max(most, waiting)
    return most


def _check(url: str, rows: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for table in ("steps", "actions"):
            found = connection.execute(f"SELECT count(*) FROM stepwell.{table}").fetchone()
            assert found == (rows,), f"{table}: {found} rows instead of {rows}"
