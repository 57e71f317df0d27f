"""A thread beside a worker that says on the log how the worker is: every few seconds, and when its state changes.

Reports are advice: whatever goes wrong here never stops the worker. That the log is away is the worker's to say;
reports of that time are left out.
"""

import os
import platform
import threading
from collections.abc import Callable, Iterator
from itertools import groupby

import msgspec
import structlog

import stepwell
from stepwell.adapters.workers.vitals import Condition, PartitionCondition, WorkerVitals, now_us
from stepwell.engine.ports import MessageLog, OutgoingRecord, Producer
from stepwell.events.model import LogRecord, PartitionProgress, TopicProgress, WorkerReported
from stepwell.exceptions import StepwellError, StillQueuedError

INTERVAL_S = 5.0
PAUSE_S = 0.5
"""The least time between two reports, however often the state changes."""
FLUSH_TIMEOUT_S = 4.0

_log = structlog.get_logger(__name__)


class WorkerReporter:
    """Publishes `WorkerReported` for one worker.

    Args:
        log: where to publish.
        vitals: what is known of the worker.
        outgoing: makes a record of the log from a report (codec and routing).
        interval_s: the longest time between two reports.
    """

    def __init__(
        self,
        log: MessageLog,
        vitals: WorkerVitals,
        outgoing: Callable[[LogRecord], OutgoingRecord],
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._message_log = log
        self._vitals = vitals
        self._outgoing = outgoing
        self._interval_s = interval_s
        self._sequence = 0
        self._producer: Producer | None = None
        self._queued = False
        self._said = False
        self._stop = threading.Event()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="worker-report", daemon=True)

    def start(self) -> None:
        """Begin to report."""
        self._thread.start()

    def close(self, timeout_s: float = 2 * FLUSH_TIMEOUT_S) -> None:
        """Publish a last report and let go; waits no longer than ``timeout_s``. Never raises."""
        self._stop.set()
        self._vitals.changed.set()
        if self._thread.is_alive():
            self._done.wait(timeout_s)

    def _run(self) -> None:
        try:
            while True:
                self._vitals.changed.wait(self._interval_s)
                last = self._stop.is_set()
                self._vitals.changed.clear()
                self._publish()
                if last:
                    return
                self._stop.wait(PAUSE_S)
        finally:
            if self._producer is not None:
                self._producer.close()
            self._done.set()

    def _publish(self) -> None:
        """Publish one report; while an earlier one is still queued it is left out, so that outages cost no memory."""
        try:
            producer = self._producer = self._producer or self._message_log.producer(quiet=True)
            if self._queued:
                producer.flush(0.0)
                self._queued = False
            producer.send([self._outgoing(self._report())])
            producer.flush(FLUSH_TIMEOUT_S)
        except StillQueuedError:
            self._queued = True
        except StepwellError as error:
            say = _log.debug if error.retriable or self._said else _log.warning
            say("reports are not getting through", worker_id=self._vitals.worker_id, reason=str(error))
            self._said = self._said or not error.retriable
            self._queued = False
            if self._producer is not None:
                self._producer.close()
                self._producer = None
        else:
            self._said = False

    def _report(self) -> WorkerReported:
        condition = self._vitals.condition()
        report = WorkerReported(
            worker_id=self._vitals.worker_id,
            kind=self._vitals.kind,
            host=platform.node() or "unknown",
            pid=os.getpid(),
            version=stepwell.__version__,
            started_at=self._vitals.started_at,
            reported_at=now_us(),
            report_seq=self._sequence,
            state=condition.state,
            waits_for=condition.waits_for,
            last_error=condition.last_error,
            last_error_at=condition.last_error_at,
            last_progress_at=condition.progressed_at,
            looked_at=condition.looked_at,
            reads=tuple(_reads(condition, self._vitals.group or "")),
        )
        self._sequence += 1
        return report


def _reads(condition: Condition, group: str) -> Iterator[TopicProgress]:
    for topic, partitions in groupby(condition.partitions, key=lambda each: each.source.topic):
        yield TopicProgress(consumer=group, topic=topic, partitions=tuple(map(_progress, partitions)))


def _progress(each: PartitionCondition) -> PartitionProgress:
    """Of a partition that is caught up no more than that, which is most of a report's bytes while little happens."""
    progress = PartitionProgress(partition=each.source.partition, position=each.position, log_end=each.log_end)
    if each.behind == 0:
        return progress
    return msgspec.structs.replace(
        progress,
        rate=each.events_per_s,
        arrival_rate=each.arrives_per_s,
        progressed_at=each.progressed_at,
        complete_until_at=each.complete_until,
    )
