"""Durations in buckets, from which percentiles are read: the bounds that `stepwell.wall_bucket` has in the database.

Whole microseconds, so that every machine puts a duration into the same bucket. A bucket's most is at most 1.1 times its
least, so what stands for it (the harmonic mean of the two) is off by at most (1.1 - 1) / (1.1 + 1) = 4.8 %.
"""

from bisect import bisect_right
from itertools import accumulate, repeat, takewhile

__all__ = ["BOUNDS", "ERROR", "wall_bucket", "wall_us"]

ERROR = 0.1 / 2.1
"""The most that the duration which stands for a bucket differs from one that is in it, relative to the latter."""
_LONGEST_US = 1.1e12
_SENSELESS_S = 1e9

BOUNDS: tuple[int, ...] = tuple(
    takewhile(lambda us: us < _LONGEST_US, accumulate(repeat(1), lambda us, _: us * 11 // 10 + 1))
)
"""Least duration (µs) of the buckets 1, 2, ...; bucket 0 is 0 µs, and the last has no end."""


def wall_us(wall_s: float | None) -> int | None:
    """A duration (s) in whole microseconds; None where it makes no sense (NaN, negative, 30 years) or is not told."""
    if wall_s is None or not 0 <= wall_s < _SENSELESS_S:
        return None
    return round(wall_s * 1e6)


def wall_bucket(us: int | None) -> int | None:
    """The bucket of a duration (µs)."""
    return None if us is None else bisect_right(BOUNDS, us)
