"""The receiver's two transports, over real sockets, into a log in memory."""

import gzip
import http.client
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from structlog.testing import capture_logs

from stepwell.adapters.logs.memory import MemoryLog
from stepwell.adapters.otlp import appender, http_server
from stepwell.adapters.otlp import intake as intake_module
from stepwell.adapters.otlp.intake import REFUSED, REFUSED_REQUESTS, Intake
from stepwell.adapters.otlp.receiver import Listening, Receiver
from stepwell.adapters.otlp.refusals import SAY_EVERY_S, Refusals
from stepwell.adapters.otlp.tokens import Token
from stepwell.engine.ports import MessageLog, OutgoingRecord
from stepwell.engine.reading import read_range
from stepwell.engine.vitals import LOG, Unwatched
from stepwell.events.codec import Codec
from stepwell.events.model import SpansEnded, TelemetrySampled
from stepwell.events.topics import TELEMETRY
from stepwell.exceptions import ConfigurationError, LogError, LogUnavailableError, StillQueuedError

CODEC = Codec()
METRICS = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
LOGS = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
PROTOBUF, JSON = "application/x-protobuf", "application/json"


class Waits(Unwatched):
    """Keeps what is waited for."""

    def __init__(self) -> None:
        self.waiting: set[str] = set()

    def waits(self, what: str, reason: str) -> None:
        self.waiting.add(what)

    def has(self, what: str) -> None:
        self.waiting.discard(what)


