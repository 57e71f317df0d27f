"""For training services: receive retrain requests and answer them.

Delivery is at least once: a request counts as received only after it was handled, so a crash in the middle brings it
again, with the same ``trigger_id``. Take that as the idempotency key.

The log's consumer lives in a thread of its own. While a request is being worked on its partition is paused and the
thread keeps polling, so that hours of training cost neither the group membership nor requests of policies in other
partitions.
"""

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import structlog

from stepwell.adapters.ids import new_event_id
from stepwell.engine.ports import Consumer, MessageLog, RecordBatch, TopicPartition
from stepwell.engine.publish import outgoing
from stepwell.events.codec import Codec
from stepwell.events.model import RetrainAnswered, RetrainRequested, RetrainWithdrawn
from stepwell.events.topics import RETRAIN_REQUESTS
from stepwell.exceptions import ConfigurationError, EventError, FencedError, LogError, LogUnavailableError

_logger = structlog.get_logger(__name__)

STATUSES = ("accepted", "done", "failed", "rejected")
POLL_RECORDS_MAX = 100
POLL_S = 0.2
ANSWER_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Delivery:
    """One request, with where it stood in the log.

    Attributes:
        event: the request, or its withdrawal.
        source, offset: its place in ``stepwell.retrain-requests``.
    """

    event: RetrainRequested | RetrainWithdrawn
    source: TopicPartition
    offset: int


@dataclass(frozen=True, slots=True)
class _Work:
    """One delivery on its way.

    Attributes:
        delivery: what is handed out.
        done_at: the position to commit once it was handled: everything below has been handled, or concerns nobody here.
        last: whether it is the last of what was read; then its partition goes on.
        tenure: how often the partition had been taken away when it was read.
    """

    delivery: Delivery
    done_at: int
    last: bool
    tenure: int


