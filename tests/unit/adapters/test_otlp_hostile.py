"""Whatever bytes come in: a request is read, or refused as malformed; and what is read can be stored."""

import json
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from stepwell.adapters.logs.memory import MemoryLog
from stepwell.adapters.otlp.intake import Intake
from stepwell.adapters.otlp.taken import MalformedRequestError
from stepwell.events.codec import Codec
from stepwell.events.guards import check_sample_times
from stepwell.events.topics import TELEMETRY
from stepwell.projections.tables import KINDS
from stepwell.projections.writing.copy_format import encode_rows
from stepwell.projections.writing.rows import Source, rows_of

CODEC = Codec()
NOW_NS = time.time_ns()
doubles = st.floats()
counts = st.integers(0, 2**64 - 1)
times = st.sampled_from([NOW_NS, 0, 1, NOW_NS - 1, 2**64 - 1])
texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=5)


@pytest.fixture(scope="module")
def intake() -> Any:
    log = MemoryLog()
    made = Intake(log, CODEC)
    yield made
    made.close()
    log.close()


def holds(intake: Intake, signal: str, body: bytes, *, in_json: bool = False) -> None:
    try:
        taken, records = intake._read(signal, body, in_json)
    except MalformedRequestError:
        return
    assert taken.accepted == 0 or records
    for record in records:
        read = CODEC.decode(record.value, record.headers)
        check_sample_times(read, time.time_ns() // 1000)  # type: ignore[arg-type]
        for row in rows_of(read, Source(TELEMETRY, 0, 0, NOW_NS // 1000)):
            encode_rows(KINDS[row.kind].types, [row.values])


def attributes(draw: Any, to: Any) -> None:
    names = ["worker.id", "stepwell.episode_id", "stepwell.attempt", "a", ""]
    for name in draw(st.lists(st.sampled_from(names), max_size=4)):
        value = to.add(key=name).value
        kind = draw(st.sampled_from(["string_value", "int_value", "double_value", "bool_value", "bytes_value"]))
        drawn = {
            "string_value": texts, "int_value": st.integers(-(2**63), 2**63 - 1), "double_value": doubles,
            "bool_value": st.booleans(), "bytes_value": st.binary(max_size=4),
        }  # fmt: skip
        setattr(value, kind, draw(drawn[kind]))


@st.composite
def metric_requests(draw: st.DrawFn) -> ExportMetricsServiceRequest:
    request = ExportMetricsServiceRequest()
    part = request.resource_metrics.add()
    part.resource.attributes.add(key="worker.id").value.string_value = "w"
    attributes(draw, part.resource.attributes)
    scope = part.scope_metrics.add()
    scope.scope.name = draw(texts)
    for _ in range(draw(st.integers(1, 3))):
        metric = scope.metrics.add(name=draw(texts), unit=draw(texts))
        kind = draw(st.sampled_from(["gauge", "sum", "histogram", "exponential_histogram", "summary"]))
        data = getattr(metric, kind)
        data.SetInParent()
        if kind in ("sum", "histogram", "exponential_histogram"):
            data.aggregation_temporality = draw(st.integers(0, 3))
        point = data.data_points.add(time_unix_nano=draw(times), start_time_unix_nano=draw(times))
        attributes(draw, point.attributes)
        fill(draw, kind, point)
    return request


def fill(draw: Any, kind: str, point: Any) -> None:
    if kind in ("gauge", "sum"):
        point.as_double = draw(doubles)
        point.flags = draw(st.integers(0, 3))
        return
    point.count = draw(counts)
    if kind == "summary":
        return
    point.sum, point.min = draw(doubles), draw(doubles)
    if kind == "histogram":
        point.explicit_bounds.extend(draw(st.lists(doubles, max_size=4)))
        point.bucket_counts.extend(draw(st.lists(counts, max_size=5)))
        return
    point.scale = draw(st.integers(-(2**31), 2**31 - 1))
    point.zero_count, point.zero_threshold = draw(counts), draw(doubles)
    for side in (point.positive, point.negative):
        side.offset = draw(st.integers(-(2**31), 2**31 - 1))
        side.bucket_counts.extend(draw(st.lists(counts, max_size=4)))


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(request=metric_requests())
def test_any_metrics_that_are_taken_can_be_stored(intake: Intake, request: ExportMetricsServiceRequest) -> None:
    holds(intake, "metrics", request.SerializeToString())


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data(), request=metric_requests(), signal=st.sampled_from(["metrics", "traces"]))
def test_damaged_bytes_are_malformed_or_something_else_that_can_be_stored(
    intake: Intake, data: st.DataObject, request: ExportMetricsServiceRequest, signal: str
) -> None:
    body = bytearray(request.SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    holds(intake, signal, bytes(body))


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    ids=st.lists(st.binary(max_size=17), min_size=3, max_size=3),
    at=st.tuples(times, times, times),
    kind=st.integers(-1, 7),
    name=texts,
)
def test_any_spans_that_are_taken_can_be_stored(
    intake: Intake, ids: list[bytes], at: tuple[int, int, int], kind: int, name: str
) -> None:
    request = ExportTraceServiceRequest()
    part = request.resource_spans.add()
    part.resource.attributes.add(key="worker.id").value.string_value = "w"
    span = part.scope_spans.add().spans.add(
        trace_id=ids[0], span_id=ids[1], parent_span_id=ids[2], name=name, kind=kind,
        start_time_unix_nano=at[0], end_time_unix_nano=at[1],
    )  # fmt: skip
    span.events.add(name=name, time_unix_nano=at[2])
    holds(intake, "traces", request.SerializeToString())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | doubles | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["resourceMetrics", "scopeMetrics", "metrics", "gauge", "dataPoints", "name", "traceId", "x"]),
        inner, max_size=3,
    ),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(content=json_values)
def test_any_json_is_read_or_malformed(intake: Intake, content: Any) -> None:
    holds(intake, "metrics", json.dumps(content).encode(), in_json=True)
