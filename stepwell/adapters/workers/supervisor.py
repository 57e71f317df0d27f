"""One process that keeps several workers running: starts them, restarts what dies, ends all cleanly.

A child that dies is started again after a pause that doubles up to `PAUSE_MAX_S`; one that has run for `STEADY_S`
starts over with the shortest pause. Exit codes that a restart cannot help
(`stepwell.adapters.workers.process.NOT_RESTARTED`) end the whole: half a pipeline that looks alive is worse than none.

A child that was fenced is started again, too: a broker that was killed can forget a member and then refuse it though
there is no rival. Where there is one, two supervisors would throw each other's worker out by turns. So the pauses are
longer and partly drawn by chance, and after `FENCED_MAX` times in a row without a steady run this one gives way.

Children watch their standard input, which ends with the supervisor, so they never outlive it, kill -9 included.
"""

import contextlib
import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from stepwell.adapters.workers.process import EXIT_FENCED, EXIT_OK, NOT_RESTARTED, StopFlag

PAUSE_FIRST_S = 0.5
PAUSE_MAX_S = 30.0
STEADY_S = 60.0
FENCED_PAUSE_S = 2.0
"""The shortest pause after a child was fenced."""
FENCED_MAX = 5
STOP_TIMEOUT_S = 30.0
LOOK_S = 0.2

_log = structlog.get_logger(__name__)


@dataclass
class _Child:
    name: str
    command: Sequence[str]
    process: "subprocess.Popen[bytes] | None" = None
    started_at: float = 0.0
    pause_s: float = PAUSE_FIRST_S
    due_at: float = 0.0
    restarts: int = 0
    fenced: int = 0
    """Times in a row, without a steady run between."""


@dataclass
class Supervisor:
    """Keeps child processes running.

    Args:
        commands: name of each worker and the command line that starts it.
        environment: environment of the children; None: this process's.
        clock: seconds, never going back.
    """

    commands: Mapping[str, Sequence[str]]
    environment: Mapping[str, str] | None = None
    clock: Callable[[], float] = time.monotonic
    _children: list[_Child] = field(default_factory=list)

    def run(self, stop: StopFlag, finished: Callable[[], bool] | None = None) -> int:
        """Run until told to stop, or until ``finished`` says so; 0, or the code of the worker that ended it all."""
        self._children = [_Child(name, command) for name, command in self.commands.items()]
        try:
            while not stop():
                for child in self._children:
                    code = self._look_after(child)
                    if code is not None:
                        _log.error("a worker cannot go on, stopping all", worker=child.name, exit_code=code)
                        return code or 1
                if finished is not None and finished():
                    return EXIT_OK
                stop.wait(LOOK_S)
            return EXIT_OK
        finally:
            self.stop()

    def pids(self) -> dict[str, int]:
        """Process ids of the children that run now."""
        return {child.name: child.process.pid for child in self._children if child.process is not None}

    def restarts(self) -> dict[str, int]:
        """How often each child has been started again."""
        return {child.name: child.restarts for child in self._children}

    def stop(self) -> None:
        """End all children: SIGTERM, then SIGKILL after `STOP_TIMEOUT_S`."""
        running = [child for child in self._children if child.process is not None]
        for child in running:
            assert child.process is not None
            with contextlib.suppress(ProcessLookupError):
                child.process.terminate()
        deadline = self.clock() + STOP_TIMEOUT_S
        for child in running:
            assert child.process is not None
            try:
                child.process.wait(max(0.1, deadline - self.clock()))
            except subprocess.TimeoutExpired:
                _log.warning("worker did not stop, killing it", worker=child.name, pid=child.process.pid)
                child.process.kill()
                child.process.wait()
            self._let_go(child)

    def _look_after(self, child: _Child) -> int | None:
        """Start it if it is due; an exit code if it ended in a way that a restart cannot help."""
        now = self.clock()
        if child.process is None:
            if now >= child.due_at:
                self._start(child, now)
            return None
        code = child.process.poll()
        if code is None:
            return None
        self._let_go(child)
        if code in NOT_RESTARTED:
            return code
        if now - child.started_at >= STEADY_S:
            child.pause_s, child.fenced = PAUSE_FIRST_S, 0
        if code == EXIT_FENCED:
            child.fenced += 1
            if child.fenced >= FENCED_MAX:
                return code
            child.pause_s = max(child.pause_s, FENCED_PAUSE_S * random.uniform(1.0, 1.5))
        child.due_at = now + child.pause_s
        _log.warning(
            "worker died, starting it again", worker=child.name, exit_code=code, pause_s=round(child.pause_s, 1)
        )
        child.pause_s = min(2 * child.pause_s, PAUSE_MAX_S)
        child.restarts += 1
        return None

    def _start(self, child: _Child, now: float) -> None:
        child.process = subprocess.Popen(child.command, stdin=subprocess.PIPE, env=self.environment)
        child.started_at = now
        _log.info("worker started", worker=child.name, pid=child.process.pid)

    @staticmethod
    def _let_go(child: _Child) -> None:
        if child.process is not None and child.process.stdin is not None:
            child.process.stdin.close()
        child.process = None


def stepwell_command(*arguments: str) -> list[str]:
    """The command line that runs ``stepwell ARGUMENTS`` with this interpreter."""
    return [sys.executable, "-m", "stepwell", *arguments]
