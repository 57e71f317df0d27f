"""A cache that is bounded by bytes: what comes from outside has any size. Pure."""

from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["Remembered"]

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
