"""The SQLite database under the local log: opening it, read and write transactions, errors in our own words.

Writers use ``BEGIN IMMEDIATE``, so the one write lock is waited for (`BUSY_TIMEOUT_S`) at the start, never in the
middle. ``synchronous=FULL``: a commit that returned has reached the disk.
"""

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib.resources import files
from pathlib import Path

from stepwell.exceptions import ConfigurationError, LogError, LogUnavailableError

LAYOUT_VERSION = 1
FILE_NAME = "log.db"
BUSY_TIMEOUT_S = 30.0
OFFSET_BITS = 40
"""An address in ``records`` is the slot's number shifted by this many bits, plus the offset."""

_APPLICATION_ID = 0x53574C47
_NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "afs", "ceph", "fuse.ceph"}
    | {"glusterfs", "fuse.glusterfs", "lustre", "gpfs", "beegfs"}
)
_AWAY = {
    sqlite3.SQLITE_BUSY: "another process has held its write lock for too long",
    sqlite3.SQLITE_LOCKED: "it is locked",
    sqlite3.SQLITE_FULL: "the disk is full: free some space",
    sqlite3.SQLITE_IOERR: "the disk refused (it may be full or broken)",
    sqlite3.SQLITE_CANTOPEN: "its file cannot be opened",
    sqlite3.SQLITE_PROTOCOL: "its lock could not be taken",
    sqlite3.SQLITE_NOMEM: "memory ran out",
}
_REFUSED = {
    sqlite3.SQLITE_CORRUPT: "the file is damaged: restore a copy of the directory",
    sqlite3.SQLITE_NOTADB: "the file is no SQLite database: it is damaged, or something else lies there",
    sqlite3.SQLITE_READONLY: "the directory or its file cannot be written by this user",
    sqlite3.SQLITE_PERM: "this user may not use the file",
    sqlite3.SQLITE_TOOBIG: "a record is too large (the limit is about 1 GB)",
}


def now_us() -> int:
    """Microseconds since 1970 UTC."""
    return time.time_ns() // 1000


def address_of(slot: int, offset: int) -> int:
    """Where a record lies in ``records``."""
    return (slot << OFFSET_BITS) + offset


class Store:
    """One connection, safe to share among threads: each transaction holds the lock from its start to its end.

    Args:
        connection: an open database.
        where: how errors name it.
        lock: held through each transaction; given where several stores share the connection.
    """

    def __init__(
        self, connection: sqlite3.Connection, where: str, lock: AbstractContextManager[object] | None = None
    ) -> None:
        self._connection = connection
        self._lock: AbstractContextManager[object] = threading.RLock() if lock is None else lock
        self._process = os.getpid()
        self._closed = False
        self.where = where

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """A read transaction: all statements see the same state of the log."""
        yield from self._transaction("BEGIN")

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """A write transaction: committed when the block ends, rolled back when it raises.

        Raises:
            LogUnavailableError: busy for too long, disk full; nothing of the block was kept.
            LogError: damaged, read-only, or closed.
        """
        yield from self._transaction("BEGIN IMMEDIATE")

    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._check_usable()
            try:
                self._connection.execute(begin)
                yield self._connection
                self._connection.execute("COMMIT")
            except sqlite3.Error as error:
                self._roll_back()
                raise self.explain(error) from error
            except BaseException:
                self._roll_back()
                raise

    def _roll_back(self) -> None:
        try:
            # After some errors (a full disk among them) SQLite has rolled back by itself.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._closed = True
            self._connection.close()

    def _check_usable(self) -> None:
        if self._closed:
            raise LogError(f"{self.where} was closed by this client; open the log again")
        if os.getpid() != self._process:
            raise LogError(
                f"{self.where} was opened in process {self._process} and cannot be used in its fork {os.getpid()}; "
                "open the log again in the new process"
            )

    def change_marker(self) -> int:
        """A number that changes when another connection has committed something."""
        with self._lock:
            self._check_usable()
            try:
                return int(self._connection.execute("PRAGMA data_version").fetchone()[0])
            except sqlite3.Error as error:
                raise self.explain(error) from error

    def close(self) -> None:
        """Let go of the connection. Never raises."""
        with self._lock:
            if not self._closed and os.getpid() == self._process:
                self._closed = True
                with suppress(sqlite3.Error):
                    self._connection.close()

    def explain(self, error: sqlite3.Error) -> LogError:
        """The error in our own words, with the reason and what to do."""
        return explain(error, self.where)


