"""OTLP metrics as records: the points of each scope side by side in columns.

What costs is done once a series, not once a point: a series is recognised by its attributes as they stand on the wire,
and its text, size and episode are remembered from request to request.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, ScopeMetrics

from stepwell.adapters.otlp.distributions import explicit_of, exponential_of
from stepwell.adapters.otlp.senders import (
    ATTEMPT,
    EPISODE_ID,
    Episode,
    RefusedError,
    Sender,
    Senders,
    attributes_of,
    episode_of,
    scope_text,
)
from stepwell.adapters.otlp.series_count import SERIES_MAX, SeriesCount
from stepwell.adapters.otlp.taken import EARLIEST_US, RECORD_BYTES, TEXT_BYTES, Taken, Window, memory_bytes, text_bytes
from stepwell.engine.remembered import Remembered
from stepwell.events.model import Attribute, Distribution, Series, TelemetrySampled

_TEMPORALITY = {1: "delta", 2: "cumulative"}
_NO_VALUE = 1  # the flag of a point that says that its series has ended
_POINT_BYTES = 32
_BUCKET_BYTES = 18
_SERIES_BYTES = 50
_REMEMBERED_BYTES = 64 * 1024 * 1024

Key = tuple[tuple[str, str | bytes], ...]
"""A point's attributes as they stand on the wire."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A series that was met before: its hash, its size in a record (bytes) and the episode that its attributes name."""

    series: Series
    mark: int
    size: int
    episode: dict[str, str]


@dataclass(slots=True)
class _Columns:
    """One record in the making."""

    episode: Episode
    size: int
    full: bool = False
    series: list[Series] = field(default_factory=list)
    point_series: list[int] = field(default_factory=list)
    point_start_at: list[int] = field(default_factory=list)
    point_at: list[int] = field(default_factory=list)
    point_value: list[float] = field(default_factory=list)
    distributions: list[Distribution] = field(default_factory=list)

    def add(self, place: int, start_at: int, at: int, value: float) -> None:
        """One point of the series at ``place``."""
        self.point_series.append(place)
        self.point_start_at.append(start_at)
        self.point_at.append(at)
        self.point_value.append(value)
        self.size += _POINT_BYTES
        if self.size > RECORD_BYTES:
            self.full = True


class MetricsReader:
    """Makes records of requests.

    Args:
        senders: reads resources.
        now_us: the clock (µs since 1970 UTC).
        next_seq: the receiver's count of records.
    """

    def __init__(self, senders: Senders, now_us: Callable[[], int], next_seq: Callable[[], int]) -> None:
        self._senders = senders
        self._now_us = now_us
        self._next_seq = next_seq
        self._known: Remembered[tuple[str, str, str, str, Key], _Known] = Remembered(_REMEMBERED_BYTES)
        self._count = SeriesCount()

    def read(self, request: ExportMetricsServiceRequest) -> Taken:
        """The records of a request, and what of it is refused."""
        taken = Taken()
        now = self._now_us()
        window = Window.around(now)
        for resource_metrics in request.resource_metrics:
            taken.sender = ""
            try:
                sender = self._senders.of(resource_metrics.resource)
            except RefusedError as error:
                taken.refuse(error.code, str(error), _count(resource_metrics.scope_metrics))
                continue
            taken.sender = sender.worker_id
            for scope_metrics in resource_metrics.scope_metrics:
                try:
                    name = scope_text(scope_metrics.scope)
                except RefusedError as error:
                    taken.refuse(error.code, str(error), _count([scope_metrics]))
                    continue
                scope = _Scope(self, sender, name, now, window, taken)
                for metric in scope_metrics.metrics:
                    scope.read(metric)
                scope.close()
        return taken

    def series(self, of: "_SeriesOfMetric", key: Key, attributes: Any, worker_id: str) -> _Known:
        """The series of a sender's point; read where it is new.

        Raises:
            RefusedError: its attributes are too large, or name a nonsense attempt; or the sender has too many series.
        """
        known = self._read(of, key, attributes)
        if not self._count.admits(worker_id, known.mark):
            raise RefusedError(
                "series",
                f"the sender has more than {SERIES_MAX} series in an hour; leave out attributes that keep changing",
            )
        return known

    def _read(self, of: "_SeriesOfMetric", key: Key, attributes: Any) -> _Known:
        identity = (*of.identity, key)
        known = self._known.get(identity)
        if known is None:
            metric, unit, kind, temporality = of.identity
            texts = attributes_of(attributes)
            own = tuple(each for each in texts if each.name not in (EPISODE_ID, ATTEMPT))
            series = Series(metric=metric, unit=unit, kind=kind, temporality=temporality, attributes=own)
            size = text_bytes((*own, Attribute(name=metric, value=unit))) + _SERIES_BYTES
            if size > TEXT_BYTES:
                raise RefusedError("too_large", f"name, unit and attributes have more than {TEXT_BYTES} bytes")
            known = _Known(series, hash(series), size, {each.name: each.value for each in texts if each not in own})
            self._known.add(identity, known, memory_bytes(texts))
        return known

    def record(self, sender: Sender, scope: str, now: int, columns: _Columns) -> TelemetrySampled:
        """The record of finished columns."""
        return TelemetrySampled(
            worker_id=sender.worker_id,
            host=sender.host,
            episode_id=columns.episode.episode_id,
            attempt=columns.episode.attempt,
            sampled_at=now,
            sample_seq=self._next_seq(),
            resource=sender.resource,
            scope=scope,
            series=tuple(columns.series),
            point_series=tuple(columns.point_series),
            point_start_at=tuple(columns.point_start_at),
            point_at=tuple(columns.point_at),
            point_value=tuple(columns.point_value),
            distributions=tuple(columns.distributions),
        )


