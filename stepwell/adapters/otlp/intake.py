"""From the bytes of a request to the bytes of its answer, whatever the transport."""

import asyncio
import itertools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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
from stepwell.adapters.otlp.metrics import MetricsReader
from stepwell.adapters.otlp.senders import Senders
from stepwell.adapters.otlp.spans import SpansReader
from stepwell.adapters.otlp.taken import Taken
from stepwell.engine.ports import MessageLog, OutgoingRecord
from stepwell.engine.publish import outgoing
from stepwell.events.codec import Codec
from stepwell.events.model import SpansEnded
from stepwell.exceptions import EncodeError, LogError

__all__ = ["SIGNALS", "BusyError", "Counts", "Intake", "MalformedRequestError"]

IN_FLIGHT_BYTES = 64 * 1024 * 1024
"""The most bytes of requests that are being worked on at once."""

SIGNALS = ("metrics", "traces")


class MalformedRequestError(ValueError):
    """The bytes are no request of that kind; sending them again cannot help."""


class BusyError(Exception):
    """The request cannot be taken now; sending it again later can help."""


@dataclass(slots=True)
class Counts:
    """What the receiver has done since it started.

    Attributes:
        requests: answered with success.
        points, spans: durable in the log.
        refused: points and spans that were not taken, with a reason to the sender.
        unavailable: requests refused as a whole, to be sent again.
    """

    requests: int = 0
    points: int = 0
    spans: int = 0
    refused: int = 0
    unavailable: int = 0


class Intake:
    """Takes requests, and answers once their records are durable.

    Args:
        log: where to append.
        codec: encodes the records.
        now_us: the clock (µs since 1970 UTC).
    """

    def __init__(
        self, log: MessageLog, codec: Codec, now_us: Callable[[], int] = lambda: time.time_ns() // 1000
    ) -> None:
        senders, sequence = Senders(), itertools.count()
        metrics = MetricsReader(senders, now_us, lambda: next(sequence))
        spans = SpansReader(senders, now_us, lambda: next(sequence))
        self._readers: dict[str, tuple[Any, Callable[[Any], Taken]]] = {
            "metrics": (ExportMetricsServiceRequest, metrics.read),
            "traces": (ExportTraceServiceRequest, spans.read),
        }
        self._codec = codec
        self._appender = Appender(log)
        # One thread, so that the loop stays free to answer, and the readers need no locks.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="otlp-reader")
        self._in_flight = 0
        self.counts = Counts()

    @property
    def log_away(self) -> bool:
        """Whether the log did not take what was appended last."""
        return self._appender.away

    async def take(self, signal: str, body: bytes | Any) -> Any:
        """The response message to a request, once what it holds is in the log.

        Args:
            signal: one of `SIGNALS`.
            body: the request as bytes, or as its message.

        Raises:
            MalformedRequestError: the bytes are no such request.
            BusyError: too much is being worked on, or the log takes nothing now.
        """
        size = len(body) if isinstance(body, bytes) else body.ByteSize()
        if self._in_flight + size > IN_FLIGHT_BYTES:
            self.counts.unavailable += 1
            raise BusyError(f"more than {IN_FLIGHT_BYTES} bytes of requests are being worked on; send it again later")
        self._in_flight += size
        try:
            taken, records = await asyncio.get_running_loop().run_in_executor(self._thread, self._read, signal, body)
            if records:
                await asyncio.wrap_future(self._appender.append(records))
        except LogError as error:
            self.counts.unavailable += 1
            raise BusyError(f"the log takes nothing now; send it again later: {error}") from error
        finally:
            self._in_flight -= size
        return self._answer(signal, taken)

    def close(self) -> None:
        """Finish what was begun and let go. Never raises."""
        self._thread.shutdown()
        self._appender.close()

    def _read(self, signal: str, body: bytes | Any) -> tuple[Taken, list[OutgoingRecord]]:
        request_type, read = self._readers[signal]
        try:
            request = request_type.FromString(body) if isinstance(body, bytes) else body
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
                taken.refuse(str(error), count)
        return taken, records

    def _answer(self, signal: str, taken: Taken) -> Any:
        counts = self.counts
        counts.requests += 1
        counts.refused += taken.refused
        if signal == "metrics":
            counts.points += taken.accepted
            metrics = ExportMetricsPartialSuccess(rejected_data_points=taken.refused, error_message=taken.message)
            return ExportMetricsServiceResponse(partial_success=metrics if taken.refused else None)
        counts.spans += taken.accepted
        spans = ExportTracePartialSuccess(rejected_spans=taken.refused, error_message=taken.message)
        return ExportTraceServiceResponse(partial_success=spans if taken.refused else None)