class Running:
    """A receiver in a thread, on free ports."""

    def __init__(self, log: MessageLog, token: Token | None = None, max_bytes: int = 200_000) -> None:
        self.counted: Counter[tuple[str, str]] = Counter()
        self.vitals = Waits()
        self.intake = Intake(log, CODEC, vitals=self.vitals, count=self._count)
        self.stop = threading.Event()
        self._up = threading.Event()
        self.where = Listening(None, None)
        receiver = Receiver(self.intake, grpc="127.0.0.1:0", http="127.0.0.1:0", token=token, max_bytes=max_bytes)
        self._thread = threading.Thread(target=receiver.run, args=(self.stop, self._listening))
        self._thread.start()
        assert self._up.wait(20)
        self.channel = grpc.insecure_channel(self.where.grpc)

    def _count(self, name: str, label: str, by: int) -> None:
        self.counted[name, label] += by

    def _listening(self, where: Listening) -> None:
        self.where = where
        self._up.set()

    def close(self) -> None:
        self.channel.close()
        self.stop.set()
        self._thread.join(20)
        assert not self._thread.is_alive()
        self.intake.close()

    def call(self, body: bytes, method: str = METRICS, **more: Any) -> bytes:
        return bytes(self.channel.unary_unary(method)(body, timeout=20, **more))

    def post(self, body: bytes, path: str = "/v1/metrics", **headers: str) -> tuple[int, Any, bytes]:
        given = {"content-type": PROTOBUF} | {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(f"http://{self.where.http}{path}", data=body, headers=given)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, error.read()


@pytest.fixture
def log() -> Iterator[MemoryLog]:
    memory = MemoryLog()
    yield memory
    memory.close()


@pytest.fixture
def started() -> Iterator[Callable[..., Running]]:
    running: list[Running] = []

    def start(*arguments: Any, **more: Any) -> Running:
        running.append(Running(*arguments, **more))
        return running[-1]

    yield start
    for each in running:
        each.close()


@pytest.fixture
def receiver(log: MemoryLog, started: Callable[..., Running]) -> Running:
    return started(log)


def request(points: int = 1, at_ns: int | None = None) -> bytes:
    made = ExportMetricsServiceRequest()
    part = made.resource_metrics.add()
    part.resource.attributes.add(key="worker.id").value.string_value = "robot-1"
    metric = part.scope_metrics.add().metrics.add(name="torque", unit="N.m")
    at_ns = time.time_ns() if at_ns is None else at_ns
    for number in range(points):
        metric.gauge.data_points.add(time_unix_nano=at_ns + number * 1000, as_double=float(number))
    return made.SerializeToString()


def records(log: MessageLog) -> list[Any]:
    found: list[Any] = []
    for source, marks in log.admin().watermarks(TELEMETRY).items():
        for batch in read_range(log, source, marks.low, marks.high):
            found += [CODEC.decode(value, headers) for value, headers in zip(batch.values, batch.headers, strict=True)]
    return found


def points(log: MessageLog) -> int:
    return sum(len(record.point_at) for record in records(log) if isinstance(record, TelemetrySampled))


def test_both_transports_put_points_on_the_log(receiver: Running, log: MemoryLog) -> None:
    assert receiver.call(request(3)) == b""
    assert receiver.call(request(3), compression=grpc.Compression.Gzip) == b""
    assert receiver.post(request(3))[::2] == (200, b"")
    assert receiver.post(gzip.compress(request(3)), content_encoding="gzip")[::2] == (200, b"")
    assert points(log) == 12
    assert receiver.counted == {("stepwell_otlp_points_total", "metrics"): 12}


def test_json_is_taken_and_answered(receiver: Running, log: MemoryLog) -> None:
    at = str(time.time_ns())
    resource = {"attributes": [{"key": "worker.id", "value": {"stringValue": "w"}}]}
    metric = {"name": "n", "unit": "1", "gauge": {"dataPoints": [{"timeUnixNano": at, "asInt": "7"}]}, "newer": 1}
    body = {"resourceMetrics": [{"resource": resource, "scopeMetrics": [{"metrics": [metric]}]}]}
    status, headers, answer = receiver.post(json.dumps(body).encode(), content_type=JSON)
    assert (status, headers["content-type"], json.loads(answer)) == (200, JSON, {})
    span = {
        "traceId": "5b8efff798038103d269b633813fc60c", "spanId": "eee19b7ec3c1b174", "parentSpanId": "",
        "name": "infer", "kind": 2, "startTimeUnixNano": at, "endTimeUnixNano": at,
        "links": [{"traceId": "5b8efff798038103d269b633813fc60c", "spanId": "eee19b7ec3c1b175"}],
    }  # fmt: skip
    traces = {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [span]}]}]}
    assert receiver.post(json.dumps(traces).encode(), "/v1/traces", content_type=JSON)[::2] == (200, b"{}")
    sampled, ended = sorted(records(log), key=lambda record: record.sample_seq)
    assert sampled.point_value == (7.0,)
    assert isinstance(ended, SpansEnded)
    assert (ended.spans[0].trace_id, ended.spans[0].kind) == (span["traceId"], "server")
    assert ended.spans[0].links[0].span_id == "eee19b7ec3c1b175"


def test_what_is_refused_is_said_and_counted(receiver: Running, log: MemoryLog) -> None:
    for answer in (receiver.call(request(2, at_ns=1)), receiver.post(request(2, at_ns=1))[2]):
        success = ExportMetricsServiceResponse.FromString(answer).partial_success
        assert success.rejected_data_points == 2
        assert "outside the window" in success.error_message
    spans = b"\n\x04\x12\x02\x12\x00"  # one span with nothing in it
    rejected = ExportTraceServiceResponse.FromString(receiver.post(spans, "/v1/traces")[2]).partial_success
    assert rejected.rejected_spans == 1
    assert records(log) == []
    assert receiver.counted["stepwell_otlp_rejected_total", "time"] == 4
    assert receiver.counted["stepwell_otlp_rejected_total", "resource"] == 1


def test_what_is_refused_stands_in_our_own_log_too(receiver: Running) -> None:
    """Few senders tell anybody. Points that were taken, and what is sent again, are not worth a line."""
    with capture_logs() as said:
        receiver.call(request(2, at_ns=1))
        receiver.post(request(3, at_ns=1))
        receiver.call(request(1))
        receiver.post(b"x", content_type="text/plain")
        receiver.post(b"\xff\xff")
    first, media, malformed = said
    assert "outside the window" in first.pop("why")
    assert first == {
        "event": "refused", "log_level": "warning", "what": "metrics", "reason": "time", "count": 2,
        "newest_from": "robot-1",
    }  # fmt: skip
    assert (media["what"], media["reason"], media["newest_from"]) == ("requests", "media_type", "127.0.0.1")
    assert "text/plain" in media["why"]
    assert (malformed["reason"], malformed["newest_from"]) == ("malformed", "127.0.0.1")


