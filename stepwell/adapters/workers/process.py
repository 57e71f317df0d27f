"""What makes a loop a process: signals, clock, garbage collection, exit codes."""

import contextlib
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

import structlog

from stepwell.exceptions import ConfigurationError, FencedError, PositionLostError, StepwellError

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_FENCED = 3
"""Another worker runs this slot, or the log took this one for gone. Starting again helps in the second case only, and
pushes the other one out in the first: try a few times, with pauses."""
EXIT_POSITION_LOST = 4
"""Records that are needed are gone from the log; a person must decide."""
EXIT_STUCK = 5
"""It made no progress though there was work, and its watchdog ended it; starting again helps."""

NOT_RESTARTED = frozenset({2, EXIT_POSITION_LOST})
"""Exit codes after which a supervisor leaves a worker alone (2: wrong usage or configuration)."""

_log = structlog.get_logger(__name__)


class StopFlag(threading.Event):
    """Set by SIGTERM, SIGINT or the end of the supervisor; workers look at it between two batches."""

    def __call__(self) -> bool:
        return self.is_set()


class SystemClock:
    """The machine's clock."""

    def __init__(self, stop: StopFlag) -> None:
        self._stop = stop

    def now_us(self) -> int:
        """Microseconds since 1970 UTC."""
        return time.time_ns() // 1000

    def wait(self, seconds: float) -> None:
        """Return after so long, or as soon as the worker shall stop."""
        self._stop.wait(seconds)


@contextlib.contextmanager
def stopping_by_signal(*, with_stdin: bool = False) -> Iterator[StopFlag]:
    """A flag that SIGTERM and SIGINT set; a second signal interrupts at once, as usual.

    Args:
        with_stdin: also set it when standard input ends, which it does when the supervisor has gone.
    """
    flag = StopFlag()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        _log.info("stopping", signal=signal.Signals(number).name)
        flag.set()
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    if with_stdin:
        threading.Thread(target=_watch_stdin, args=(flag,), name="supervisor-watch", daemon=True).start()
    try:
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _watch_stdin(flag: StopFlag) -> None:
    with contextlib.suppress(OSError):
        while os.read(sys.stdin.fileno(), 4096):
            pass
    flag.set()


def tune_garbage_collection() -> None:
    """Look for cycles rarely: a worker makes many short-lived objects, hardly any of them in cycles.

    What exists by now (modules, compiled readers) is never looked at again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def run_as_worker(work: Callable[[], None], worker_id: str) -> int:
    """Run a worker to its end; the exit code that says how it ended.

    Raises:
        ConfigurationError: it cannot begin as it is set up; the command line says so, as of every command.
    """
    tune_garbage_collection()
    try:
        work()
    except FencedError as error:
        _log.error("another worker runs this slot", worker_id=worker_id, reason=str(error))
        return EXIT_FENCED
    except PositionLostError as error:
        _log.error("needed records are gone, stopping", worker_id=worker_id, reason=str(error))
        return EXIT_POSITION_LOST
    except ConfigurationError:
        raise
    except StepwellError as error:
        _log.error("worker failed", worker_id=worker_id, reason=str(error), error=type(error).__name__)
        return EXIT_FAILED
    _log.info("worker stopped", worker_id=worker_id)
    return EXIT_OK
