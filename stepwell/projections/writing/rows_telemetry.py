"""The rows of what was measured: series, points, spans.

A series is identified by what it says of itself, so that every projector gives it the same number without asking.
"""

import hashlib
import sys
from collections.abc import Sequence

from stepwell.engine.remembered import Remembered
from stepwell.events import model
from stepwell.projections.tables import Row, Values
from stepwell.projections.writing.jsonb import as_json, number

__all__ = ["points", "series_id_of", "spans"]

_SeriesKey = tuple[str, str, tuple[model.Attribute, ...], str, model.Series]
_known_series: Remembered[_SeriesKey, Values] = Remembered(64 * 1024 * 1024)
_COUNT_MAX = 2**40
"""Measurements in one point that are believed: sums of more would not fit 64 bits."""


def points(record: model.TelemetrySampled, timestamp: int, partition: int, offset: int) -> list[Row]:
    """Series and points of one record. ``timestamp``: the log's time of append (µs)."""
    sender = (record.worker_id, record.host, record.resource, record.scope)
    described = [_series(*sender, series) for series in record.series]
    ids = [values[0] for values in described]
    episode_id, attempt = record.episode_id or "", record.attempt or 0
    spreads = {spread.point: _distribution(spread) for spread in record.distributions}
    measured = [_measurements(series) for series in record.series]
    counts = {
        spread.point: spread.count
        for spread in record.distributions
        if 0 <= spread.count <= _COUNT_MAX
        and record.series[record.point_series[spread.point]].temporality != "cumulative"
    }
    place = (episode_id, attempt, timestamp, partition, offset)
    columns = zip(record.point_series, record.point_start_at, record.point_at, record.point_value, strict=True)
    rows = [Row("telemetry_series", values) for values in described]
    rows += [
        Row("telemetry_points", (
            at, start_at, ids[series], value, counts.get(index, measured[series]) if counts else measured[series],
            spreads.get(index) if spreads else None, *place,
        ))
        for index, (series, start_at, at, value) in enumerate(columns)
    ]  # fmt: skip
    return rows


def spans(record: model.SpansEnded, timestamp: int, partition: int, offset: int) -> list[Row]:
    """The spans of one record. ``timestamp``: the log's time of append (µs)."""
    resource = _object(record.resource)
    sender = (record.worker_id, record.host, resource, record.scope)
    place = (record.episode_id or "", record.attempt or 0, timestamp, partition, offset)
    return [
        Row("spans", (
            span.start_at, span.end_at, span.trace_id, span.span_id, span.parent_span_id, span.name, span.kind,
            span.status, span.status_message, *sender, _object(span.attributes),
            as_json([
                {"name": each.name, "at_us": each.event_at, "attributes": _plain(each.attributes)}
                for each in span.events
            ]),
            as_json([
                {"trace_id": each.trace_id, "span_id": each.span_id, "attributes": _plain(each.attributes)}
                for each in span.links
            ]),
            *place,
        ))
        for span in record.spans
    ]  # fmt: skip


def series_id_of(
    worker_id: str, host: str, resource: Sequence[model.Attribute], scope: str, series: model.Series
) -> int:
    """The number of a series: the first 8 bytes of SHA-256 over all that tells it from others, as a signed integer.

    Episode and attempt are no part of it: they belong to the points.
    """
    identity = as_json([
        worker_id, host, _plain(resource), scope, series.metric, series.unit, series.kind, series.temporality,
        _plain(series.attributes),
    ])  # fmt: skip
    return int.from_bytes(hashlib.sha256(identity.encode()).digest()[:8], "big", signed=True)


def _series(
    worker_id: str, host: str, resource: tuple[model.Attribute, ...], scope: str, series: model.Series
) -> Values:
    key = (worker_id, host, resource, scope, series)
    values = _known_series.get(key)
    if values is None:
        values = (
            series_id_of(*key), series.metric, series.unit, series.kind, series.temporality, worker_id, host,
            _object(resource), scope, _object(series.attributes),
        )  # fmt: skip
        # The text stands in the values and once more in the key.
        attributes = len(resource) + len(series.attributes)
        _known_series.add(key, values, 800 + 200 * attributes + 2 * sum(map(sys.getsizeof, values[1:])))
    return values


def _measurements(series: model.Series) -> int | None:
    """How many measurements a point's value sums, unless a distribution says so; None: values must not be added up."""
    if series.kind == "histogram" or (series.kind == "counter" and series.temporality == "cumulative"):
        return None
    return 1


def _distribution(spread: model.Distribution) -> str:
    return as_json({
        "count": spread.count,
        "min": None if spread.min is None else number(spread.min),
        "max": None if spread.max is None else number(spread.max),
        "bounds": list(map(number, spread.bounds)),
        "counts": list(spread.counts),
    })  # fmt: skip


def _plain(attributes: Sequence[model.Attribute]) -> dict[str, str]:
    """By name; of one name that comes twice the last."""
    texts = {each.name: each.value for each in attributes}
    return {name: texts[name] for name in sorted(texts)}


def _object(attributes: Sequence[model.Attribute]) -> str:
    return as_json(_plain(attributes))
