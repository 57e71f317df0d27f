"""What a set remembers, in ``HOME/dev/state.json``: its options, its ports and its processes."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from stepwell.adapters.dev.processes import Process
from stepwell.adapters.parts import free_port
from stepwell.exceptions import ConfigurationError, StepwellError

__all__ = ["DATABASES", "State", "held", "load", "save"]

DATABASES = ("timescaledb", "embedded")
"""Besides a URL, ``postgresql://...``."""


class State(msgspec.Struct, forbid_unknown_fields=True):
    """One set.

    Attributes:
        database: one of `DATABASES`, or the URL of a server of the user's own.
        registry: whether there is a schema registry.
        prometheus: whether there is a Prometheus.
        engines: how many engine workers.
        ports: service -> port on 127.0.0.1. Kept over restarts.
        processes: service -> process; what ended stays listed until `up` or `down`.
    """

    database: str = "timescaledb"
    registry: bool = False
    prometheus: bool = False
    engines: int = 1
    ports: dict[str, int] = {}
    processes: dict[str, Process] = {}

    def port(self, name: str) -> int:
        """The port of a service; chosen on first use."""
        if name not in self.ports:
            self.ports[name] = free_port()
        return self.ports[name]


def load(directory: Path) -> State | None:
    """The set of a folder; None where none was made.

    Raises:
        ConfigurationError: the file is damaged.
    """
    path = directory / "state.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=State)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigurationError(
            f"{path} cannot be read ({error}). End the set with: stepwell dev down --wipe (its data go with it)"
        ) from None


def save(directory: Path, state: State) -> None:
    """Keep it, whole or not at all. For its owner's eyes only: a database URL may hold a password."""
    path = directory / "state.json"
    partial = path.with_suffix(".partial")
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(state)))
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


@contextlib.contextmanager
def held(directory: Path) -> Iterator[None]:
    """Hold the set: two commands must not change it at once.

    Raises:
        StepwellError: another command holds it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StepwellError(
                f"another `stepwell dev up` or `down` is at work on {directory}; wait until it has ended"
            ) from None
        yield
