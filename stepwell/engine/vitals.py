"""Where a worker's thread tells what it does, so that others can see from outside whether it lives and gets on.

What is told here must cost next to nothing and never fails. `Unwatched` is for loops that nobody watches.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from stepwell.engine.ports import OutgoingRecord, TopicPartition

LOG, DATABASE, CACHE = "log", "database", "cache"
"""What a worker can wait for without being to blame; see `Vitals.waits`."""


class Vitals(Protocol):
    """What one worker tells of itself. All calls come from its own thread."""

    def doing(self, what: str) -> None:
        """What comes next and may take long, in words that go behind "the worker is"; also a sign of life."""

    def alive(self) -> None:
        """A sign of life in the middle of something long."""

    def took(self, source: TopicPartition, records: int, logged_at: int | None) -> None:
        """So many records were processed and committed, the last one logged at ``logged_at`` (µs; None: no record)."""

    def wrote(self, records: Sequence[OutgoingRecord]) -> None:
        """A transaction with these records is committed: verdicts and dead letters are counted."""

    def set_aside(self, kind: str, count: int) -> None:
        """So many records became dead letters of this kind."""

    def turned(self, positions: Mapping[TopicPartition, int]) -> None:
        """A turn of the loop is done: where each partition stands that is owned and restored."""

    def waits(self, what: str, reason: str) -> None:
        """Something is away that only others can bring back; it waits until `has`."""

    def has(self, what: str) -> None:
        """It is back, or was never away."""

    def erred(self, reason: str) -> None:
        """Something went wrong; the work goes on."""


class Unwatched:
    """`Vitals` of a worker that nobody watches."""

    def doing(self, what: str) -> None:
        """See `Vitals.doing`."""

    def alive(self) -> None:
        """See `Vitals.alive`."""

    def took(self, source: TopicPartition, records: int, logged_at: int | None) -> None:
        """See `Vitals.took`."""

    def wrote(self, records: Sequence[OutgoingRecord]) -> None:
        """See `Vitals.wrote`."""

    def set_aside(self, kind: str, count: int) -> None:
        """See `Vitals.set_aside`."""

    def turned(self, positions: Mapping[TopicPartition, int]) -> None:
        """See `Vitals.turned`."""

    def waits(self, what: str, reason: str) -> None:
        """See `Vitals.waits`."""

    def has(self, what: str) -> None:
        """See `Vitals.has`."""

    def erred(self, reason: str) -> None:
        """See `Vitals.erred`."""
