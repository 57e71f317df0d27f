"""The host's identity, kept with the run: a restarted run on this machine goes on as the same host.

The lock proves that the earlier process is gone. So the new one may continue its sequences and say of the attempts it
left open that they were lost, which nobody else can know before the time-out.
"""

import contextlib
import fcntl
import getpass
import json
import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

from stepwell.adapters.runs.recorder import HostIdentity
from stepwell.exceptions import ConfigurationError


@contextlib.contextmanager
def hold_identity(home: Path, run_id: str) -> Iterator[HostIdentity]:
    """Hold this machine's identity for a run.

    Raises:
        ConfigurationError: another process on this machine is running this run now, or the directory cannot be written.
    """
    directory = home / "runs" / run_id
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = (directory / "host.json").open("a+", encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{directory}: cannot be written: {error.strerror}; set STEPWELL_HOME") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(f"run {run_id!r} is being run by another process on this machine") from None
        except OSError as error:
            raise ConfigurationError(
                f"{file.name}: cannot be locked: {error.strerror}; set STEPWELL_HOME to a directory on a local disk"
            ) from None
        file.seek(0)
        producer_id = _read(file.read())
        if producer_id is None:
            producer_id = f"host-{secrets.token_hex(6)}"
            file.truncate(0)
            file.write(json.dumps({"producer_id": producer_id}))
            file.flush()
            os.fsync(file.fileno())
            _sync(directory)
        yield HostIdentity(producer_id, socket.gethostname(), os.getpid(), current_user())


def _read(text: str) -> str | None:
    """The kept id; None for a new file or one that a crash left half written (nothing was recorded under it yet)."""
    try:
        producer_id = json.loads(text)["producer_id"]
    except (ValueError, KeyError, TypeError):
        return None
    return producer_id if isinstance(producer_id, str) and producer_id else None


def _sync(directory: Path) -> None:
    """Make a new file's name outlive a power cut: facts in the log will be told apart by what it holds."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def current_user() -> str:
    """Who runs this process, as the operating system calls them."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no entry in the password file, e.g. in a container
        return f"uid-{os.getuid()}"


def operator() -> str:
    """Who acts here, ``user@host``: what is written beside what a person decided."""
    return f"{current_user()}@{socket.gethostname()}"
