"""What OTLP's metrics and spans become, without a network."""

import itertools
import math
import tracemalloc
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.metrics.v1.metrics_pb2 import ExponentialHistogramDataPoint, HistogramDataPoint

from stepwell.adapters.otlp import metrics as metrics_module
from stepwell.adapters.otlp import senders, series_count
from stepwell.adapters.otlp.distributions import exponential_of
from stepwell.adapters.otlp.metrics import MetricsReader
from stepwell.adapters.otlp.senders import RefusedError, Senders, attributes_of
from stepwell.adapters.otlp.series_count import SeriesCount
from stepwell.adapters.otlp.spans import SpansReader
from stepwell.adapters.otlp.taken import RECORD_BYTES, TEXT_BYTES, Taken
from stepwell.engine.publish import outgoing
from stepwell.events.codec import Codec
from stepwell.events.guards import PAST_WINDOW_US, check_sample_times
from stepwell.events.model import SpansEnded, TelemetrySampled

NOW_US = 1_795_000_000_000_000
NOW_NS = NOW_US * 1000
CODEC = Codec()


def pairs(**values: Any) -> list[KeyValue]:
    out = []
    for name, value in values.items():
        kind = {str: "string_value", bool: "bool_value", int: "int_value", float: "double_value"}[type(value)]
        out.append(KeyValue(key=name.replace("__", "."), value=AnyValue(**{kind: value})))
    return out


def request(**resource: Any) -> tuple[ExportMetricsServiceRequest, Any]:
    """A request of one resource, and its metrics."""
    made = ExportMetricsServiceRequest()
    part = made.resource_metrics.add()
    part.resource.attributes.extend(pairs(**(resource or {"worker__id": "robot-1", "host__name": "lab-3"})))
    scope = part.scope_metrics.add()
    scope.scope.name, scope.scope.version = "driver", "1.2"
    return made, scope.metrics


def read(made: ExportMetricsServiceRequest) -> Taken:
    count = itertools.count()
    taken = MetricsReader(Senders(), lambda: NOW_US, lambda: next(count)).read(made)
    for record in taken.records:  # every log takes them, and so does the projector
        outgoing(CODEC, record)
        check_sample_times(record, NOW_US)
    return taken


def only(taken: Taken) -> TelemetrySampled:
    (record,) = taken.records
    assert isinstance(record, TelemetrySampled)
    return record


def gauge(metrics: Any, value: float, at_ns: int = NOW_NS, name: str = "torque", **attributes: Any) -> Any:
    metric = metrics.add(name=name, unit="N.m")
    point = metric.gauge.data_points.add(time_unix_nano=at_ns, as_double=value)
    point.attributes.extend(pairs(**attributes))
    return point


def test_a_resource_says_who_sends_and_for_which_episode() -> None:
    made, metrics = request(
        worker__id="robot-1", host__name="lab-3", stepwell__episode_id="e-1", stepwell__attempt=2, robot__model="ur5"
    )
    gauge(metrics, 1.5, joint="elbow")
    record = only(read(made))
    assert (record.worker_id, record.host, record.episode_id, record.attempt) == ("robot-1", "lab-3", "e-1", 2)
    assert [(each.name, each.value) for each in record.resource] == [("robot.model", "ur5")]
    assert record.scope == "driver 1.2"
    (series,) = record.series
    assert (series.metric, series.unit, series.kind, series.temporality) == ("torque", "N.m", "gauge", "none")
    assert [(each.name, each.value) for each in series.attributes] == [("joint", "elbow")]
    assert (record.point_at, record.point_start_at, record.point_value) == ((NOW_US,), (NOW_US,), (1.5,))


