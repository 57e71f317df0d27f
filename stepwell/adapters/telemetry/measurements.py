"""What samplers measure, and the record that it becomes."""

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from stepwell.events.model import Attribute, Distribution, Series, TelemetrySampled

SCOPE = "stepwell"
"""The instrumentation scope of what Stepwell measures itself."""

DURATION_BOUNDS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Upper bounds of the buckets of durations (s)."""


class Measurement(NamedTuple):
    """One measured number; ``unit`` is a UCUM code as OpenTelemetry uses it."""

    metric: str
    unit: str
    value: float
    attributes: tuple[Attribute, ...] = ()


@dataclass(slots=True)
class Durations:
    """A histogram of durations (s) over a window."""

    count: int = 0
    sum: float = 0.0
    min: float = float("inf")
    max: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(DURATION_BOUNDS_S) + 1))

    def add(self, seconds: float) -> None:
        """Count one."""
        self.count += 1
        self.sum += seconds
        self.min = min(self.min, seconds)
        self.max = max(self.max, seconds)
        self.buckets[bisect.bisect_left(DURATION_BOUNDS_S, seconds)] += 1


@dataclass(frozen=True, slots=True)
class Origin:
    """Who measures, and for which episode."""

    worker_id: str
    host: str
    episode_id: str | None = None
    attempt: int | None = None


def gauges(origin: Origin, at: int, sequence: int, measured: Sequence[Measurement]) -> TelemetrySampled:
    """A record of what was measured at one moment (µs since 1970 UTC)."""
    series = [Series(metric=each.metric, unit=each.unit, attributes=each.attributes) for each in measured]
    return _record(origin, at, at, sequence, series, [each.value for each in measured])


def window(
    origin: Origin,
    start_at: int,
    at: int,
    sequence: int,
    rates: Iterable[Measurement],
    durations: Iterable[tuple[str, Durations]],
) -> TelemetrySampled:
    """A record of what was measured over a window (µs since 1970 UTC): rates, and histograms of durations (s)."""
    series: list[Series] = []
    values: list[float] = []
    spreads: list[Distribution] = []
    for rate in rates:
        series.append(
            Series(metric=rate.metric, unit=rate.unit, kind="gauge", temporality="delta", attributes=rate.attributes)
        )
        values.append(rate.value)
    for metric, found in durations:
        spread = Distribution(
            point=len(values), count=found.count, min=found.min, max=found.max, bounds=DURATION_BOUNDS_S,
            counts=tuple(found.buckets),
        )  # fmt: skip
        spreads.append(spread)
        series.append(Series(metric=metric, unit="s", kind="histogram", temporality="delta"))
        values.append(found.sum)
    return _record(origin, start_at, at, sequence, series, values, spreads)


def _record(
    origin: Origin,
    start_at: int,
    at: int,
    sequence: int,
    series: Sequence[Series],
    values: Sequence[float],
    distributions: Sequence[Distribution] = (),
) -> TelemetrySampled:
    """One point of each series, all from ``start_at`` to ``at``."""
    count = len(values)
    return TelemetrySampled(
        worker_id=origin.worker_id,
        host=origin.host,
        episode_id=origin.episode_id,
        attempt=origin.attempt,
        sampled_at=at,
        sample_seq=sequence,
        scope=SCOPE,
        series=tuple(series),
        point_series=tuple(range(count)),
        point_start_at=(start_at,) * count,
        point_at=(at,) * count,
        point_value=tuple(values),
        distributions=tuple(distributions),
    )
