"""What was measured, in OpenTelemetry's terms: metric points and spans. These records carry no event head.

A record of points holds one resource (who measured), its series (what was measured) and the points as columns of equal
length, so that a reader can take thousands of them at once.
"""

from typing import ClassVar

from stepwell.events.values import Value


class Attribute(Value, frozen=True, kw_only=True):
    """One attribute of a resource, a series, a span or one of its events. What is no text stands as its JSON."""

    name: str
    value: str


class TelemetryPoint(Value, frozen=True, kw_only=True):
    """One measured number as version 1 of `TelemetrySampled` had it. ``unit`` is a UCUM code."""

    metric: str
    unit: str
    value: float
    attributes: tuple[Attribute, ...]


class Series(Value, frozen=True, kw_only=True):
    """What is measured: points of one series differ in time and value only.

    Attributes:
        metric: its name, e.g. ``system.cpu.utilization`` (OpenTelemetry's semantic conventions where they have one).
        unit: a UCUM code as OpenTelemetry uses it (``1``, ``s``, ``By``, ``Cel``, ``W``).
        kind: ``gauge``, ``counter`` (only grows), ``up_down_counter`` or ``histogram``.
        temporality: ``none`` (gauges), ``delta`` (since the last point) or ``cumulative`` (since the start).
        attributes: what the number is about, e.g. which GPU.
    """

    metric: str
    unit: str
    kind: str = "gauge"
    temporality: str = "none"
    attributes: tuple[Attribute, ...] = ()


class Distribution(Value, frozen=True, kw_only=True):
    """How the values behind one histogram point are spread.

    Attributes:
        point: place of the point in the record's columns (count from 0).
        count: how many values.
        min, max: the smallest and the largest, in the series' unit; None where the sender does not say.
        bounds: upper bounds of the buckets but the last, growing, in the series' unit; each counts what is at most it.
        counts: how many values fell into each bucket: one more than bounds, or none at all.
    """

    point: int
    count: int
    min: float | None = None
    max: float | None = None
    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()


class TelemetrySampled(Value, frozen=True, kw_only=True):
    """Metric points of one resource (key: ``episode_id`` or ``worker_id``).

    A point has no id: series, start, time, episode and attempt identify it, so that the same point sent twice is one.

    Attributes:
        worker_id: who measured.
        host: the machine's name.
        episode_id, attempt: what the points belong to; None where they belong to no one episode.
        sampled_at: when the record was made, by whoever made it (µs since 1970 UTC).
        sample_seq: that one's own count of records, from 0.
        points: what version 1 said, kept as it was; empty since. The columns below say it, too.
        resource: what else the sender says of itself.
        scope: name and version of the instrumentation, e.g. ``robot.driver 1.2``; may be empty.
        series: what the points are of.
        point_series: for each point its place in ``series`` (count from 0).
        point_start_at: since when a counter or histogram counts (µs); the point's own time where it does not count.
        point_at: when it was measured (µs).
        point_value: the number, in the series' unit; of a histogram the sum.
        distributions: of the points of histograms.
    """

    TYPE: ClassVar[str] = "telemetry::sampled"

    worker_id: str
    host: str
    episode_id: str | None = None
    attempt: int | None = None
    sampled_at: int
    sample_seq: int
    points: tuple[TelemetryPoint, ...] = ()
    resource: tuple[Attribute, ...] = ()
    scope: str = ""
    series: tuple[Series, ...] = ()
    point_series: tuple[int, ...] = ()
    point_start_at: tuple[int, ...] = ()
    point_at: tuple[int, ...] = ()
    point_value: tuple[float, ...] = ()
    distributions: tuple[Distribution, ...] = ()


class SpanEvent(Value, frozen=True, kw_only=True):
    """Something that happened at one moment of a span, e.g. an exception."""

    name: str
    event_at: int
    attributes: tuple[Attribute, ...] = ()


class SpanLink(Value, frozen=True, kw_only=True):
    """Another span that a span has to do with, without being its child."""

    trace_id: str
    span_id: str
    attributes: tuple[Attribute, ...] = ()


class Span(Value, frozen=True, kw_only=True):
    """One operation with its beginning and end.

    Attributes:
        trace_id, span_id: W3C ids (32 and 16 lower-case hexadecimal digits).
        parent_span_id: None for the first of a trace.
        name: what was done.
        kind: ``internal``, ``server``, ``client``, ``producer`` or ``consumer``.
        start_at, end_at: when (µs since 1970 UTC).
        status: ``unset``, ``ok`` or ``error``.
        status_message: why, where it is an error.
    """

    trace_id: str
    span_id: str
    parent_span_id: str | None = None
    name: str
    kind: str
    start_at: int
    end_at: int
    status: str
    status_message: str
    attributes: tuple[Attribute, ...]
    events: tuple[SpanEvent, ...]
    links: tuple[SpanLink, ...]


class SpansEnded(Value, frozen=True, kw_only=True):
    """Spans of one resource that have ended (key: ``episode_id`` or ``worker_id``). Fields as in `TelemetrySampled`."""

    TYPE: ClassVar[str] = "telemetry::spans_ended"

    worker_id: str
    host: str
    episode_id: str | None = None
    attempt: int | None = None
    sampled_at: int
    sample_seq: int
    resource: tuple[Attribute, ...]
    scope: str
    spans: tuple[Span, ...]
