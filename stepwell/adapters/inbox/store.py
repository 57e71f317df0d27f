"""One member's inbox: the requests that it has taken from the log, in one SQLite file.

    stored ──committed──> waiting ──handed out──> working ──> finished
       └──refused──> (gone)  ↑  ↑____put back, cut off____│
                             │____retry____ parked <──────┘ failed too often, or cannot be read

* ``stored``: on this disk, and the group's position is not committed yet. If the commit is refused, the partition's new
  owner reads the request again, and the row goes; so it is shown to nobody before.
* ``waiting``: this member's to work on, whatever becomes of its partition.
* ``working``: handed out. Rows that still say so when the file is opened were cut off by the end of a process.
* ``parked``: a person must look; it holds up nobody.
* ``finished``: kept for a while without its bytes, so that a request that is published again is not worked on again.

Every change is durable when the call returns (``journal_mode=WAL``, ``synchronous=FULL``). A file lock beside the
database keeps a second member out; the command line reads and changes rows without it.
"""

import contextlib
import fcntl
import os
import sqlite3
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, NamedTuple

import msgspec

from stepwell.engine.ports import TopicPartition
from stepwell.events.model import Headers
from stepwell.exceptions import ConfigurationError, InboxError

SCHEMA_VERSION = 1
FINISHED_MAX = 10_000
"""Finished rows kept (a few hundred bytes each)."""
BUSY_TIMEOUT_S = 30.0
FIRST_PAUSE_S = 5.0
PAUSE_MAX_S = 600.0
_CLAIM_BYTES_MAX = 8 * 16

State = Literal["stored", "waiting", "working", "parked", "finished"]
Kind = Literal["requested", "withdrawn", "unreadable"]

