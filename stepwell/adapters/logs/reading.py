"""Reads a topic from its start to where it ends now: for looking things up, not for following along."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from stepwell.engine.ports import MessageLog, RecordBatch
from stepwell.engine.reading import read_range, watermarks_of
from stepwell.events.codec import Codec
from stepwell.events.model import Event, LogRecord
from stepwell.exceptions import EventError

EventT = TypeVar("EventT", bound=Event)


def read_batches(log: MessageLog, topic: str) -> Iterator[RecordBatch]:
    """Every committed record of a topic up to its end at the time of the call, partition after partition.

    Raises:
        LogUnavailableError: the log stopped answering before the end was reached.
    """
    for source, mark in sorted(watermarks_of(log, topic).items()):
        yield from read_range(log, source, mark.low, mark.high)


def read_all(
    log: MessageLog, codec: Codec, topic: str, keep: Callable[[bytes | None], bool] | None = None
) -> Iterator[LogRecord]:
    """Every readable record of a topic; those whose key ``keep`` refuses, and unreadable ones, are passed over."""
    for batch in read_batches(log, topic):
        for key, value, headers in zip(batch.keys, batch.values, batch.headers, strict=True):
            if keep is not None and not keep(key):
                continue
            try:
                yield codec.decode(value, headers)
            except EventError:
                continue


def read_of_type(log: MessageLog, codec: Codec, topic: str, *wanted: type[EventT]) -> Iterator[EventT]:
    """Every readable event of some types; of the others not even the body is read."""
    marks = [("ce_type", each.TYPE.encode()) for each in wanted]
    for batch in read_batches(log, topic):
        for value, headers in zip(batch.values, batch.headers, strict=True):
            if not any(mark in headers for mark in marks):
                continue
            try:
                event = codec.decode(value, headers)
            except EventError:
                continue
            if isinstance(event, wanted):
                yield event
