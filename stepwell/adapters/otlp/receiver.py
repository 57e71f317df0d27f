"""The receiver as a whole: both transports in one loop, until told to stop."""

import asyncio
import ipaddress
import threading
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from stepwell.adapters.otlp.grpc_server import GrpcServer
from stepwell.adapters.otlp.http_server import HttpServer
from stepwell.adapters.otlp.intake import Intake
from stepwell.adapters.otlp.tokens import Token

__all__ = ["MAX_REQUEST_BYTES", "Receiver"]

MAX_REQUEST_BYTES = 4 * 1024 * 1024
"""The largest request (bytes), unpacked: what gRPC takes unless told otherwise."""
_TURN_S = 1.0

_log = structlog.get_logger("stepwell.otlp")


@dataclass(frozen=True, slots=True)
class Listening:
    """Where the receiver listens (``host:port``); None where it does not."""

    grpc: str | None
    http: str | None


class Receiver:
    """Receives OTLP until told to stop.

    Args:
        intake: takes the requests; the caller closes it.
        grpc, http: where to listen (``host:port``, port 0: a free one); None: not at all.
        token: what every request must carry; None: nothing.
        max_bytes: the largest request (bytes), unpacked.
        alive: called every second, a sign of life.
    """

    def __init__(
        self,
        intake: Intake,
        *,
        grpc: str | None,
        http: str | None,
        token: Token | None = None,
        max_bytes: int = MAX_REQUEST_BYTES,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        self._intake = intake
        self._grpc = grpc
        self._http = http
        self._token = token
        self._max_bytes = max_bytes
        self._alive = alive

    def run(self, stop: threading.Event, listening: Callable[[Listening], None] = lambda _: None) -> None:
        """Listen until ``stop`` is set; requests that were begun are answered.

        Args:
            stop: ends it.
            listening: called once, when requests can come.

        Raises:
            ConfigurationError: an address cannot be listened on.
        """
        asyncio.run(self._run(stop, listening))

    async def _run(self, stop: threading.Event, listening: Callable[[Listening], None]) -> None:
        servers: list[GrpcServer | HttpServer] = []
        where: list[str | None] = []
        try:
            for address, make in ((self._grpc, GrpcServer), (self._http, HttpServer)):
                if address is None:
                    where.append(None)
                    continue
                server = make(self._intake, address, self._max_bytes, self._token)
                servers.append(server)
                where.append(f"{address.rpartition(':')[0]}:{await server.start()}")
            self._warn_if_open(where)
            _log.info("receiving", grpc=where[0], http=where[1])
            listening(Listening(*where))
            self._alive()
            while not await asyncio.to_thread(stop.wait, _TURN_S):
                self._alive()
        finally:
            await asyncio.gather(*(server.stop() for server in servers))

    def _warn_if_open(self, where: list[str | None]) -> None:
        open_to_all = [address for address in where if address and not _is_loopback(address)]
        if open_to_all and self._token is None:
            _log.warning("anyone who can reach this address can send", addresses=open_to_all, look="--token-file")


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
