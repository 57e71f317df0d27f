"""OTLP over gRPC."""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from stepwell.adapters.otlp.intake import BusyError, Intake
from stepwell.adapters.otlp.taken import MalformedRequestError
from stepwell.adapters.otlp.tokens import Token
from stepwell.exceptions import ConfigurationError

__all__ = ["LOGS_WORDS", "GrpcServer"]

LOGS_WORDS = "Stepwell takes metrics and traces over OTLP, but no logs; set the exporter of logs to none"
_SERVICES = {
    "metrics": "opentelemetry.proto.collector.metrics.v1.MetricsService",
    "traces": "opentelemetry.proto.collector.trace.v1.TraceService",
}
_LOGS = "opentelemetry.proto.collector.logs.v1.LogsService"
_STREAMS_MAX = 64
_GRACE_S = 6.0

Handler = Callable[[bytes, Any], Awaitable[bytes]]


class GrpcServer:
    """Serves the services of metrics and traces.

    Args:
        intake: takes the requests.
        address: ``host:port``; port 0 takes a free one.
        max_bytes: the largest request (bytes), unpacked.
        token: what requests must carry; None: nothing.
    """

    def __init__(self, intake: Intake, address: str, max_bytes: int, token: Token | None) -> None:
        self._intake = intake
        self._address = address
        self._token = token
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", max_bytes),
                # A client holds back what is more; a limit of the server's would be answered with a code that OTLP's
                # senders take for final.
                ("grpc.max_concurrent_streams", _STREAMS_MAX),
                # Two receivers on one port would each get some of the connections, and nobody would be told.
                ("grpc.so_reuseport", 0),
            ],
        )
        for signal, service in _SERVICES.items():
            self._add(service, self._export(signal))
        self._add(_LOGS, self._logs)

    async def start(self) -> int:
        """Listen; the port.

        Raises:
            ConfigurationError: the address is taken, or none of this machine's.
        """
        try:
            port = int(self._server.add_insecure_port(self._address))
        except RuntimeError:
            port = 0
        if not port:
            raise ConfigurationError(f"cannot listen on {self._address} for OTLP over gRPC: is something else there?")
        await self._server.start()
        return port

    async def stop(self) -> None:
        """Answer what was begun, and end."""
        await self._server.stop(_GRACE_S)

    def _add(self, service: str, handler: Handler) -> None:
        # Without a deserializer the handler gets the bytes, and a body that is none is ours to answer.
        export = grpc.unary_unary_rpc_method_handler(handler)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"Export": export}),))

    def _export(self, signal: str) -> Handler:
        async def export(body: bytes, context: Any) -> bytes:
            if self._token is not None:
                given = dict(context.invocation_metadata() or ()).get("authorization")
                if not self._token.fits(given):
                    self._intake.refuse("token", context.peer(), self._token.words)
                    await context.abort(grpc.StatusCode.UNAUTHENTICATED, self._token.words)
            response: Any = None
            try:
                response = await self._intake.take(signal, body, peer=context.peer())
            except MalformedRequestError as error:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            except BusyError as error:
                await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            return bytes(response.SerializeToString())

        return export

    async def _logs(self, _body: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, LOGS_WORDS)
        return b""
