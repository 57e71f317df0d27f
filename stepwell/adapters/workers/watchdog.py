"""Ends a worker that makes no progress though there is work, so that its supervisor starts it anew.

A worker is stuck when, for ``stuck_after_s``,

* its thread has given no sign of life: it hangs in a call; or
* none of its partitions has moved although one has something to read, or one of them has not moved for
  `PARTITION_PATIENCE` times as long. For a worker whose group gave it no partition the group's positions count.

Waiting for the log, the database or the disk cache is no fault of the worker's, and a fresh one would wait as well:
while it says that it waits, and gives signs of life, it is left alone. A process that was stopped as a whole (SIGSTOP,
a machine that slept) starts with fresh time.

The end comes from this thread by ``os._exit``, because a thread that hangs in C code can be ended in no other way.
Where such code also holds Python's lock, not even this thread runs; then the interpreter's own timer
(`faulthandler`) prints the stacks and ends the process with code 1 after twice the time.
"""

import faulthandler
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable

import structlog

from stepwell.adapters.workers.process import EXIT_STUCK
from stepwell.adapters.workers.vitals import Condition, WorkerVitals

LOOK_S = 1.0
_STDERR = 2
FROZEN_AFTER_S = 5.0
"""A look that comes so late says that the whole process stood still."""
PARTITION_PATIENCE = 5
LAST_RESORT = 2
"""After so many times ``stuck_after_s`` without a look the interpreter's timer ends the process."""
OTHER_FRAMES = 4
"""So much is told of the threads beside the worker's own: it may wait for one of them."""
LOOK_AGE_MAX_S = 10.0
"""An older look at the log says nothing about what there is to read."""

_log = structlog.get_logger(__name__)


class Watchdog:
    """Watches one worker from a thread of its own.

    Args:
        vitals: what is known of the worker.
        stuck_after_s: for how long it may make no progress (s); longer than any call that it makes may last.
        last_words: called before the end, to tell others; at most a few seconds.
        monotonic: seconds, never going back.
    """

    def __init__(
        self,
        vitals: WorkerVitals,
        stuck_after_s: float,
        last_words: Callable[[], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._vitals = vitals
        self._stuck_after_s = stuck_after_s
        self._last_words = last_words
        self._monotonic = monotonic
        self._looked_at = monotonic()
        self._watched = threading.get_ident()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def start(self) -> None:
        """Watch the calling thread."""
        self._watched = threading.get_ident()
        self._arm_last_resort()
        self._thread.start()

    def close(self) -> None:
        """Stop watching."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
            faulthandler.cancel_dump_traceback_later()

    def look(self) -> str | None:
        """Why the worker is stuck; None where it is not."""
        now = self._monotonic()
        if now - self._looked_at > FROZEN_AFTER_S:
            self._vitals.forgive()
        self._looked_at = now
        return self._judged(self._vitals.condition())

    def _judged(self, condition: Condition) -> str | None:
        limit = self._stuck_after_s
        if condition.state in ("stopped", "failed"):
            return None
        if condition.alive_s > limit:
            return f"its thread gave no sign of life for {condition.alive_s:.0f} s; it was {condition.doing}"
        unknown = condition.look_age_s is None or condition.look_age_s > LOOK_AGE_MAX_S
        if condition.waits or condition.state in ("starting", "stopping") or unknown:
            return None
        behind = [each for each in condition.partitions if each.behind]
        if condition.still_s > limit:
            places = ", ".join(f"{each.source.topic}/{each.source.partition} by {each.behind}" for each in behind[:5])
            if not places:
                return f"its group gave it no partition and has not moved for {condition.still_s:.0f} s"
            return f"nothing was read for {condition.still_s:.0f} s though it is behind in {places}"
        for each in behind:
            if each.still_s > limit * PARTITION_PATIENCE:
                return (
                    f"{each.source.topic}/{each.source.partition} has not moved for {each.still_s:.0f} s though "
                    f"{each.behind} offsets are to be read"
                )
        return None

    def _run(self) -> None:
        while not self._stop.wait(min(LOOK_S, self._stuck_after_s / 4)):
            self._arm_last_resort()
            reason = self.look()
            if reason is not None:
                self._end(reason)

    def _arm_last_resort(self) -> None:
        faulthandler.dump_traceback_later(self._stuck_after_s * LAST_RESORT + FROZEN_AFTER_S, exit=True, file=_STDERR)

    def _end(self, reason: str) -> None:
        condition = self._vitals.condition()
        self._vitals.ended("failed", f"stuck: {reason}")
        stacks = _stacks()
        stack = stacks.pop(self._watched, ("", []))[1]
        _log.error(
            "worker is stuck, exiting so that it is started anew", worker_id=self._vitals.worker_id, reason=reason,
            was_doing=condition.doing, stack_of_its_thread=stack,
            other_threads={name: lines[-OTHER_FRAMES:] for name, lines in stacks.values()}, exit_code=EXIT_STUCK,
        )  # fmt: skip
        self._last_words()
        sys.stderr.flush()
        os._exit(EXIT_STUCK)


def _stacks() -> dict[int, tuple[str, list[str]]]:
    """Name and stack of each thread but the calling one, the innermost frame last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return {
        ident: (names.get(ident, str(ident)), [line.rstrip() for line in traceback.format_stack(frame)])
        for ident, frame in sys._current_frames().items()
        if ident != threading.get_ident()
    }
