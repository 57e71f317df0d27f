"""Tells the database how far everybody is: the projector itself, and the workers before it."""

import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stepwell.engine.ports import Admin, Consumer, MessageLog, TopicPartition
from stepwell.exceptions import LogError
from stepwell.projections import queries
from stepwell.projections.database import Connection
from stepwell.projections.generations import Homes
from stepwell.projections.lag import LagMeter

__all__ = ["ProgressReporter"]

_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True)
class _Look:
    """The log at one moment.

    Attributes:
        at: just before it was looked at (µs): what came meanwhile was logged later.
        ends: where each partition ends.
        positions: of other groups, by group and partition.
    """

    at: int = 0
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    positions: Mapping[tuple[str, TopicPartition], int] = field(default_factory=dict)


class ProgressReporter:
    """Looks at the log now and then, and writes what it saw to ``sink_offsets`` and ``consumer_positions``.

    A thread of its own looks, because an answer can take seconds (a group's position waits out an open transaction),
    and rows must not wait for it. `write` runs in the projector's thread.

    Args:
        log: to look at.
        sink: our name in ``sink_offsets``.
        topics: what the projector reads.
        watch: other groups, each with the topics it reads. A projector reports those partitions of them that it reads
            itself, so that of several projectors one reports each.
    """

    def __init__(self, log: MessageLog, sink: str, topics: Sequence[str], watch: Mapping[str, Sequence[str]]) -> None:
        self._log = log
        self._sink = sink
        self._topics = tuple(topics)
        self._watch = {group: [topic for topic in read if topic in topics] for group, read in watch.items()}
        self._queries = queries.load("projector")
        self._meters: dict[tuple[str | None, TopicPartition], LagMeter] = {}
        self._look = _Look()
        self._written_at = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="projector-progress", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """Stop looking; waits for the answer to the last question."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def due(self) -> bool:
        """Whether there is something new to write."""
        return self._look.at > self._written_at

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
        look = self._look
        self._written_at = look.at
        with connection.transaction():
            homes.enter(connection)
            for source in sorted(set(placed) & set(look.ends)):
                self._write_one(connection, look, None, source, placed[source], consumer.position(source))
            for (group, source), position in sorted(look.positions.items()):
                if source in placed:
                    self._write_one(connection, look, group, source, None, position)

    def _write_one(
        self, connection: Connection, look: _Look, group: str | None, source: TopicPartition, written_to: int | None,
        read_to: int,
    ) -> None:  # fmt: skip
        meter = self._meters.setdefault((group, source), LagMeter())
        meter.saw_end(look.ends[source], look.at)
        values = {
            "sink": self._sink, "consumer": group, **source._asdict(), "next_offset": written_to, "read_to": read_to,
            "log_end": look.ends[source], "complete_until": meter.complete_until(read_to),
        }  # fmt: skip
        connection.execute(self._queries["report_own" if group is None else "report_other"], values)

    # --- the thread ---

    def _run(self) -> None:
        admin: Admin | None = None
        while not self._stop.wait(_INTERVAL_S):
            # The projector's own loop says when the log is away; without a new look nothing is written, and the view
            # says that nobody reports.
            with contextlib.suppress(LogError):
                admin = admin or self._log.admin()
                self._look = self._look_at(admin)
        if admin is not None:
            admin.close()

    def _look_at(self, admin: Admin) -> _Look:
        # By the admin and a topic at a time: on a consumer's own connection each question waits behind a long fetch.
        at = time.time_ns() // 1000
        ends = {source: marks.high for topic in self._topics for source, marks in admin.watermarks(topic).items()}
        positions: dict[tuple[str, TopicPartition], int] = {}
        for group, topics in self._watch.items():
            # A group whose transaction hangs gives no answer: then it alone is silent.
            with contextlib.suppress(LogError):
                for topic in topics:
                    for source, position in admin.group_positions(group, topic).items():
                        if position is not None:
                            positions[group, source] = position
        return _Look(at, ends, positions)
