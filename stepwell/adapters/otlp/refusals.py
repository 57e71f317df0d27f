"""What is refused for good, in the receiver's own log: senders are told, but few of them tell anybody."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

__all__ = ["SAY_EVERY_S", "Refusals"]

SAY_EVERY_S = 60.0
"""Of what is refused for one reason there is at most one line in so long (s)."""

_log = structlog.get_logger("stepwell.otlp")


@dataclass(slots=True)
class _Unsaid:
    """Of one reason, since the last line about it: how many, and the newest sender with the words it was told."""

    said_at: float
    count: int = 0
    sender: str = ""
    why: str = ""


class Refusals:
    """Says what is refused: the first at once, what follows in one line a minute and reason.

    Args:
        monotonic: seconds, never going back.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._by_reason: dict[tuple[str, str], _Unsaid] = {}

    def add(self, what: str, reason: str, count: int, sender: str, why: str) -> None:
        """So many of something were refused.

        Args:
            what: ``metrics``, ``traces`` (points, spans) or ``requests``.
            reason: a short stable word, of which there are few.
            count: how many.
            sender: worker or address that sent them; empty where nobody knows.
            why: what the sender was told.
        """
        now = self._monotonic()
        unsaid = self._by_reason.setdefault((what, reason), _Unsaid(now - SAY_EVERY_S))
        unsaid.count += count
        unsaid.sender, unsaid.why = sender or "unknown", why
        if now - unsaid.said_at >= SAY_EVERY_S:
            self._say(what, reason, unsaid, now)

    def close(self) -> None:
        """Say what was not said yet."""
        for (what, reason), unsaid in self._by_reason.items():
            if unsaid.count:
                self._say(what, reason, unsaid, self._monotonic())

    def _say(self, what: str, reason: str, unsaid: _Unsaid, now: float) -> None:
        _log.warning("refused", what=what, count=unsaid.count, reason=reason, newest_from=unsaid.sender, why=unsaid.why)
        unsaid.said_at, unsaid.count = now, 0
