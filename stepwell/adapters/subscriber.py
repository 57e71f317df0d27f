"""For training services: receive retrain requests and answer them.

A request is stored in a durable inbox (`stepwell.adapters.inbox`), then the group's position is committed, then it is
worked on. So hours of training do not cost the group membership, and what a process had in its hands when it ended
comes again from the inbox: at least once, with the same ``trigger_id``. Take that as the idempotency key. A request is
taken when somebody waits for one; the others stay in the log. Requests that are closed by the time it is their turn are
passed over.
"""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog

from stepwell.adapters.inbox.desk import Delivery, Desk, Wanted
from stepwell.adapters.inbox.intake import Intake
from stepwell.adapters.inbox.places import open_file, open_member
from stepwell.adapters.inbox.store import Entry, Inbox
from stepwell.adapters.inbox.watch import RequestWatch
from stepwell.adapters.retrain_answers import AnswerWriter
from stepwell.adapters.retrain_history import find_request
from stepwell.engine.detection.ledger import CLOSING_ANSWERS
from stepwell.engine.ports import MessageLog
from stepwell.events.codec import Codec
from stepwell.events.model import RetrainRequested
from stepwell.exceptions import ConfigurationError, LogUnavailableError

__all__ = ["BEING_WORKED_ON", "Delivery", "Subscription", "Wanted", "opened_inbox", "say_accepted"]

_logger = structlog.get_logger(__name__)

POLL_S = 0.2
BEING_WORKED_ON = "being worked on"


def opened_inbox(place: Path, *, log_name: str = "", instance_id: str | None = None) -> Inbox:
    """The inbox of a subscription: ``place`` is a file (it ends with ``.db``), or the folder of the group's inboxes.

    Raises:
        ConfigurationError: another process works with it, it holds another log's requests, or it cannot be made.
    """
    if place.suffix == ".db":
        return open_file(place, log_name)
    return open_member(place, log_name, instance_id)


def say_accepted(desk: Desk, answers: AnswerWriter, codec: Codec, entry: Entry) -> None:
    """Tell the other members that a request is being worked on here."""
    event = codec.decode(entry.value, entry.headers)
    assert isinstance(event, RetrainRequested), "only requests are answered"
    answers.write(
        event,
        "accepted",
        detail=BEING_WORKED_ON,
        new_checkpoint=None,
        before=lambda event_id: desk.inbox.claim(entry.trigger_id, event_id),
    )
    desk.said(entry)


