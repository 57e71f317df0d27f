"""``/healthz``, ``/readyz`` and ``/metrics`` of one worker over HTTP. Their meaning stands in docs/workers.md."""

import contextlib
import json
import re
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from stepwell.adapters.workers.metrics import WorkerMetrics
from stepwell.adapters.workers.vitals import Condition, WorkerVitals
from stepwell.exceptions import ConfigurationError

LOOK_AGE_MAX_S = 30.0
"""A worker that has not seen the log for so long (s) is not ready."""
REQUEST_TIMEOUT_S = 10.0
LOCALHOST = "127.0.0.1"

_ADDRESS = re.compile(r"(?:(?P<host>[A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\]):)?(?P<port>\d{1,5})")
PORT_MAX = 65535


def parse_listen(text: str) -> tuple[str, int]:
    """``HOST:PORT``, ``:PORT`` or ``PORT``; without a host it is this machine only. Port 0: any free one.

    Raises:
        ConfigurationError: it is none of these.
    """
    match = _ADDRESS.fullmatch(text.strip())
    if match is None or int(match["port"]) > PORT_MAX:
        raise ConfigurationError(f"--listen {text!r}: expected HOST:PORT, as in 127.0.0.1:9464, or a port alone")
    return (match["host"] or LOCALHOST).strip("[]"), int(match["port"])


def health(condition: Condition, lately_s: float) -> tuple[bool, str]:
    """Whether the worker's thread lives, and what is wrong where it does not."""
    if condition.state == "failed":
        return False, f"failed: {condition.last_error}"
    if condition.alive_s > lately_s:
        return False, f"its thread gave no sign of life for {condition.alive_s:.0f} s; it was {condition.doing}"
    return True, ""


def readiness(condition: Condition, *, reads: bool) -> tuple[bool, str]:
    """Whether the worker works on what it was given, and what is missing where it does not.

    ``reads``: whether it reads partitions as a member of a group.
    """
    if condition.state != "running":
        return False, condition.waits_for or f"it is {condition.state}"
    if condition.look_age_s is None or condition.look_age_s > LOOK_AGE_MAX_S:
        return False, "the log does not say where it ends"
    if reads and not condition.partitions:
        return False, "its group has given it no partition (there are more members than partitions, or it joins)"
    return True, ""


class HealthServer:
    """Answers ``GET /healthz``, ``/readyz`` and ``/metrics``.

    Args:
        address: host and port; port 0 takes a free one, see `address`.
        vitals: what is known of the worker.
        metrics: makes the page of figures.
        lately_s: a thread without a sign of life for so long (s) is not healthy.

    Raises:
        ConfigurationError: the address cannot be used.
    """

    def __init__(self, address: tuple[str, int], vitals: WorkerVitals, metrics: WorkerMetrics, lately_s: float) -> None:
        def answer(path: str, accept: str) -> tuple[int, str, bytes]:
            condition = vitals.condition()
            if path == "/metrics":
                page, content_type = metrics.page(accept)
                return 200, content_type, page
            if path == "/healthz":
                well, problem = health(condition, lately_s)
            elif path == "/readyz":
                well, problem = readiness(condition, reads=vitals.group is not None)
            else:
                return 404, "text/plain; charset=utf-8", b"try /healthz, /readyz or /metrics\n"
            said = {
                "status": "ok" if well else "unavailable", "problem": problem, "worker_id": vitals.worker_id,
                "state": condition.state, "doing": condition.doing, "alive_s_ago": round(condition.alive_s, 3),
                "partitions": len(condition.partitions),
            }  # fmt: skip
            return 200 if well else 503, "application/json", json.dumps(said).encode() + b"\n"

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET

        try:
            self._server = Server(address, _handler(answer))
        except OSError as error:
            host, port = address
            raise ConfigurationError(
                f"--listen: {host}:{port} cannot be used: {error.strerror or error}; choose another port, or 0 for a "
                "free one"
            ) from None
        self._thread = threading.Thread(target=self._server.serve_forever, name="health", daemon=True)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that it listens on."""
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering. Never raises."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()


def _handler(answer: Any) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_TIMEOUT_S
        server_version = "stepwell"
        sys_version = ""

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def _answer(self, *, with_body: bool) -> None:
            code, content_type, body = answer(self.path.partition("?")[0], self.headers.get("Accept", ""))
            with contextlib.suppress(OSError):  # who asked may be gone
                self.send_response(code)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if with_body:
                    self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Say nothing: probes come every few seconds."""

    return Handler
