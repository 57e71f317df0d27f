"""A thread beside a worker that publishes what the samplers measure, every few seconds.

Telemetry is advice: whatever goes wrong here is said once and never stops the worker. That the log is away is the
worker's to say; samples of that time are left out.
"""

import platform
import threading
import time
from collections.abc import Callable, Iterable

import structlog

from stepwell.adapters.telemetry.gpu import GpuSampler
from stepwell.adapters.telemetry.host import HostSampler
from stepwell.adapters.telemetry.measurements import Measurement, Origin, gauges
from stepwell.engine.ports import MessageLog, OutgoingRecord, Producer
from stepwell.events.model import LogRecord
from stepwell.exceptions import MissingPartError, StepwellError, StillQueuedError

INTERVAL_S = 5.0
FLUSH_TIMEOUT_S = 5.0

_log = structlog.get_logger(__name__)


class TelemetryPublisher:
    """Publishes samples of one worker under its id.

    Args:
        log: where to publish.
        worker_id: names the worker, e.g. ``stepwell-engine-0``; the records' key.
        outgoing: makes a record of the log from a sample (codec and routing).
        interval_s: time between samples.
        more: what else is measured, e.g. the depth of a queue; called from the thread.
    """

    def __init__(
        self,
        log: MessageLog,
        worker_id: str,
        outgoing: Callable[[LogRecord], OutgoingRecord],
        interval_s: float = INTERVAL_S,
        more: Callable[[], Iterable[Measurement]] = tuple,
    ) -> None:
        self._message_log = log
        self._worker_id = worker_id
        self._origin = Origin(worker_id, platform.node() or "unknown")
        self._more = more
        self._outgoing = outgoing
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        self._sequence = 0
        self._said = False
        self._queued = False

    def start(self) -> None:
        """Begin to sample."""
        self._thread.start()

    def stop(self, timeout_s: float = 2 * FLUSH_TIMEOUT_S) -> None:
        """Take a last sample, publish it, let go; wait for that at most so long. Never raises."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            host = HostSampler()
        except MissingPartError as error:
            _log.warning("no host telemetry", worker_id=self._worker_id, reason=str(error))
            return
        gpu = GpuSampler()
        if gpu.absence is not None:
            # Usual, and the samples say it too.
            _log.debug("no GPU telemetry", worker_id=self._worker_id, reason=gpu.absence)
        producer: Producer | None = None
        try:
            while True:
                last = self._stop.wait(self._interval_s)
                producer = self._publish(producer, [*host.sample(), *gpu.sample(), *self._more()])
                if last:
                    return
        finally:
            gpu.close()
            if producer is not None:
                producer.close()

    def _publish(self, producer: Producer | None, measured: list[Measurement]) -> Producer | None:
        """Publish one sample; the producer to go on with, or None after it failed.

        While an earlier sample is still queued this one is left out, so that an outage costs no memory.
        """
        sample = gauges(self._origin, time.time_ns() // 1000, self._sequence, measured)
        self._sequence += 1
        try:
            producer = producer or self._message_log.producer(quiet=True)
            if self._queued:
                producer.flush(0.0)
                self._queued = False
            producer.send([self._outgoing(sample)])
            producer.flush(FLUSH_TIMEOUT_S)
        except StillQueuedError:
            self._queued = True
            return producer
        except StepwellError as error:
            say = _log.debug if error.retriable or self._said else _log.warning
            say("telemetry is not getting through", worker_id=self._worker_id, reason=str(error))
            self._said = self._said or not error.retriable
            self._queued = False
            if producer is not None:
                producer.close()
            return None
        self._said = False
        return producer
