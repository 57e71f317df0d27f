"""What is known of one running worker: told by its own thread and by looks at the log, read by everybody who watches.

Ages are counted on the monotonic clock, so that a clock that is set makes nobody look stuck.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from stepwell.engine.ports import EventCodec, OutgoingRecord, TopicPartition
from stepwell.engine.vitals import DATABASE, LOG
from stepwell.events.model import DeadLetter, VerdictIssued
from stepwell.events.topics import DEAD_LETTERS, POLICY_EVENTS
from stepwell.exceptions import EventError
from stepwell.projections.progress.lag import ProgressMeter
from stepwell.projections.progress.log_watch import Look
from stepwell.redaction import redact_text

ERROR_MAX = 500
"""Longest error that is kept (characters)."""

MISSED_AFTER_S = 5.0
"""After so long without an answer to a look (s) the worker counts as waiting for the log: its own calls may hang then,
or find nothing to read, and do not tell."""

CounterKey = tuple[str, str]
"""Name of a counter and the value of its label (empty where it has none)."""


@dataclass(frozen=True, slots=True)
class PartitionCondition:
    """How the worker is in one partition.

    Attributes:
        position: everything below is processed (log offset).
        log_end: where it ended at the last look; None before the first.
        events_per_s, arrives_per_s: offsets passed and appended a second (1/s); None while not known.
        progressed_at: when the position last moved (µs); None for not yet.
        complete_until: everything logged before this moment (µs) is processed; None while not known.
        still_s: for how long it has not moved though there is something to read (s).
    """

    source: TopicPartition
    position: int
    log_end: int | None
    events_per_s: float | None
    arrives_per_s: float | None
    progressed_at: int | None
    complete_until: int | None
    still_s: float

    @property
    def behind(self) -> int | None:
        """Offsets between the position and the log's end; None before the first look."""
        return None if self.log_end is None else max(self.log_end - self.position, 0)


@dataclass(frozen=True, slots=True)
class Condition:
    """How the worker is at one moment.

    Attributes:
        state: ``starting``, ``running``, ``waiting``, ``stopping``, ``stopped`` or ``failed``.
        waits: what it waits for, each with the reason.
        last_error, last_error_at: the last thing that went wrong (without secrets), and when (µs).
        doing: what its thread was about to do at its last sign of life.
        alive_s: how long that sign is ago (s).
        still_s: for how long no partition has moved though one has something to read (s); of a worker without
            partitions, for how long those of its group have not.
        looked_at: when it last saw the log's ends (µs); None for never.
        look_age_s: how long that is ago (s).
        partitions: those that it has, in order.
        counters: how often what happened, by name and label.
    """

    state: str
    waits: Mapping[str, str]
    last_error: str
    last_error_at: int | None
    doing: str
    alive_s: float
    still_s: float
    looked_at: int | None
    look_age_s: float | None
    partitions: tuple[PartitionCondition, ...]
    counters: Mapping[CounterKey, int]

    @property
    def waits_for(self) -> str:
        """What it waits for, in words; empty for nothing."""
        return "; ".join(f"{what}: {reason}" for what, reason in sorted(self.waits.items()))

    @property
    def progressed_at(self) -> int | None:
        """When any position last moved (µs); None for not yet."""
        return max((each.progressed_at for each in self.partitions if each.progressed_at is not None), default=None)


