"""From the log into the inbox: store, commit, and only then hand out. A thread of its own, which also keeps the group
membership alive while requests are worked on for hours. It takes what somebody waits for (`inbox.window`).
"""

import contextlib
import threading
import time
from collections.abc import Callable, Mapping

import structlog

from stepwell.adapters.inbox.desk import SIGNS_PER_SILENCE, Desk
from stepwell.adapters.inbox.places import take_over
from stepwell.adapters.inbox.store import Entry
from stepwell.adapters.inbox.window import Windows
from stepwell.engine.ports import Consumer, MessageLog, TopicPartition
from stepwell.events.topics import RETRAIN_REQUESTS
from stepwell.exceptions import FencedError, LogError, LogUnavailableError, StepwellError

_logger = structlog.get_logger(__name__)

POLL_RECORDS_MAX = 100
POLL_S = 0.2
QUICK_POLL_S = 0.05
"""Where something is looked at already: who comes to ask for it shall not wait long."""
CLOSED_EVERY_S = 10.0
"""How often what is looked at and not taken is compared with what was closed."""
SIBLINGS_EVERY_S = 30.0
LOOK_ROUND_MIN_S = 0.1


class Ledge:
    """What is stored in the inbox and waits for the group's commit. One intake uses it, from one thread at a time."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._ends: dict[TopicPartition, int] = {}
        self._unsure: set[TopicPartition] = set()
        self.in_doubt = True
        """Whether something may have been committed that the inbox has not heard of; at first it may."""

    @property
    def ends(self) -> dict[TopicPartition, int]:
        """The positions to commit."""
        return dict(self._ends)

    def stored(self, source: TopicPartition, end: int) -> None:
        """Everything of a partition below ``end`` that concerns us is in the inbox."""
        self._ends[source] = end

    def committed(self, positions: Mapping[TopicPartition, int]) -> None:
        """The group's positions are these now."""
        self._desk.inbox.confirm(positions)
        self._desk.wake()
        for source, end in positions.items():
            if self._ends.get(source, end) <= end:
                self._ends.pop(source, None)
            self._unsure.discard(source)

    def unsure(self) -> None:
        """A commit was sent, and nobody knows whether it took effect."""
        self._unsure.update(self._ends)

    def revoked(self, sources: list[TopicPartition]) -> None:
        """Partitions go to another member. What was not committed it will read, and what may have been is in doubt."""
        for source in sources:
            if self._ends.pop(source, None) is None:
                continue
            if source in self._unsure:
                self._unsure.discard(source)
                self.in_doubt = True
            else:
                self._desk.inbox.let_go(source)

    def settle(self, positions: Mapping[TopicPartition, int | None]) -> None:
        """Decide what is in doubt by the group's positions: below them it is ours, above the log brings it again."""
        for source in self._desk.inbox.unconfirmed() - self._ends.keys():
            self._desk.inbox.confirm({source: positions.get(source) or 0})
            self._desk.inbox.let_go(source)
        self.in_doubt = False


class Intake:
    """The thread. `failure` holds what ended it.

    Args:
        log: where the requests stand.
        group, instance_id: the membership.
        desk: whose inbox is filled.
        log_name: the log's URL; inboxes of members that are gone are taken over where they have the same.
        shares_folder: whether there can be such inboxes beside this one.
        say: tells the log that an entry is still being worked on.
    """

    def __init__(
        self, log: MessageLog, group: str, instance_id: str | None, desk: Desk, *, log_name: str, shares_folder: bool,
        say: Callable[[Entry], None],
    ) -> None:  # fmt: skip
        self.failure: StepwellError | None = None
        self._log = log
        self._group = group
        self._desk = desk
        self._log_name = log_name
        self._shares_folder = shares_folder
        self._say = say
        self._ledge = Ledge(desk)
        self._windows = Windows(desk)
        self._owned: set[TopicPartition] = set()
        self._paused: set[TopicPartition] = set()
        self._next_look = {"siblings": 0.0, "silent": 0.0, "closed": 0.0}
        self._closing = threading.Event()
        consumer = log.consumer(group=group, instance_id=instance_id)
        self._thread = threading.Thread(target=self._run, args=(consumer,), name="subscription", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Commit what is stored, leave the group. Never raises."""
        self._closing.set()
        self._thread.join()

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
            self._commit(consumer)
        except StepwellError as error:
            self.failure = error
        except Exception as error:
            _logger.exception("subscription_broke")
            self.failure = LogError(f"the subscription broke: {error!r}")
        finally:
            consumer.close()

    def _turn(self, consumer: Consumer) -> None:
        self._commit(consumer)
        if self._shares_folder and self._time_for("siblings", SIBLINGS_EVERY_S):
            take_over(self._desk.inbox, self._log_name)
            self._ledge.in_doubt = True
        if self._ledge.in_doubt:
            self._settle()
        self._look(consumer)
        self._take()
        self._commit(consumer)
        self._tend(consumer)

    def _look(self, consumer: Consumer) -> None:
        """Read on where there is room to look at more."""
        full = self._windows.full() & self._owned
        consumer.pause(full)  # each time: a rebalance may have undone it
        consumer.resume((self._paused - full) & self._owned)
        self._paused = full
        fresh = False
        for batch in consumer.poll(POLL_RECORDS_MAX, QUICK_POLL_S if self._windows else POLL_S):
            fresh = self._windows.add(batch) or fresh
        if not self._desk.wanted.only_open:
            return
        if fresh or self._windows.wanted() or (self._windows and self._time_for("closed", CLOSED_EVERY_S)):
            # Where the log cannot tell, it is asked again before anything is handed out.
            with contextlib.suppress(LogUnavailableError):
                self._desk.watch.refresh()

    def _take(self) -> None:
        for taken in self._windows.take():
            self._desk.inbox.store(taken.arrivals)
            self._ledge.stored(taken.source, taken.end)

    def _commit(self, consumer: Consumer) -> None:
        for source, end in self._ledge.ends.items():
            try:
                consumer.commit({source: end})
            except FencedError as error:
                # Taken away, or only on the move: the next poll tells which.
                _logger.info("commit_refused", partition=source.partition, reason=str(error))
            except LogUnavailableError:
                self._ledge.unsure()
                raise
            else:
                self._ledge.committed({source: end})

    def _settle(self) -> None:
        if not self._desk.inbox.unconfirmed() - self._ledge.ends.keys():
            self._ledge.in_doubt = False
            return
        admin = self._log.admin()
        try:
            self._ledge.settle(admin.group_positions(self._group, RETRAIN_REQUESTS))
        finally:
            admin.close()

    def _tend(self, consumer: Consumer) -> None:
        """Keep what is worked on, and take what others have given up."""
        for entry in self._desk.unsaid():
            self._say(entry)
        silence_s = self._desk.wanted.adopt_after_s
        if silence_s is not None and self._time_for("silent", silence_s / SIGNS_PER_SILENCE):
            committed = consumer.committed(sorted(self._owned)) if self._owned else {}
            self._desk.adopt({source: end or 0 for source, end in committed.items()})

    def _time_for(self, name: str, every_s: float) -> bool:
        now = time.monotonic()
        if now < self._next_look[name]:
            return False
        self._next_look[name] = now + max(every_s, LOOK_ROUND_MIN_S)
        return True

    def _on_assign(self, sources: list[TopicPartition]) -> None:
        self._owned.update(sources)

    def _on_revoke(self, sources: list[TopicPartition]) -> None:
        self._owned.difference_update(sources)
        self._paused.difference_update(sources)
        self._windows.drop(sources)
        self._ledge.revoked(sources)
