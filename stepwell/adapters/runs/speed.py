"""How fast an attempt goes: step time and rate of the simulator, inference time of the policy, once a second.

Every step's own time stands in its fact (``step_wall_s``, ``inference_s``). This is the same on the way that all
telemetry takes, so that it stands beside the machine's and the GPU's figures.
"""

import time
from collections.abc import Callable

from stepwell.adapters.telemetry.measurements import Durations, Measurement, Origin, window
from stepwell.events.model import LogRecord

__all__ = ["AttemptSpeed"]

WINDOW_US = 1_000_000
STEP_DURATION, STEP_RATE = "stepwell.sim.step.duration", "stepwell.sim.step.rate"
INFERENCE_DURATION = "stepwell.agent.inference.duration"


class AttemptSpeed:
    """Counts one attempt's steps and inferences, and publishes a record for each second in which there were any.

    Args:
        publish: takes a record.
        origin: the host that runs the attempt, and the attempt.
        now_us: the clock (µs since 1970 UTC).
    """

    def __init__(
        self,
        publish: Callable[[LogRecord], None],
        origin: Origin,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self._publish = publish
        self._origin = origin
        self._now_us = now_us
        self._sequence = 0
        self._start_at: int | None = None
        self._steps = 0
        self._step = Durations()
        self._inference = Durations()

    def stepped(self, wall_s: float | None) -> None:
        """The simulator did a step, in so much wall time where it says so."""
        self._turn(wall_s)
        self._steps += 1
        if wall_s is not None:
            self._step.add(wall_s)

    def inferred(self, seconds: float | None) -> None:
        """The policy chose actions, in so much time where it says so."""
        self._turn(seconds)
        if seconds is not None:
            self._inference.add(seconds)

    def close(self) -> None:
        """Publish what the last window holds."""
        if self._start_at is not None:
            self._flush(self._start_at, self._now_us())
            self._start_at = None

    def _turn(self, took_s: float | None) -> None:
        """Close the window where its time is up; the first begins with what is counted first."""
        now = self._now_us()
        if self._start_at is None or now < self._start_at:  # or the clock was set back
            self._start_at = now - int((took_s or 0.0) * 1e6)
        elif now - self._start_at >= WINDOW_US:
            self._flush(self._start_at, now)
            self._start_at = now

    def _flush(self, start: int, now: int) -> None:
        durations = [(STEP_DURATION, self._step), (INFERENCE_DURATION, self._inference)]
        counted = [(metric, found) for metric, found in durations if found.count]
        if (self._steps or counted) and now > start:
            rate = Measurement(STEP_RATE, "{step}/s", self._steps / ((now - start) / 1e6))
            self._publish(window(self._origin, start, now, self._sequence, [rate], counted))
            self._sequence += 1
        self._steps, self._step, self._inference = 0, Durations(), Durations()
