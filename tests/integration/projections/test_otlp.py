"""From OpenTelemetry's own exporters through a real receiver, the log and the projector into the tables."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetrics
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpMetrics
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, MetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
from opentelemetry.trace import Status, StatusCode

from stepwell.adapters.logs import open_log
from stepwell.engine.ports import MessageLog

Query = Callable[..., list[tuple[object, ...]]]
METRICS = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
ROOT = Path(__file__).parents[3]


class Receiver(NamedTuple):
    """A running ``stepwell otlp``."""

    process: subprocess.Popen[bytes]
    grpc: str
    http: str
    health: str


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture
def log(tmp_path: Path) -> Iterator[MessageLog]:
    opened = open_log(f"local:{tmp_path / 'log'}")
    yield opened
    opened.close()


@pytest.fixture
def receiver(tmp_path: Path, log: MessageLog) -> Iterator[Receiver]:
    for_grpc, for_http, health = (f"127.0.0.1:{free_port()}" for _ in range(3))
    environment = {**os.environ, "STEPWELL_HOME": str(tmp_path), "STEPWELL_LOG": f"local:{tmp_path / 'log'}"}
    command = [sys.executable, "-m", "stepwell", "otlp", "--grpc", for_grpc, "--http", for_http, "--listen", health]
    with subprocess.Popen([*command, "--no-telemetry"], env=environment, cwd=tmp_path) as process:
        deadline = time.monotonic() + 60
        while not all(answers(address) for address in (for_grpc, for_http, health)):
            assert process.poll() is None, "the receiver ended by itself"
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield Receiver(process, for_grpc, for_http, health)
        if process.poll() is None:
            process.terminate()
            assert process.wait(30) == 0


def answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


def exporters(receiver: Receiver, transport: str) -> tuple[MetricExporter, SpanExporter]:
    delta = {Histogram: AggregationTemporality.DELTA}
    if transport == "grpc":
        where = f"http://{receiver.grpc}"
        return GrpcMetrics(where, insecure=True, preferred_temporality=delta), GrpcSpans(where, insecure=True)
    where = f"http://{receiver.http}/v1"
    return HttpMetrics(f"{where}/metrics", preferred_temporality=delta), HttpSpans(f"{where}/traces")


def export(receiver: Receiver, transport: str) -> None:
    """One of each instrument, and a failed span with its exception."""
    resource = Resource({
        "service.name": "policy-server", "worker.id": "agent-1", "host.name": "lab-3", "gpu": 0,
        "stepwell.episode_id": "e-1", "stepwell.attempt": 1,
    })  # fmt: skip
    metrics, spans = exporters(receiver, transport)
    reader = PeriodicExportingMetricReader(metrics, export_interval_millis=3_600_000)
    view = View(instrument_name="exponential", aggregation=ExponentialBucketHistogramAggregation())
    meters = MeterProvider([reader], resource, views=[view])
    meter = meters.get_meter("agent", "2.1")
    meter.create_counter("requests", "{request}").add(3, {"kind": "act"})
    meter.create_up_down_counter("open", "{request}").add(-2)
    meter.create_gauge("memory", "By").set(1.5e9)
    for name in ("explicit", "exponential"):
        histogram = meter.create_histogram(name, "s")
        for seconds in (0.01, 0.2, 0.3):
            histogram.record(seconds)
    tracers = TracerProvider(resource=resource)
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    with tracers.get_tracer("agent").start_as_current_span("infer", attributes={"batch": 4}) as span:
        span.record_exception(ValueError("no action"))
        span.set_status(Status(StatusCode.ERROR, "no action"))
    tracers.shutdown()
    meters.shutdown()


@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_every_instrument_reaches_its_rows(
    receiver: Receiver, drain: Callable[..., None], query: Query, transport: str
) -> None:
    export(receiver, transport)
    drain()
    rows = query(
        "SELECT metric, unit, kind, temporality, attributes, round(value::numeric, 6)::float,"
        " round(mean::numeric, 6)::float, worker_id, host, episode_id, attempt, resource, scope"
        " FROM stepwell.telemetry ORDER BY metric"
    )
    sender = ("agent-1", "lab-3", "e-1", 1, {"service.name": "policy-server", "gpu": "0"}, "agent 2.1")
    assert rows == [
        ("explicit", "s", "histogram", "delta", {}, 0.51, 0.17, *sender),
        ("exponential", "s", "histogram", "delta", {}, 0.51, 0.17, *sender),
        ("memory", "By", "gauge", "none", {}, 1.5e9, 1.5e9, *sender),
        ("open", "{request}", "up_down_counter", "cumulative", {}, -2.0, -2.0, *sender),
        ("requests", "{request}", "counter", "cumulative", {"kind": "act"}, 3.0, 3.0, *sender),
    ]
    buckets = query(
        "SELECT (distribution->>'count')::int,"
        " (SELECT sum(c::int) FROM jsonb_array_elements_text(distribution->'counts') c),"
        " (distribution->>'min')::float, (distribution->>'max')::float"
        " FROM stepwell.telemetry WHERE kind = 'histogram'"
    )
    assert buckets == [(3, 3, 0.01, 0.3)] * 2
    assert query(
        "SELECT name, status, status_message, attributes, events->0->>'name',"
        " events->0->'attributes'->>'exception.type', ended_at >= started_at, worker_id, episode_id FROM stepwell.spans"
    ) == [("infer", "error", "no action", {"batch": "4"}, "exception", "ValueError", True, "agent-1", "e-1")]
    assert query("SELECT count(*) FROM stepwell.dead_letters") == [(0,)]


def torques(first: int, count: int) -> bytes:
    """A request of so many points, with the values from ``first``."""
    request = ExportMetricsServiceRequest()
    part = request.resource_metrics.add()
    part.resource.attributes.add(key="worker.id").value.string_value = "robot-1"
    metric = part.scope_metrics.add().metrics.add(name="torque", unit="N.m")
    for number in range(first, first + count):
        metric.gauge.data_points.add(time_unix_nano=time.time_ns() + number * 1_000, as_double=number)
    return request.SerializeToString()


def test_what_a_sender_sends_again_is_one_row(receiver: Receiver, drain: Callable[..., None], query: Query) -> None:
    """A sender that got no answer sends the same request again."""
    body = torques(0, 50)
    with grpc.insecure_channel(receiver.grpc) as channel:
        for _ in range(3):
            channel.unary_unary(METRICS)(body)
    drain()
    assert query("SELECT count(*), count(DISTINCT sampled_at), sum(value) FROM stepwell.telemetry") == [
        (50, 50, 1225.0)
    ]
    assert query("SELECT count(*) FROM stepwell.telemetry_series") == [(1,)]


def test_a_killed_receiver_loses_nothing_that_it_answered(
    receiver: Receiver, drain: Callable[..., None], query: Query
) -> None:
    answered: list[int] = []

    def send(worker: int) -> None:
        for first in range(worker * 1_000_000, (worker + 1) * 1_000_000, 10):
            try:
                call(torques(first, 10), timeout=30)
            except grpc.RpcError:
                return
            answered.extend(range(first, first + 10))

    with grpc.insecure_channel(receiver.grpc) as channel, ThreadPoolExecutor(4) as senders:
        call = channel.unary_unary(METRICS)
        sent = [senders.submit(send, worker) for worker in range(4)]
        while len(answered) < 400:
            time.sleep(0.002)
        receiver.process.kill()
        for each in sent:
            each.result(60)
    drain()
    assert set(answered) <= {value for (value,) in query("SELECT value::int FROM stepwell.telemetry")}


def test_the_robot_example_sends_torque_and_current(
    receiver: Receiver, drain: Callable[..., None], query: Query
) -> None:
    command = [sys.executable, ROOT / "examples" / "telemetry" / "robot.py"]
    environment = {
        **os.environ, "ROBOT_EPISODE_ID": "e-7", "ROBOT_ATTEMPT": "2",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{receiver.grpc}",
    }  # fmt: skip
    subprocess.run([*command, "--seconds", "1", "--rate", "10"], env=environment, check=True, timeout=60)
    drain()
    rows = query(
        "SELECT DISTINCT metric, unit, attributes->>'joint', worker_id, episode_id, attempt FROM stepwell.telemetry"
        " WHERE metric LIKE 'stepwell.robot.%' ORDER BY 1, 3"
    )
    assert rows == [
        (metric, unit, joint, "robot-1", "e-7", 2)
        for metric, unit in (("stepwell.robot.joint.torque", "N.m"), ("stepwell.robot.motor.current", "A"))
        for joint in ("elbow", "shoulder")
    ]
    assert query("SELECT count(*) >= 8, min(name) FROM stepwell.spans") == [(True, "control cycle")]


def test_it_tells_how_it_is(receiver: Receiver) -> None:
    """Ready, and counting what it took and what it refused, as any worker on its own address."""

    def page(path: str) -> str:
        with urllib.request.urlopen(f"http://{receiver.health}{path}", timeout=10) as answer:
            return str(answer.read().decode())

    old = ExportMetricsServiceRequest.FromString(torques(0, 3))
    old.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points[0].time_unix_nano = 1
    with grpc.insecure_channel(receiver.grpc) as channel:
        channel.unary_unary(METRICS)(old.SerializeToString())
    assert 'stepwell_otlp_points_total{signal="metrics"} 2.0' in page("/metrics")
    assert 'stepwell_otlp_rejected_total{reason="time"} 1.0' in page("/metrics")
    assert json.loads(page("/healthz"))["doing"] == "receiving requests"
    deadline = time.monotonic() + 20
    while not ready(receiver):
        assert time.monotonic() < deadline, "the receiver does not get ready"
        time.sleep(0.1)


def test_a_taken_port_is_told_as_of_every_command(receiver: Receiver, tmp_path: Path) -> None:
    environment = {**os.environ, "STEPWELL_HOME": str(tmp_path), "STEPWELL_LOG": f"local:{tmp_path / 'log'}"}
    command = [sys.executable, "-m", "stepwell", "otlp", "--grpc", receiver.grpc, "--http", "off", "--no-telemetry"]
    ended = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 2
    said = ended.stderr.splitlines()
    assert said[-1].startswith(f"stepwell: cannot listen on {receiver.grpc} for OTLP over gRPC")
    assert not [line for line in said if line[:1] in "EWI" and line[1:5].isdigit()], "gRPC speaks past our own messages"


def ready(receiver: Receiver) -> bool:
    try:
        with urllib.request.urlopen(f"http://{receiver.health}/readyz", timeout=10) as answer:
            return int(answer.status) == 200
    except urllib.error.HTTPError as error:
        error.close()
        return False