@pytest.mark.parametrize(
    ("resource", "worker"),
    [
        ({"service__name": "s"}, "s"),
        ({"service__name": "s", "service__instance__id": "i"}, "i"),
        ({"service__name": "s", "service__instance__id": "i", "worker__id": "w"}, "w"),
        # Made up by the SDK with each start.
        ({"service__name": "s", "service__instance__id": "8f14e45f-ceea-467f-a0e6-9e1a5a3c3b4d"}, "s"),
        ({"service__instance__id": "8f14e45f-ceea-467f-a0e6-9e1a5a3c3b4d"}, "8f14e45f-ceea-467f-a0e6-9e1a5a3c3b4d"),
        ({"worker__id": "8F14E45FCEEA467FA0E69E1A5A3C3B4D"}, "8F14E45FCEEA467FA0E69E1A5A3C3B4D"),
        (
            {"worker__id": "8f14e45f-ceea-467f-a0e6-9e1a5a3c3b4d", "service__name": "s"},
            "8f14e45f-ceea-467f-a0e6-9e1a5a3c3b4d",
        ),
    ],
)
def test_the_first_name_counts(resource: dict[str, str], worker: str) -> None:
    made, metrics = request(**resource)
    gauge(metrics, 1.0)
    record = only(read(made))
    assert (record.worker_id, record.host) == (worker, "unknown")


@pytest.mark.parametrize(
    ("resource", "words"),
    [
        ({"robot": "x"}, "who sends"),
        ({"worker__id": "a\nb"}, "printable"),
        ({"worker__id": "w" * 201}, "printable"),
        ({"worker__id": "w", "stepwell__episode_id": ""}, "stepwell.episode_id"),
        ({"worker__id": "w", "stepwell__attempt": 1}, "without stepwell.episode_id"),
        ({"worker__id": "w", "stepwell__episode_id": "e", "stepwell__attempt": 0}, "a number from 1"),
        ({"worker__id": "w", "stepwell__episode_id": "e", "stepwell__attempt": "x"}, "a number from 1"),
        ({"worker__id": "w", "blob": "x" * TEXT_BYTES}, "bytes of attributes"),
    ],
)
def test_a_resource_that_says_nonsense_is_refused_with_all_its_points(resource: dict[str, Any], words: str) -> None:
    made, metrics = request(**resource)
    gauge(metrics, 1.0)
    gauge(metrics, 2.0)
    taken = read(made)
    assert (taken.records, taken.accepted, taken.refused) == ([], 0, 2)
    assert words in taken.message
    assert taken.message.startswith("2 refused")


def test_points_may_name_an_episode_of_their_own() -> None:
    """One long-lived policy server works for one episode after another."""
    made, metrics = request()
    gauge(metrics, 1.0, stepwell__episode_id="e-1", stepwell__attempt=1, joint="a")
    gauge(metrics, 2.0, stepwell__episode_id="e-2", stepwell__attempt=1, joint="a")
    gauge(metrics, 3.0, joint="a")
    gauge(metrics, 4.0, stepwell__attempt="x")
    taken = read(made)
    assert {(r.episode_id, r.point_value) for r in taken.records if isinstance(r, TelemetrySampled)} == {
        ("e-1", (1.0,)), ("e-2", (2.0,)), (None, (3.0,)),
    }  # fmt: skip
    assert len({record.series for record in taken.records if isinstance(record, TelemetrySampled)}) == 1
    assert taken.refused == 1


