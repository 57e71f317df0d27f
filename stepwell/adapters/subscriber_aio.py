"""For training services that are asyncio: the same promises as `stepwell.adapters.subscriber`, without blocking.

On Kafka the membership and the answers are aiokafka's; whether a request is still open is looked up in a thread. On the
local log everything that waits runs in threads.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import structlog

from stepwell.adapters.inbox.desk import Delivery, Desk, Wanted
from stepwell.adapters.inbox.intake import Intake
from stepwell.adapters.inbox.store import Entry, Inbox
from stepwell.adapters.inbox.watch import RequestWatch
from stepwell.adapters.logs import open_log
from stepwell.adapters.retrain_answers import ANSWER_TIMEOUT_S, AnswerWriter, new_answer
from stepwell.adapters.retrain_history import find_request
from stepwell.adapters.subscriber import BEING_WORKED_ON, opened_inbox, say_accepted
from stepwell.engine.detection.ledger import CLOSING_ANSWERS
from stepwell.engine.ports import MessageLog
from stepwell.engine.publish import outgoing
from stepwell.events.codec import Codec
from stepwell.events.model import RetrainRequested
from stepwell.exceptions import ConfigurationError, LogError, LogUnavailableError, StepwellError

__all__ = ["AsyncSubscription"]

_logger = structlog.get_logger(__name__)

POLL_S = 0.1
_KAFKA = "kafka://"


class _Answers(Protocol):
    async def write(
        self, request: RetrainRequested, status: str, *, detail: str, new_checkpoint: str | None,
        before: Callable[[bytes], None],
    ) -> None: ...  # fmt: skip

    async def close(self) -> None: ...


class _Intake(Protocol):
    failure: StepwellError | None


class AsyncSubscription:
    """An endless async iterator over requests, and an async context manager; made by `stepwell.subscribe_async`.

    As `stepwell.adapters.subscriber.Subscription`. A cancellation at any point loses nothing: what was handed out and
    is not handled comes again, and counts as no failure. A loop works on one request at a time; for work side by side
    several tasks may call `receive`.
    """

    def __init__(
        self, url: str, codec: Codec, group: str, *, inbox: Path, instance_id: str | None = None,
        wanted: Wanted | None = None,
    ) -> None:  # fmt: skip
        """Remember what to join; ``async with`` does so.

        Args:
            url: the log's URL.
            codec: decodes the requests.
            group: the consumer group.
            inbox: a file, or the folder of the group's inboxes, as for `stepwell.adapters.subscriber.Subscription`.
            instance_id: stable name of this member.
            wanted: what is handed out, and when it is given up.

        Raises:
            ConfigurationError: the group has no name.
        """
        if not group:
            raise ConfigurationError("a subscription needs a group name, e.g. trainer-a")
        self._url = url
        self._codec = codec
        self._group = group
        self._inbox_place = inbox
        self._instance_id = instance_id
        self._wanted = wanted or Wanted()
        self._finding: asyncio.Future[tuple[Entry, Delivery] | None] | None = None
        self._turn = asyncio.Lock()
        self._left: set[int] = set()
        self._open = False
        self._stack = contextlib.AsyncExitStack()
        self._log: MessageLog
        self._inbox: Inbox
        self._desk: Desk
        self._answers: _Answers
        self._intake: _Intake

    @property
    def inbox(self) -> Path:
        """The file of this member's inbox; inside ``async with``."""
        return self._inbox.path

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            self._log = open_log(self._url)
            stack.callback(self._log.close)
            self._inbox = opened_inbox(self._inbox_place, log_name=self._url, instance_id=self._instance_id)
            stack.callback(self._inbox.close)
            watch = RequestWatch(self._log, self._codec, with_open=self._wanted.adopt_after_s is not None)
            self._desk = Desk(self._inbox, watch, self._codec, self._wanted)
            stack.callback(self._put_back_all)
            stack.push_async_callback(self._found_out)
            if self._url.startswith(_KAFKA):
                self._start_on_kafka(stack)
            else:
                self._start_with_threads(stack)
            self._stack = stack.pop_all()
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and self._open:
            for entry in self._desk.out():
                self._desk.fail(entry, f"{type(error).__name__}: {error}", pause=False)
        await self.aclose()

    async def __aiter__(self) -> AsyncIterator[Delivery]:
        while self._open:
            delivery = await self.receive(POLL_S)
            if delivery is None:
                continue
            try:
                yield delivery
            except GeneratorExit:
                entry = self._desk.out_of(delivery)
                if entry is not None:
                    self._left.add(entry.number)
                raise
            await self.handled(delivery)

    async def receive(self, timeout_s: float) -> Delivery | None:
        """The request that comes next; None when none came in time. Call `handled` after working on it.

        Raises:
            LogError: the log cannot be read any more.
            InboxError: the inbox's disk is full, or its file is damaged.
        """
        self._take_back_left()
        asker, delivery = object(), None
        deadline = time.monotonic() + timeout_s
        try:
            while self._open:
                if self._intake.failure is not None:
                    raise self._intake.failure
                self._desk.ask(asker)
                delivery = await self._take(asker)
                left = deadline - time.monotonic()
                if delivery is not None or left <= 0:
                    return delivery
                await asyncio.sleep(min(left, POLL_S))
            return None
        finally:
            self._desk.asked(asker, served=delivery is not None)

    async def handled(self, delivery: Delivery | None = None) -> None:
        """See `stepwell.adapters.subscriber.Subscription.handled`."""
        for entry in self._named(delivery):
            self._desk.finish(entry, "handled")

    async def put_back(self, reason: str, delivery: Delivery | None = None) -> bool:
        """See `stepwell.adapters.subscriber.Subscription.put_back`."""
        return any(self._desk.fail(entry, reason) for entry in self._named(delivery))

    async def still_open(self, request: RetrainRequested) -> bool:
        """See `stepwell.adapters.subscriber.Subscription.still_open`."""
        await asyncio.to_thread(self._desk.watch.refresh)
        return self._desk.watch.closed(request.trigger_id, request.policy) is None

    async def answer(
        self, request: RetrainRequested | str, status: str, *, detail: str = "", new_checkpoint: str | None = None
    ) -> None:
        """See `stepwell.adapters.subscriber.Subscription.answer`.

        Where it is cancelled, the answer may or may not be in the log. Call again; an answer given twice counts once.
        """
        if isinstance(request, str):
            request = (await asyncio.to_thread(find_request, self._log, self._codec, request)).request
        await self._write(request, status, detail, new_checkpoint)
        for entry in self._desk.out():
            if entry.kind == "requested" and entry.trigger_id == request.trigger_id:
                if status in CLOSING_ANSWERS:
                    self._desk.finish(entry, f"answered {status}")
                else:
                    self._desk.said(entry)

    async def aclose(self) -> None:
        """Commit what is stored, put back what is handed out, leave the group."""
        self._open = False
        await self._stack.aclose()

    # --- how it is put together ---

    def _start_on_kafka(self, stack: contextlib.AsyncExitStack) -> None:
        from stepwell.adapters.inbox.intake_aio import KafkaIntake

        bootstrap = self._url.removeprefix(_KAFKA).rstrip("/")
        self._answers = _KafkaAnswers(bootstrap, self._codec, self._group)
        stack.push_async_callback(self._answers.close)
        intake = KafkaIntake(
            bootstrap, self._log, self._wanted.members_of(self._group), self._instance_id, self._desk,
            log_name=self._url, shares_folder=self._shares_folder, say=self._say_accepted,
        )  # fmt: skip
        self._intake = intake
        stack.push_async_callback(intake.close)

    def _start_with_threads(self, stack: contextlib.AsyncExitStack) -> None:
        writer = AnswerWriter(self._log, self._codec, self._group)
        self._answers = _ThreadedAnswers(writer)
        stack.push_async_callback(self._answers.close)
        intake = Intake(
            self._log, self._wanted.members_of(self._group), self._instance_id, self._desk, log_name=self._url,
            shares_folder=self._shares_folder, say=lambda entry: say_accepted(self._desk, writer, self._codec, entry),
        )  # fmt: skip
        self._intake = intake
        stack.push_async_callback(asyncio.to_thread, intake.close)

    @property
    def _shares_folder(self) -> bool:
        return self._inbox_place.suffix != ".db"

    async def _take(self, asker: object) -> Delivery | None:
        found = await self._find()
        if found is None or not self._desk.begin(found[0], asker):
            return None
        entry, delivery = found
        if self._desk.adopts and isinstance(delivery.event, RetrainRequested):
            try:
                await self._say_accepted(entry)
            except LogUnavailableError as error:
                self._desk.put_back(entry)
                _logger.debug("log_away", reason=str(error))
                return None
            except BaseException:
                self._desk.put_back(entry)
                raise
        return delivery

    async def _find(self) -> tuple[Entry, Delivery] | None:
        """`Desk.find` in a thread, one at a time. It changes nothing of what it finds, so it may be cancelled."""
        async with self._turn:
            await self._found_out()
            self._finding = asyncio.ensure_future(asyncio.to_thread(self._desk.find))
            try:
                return await asyncio.shield(self._finding)
            except LogUnavailableError as error:  # asked again; the intake tells the user's log
                _logger.debug("log_away", reason=str(error))
                return None

    async def _found_out(self) -> None:
        """Wait until no thread is looking any more."""
        if self._finding is not None:
            with contextlib.suppress(StepwellError):
                await self._finding
            self._finding = None

    async def _say_accepted(self, entry: Entry) -> None:
        event = self._codec.decode(entry.value, entry.headers)
        assert isinstance(event, RetrainRequested), "only requests are answered"
        await self._write(event, "accepted", BEING_WORKED_ON, None)
        self._desk.said(entry)

    async def _write(self, request: RetrainRequested, status: str, detail: str, new_checkpoint: str | None) -> None:
        await self._answers.write(
            request, status, detail=detail, new_checkpoint=new_checkpoint,
            before=lambda event_id: self._inbox.claim(request.trigger_id, event_id),
        )  # fmt: skip

    def _named(self, delivery: Delivery | None) -> list[Entry]:
        if delivery is None:
            return self._desk.out()[-1:]
        entry = self._desk.out_of(delivery)
        return [entry] if entry is not None else []

    def _take_back_left(self) -> None:
        left, self._left = self._left, set()
        for entry in self._desk.out():
            if entry.number in left:
                self._desk.put_back(entry)

    def _put_back_all(self) -> None:
        for entry in self._desk.out():
            try:
                self._desk.put_back(entry)
            except StepwellError as error:  # it says "working" then, and is recovered at the next start
                _logger.warning("inbox_failed", reason=str(error))


