"""Tells the database how far everybody is: the projector itself, and the workers before it."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from stepwell.engine.ports import Admin, Consumer, MessageLog, TopicPartition
from stepwell.projections import queries
from stepwell.projections.database import Connection
from stepwell.projections.lag import LagMeter

__all__ = ["ProgressReporter", "Seen"]

_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True)
class Seen:
    """One reader of one partition, at one moment.

    ``reader`` None: the projector itself. ``written_to``: the projector's position in the database; None for others.
    """

    reader: str | None
    source: TopicPartition
    written_to: int | None
    read_to: int
    log_end: int
    complete_until: int | None


class ProgressReporter:
    """Looks at the log now and then, and writes what it saw to ``sink_offsets`` and ``consumer_positions``.

    Args:
        log: to look at.
        sink: our name in ``sink_offsets``.
        watch: other groups, each with the topics it reads. A projector reports those partitions of them that it reads
            itself, so that of several projectors one reports each.
    """

    def __init__(self, log: MessageLog, sink: str, watch: Mapping[str, Sequence[str]]) -> None:
        self._log = log
        self._sink = sink
        self._watch = watch
        self._queries = queries.load("projector")
        self._meters: dict[tuple[str | None, TopicPartition], LagMeter] = {}
        self._admin: Admin | None = None
        self._due_at = 0.0

    def due(self) -> bool:
        """Whether it is time to look again."""
        return time.monotonic() >= self._due_at

    def forget(self, gone: Iterable[TopicPartition]) -> None:
        """Drop what is known of partitions that others read now."""
        lost = set(gone)
        self._meters = {key: meter for key, meter in self._meters.items() if key[1] not in lost}

    def look(self, consumer: Consumer, placed: Mapping[TopicPartition, int]) -> list[Seen]:
        """Ends and positions as of now. ``placed``: our positions in the database. Raises `LogError`."""
        self._due_at = time.monotonic() + _INTERVAL_S
        seen = []
        ends: dict[TopicPartition, tuple[int, int]] = {}
        for source in sorted(placed):
            at = time.time_ns() // 1000  # taken before looking: what came meanwhile was logged after it
            ends[source] = consumer.watermarks(source).high, at
            seen.append(self._seen(None, source, placed[source], consumer.position(source), *ends[source]))
        for reader, topics in self._watch.items():
            for topic in topics:
                ours = [source for source in ends if source.topic == topic]
                positions = self._positions_of(reader, topic) if ours else {}
                for source in ours:
                    position = positions.get(source)
                    if position is not None:
                        seen.append(self._seen(reader, source, None, position, *ends[source]))
        return seen

    def write(self, connection: Connection, seen: Sequence[Seen]) -> None:
        """Write what `look` gave, in one transaction."""
        with connection.transaction():
            for one in seen:
                name = "report_own" if one.reader is None else "report_other"
                values = {
                    "sink": self._sink, "consumer": one.reader, **one.source._asdict(), "next_offset": one.written_to,
                    "read_to": one.read_to, "log_end": one.log_end, "complete_until": one.complete_until,
                }  # fmt: skip
                connection.execute(self._queries[name], values)

    def close(self) -> None:
        """Let go of the log."""
        if self._admin is not None:
            self._admin.close()
            self._admin = None

    def _positions_of(self, reader: str, topic: str) -> Mapping[TopicPartition, int | None]:
        if self._admin is None:
            self._admin = self._log.admin()
        return self._admin.group_positions(reader, topic)

    def _seen(
        self, reader: str | None, source: TopicPartition, written_to: int | None, read_to: int, end: int, at: int
    ) -> Seen:
        meter = self._meters.setdefault((reader, source), LagMeter())
        meter.saw_end(end, at)
        return Seen(reader, source, written_to, read_to, end, meter.complete_until(read_to))
