"""What lies next in the log, looked at and not taken yet: so a member takes no more than it can start.

A member reads on in its partitions, up to `WINDOW_MAX` records beyond what it has committed, and keeps them in memory.
It takes a request, that is stores it and commits the position behind it, only when somebody waits for one and its
policy has none here already. A position is one number, so everything before that request in its partition is taken
with it: this is how a request is found behind a row of another policy that is being worked on. The rest stays in the
log, and goes to whoever has the partition then.
"""

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from stepwell.adapters.inbox.desk import Desk
from stepwell.adapters.inbox.store import Arrival
from stepwell.engine.ports import RecordBatch, TopicPartition

WINDOW_MAX = 256
"""Open requests (a few KB each) that are looked at in one partition; it is paused where there are more."""


@dataclass(slots=True)
class _Looked:
    """A record; ``end`` is the position behind it. ``arrival`` None: it concerns nobody here (any more)."""

    arrival: Arrival | None
    appended_at: int
    end: int


@dataclass(frozen=True, slots=True)
class Taken:
    """What is to be stored of a partition, so that everything below ``end`` is dealt with."""

    source: TopicPartition
    arrivals: list[Arrival]
    end: int


class Windows:
    """The windows of one member's partitions. One intake uses them, from one thread at a time."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._windows: dict[TopicPartition, deque[_Looked]] = {}
        self._ends: dict[TopicPartition, int] = {}

    def __bool__(self) -> bool:
        """Whether anything is looked at and not taken."""
        return any(self._windows.values())

    def add(self, batch: RecordBatch) -> bool:
        """Look at a batch; whether there is anything in it for this member. What was looked at before is passed."""
        window = self._windows.setdefault(batch.source, deque())
        ends = [*batch.offsets[1:], batch.end]
        known = self._ends.get(batch.source, 0)
        concerned = False
        columns = zip(batch.offsets, batch.timestamps, batch.values, batch.headers, ends, strict=True)
        for offset, appended_at, value, headers, end in columns:
            if offset < known:
                continue
            arrival = self._desk.arrival(batch.source, offset, value, headers)
            concerned = concerned or arrival is not None
            window.append(_Looked(arrival, appended_at, end))
        self._ends[batch.source] = max(known, batch.end)
        return concerned

    def drop(self, sources: Iterable[TopicPartition]) -> None:
        """Partitions go: what was not taken of them, their next owner reads."""
        for source in sources:
            self._windows.pop(source, None)
            self._ends.pop(source, None)

    @property
    def sources(self) -> list[TopicPartition]:
        """The partitions of which something was looked at."""
        return list(self._ends)

    def full(self) -> set[TopicPartition]:
        """The partitions to be paused."""
        return {source for source, window in self._windows.items() if len(window) >= WINDOW_MAX}

    def wanted(self) -> bool:
        """Whether `take` would take a request that somebody waits for."""
        room = self._desk.room()
        if room.free == 0:
            return False
        return any(0 < self._startable(window, room.busy) <= room.left for window in self._windows.values())

    def take(self) -> list[Taken]:
        """Take what somebody waits for, the oldest first, and what concerns nobody and lies before everything else.

        Goes by what `Desk.watch` has read of the log; refresh that before.
        """
        for window in self._windows.values():
            for looked in window:
                if looked.arrival is not None and self._desk.is_closed(looked.arrival):
                    looked.arrival = None
        found = [self._cut(source, self._passed(window)) for source, window in self._windows.items()]
        room = self._desk.room()
        busy, free, left = set(room.busy), room.free, room.left
        while free > 0:
            firsts = [
                (window[count - 1].appended_at, source, count)
                for source, window in self._windows.items()
                if 0 < (count := self._startable(window, busy)) <= left
            ]
            if not firsts:
                break
            _, source, count = min(firsts)
            taken = self._cut(source, count)
            found.append(taken)
            busy.update(each.policy for each in taken.arrivals)
            free -= 1
            left -= len(taken.arrivals)
        return [each for each in found if each.end]

    @staticmethod
    def _passed(window: deque[_Looked]) -> int:
        """How many records at the beginning need no hand: of no concern, or unreadable and parked at once."""
        for number, looked in enumerate(window):
            if looked.arrival is not None and looked.arrival.kind != "unreadable":
                return number
        return len(window)

    @staticmethod
    def _startable(window: deque[_Looked], busy: Collection[str]) -> int:
        """How many records reach up to the first whose policy has nothing here; 0: there is none."""
        for number, looked in enumerate(window, 1):
            arrival = looked.arrival
            if arrival is not None and arrival.kind != "unreadable" and arrival.policy not in busy:
                return number
        return 0

    def _cut(self, source: TopicPartition, count: int) -> Taken:
        """Take so many records off the window; ``end`` 0 where that is none."""
        window = self._windows[source]
        cut = [window.popleft() for _ in range(count)]
        return Taken(source, [each.arrival for each in cut if each.arrival is not None], cut[-1].end if cut else 0)
