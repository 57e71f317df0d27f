"""OTLP over HTTP, with protobuf and JSON bodies."""

import asyncio
import zlib
from typing import Any

from aiohttp import web

from stepwell.adapters.otlp.grpc_server import LOGS_WORDS
from stepwell.adapters.otlp.intake import BusyError, Intake
from stepwell.adapters.otlp.json_bodies import body_of
from stepwell.adapters.otlp.taken import MalformedRequestError
from stepwell.adapters.otlp.tokens import Token
from stepwell.exceptions import ConfigurationError

__all__ = ["HttpServer"]

PROTOBUF, JSON = "application/x-protobuf", "application/json"
RETRY_AFTER_S = 1
READ_TIMEOUT_S = 30.0
_GRACE_S = 6.0
REQUESTS_MAX = 64
"""The most requests whose bodies are read at once; what is more is to be sent again."""
# gRPC's codes, which OTLP wants in the body of an error.
_CODES = {400: 3, 401: 16, 404: 12, 408: 4, 413: 8, 415: 3, 503: 14}


class HttpServer:
    """Serves ``/v1/metrics`` and ``/v1/traces``. Arguments as of `stepwell.adapters.otlp.grpc_server.GrpcServer`."""

    def __init__(self, intake: Intake, address: str, max_bytes: int, token: Token | None) -> None:
        self._intake = intake
        self._address = address
        self._max_bytes = max_bytes
        self._token = token
        self._reading = 0
        app = web.Application(client_max_size=max_bytes)
        app.router.add_post("/v1/metrics", self._metrics)
        app.router.add_post("/v1/traces", self._traces)
        app.router.add_post("/v1/logs", self._logs)
        # Unpacked by us: a body that is no gzip is answered, and its size is known while it grows.
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_GRACE_S, auto_decompress=False)

    async def start(self) -> int:
        """Listen; the port.

        Raises:
            ConfigurationError: the address is taken, or none of this machine's.
        """
        host, _, port = self._address.rpartition(":")
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host.strip("[]"), int(port)).start()
        except OSError as error:
            raise ConfigurationError(f"cannot listen on {self._address} for OTLP over HTTP: {error.strerror}") from None
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Answer what was begun, and end."""
        await self._runner.cleanup()

    async def _metrics(self, request: web.Request) -> web.Response:
        return await self._export("metrics", request)

    async def _traces(self, request: web.Request) -> web.Response:
        return await self._export("traces", request)

    async def _logs(self, request: web.Request) -> web.Response:
        return _error(request, 404, LOGS_WORDS)

    async def _export(self, signal: str, request: web.Request) -> web.Response:
        if self._token is not None and not self._token.fits(request.headers.get("Authorization")):
            return self._refuse(request, 401, "token", self._token.words)
        if request.content_type not in (PROTOBUF, JSON):
            words = f"content type {request.content_type[:60]} is neither {PROTOBUF} nor {JSON}"
            return self._refuse(request, 415, "media_type", words)
        encoding = request.headers.get("Content-Encoding", "identity").lower()
        if encoding not in ("identity", "gzip"):
            return self._refuse(request, 415, "media_type", f"content encoding {encoding[:60]} is not gzip")
        try:
            response = await self._take(signal, request, packed=encoding == "gzip")
        except (web.HTTPRequestEntityTooLarge, _TooLargeError):
            words = f"the request has more than {self._max_bytes} bytes, unpacked; send less at once"
            return self._refuse(request, 413, "too_large", words)
        except zlib.error as error:
            return self._refuse(request, 400, "malformed", f"the body is no gzip: {error}")
        except MalformedRequestError as error:
            return _error(request, 400, str(error))
        except TimeoutError:
            return self._refuse(request, 408, "slow", f"the body has not come within {READ_TIMEOUT_S:g} s")
        except BusyError as error:
            return _error(request, 503, str(error))
        if request.content_type == JSON:
            return web.Response(body=body_of(response), content_type=JSON)
        return web.Response(body=response.SerializeToString(), content_type=PROTOBUF)

    async def _take(self, signal: str, request: web.Request, *, packed: bool) -> Any:
        if self._reading >= REQUESTS_MAX:
            self._intake.refuse("busy")
            raise BusyError(f"more than {REQUESTS_MAX} requests are being worked on; send it again later")
        self._reading += 1
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                body = await request.read()
            if packed:
                body = self._unpacked(body)
            in_json, peer = request.content_type == JSON, request.remote or ""
            return await self._intake.take(signal, body, in_json=in_json, peer=peer)
        finally:
            self._reading -= 1

    def _refuse(self, request: web.Request, status: int, reason: str, words: str) -> web.Response:
        """Count the request as refused, and answer it."""
        self._intake.refuse(reason, request.remote or "", words)
        return _error(request, status, words)

    def _unpacked(self, body: bytes) -> bytes:
        unpacker = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        out = unpacker.decompress(body, self._max_bytes + 1)
        if len(out) > self._max_bytes:
            raise _TooLargeError
        if not unpacker.eof:
            raise zlib.error("it ends too early")
        return out


class _TooLargeError(Exception):
    """The body is larger than is taken, once unpacked."""


def _error(request: web.Request, status: int, words: str) -> web.Response:
    """An answer with a google.rpc.Status as its body, in the encoding of the request."""
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status == 503 else {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    code = _CODES[status]
    if request.content_type == JSON:
        return web.json_response({"code": code, "message": words}, status=status, headers=headers)
    text = words[:1000].encode()
    length = bytes([len(text) & 0x7F | 0x80, len(text) >> 7]) if len(text) > 0x7F else bytes([len(text)])
    body = b"\x08" + bytes([code]) + b"\x12" + length + text
    return web.Response(body=body, status=status, content_type=PROTOBUF, headers=headers)
