"""How far behind a reader of a partition is, in time."""

from collections import deque

__all__ = ["LagMeter"]


class LagMeter:
    """Knows until when a partition has been read completely.

    Whoever has read up to where the log ended at a moment has read everything that was logged before that moment. So
    the ends seen lately are kept, and the latest that the position has passed is the answer.

    Args:
        samples_max: ends kept; while the reader is further behind than the oldest of them, the last answer stands.
    """

    def __init__(self, samples_max: int = 600) -> None:
        self._ends: deque[tuple[int, int]] = deque(maxlen=samples_max)
        self._complete_until: int | None = None

    def saw_end(self, end: int, at: int) -> None:
        """The log ended at offset ``end`` at the moment ``at`` (µs), or later."""
        # While the log stands still, the newest moment says most; keeping one entry an end also bounds the memory.
        if self._ends and self._ends[-1][0] == end:
            self._ends.pop()
        self._ends.append((end, at))

    def complete_until(self, position: int) -> int | None:
        """Everything logged before this moment (µs) lies below ``position``; None before that is known."""
        while self._ends and self._ends[0][0] <= position:
            _, at = self._ends.popleft()
            self._complete_until = at if self._complete_until is None else max(at, self._complete_until)
        return self._complete_until
