"""How many series a sender may have."""

import time
from collections.abc import Callable

__all__ = ["SERIES_MAX", "SeriesCount"]

SERIES_MAX = 20_000
"""The most series that one sender may have in `_PERIOD_S`."""
_ALL_SENDERS_MAX = 250_000
_PERIOD_S = 3600.0


class SeriesCount:
    """How many series each sender has, counted anew each hour (and sooner where all have very many together).

    An attribute that changes with each point makes each point a series: it would fill the database's dictionary of
    series, and the memory of everybody who remembers them.

    Args:
        monotonic: seconds, never going back.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._since = monotonic()
        self._seen: dict[str, set[int]] = {}
        self._all = 0

    def admits(self, worker_id: str, mark: int) -> bool:
        """Whether the sender may have this series (``mark``: its hash)."""
        seen = self._seen.get(worker_id)
        if seen is not None and mark in seen:
            return True
        now = self._monotonic()
        if now - self._since >= _PERIOD_S or self._all >= _ALL_SENDERS_MAX:
            self._seen, self._all, self._since, seen = {}, 0, now, None
        if seen is None:
            seen = self._seen[worker_id] = set()
        if len(seen) >= SERIES_MAX:
            return False
        seen.add(mark)
        self._all += 1
        return True
