"""Our side of a simulator's or policy's process: start it, ask it, notice every way in which it can fail, end it.

What a caller can rest on:

* a call returns an answer to that very call, or raises one `ProcessFailedError`; it never waits past its time-out;
* whatever the process prints is drained by a thread, so that noise never blocks it, and the last of it is in the error;
* the process leads a session of its own. It is killed with everything it started by ``close``, at our exit, and by
  the kernel if we are killed.
"""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Never, Self

from stepwell.adapters.processes.errors import (
    NAMES,
    Component,
    ProcessExitedError,
    ProcessFailedError,
    ProcessHungError,
    ProcessKilledError,
    ProcessProtocolError,
    ProcessRaisedError,
    StartFailedError,
)
from stepwell.adapters.processes.frames import Array, FrameError, Message, encode, read_message
from stepwell.adapters.processes.spawning import MARK, OutputTail, child_environment, forget, kill_marked, spawn

BOOTSTRAP = Path(__file__).with_name("bootstrap.py")
EXIT_GRACE_S = 5.0
STACK_DUMP_S = 0.3
# Signals that a process gets by its own doing. Any other one that ends it came from outside: an operator, the kernel's
# out-of-memory killer, a batch system.
OWN_SIGNALS = frozenset(
    {signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGBUS, signal.SIGTRAP, signal.SIGSYS}
)


