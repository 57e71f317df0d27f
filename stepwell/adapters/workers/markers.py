"""The disk cache of finished attempts, so that a worker's memory does not grow with them.

It holds nothing that is not in the log: it is filled from the snapshot topic when a partition is taken over, and thrown
away when the worker starts. So it is neither durable nor atomic, only fast; and where the disk is full or the file is
damaged, it is thrown away and `StateDoubtError` makes the worker fill it again.
"""

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from stepwell.engine.doubt import StateDoubtError
from stepwell.engine.state import SealedAttempt
from stepwell.exceptions import ConfigurationError

_SUFFIXES = ("", "-journal", "-wal", "-shm")
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(SealedAttempt)


class DiskMarkers:
    """Sealed attempts by partition and episode, in one SQLite file.

    Args:
        path: the file; an older one is thrown away. Its directory is made when missing.

    Raises:
        ConfigurationError: the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = self._made_anew()
        except (OSError, sqlite3.Error) as error:
            raise ConfigurationError(f"{path}: the worker's disk cache cannot be made: {error}") from error

    def get(self, partition: int, episode_id: str) -> list[SealedAttempt]:
        """The sealed attempts of an episode, in order of their numbers.

        Raises:
            StateDoubtError: the cache was lost.
        """
        with self._working() as connection:
            rows = connection.execute(
                "SELECT data FROM markers WHERE partition = ? AND episode = ? ORDER BY attempt", (partition, episode_id)
            )
            return [_DECODER.decode(data) for (data,) in rows]

    def put(self, partition: int, attempts: Iterable[SealedAttempt]) -> None:
        """Keep sealed attempts.

        Raises:
            StateDoubtError: the cache was lost.
        """
        rows = [(partition, item.episode_id, item.attempt, _ENCODER.encode(item)) for item in attempts]
        with self._working() as connection:
            connection.execute("BEGIN")
            connection.executemany("INSERT OR REPLACE INTO markers VALUES (?, ?, ?, ?)", rows)
            connection.execute("COMMIT")

    def clear(self, partition: int) -> None:
        """Forget a partition.

        Raises:
            StateDoubtError: the cache was lost.
        """
        with self._working() as connection:
            connection.execute("DELETE FROM markers WHERE partition = ?", (partition,))

    def close(self) -> None:
        """Let go, and remove the file. Never raises."""
        self._let_go()
        with contextlib.suppress(OSError):
            self._remove()

    @contextlib.contextmanager
    def _working(self) -> Iterator[sqlite3.Connection]:
        """The connection. Whatever fails, the cache begins empty again, and every partition has to fill it."""
        try:
            if self._connection is None:
                self._connection = self._made_anew()
            yield self._connection
        except (OSError, sqlite3.Error, msgspec.MsgspecError) as error:
            self._let_go()
            with contextlib.suppress(OSError):
                self._remove()  # at once: on a full disk it is in the way of others
            raise StateDoubtError(
                f"{self._path}: the worker's disk cache failed ({error}); it is thrown away and filled from the log "
                "again. Is the disk full?",
                wait=True,
            ) from error

    def _made_anew(self) -> sqlite3.Connection:
        self._remove()
        # Autocommit with journal and syncs off: a put costs a few microseconds.
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            connection.executescript(
                "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA locking_mode=EXCLUSIVE;"
                "CREATE TABLE markers (partition INTEGER, episode TEXT, attempt INTEGER, data BLOB,"
                " PRIMARY KEY (partition, episode, attempt)) WITHOUT ROWID"
            )
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def _remove(self) -> None:
        for suffix in _SUFFIXES:
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)


class MemoryMarkers:
    """The same in memory, for tests and one-off folds."""

    def __init__(self) -> None:
        self._markers: dict[int, dict[str, dict[int, SealedAttempt]]] = {}

    def get(self, partition: int, episode_id: str) -> list[SealedAttempt]:
        """See `DiskMarkers.get`."""
        found = self._markers.get(partition, {}).get(episode_id, {})
        return [found[attempt] for attempt in sorted(found)]

    def put(self, partition: int, attempts: Iterable[SealedAttempt]) -> None:
        """See `DiskMarkers.put`."""
        episodes = self._markers.setdefault(partition, {})
        for item in attempts:
            episodes.setdefault(item.episode_id, {})[item.attempt] = item

    def clear(self, partition: int) -> None:
        """See `DiskMarkers.clear`."""
        self._markers.pop(partition, None)

    def close(self) -> None:
        """See `DiskMarkers.close`."""