class _ThreadedAnswers:
    """Answers by the log's own producer, in a thread."""

    def __init__(self, writer: AnswerWriter) -> None:
        self._writer = writer

    async def write(
        self, request: RetrainRequested, status: str, *, detail: str, new_checkpoint: str | None,
        before: Callable[[bytes], None],
    ) -> None:  # fmt: skip
        await asyncio.to_thread(
            self._writer.write, request, status, detail=detail, new_checkpoint=new_checkpoint, before=before
        )

    async def close(self) -> None:
        await asyncio.to_thread(self._writer.close)


class _KafkaAnswers:
    """Answers by aiokafka's producer, which is started with the first one."""

    def __init__(self, bootstrap: str, codec: Codec, trainer: str) -> None:
        self._bootstrap = bootstrap
        self._codec = codec
        self._trainer = trainer
        self._stack = contextlib.AsyncExitStack()
        self._starting = asyncio.Lock()
        self._producer: Any = None

    async def write(
        self, request: RetrainRequested, status: str, *, detail: str, new_checkpoint: str | None,
        before: Callable[[bytes], None],
    ) -> None:  # fmt: skip
        from stepwell.adapters.logs.aio import open_producer, send_durably

        answer = new_answer(request, self._trainer, status, detail=detail, new_checkpoint=new_checkpoint)
        record = outgoing(self._codec, answer)
        before(answer.event_id)
        async with self._starting:
            if self._producer is None:
                self._producer = await self._stack.enter_async_context(open_producer(self._bootstrap))
        await send_durably(self._producer, record, ANSWER_TIMEOUT_S)

    async def close(self) -> None:
        with contextlib.suppress(LogError):
            await self._stack.aclose()