def test_refusals_are_one_line_a_minute_and_reason_and_none_is_lost() -> None:
    now = 0.0
    refusals = Refusals(lambda: now)
    with capture_logs() as said:
        for _ in range(100):
            refusals.add("metrics", "time", 3, "a", "old")
        refusals.add("metrics", "series", 1, "", "many")
        now = SAY_EVERY_S
        refusals.add("metrics", "time", 5, "b", "old")
        refusals.add("metrics", "time", 7, "c", "old")
        refusals.close()
        refusals.close()
    assert [(line["reason"], line["count"], line["newest_from"]) for line in said] == [
        ("time", 3, "a"), ("series", 1, "unknown"), ("time", 302, "b"), ("time", 7, "c"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "headers", "status", "words"),
    [  # each is counted, by a reason that goes with its status
        (b"\xff\xff", {}, 400, "ExportMetricsServiceRequest"),
        (b"no gzip", {"content_encoding": "gzip"}, 400, "no gzip"),
        (gzip.compress(b"x")[:-4], {"content_encoding": "gzip"}, 400, "too early"),
        (b"x", {"content_encoding": "br"}, 415, "not gzip"),
        (b"x", {"content_type": "text/plain"}, 415, "text/plain"),
        (bytes(200_001), {}, 413, "200000 bytes"),
        (gzip.compress(bytes(200_001)), {"content_encoding": "gzip"}, 413, "200000 bytes"),
        (b"[]", {"content_type": JSON}, 400, "no JSON object"),
        (b"{", {"content_type": JSON}, 400, "no JSON"),
        (b'{"resourceMetrics": 7}', {"content_type": JSON}, 400, "no JSON of"),
        (b'{"a": {"traceId": "xyz"}}', {"content_type": JSON}, 400, "not hexadecimal"),
        (b"[" * 90_000, {"content_type": JSON}, 400, "no JSON"),
    ],
)
def test_bad_requests_over_http_are_answered_with_why(
    receiver: Running, body: bytes, headers: dict[str, str], status: int, words: str
) -> None:
    found, _, answer = receiver.post(body, **headers)
    assert found == status
    assert words in answer.decode("utf-8", "replace")
    if headers.get("content_type") != JSON:  # a google.rpc.Status: code, then message
        assert answer[0] == 0x08
    reason = {400: "malformed", 413: "too_large", 415: "media_type"}[status]
    assert receiver.counted == {(REFUSED_REQUESTS, reason): 1}
    assert receiver.post(request())[0] == 200


