"""From the bytes of a request to the bytes of its answer, whatever the transport."""

import asyncio
import itertools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from google.protobuf.message import DecodeError as ProtobufError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsPartialSuccess,
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from stepwell.adapters.otlp.appender import Appender
from stepwell.adapters.otlp.json_bodies import message_of
from stepwell.adapters.otlp.metrics import MetricsReader
from stepwell.adapters.otlp.refusals import Refusals
from stepwell.adapters.otlp.senders import Senders
from stepwell.adapters.otlp.spans import SpansReader
from stepwell.adapters.otlp.taken import MalformedRequestError, Taken
from stepwell.engine.ports import MessageLog, OutgoingRecord
from stepwell.engine.publish import outgoing
from stepwell.engine.vitals import Unwatched, Vitals
from stepwell.events.codec import Codec
from stepwell.events.model import SpansEnded
from stepwell.exceptions import EncodeError, LogError

__all__ = ["REFUSED", "REFUSED_REQUESTS", "SIGNALS", "TAKEN", "BusyError", "Intake"]

IN_FLIGHT_BYTES = 64 * 1024 * 1024
"""The most bytes of requests that are being worked on at once."""

SIGNALS = ("metrics", "traces")

TAKEN, REFUSED = "stepwell_otlp_points_total", "stepwell_otlp_rejected_total"
"""Counters: points and spans that are in the log, by signal; those that were refused for good, by reason."""
REFUSED_REQUESTS = "stepwell_otlp_refused_requests_total"
"""Counter of whole requests that were refused, by reason: nobody knows how many points were in them."""


class BusyError(Exception):
    """The request cannot be taken now; sending it again later can help."""


class Intake:
    """Takes requests, and answers once their records are durable.

    Args:
        log: where to append.
        codec: encodes the records.
        vitals: told whether the log takes what is appended.
        count: told what was done: name of a counter, value of its label, by how much.
        now_us: the clock (µs since 1970 UTC).
    """

    def __init__(
        self,
        log: MessageLog,
        codec: Codec,
        *,
        vitals: Vitals | None = None,
        count: Callable[[str, str, int], None] = lambda _name, _label, _by: None,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        senders, sequence = Senders(), itertools.count()
        metrics = MetricsReader(senders, now_us, lambda: next(sequence))
        spans = SpansReader(senders, now_us, lambda: next(sequence))
        self._readers: dict[str, tuple[Any, Callable[[Any], Taken]]] = {
            "metrics": (ExportMetricsServiceRequest, metrics.read),
            "traces": (ExportTraceServiceRequest, spans.read),
        }
        self._codec = codec
        self._appender = Appender(log, vitals or Unwatched())
        self._count = count
        self._refusals = Refusals()
        # One thread, so that the loop stays free to answer, and the readers need no locks.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="otlp-reader")
        self._in_flight = 0

    async def take(self, signal: str, body: bytes, *, in_json: bool = False, peer: str = "") -> Any:
        """The response message to a request, once what it holds is in the log.

        Args:
            signal: one of `SIGNALS`.
            body: the request.
            in_json: in JSON, not in protobuf's wire format.
            peer: address of the sender.

        Raises:
            MalformedRequestError: the bytes are no such request.
            BusyError: too much is being worked on, or the log takes nothing now.
        """
        size = len(body)
        if self._in_flight + size > IN_FLIGHT_BYTES:
            self.refuse("busy")
            raise BusyError(f"more than {IN_FLIGHT_BYTES} bytes of requests are being worked on; send it again later")
        self._in_flight += size
        try:
            loop = asyncio.get_running_loop()
            taken, records = await loop.run_in_executor(self._thread, self._read, signal, body, in_json)
            if records:
                await asyncio.wrap_future(self._appender.append(records))
        except MalformedRequestError as error:
            self.refuse("malformed", peer, str(error))
            raise
        except LogError as error:
            self.refuse("log_away")
            raise BusyError(f"the log takes nothing now; send it again later: {error}") from error
        finally:
            self._in_flight -= size
        return self._answer(signal, taken)

    def refuse(self, reason: str, peer: str = "", why: str = "") -> None:
        """Count a whole request that is refused; `take` counts what it refuses by itself.

        Args:
            reason: a short stable word.
            peer: address of the sender.
            why: what it was told; empty where it will send the request again, which is not worth a line in the log.
        """
        self._count(REFUSED_REQUESTS, reason, 1)
        if why:
            self._refusals.add("requests", reason, 1, peer, why)

    def close(self) -> None:
        """Finish what was begun and let go. Never raises."""
        self._thread.shutdown()
        self._appender.close()
        self._refusals.close()

    def _read(self, signal: str, body: bytes, in_json: bool) -> tuple[Taken, list[OutgoingRecord]]:
        request_type, read = self._readers[signal]
        try:
            request = message_of(request_type(), body) if in_json else request_type.FromString(body)
        except ProtobufError as error:
            raise MalformedRequestError(f"the body is no {request_type.DESCRIPTOR.full_name}: {error}") from None
        taken = read(request)
        records = []
        for record in taken.records:
            try:
                records.append(outgoing(self._codec, record))
            except EncodeError as error:
                count = len(record.spans if isinstance(record, SpansEnded) else record.point_at)
                taken.accepted -= count
                taken.sender = record.worker_id
                taken.refuse(error.reason, str(error), count)
        return taken, records

    def _answer(self, signal: str, taken: Taken) -> Any:
        self._count(TAKEN, signal, taken.accepted)
        for code, count in taken.codes.items():
            self._count(REFUSED, code, count)
            self._refusals.add(signal, code, count, *taken.newest[code])
        if signal == "metrics":
            metrics = ExportMetricsPartialSuccess(rejected_data_points=taken.refused, error_message=taken.message)
            return ExportMetricsServiceResponse(partial_success=metrics if taken.refused else None)
        spans = ExportTracePartialSuccess(rejected_spans=taken.refused, error_message=taken.message)
        return ExportTraceServiceResponse(partial_success=spans if taken.refused else None)
