"""One thread between those who write facts and the log: it batches, waits out an absent log and keeps the order.

Writers encode their own records (so that a wrong one is refused where it is made) and block only while the queue is
full: that is the back-pressure. A batch that may or may not have reached the log is sent again; readers recognise the
repeated events by producer and sequence.
"""

import queue
import threading
import time

import structlog

from stepwell.engine.ports import MessageLog, OutgoingRecord, Producer
from stepwell.engine.publish import outgoing
from stepwell.events.codec import Codec
from stepwell.events.model import LogRecord
from stepwell.exceptions import LogError, LogUnavailableError

_logger = structlog.get_logger(__name__)

CAPACITY = 10_000
BATCH_MAX = 1_000
FLUSH_TIMEOUT_S = 30.0
RETRY_PAUSE_S = 0.5
LINGER_S = 0.02


class LogWriter:
    """Appends records to a log from any thread, in the order in which each thread puts them.

    Raises (from `put` and `drain`):
        LogError: the log refused a record for good; the writer has stopped and nothing put later was written.
    """

    def __init__(self, log: MessageLog, codec: Codec) -> None:
        self._log = log
        self._codec = codec
        self._queue: queue.Queue[OutgoingRecord | threading.Event | None] = queue.Queue(CAPACITY)
        self._failure: LogError | None = None
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    def put(self, record: LogRecord) -> None:
        """Encode and queue a record.

        Raises:
            EncodeError: the record does not fit its schema; nothing was queued.
        """
        encoded = outgoing(self._codec, record)
        self._check()
        self._queue.put(encoded)

    def drain(self, timeout_s: float) -> None:
        """Wait until everything this thread has put is durable.

        Raises:
            LogUnavailableError: the log did not come back in time.
        """
        done = threading.Event()
        self._queue.put(done)
        deadline = time.monotonic() + timeout_s
        while not done.wait(0.2):
            self._check()
            if time.monotonic() > deadline:
                raise LogUnavailableError(f"the log has not taken the last facts within {timeout_s:g} s")
        self._check()

    def close(self) -> None:
        """Write what is queued and stop. Never raises; call `drain` first to know that all is durable."""
        self._queue.put(None)
        self._thread.join()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        producer = self._log.producer()
        try:
            while self._step(producer):
                pass
        except LogError as error:
            self._failure = error
            _logger.error("log_writer_stopped", reason=str(error))
            self._discard()
        finally:
            producer.close()

    def _step(self, producer: Producer) -> bool:
        """Take what is queued, make it durable, tell those who wait. False once closed."""
        records, waiting, closed = self._take()
        if records:
            self._append(producer, records)
        for done in waiting:
            done.set()
        return not closed

    def _take(self) -> tuple[list[OutgoingRecord], list[threading.Event], bool]:
        records: list[OutgoingRecord] = []
        waiting: list[threading.Event] = []
        item = self._queue.get()
        deadline = time.monotonic() + LINGER_S
        while True:
            if item is None:
                return records, waiting, True
            if isinstance(item, threading.Event):
                # Somebody waits for what came before: write at once.
                waiting.append(item)
                return records, waiting, False
            records.append(item)
            if len(records) >= BATCH_MAX:
                return records, waiting, False
            try:
                item = self._queue.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return records, waiting, False

    def _append(self, producer: Producer, records: list[OutgoingRecord]) -> None:
        told = False
        while True:
            try:
                producer.send(records)
                producer.flush(FLUSH_TIMEOUT_S)
            except LogUnavailableError as error:
                if not told:
                    _logger.warning("log_away", reason=str(error), waiting_records=self._queue.qsize() + len(records))
                    told = True
                time.sleep(RETRY_PAUSE_S)
                continue
            if told:
                _logger.info("log_back")
            return

    def _discard(self) -> None:
        """After a refusal: let nobody block for ever on a full queue or a drain."""
        while True:
            item = self._queue.get()
            if item is None:
                return
            if isinstance(item, threading.Event):
                item.set()
