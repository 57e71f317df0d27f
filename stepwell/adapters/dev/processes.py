"""Processes that outlive the command that started them, found again and ended safely. Linux only (``/proc``).

A process id alone says little: the kernel gives it out again. So a process is known by its id and the time of its
start, and what is signalled is held by a descriptor meanwhile (pidfd). Besides, every process of a set carries the
set's folder in its environment, and so do its children: whatever a crashed start left behind is found by that.
"""

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from stepwell.exceptions import ConfigurationError

__all__ = ["Process", "end", "end_all", "find", "launch", "lives", "members"]

MARK = "_STEPWELL_DEV"
"""Names the set's folder in the environment of its processes."""
_KILL_WAIT_S = 10.0
_PROC = Path("/proc")


class Process(msgspec.Struct, frozen=True):
    """One process of this machine.

    Attributes:
        pid: its id.
        started: when it started (clock ticks since the machine started).
        boot: which start of the machine that was.
    """

    pid: int
    started: int
    boot: str


def require_proc() -> None:
    """Raise `ConfigurationError` where processes cannot be told apart."""
    if not (_PROC / "self" / "stat").exists():
        raise ConfigurationError("stepwell dev needs Linux: it tells processes apart by /proc")


def launch(command: Sequence[str], *, log: Path, cwd: Path, env: Mapping[str, str], mark: Path) -> Process:
    """Start a process that goes on when we end, in a session of its own; what it says is appended to ``log``."""
    with log.open("ab") as output:
        started = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=cwd, env={**env, MARK: str(mark)},
            start_new_session=True, close_fds=True,
        )  # fmt: skip
    found = find(started.pid)
    # Not ours to wait for; without this a Popen that is forgotten complains about a process that still runs.
    started.returncode = 0
    return found or Process(started.pid, -1, _boot())


def find(pid: int) -> Process | None:
    """The process that has this id now; None where there is none, or only what is left of one (a zombie)."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except (OSError, UnicodeDecodeError):
        return None
    # The name, in brackets, may hold anything.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in {"Z", "X"} else Process(pid, int(fields[19]), _boot())


def lives(process: Process) -> bool:
    """Whether this very process still runs."""
    return find(process.pid) == process


def members(mark: Path) -> list[Process]:
    """All processes of a set, wherever they come from: they carry its folder in their environment."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in _PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0") and (process := find(int(entry.name))):
                found.append(process)
    return found


def end(process: Process, grace_s: float) -> bool:
    """As `end_all`, for one. Whether it ended when asked, or ran no more."""
    return not end_all([process], grace_s)


def end_all(wanted: Iterable[Process], grace_s: float) -> list[Process]:
    """Ask processes to end (SIGTERM); after ``grace_s`` end them (SIGKILL). Those that had to be killed.

    Never touches another process that has the same id by now.
    """
    with contextlib.ExitStack() as stack:
        handles: dict[Process, int] = {}
        for process in wanted:
            with contextlib.suppress(OSError):
                handle = os.pidfd_open(process.pid)
                stack.callback(os.close, handle)
                # Looked at after the descriptor holds it: from here on it is this process and no other.
                if lives(process):
                    handles[process] = handle
        killed = _signalled(handles, signal.SIGTERM, grace_s)
        _signalled({process: handles[process] for process in killed}, signal.SIGKILL, _KILL_WAIT_S)
        return killed


def _signalled(handles: Mapping[Process, int], number: signal.Signals, timeout_s: float) -> list[Process]:
    """Send a signal and wait; those that still run then. A child of ours is taken off the kernel's hands, too."""
    for handle in handles.values():
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, number)
    deadline = time.monotonic() + timeout_s
    left = []
    for process, handle in handles.items():
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        while lives(process) and (left_s := deadline - time.monotonic()) > 0:
            poll.poll(min(left_s, 1.0) * 1000)
        if lives(process):
            left.append(process)
            continue
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)
    return left


def _boot() -> str:
    return (_PROC / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