_TABLES = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS requests (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL, trigger_id TEXT NOT NULL, policy TEXT NOT NULL,
    topic TEXT NOT NULL, partition INTEGER NOT NULL, log_offset INTEGER NOT NULL,
    value BLOB, headers BLOB NOT NULL,
    state TEXT NOT NULL, failures INTEGER NOT NULL DEFAULT 0, reason TEXT NOT NULL DEFAULT '',
    stored_at INTEGER NOT NULL, not_before INTEGER NOT NULL DEFAULT 0, claims BLOB NOT NULL DEFAULT x''
);
CREATE INDEX IF NOT EXISTS by_state ON requests (state, policy, number);
"""
_COLUMNS = (
    "number, kind, trigger_id, policy, topic, partition, log_offset, value, headers, state, failures, reason, "
    "stored_at, claims"
)
_HEADERS = msgspec.msgpack.Decoder(tuple[tuple[str, bytes | None], ...])


class InboxTakenError(ConfigurationError):
    """Another process holds the inbox, or it holds another log's requests."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A record as it came from the log. ``kind`` unreadable: ``reason`` says why; trigger and policy are empty."""

    kind: Kind
    trigger_id: str
    policy: str
    source: TopicPartition
    offset: int
    value: bytes | None
    headers: Headers
    reason: str = ""

    @property
    def key(self) -> str:
        """What makes two arrivals the same: the trigger, or the place of what cannot be read."""
        if self.kind == "unreadable":
            return f"unreadable:{self.source.topic}/{self.source.partition}/{self.offset}"
        return f"{self.kind}:{self.trigger_id}"


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the inbox. ``failures``: how often it was cut off or put back with a failure; ``stored_at`` in µs."""

    number: int
    kind: Kind
    trigger_id: str
    policy: str
    source: TopicPartition
    offset: int
    value: bytes | None
    headers: Headers
    state: State
    failures: int
    reason: str
    stored_at: int
    claims: bytes
    """Event ids (16 bytes each, the last ones) of what this member has answered to it."""


class Load(NamedTuple):
    """What of a policy is not finished: ``requests`` of them; one is handed out, or one waits for its pause to end."""

    policy: str
    requests: int
    working: bool
    held_off: bool


class Inbox:
    """One inbox, held by one member. Safe to share between threads.

    Args:
        path: the file; made with its directory where it is missing. It must lie on a disk of this machine: SQLite's
            log cannot be shared over a network file system.
        held: take the file's lock. False: only look, and change single rows, as the command line does.

    Raises:
        InboxTakenError: another process holds it.
        ConfigurationError: it cannot be made, or it is none of ours.
    """

    def __init__(self, path: Path, *, held: bool = True) -> None:
        self.path = path
        self._mutex = threading.RLock()
        self._lock: IO[str] | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if held:
                self._lock = _locked(path)
            self._connection = self._opened()
        except BlockingIOError:
            raise InboxTakenError(
                f"{path}: another process works with this inbox; give each member of a group its own (instance_id, or "
                "inbox=; on the command line --inbox)"
            ) from None
        except (OSError, sqlite3.Error) as error:
            self._unlock()
            raise ConfigurationError(f"{path}: the inbox cannot be opened: {error}") from error
        except ConfigurationError:
            self._unlock()
            raise

    @property
    def log_name(self) -> str:
        """The URL of the log that its requests are from; empty while it has none."""
        with self._working() as connection:
            row = connection.execute("SELECT value FROM about WHERE name = 'log'").fetchone()
        return str(row[0]) if row else ""

    def bind(self, log_name: str) -> None:
        """Say which log the requests are from."""
        with self._working() as connection:
            connection.execute("INSERT OR REPLACE INTO about VALUES ('log', ?)", (log_name,))

    def forget_all(self) -> None:
        """Empty it: what it remembers is of another log."""
        with self._working() as connection:
            connection.execute("DELETE FROM requests")

    # --- from the log ---

    def store(self, arrivals: Iterable[Arrival], *, adopted: bool = False) -> int:
        """Keep what came from the log; how many of them are new. Whoever is known by its key is left as it is.

        ``adopted``: the group's position is beyond them already, so that they wait for their turn at once.
        """
        now = _now_us()
        rows = [
            (
                item.key, item.kind, item.trigger_id, item.policy, item.source.topic, item.source.partition,
                item.offset, item.value, msgspec.msgpack.encode(item.headers), "waiting" if adopted else "stored",
                item.reason, now,
            )
            for item in arrivals
        ]  # fmt: skip
        with self._working() as connection:
            before = connection.total_changes
            connection.executemany(
                "INSERT OR IGNORE INTO requests (key, kind, trigger_id, policy, topic, partition, log_offset, value,"
                " headers, state, reason, stored_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                rows,
            )
            return connection.total_changes - before

    def confirm(self, positions: Mapping[TopicPartition, int]) -> None:
        """The group's positions were committed: what is stored below them is this member's."""
        with self._working() as connection:
            for source, end in positions.items():
                connection.execute(
                    "UPDATE requests SET state = CASE kind WHEN 'unreadable' THEN 'parked' ELSE 'waiting' END"
                    " WHERE state = 'stored' AND topic = ? AND partition = ? AND log_offset < ?",
                    (source.topic, source.partition, end),
                )

    def let_go(self, source: TopicPartition) -> None:
        """Forget what is stored of a partition and was not committed: its next owner reads it again."""
        with self._working() as connection:
            connection.execute(
                "DELETE FROM requests WHERE state = 'stored' AND topic = ? AND partition = ?",
                (source.topic, source.partition),
            )

    def unconfirmed(self) -> set[TopicPartition]:
        """The partitions of which something is stored and not committed."""
        with self._working() as connection:
            rows = connection.execute("SELECT DISTINCT topic, partition FROM requests WHERE state = 'stored'")
            return {TopicPartition(topic, partition) for topic, partition in rows}

    # --- work ---

    def recover(self, failures_max: int) -> None:
        """What a process that ended had in its hands waits again; what has ended too many of them is parked."""
        with self._working() as connection:
            connection.execute(
                "UPDATE requests SET failures = failures + 1, reason = 'the process ended while working on it',"
                " state = CASE WHEN failures + 1 >= ? THEN 'parked' ELSE 'waiting' END WHERE state = 'working'",
                (failures_max,),
            )

    def due(self) -> list[Entry]:
        """What could be handed out now: the oldest that waits of each policy, if none of that policy is worked on."""
        return self._entries(
            "state = 'waiting' AND not_before <= ?"
            " AND number = (SELECT min(number) FROM requests o WHERE o.state = 'waiting' AND o.policy = r.policy)"
            " AND NOT EXISTS (SELECT 1 FROM requests o WHERE o.state = 'working' AND o.policy = r.policy)",
            (_now_us(),),
        )

    def loads(self) -> list[Load]:
        """What is not finished, by policy. Parked requests and what cannot be read burden nobody."""
        with self._working() as connection:
            rows = connection.execute(
                "SELECT policy, count(*), max(state = 'working'), max(state = 'waiting' AND not_before > ?)"
                " FROM requests WHERE state IN ('stored', 'waiting', 'working') AND kind != 'unreadable'"
                " GROUP BY policy",
                (_now_us(),),
            ).fetchall()
        return [Load(policy, count, bool(working), bool(held_off)) for policy, count, working, held_off in rows]

    def begin(self, number: int) -> bool:
        """Hand it out; False where it does not wait any more, or another of its policy is being worked on."""
        return self._change(
            "UPDATE requests SET state = 'working' WHERE number = ? AND state = 'waiting' AND NOT EXISTS"
            " (SELECT 1 FROM requests o WHERE o.state = 'working' AND o.policy = requests.policy)",
            number,
        )

    def finish(self, number: int, reason: str) -> None:
        """Done with: by its handler, by an answer, or passed over."""
        with self._working() as connection:
            connection.execute(
                "UPDATE requests SET state = 'finished', reason = ?, value = NULL, headers = x'90', claims = x''"
                " WHERE number = ? AND state != 'finished'",
                (reason, number),
            )
            connection.execute(
                "DELETE FROM requests WHERE state = 'finished' AND number <= (SELECT number FROM requests"
                " WHERE state = 'finished' ORDER BY number DESC LIMIT 1 OFFSET ?)",
                (FINISHED_MAX,),
            )

    def put_back(self, number: int) -> None:
        """It was handed out and not worked on: it waits again, as if it never had been."""
        with self._working() as connection:
            connection.execute(
                "UPDATE requests SET state = 'waiting' WHERE number = ? AND state = 'working'", (number,)
            )

    def hold_off(self, number: int, pause_s: float) -> None:
        """Do not hand it out for a while."""
        with self._working() as connection:
            until = _now_us() + round(pause_s * 1e6)
            connection.execute("UPDATE requests SET not_before = ? WHERE number = ?", (until, number))

    def fail(self, number: int, reason: str, failures_max: int, first_pause_s: float) -> bool:
        """Its handler failed. It waits again after a pause that doubles each time; True where it is parked instead."""
        with self._working() as connection:
            row = connection.execute("SELECT failures FROM requests WHERE number = ?", (number,)).fetchone()
            failures = (row[0] if row else 0) + 1
            parked = failures >= failures_max
            pause_s = min(first_pause_s * 2.0 ** min(failures - 1, 20), PAUSE_MAX_S)
            connection.execute(
                "UPDATE requests SET state = ?, failures = ?, reason = ?, not_before = ? WHERE number = ?",
                ("parked" if parked else "waiting", failures, reason, _now_us() + round(pause_s * 1e6), number),
            )
            return parked

    def park(self, number: int, reason: str) -> None:
        """A person must look."""
        with self._working() as connection:
            connection.execute("UPDATE requests SET state = 'parked', reason = ? WHERE number = ?", (reason, number))

    def reread(self, number: int, arrival: Arrival) -> bool:
        """What could not be read can be read now; False (and it goes) where the same is known from elsewhere."""
        with self._working() as connection:
            try:
                connection.execute(
                    "UPDATE requests SET key = ?, kind = ?, trigger_id = ?, policy = ?, reason = '' WHERE number = ?",
                    (arrival.key, arrival.kind, arrival.trigger_id, arrival.policy, number),
                )
            except sqlite3.IntegrityError:
                connection.execute("DELETE FROM requests WHERE number = ?", (number,))
                return False
            return True

    def claim(self, trigger_id: str, event_id: bytes) -> None:
        """Note, before it is sent, the id of an answer that this member gives to a request."""
        with self._working() as connection:
            row = connection.execute(
                "SELECT number, claims FROM requests WHERE key = ?", (f"requested:{trigger_id}",)
            ).fetchone()
            if row is not None:
                claims = (row[1] + event_id)[-_CLAIM_BYTES_MAX:]
                connection.execute("UPDATE requests SET claims = ? WHERE number = ?", (claims, row[0]))

    # --- looking, and a person's hand ---

    def knows(self, trigger_id: str) -> bool:
        """Whether the request is here, in whatever state."""
        return bool(self._entries("key = ?", (f"requested:{trigger_id}",)))

    def entries(self, states: Collection[State]) -> list[Entry]:
        """The rows in one of these states, oldest first."""
        marks = ", ".join("?" * len(states))
        return self._entries(f"state IN ({marks})", tuple(states))

    def retry(self, number: int) -> bool:
        """A parked one waits again, with no failures; False where it is not parked."""
        return self._change(
            "UPDATE requests SET state = 'waiting', failures = 0, not_before = 0 WHERE number = ? AND state = 'parked'",
            number,
        )

    def drop(self, number: int) -> bool:
        """Finish one that is parked or waits; False where it is neither (any more)."""
        return self._change(
            "UPDATE requests SET state = 'finished', reason = 'dropped by hand', value = NULL, headers = x'90'"
            " WHERE number = ? AND state IN ('parked', 'waiting')",
            number,
        )

    def take_from(self, other: "Inbox") -> int:
        """Take over what another inbox, whose member is gone, has not finished; how many requests that were.

        Written here before it is deleted there: a crash between the two leaves it in both, never in none.
        """
        with other._working() as connection:
            rows = connection.execute(
                "SELECT key, kind, trigger_id, policy, topic, partition, log_offset, value, headers,"
                " CASE state WHEN 'working' THEN 'waiting' ELSE state END, failures + (state = 'working'), reason,"
                " stored_at, claims, number FROM requests WHERE state IN ('stored', 'waiting', 'working')"
                " ORDER BY number"
            ).fetchall()
        if not rows:
            return 0
        with self._working() as connection:
            connection.executemany(
                "INSERT OR IGNORE INTO requests (key, kind, trigger_id, policy, topic, partition, log_offset, value,"
                " headers, state, failures, reason, stored_at, claims)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [row[:-1] for row in rows],
            )
        with other._working() as connection:
            connection.executemany("DELETE FROM requests WHERE number = ?", [row[-1:] for row in rows])
        return len(rows)

    def close(self) -> None:
        """Let go. Never raises."""
        with self._mutex, contextlib.suppress(sqlite3.Error):
            self._connection.close()
        self._unlock()

    def _change(self, statement: str, number: int) -> bool:
        """Whether the statement found the request in a state in which it applies."""
        with self._working() as connection:
            return connection.execute(statement, (number,)).rowcount == 1

    def _entries(self, where: str, values: tuple[object, ...]) -> list[Entry]:
        with self._working() as connection:
            rows = connection.execute(
                f"SELECT {_COLUMNS} FROM requests r WHERE {where} ORDER BY number",  # noqa: S608 - our own text
                values,
            ).fetchall()
        return [
            Entry(row[0], row[1], row[2], row[3], TopicPartition(row[4], row[5]), row[6], row[7],
                  _HEADERS.decode(row[8]), *row[9:])
            for row in rows
        ]  # fmt: skip

    @contextlib.contextmanager
    def _working(self) -> Iterator[sqlite3.Connection]:
        """The connection, in one transaction."""
        with self._mutex:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                try:
                    yield self._connection
                except BaseException:
                    self._connection.execute("ROLLBACK")
                    raise
                self._connection.execute("COMMIT")
            except (sqlite3.Error, msgspec.MsgspecError) as error:
                raise InboxError(f"{self.path}: the inbox failed ({error}). Is the disk full?") from error

    def _opened(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=BUSY_TIMEOUT_S)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version not in (0, SCHEMA_VERSION):
                raise ConfigurationError(
                    f"{self.path}: made by another version of Stepwell (format {version}, this one has "
                    f"{SCHEMA_VERSION}); finish it with that, or name another file"
                )
            if version == 0:
                connection.executescript(f"BEGIN; {_TABLES} PRAGMA user_version={SCHEMA_VERSION}; COMMIT")
                _sync_directory(self.path.parent)
        except BaseException:
            connection.close()
            raise
        return connection

    def _unlock(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()


def _locked(path: Path) -> IO[str]:
    """The file's lock. It ends with the process, however that ends."""
    lock = path.with_name(path.name + ".lock").open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise
    return lock


def _sync_directory(directory: Path) -> None:
    """Make a new file's name durable too."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _now_us() -> int:
    return time.time_ns() // 1000
