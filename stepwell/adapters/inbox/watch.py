"""What has become of the requests in the log, kept up with it as it grows."""

import threading
from dataclasses import dataclass

from stepwell.engine.detection.ledger import CLOSING_ANSWERS
from stepwell.engine.ports import MessageLog, RecordBatch, TopicPartition
from stepwell.engine.reading import read_range, watermarks_of
from stepwell.events.codec import Codec
from stepwell.events.model import (
    Headers,
    LogRecord,
    RetrainAnswered,
    RetrainExpired,
    RetrainRequested,
    RetrainWithdrawn,
)
from stepwell.events.topics import RETRAIN_REQUESTS, RETRAIN_RESULTS
from stepwell.exceptions import EventError


@dataclass(frozen=True, slots=True)
class Sign:
    """The last ``accepted`` to a request: when the log took it (µs), and its event id."""

    at: int
    event_id: bytes


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """A request that nobody has closed, as it stands in the log. ``appended_at`` is the log's time (µs)."""

    trigger_id: str
    policy: str
    source: TopicPartition
    offset: int
    appended_at: int
    value: bytes
    headers: Headers


class RequestWatch:
    """Follows both topics from their start. Safe to share between threads.

    Args:
        log, codec: where it reads.
        with_open: also keep the requests that are open, for `open_requests`.
    """

    def __init__(self, log: MessageLog, codec: Codec, *, with_open: bool = False) -> None:
        self._log = log
        self._codec = codec
        self._with_open = with_open
        self._mutex = threading.Lock()
        self._positions: dict[TopicPartition, int] = {}
        self._closed: dict[tuple[str, str], str] = {}
        self._signs: dict[tuple[str, str], Sign] = {}
        self._open: dict[tuple[str, str], OpenRequest] = {}

    def refresh(self) -> None:
        """Read on to where the log ends now.

        Raises:
            LogUnavailableError: the log does not answer. What was read stays known; call again.
        """
        with self._mutex:
            for topic in (RETRAIN_REQUESTS, RETRAIN_RESULTS):
                for source, mark in watermarks_of(self._log, topic).items():
                    start = max(self._positions.get(source, 0), mark.low)
                    for batch in read_range(self._log, source, start, mark.high):
                        self._read(batch)
                        self._positions[source] = batch.end
                    # Where only marks of transactions lie before the end, no batch tells that they were passed.
                    self._positions[source] = max(start, mark.high)

    def closed(self, trigger_id: str, policy: str) -> str | None:
        """How a request was closed, as far as it has been read: ``answered done``, ``withdrawn``; None: it is open."""
        with self._mutex:
            return self._closed.get((trigger_id, policy))

    def sign(self, trigger_id: str, policy: str) -> Sign | None:
        """The last ``accepted`` to a request."""
        with self._mutex:
            return self._signs.get((trigger_id, policy))

    def open_requests(self) -> list[OpenRequest]:
        """The requests that are open, in the order of their appearance; needs ``with_open``."""
        with self._mutex:
            return list(self._open.values())

    def _read(self, batch: RecordBatch) -> None:
        columns = zip(batch.offsets, batch.timestamps, batch.values, batch.headers, strict=True)
        for offset, appended_at, value, headers in columns:
            try:
                record = self._codec.decode(value, headers)
            except EventError:
                continue
            self._note(record, appended_at)
            if self._with_open and isinstance(record, RetrainRequested) and value is not None:
                key = (record.trigger_id, record.policy)
                if key not in self._closed:
                    self._open.setdefault(key, OpenRequest(*key, batch.source, offset, appended_at, value, headers))

    def _note(self, record: LogRecord, at: int) -> None:
        match record:
            case RetrainWithdrawn():
                self._close(record.trigger_id, record.policy, "withdrawn")
            case RetrainExpired():
                self._close(record.trigger_id, record.policy, "expired")
            case RetrainAnswered() if record.status in CLOSING_ANSWERS:
                self._close(record.trigger_id, record.policy, f"answered {record.status}")
            case RetrainAnswered() if record.status == "accepted":
                self._signs[record.trigger_id, record.policy] = Sign(at, record.event_id)

    def _close(self, trigger_id: str, policy: str, how: str) -> None:
        key = (trigger_id, policy)
        self._closed.setdefault(key, how)
        self._signs.pop(key, None)
        self._open.pop(key, None)
