"""Running a shell command of the user's to its end, which never outlives us."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

OUTPUT_BYTES_READ = 64 * 1024
END_GRACE_S = 10.0
CANNOT_RUN = frozenset({126, 127})
"""A shell's exit codes for a command that is no program, or that there is none of."""

_TIED = Path(__file__).with_name("tied.py")
_TURN_S = 0.2


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended: its exit code (128 and the signal's number after a signal), and the end of its output."""

    code: int
    output: str


def run_command(command: str, given: bytes, stop: threading.Event) -> CommandResult | None:
    """Run a shell command with ``given`` on its input; None where ``stop`` was set meanwhile, which ends it.

    It ends when this process dies, too, also by ``kill -9``, with everything that it started and that has not put
    itself into a process group of its own. Input and output are files: a command that reads nothing, prints a lot, or
    leaves something behind that holds on to its output blocks nobody.

    Raises:
        OSError: no process can be started.
    """
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as printed:
        stdin.write(given)
        stdin.seek(0)
        reading, writing = os.pipe()
        try:
            try:
                process = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(_TIED), str(reading), command],
                    stdin=stdin, stdout=printed, stderr=subprocess.STDOUT, pass_fds=(reading,), start_new_session=True,
                )  # fmt: skip
            finally:
                os.close(reading)
            if not _wait(process, stop):
                return None
        finally:
            os.close(writing)
        code = process.returncode
        return CommandResult(code if code >= 0 else 128 - code, _end_of(printed))


def _wait(process: "subprocess.Popen[bytes]", stop: threading.Event) -> bool:
    """Wait for the process's end; end it and give False once ``stop`` is set."""
    # It is not reaped before the last signal to its group, so that the group's id cannot be somebody else's by then.
    finished = False
    try:
        while (ended := _ended(process)) is None:
            if stop.wait(_TURN_S):
                return False
        finished = ended.si_code == os.CLD_EXITED  # else somebody killed it, and left the command without its tie
    finally:
        if not finished:
            _end(process)
        process.wait()
    return True


def _ended(process: "subprocess.Popen[bytes]") -> os.waitid_result | None:
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End what runs in the process's group: ask first, then kill."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: nobody but the dead is left
        os.killpg(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + END_GRACE_S
        while time.monotonic() < deadline and _ended(process) is None:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)


def _end_of(printed: IO[bytes]) -> str:
    size = printed.seek(0, os.SEEK_END)
    printed.seek(max(0, size - OUTPUT_BYTES_READ))
    return printed.read().decode("utf-8", "replace").strip()
