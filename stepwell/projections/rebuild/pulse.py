"""Says every second that a rebuild is being worked on, and hears when it is to end."""

import contextlib
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

import psycopg

from stepwell.exceptions import DatabaseError, RebuildError
from stepwell.projections.database import Connection, connect, named_errors
from stepwell.projections.rebuild.state import beat

__all__ = ["Pulse"]

_INTERVAL_S = 1.0


class Pulse:
    """A thread with a connection of its own, for as long as the block lasts.

    Args:
        locate: gives the database's URL.
        generation: what the rebuild makes.
        stop: set by whoever wants it to end for now.
    """

    def __init__(self, locate: Callable[[], str], generation: str, stop: threading.Event) -> None:
        self._locate = locate
        self._generation = generation
        self._stop = stop
        self._closed = threading.Event()
        self._working: Connection | None = None
        self._thread = threading.Thread(target=self._run, name="rebuild-pulse", daemon=True)
        self.cancelled = False

    def watch(self, connection: Connection | None) -> None:
        """Whose statement is to be broken off when it is to end; None: nobody's."""
        self._working = connection

    @property
    def to_end(self) -> bool:
        """Whether it is to end, for now or for good."""
        return self.cancelled or self._stop.is_set()

    def check(self) -> None:
        """Raise `EndedError` where it is to end."""
        if self.to_end:
            raise EndedError

    def wait(self, seconds: float) -> None:
        """Wait so long, or until it is to end; then raise `EndedError`."""
        self._stop.wait(seconds)
        self.check()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        connection: Connection | None = None
        while not self._closed.wait(_INTERVAL_S):
            try:
                url = self._locate()
                connection = connection or connect(url, application="stepwell rebuild: pulse")
                with named_errors(url):
                    self.cancelled = beat(connection, self._generation) or self.cancelled
            except DatabaseError:  # whoever works says that it is away
                connection = None if connection is None or connection.closed else connection
            if self.to_end:
                self._break_off()
        if connection is not None:
            connection.close()

    def _break_off(self) -> None:
        working = self._working
        if working is not None and not working.closed:
            with contextlib.suppress(psycopg.Error):
                working.cancel_safe(timeout=5.0)


class EndedError(RebuildError):
    """The rebuild was told to end."""