@pytest.mark.parametrize(
    ("body", "compressed", "code"),
    [
        (b"\xff\xff", False, grpc.StatusCode.INVALID_ARGUMENT),
        (bytes(300_000), False, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (bytes(300_000), True, grpc.StatusCode.RESOURCE_EXHAUSTED),
    ],
)
def test_bad_requests_over_grpc_have_their_codes(
    receiver: Running, body: bytes, compressed: bool, code: grpc.StatusCode
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        receiver.call(body, compression=grpc.Compression.Gzip if compressed else None)
    assert caught.value.code() is code
    # What is too large is refused by gRPC itself, before anything of ours sees it.
    malformed = code is grpc.StatusCode.INVALID_ARGUMENT
    assert receiver.counted == ({(REFUSED_REQUESTS, "malformed"): 1} if malformed else {})
    assert receiver.call(request()) == b""


def test_logs_are_declined_in_words(receiver: Running) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        receiver.call(b"", LOGS)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "no logs" in caught.value.details()
    status, _, answer = receiver.post(b"", "/v1/logs")
    assert status == 404
    assert b"no logs" in answer


def test_a_token_is_asked_of_both(log: MemoryLog, started: Callable[..., Running], tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret-token\n")
    receiver = started(log, Token(file))
    for given in (None, "Bearer wrong", "s3cret-token"):
        metadata = None if given is None else [("authorization", given)]
        with pytest.raises(grpc.RpcError) as caught:
            receiver.call(request(), metadata=metadata)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        status, headers, answer = receiver.post(request(), **({} if given is None else {"authorization": given}))
        assert (status, headers["www-authenticate"]) == (401, "Bearer")
        assert b"s3cret" not in answer
    assert receiver.call(request(), metadata=[("authorization", "Bearer s3cret-token")]) == b""
    assert receiver.post(request(), authorization="Bearer s3cret-token")[0] == 200
    assert points(log) == 2
    assert receiver.counted[REFUSED_REQUESTS, "token"] == 6


def test_a_token_of_any_bytes_is_a_wrong_one(log: MemoryLog, started: Callable[..., Running], tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret-token")
    receiver = started(log, Token(file))
    host, _, port = str(receiver.where.http).rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        head = f"POST /v1/metrics HTTP/1.1\r\nHost: x\r\nContent-Type: {PROTOBUF}\r\nContent-Length: 0\r\n".encode()
        connection.sendall(head + b"Authorization: Bearer \xff\xfe\r\nConnection: close\r\n\r\n")
        assert connection.makefile("rb").readline() == b"HTTP/1.1 401 Unauthorized\r\n"


@pytest.mark.parametrize("content", [None, "", " \n", "two words", "ümlaut"])
def test_a_token_file_that_holds_none_is_refused(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigurationError, match="token file"):
        Token(file)


def test_a_taken_port_is_named(receiver: Running, log: MemoryLog) -> None:
    intake = Intake(log, CODEC)
    try:
        for where in ({"grpc": receiver.where.grpc, "http": None}, {"grpc": None, "http": receiver.where.http}):
            with pytest.raises(ConfigurationError, match="cannot listen on"):
                Receiver(intake, **where).run(threading.Event())
    finally:
        intake.close()


# --- the log comes and goes ---------------------------------------------------------------------------------------


class Flaky:
    """A producer of a log in memory that fails as it is told."""

    def __init__(self, real: Any, failures: list[tuple[str, LogError]]) -> None:
        self._real = real
        self._failures = failures

    def send(self, given: Iterable[OutgoingRecord]) -> None:
        self._fail("send")
        self._real.send(given)

    def flush(self, timeout_s: float) -> None:
        self._fail("flush")
        self._real.flush(timeout_s)

    def close(self) -> None:
        self._real.close()

    def _fail(self, where: str) -> None:
        if self._failures and self._failures[0][0] == where:
            raise self._failures.pop(0)[1]


def flaky(log: MemoryLog, *failures: tuple[str, LogError]) -> list[tuple[str, LogError]]:
    left = list(failures)
    real = log.producer
    log.producer = lambda *, quiet=False: Flaky(real(quiet=quiet), left)  # type: ignore[method-assign,assignment]
    return left


@pytest.mark.parametrize(
    "failure",
    [
        ("send", LogUnavailableError("away")),
        ("flush", LogUnavailableError("away")),
        ("flush", StillQueuedError("slow")),
        ("send", LogError("fatal")),
    ],
    ids=lambda failure: f"{failure[0]} {failure[1]}",
)
def test_while_the_log_is_away_requests_are_to_be_sent_again(
    log: MemoryLog, started: Callable[..., Running], failure: tuple[str, LogError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appender, "PROBE_S", 60.0)
    left = flaky(log, failure, failure)
    receiver = started(log)
    with pytest.raises(grpc.RpcError) as caught:
        receiver.call(request())
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert receiver.vitals.waiting == {LOG}
    status, headers, _ = receiver.post(request())
    assert (status, headers["retry-after"]) == (503, "1")
    assert left == []
    assert receiver.call(request(5)) == b""
    assert receiver.vitals.waiting == set()
    assert points(log) >= 5
    assert receiver.counted[REFUSED_REQUESTS, "log_away"] == 2
    assert not any(name == REFUSED for name, _ in receiver.counted), "nobody knows of how many points"


@pytest.mark.parametrize(
    "failures",
    [
        [("flush", LogUnavailableError("away"))],
        [("flush", StillQueuedError("slow")), ("flush", StillQueuedError("slow"))],
        [("send", LogError("fatal"))],
    ],
    ids=["given up", "still queued", "refused"],
)
def test_that_the_log_is_back_is_found_while_nobody_sends(
    log: MemoryLog,
    started: Callable[..., Running],
    failures: list[tuple[str, LogError]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who watches the receiver keeps senders away until it is ready."""
    monkeypatch.setattr(appender, "PROBE_S", 0.05)
    flaky(log, *failures)
    away, real = [True], log.admin

    def admin() -> Any:
        if away[0]:
            raise LogUnavailableError("away")
        return real()

    receiver = started(log)
    assert receiver.post(request())[0] == 503
    monkeypatch.setattr(log, "admin", admin)
    if len(failures) == 1:
        time.sleep(0.3)
        assert receiver.vitals.waiting == {LOG}, "a probe that fails says nothing"
    away[0] = False
    deadline = time.monotonic() + 10
    while receiver.vitals.waiting and time.monotonic() < deadline:
        time.sleep(0.01)
    assert receiver.vitals.waiting == set()
    assert receiver.post(request())[0] == 200


def test_more_than_fits_at_once_is_to_be_sent_again(
    log: MemoryLog, started: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake_module, "IN_FLIGHT_BYTES", 100)
    receiver = started(log)
    status, headers, _ = receiver.post(request(50))
    assert (status, headers["retry-after"]) == (503, "1")
    assert receiver.counted == {(REFUSED_REQUESTS, "busy"): 1}
    assert receiver.post(request())[0] == 200


def test_a_body_that_does_not_come_is_not_waited_for_for_ever(
    receiver: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And while too many bodies are waited for, others are told to come again."""
    monkeypatch.setattr(http_server, "READ_TIMEOUT_S", 1.0)
    monkeypatch.setattr(http_server, "REQUESTS_MAX", 1)
    connection = http.client.HTTPConnection(receiver.where.http, timeout=20)
    connection.putrequest("POST", "/v1/metrics")
    connection.putheader("content-type", PROTOBUF)
    connection.putheader("content-length", "100")
    connection.endheaders()
    deadline = time.monotonic() + 20
    while receiver.post(request())[0] != 503:
        assert time.monotonic() < deadline
    answer = connection.getresponse()
    assert (answer.status, b"has not come" in answer.read()) == (408, True)
    connection.close()
    assert receiver.counted[REFUSED_REQUESTS, "busy"] == receiver.counted[REFUSED_REQUESTS, "slow"] == 1
    assert receiver.post(request())[0] == 200


def test_many_senders_at_once_lose_and_double_nothing(receiver: Running, log: MemoryLog) -> None:
    body = request(20)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: receiver.post(body)[0] if n % 2 else len(receiver.call(body)), range(200)))
    assert set(answers) == {0, 200}
    assert points(log) == 200 * 20


def test_what_was_begun_is_answered_before_the_end(log: MemoryLog) -> None:
    """Every request that was answered with success is in the log, whenever the receiver was told to stop."""
    receiver = Running(log)
    body = request(10)
    done: list[int] = []

    def send() -> None:
        while True:
            try:
                receiver.call(body)
            except grpc.RpcError:
                return
            done.append(1)

    senders = [threading.Thread(target=send) for _ in range(4)]
    for each in senders:
        each.start()
    while len(done) < 40:
        time.sleep(0.005)
    receiver.stop.set()
    for each in senders:
        each.join(20)
    receiver.close()
    assert points(log) >= len(done) * 10
