"""Points a second through the OTLP receiver, and where the time goes.

    python -m benchmarks.otlp

Requests are serialised beforehand, in the wire format that OpenTelemetry's SDKs send, and sent side by side from this
process to a receiver in its own, over gRPC and HTTP, into the local log and into Kafka. Beside it, in this process:
only parsing the same bytes (the floor), making records of them, and encoding these. At the end every point is counted.
Then the projector takes the points that one of the runs left into PostgreSQL's tables.

Two shapes: ``batched`` has 20 points of each of 100 series (a driver that samples fast and sends once a second),
``wide`` one point of each of 2,000 series (what an SDK exports of a program with many instruments).
"""

import http.client
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from typing import Any

import grpc
import psutil
import psycopg
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from benchmarks.logs import new_log
from benchmarks.measure import figures
from benchmarks.projector import databases
from stepwell.adapters.logs import open_log
from stepwell.adapters.otlp.metrics import MetricsReader
from stepwell.adapters.otlp.senders import Senders
from stepwell.adapters.otlp.taken import Taken
from stepwell.engine.publish import outgoing
from stepwell.engine.reading import read_range
from stepwell.events.codec import Codec
from stepwell.events.topics import TELEMETRY
from stepwell.projections.writing.projector import Projector

POINTS = 2_000
SHAPES = {"batched": 100, "wide": 2_000}
"""Series in a request of `POINTS` points."""
SENDERS = 8
EXPORT = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"


def main() -> None:
    for name, run in otlp_runs(requests=250, turns=1):
        print(f"{name:<45} {run['per_s']:>12,.0f} points/s")


def otlp_runs(requests: int, turns: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every case in turn; ``requests`` of `POINTS` points each."""
    for _ in range(turns):
        for shape in SHAPES:
            bodies = [request(shape, number) for number in range(requests)]
            yield from ((f"otlp {shape}, {stage}", run) for stage, run in stages(bodies))
            for kind in ("local", "kafka"):
                for transport in ("grpc", "http"):
                    yield f"otlp {shape}, {transport} to {kind}", receive(kind, transport, bodies)
        yield "otlp batched, projector", _project([request("batched", number) for number in range(requests)])


def request(shape: str, number: int) -> bytes:
    """One request; every number has times of its own, so that no point is told twice."""
    made = ExportMetricsServiceRequest()
    part = made.resource_metrics.add()
    for name, value in (("worker.id", "robot-1"), ("host.name", "lab-3"), ("service.name", "driver")):
        part.resource.attributes.add(key=name).value.string_value = value
    scope = part.scope_metrics.add()
    scope.scope.name, scope.scope.version = "robot.driver", "1.2"
    series, metrics = SHAPES[shape], 10
    at = time.time_ns() - 600_000_000_000 + number * 1_000_000_000
    for metric_number in range(metrics):
        metric = scope.metrics.add(name=f"robot.sensor_{metric_number}.reading", unit="N.m")
        for point_number in range(POINTS // metrics):
            place = point_number % (series // metrics)
            offset_ns = point_number // (series // metrics) * 1_000_000 + metric_number
            point = metric.gauge.data_points.add(time_unix_nano=at + offset_ns * 1000, as_double=point_number * 0.37)
            for name, value in (("joint", f"joint-{place}"), ("arm", "left"), ("axis", "z")):
                point.attributes.add(key=name).value.string_value = value
    body: bytes = made.SerializeToString()
    return body


def stages(bodies: list[bytes]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What parsing, making records and encoding take by themselves, in one thread."""
    points = len(bodies) * POINTS
    parsed: list[ExportMetricsServiceRequest] = []
    made: list[Taken] = []
    sequence, codec = count(), Codec()
    reader = MetricsReader(Senders(), lambda: time.time_ns() // 1000, lambda: next(sequence))

    def timed(work: Callable[[], object]) -> dict[str, Any]:
        started, cpu = time.perf_counter(), time.process_time()
        work()
        return figures(points, time.perf_counter() - started, time.process_time() - cpu)

    yield "parse only", timed(lambda: parsed.extend(map(ExportMetricsServiceRequest.FromString, bodies)))
    yield "records", timed(lambda: made.extend(map(reader.read, parsed)))
    assert sum(each.accepted for each in made) == points, [each.message for each in made if each.message][:1]
    yield "encode", timed(lambda: [outgoing(codec, record) for each in made for record in each.records])


def receive(kind: str, transport: str, bodies: list[bytes]) -> dict[str, Any]:
    """All requests through a receiver; every point must be in the log. CPU seconds are the receiver's."""
    with new_log(kind) as url, _receiver(url) as (process, addresses):
        cpu = _cpu_s(process.pid)
        started = time.perf_counter()
        {"grpc": _send_grpc, "http": _send_http}[transport](addresses[transport], bodies)
        run = figures(len(bodies) * POINTS, time.perf_counter() - started, _cpu_s(process.pid) - cpu)
        assert _points_in(url) == run["count"]
    return run | {"requests": len(bodies), "request_bytes": len(bodies[0])}


@contextmanager
def _receiver(url: str) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, str]]]:
    addresses = {transport: f"127.0.0.1:{_free_port()}" for transport in ("grpc", "http")}
    options = [part for transport, address in addresses.items() for part in (f"--{transport}", address)]
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "STEPWELL_HOME": home, "STEPWELL_LOG": url, "STEPWELL_LOG_LEVEL": "warning"}
        command = [sys.executable, "-m", "stepwell", "otlp", "--no-telemetry", *options]
        with subprocess.Popen(command, env=environment) as process:
            try:
                _wait_for(addresses.values())
                yield process, addresses
            finally:
                process.terminate()


