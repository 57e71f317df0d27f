"""A thread that looks at the log every second: where its partitions end, and how far groups are."""

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from stepwell.engine.ports import Admin, MessageLog, TopicPartition
from stepwell.exceptions import LogError, LogUnavailableError

__all__ = ["LogWatch", "Look"]

INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True)
class Look:
    """The log at one moment.

    Attributes:
        at: just before it was looked at (µs since 1970 UTC): what came meanwhile was logged later. 0: never.
        ends: where each partition ends for readers of committed records.
        positions: of groups, by group and partition.
    """

    at: int = 0
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    positions: Mapping[tuple[str, TopicPartition], int] = field(default_factory=dict)


class LogWatch:
    """Looks now and then, in a thread of its own, because an answer can take seconds.

    While the log does not answer, the last look stands; its ``at`` tells how old it is.

    Args:
        log: to look at.
        topics: whose ends are wanted.
        groups: consumer groups whose positions are wanted, each with its topics; asked before each look.
    """

    def __init__(
        self,
        log: MessageLog,
        topics: Sequence[str],
        groups: Callable[[], Mapping[str, Sequence[str]]] = dict,
    ) -> None:
        self._log = log
        self._topics = tuple(topics)
        self._groups = groups
        self._told: list[Callable[[Look], None]] = []
        self._told_missed: list[Callable[[str], None]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-watch", daemon=True)
        self.look = Look()

    def tell(self, told: Callable[[Look], None]) -> None:
        """Call this with each new look, from the thread that looks. Before `start`."""
        self._told.append(told)

    def tell_missed(self, told: Callable[[str], None]) -> None:
        """Call this with the reason each time the log did not answer, from the thread that looks. Before `start`."""
        self._told_missed.append(told)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self, timeout_s: float | None = None) -> None:
        """Stop looking; waits for the answer to the last question, at most so long."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        admin: Admin | None = None
        while True:
            try:
                admin = admin or self._log.admin()
                self.look = self._look_at(admin)
            except LogUnavailableError as error:
                for told_missed in self._told_missed:
                    told_missed(str(error))
            except LogError:
                pass  # a topic that is not there yet, which the worker makes
            else:
                for told in self._told:
                    told(self.look)
            if self._stop.wait(INTERVAL_S):
                break
        if admin is not None:
            admin.close()

    def _look_at(self, admin: Admin) -> Look:
        # By the admin and a topic at a time: on a consumer's own connection each question waits behind a long fetch.
        at = time.time_ns() // 1000
        ends = {source: marks.high for topic in self._topics for source, marks in admin.watermarks(topic).items()}
        positions: dict[tuple[str, TopicPartition], int] = {}
        for group, topics in self._groups().items():
            # A group whose transaction hangs gives no answer: then it alone is silent.
            with contextlib.suppress(LogError):
                for topic in topics:
                    for source, position in admin.group_positions(group, topic).items():
                        if position is not None:
                            positions[group, source] = position
        return Look(at, ends, positions)
