"""Histogram points as one kind of distribution: buckets with explicit upper bounds. The caller sets its place."""

import itertools
import math
from typing import Any

from opentelemetry.proto.metrics.v1.metrics_pb2 import ExponentialHistogramDataPoint, HistogramDataPoint

from stepwell.adapters.otlp.senders import RefusedError
from stepwell.events.model import Distribution

BUCKETS_MAX = 5_000
COUNT_MAX = 2**63 - 1


def explicit_of(point: HistogramDataPoint) -> Distribution:
    """Of a histogram with explicit bounds.

    Raises:
        RefusedError: bounds and counts do not fit together.
    """
    bounds, counts = tuple(point.explicit_bounds), tuple(point.bucket_counts)
    if counts and len(counts) != len(bounds) + 1:
        raise RefusedError(
            "buckets", f"a point has {len(bounds)} bounds and {len(counts)} bucket counts; one count more is needed"
        )
    if any(not earlier < later for earlier, later in itertools.pairwise(bounds)):
        raise RefusedError("buckets", "the bounds of a point do not grow")
    return _made(point, bounds if counts else (), counts)


def exponential_of(point: ExponentialHistogramDataPoint) -> Distribution:
    """Of an exponential histogram: the same counts, with the bounds worked out.

    Bucket ``i`` of scale ``s`` reaches from base**i to base**(i + 1), with base = 2**(2**-s). What is negative comes
    first, then the bucket around zero. A value that equals a bound of a negative bucket is counted in the one below.

    Raises:
        RefusedError: a bound lies beyond what a double holds.
    """
    entries: list[tuple[float, int]] = []  # upper bound, count
    negative, positive = point.negative, point.positive
    zero = max(point.zero_threshold, 0.0)
    if negative.bucket_counts:
        edges = [_power(point.scale, negative.offset + i) for i in range(len(negative.bucket_counts) + 1)]
        entries.append((-edges[-1], 0))
        entries += [(-edges[i], count) for i, count in reversed(list(enumerate(negative.bucket_counts)))]
        if zero < edges[0]:
            entries.append((-zero, 0))
    if zero or point.zero_count or not entries:
        entries.append((zero, point.zero_count))
    if positive.bucket_counts:
        edges = [_power(point.scale, positive.offset + i) for i in range(len(positive.bucket_counts) + 1)]
        entries.append((edges[0], 0))
        entries += [(edges[i + 1], count) for i, count in enumerate(positive.bucket_counts)]
    bounds, counts = _merged(entries)
    return _made(point, bounds, (*counts, 0))


def _merged(entries: list[tuple[float, int]]) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """One bucket a bound, in growing order: what lies at or below the bound before joins that bucket."""
    bounds: list[float] = []
    counts: list[int] = []
    for bound, count in entries:
        if bounds and bound <= bounds[-1]:
            counts[-1] += count
        else:
            bounds.append(bound)
            counts.append(count)
    return tuple(bounds), tuple(counts)


def _power(scale: int, index: int) -> float:
    try:
        found = math.exp2(math.ldexp(index, -scale))
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise RefusedError(
            "buckets", f"a bucket of an exponential histogram (scale {scale}, index {index}) exceeds a double"
        )
    return found


def _made(
    point: HistogramDataPoint | ExponentialHistogramDataPoint, bounds: tuple[float, ...], counts: Any
) -> Distribution:
    if len(bounds) > BUCKETS_MAX:
        raise RefusedError("buckets", f"a point has {len(bounds)} buckets; at most {BUCKETS_MAX} are taken")
    if not all(map(math.isfinite, bounds)):
        raise RefusedError("buckets", "a bound of a point is no finite number")
    if max(point.count, *counts, 0) > COUNT_MAX:
        raise RefusedError("buckets", f"a point counts more than {COUNT_MAX} values")
    return Distribution(
        point=0,
        count=point.count,
        min=point.min if point.HasField("min") else None,
        max=point.max if point.HasField("max") else None,
        bounds=bounds,
        counts=counts,
    )
