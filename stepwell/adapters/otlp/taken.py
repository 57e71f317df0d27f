"""What a request came to: records for the log, and what had to be refused, counted and told."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field

from stepwell.events.guards import FUTURE_WINDOW_US, PAST_WINDOW_US
from stepwell.events.model import Attribute, SpansEnded, TelemetrySampled

RECORD_BYTES = 700_000
"""A record is closed when its estimated size (bytes) reaches this, so that every log takes it."""

TEXT_BYTES = 64 * 1024
"""The most bytes of text that a resource, a series or a span may carry."""

CLOCK_MARGIN_US = 60_000_000
"""How much narrower than the projector's (`stepwell.events.guards`) our window of times is, because it goes by another
clock: what is taken here is not refused there."""

EARLIEST_US = 946_684_800_000_000
"""2000-01-01 (µs since 1970 UTC): a start before it is nobody's."""

_REASONS_MAX = 8


class MalformedRequestError(ValueError):
    """The bytes are no request of that kind; sending them again cannot help."""


@dataclass(frozen=True, slots=True)
class Window:
    """The times that are taken (µs, both ends included)."""

    first: int
    last: int

    @classmethod
    def around(cls, now_us: int) -> "Window":
        """The window as of now."""
        return cls(now_us - PAST_WINDOW_US + CLOCK_MARGIN_US, now_us + FUTURE_WINDOW_US - CLOCK_MARGIN_US)

    @property
    def words(self) -> str:
        """What is said of a time outside."""
        return (
            f"its time lies outside the window that is taken: {PAST_WINDOW_US // 86_400_000_000} days back, "
            f"{FUTURE_WINDOW_US // 60_000_000} minutes ahead of the receiver's clock"
        )


@dataclass(slots=True)
class Taken:
    """The outcome of reading one request.

    Attributes:
        records: in the order of the request.
        accepted: points or spans in them.
        codes: how many are not, by a short stable code of the reason.
        sender: the worker whose points or spans are being read; empty while it is not known.
        newest: of each code the sender and the reason in words that came last.
    """

    records: list[TelemetrySampled | SpansEnded] = field(default_factory=list)
    accepted: int = 0
    codes: dict[str, int] = field(default_factory=dict)
    sender: str = ""
    newest: dict[str, tuple[str, str]] = field(default_factory=dict)
    _reasons: dict[str, int] = field(default_factory=dict)

    @property
    def refused(self) -> int:
        """Points or spans that are not."""
        return sum(self.codes.values())

    def refuse(self, code: str, reason: str, count: int = 1) -> None:
        """Count what is not taken, with a short stable code and why."""
        self.codes[code] = self.codes.get(code, 0) + count
        self.newest[code] = self.sender, reason
        if reason in self._reasons or len(self._reasons) < _REASONS_MAX:
            self._reasons[reason] = self._reasons.get(reason, 0) + count

    @property
    def message(self) -> str:
        """What was refused and why, for the sender; empty where nothing was."""
        return "; ".join(f"{count} refused: {reason}" for reason, count in self._reasons.items())


def text_bytes(attributes: Iterable[Attribute]) -> int:
    """An upper bound of what attributes take in a record (bytes)."""
    return sum(len(each.name.encode()) + len(each.value.encode()) + 8 for each in attributes)


def memory_bytes(attributes: Iterable[Attribute]) -> int:
    """About what attributes take in memory (bytes), with a key that holds their text once more."""
    return 600 + sum(2 * (sys.getsizeof(each.name) + sys.getsizeof(each.value)) + 200 for each in attributes)