def explain(error: sqlite3.Error, where: str) -> LogError:
    """An SQLite error as `LogError` or `LogUnavailableError`."""
    code = getattr(error, "sqlite_errorcode", None)
    primary = code & 0xFF if code is not None else None
    if primary in _AWAY:
        return LogUnavailableError(f"{where}: {_AWAY[primary]} ({error})")
    return LogError(f"{where}: {_REFUSED.get(primary or -1, 'the database refused')} ({error})")


def open_store(directory: Path, *, durable: bool = True) -> Store:
    """Open, and make where needed, the database of a local log.

    Args:
        directory: where the log lies; made when missing.
        durable: whether a commit waits for the disk. False only for what a crash may forget (heartbeats).

    Raises:
        ConfigurationError: the directory cannot be made, or lies on a network file system.
        LogError: not a Stepwell log, damaged, or written by a newer version.
        LogUnavailableError: busy for too long, disk full.
    """
    where = f"local log {directory}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"{where}: the directory cannot be made: {error.strerror}") from error
    _refuse_network_file_system(directory)
    try:
        connection = sqlite3.connect(
            directory / FILE_NAME, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
    except sqlite3.Error as error:
        raise explain(error, where) from error
    try:
        _check_layout(connection, where)
        _to_wal(connection)
        connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        connection.execute("PRAGMA wal_autocheckpoint = 4000")
        connection.execute("PRAGMA journal_size_limit = 67108864")
        connection.execute("PRAGMA cache_size = -16384")
        make_schema(connection, where)
    except sqlite3.Error as error:
        connection.close()
        raise explain(error, where) from error
    except BaseException:
        connection.close()
        raise
    return Store(connection, where)


def make_schema(connection: sqlite3.Connection, where: str) -> None:
    """Make the tables where the database is new; several processes may try at once."""
    if _layout(connection) == LAYOUT_VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        _check_layout(connection, where)
        if _layout(connection) == 0:
            for statement in _statements(files(__package__).joinpath("local_schema.sql").read_text("utf-8")):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {LAYOUT_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _statements(script: str) -> list[str]:
    lines = [line.split("--")[0] for line in script.splitlines()]
    return [statement for statement in "\n".join(lines).split(";") if statement.strip()]


def _layout(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _check_layout(connection: sqlite3.Connection, where: str) -> None:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = _layout(connection)
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    if tables and application != _APPLICATION_ID:
        raise LogError(f"{where}: {FILE_NAME} there is an SQLite database of something else; choose another directory")
    if version > LAYOUT_VERSION:
        raise LogError(
            f"{where} has layout {version}, written by a newer Stepwell; this one reads up to {LAYOUT_VERSION}. "
            "Install the newer version, or choose another directory"
        )


def _to_wal(connection: sqlite3.Connection) -> None:
    # The switch to WAL needs the file for itself for a moment and does not wait by itself, so we do.
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            if connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] == "wal":
                return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        if time.monotonic() > deadline:
            raise LogError("SQLite cannot keep a write-ahead log in this directory; use a local disk")
        time.sleep(0.01)


def _refuse_network_file_system(directory: Path) -> None:
    """WAL needs memory shared between the processes, which network file systems do not give."""
    try:
        mounts = Path("/proc/self/mounts").read_text("utf-8", "replace").splitlines()
    except OSError:
        return
    real = str(directory.resolve())
    best, kind = "", ""
    for line in mounts:
        _, point, file_system, *_ = line.split(" ")
        point = point.replace("\\040", " ")
        if (real == point or real.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best, kind = point, file_system
    if kind in _NETWORK_FILE_SYSTEMS:
        raise ConfigurationError(
            f"local log {directory}: {best} is a network file system ({kind}), on which SQLite loses data; "
            "choose a directory on a local disk, or use Kafka (kafka://host:port)"
        )
