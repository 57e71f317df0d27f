"""The disk cache of finished attempts, so that a worker's memory does not grow with them.

It holds nothing that is not in the log: it is filled from the snapshot topic when a partition is taken over, and thrown
away when the worker starts. So it is neither durable nor atomic, only fast.
"""

import contextlib
import sqlite3
from collections.abc import Iterable
from pathlib import Path

import msgspec

from stepwell.engine.state import SealedAttempt
from stepwell.exceptions import ConfigurationError

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
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            for suffix in ("", "-journal", "-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            # Autocommit with journal and syncs off: a put costs a few microseconds.
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._connection.executescript(
                "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA locking_mode=EXCLUSIVE;"
                "CREATE TABLE markers (partition INTEGER, episode TEXT, attempt INTEGER, data BLOB,"
                " PRIMARY KEY (partition, episode, attempt)) WITHOUT ROWID"
            )
        except (OSError, sqlite3.Error) as error:
            raise ConfigurationError(f"{path}: the worker's disk cache cannot be made: {error}") from error
        self._path = path

    def get(self, partition: int, episode_id: str) -> list[SealedAttempt]:
        """The sealed attempts of an episode, in order of their numbers."""
        rows = self._connection.execute(
            "SELECT data FROM markers WHERE partition = ? AND episode = ? ORDER BY attempt", (partition, episode_id)
        )
        return [_DECODER.decode(data) for (data,) in rows]

    def put(self, partition: int, attempts: Iterable[SealedAttempt]) -> None:
        """Keep sealed attempts."""
        rows = [(partition, item.episode_id, item.attempt, _ENCODER.encode(item)) for item in attempts]
        self._connection.execute("BEGIN")
        self._connection.executemany("INSERT OR REPLACE INTO markers VALUES (?, ?, ?, ?)", rows)
        self._connection.execute("COMMIT")

    def clear(self, partition: int) -> None:
        """Forget a partition."""
        self._connection.execute("DELETE FROM markers WHERE partition = ?", (partition,))

    def close(self) -> None:
        """Let go, and remove the file. Never raises."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)


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
