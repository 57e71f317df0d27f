"""Real servers without containers: installed into one folder, started on 127.0.0.1, ended by process id.

Used by the test-suite and by the demos. Each part has a module with an ``install`` function and a class with ``start``,
``stop`` and ``kill9``.
"""

import atexit
import contextlib
import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from stepwell.exceptions import MissingPartError, StepwellError

__all__ = [
    "OwnProcess", "ServerPart", "exclusive", "free_port",
    "listens", "npm_install", "parts_directory", "require_command", "tail",
    "write_if_changed",
]  # fmt: skip


def parts_directory() -> Path:
    """Where parts are installed: ``$STEPWELL_PARTS``, else ``.parts`` of the checkout, else ``$STEPWELL_HOME/parts``.

    The home is ``~/.stepwell`` where the variable is not set. The folder is not made here.
    """
    if chosen := os.environ.get("STEPWELL_PARTS"):
        return Path(chosen).expanduser().absolute()
    checkout = Path(__file__).resolve().parents[3]
    if (checkout / "pyproject.toml").exists() and (checkout / "stepwell").is_dir():
        return checkout / ".parts"
    return Path(os.environ.get("STEPWELL_HOME", "~/.stepwell")).expanduser().absolute() / "parts"


def free_port() -> int:
    """A TCP port on 127.0.0.1 that nothing listens on.

    It lies below the range that the kernel hands to outgoing connections: a server that restarts on its old port must
    not find it taken by somebody's client.
    """
    low, high = 15_000, 32_768
    with contextlib.suppress(OSError, ValueError, IndexError):
        high = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    if high <= low + 1_000:
        low, high = 1_024, max(high, 2_048)
    chooser = random.SystemRandom()
    for _ in range(500):
        port = chooser.randrange(low, high)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise StepwellError(f"No free port between {low} and {high} on 127.0.0.1 in 500 tries.")


def listens(port: int) -> bool:
    """Whether something takes connections on a TCP port of 127.0.0.1."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2):
        return True
    return False


def require_command(name: str, package: str) -> str:
    """The path of a command; raises `MissingPartError` that names Debian's package."""
    path = shutil.which(name)
    if path is None:
        raise MissingPartError(f"The command '{name}' is not installed. On Debian or Ubuntu: apt-get install {package}")
    return path


def npm_install(folder: Path, what: str) -> None:
    """Bring what ``package-lock.json`` in ``folder`` locks into its ``node_modules/``.

    Raises:
        MissingPartError: npm is missing, or could not bring it; with what npm said.
    """
    npm = require_command("npm", "npm")
    command = [npm, "ci", "--ignore-scripts", "--legacy-peer-deps", "--no-audit", "--no-fund"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        said = (done.stdout + done.stderr).strip()[-2000:]
        raise MissingPartError(
            f"npm could not bring {what} (exit code {done.returncode}). It needs an npm registry: the network, or a "
            f"mirror named in ~/.npmrc. npm said:\n{said}"
        )


def write_if_changed(path: Path, content: bytes) -> None:
    """Write a file, and leave it alone where it holds this already."""
    if not path.exists() or path.read_bytes() != content:
        path.write_bytes(content)


@contextlib.contextmanager
def exclusive(lock: Path) -> Iterator[None]:
    """Hold a file lock, so that of several processes one installs and the others wait and then find it done."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def tail(path: Path, lines: int = 15) -> str:
    """The last lines of a log file; a note where there is none."""
    try:
        with path.open(errors="replace") as handle:
            return "".join(deque(handle, lines)).rstrip() or "(the log is empty)"
    except OSError:
        return "(no log)"


class OwnProcess:
    """A server process in a session of its own, so that a Ctrl-C meant for us does not reach it. Ended by its id."""

    def __init__(
        self, command: Sequence[str], log: Path, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        """Start it; standard output and error are appended to ``log``."""
        self.name = Path(command[0]).name
        self.log = log
        with log.open("ab") as output:
            self._popen = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=cwd, env=env,
                start_new_session=True, close_fds=True,
            )  # fmt: skip
        # A test run that ends early must leave no server behind.
        atexit.register(self.kill9)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    def wait_ready(self, ready: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait until ``ready()``; when not in time, end the process and raise `StepwellError` with its log's tail."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            if not self.running:
                code = self._popen.returncode
                self._forget()
                raise StepwellError(f"{what} ended with exit code {code} while starting. {self._tail()}")
            if time.monotonic() > deadline:
                self.kill9()
                raise StepwellError(f"{what} was not ready within {timeout_s:.0f} s and was ended. {self._tail()}")
            time.sleep(0.05)

    def stop(self, timeout_s: float = 30.0) -> None:
        """Ask it to end (SIGTERM) and wait for the exit; kill it when it has not ended in time."""
        self._signal(signal.SIGTERM)
        try:
            self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._popen.wait()
        self._forget()

    def kill9(self) -> None:
        """End it at once (SIGKILL) and wait until the process is gone, zombie included."""
        self._signal(signal.SIGKILL)
        self._popen.wait()
        self._forget()

    def freeze(self) -> None:
        """Stop its clockwork (SIGSTOP), as a long pause of the machine does."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self.running:  # Popen has not reaped it, so the id is still ours
            self._popen.send_signal(number)

    def _forget(self) -> None:
        atexit.unregister(self.kill9)

    def _tail(self) -> str:
        return f"Last lines of {self.log}:\n{tail(self.log)}"


class ServerPart(ABC):
    """A server of one process with a folder of its own. A context manager; it ends with the process that started it.

    Args:
        directory: where its data and log lie; kept on `stop`. None: a temporary folder, removed on `stop`.
        name: of the part, for the temporary folder.
    """

    def __init__(self, directory: Path | str | None, name: str) -> None:
        self._temporary = directory is None
        self.directory = Path(directory or tempfile.mkdtemp(prefix=f"stepwell-{name}-")).absolute()
        self.log = self.directory / "server.log"
        self._process: OwnProcess | None = None

    @abstractmethod
    def start(self) -> str:
        """Start it (a restart keeps data and port); the URL. Does nothing when it runs."""

    def stop(self) -> None:
        """End it in order; nothing when it does not run."""
        if self._process is not None:
            self._process.stop()
            self._process = None
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def kill9(self) -> None:
        """End it at once (SIGKILL). The data stays, also that of a temporary folder, until `stop`."""
        if self._process is not None:
            self._process.kill9()
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
