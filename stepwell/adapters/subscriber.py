"""For training services: receive retrain requests and answer them.

Delivery is at least once: a request counts as received only after it was handled, so a crash in the middle brings it
again, with the same ``trigger_id``. Take that as the idempotency key.

The log's consumer lives in a thread of its own. While a request is being worked on its partition is paused and the
thread keeps polling, so that hours of training cost neither the group membership nor requests of policies in other
partitions.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import structlog

from stepwell.adapters.ids import new_event_id
from stepwell.engine.ports import Consumer, MessageLog, TopicPartition
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
    deliveries: tuple[Delivery, ...]
    source: TopicPartition
    end: int


class Subscription:
    """An endless iterator over requests; a context manager.

    The delivery before is taken as handled when the next one is asked for (or `handled` is called). Leaving the loop by
    an exception leaves it unhandled: it comes again.
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
        self._work: queue.Queue[_Work | LogError] = queue.Queue()
        self._finished: queue.Queue[_Work] = queue.Queue()
        self._current: _Work | None = None
        self._closing = threading.Event()
        self._revoked: set[TopicPartition] = set()
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
            yield from self._next_batch(timeout_s=POLL_S)

    def receive(self, timeout_s: float) -> list[Delivery]:
        """The requests that came next, all of one partition and in order; empty when none came in time.

        Call `handled` after working on them.
        """
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            work = self._take(min(left, POLL_S))
            if work is not None:
                return list(work.deliveries)
        return []

    def handled(self) -> None:
        """What was handed out last is done: it won't come again."""
        work, self._current = self._current, None
        if work is not None:
            self._finished.put(work)

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
            LogError: the answer was refused; `LogUnavailableError`: it may or may not be in the log. Call again.
        """
        if status not in STATUSES:
            raise ValueError(f"status must be one of {', '.join(STATUSES)}; got {status!r}")
        answer = RetrainAnswered(
            event_id=new_event_id(),
            run_id=request.run_id,
            episode_id=request.episode_id,
            attempt=request.attempt,
            producer_id="trainer",
            producer_seq=0,
            occurred_at=time.time_ns() // 1000,
            trace_id=request.trace_id,
            trigger_id=request.trigger_id,
            policy=request.policy,
            status=status,
            new_checkpoint=new_checkpoint,
            detail=detail,
        )
        self._producer.send([outgoing(self._codec, answer)])
        self._producer.flush(ANSWER_TIMEOUT_S)

    def close(self) -> None:
        """Commit what was handled, leave the group. Never raises."""
        self._closing.set()
        self._thread.join()
        self._producer.close()
        if self._owns_log:
            self._log.close()

    def _next_batch(self, timeout_s: float) -> Iterator[Delivery]:
        work = self._take(timeout_s)
        if work is not None:
            yield from work.deliveries
            self.handled()

    def _take(self, timeout_s: float) -> _Work | None:
        try:
            work = self._work.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(work, LogError):
            self._closing.set()
            raise work
        self._current = work
        return work

    # --- the consumer's thread ---

    def _run(self, consumer: Consumer) -> None:
        told = False
        try:
            consumer.subscribe([RETRAIN_REQUESTS], on_assign=self._on_assign, on_revoke=self._on_revoke)
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
            self._work.put(error)
        finally:
            consumer.close()

    def _turn(self, consumer: Consumer) -> None:
        for batch in consumer.poll(POLL_RECORDS_MAX, POLL_S):
            deliveries = [
                delivery
                for offset, value, headers in zip(batch.offsets, batch.values, batch.headers, strict=True)
                if (delivery := self._decode(batch.source, offset, value, headers)) is not None
            ]
            work = _Work(tuple(deliveries), batch.source, batch.end)
            if deliveries:
                consumer.pause([batch.source])
                self._work.put(work)
            else:
                self._commit(consumer, work)
        self._commit_finished(consumer)

    def _commit_finished(self, consumer: Consumer) -> None:
        while True:
            try:
                work = self._finished.get_nowait()
            except queue.Empty:
                return
            if work.source in self._revoked:
                continue  # another member has it now and will see these again
            self._commit(consumer, work)
            consumer.resume([work.source])

    def _commit(self, consumer: Consumer, work: _Work) -> None:
        try:
            consumer.commit({work.source: work.end})
        except FencedError:
            _logger.info("partition_moved", partition=work.source.partition)

    def _on_assign(self, sources: list[TopicPartition]) -> None:
        self._revoked.difference_update(sources)

    def _on_revoke(self, sources: list[TopicPartition]) -> None:
        self._revoked.update(sources)

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


def run_for_each(
    subscription: Subscription, work: Callable[[RetrainRequested], tuple[str, str, str | None]], stop: threading.Event
) -> None:
    """Hand each request to ``work`` and answer what it returns (status, detail, new checkpoint), until ``stop``."""
    while not stop.is_set():
        for delivery in subscription.receive(timeout_s=1.0):
            if isinstance(delivery.event, RetrainRequested):
                status, detail, new_checkpoint = work(delivery.event)
                subscription.answer(delivery.event, status, detail=detail, new_checkpoint=new_checkpoint)
        subscription.handled()