class Subscription:
    """An endless iterator over requests; a context manager.

    The delivery before is taken as handled when the next one is asked for (or `handled` is called). Leaving the loop,
    by ``break`` or by an exception, leaves the last one unhandled: it comes again.
    """

    def __init__(
        self,
        log: MessageLog,
        codec: Codec,
        group: str,
        *,
        instance_id: str | None = None,
        policies: frozenset[str] | None = None,
        withdrawals: bool = False,
        owns_log: bool = False,
    ) -> None:
        """Join ``group``; each request goes to one member of it.

        Args:
            log: where the requests stand.
            codec: decodes them.
            group: the consumer group; services that must each see every request use different ones.
            instance_id: stable name of this member, so that a restart takes its work back at once.
            policies: only requests for these policies; None for all.
            withdrawals: hand out `RetrainWithdrawn` too.
            owns_log: `close` closes the log, too.
        """
        if not group:
            raise ConfigurationError("a subscription needs a group name, e.g. trainer-a")
        self._log = log
        self._owns_log = owns_log
        self._codec = codec
        self._policies = policies
        self._withdrawals = withdrawals
        self._group = group
        self._work: queue.Queue[_Work] = queue.Queue()
        self._finished: deque[_Work] = deque()
        self._current: _Work | None = None
        self._failure: LogError | None = None
        self._closing = threading.Event()
        self._tenures: dict[TopicPartition, int] = {}
        """How often each partition has been taken away. Written by the consumer's thread only."""
        self._producer = log.producer()
        consumer = log.consumer(group=group, instance_id=instance_id)
        self._thread = threading.Thread(target=self._run, args=(consumer,), name="subscription", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Delivery]:
        while not self._closing.is_set():
            delivery = self.receive(POLL_S)
            if delivery is not None:
                yield delivery
                self.handled()

    def receive(self, timeout_s: float) -> Delivery | None:
        """The request that comes next; None when none came in time. Call `handled` after working on it.

        Raises:
            LogError: the log cannot be read any more.
        """
        deadline = time.monotonic() + timeout_s
        while not self._closing.is_set():
            if self._failure is not None:
                raise self._failure
            left = deadline - time.monotonic()
            try:
                work = self._work.get(timeout=min(max(left, 0.0), POLL_S))
            except queue.Empty:
                if left <= 0:
                    return None
                continue
            if self._is_ours(work):  # else another member has it now
                self._current = work
                return work.delivery
        return None

    def handled(self) -> None:
        """What was handed out last is done: it won't come again."""
        work, self._current = self._current, None
        if work is not None:
            self._finished.append(work)

    def answer(
        self, request: RetrainRequested, status: str, *, detail: str = "", new_checkpoint: str | None = None
    ) -> None:
        """Tell Stepwell what became of a request; returns once the answer is durable.

        Args:
            request: the request that is answered.
            status: ``accepted``, ``done``, ``failed`` or ``rejected``.
            detail: free text.
            new_checkpoint: identifies the retrained policy's weights.

        Raises:
            ValueError: no such status.
            LogError: the answer was refused.
            LogUnavailableError: it may or may not be in the log. Call again; an answer given twice counts once.
        """
        if status not in STATUSES:
            raise ValueError(f"status must be one of {', '.join(STATUSES)}; got {status!r}")
        answer = RetrainAnswered(
            event_id=new_event_id(),
            run_id=request.run_id,
            episode_id=request.episode_id,
            attempt=request.attempt,
            producer_id=self._group,
            producer_seq=0,
            occurred_at=time.time_ns() // 1000,
            trace_id=request.trace_id,
            trigger_id=request.trigger_id,
            policy=request.policy,
            status=status,
            new_checkpoint=new_checkpoint,
            detail=detail,
        )
        record = outgoing(self._codec, answer)
        try:
            self._producer.send([record])
        except LogUnavailableError:
            # An answer from before was refused meanwhile; the producer tells why, and is then ready again.
            with contextlib.suppress(LogUnavailableError):
                self._producer.flush(ANSWER_TIMEOUT_S)
            self._producer.send([record])
        self._producer.flush(ANSWER_TIMEOUT_S)

    def close(self) -> None:
        """Commit what was handled, leave the group. Never raises."""
        self._closing.set()
        self._thread.join()
        self._producer.close()
        if self._owns_log:
            self._log.close()

    def _is_ours(self, work: _Work) -> bool:
        return self._tenures.get(work.delivery.source, 0) == work.tenure

    # --- the consumer's thread ---

    def _run(self, consumer: Consumer) -> None:
        told = False
        try:
            consumer.subscribe([RETRAIN_REQUESTS], on_revoke=self._on_revoke)
            while not self._closing.is_set():
                try:
                    self._turn(consumer)
                    told = False
                except LogUnavailableError as error:
                    if not told:
                        _logger.warning("log_away", reason=str(error))
                        told = True
                    self._closing.wait(POLL_S)
            self._commit_finished(consumer)
        except LogError as error:
            self._failure = error
        except Exception as error:
            _logger.exception("subscription_broke")
            self._failure = LogError(f"the subscription broke: {error!r}")
        finally:
            consumer.close()

    def _turn(self, consumer: Consumer) -> None:
        self._commit_finished(consumer)
        passed: dict[TopicPartition, int] = {}
        for batch in consumer.poll(POLL_RECORDS_MAX, POLL_S):
            if not self._hand_out(consumer, batch):
                passed[batch.source] = batch.end
        for source, end in passed.items():
            with contextlib.suppress(FencedError):  # passed over again then, by whoever has it now
                consumer.commit({source: end})

    def _hand_out(self, consumer: Consumer, batch: RecordBatch) -> bool:
        """Queue the deliveries of a batch and pause its partition; False where it holds none for us."""
        deliveries = [
            delivery
            for offset, value, headers in zip(batch.offsets, batch.values, batch.headers, strict=True)
            if (delivery := self._decode(batch.source, offset, value, headers)) is not None
        ]
        if not deliveries:
            return False
        consumer.pause([batch.source])
        ends = [*(delivery.offset for delivery in deliveries[1:]), batch.end]
        tenure = self._tenures.get(batch.source, 0)
        for delivery, end in zip(deliveries, ends, strict=True):
            self._work.put(_Work(delivery, end, end == batch.end, tenure))
        return True

    def _commit_finished(self, consumer: Consumer) -> None:
        while self._finished:
            work = self._finished[0]
            if self._is_ours(work):  # else another member has it now and will see it again
                source = work.delivery.source
                try:
                    consumer.commit({source: work.done_at})
                except FencedError as error:
                    # Taken away, or only on the move: the next poll tells which.
                    _logger.info("commit_refused", partition=source.partition, reason=str(error))
                    return
                if work.last:
                    consumer.resume([source])
            self._finished.popleft()  # only now: where the log is away, it is committed later

    def _on_revoke(self, sources: list[TopicPartition]) -> None:
        for source in sources:
            self._tenures[source] = self._tenures.get(source, 0) + 1

    def _decode(
        self,
        source: TopicPartition,
        offset: int,
        value: bytes | None,
        headers: tuple[tuple[str, bytes | None], ...],
    ) -> Delivery | None:
        try:
            event = self._codec.decode(value, headers)
        except EventError as error:
            # The topic is written by the engine only; still, one torn record must not stop the service.
            _logger.error("unreadable_request", partition=source.partition, offset=offset, reason=str(error))
            return None
        if isinstance(event, RetrainWithdrawn) and not self._withdrawals:
            return None
        if not isinstance(event, RetrainRequested | RetrainWithdrawn):
            return None
        if self._policies is not None and event.policy not in self._policies:
            return None
        return Delivery(event, source, offset)
