"""How a reader of a partition gets on: how far behind it is in time, how fast it is, when it last moved. Pure."""

from collections import deque

__all__ = ["LagMeter", "ProgressMeter", "RateMeter"]

_US_PER_S = 1_000_000


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


class RateMeter:
    """How many offsets a second something has moved by lately.

    Args:
        window_s: the rate is the mean over about so long.
    """

    def __init__(self, window_s: float = 60.0) -> None:
        self._window_us = window_s * _US_PER_S
        self._seen: deque[tuple[int, int]] = deque()

    def saw(self, offset: int, at: int) -> None:
        """It stood at ``offset`` at the moment ``at`` (µs)."""
        seen = self._seen
        if seen and (offset < seen[-1][0] or at <= seen[-1][1]):
            seen.clear()  # it was set back, or a clock was
        seen.append((offset, at))
        while len(seen) > 2 and at - seen[1][1] >= self._window_us:
            seen.popleft()

    def per_s(self) -> float | None:
        """The rate (1/s); None before it was seen twice."""
        if len(self._seen) < 2:
            return None
        (before, since), (now, until) = self._seen[0], self._seen[-1]
        return (now - before) / (until - since) * _US_PER_S


class ProgressMeter:
    """How one reader gets on in one partition, from looks at it now and then.

    Attributes:
        log_end: where the partition ended at the last look.
        progressed_at: the look (µs) that first saw the position where it stands now; None until it has moved once.
    """

    def __init__(self) -> None:
        self.log_end: int | None = None
        self.progressed_at: int | None = None
        self._position: int | None = None
        self._lag = LagMeter()
        self._passed, self._appended = RateMeter(), RateMeter()

    def saw(self, position: int, end: int, at: int) -> None:
        """The partition ended at ``end`` and the reader stood at ``position``, at the moment ``at`` (µs) or later."""
        self.log_end = end
        self._lag.saw_end(end, at)
        self._passed.saw(position, at)
        self._appended.saw(end, at)
        if self._position is not None and position != self._position:
            self.progressed_at = at
        self._position = position

    def complete_until(self, position: int) -> int | None:
        """See `LagMeter.complete_until`."""
        return self._lag.complete_until(position)

    @property
    def events_per_s(self) -> float | None:
        """Offsets that the reader passed a second (1/s); None while not known."""
        return self._passed.per_s()

    @property
    def arrives_per_s(self) -> float | None:
        """Offsets that were appended a second (1/s); None while not known."""
        return self._appended.per_s()
