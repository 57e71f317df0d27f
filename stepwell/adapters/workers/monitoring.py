"""All that stands around one worker: looks at the log, reports, the watchdog, the HTTP endpoints."""

import contextlib
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence

import structlog

import stepwell
from stepwell.adapters.workers.reporting import WorkerReporter
from stepwell.adapters.workers.vitals import WorkerVitals
from stepwell.adapters.workers.watchdog import Watchdog
from stepwell.engine.ports import MessageLog, OutgoingRecord
from stepwell.events.model import LogRecord
from stepwell.exceptions import StepwellError
from stepwell.projections.progress.log_watch import LogWatch

LATELY_MAX_S = 60.0
"""A thread that gave no sign of life for so long (s), or for half of the watchdog's time, is not healthy."""
LAST_WORDS_S = 6.0

_log = structlog.get_logger(__name__)


@contextlib.contextmanager
def monitored(
    vitals: WorkerVitals,
    log: MessageLog,
    outgoing: Callable[[LogRecord], OutgoingRecord],
    *,
    topics: Sequence[str] = (),
    watch: Mapping[str, Sequence[str]] | None = None,
    stuck_exit_after_s: float,
    listen: tuple[str, int] | None = None,
) -> Iterator[LogWatch]:
    """Watch the worker that runs in the block, in this thread; what is yielded looks at the log for it.

    Args:
        vitals: what the worker tells; it is handed to the worker's loop.
        log: the log, open for longer than the block.
        outgoing: makes a record of the log from a report (codec and routing).
        topics: what the worker reads.
        watch: other groups whose positions are wanted of the looks, each with its topics.
        stuck_exit_after_s: after so long without progress (s) the watchdog ends the process with `EXIT_STUCK`.
        listen: host and port of the HTTP endpoints; None: none.

    Raises:
        ConfigurationError: the address cannot be used.
        MissingPartError: ``listen``, and prometheus-client is not installed.
    """
    looks = LogWatch(log, topics, lambda: _groups(vitals, topics, watch or {}))
    looks.tell(vitals.saw)
    looks.tell_missed(vitals.missed)
    reporter = WorkerReporter(log, vitals, outgoing)
    watchdog = Watchdog(vitals, stuck_exit_after_s, lambda: reporter.close(LAST_WORDS_S))
    with contextlib.ExitStack() as stack:
        if listen is not None:
            stack.enter_context(_answering(vitals, listen, min(LATELY_MAX_S, stuck_exit_after_s / 2)))
        looks.start()
        stack.callback(looks.close, LAST_WORDS_S)
        reporter.start()
        stack.callback(reporter.close)
        watchdog.start()
        stack.callback(watchdog.close)
        try:
            yield looks
        except StepwellError as error:
            vitals.ended("failed", str(error))
            raise
        except BaseException as error:
            vitals.ended("failed", f"{type(error).__name__}: {error}")
            raise
        vitals.ended("stopped")


def _groups(
    vitals: WorkerVitals, topics: Sequence[str], watch: Mapping[str, Sequence[str]]
) -> Mapping[str, Sequence[str]]:
    if vitals.group is None or not vitals.owns_nothing():
        return watch
    return {**watch, vitals.group: topics}


@contextlib.contextmanager
def _answering(vitals: WorkerVitals, address: tuple[str, int], lately_s: float) -> Iterator[None]:
    # Imported here: these need prometheus-client, which a worker without endpoints can do without.
    from stepwell.adapters.workers.health import HealthServer
    from stepwell.adapters.workers.metrics import WorkerMetrics

    metrics = WorkerMetrics(vitals, stepwell.__version__, platform.node() or "unknown")
    server = HealthServer(address, vitals, metrics, lately_s)
    server.start()
    host, port = server.address
    _log.info("health and metrics", worker_id=vitals.worker_id, url=f"http://{host}:{port}/metrics")
    try:
        yield
    finally:
        server.close()
