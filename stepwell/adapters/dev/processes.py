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
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from stepwell.exceptions import ConfigurationError

__all__ = ["Process", "end", "find", "launch", "lives", "members"]

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
    """Ask it to end (SIGTERM); after ``grace_s`` end it (SIGKILL). Whether it ended when asked, or ran no more.

    Never touches another process that has the same id by now.
    """
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return True
    try:
        if not lives(process):
            return True
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGTERM)
        if _ended(handle, process, grace_s):
            return True
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        _ended(handle, process, _KILL_WAIT_S)
        return False
    finally:
        os.close(handle)


def _ended(handle: int, process: Process, timeout_s: float) -> bool:
    """Wait for the end. The descriptor tells at once; a child of ours is taken off the kernel's hands, too."""
    deadline = time.monotonic() + timeout_s
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    while lives(process):
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return False
        poll.poll(min(left_s, 1.0) * 1000)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(process.pid, os.WNOHANG)
    return True


def _boot() -> str:
    return (_PROC / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