class Subscription:
    """An endless iterator over requests; a context manager.

    A delivery counts as received once it was answered for good (``done``, ``failed`` or ``rejected``), once the next
    one is asked for, or once `handled` is called. Leaving the loop before that leaves it unhandled: it comes again. An
    exception that leaves the ``with`` block, and a process that dies, count as a failure of what was being worked on;
    after ``wanted.failures_max`` of them a request is parked in the inbox.

    A loop works on one request at a time: other policies' requests wait meanwhile, in the log. For work side by side
    several threads may call `receive`: each gets requests of another policy, since those of one policy come one at a
    time and in order. They then name the delivery to `handled` and `put_back`.
    """

    def __init__(
        self,
        log: MessageLog,
        codec: Codec,
        group: str,
        *,
        inbox: Path,
        instance_id: str | None = None,
        wanted: Wanted | None = None,
        log_name: str = "",
        owns_log: bool = False,
    ) -> None:
        """Join ``group``; each request goes to one member of it.

        Args:
            log: where the requests stand.
            codec: decodes them.
            group: the consumer group; services that must each see every request use different ones.
            inbox: a file for this member alone (``….db``), or the folder of the inboxes of this group's members on
                this machine, among which a free one is found. On a disk of this machine.
            instance_id: stable name of this member, so that a restart takes its work back at once.
            wanted: what is handed out, and when it is given up.
            log_name: the log's URL; an inbox keeps to one log.
            owns_log: `close` closes the log, too.

        Raises:
            ConfigurationError: the group has no name, or the inbox cannot be used.
        """
        if not group:
            raise ConfigurationError("a subscription needs a group name, e.g. trainer-a")
        self._log = log
        self._owns_log = owns_log
        self._codec = codec
        self._closing = threading.Event()
        wanted = wanted or Wanted()
        self._inbox = opened_inbox(inbox, log_name=log_name, instance_id=instance_id)
        try:
            watch = RequestWatch(log, codec, with_open=wanted.adopt_after_s is not None)
            self._desk = Desk(self._inbox, watch, codec, wanted)
            self._answers = AnswerWriter(log, codec, group)
            self._intake = Intake(
                log, wanted.members_of(group), instance_id, self._desk, log_name=log_name,
                shares_folder=inbox.suffix != ".db",
                say=self._say_accepted,
            )  # fmt: skip
        except BaseException:
            self._inbox.close()
            raise
        self._left: set[int] = set()
        """Handed out to loops that were left."""

    @property
    def inbox(self) -> Path:
        """The file of this member's inbox."""
        return self._inbox.path

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            for entry in self._desk.out():
                self._desk.fail(entry, f"{type(error).__name__}: {error}", pause=False)
        self.close()

    def __iter__(self) -> Iterator[Delivery]:
        while not self._closing.is_set():
            delivery = self.receive(POLL_S)
            if delivery is None:
                continue
            try:
                yield delivery
            except GeneratorExit:
                # Also where an exception is on its way out; `__exit__` sees it, and what it was about is still out.
                entry = self._desk.out_of(delivery)
                if entry is not None:
                    self._left.add(entry.number)
                raise
            self.handled(delivery)

    def receive(self, timeout_s: float) -> Delivery | None:
        """The request that comes next; None when none came in time. Call `handled` after working on it.

        Raises:
            LogError: the log cannot be read any more.
            InboxError: the inbox's disk is full, or its file is damaged.
        """
        self._take_back_left()
        asker, delivery = object(), None
        deadline = time.monotonic() + timeout_s
        try:
            while not self._closing.is_set():
                if self._intake.failure is not None:
                    raise self._intake.failure
                self._desk.ask(asker)
                delivery = self._take(asker)
                left = deadline - time.monotonic()
                if delivery is not None or left <= 0:
                    return delivery
                self._desk.wait(min(left, POLL_S))
            return None
        finally:
            self._desk.asked(asker, served=delivery is not None)

    def handled(self, delivery: Delivery | None = None) -> None:
        """A delivery is done: this group won't get it again. Says nothing about it to Stepwell.

        Needed only with `receive`, and where a request was not answered for good: answered ``accepted``, or not at all.

        Args:
            delivery: None means what was handed out last.
        """
        for entry in self._named(delivery):
            self._desk.finish(entry, "handled")

    def put_back(self, reason: str, delivery: Delivery | None = None) -> bool:
        """A delivery could not be worked on now: it comes again after a pause, or is parked after too many times.

        Args:
            reason: why; shown by ``stepwell retrain inbox list``.
            delivery: None means what was handed out last.

        Returns:
            whether it was parked.
        """
        return any(self._desk.fail(entry, reason) for entry in self._named(delivery))

    def still_open(self, request: RetrainRequested) -> bool:
        """Whether nobody has closed a request: it was neither answered for good, nor withdrawn, nor has it expired.

        Long work may ask this from time to time, and stop.

        Raises:
            LogUnavailableError: the log does not answer now.
        """
        self._desk.watch.refresh()
        return self._desk.watch.closed(request.trigger_id, request.policy) is None

    def answer(
        self, request: RetrainRequested | str, status: str, *, detail: str = "", new_checkpoint: str | None = None
    ) -> None:
        """Tell Stepwell what became of a request; returns once the answer is durable.

        The first ``done``, ``failed`` or ``rejected`` closes the request; whatever is answered after that is kept and
        changes nothing. Such an answer to a request that is handed out also says that it is `handled`.

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
        self._answers.write(
            request, status, detail=detail, new_checkpoint=new_checkpoint,
            before=lambda event_id: self._inbox.claim(request.trigger_id, event_id),
        )  # fmt: skip
        for entry in self._desk.out():
            if entry.kind == "requested" and entry.trigger_id == request.trigger_id:
                if status in CLOSING_ANSWERS:
                    self._desk.finish(entry, f"answered {status}")
                else:
                    self._desk.said(entry)

    def close(self) -> None:
        """Commit what is stored, put back what is handed out, leave the group. Never raises."""
        self._closing.set()
        self._desk.wake()
        self._intake.close()
        self._answers.close()
        for entry in self._desk.out():
            try:
                self._desk.put_back(entry)
            except Exception as error:  # noqa: BLE001 - it says "working" then, and is recovered at the next start
                _logger.warning("inbox_failed", reason=str(error))
        self._inbox.close()
        if self._owns_log:
            self._log.close()

    def _named(self, delivery: Delivery | None) -> list[Entry]:
        """The entry that is meant, if it is still out."""
        if delivery is None:
            return self._desk.out()[-1:]
        entry = self._desk.out_of(delivery)
        return [entry] if entry is not None else []

    def _take(self, asker: object) -> Delivery | None:
        try:
            found = self._desk.find()
            if found is None or not self._desk.begin(found[0], asker):
                return None
            entry, delivery = found
            if self._desk.adopts and isinstance(delivery.event, RetrainRequested):
                try:
                    self._say_accepted(entry)
                except BaseException:
                    self._desk.put_back(entry)
                    raise
            return delivery
        except LogUnavailableError as error:  # asked again; the intake tells the user's log
            _logger.debug("log_away", reason=str(error))
            return None

    def _say_accepted(self, entry: Entry) -> None:
        say_accepted(self._desk, self._answers, self._codec, entry)

    def _take_back_left(self) -> None:
        left, self._left = self._left, set()
        for entry in self._desk.out():
            if entry.number in left:
                self._desk.put_back(entry)
