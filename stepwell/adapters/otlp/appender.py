"""One thread between the requests and the log: what waits is appended together, and each request hears how it went."""

import contextlib
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future

import structlog

from stepwell.engine.ports import MessageLog, OutgoingRecord, Producer
from stepwell.engine.vitals import LOG, Vitals
from stepwell.events.topics import BY_NAME, TELEMETRY
from stepwell.exceptions import LogError, LogUnavailableError, StillQueuedError

__all__ = ["Appender"]

FLUSH_TIMEOUT_S = 5.0
"""How long a batch may take (s). Senders give up on a request after 10 s, unless told otherwise."""
AWAY_TIMEOUT_S = 0.5
"""The same while the log is known to be away."""
PROBE_S = 1.0
"""So often the log is asked whether it is back while nobody sends (s)."""
BATCH_RECORDS = 1_000
_CLOSE_TIMEOUT_S = 15.0

_logger = structlog.get_logger(__name__)
_Waiting = tuple[Sequence[OutgoingRecord], Future[None]]


class Appender:
    """Appends records; many requests at once share one wait for the log.

    While the log is away every request is refused after at most `FLUSH_TIMEOUT_S`, so that nothing piles up here: the
    senders keep what they have and send it again. What the log may have taken all the same comes twice then. That it is
    back is found without a request, too: probes tell senders to stay away until then.
    """

    def __init__(self, log: MessageLog, vitals: Vitals) -> None:
        self._message_log = log
        self._vitals = vitals
        self._waiting: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._producer: Producer | None = None
        self._queued = False
        self._said = False
        self._thread = threading.Thread(target=self._run, name="otlp-appender", daemon=True)
        self._thread.start()

    def append(self, records: Sequence[OutgoingRecord]) -> Future[None]:
        """Done once all the records are durable in the log; fails with `LogError`."""
        future: Future[None] = Future()
        self._waiting.put((records, future))
        return future

    def close(self) -> None:
        """Append what waits and let go."""
        self._waiting.put(None)
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        going = True
        while going:
            batch, going = self._take()
            if not batch:
                if going:
                    self._probe()
                continue
            try:
                self._append([record for records, _ in batch for record in records])
            except LogError as error:
                self._say_away(error)
                for _, future in batch:
                    future.set_exception(error)
            except Exception as error:  # a defect of ours costs these requests and not the receiver
                for _, future in batch:
                    future.set_exception(LogError(f"the appender broke: {error!r}"))
                _logger.exception("appender broke")
                self._drop_producer()
            else:
                self._say_there()
                for _, future in batch:
                    future.set_result(None)
        self._drop_producer()

    def _take(self) -> tuple[list[_Waiting], bool]:
        """What waits, without those who no longer wait for an answer; False after the last. Nothing: probe."""
        batch: list[_Waiting] = []
        count = 0
        try:
            item = self._waiting.get(timeout=PROBE_S if self._said else None)
        except queue.Empty:
            return batch, True
        while item is not None:
            if item[1].set_running_or_notify_cancel():
                batch.append(item)
                count += len(item[0])
            if count >= BATCH_RECORDS:
                return batch, True
            try:
                item = self._waiting.get_nowait()
            except queue.Empty:
                return batch, True
        return batch, False

    def _probe(self) -> None:
        """See whether the log is back, where it was away."""
        if not self._said:
            return
        try:
            if self._producer is not None and self._queued:
                self._producer.flush(AWAY_TIMEOUT_S)
                self._queued = False
            else:
                with contextlib.closing(self._message_log.admin()) as admin:
                    admin.create([BY_NAME[TELEMETRY]])
                    admin.watermarks(TELEMETRY)
        except StillQueuedError:
            return
        except LogUnavailableError:
            self._queued = False
        except LogError:
            self._drop_producer()
        except Exception:
            _logger.exception("appender broke")
            self._drop_producer()
        else:
            self._say_there()

    def _append(self, records: Sequence[OutgoingRecord]) -> None:
        try:
            if self._producer is None:
                self._producer = self._new_producer()
            if self._queued:
                # Of an earlier batch. Nothing is added to it, so that an outage costs no memory.
                self._producer.flush(AWAY_TIMEOUT_S)
                self._queued = False
            self._producer.send(records)
            self._producer.flush(FLUSH_TIMEOUT_S)
        except StillQueuedError:
            self._queued = True
            raise
        except LogUnavailableError:
            raise
        except LogError:
            self._drop_producer()
            raise

    def _new_producer(self) -> Producer:
        with contextlib.closing(self._message_log.admin()) as admin:
            admin.create([BY_NAME[TELEMETRY]])
        return self._message_log.producer(quiet=True)

    def _drop_producer(self) -> None:
        self._queued = False
        if self._producer is not None:
            self._producer.close()
            self._producer = None

    def _say_away(self, error: LogError) -> None:
        self._vitals.waits(LOG, str(error))
        if not self._said:
            self._said = True
            _logger.warning("log takes nothing, refusing requests until it does", reason=str(error))

    def _say_there(self) -> None:
        self._vitals.has(LOG)
        if self._said:
            self._said = False
            _logger.info("log is back")
