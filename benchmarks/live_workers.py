"""Engine and detector as live workers, put together as ``stepwell work`` does, with a clock on every phase of the loop.

Phases, in the order in which one transaction goes through them: ``poll`` (until records came), ``process`` (what the
worker does with them), ``begin``, ``send``, ``positions``, ``commit``.
"""

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.measure import percentile
from stepwell.adapters.logs import open_log
from stepwell.adapters.workers.markers import DiskMarkers
from stepwell.adapters.workers.process import SystemClock, stopping_by_signal, tune_garbage_collection
from stepwell.engine.detection import restore as detector_restore
from stepwell.engine.detection.restore import DetectorRestore
from stepwell.engine.loop import ExactlyOnceLoop, Report, Restore
from stepwell.engine.ports import MessageLog
from stepwell.engine.restore import GROUP, TOPICS, EngineRestore
from stepwell.engine.timers import Timeouts
from stepwell.events.codec import Codec
from stepwell.events.topics import WRITTEN_BY_DETECTOR, WRITTEN_BY_ENGINE

PRODUCER_PHASES = {"begin": "begin", "send": "send", "send_offsets": "positions", "commit": "commit"}


class Phases:
    """Seconds of each phase, of every transaction once the worker is warm.

    Args:
        warm_s: how long after its first record it counts as warm.
    """

    def __init__(self, warm_s: float) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self._warm_s = warm_s
        self._first: float | None = None
        self._polled_at: float | None = None

    def consumer(self, consumer: Any) -> Any:
        """Put the clock on a consumer's polls."""
        poll = consumer.poll

        def timed(max_records: int, timeout_s: float) -> Any:
            begun = time.perf_counter()
            batches = poll(max_records, timeout_s)
            ended = time.perf_counter()
            self._polled_at = ended if batches else None
            if batches:
                self._first = self._first or ended
                self._note("poll", begun, ended)
            return batches

        consumer.poll = timed
        return consumer

    def producer(self, producer: Any) -> Any:
        """Put the clock on a transactional producer's calls."""
        for name, phase in PRODUCER_PHASES.items():
            setattr(producer, name, self._timed(getattr(producer, name), phase))
        return producer

    def _timed(self, call: Callable[..., None], phase: str) -> Callable[..., None]:
        def timed(*arguments: Any) -> None:
            begun = time.perf_counter()
            if phase == "begin" and self._polled_at is not None:
                self._note("process", self._polled_at, begun)
            call(*arguments)
            self._note(phase, begun, time.perf_counter())

        return timed

    def _note(self, phase: str, begun: float, ended: float) -> None:
        if self._first is not None and begun - self._first >= self._warm_s:
            self.seconds[phase].append(ended - begun)

    def figures(self) -> dict[str, dict[str, float]]:
        """Percentiles of each phase in milliseconds."""
        return {phase: milliseconds(values, (0.5, 0.9, 0.99)) for phase, values in self.seconds.items()}


def milliseconds(seconds: Sequence[float], shares: Sequence[float]) -> dict[str, float]:
    """Percentiles, by name."""
    return {f"p{round(share * 100)}_ms": percentile(seconds, share) * 1000 for share in shares}


class TimedLog:
    """A log whose group consumer and transactional producer are under the clock; everything else is the log's own."""

    def __init__(self, log: MessageLog, phases: Phases) -> None:
        self._log = log
        self._phases = phases

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def consumer(self, group: str | None = None, instance_id: str | None = None) -> Any:
        """See `MessageLog.consumer`."""
        made = self._log.consumer(group, instance_id)
        return self._phases.consumer(made) if group else made

    def transactional_producer(self, transactional_id: str, touches: Any = None) -> Any:
        """See `MessageLog.transactional_producer`."""
        return self._phases.producer(self._log.transactional_producer(transactional_id, touches))


def opened(url: str, options: Mapping[str, Any]) -> MessageLog:
    """The log; ``options``: of Kafka's driver, on top of ours."""
    if options and url.startswith("kafka://"):
        from stepwell.adapters.logs.kafka import KafkaLog

        return KafkaLog(url.removeprefix("kafka://"), options)
    return open_log(url)


def live(kind: str, log: str, warm_s: float, options: Mapping[str, Any], loop: Mapping[str, Any]) -> dict[str, Any]:
    """Run one worker until standard input ends; its phases and counts.

    Args:
        kind: ``engine`` or ``detector``.
        log: its URL.
        warm_s: see `Phases`.
        options: see `opened`.
        loop: further arguments of `ExactlyOnceLoop`.
    """
    import structlog

    report = structlog.get_logger("benchmark")
    phases, codec = Phases(warm_s), Codec()
    with stopping_by_signal(with_stdin=True) as stop:
        plain = opened(log, options)
        timed: Any = TimedLog(plain, phases)
        with _parts(kind, timed, codec, report) as (group, topics, writes, restore):
            runs = ExactlyOnceLoop(
                timed, group=group, worker_id=f"stepwell-{kind}-0", topics=topics, writes=writes, restore=restore,
                clock=SystemClock(stop), report=report, **loop,
            )  # fmt: skip
            tune_garbage_collection()
            runs.run(stop)
        plain.close()
    return {
        "phases": phases.figures(), "records": runs.records, "transactions": runs.transactions,
        "cpu_s": time.process_time(),
    }  # fmt: skip


Parts = tuple[str, Sequence[str], Sequence[str], Restore]


@contextmanager
def _parts(kind: str, log: MessageLog, codec: Codec, report: Report) -> Iterator[Parts]:
    worker_id = f"stepwell-{kind}-0"
    if kind == "detector":
        restore = DetectorRestore(log, codec, worker_id)
        yield detector_restore.GROUP, detector_restore.TOPICS, WRITTEN_BY_DETECTOR, restore
        return
    with tempfile.TemporaryDirectory() as home:
        markers = DiskMarkers(Path(home) / "markers.db")
        try:
            engine = EngineRestore(
                log, codec=codec, markers=markers, timeouts=Timeouts(), worker_id=worker_id, report=report
            )
            yield GROUP, TOPICS, WRITTEN_BY_ENGINE, engine
        finally:
            markers.close()
