"""Starting processes that die with us, and keeping the last of what they print."""

import atexit
import contextlib
import os
import queue
import re
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

TAIL_BYTES = 32 * 1024
TAIL_LINES = 40
MARK = "STEPWELL_PROCESS"
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

# Numbers must not depend on how many cores a machine has; and many episodes at once must not fight over them.
_FIXED = {
    "PYTHONHASHSEED": "0",
    "PYTHONUNBUFFERED": "1",
    "PYTHONNOUSERSITE": "1",
    "PYTHONDONTWRITEBYTECODE": "",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MUJOCO_GL": "disabled",
}


def child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Our environment without what is ours alone: Stepwell's settings (they hold passwords) and Python's paths."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("STEPWELL_") and name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    }
    return {**inherited, **_FIXED, **extra}


class OutputTail:
    """The last bytes of a stream, read by a thread so that whoever writes never waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept = bytearray()
        self._thread: threading.Thread | None = None

    def drain(self, descriptor: int) -> None:
        """Read ``descriptor`` to its end in the background, and close it."""
        self._thread = threading.Thread(target=self._run, args=(descriptor,), name="output-tail", daemon=True)
        self._thread.start()

    def finish(self, timeout_s: float = 1.0) -> None:
        """Wait for the stream's end; not for ever, since a stray process could hold it open."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def text(self) -> str:
        """The last lines, without control characters."""
        with self._lock:
            raw = bytes(self._kept)
        lines = [_CONTROL.sub("", line) for line in raw.decode("utf-8", "replace").split("\n")]
        return "\n".join(lines[-TAIL_LINES:]).strip("\n")

    def _run(self, descriptor: int) -> None:
        try:
            while chunk := os.read(descriptor, 65_536):
                with self._lock:
                    self._kept += chunk
                    del self._kept[:-TAIL_BYTES]
        except OSError:
            pass
        finally:
            os.close(descriptor)


class _Spawner:
    """One thread that starts all processes.

    "Die with the parent" in Linux means the thread that forked, not its process: a process started from a short-lived
    thread would be killed when that thread ends. This one lives as long as we do.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._jobs: queue.SimpleQueue[tuple[dict[str, object], queue.SimpleQueue[object]]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="spawner", daemon=True).start()

    def start(self, **arguments: object) -> "subprocess.Popen[bytes]":
        answer: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._jobs.put((arguments, answer))
        result = answer.get()
        if isinstance(result, Exception):
            raise result
        assert isinstance(result, subprocess.Popen)
        return result

    def _run(self) -> None:
        while True:
            arguments, answer = self._jobs.get()
            try:
                answer.put(subprocess.Popen(**arguments))  # type: ignore[call-overload]
            except Exception as error:  # noqa: BLE001 - raised again where it was asked for
                answer.put(error)


_lock = threading.Lock()
_spawner: _Spawner | None = None
_running: dict[int, tuple[int, "subprocess.Popen[bytes]"]] = {}
"""Process id -> (who started it, the process)."""


def spawn(
    command: Sequence[str], channel: int, environ: Mapping[str, str], directory: Path | None, output: OutputTail
) -> "subprocess.Popen[bytes]":
    """Start a process that inherits ``channel`` and nothing else, leading a session of its own.

    Raises:
        OSError: it cannot be started.
    """
    global _spawner  # noqa: PLW0603 - one per process, as the kernel counts
    with _lock:
        if _spawner is None or _spawner.pid != os.getpid():
            _spawner = _Spawner()
        spawner = _spawner
    reading, writing = os.pipe()
    try:
        popen = spawner.start(
            args=list(command), stdin=subprocess.DEVNULL, stdout=writing, stderr=writing, pass_fds=(channel,),
            env=dict(environ), cwd=directory, start_new_session=True, close_fds=True,
        )  # fmt: skip
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    output.drain(reading)
    _running[popen.pid] = (os.getpid(), popen)
    return popen


def forget(popen: "subprocess.Popen[bytes]") -> None:
    """The process has been ended and reaped."""
    _running.pop(popen.pid, None)


def kill_marked(mark: str) -> None:
    """Kill every process whose environment holds ``MARK=mark``: what a process of ours started and left behind.

    Neither a new session nor a double fork hides a process from this, only a changed environment. Does nothing where
    the system has no ``/proc``.
    """
    wanted = f"{MARK}={mark}".encode()
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (directory / "environ").read_bytes().split(b"\0"):
                os.kill(int(directory.name), signal.SIGKILL)


@atexit.register
def _end_all() -> None:
    for owner, popen in list(_running.values()):
        if owner != os.getpid():  # we are a fork of who started it
            continue
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(popen.pid, signal.SIGKILL)
        with contextlib.suppress(Exception):
            popen.wait(1.0)
