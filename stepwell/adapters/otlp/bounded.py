"""What is remembered from request to request, within bounds that no sender can push out."""

import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["SERIES_MAX", "Remembered", "SeriesCount"]

SERIES_MAX = 20_000
"""The most series that one sender may have in `_PERIOD_S`."""
_ALL_SENDERS_MAX = 250_000
_PERIOD_S = 3600.0

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Remembered(Generic[K, V]):
    """A cache that starts anew when it is full: what is in use is soon in it again.

    Args:
        bytes_max: the most memory (bytes) that what is remembered may take, as those who add to it estimate.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._known: dict[K, V] = {}
        self.get = self._known.get
        """As of a dict; called once a series and request, so without a call between."""

    def add(self, key: K, value: V, size: int) -> None:
        """Remember a new one that takes about ``size`` bytes, key and all."""
        if self._bytes + size > self._bytes_max:
            self._known.clear()
            self._bytes = 0
        self._known[key] = value
        self._bytes += size


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
