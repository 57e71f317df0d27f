"""OTLP spans as records."""

from collections.abc import Callable, Iterable
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1 import trace_pb2

from stepwell.adapters.otlp.senders import (
    ATTEMPT,
    EPISODE_ID,
    Episode,
    RefusedError,
    Sender,
    Senders,
    attributes_of,
    episode_of,
    scope_text,
)
from stepwell.adapters.otlp.taken import EARLIEST_US, RECORD_BYTES, TEXT_BYTES, Taken, Window, text_bytes
from stepwell.events.guards import TIME_LIMIT_US
from stepwell.events.model import Span, SpanEvent, SpanLink, SpansEnded

_KINDS = {1: "internal", 2: "server", 3: "client", 4: "producer", 5: "consumer"}
_STATUS = {0: "unset", 1: "ok", 2: "error"}
_SPAN_BYTES = 250


class SpansReader:
    """Makes records of requests. Arguments as of `stepwell.adapters.otlp.metrics.MetricsReader`."""

    def __init__(self, senders: Senders, now_us: Callable[[], int], next_seq: Callable[[], int]) -> None:
        self._senders = senders
        self._now_us = now_us
        self._next_seq = next_seq

    def read(self, request: ExportTraceServiceRequest) -> Taken:
        """The records of a request, and what of it is refused."""
        taken = Taken()
        now = self._now_us()
        window = Window.around(now)
        for resource_spans in request.resource_spans:
            taken.sender = ""
            try:
                sender = self._senders.of(resource_spans.resource)
            except RefusedError as error:
                taken.refuse(error.code, str(error), sum(len(scope.spans) for scope in resource_spans.scope_spans))
                continue
            taken.sender = sender.worker_id
            for scope_spans in resource_spans.scope_spans:
                try:
                    scope = scope_text(scope_spans.scope)
                except RefusedError as error:
                    taken.refuse(error.code, str(error), len(scope_spans.spans))
                    continue
                for episode, spans in _read(scope_spans.spans, sender, window, taken).items():
                    self._record(sender, scope, now, episode, spans, taken)
        return taken

    def _record(
        self, sender: Sender, scope: str, now: int, episode: Episode, spans: list[tuple[Span, int]], taken: Taken
    ) -> None:
        """One record, or as many as the sizes need."""
        for chunk in _chunks(spans):
            taken.accepted += len(chunk)
            taken.records.append(
                SpansEnded(
                    worker_id=sender.worker_id,
                    host=sender.host,
                    episode_id=episode.episode_id,
                    attempt=episode.attempt,
                    sampled_at=now,
                    sample_seq=self._next_seq(),
                    resource=sender.resource,
                    scope=scope,
                    spans=chunk,
                )
            )


def _read(
    spans: Iterable[trace_pb2.Span], sender: Sender, window: Window, taken: Taken
) -> dict[Episode, list[tuple[Span, int]]]:
    """The spans of one scope by episode, each with its size in a record (bytes)."""
    by_episode: dict[Episode, list[tuple[Span, int]]] = {}
    for span in spans:
        try:
            made, said = _span(span, window)
            episode = episode_of(said, sender.episode) if said else sender.episode
            size = _size(made)
            if size > TEXT_BYTES:
                raise RefusedError("too_large", f"a span has more than {TEXT_BYTES} bytes of text")
        except RefusedError as error:
            taken.refuse(error.code, str(error))
            continue
        by_episode.setdefault(episode, []).append((made, size))
    return by_episode


def _span(span: trace_pb2.Span, window: Window) -> tuple[Span, dict[str, str]]:
    """A span, and what its attributes say of the episode."""
    end_at = span.end_time_unix_nano // 1000
    if not window.first <= end_at <= window.last:
        raise RefusedError("time", window.words)
    start_at = span.start_time_unix_nano // 1000
    if not EARLIEST_US <= start_at <= end_at:
        raise RefusedError("time", "a span begins before the year 2000 or after its own end")
    texts = attributes_of(span.attributes)
    own = tuple(each for each in texts if each.name not in (EPISODE_ID, ATTEMPT))
    made = Span(
        trace_id=_id("trace_id", span.trace_id, 16),
        span_id=_id("span_id", span.span_id, 8),
        parent_span_id=_id("parent_span_id", span.parent_span_id, 8) if span.parent_span_id else None,
        name=span.name,
        kind=_KINDS.get(span.kind, "internal"),
        start_at=start_at,
        end_at=end_at,
        status=_STATUS.get(span.status.code, "unset"),
        status_message=span.status.message,
        attributes=own,
        events=tuple(
            SpanEvent(
                name=event.name,
                event_at=_time(event.time_unix_nano),
                attributes=attributes_of(event.attributes),
            )
            for event in span.events
        ),
        links=tuple(
            SpanLink(
                trace_id=_id("trace_id of a link", link.trace_id, 16),
                span_id=_id("span_id of a link", link.span_id, 8),
                attributes=attributes_of(link.attributes),
            )
            for link in span.links
        ),
    )
    return made, {each.name: each.value for each in texts if each not in own}


def _id(name: str, raw: bytes, size: int) -> str:
    if len(raw) != size or not any(raw):
        raise RefusedError(
            "span_id", f"the {name} of a span is {raw.hex()[:40]!r}; {size} bytes are needed, not all zero"
        )
    return raw.hex()


def _time(nanoseconds: int) -> int:
    at = nanoseconds // 1000
    if at >= TIME_LIMIT_US:
        raise RefusedError("time", "an event of a span lies beyond the year 9999")
    return at


def _size(span: Span) -> int:
    texts = [span.name, span.status_message, *(event.name for event in span.events)]
    size = sum(len(text.encode()) for text in texts) + text_bytes(span.attributes) + _SPAN_BYTES
    parts: list[Any] = [*span.events, *span.links]
    return size + sum(text_bytes(part.attributes) + _SPAN_BYTES for part in parts)


def _chunks(spans: list[tuple[Span, int]]) -> Iterable[tuple[Span, ...]]:
    chunk: list[Span] = []
    total = 0
    for span, size in spans:
        if chunk and total + size > RECORD_BYTES:
            yield tuple(chunk)
            chunk, total = [], 0
        chunk.append(span)
        total += size
    if chunk:
        yield tuple(chunk)
