"""Whether everything in the log has been processed: each group stands at the end of all that it reads."""

import time
from collections.abc import Callable, Mapping, Sequence

from stepwell.engine.ports import MessageLog, TopicPartition
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
        admin = log.admin()
        self._reads = {
            group: [TopicPartition(topic, number) for topic in topics for number in range(admin.partitions(topic))]
            for group, topics in groups.items()
        }
        admin.close()
        # These never join their groups; they only ask for the positions.
        self._consumers = {group: log.consumer(group) for group in groups}
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

    def close(self) -> None:
        """Let go. Never raises."""
        for consumer in self._consumers.values():
            consumer.close()

    def _look(self) -> Look:
        look: Look = {}
        for group, sources in self._reads.items():
            consumer = self._consumers[group]
            positions = consumer.committed(sources)
            for source in sources:
                marks = consumer.watermarks(source)
                position = positions[source]
                # An empty partition, emptied or never written, has nothing to be processed.
                end = 0 if position is None and marks.low >= marks.high else marks.high
                look[group, source.topic, source.partition] = (end, position)
        return look