def test_kinds_temporalities_and_starts() -> None:
    made, metrics = request()
    start = NOW_NS - 5_000_000_000
    for monotonic, temporality in ((True, 2), (True, 1), (False, 2)):
        metric = metrics.add(name="n", unit="1")
        metric.sum.is_monotonic, metric.sum.aggregation_temporality = monotonic, temporality
        metric.sum.data_points.add(start_time_unix_nano=start, time_unix_nano=NOW_NS, as_int=2**53)
    never = metrics.add(name="n", unit="1")
    never.sum.aggregation_temporality = 2
    never.sum.data_points.add(start_time_unix_nano=NOW_NS + 1_000_000, time_unix_nano=NOW_NS, as_int=0)
    record = only(read(made))
    assert [(each.kind, each.temporality) for each in record.series] == [
        ("counter", "cumulative"), ("counter", "delta"), ("up_down_counter", "cumulative"),
        ("up_down_counter", "cumulative"),
    ]  # fmt: skip
    assert record.point_start_at == (start // 1000,) * 3 + (NOW_US,)
    assert record.point_value == (2.0**53,) * 3 + (0.0,)


def test_nan_and_infinity_are_values() -> None:
    made, metrics = request()
    gauge(metrics, math.nan)
    gauge(metrics, -math.inf)
    values = only(read(made)).point_value
    assert math.isnan(values[0])
    assert values[1] == -math.inf


def test_what_a_point_lacks_is_told() -> None:
    made, metrics = request()
    metric = metrics.add(name="a")
    metric.gauge.data_points.add(time_unix_nano=NOW_NS)  # no value
    metric.gauge.data_points.add(time_unix_nano=NOW_NS, flags=1)  # the series has ended: nothing to keep
    gauge(metrics, 1.0, at_ns=0)
    gauge(metrics, 1.0, at_ns=(NOW_US - PAST_WINDOW_US) * 1000)
    gauge(metrics, 1.0, at_ns=(NOW_US + 600_000_000) * 1000)
    metrics.add(name="").gauge.data_points.add(time_unix_nano=NOW_NS, as_double=1.0)
    metrics.add(name="unspecified").sum.data_points.add(time_unix_nano=NOW_NS, as_double=1.0)
    metrics.add(name="old").summary.data_points.add(time_unix_nano=NOW_NS)
    gauge(metrics, 7.0, note="x" * TEXT_BYTES)
    gauge(metrics, 8.0)
    taken = read(made)
    assert only(taken).point_value == (8.0,)
    assert (taken.accepted, taken.refused) == (1, 8)
    for words in ("has no value", "3 refused: its time", "has no name", "delta or cumulative", "send a histogram"):
        assert words in taken.message


def test_histograms_keep_count_sum_and_buckets() -> None:
    made, metrics = request()
    metric = metrics.add(name="latency", unit="s")
    metric.histogram.aggregation_temporality = 1
    whole = HistogramDataPoint(
        start_time_unix_nano=NOW_NS - 1_000_000_000, time_unix_nano=NOW_NS, count=3, sum=0.6, min=0.1, max=0.3,
        explicit_bounds=[0.1, 0.2], bucket_counts=[1, 1, 1],
    )  # fmt: skip
    bare = HistogramDataPoint(time_unix_nano=NOW_NS, count=2)
    wrong = HistogramDataPoint(time_unix_nano=NOW_NS, count=2, explicit_bounds=[1.0], bucket_counts=[2])
    falling = HistogramDataPoint(time_unix_nano=NOW_NS, count=2, explicit_bounds=[2.0, 1.0], bucket_counts=[2, 0, 0])
    metric.histogram.data_points.extend([whole, wrong, falling, bare])
    taken = read(made)
    record = only(taken)
    assert (record.series[0].kind, len(record.series)) == ("histogram", 1)
    first, second = record.distributions
    assert (first.point, first.count, first.min, first.max) == (0, 3, 0.1, 0.3)
    assert (first.bounds, first.counts) == ((0.1, 0.2), (1, 1, 1))
    assert (second.point, second.count, second.min, second.bounds, second.counts) == (1, 2, None, (), ())
    assert record.point_value[0] == 0.6
    assert math.isnan(record.point_value[1])
    assert taken.refused == 2


def test_exponential_histograms_become_explicit_ones() -> None:
    """Scale 0: bucket i reaches from 2**i to 2**(i + 1)."""
    point = ExponentialHistogramDataPoint(count=10, scale=0, zero_count=1, zero_threshold=0.5)
    point.positive.offset = 1
    point.positive.bucket_counts.extend([2, 3])
    point.negative.offset = 0
    point.negative.bucket_counts.extend([4])
    found = exponential_of(point)
    assert found.bounds == (-2.0, -1.0, -0.5, 0.5, 2.0, 4.0, 8.0)
    assert found.counts == (0, 4, 0, 1, 0, 2, 3, 0)


@pytest.mark.parametrize("scale", [-3, 0, 3, 20])
def test_buckets_of_every_scale_hold_what_was_counted_there(scale: int) -> None:
    base = 2 ** (2**-scale)
    value = 1.5
    index = math.ceil(math.log(value, base)) - 1
    point = ExponentialHistogramDataPoint(count=1, scale=scale)
    point.positive.offset = index
    point.positive.bucket_counts.append(1)
    found = exponential_of(point)
    (place,) = [number for number, count in enumerate(found.counts) if count]
    assert found.bounds[place - 1] < value <= found.bounds[place]
    assert sum(found.counts) == 1


def test_a_bucket_beyond_a_double_is_refused() -> None:
    point = ExponentialHistogramDataPoint(count=1, scale=-10)
    point.positive.offset = 5
    point.positive.bucket_counts.append(1)
    with pytest.raises(RefusedError, match="exceeds a double"):
        exponential_of(point)


def test_large_requests_become_records_that_every_log_takes() -> None:
    made, metrics = request()
    metric = metrics.add(name="wide", unit="1")
    count = 40_000
    for number in range(count):
        point = metric.gauge.data_points.add(time_unix_nano=NOW_NS + number * 1000, as_double=float(number))
        point.attributes.extend(pairs(series=f"{number % 3_000}" * 10))
    taken = read(made)
    assert taken.accepted == count
    assert len(taken.records) >= count * 32 // RECORD_BYTES
    values = [value for r in taken.records if isinstance(r, TelemetrySampled) for value in r.point_value]
    assert values == [float(number) for number in range(count)]


def test_attributes_of_every_type_are_text() -> None:
    nested = AnyValue(kvlist_value=KeyValueList(values=pairs(a=1)))
    values = [
        *pairs(s="x", b=True, i=7, d=0.5),
        KeyValue(key="l", value=AnyValue(array_value=ArrayValue(values=[nested]))),
    ]
    values += [KeyValue(key="raw", value=AnyValue(bytes_value=b"\x00")), KeyValue(key="none"), *pairs(n=math.nan)]
    assert {each.name: each.value for each in attributes_of(values)} == {
        "s": "x", "b": "true", "i": "7", "d": "0.5", "l": '[{"a":1}]', "raw": "AA==", "none": "", "n": "nan",
    }  # fmt: skip


def test_an_attribute_without_bottom_is_refused() -> None:
    value = AnyValue(string_value="x")
    for _ in range(40):
        value = AnyValue(array_value=ArrayValue(values=[value]))
    made, metrics = request()
    gauge(metrics, 1.0).attributes.append(KeyValue(key="deep", value=value))
    taken = read(made)
    assert (taken.accepted, taken.refused) == (0, 1)
    assert "levels deep" in taken.message


# --- spans --------------------------------------------------------------------------------------------------------


def traces() -> tuple[ExportTraceServiceRequest, Any]:
    made = ExportTraceServiceRequest()
    part = made.resource_spans.add()
    part.resource.attributes.extend(pairs(worker__id="agent-1", stepwell__episode_id="e-1", stepwell__attempt=1))
    return made, part.scope_spans.add().spans


def span(spans: Any, **more: Any) -> Any:
    fields = {
        "trace_id": bytes(range(1, 17)), "span_id": bytes(range(1, 9)), "name": "infer",
        "start_time_unix_nano": NOW_NS - 1_000_000, "end_time_unix_nano": NOW_NS,
    }  # fmt: skip
    return spans.add(**{**fields, **more})


def read_spans(made: ExportTraceServiceRequest) -> Taken:
    count = itertools.count()
    taken = SpansReader(Senders(), lambda: NOW_US, lambda: next(count)).read(made)
    for record in taken.records:
        outgoing(CODEC, record)
    return taken


def test_spans_keep_status_events_and_links() -> None:
    made, spans = traces()
    one = span(spans, kind=3, parent_span_id=bytes(range(2, 10)))
    one.status.code, one.status.message = 2, "out of memory"
    one.attributes.extend(pairs(batch=4))
    one.events.add(name="exception", time_unix_nano=NOW_NS).attributes.extend(pairs(type="Oom"))
    one.links.add(trace_id=bytes(range(1, 17)), span_id=bytes(range(3, 11)))
    (record,) = read_spans(made).records
    assert isinstance(record, SpansEnded)
    assert (record.worker_id, record.episode_id, record.attempt) == ("agent-1", "e-1", 1)
    (found,) = record.spans
    assert (found.kind, found.status, found.status_message) == ("client", "error", "out of memory")
    assert (found.parent_span_id, found.end_at - found.start_at) == ("0203040506070809", 1_000)
    assert (found.events[0].name, found.links[0].span_id) == ("exception", "030405060708090a")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"trace_id": b"short"}, "trace_id"),
        ({"span_id": bytes(8)}, "not all zero"),
        ({"parent_span_id": b"x"}, "parent_span_id"),
        ({"end_time_unix_nano": 0}, "outside the window"),
        ({"start_time_unix_nano": 0}, "begins"),
        ({"start_time_unix_nano": NOW_NS + 1_000_000}, "begins"),
        ({"name": "x" * TEXT_BYTES}, "bytes of text"),
    ],
)
def test_spans_that_cannot_be_kept_are_told(fields: dict[str, Any], words: str) -> None:
    made, spans = traces()
    span(spans, **fields)
    span(spans)
    taken = read_spans(made)
    assert (taken.accepted, taken.refused) == (1, 1)
    assert words in taken.message


