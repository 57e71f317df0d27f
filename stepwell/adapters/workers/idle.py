"""Whether everything in the log has been processed: each group stands at the end of all that it reads."""

import time
from collections.abc import Callable, Mapping, Sequence

from stepwell.engine.ports import MessageLog
from stepwell.exceptions import LogUnavailableError

LOOK_INTERVAL_S = 0.5

Look = dict[tuple[str, str, int], tuple[int, int | None]]


class IdleCheck:
    """Callable: True once two looks in a row, `LOOK_INTERVAL_S` apart, found every group at the same ends.

    One look is not enough: between asking about one topic and the next, a worker may have moved records on.

    Args:
        log: the log.
        groups: consumer groups, each with the topics it reads.
        clock: seconds, never going back.
    """

    def __init__(
        self, log: MessageLog, groups: Mapping[str, Sequence[str]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._admin = log.admin()
        self._groups = groups
        self._clock = clock
        self._looked_at: float | None = None
        self._before: Look | None = None

    def __call__(self) -> bool:
        now = self._clock()
        if self._looked_at is not None and now - self._looked_at < LOOK_INTERVAL_S:
            return False
        self._looked_at = now
        try:
            look = self._look()
        except LogUnavailableError:
            self._before = None
            return False
        at_end = all(position >= end if position is not None else end == 0 for end, position in look.values())
        same = look == self._before
        self._before = look
        return at_end and same

    def _look(self) -> Look:
        look: Look = {}
        for group, topics in self._groups.items():
            for topic in topics:
                positions = self._admin.group_positions(group, topic)
                for source, marks in self._admin.watermarks(topic).items():
                    position = positions.get(source)
                    # An empty partition, emptied or never written, has nothing to be processed.
                    end = 0 if position is None and marks.low >= marks.high else marks.high
                    look[group, topic, source.partition] = (end, position)
        return look
