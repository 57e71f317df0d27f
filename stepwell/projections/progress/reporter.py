"""Tells the database how far everybody is: the projector itself, and the workers before it."""

import time
from collections.abc import Collection, Mapping, Sequence

from stepwell.engine.ports import Consumer, TopicPartition
from stepwell.projections import queries
from stepwell.projections.database import Connection
from stepwell.projections.progress.lag import ProgressMeter
from stepwell.projections.progress.log_watch import LogWatch, Look
from stepwell.projections.schema.generations import Homes

__all__ = ["ProgressReporter"]

_WAIT_INTERVAL_S = 2.0


class ProgressReporter:
    """Writes what was last seen of the log to ``sink_offsets`` and ``consumer_positions``, in the projector's thread.

    Args:
        looks: looks at the log, in a thread of its own.
        sink: our name in ``sink_offsets``.
        worker_id: the projector's, so that one can see who has a partition.
        watch: other groups, each with the topics it reads. A projector reports those partitions of them that it reads
            itself, so that of several projectors one reports each.
    """

    def __init__(self, looks: LogWatch, sink: str, worker_id: str, watch: Mapping[str, Sequence[str]]) -> None:
        self._looks = looks
        self._sink = sink
        self._worker_id = worker_id
        self._watch = watch
        self._queries = queries.load("projector")
        self._meters: dict[tuple[str | None, TopicPartition], ProgressMeter] = {}
        self._written_at = 0
        self._wait_at = 0.0

    def due(self) -> bool:
        """Whether there is something new to write."""
        return self._looks.look.at > self._written_at

    def forget(self, gone: Sequence[TopicPartition]) -> None:
        """Drop what is known of partitions that others read now."""
        lost = set(gone)
        self._meters = {key: meter for key, meter in self._meters.items() if key[1] not in lost}

    def write(
        self, connection: Connection, homes: Homes, consumer: Consumer, placed: Mapping[TopicPartition, int]
    ) -> None:
        """Write the last look's ends beside our positions as of now, in one transaction.

        ``placed``: our positions in the database. Where the reader stands further, it passed markers only.
        """
        look = self._looks.look
        self._written_at = look.at
        with connection.transaction():
            homes.enter(connection)
            for source in sorted(set(placed) & set(look.ends)):
                self._write_one(connection, look, None, source, placed[source], consumer.position(source))
            for (group, source), position in sorted(look.positions.items()):
                if source in placed and source.topic in self._watch.get(group, ()):
                    self._write_one(connection, look, group, source, None, position)

    def wait_due(self) -> bool:
        """Whether it is time to say once more that we wait."""
        return time.monotonic() >= self._wait_at

    def write_wait(
        self, connection: Connection, homes: Homes, owned: Collection[TopicPartition], waits_for: str
    ) -> None:
        """Say of our partitions that we live and what we wait for; the figures stay as of the last look."""
        self._wait_at = time.monotonic() + _WAIT_INTERVAL_S
        with connection.transaction():
            homes.enter(connection)
            for source in sorted(owned):
                values = {"sink": self._sink, "worker_id": self._worker_id, "waits_for": waits_for}
                connection.execute(self._queries["report_wait"], {**values, **source._asdict()})

    def _write_one(
        self, connection: Connection, look: Look, group: str | None, source: TopicPartition, written_to: int | None,
        read_to: int,
    ) -> None:  # fmt: skip
        meter = self._meters.setdefault((group, source), ProgressMeter())
        meter.saw(read_to, look.ends[source], look.at)
        values = {
            "sink": self._sink, "consumer": group, **source._asdict(), "next_offset": written_to, "read_to": read_to,
            "log_end": look.ends[source], "complete_until": meter.complete_until(read_to),
            "events_per_s": meter.events_per_s, "arrives_per_s": meter.arrives_per_s,
            "progressed_at": meter.progressed_at, "worker_id": self._worker_id,
            "look_age_s": max(time.time_ns() // 1000 - look.at, 0) / 1e6,
        }  # fmt: skip
        connection.execute(self._queries["report_own" if group is None else "report_other"], values)