class SupervisedProcess:
    """One process behind one channel. Use it from one thread at a time."""

    def __init__(
        self,
        component: Component,
        interpreter: Path,
        module: str,
        *,
        environ: Mapping[str, str] | None = None,
        working_directory: Path | None = None,
    ) -> None:
        """Nothing is started yet.

        Args:
            component: ``sim`` or ``agent``; names who broke in errors.
            interpreter: the Python that runs it.
            module: a module below ``stepwell`` with ``main(channel)`` that needs no more than that interpreter has.
            environ: variables set beside those that a process gets anyway.
            working_directory: where it runs; ours by default.
        """
        self._component: Component = component
        self._interpreter = interpreter
        self._module = module
        self._mark = secrets.token_hex(16)
        self._environ = {**(environ or {}), MARK: self._mark}
        self._directory = working_directory
        self._popen: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._output = OutputTail()
        self._arrived = bytearray()
        self._calls = 0

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self._popen.pid if self._popen else None

    @property
    def output(self) -> str:
        """The last lines that it printed, on standard output and error."""
        return self._output.text()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, timeout_s: float) -> None:
        """Start the process and wait until it says hello.

        Raises:
            StartFailedError: the interpreter is missing, or the process ended or was silent before its hello.
        """
        if self._popen is not None:
            raise RuntimeError("already started")
        ours, theirs = socket.socketpair()
        command: Sequence[str] = (
            str(self._interpreter), "-P", str(BOOTSTRAP), str(theirs.fileno()), str(os.getpid()), self._module,
        )  # fmt: skip
        self._output = OutputTail()
        self._arrived.clear()
        try:
            with theirs:
                self._popen = spawn(
                    command, theirs.fileno(), child_environment(self._environ), self._directory, self._output
                )
        except OSError as error:
            ours.close()
            raise StartFailedError(
                f"The {self._name} could not be started: {self._interpreter}: {error.strerror or error}.",
                component=self._component,
            ) from error
        self._channel = ours
        try:
            hello = self._receive(time.monotonic() + timeout_s, f"start within {timeout_s:g} s")
        except ProcessFailedError as error:
            raise StartFailedError(
                f"The {self._name} could not be started. {error}",
                component=self._component, exit_code=error.exit_code, output=error.output,
            ) from error  # fmt: skip
        if hello.body.get("hello") != self._module:
            self._fail_protocol(f"said {hello.body!r} instead of hello")

    def open(self, body: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """The first call: load what the process is for. Where that fails, the process is ended.

        Raises:
            StartFailedError: whatever went wrong: nothing has been asked of what it loads yet.
        """
        try:
            return self.call("open", body, (), timeout_s).body
        except ProcessFailedError as error:
            self.close()
            raise StartFailedError(
                f"The {self._name} could not be loaded. {error}",
                component=self._component, exit_code=error.exit_code, output=error.output,
                remote_traceback=error.remote_traceback,
            ) from error  # fmt: skip
        except BaseException:
            self.close()
            raise

    def call(self, operation: str, body: Mapping[str, Any], arrays: Sequence[Array], timeout_s: float) -> Message:
        """Ask, and wait for the answer.

        Raises:
            ProcessFailedError: one of its subclasses; after any but `ProcessRaisedError` the process is gone.
        """
        channel = self._channel
        if channel is None:
            raise RuntimeError(f"the {self._name} is not running; call start() first")
        self._calls += 1
        deadline = time.monotonic() + timeout_s
        wanted = f"answer '{operation}' within {timeout_s:g} s"
        try:
            channel.settimeout(timeout_s)
            channel.sendall(encode({**body, "op": operation, "id": self._calls}, arrays))
        except TimeoutError:
            self._fail_hung(wanted)
        except OSError:
            self._fail_ended(f"while asked to '{operation}'")
        answer = self._receive(deadline, wanted)
        if answer.body.get("id") != self._calls:
            self._fail_protocol(f"answered call {answer.body.get('id')!r} when asked call {self._calls}")
        if error := answer.body.get("error"):
            raise self._raised(operation, error)
        return answer

    def close(self, grace_s: float = 2.0) -> None:
        """End the process and everything it started. Asks first; kills what has not gone after ``grace_s``."""
        if self._popen is None:
            return
        if self._channel is not None:
            with contextlib.suppress(OSError, FrameError):
                self._channel.settimeout(grace_s)
                self._channel.sendall(encode({"op": "close", "id": 0}))
                self._wait_for_exit(grace_s)
        self._end()

    # --- receiving ------------------------------------------------------------------------------------------------

    def _receive(self, deadline: float, wanted: str) -> Message:
        try:
            message = read_message(lambda size: self._read(size, deadline))
        except TimeoutError:
            self._fail_hung(wanted)
        except OSError:
            message = None
        except FrameError as error:
            if self._wait_for_exit(STACK_DUMP_S):  # it died in the middle of an answer
                self._fail_ended(f"before it could {wanted}")
            self._fail_protocol(str(error))
        if message is None:
            self._fail_ended(f"before it could {wanted}")
        return message

    def _read(self, size: int, deadline: float) -> bytes:
        """``size`` bytes, fewer only at the stream's end. Takes along what has come already: mostly a whole answer."""
        assert self._channel is not None
        while len(self._arrived) < size:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._channel.settimeout(left)
            part = self._channel.recv(1 << 20)
            if not part:
                break
            self._arrived += part
        taken = bytes(self._arrived[:size])
        del self._arrived[:size]
        return taken

    # --- failing --------------------------------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        return NAMES[self._component]

    def _raised(self, operation: str, error: Mapping[str, Any]) -> ProcessRaisedError:
        kind = error.get("kind")
        return ProcessRaisedError(
            f"The {self._name} raised {error.get('type')} in '{operation}': {error.get('message')}",
            component=self._component,
            failure_type=f"{self._component}_{kind}" if kind else None,
            output=self.output,
            remote_traceback=str(error.get("traceback")),
        )

    def _fail_hung(self, wanted: str) -> Never:
        assert self._popen is not None
        with contextlib.suppress(ProcessLookupError):  # its stacks go to its standard error
            self._popen.send_signal(signal.SIGUSR1)
        time.sleep(STACK_DUMP_S)
        self._end()
        raise ProcessHungError(
            f"The {self._name} did not {wanted}, though its process lived. It was killed.",
            component=self._component,
            output=self.output,
        )

    def _fail_protocol(self, what: str) -> Never:
        self._end()
        raise ProcessProtocolError(
            f"The {self._name}'s process broke the protocol: {what}. It was killed.",
            component=self._component,
            output=self.output,
        )

    def _fail_ended(self, when: str) -> Never:
        if not self._wait_for_exit(EXIT_GRACE_S):
            self._fail_protocol("closed its channel but went on running")
        code = self._end()
        output = self.output
        if code >= 0:
            raise ProcessExitedError(
                f"The {self._name}'s process ended with exit status {code} {when}.",
                component=self._component, exit_code=code, output=output,
            )  # fmt: skip
        name = _signal_name(-code)
        if -code in OWN_SIGNALS:
            raise ProcessExitedError(
                f"The {self._name}'s process crashed with {name} {when}.",
                component=self._component, exit_code=code, output=output,
            )  # fmt: skip
        hint = " (memory may have run out)" if -code == signal.SIGKILL else ""
        raise ProcessKilledError(
            f"The {self._name}'s process was killed by {name} {when}{hint}.",
            component=self._component, exit_code=code, output=output,
        )  # fmt: skip

    # --- ending ---------------------------------------------------------------------------------------------------

    def _wait_for_exit(self, seconds: float) -> bool:
        """Whether it has ended; does not reap it, so that its group's id cannot be reused before `_end`."""
        assert self._popen is not None
        deadline = time.monotonic() + seconds
        while True:
            ended = os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.005)

    def _end(self) -> int:
        """Kill the process, its group and whatever it started; reap it. Returns its exit status (negative: signal)."""
        popen, self._popen = self._popen, None
        channel, self._channel = self._channel, None
        assert popen is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(popen.pid, signal.SIGKILL)
        kill_marked(self._mark)
        if channel is not None:
            channel.close()
        code = popen.wait()
        forget(popen)
        self._output.finish()
        return code


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