def test_many_spans_become_several_records() -> None:
    made, spans = traces()
    for number in range(1, 60):
        span(spans, span_id=number.to_bytes(8, "big"), name="x" * 30_000)
    taken = read_spans(made)
    assert taken.accepted == 59
    assert len(taken.records) >= 3


# --- what is remembered has bounds ---


@pytest.mark.parametrize(("attributes", "characters", "requests"), [(1, 10, 500), (1, 25_000, 15), (60, 10, 30)])
def test_series_that_never_come_again_are_not_remembered_without_end(
    monkeypatch: pytest.MonkeyPatch, attributes: int, characters: int, requests: int
) -> None:
    """Whether they are many, or have much text, or many attributes."""
    bound = 1_000_000
    monkeypatch.setattr(metrics_module, "_REMEMBERED_BYTES", bound)
    monkeypatch.setattr(senders, "_REMEMBERED_BYTES", bound)
    count = itertools.count()
    reader = MetricsReader(Senders(), lambda: NOW_US, lambda: next(count))
    tracemalloc.start()
    try:
        for number in range(requests):
            made, metrics = request(worker__id=f"w-{number % 7}", run=f"{number}-{'x' * 2 * characters}")
            for each in range(10):
                text = f"{number}-{each}-{'x' * characters}"
                gauge(metrics, 1.0, **{f"a{name}": f"{name}-{text}" for name in range(attributes)})
            assert reader.read(made).refused == 0
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 3 * bound


