"""Which attempts have records that no snapshot covers yet, and when a snapshot is due.

The rewind offset of a partition is the lowest offset of an event of an unsealed attempt that its last snapshot does not
cover: from there a restart has to fold again. Attempts become uncovered in the order of the log, so the lowest one is
the first of an ordered dict.
"""

from collections.abc import Iterator
from typing import Final

from stepwell.engine.state import AttemptState

SNAPSHOT_INTERVAL_US: Final = 1_000_000
"""At most one snapshot of an attempt per so long (log or worker's time), unless its phase changed."""

UNCOVERED_MAX_US: Final = 60_000_000
UNCOVERED_MAX_RECORDS: Final = 10_000
"""At the latest after so long, or so many records of the partition, an uncovered attempt gets a snapshot."""

_RUNNING: Final = frozenset({"AGENT_RUNNING", "STEP_COMPLETE"})

Phase = tuple[str, bool, bool]


def phase_of(attempt: AttemptState) -> Phase:
    """What has to change for a snapshot to be due at once; AGENT_RUNNING and STEP_COMPLETE alternate all the time."""
    phase = attempt.phase
    return ("RUNNING" if phase in _RUNNING else phase, attempt.paused, attempt.stalled)


class Cover:
    """What the worker keeps beside an unsealed attempt's state; none of it is needed after a restart.

    Attributes:
        attempt: the state.
        phase: at the last snapshot; None before the first.
        snapshot_at: when the last snapshot was taken (worker's time, µs).
        uncovered_from: offset of the first record since; -1 while covered.
        uncovered_at: when that came (worker's time, µs).
        sent: tokens of engine facts that were appended and may not have been read back yet.
    """

    __slots__ = ("attempt", "phase", "sent", "snapshot_at", "uncovered_at", "uncovered_from")

    def __init__(self, attempt: AttemptState) -> None:
        self.attempt = attempt
        self.phase: Phase | None = None
        self.snapshot_at = 0
        self.uncovered_from = -1
        self.uncovered_at = 0
        self.sent: set[tuple[str, str, int, int]] = set()


class Covers:
    """The covers of a partition's unsealed attempts."""

    def __init__(self) -> None:
        self._all: dict[tuple[str, int], Cover] = {}
        self._uncovered: dict[tuple[str, int], Cover] = {}

    def __iter__(self) -> Iterator[Cover]:
        return iter(self._all.values())

    def __len__(self) -> int:
        return len(self._all)

    def of(self, attempt: AttemptState) -> Cover:
        """The attempt's cover; a new one for a new attempt."""
        key = (attempt.episode_id, attempt.attempt)
        cover = self._all.get(key)
        if cover is None:
            cover = self._all[key] = Cover(attempt)
        return cover

    def restored(self, attempt: AttemptState) -> None:
        """An attempt came from its snapshot."""
        self.of(attempt).phase = phase_of(attempt)

    def uncover(self, cover: Cover, offset: int, now_us: int) -> None:
        """The attempt has a record at ``offset`` that is in no snapshot. Call in the order of the log."""
        if cover.uncovered_from < 0:
            cover.uncovered_from = offset
            cover.uncovered_at = now_us
            self._uncovered[cover.attempt.episode_id, cover.attempt.attempt] = cover

    def covered(self, cover: Cover, now_us: int) -> None:
        """A snapshot of the attempt is written."""
        cover.phase = phase_of(cover.attempt)
        cover.snapshot_at = now_us
        cover.uncovered_from = -1
        self._uncovered.pop((cover.attempt.episode_id, cover.attempt.attempt), None)

    def drop(self, attempt: AttemptState) -> None:
        """The attempt was sealed."""
        key = (attempt.episode_id, attempt.attempt)
        self._all.pop(key, None)
        self._uncovered.pop(key, None)

    def rewind_offset(self, end: int) -> int:
        """From where a restart has to fold again; ``end`` where everything is covered."""
        first = next(iter(self._uncovered.values()), None)
        return end if first is None else first.uncovered_from

    def overdue(self, end: int, now_us: int) -> list[Cover]:
        """Those that have been uncovered for too many records or too long."""
        due = []
        for cover in self._uncovered.values():
            if end - cover.uncovered_from < UNCOVERED_MAX_RECORDS and now_us - cover.uncovered_at < UNCOVERED_MAX_US:
                break  # those behind it are younger
            due.append(cover)
        return due

    def uncovered(self) -> list[Cover]:
        """All that a snapshot would cover."""
        return list(self._uncovered.values())

    def due(self, now_us: int) -> list[Cover]:
        """Those whose last snapshot is long enough ago for another one."""
        return [cover for cover in self._uncovered.values() if now_us - cover.snapshot_at >= SNAPSHOT_INTERVAL_US]
