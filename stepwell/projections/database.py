"""Connections to the database: how they are opened, watched and how their errors are named.

psycopg belongs to the extra ``postgres``; importing this module without it raises `MissingPartError`.
"""

import contextlib
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

from stepwell.exceptions import ConfigurationError, DatabaseError, DatabaseUnavailableError, MissingPartError
from stepwell.redaction import redact_secret, redact_url

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict
except ImportError as error:
    raise MissingPartError("psycopg is not installed. Run: pip install 'stepwell[postgres]'") from error

__all__ = ["Connection", "Deadline", "connect", "named_errors"]

Connection = psycopg.Connection[tuple[Any, ...]]

# A transaction that hit one of these did nothing wrong and is done again: deadlock, serialisation, lock not to be had.
_TRANSIENT = ("40P01", "40001", "55P03")
# What TimescaleDB, or PostgreSQL below it, says of a chunk that was dropped (or compressed anew) between planning and
# opening it. Done again, a reader goes without the chunk and a writer makes it anew.
_CHUNK_STATES = ("42704", "42P01", "TS003", "XX000")
_CHUNK_GONE = re.compile(
    r"chunk not found|chunk (with ID \d+ )?does not exist|not refer to a chunk table|_hyper_\d+_\d+_chunk\"? "
    r"(does not exist|is not a chunk)|could not open relation with OID \d+|relation with OID \d+ does not exist"
)


def connect(
    url: str, *, application: str, statement_timeout_s: float = 0.0, connect_timeout_s: float = 10.0
) -> Connection:
    """Open a connection in autocommit mode (transactions are opened where they are meant).

    Args:
        url: ``postgresql://user:password@host:port/database``.
        application: shown in ``pg_stat_activity``.
        statement_timeout_s: the server gives up on a statement after so long; 0: never.
        connect_timeout_s: how long to try.

    Raises:
        ConfigurationError: the URL makes no sense, or its password is not written as a URL's must be.
        DatabaseUnavailableError: no server answers, or it is starting or stopping.
        DatabaseError: it refuses us (password, database name).
    """
    if not _understood(url):
        # Nor in the words of libpq, or as the cause: it quotes what it stumbles over, which may be the password.
        raise ConfigurationError(
            "The database URL (setting database) is not understood. It is not shown, since nobody can tell where its "
            "password ends. Write postgresql://user:password@host:port/database, and in user and password %40 for @, "
            "%2F for /, %3A for :, %25 for % and %20 for a space; after ? only parameters of libpq"
        )
    with named_errors(url):
        connection = psycopg.connect(
            url, autocommit=True, application_name=application, connect_timeout=max(1, round(connect_timeout_s)),
            keepalives_idle=10, keepalives_interval=5, keepalives_count=3, tcp_user_timeout=20_000,
        )  # fmt: skip
        connection.execute("SET timezone = 'UTC'")
        if statement_timeout_s:
            milliseconds = round(statement_timeout_s * 1000)
            connection.execute(
                "SELECT set_config('statement_timeout', %(ms)s, false), set_config('lock_timeout', %(ms)s, false),"
                " set_config('idle_in_transaction_session_timeout', %(ms)s, false)",
                {"ms": str(milliseconds)},
            )
        return connection


_WHO_MAY = (
    "Its user may not do that. A user with the role stepwell_owner (or the database's owner, before there are roles) "
    "migrates, rebuilds, tunes and does upkeep; stepwell_writer projects and verifies; stepwell_reader reads views. "
    "See: stepwell db roles"
)


@contextlib.contextmanager
def named_errors(url: str) -> Iterator[None]:
    """Turn psycopg's errors into `DatabaseUnavailableError` (worth another try) and `DatabaseError` (not)."""
    where = redact_url(url)
    try:
        yield
    except psycopg.Error as error:
        said = redact_secret(str(error).strip() or type(error).__name__, _parts(url).get("password"))
        state = error.sqlstate or ""
        # Class 08: connection lost; 57P: shutting down, starting, crashed; 53: out of disk, memory or connections;
        # 57014: statement timeout; no state at all on an OperationalError: the socket failed. 53400 is a limit that
        # somebody set: it is met again each time.
        lost = not state or (state[:2] in ("08", "53") and state != "53400")
        gone = isinstance(error, psycopg.OperationalError) and lost
        refused = state in ("28P01", "28000", "3D000") or "password authentication failed" in said
        again = state in ("25P03", *_TRANSIENT) or (state in _CHUNK_STATES and _CHUNK_GONE.search(said))
        if (gone or state.startswith("57") or again) and not refused:
            raise DatabaseUnavailableError(f"The database {where} is not available: {said}") from error
        # Insufficient privilege; a transaction that only reads, as a reader's are.
        whose = f". {_WHO_MAY}" if state in ("42501", "25006") else ""
        raise DatabaseError(f"The database {where} refused: {said}{whose}") from error


def _understood(url: str) -> bool:
    """Whether libpq reads the URL as it was meant: a bare @ or / in a password makes a host or port of its rest."""
    parts = _parts(url)
    host, port = str(parts.get("host") or ""), str(parts.get("port") or "")
    return bool(parts or not url) and "@" not in host and all(each.isdecimal() for each in port.split(",") if each)


def _parts(url: str) -> dict[str, Any]:
    """Of the URL, by libpq's parameters; nothing where it makes no sense."""
    try:
        return conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        return {}


class Deadline:
    """Shuts a connection's socket when a call on it takes too long.

    A server that vanishes half-way (its kernel still acknowledges, nobody answers) lets a client wait for ever; the
    server's own statement timeout cannot help then. Used as ``with deadline.on(connection): ...``; the call then fails
    as if the connection had been lost. One thread serves one connection at a time.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._condition = threading.Condition()
        self._armed: tuple[float, int] | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._watch, name="database-deadline", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def on(self, connection: Connection) -> Iterator[None]:
        """Watch the calls in the block. The descriptor is doubled, so that a number used anew is never shut."""
        try:
            descriptor = os.dup(connection.fileno())
        except psycopg.OperationalError:
            yield  # closed already: the first call will say so
            return
        try:
            self._set((time.monotonic() + self._seconds, descriptor))
            yield
        finally:
            self._set(None)
            os.close(descriptor)

    def close(self) -> None:
        """End the thread."""
        with self._condition:
            self._closed = True
            self._condition.notify()
        self._thread.join()

    def _set(self, armed: tuple[float, int] | None) -> None:
        with self._condition:
            self._armed = armed
            self._condition.notify()

    def _watch(self) -> None:
        with self._condition:
            while not self._closed:
                if self._armed is None:
                    self._condition.wait()
                    continue
                at, descriptor = self._armed
                left = at - time.monotonic()
                if left > 0:
                    self._condition.wait(left)
                    continue
                self._armed = None
                with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as doomed:
                    doomed.shutdown(socket.SHUT_RDWR)