class WorkerVitals:
    """Implements `stepwell.engine.vitals.Vitals` for a process that is watched. Safe for many threads.

    Args:
        worker_id: e.g. ``stepwell-engine-0``.
        kind: ``engine``, ``detector``, ``projector``, ``otlp`` …
        group: its consumer group; None for a worker that reads nothing.
        codec: reads the kinds of dead letters.
        log_url: where its log is, for those who read that it waits for it; empty: not told.
        stopping: whether it was told to stop.
        monotonic: seconds, never going back.
    """

    def __init__(
        self,
        worker_id: str,
        kind: str,
        group: str | None,
        codec: EventCodec,
        *,
        log_url: str = "",
        stopping: Callable[[], bool] = lambda: False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.worker_id = worker_id
        self.kind = kind
        self.group = group
        self.started_at = now_us()
        self.changed = threading.Event()
        """Set where others should be told at once: the state or what it waits for has changed."""
        self._codec = codec
        self._log_url = log_url
        self._stopping = stopping
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._begun = False
        self._ended = ""
        self._waits: dict[str, str] = {}
        self._missed = ""
        self._last_error: tuple[str, int | None] = ("", None)
        self._doing = "starting"
        self._started = self._alive_at = self._moved_at = monotonic()
        self._positions: dict[TopicPartition, int] = {}
        self._seen: dict[TopicPartition, int] = {}
        self._meters: dict[TopicPartition, ProgressMeter] = {}
        self._moving_at: dict[TopicPartition, float] = {}
        self._logged_at: dict[TopicPartition, int] = {}
        self._group_seen: Mapping[tuple[str, TopicPartition], int] = {}
        self._looked: tuple[int, float] | None = None
        self._counters: Counter[CounterKey] = Counter()

    # --- told by the worker's thread ---

    def doing(self, what: str) -> None:
        """See `Vitals.doing`."""
        self._doing = what
        self._alive_at = self._monotonic()

    def alive(self) -> None:
        """See `Vitals.alive`."""
        self._alive_at = self._monotonic()

    def took(self, source: TopicPartition, records: int, logged_at: int | None) -> None:
        """See `Vitals.took`."""
        if logged_at is not None:
            with self._lock:
                self._logged_at[source] = logged_at
        self.count("stepwell_batches_total")
        self.count("stepwell_records_total", source.topic, records)

    def wrote(self, records: Sequence[OutgoingRecord]) -> None:
        """See `Vitals.wrote`."""
        for written in records:
            if written.topic not in {DEAD_LETTERS, POLICY_EVENTS}:
                continue
            try:
                record = self._codec.decode(written.value, written.headers)
            except EventError:
                continue
            if isinstance(record, DeadLetter):
                self.set_aside(record.kind, 1)
            elif isinstance(record, VerdictIssued):
                self.count("stepwell_verdicts_total", record.outcome)

    def set_aside(self, kind: str, count: int) -> None:
        """See `Vitals.set_aside`."""
        self.count("stepwell_dead_letters_total", kind, count)

    def turned(self, positions: Mapping[TopicPartition, int]) -> None:
        """See `Vitals.turned`."""
        now = self._monotonic()
        self._alive_at = now
        with self._lock:
            if not self._begun:
                self._begun = True
                self.changed.set()
            if positions.keys() != self._positions.keys():
                self._moved_at = now
                for gone in self._positions.keys() - positions.keys():
                    for known in (self._meters, self._moving_at, self._logged_at, self._seen):
                        known.pop(gone, None)
                self.changed.set()
            self._positions = dict(positions)

    def waits(self, what: str, reason: str) -> None:
        """See `Vitals.waits`."""
        reason = self._where(what, reason)
        with self._lock:
            if what not in self._waits:
                self._counters["stepwell_errors_total", ""] += 1
                self.changed.set()
            self._waits[what] = _shown(reason)
            self._last_error = (_shown(reason), now_us())

    def has(self, what: str) -> None:
        """See `Vitals.has`."""
        if what not in self._waits:
            return
        with self._lock:
            self._waits.pop(what, None)
            # What lay still while it waited has its whole time again.
            now = self._moved_at = self._monotonic()
            self._moving_at = dict.fromkeys(self._moving_at, now)
            self.changed.set()

    def erred(self, reason: str) -> None:
        """See `Vitals.erred`."""
        with self._lock:
            self._counters["stepwell_errors_total", ""] += 1
            self._last_error = (_shown(reason), now_us())

    def count(self, name: str, label: str = "", by: int = 1) -> None:
        """Add to a counter of `stepwell.adapters.workers.metrics.COUNTERS`."""
        with self._lock:
            self._counters[name, label] += by

    # --- told by others ---

    def ended(self, state: str, reason: str = "") -> None:
        """It has ``stopped`` or ``failed``, and why; the first word on that stands."""
        with self._lock:
            if self._ended:
                return
            self._ended = state
            if reason:
                self._last_error = (_shown(reason), now_us())
            self.changed.set()

    def saw(self, look: Look) -> None:
        """The log was looked at."""
        with self._lock:
            now = self._monotonic()
            self._looked = (look.at, now)
            if self._missed:
                self._missed = ""
                self._moved_at = now
                self._moving_at = dict.fromkeys(self._moving_at, now)
                self.changed.set()
            moved, behind = False, False
            for source, position in self._positions.items():
                end = look.ends.get(source)
                if end is None:
                    continue
                self._meters.setdefault(source, ProgressMeter()).saw(position, end, look.at)
                moves = self._seen.get(source) != position
                if moves or position >= end or source not in self._moving_at:
                    self._moving_at[source] = now
                moved, behind = moved or moves, behind or position < end
                self._seen[source] = position
            if not self._positions:
                moved = look.positions != self._group_seen
                behind = any(position < look.ends.get(at, 0) for (_, at), position in look.positions.items())
                self._group_seen = look.positions
            if moved or not behind:
                self._moved_at = now

    def missed(self, reason: str) -> None:
        """The log did not answer a look, and why."""
        reason = self._where(LOG, reason)
        with self._lock:
            looked_at = self._started if self._looked is None else self._looked[1]
            if self._monotonic() - looked_at < MISSED_AFTER_S:
                return
            if not self._missed:
                self._counters["stepwell_errors_total", ""] += 1
                self._last_error = (_shown(reason), now_us())
                self.changed.set()
            self._missed = _shown(reason)

    def forgive(self) -> None:
        """Count all ages from now on: the whole process stood still, and nobody in it is to blame."""
        with self._lock:
            now = self._alive_at = self._moved_at = self._monotonic()
            self._moving_at = dict.fromkeys(self._moving_at, now)

    def owns_nothing(self) -> bool:
        """Whether it reads for a group that has given it no partition."""
        return self.group is not None and not self._positions

    def condition(self) -> Condition:
        """How it is now."""
        with self._lock:
            now = self._monotonic()
            return Condition(
                state=self._state(),
                waits=self._waiting(),
                last_error=self._last_error[0],
                last_error_at=self._last_error[1],
                doing=self._doing,
                alive_s=max(now - self._alive_at, 0.0),
                still_s=max(now - self._moved_at, 0.0),
                looked_at=None if self._looked is None else self._looked[0],
                look_age_s=None if self._looked is None else max(now - self._looked[1], 0.0),
                partitions=tuple(self._partition(source, now) for source in sorted(self._positions)),
                counters=dict(self._counters),
            )

    def _where(self, what: str, reason: str) -> str:
        """The reason, with the place of the log: Kafka's client names none."""
        return f"{self._log_url}: {reason}" if what == LOG and self._log_url else reason

    def _state(self) -> str:
        if self._ended:
            return self._ended
        if self._stopping():
            return "stopping"
        if self._waiting():
            return "waiting"
        return "running" if self._begun else "starting"

    def _waiting(self) -> dict[str, str]:
        return {LOG: self._missed, **self._waits} if self._missed else dict(self._waits)

    def _partition(self, source: TopicPartition, now: float) -> PartitionCondition:
        meter, position = self._meters.get(source), self._positions[source]
        still_s = max(now - self._moving_at.get(source, now), 0.0)
        # In a long catch-up no end of the log that was seen is passed; the last record that was processed tells then.
        logged_at = self._logged_at.get(source)
        if meter is None:
            return PartitionCondition(source, position, None, None, None, None, logged_at, still_s)
        known = [at for at in (meter.complete_until(position), logged_at) if at is not None]
        return PartitionCondition(
            source, position, meter.log_end, meter.events_per_s, meter.arrives_per_s, meter.progressed_at,
            max(known, default=None), still_s,
        )  # fmt: skip


def now_us() -> int:
    """Microseconds since 1970 UTC, by this machine's clock."""
    return time.time_ns() // 1000


def _shown(reason: str) -> str:
    """The reason as others may see it: without secrets, and short."""
    text = redact_text(reason)
    return text if len(text) <= ERROR_MAX else text[: ERROR_MAX - 1] + "…"


ALWAYS_SHOWN = (LOG, DATABASE)
"""What metrics name also while nobody waits for it."""
