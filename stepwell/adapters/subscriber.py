"""For training services: receive retrain requests and answer them.

Delivery is at least once: a request counts as received only after it was handled, so a crash in the middle brings it
again, with the same ``trigger_id``. Take that as the idempotency key. Requests that are closed already are passed over.

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
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

import structlog

from stepwell.adapters.retrain_answers import AnswerWriter
from stepwell.adapters.retrain_history import ClosedRequests, find_request
from stepwell.engine.detection.ledger import CLOSING_ANSWERS
from stepwell.engine.ports import Consumer, MessageLog, RecordBatch, TopicPartition
from stepwell.events.codec import Codec
from stepwell.events.model import RetrainRequested, RetrainWithdrawn
from stepwell.events.topics import RETRAIN_REQUESTS
from stepwell.exceptions import ConfigurationError, EventError, FencedError, LogError, LogUnavailableError

_logger = structlog.get_logger(__name__)

POLL_RECORDS_MAX = 100
POLL_S = 0.2


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

    A delivery counts as received once it was answered for good (``done``, ``failed`` or ``rejected``), once the next
    one is asked for, or once `handled` is called. Leaving the loop before that, by ``break`` or by an exception, leaves
    it unhandled: it comes again.
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
        only_open: bool = True,
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
            only_open: pass over requests that are closed by the time it is their turn, by an answer of whichever group
                or by a withdrawal. False: every request since the log's start.
            owns_log: `close` closes the log, too.
        """
        if not group:
            raise ConfigurationError("a subscription needs a group name, e.g. trainer-a")
        self._log = log
        self._owns_log = owns_log
        self._codec = codec
        self._policies = policies
        self._withdrawals = withdrawals
        self._work: queue.Queue[_Work] = queue.Queue()
        self._next: _Work | None = None
        """Taken from the queue, and not yet known to be open."""
        self._closed = ClosedRequests(log, codec) if only_open else None
        self._finished: deque[_Work] = deque()
        self._current: _Work | None = None
        self._failure: LogError | None = None
        self._closing = threading.Event()
        self._tenures: dict[TopicPartition, int] = {}
        """How often each partition has been taken away. Written by the consumer's thread only."""
        self._answers = AnswerWriter(log, codec, group)
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
            work = self._take(min(max(left, 0.0), POLL_S))
            if work is not None:
                self._current = work
                return work.delivery
            if left <= 0:
                return None
        return None

    def handled(self) -> None:
        """What was handed out last is done: this group won't get it again. Says nothing about it to Stepwell.

        Needed only with `receive`, and where a request was not answered for good: answered ``accepted``, or not at all.
        """
        work, self._current = self._current, None
        if work is not None:
            self._finished.append(work)

    def answer(
        self, request: RetrainRequested | str, status: str, *, detail: str = "", new_checkpoint: str | None = None
    ) -> None:
        """Tell Stepwell what became of a request; returns once the answer is durable.

        The first ``done``, ``failed`` or ``rejected`` closes the request; whatever is answered after that is kept and
        changes nothing. Such an answer to the request handed out last also says that it is `handled`.

        Args:
            request: the request that is answered, or its trigger id, which is looked up in the log.
            status: ``accepted``, ``done``, ``failed`` or ``rejected``.
            detail: free text.
            new_checkpoint: identifies the retrained policy's weights. ``done`` without it is warned of in the log.

        Raises:
            ValueError: no such status.
            NotFoundError: there is no request with this trigger id in the log.
            LogError: the answer was refused.
            LogUnavailableError: it may or may not be in the log. Call again; an answer given twice counts once.
        """
        if isinstance(request, str):
            request = find_request(self._log, self._codec, request).request
        self._answers.write(request, status, detail=detail, new_checkpoint=new_checkpoint)
        current = self._current
        if current is None or status not in CLOSING_ANSWERS:
            return
        event = current.delivery.event
        if isinstance(event, RetrainRequested) and event.trigger_id == request.trigger_id:
            self.handled()

    def close(self) -> None:
        """Commit what was handled, leave the group. Never raises."""
        self._closing.set()
        self._thread.join()
        self._answers.close()
        if self._owns_log:
            self._log.close()

    def _take(self, timeout_s: float) -> _Work | None:
        """What is to be handed out next, if there is something after so long."""
        if self._next is None:
            try:
                self._next = self._work.get(timeout=timeout_s)
            except queue.Empty:
                return None
        work = self._next
        if self._is_ours(work):  # else another member has it now
            try:
                is_closed = self._is_closed(work.delivery)
            except LogUnavailableError as error:  # asked again; the consumer's thread tells the user's log
                _logger.debug("log_away", reason=str(error))
                self._closing.wait(timeout_s)
                return None
            if not is_closed:
                self._next = None
                return work
            self._pass_over(work)
        self._next = None
        return None

    def _pass_over(self, work: _Work) -> None:
        current = self._current
        if current is None or (current.delivery.source, current.tenure) != (work.delivery.source, work.tenure):
            self._finished.append(work)
        else:  # what stands before it is still being worked on: both are committed once that is handled
            self._current = replace(current, done_at=work.done_at, last=work.last)

    def _is_closed(self, delivery: Delivery) -> bool:
        event = delivery.event
        return self._closed is not None and isinstance(event, RetrainRequested) and self._closed.holds(event)

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