def _send_grpc(address: str, bodies: list[bytes]) -> None:
    with grpc.insecure_channel(address) as channel, ThreadPoolExecutor(SENDERS) as senders:
        call = channel.unary_unary(EXPORT)
        for answer in senders.map(call, bodies):
            assert answer == b"", answer


def _send_http(address: str, bodies: list[bytes]) -> None:
    left, lock = iter(bodies), threading.Lock()

    def send() -> None:
        connection = http.client.HTTPConnection(address)
        while True:
            with lock:
                body = next(left, None)
            if body is None:
                break
            connection.request("POST", "/v1/metrics", body, {"content-type": "application/x-protobuf"})
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (200, b"")
        connection.close()

    with ThreadPoolExecutor(SENDERS) as senders:
        for each in [senders.submit(send) for _ in range(SENDERS)]:
            each.result()


def _project(bodies: list[bytes]) -> dict[str, Any]:
    """The projector over what the receiver put there, into indexed tables of PostgreSQL."""
    points = len(bodies) * POINTS
    with new_log("local") as url, databases(timescale=False) as urls:
        with _receiver(url) as (_, addresses):
            _send_grpc(addresses["grpc"], bodies)
        log = open_log(url)
        projector = Projector(log, urls["projector"], Codec(), topics=(TELEMETRY,))
        stop = threading.Event()
        thread = threading.Thread(target=projector.run, args=(stop,))
        started, cpu = time.perf_counter(), time.process_time()
        thread.start()
        with psycopg.connect(urls["projector"], autocommit=True) as connection:
            while connection.execute("SELECT count(*) FROM stepwell.telemetry_points").fetchone() != (points,):
                assert thread.is_alive()
                time.sleep(0.05)
        run = figures(points, time.perf_counter() - started, time.process_time() - cpu)
        stop.set()
        thread.join()
        log.close()
    return run


def _points_in(url: str) -> int:
    """How many points the log holds."""
    log, codec, points = open_log(url), Codec(), 0
    admin = log.admin()
    for source, marks in admin.watermarks(TELEMETRY).items():
        for batch in read_range(log, source, marks.low, marks.high):
            for value, headers in zip(batch.values, batch.headers, strict=True):
                points += len(getattr(codec.decode(value, headers), "point_at", ()))  # or a worker's report
    admin.close()
    log.close()
    return points


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _wait_for(addresses: Any) -> None:
    deadline = time.monotonic() + 60
    for address in addresses:
        host, _, port = address.rpartition(":")
        while True:
            try:
                socket.create_connection((host, int(port)), timeout=1).close()
                break
            except OSError:
                assert time.monotonic() < deadline, f"nobody listens on {address}"
                time.sleep(0.05)


if __name__ == "__main__":
    main()