def test_a_sender_may_have_so_many_series_and_others_do_not_suffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series_count, "SERIES_MAX", 5)
    count = itertools.count()
    reader = MetricsReader(Senders(), lambda: NOW_US, lambda: next(count))
    made, metrics = request(worker__id="careless")
    for number in range(8):
        gauge(metrics, 1.0, request=f"r-{number}")
    taken = reader.read(made)
    assert (taken.accepted, taken.codes) == (5, {"series": 3})
    assert "attributes that keep changing" in taken.message
    made, metrics = request(worker__id="careful")
    for number in range(5):
        for _ in range(2):
            gauge(metrics, 1.0, joint=f"j-{number}")
    assert [reader.read(made).accepted for _ in range(3)] == [10, 10, 10], "what it has is not new"


def test_series_are_counted_anew_each_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series_count, "SERIES_MAX", 2)
    now = 0.0
    series = SeriesCount(lambda: now)
    assert [series.admits("w", mark) for mark in (1, 2, 3, 1)] == [True, True, False, True]
    now = 3_600.0
    assert [series.admits("w", mark) for mark in (3, 4, 1)] == [True, True, False]
    monkeypatch.setattr(series_count, "_ALL_SENDERS_MAX", 3)
    assert [series.admits(f"other-{mark}", mark) for mark in (1, 2)] == [True, True]
    assert series.admits("w", 1), "all of them together had too many"
