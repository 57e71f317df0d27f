"""The local log without a disk, for unit tests: the same code on one private in-memory database."""

import sqlite3
import threading
from collections.abc import Sequence

from stepwell.adapters.logs.local import POLL_INTERVAL_MAX_S, SESSION_TIMEOUT_S, LocalLog
from stepwell.adapters.logs.local_store import Store, make_schema
from stepwell.events.topics import TOPICS, Topic

_WHERE = "memory log"


class _SharedStore(Store):
    """One client's view of the connection that all clients of a memory log use, in turn."""

    def change_marker(self) -> int:
        """Changes with every row that any client changes."""
        self._check_usable()
        return self._connection.total_changes

    def close(self) -> None:
        """For this client only."""
        self._closed = True


class MemoryLog(LocalLog):
    """A message log in this process's memory, gone with `close`. Each one is a log of its own."""

    def __init__(
        self,
        *,
        topics: Sequence[Topic] = TOPICS,
        session_timeout_s: float = SESSION_TIMEOUT_S,
        poll_interval_max_s: float = POLL_INTERVAL_MAX_S,
    ) -> None:
        self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._lock = threading.RLock()
        make_schema(self._connection, _WHERE)
        super().__init__(
            "memory:", topics=topics, session_timeout_s=session_timeout_s, poll_interval_max_s=poll_interval_max_s
        )

    def _store(self, *, durable: bool = True) -> Store:
        del durable  # nothing here outlives the process anyway
        return _SharedStore(self._connection, _WHERE, self._lock)

    def close(self) -> None:
        """Forget everything; clients that are still open fail from now on."""
        with self._lock:
            self._connection.close()