class _SeriesOfMetric:
    """One metric, with the places that its series have in open records."""

    def __init__(self, metric: Metric, kind: str, temporality: str) -> None:
        self.identity = metric.name, metric.unit, kind, temporality
        self.counts = kind != "gauge"
        self.places: dict[Key, tuple[_Columns, int]] = {}

    @property
    def words(self) -> str:
        """The metric in a message."""
        return _named(self.identity[0])


class _Scope:
    """The metrics of one scope of one resource."""

    def __init__(
        self, reader: MetricsReader, sender: Sender, scope: str, now: int, window: Window, taken: Taken
    ) -> None:
        self._reader = reader
        self._sender = sender
        self._scope = scope
        self._now = now
        self._window = window
        self._taken = taken
        self._open: dict[Episode, _Columns] = {}

    def read(self, metric: Metric) -> None:
        """Take the points of one metric."""
        data = metric.WhichOneof("data")
        points: Any = getattr(metric, data).data_points if data else ()
        try:
            if not metric.name:
                raise RefusedError("metric", "a metric has no name")
            match data:
                case "gauge":
                    self._numbers(metric, "gauge", "none", points)
                case "sum":
                    kind = "counter" if metric.sum.is_monotonic else "up_down_counter"
                    self._numbers(metric, kind, _temporality(metric, metric.sum), points)
                case "histogram":
                    self._spreads(metric, _temporality(metric, metric.histogram), points, explicit_of)
                case "exponential_histogram":
                    self._spreads(metric, _temporality(metric, metric.exponential_histogram), points, exponential_of)
                case "summary":
                    raise RefusedError(
                        "summary",
                        f"{_named(metric.name)} is a summary, whose quantiles cannot be combined; send a histogram",
                    )
        except RefusedError as error:
            self._taken.refuse(error.code, str(error), len(points))

    def close(self) -> None:
        """Hand over what is open."""
        for columns in list(self._open.values()):
            self._finish(columns)

    def _numbers(self, metric: Metric, kind: str, temporality: str, points: Iterable[Any]) -> None:
        series = _SeriesOfMetric(metric, kind, temporality)
        first, last = self._window.first, self._window.last
        for point in points:
            at = point.time_unix_nano // 1000
            if not first <= at <= last:
                self._taken.refuse("time", self._window.words)
                continue
            if point.flags & _NO_VALUE:
                continue
            # A field of a oneof that is not the one in use reads as zero.
            value = point.as_double or float(point.as_int)
            if not value and point.WhichOneof("value") is None:
                self._taken.refuse("value", f"{series.words}: a point has no value")
                continue
            try:
                columns, place = self._place(series, point.attributes)
            except RefusedError as error:
                self._taken.refuse(error.code, f"{series.words}: {error}")
                continue
            columns.add(place, _start(point, at) if series.counts else at, at, value)

    def _spreads(
        self, metric: Metric, temporality: str, points: Iterable[Any], spread_of: Callable[[Any], Distribution]
    ) -> None:
        series = _SeriesOfMetric(metric, "histogram", temporality)
        for point in points:
            at = point.time_unix_nano // 1000
            if not self._window.first <= at <= self._window.last:
                self._taken.refuse("time", self._window.words)
                continue
            if point.flags & _NO_VALUE:
                continue
            try:
                spread = spread_of(point)
                columns, place = self._place(series, point.attributes)
            except RefusedError as error:
                self._taken.refuse(error.code, f"{series.words}: {error}")
                continue
            columns.distributions.append(msgspec.structs.replace(spread, point=len(columns.point_at)))
            columns.size += _BUCKET_BYTES * (len(spread.counts) + 2)
            columns.add(place, _start(point, at), at, point.sum if point.HasField("sum") else math.nan)

    def _place(self, series: "_SeriesOfMetric", attributes: Any) -> tuple[_Columns, int]:
        """The open record that a point goes into, and the place of its series there."""
        key = tuple([(pair.key, pair.value.string_value or pair.value.SerializeToString()) for pair in attributes])
        place = series.places.get(key)
        if place is None or place[0].full:
            known = self._reader.series(series, key, attributes, self._sender.worker_id)
            episode = episode_of(known.episode, self._sender.episode) if known.episode else self._sender.episode
            columns = self._open.get(episode)
            if columns is None or columns.full:
                if columns is not None:
                    self._finish(columns)
                columns = self._open[episode] = _Columns(episode, text_bytes(self._sender.resource))
            place = series.places[key] = columns, len(columns.series)
            columns.series.append(known.series)
            columns.size += known.size
        return place

    def _finish(self, columns: _Columns) -> None:
        self._open.pop(columns.episode, None)
        columns.full = True
        if columns.point_at:
            self._taken.records.append(self._reader.record(self._sender, self._scope, self._now, columns))
            self._taken.accepted += len(columns.point_at)


def _named(metric: str) -> str:
    return f"metric {metric[:60]!r}"


def _temporality(metric: Metric, data: Any) -> str:
    found = _TEMPORALITY.get(data.aggregation_temporality)
    if found is None:
        raise RefusedError("temporality", f"{_named(metric.name)} does not say whether it is delta or cumulative")
    return found


def _start(point: Any, at: int) -> int:
    """Since when a point counts; where that is unknown or nonsense, its own time."""
    start: int = point.start_time_unix_nano // 1000
    return start if EARLIEST_US <= start <= at else at


def _count(scopes: Iterable[ScopeMetrics]) -> int:
    """How many points there are."""
    return sum(len(points) for scope in scopes for points in _points(scope.metrics))


def _points(metrics: Iterable[Metric]) -> Iterator[Any]:
    for metric in metrics:
        data = metric.WhichOneof("data")
        if data:
            yield getattr(metric, data).data_points
