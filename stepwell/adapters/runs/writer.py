"""One thread between those who write facts and the log: it batches, waits out an absent log and keeps the order.

Writers encode their own records (so that a wrong one is refused where it is made) and block only while the queue is
full: that is the back-pressure. A batch that may or may not have reached the log is sent again; readers recognise the
repeated events by producer and sequence.
"""

import threading
from collections import deque

import structlog

from stepwell.engine.ports import MessageLog, OutgoingRecord, Producer
from stepwell.engine.publish import outgoing
from stepwell.events.codec import Codec
from stepwell.events.model import LogRecord
from stepwell.exceptions import LogError, LogUnavailableError, StillQueuedError

_logger = structlog.get_logger(__name__)

CAPACITY_RECORDS = 10_000
CAPACITY_BYTES = 64 * 1024 * 1024
BATCH_RECORDS = 1_000
BATCH_BYTES = 8 * 1024 * 1024
FLUSH_TIMEOUT_S = 10.0
RETRY_PAUSE_S = 0.5
LINGER_S = 0.02


class LogWriter:
    """Appends records to a log from any thread, in the order in which each thread puts them.

    Raises (from `put`, `drain` and `check`):
        LogError: the log refused a record for good; the writer has stopped and nothing put later was written.
    """

    def __init__(
        self, log: MessageLog, codec: Codec, *, capacity: int = CAPACITY_RECORDS, capacity_bytes: int = CAPACITY_BYTES
    ) -> None:
        """At most ``capacity`` records of together ``capacity_bytes`` wait; a single larger one waits alone."""
        self._log = log
        self._codec = codec
        self._capacity = capacity
        self._capacity_bytes = capacity_bytes
        self._changed = threading.Condition()
        self._queue: deque[OutgoingRecord] = deque()
        """What is not durable yet; a batch leaves it once it is."""
        self._queued_bytes = 0
        self._put_count = 0
        self._written_count = 0
        self._failure: LogError | None = None
        self._hurry = False
        self._closing = False
        self._given_up = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    def put(self, record: LogRecord) -> None:
        """Encode and queue a record.

        Raises:
            EncodeError: the record does not fit its schema; nothing was queued.
        """
        encoded = outgoing(self._codec, record)
        size = len(encoded.value or b"")
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or self._closing or self._has_room(size))
            self._check()
            if self._closing:
                raise LogError("the writer is closed; nothing was queued")
            self._queue.append(encoded)
            self._queued_bytes += size
            self._put_count += 1
            self._changed.notify_all()

    @property
    def depth(self) -> int:
        """How many records wait to become durable."""
        return len(self._queue)

    def drain(self, timeout_s: float) -> None:
        """Wait until everything this thread has put is durable.

        Raises:
            LogUnavailableError: the log did not come back in time.
        """
        with self._changed:
            wanted = self._put_count
            self._hurry = True
            self._changed.notify_all()
            done = self._changed.wait_for(lambda: self._failure is not None or self._written_count >= wanted, timeout_s)
            self._check()
            if not done:
                raise LogUnavailableError(
                    f"the log has not taken the last {wanted - self._written_count} facts within {timeout_s:g} s"
                )

    def check(self) -> None:
        """Raise what has stopped the writer, if anything has."""
        with self._changed:
            self._check()

    def close(self, timeout_s: float = FLUSH_TIMEOUT_S) -> None:
        """Write what is queued and stop; give up on it after ``timeout_s``, and say so.

        Never raises; call `drain` first to know that all is durable.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        self._given_up.set()
        with self._changed:
            if self._queue:
                _logger.error("facts_given_up", records=len(self._queue))

    def _has_room(self, size: int) -> bool:
        if not self._queue:
            return True
        return len(self._queue) < self._capacity and self._queued_bytes + size <= self._capacity_bytes

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    # --- the writer's thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            producer = self._log.producer()
            try:
                while (batch := self._take()) and self._append(producer, batch):
                    self._forget(batch)
            finally:
                producer.close()
        except LogError as error:
            self._stop(error)
        except Exception as error:
            _logger.exception("log_writer_broke")
            self._stop(LogError(f"the log's writer broke: {error!r}"))

    def _take(self) -> list[OutgoingRecord]:
        """The next batch, which stays queued; empty once closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing)
            self._changed.wait_for(lambda: self._hurry or self._closing or len(self._queue) >= BATCH_RECORDS, LINGER_S)
            batch: list[OutgoingRecord] = []
            size = 0
            for record in self._queue:
                size += len(record.value or b"")
                if batch and (len(batch) >= BATCH_RECORDS or size > BATCH_BYTES):
                    break
                batch.append(record)
            return batch

    def _append(self, producer: Producer, batch: list[OutgoingRecord]) -> bool:
        """Make a batch durable, however long the log is away; False where `close` has given up on it."""
        told = queued = False
        while not self._given_up.is_set():
            try:
                if not queued:
                    producer.send(batch)
                    queued = True
                producer.flush(FLUSH_TIMEOUT_S)
            except LogUnavailableError as error:
                queued = isinstance(error, StillQueuedError)
                if not told:
                    _logger.warning("log_away", reason=str(error), waiting_records=len(self._queue))
                    told = True
                self._given_up.wait(RETRY_PAUSE_S)
                continue
            if told:
                _logger.info("log_back")
            return True
        return False

    def _forget(self, batch: list[OutgoingRecord]) -> None:
        with self._changed:
            for _ in batch:
                self._queued_bytes -= len(self._queue.popleft().value or b"")
            self._written_count += len(batch)
            if not self._queue:
                self._hurry = False
            self._changed.notify_all()

    def _stop(self, error: LogError) -> None:
        """Let nobody wait any longer for a full queue or a drain."""
        _logger.error("log_writer_stopped", reason=str(error), records_lost=len(self._queue))
        with self._changed:
            self._failure = error
            self._queue.clear()
            self._changed.notify_all()
