"""Processes of others: every way in which one can fail is told apart, and none is left behind."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stepwell.adapters.processes import (
    ProcessExitedError,
    ProcessFailedError,
    ProcessHungError,
    ProcessKilledError,
    ProcessProtocolError,
    ProcessRaisedError,
    StartFailedError,
    SupervisedProcess,
)
from stepwell.adapters.processes.frames import Array

HELPER = """
import os, signal, subprocess, sys, time
from stepwell.adapters.processes.child import serve
from stepwell.adapters.processes.frames import encode

class Odd(Exception):
    failure_kind = "diverged"

def main(channel):
    def handle(operation, message):
        body = message.body
        if operation == "echo":
            return {"body": body["text"]}, message.arrays
        if operation == "environ":
            return {"environ": dict(os.environ), "stdin": sys.stdin.read()}, ()
        if operation == "print":
            for _ in range(body["times"]):
                print("x" * 1000)
                print("y" * 1000, file=sys.stderr)
            print("the\\x1b[31m end\\x07")
            return {}, ()
        if operation == "raise":
            raise ValueError("no such thing")
        if operation == "diverge":
            raise Odd("too fast")
        if operation == "unserialisable":
            return {"x": object()}, ()
        if operation == "exit":
            print("last words", flush=True)
            os._exit(body["status"])
        if operation == "system_exit":
            sys.exit(5)
        if operation == "signal":
            os.kill(os.getpid(), body["number"])
        if operation == "hang_here":
            time.sleep(3600)
        if operation == "garbage":
            channel.sendall(b"Hello, this is no frame at all")
            time.sleep(3600)
        if operation == "stale":
            return_id = encode({"id": 12345})
            channel.sendall(return_id)
            time.sleep(3600)
        if operation == "half":
            channel.sendall(encode({"id": body["id"], "filler": "x" * 100})[:50])
            os._exit(7)
        if operation == "shut":
            channel.shutdown(2)
            time.sleep(3600)
        if operation == "family":
            child = subprocess.Popen(["sleep", "3600"])
            stray = subprocess.Popen(["sleep", "3600"], start_new_session=True)
            return {"pids": [child.pid, stray.pid]}, ()
        return {}, ()
    serve(channel, handle)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], SupervisedProcess]]:
    (tmp_path / "helper_process.py").write_text(textwrap.dedent(HELPER))
    with contextlib.ExitStack() as stack:

        def make() -> SupervisedProcess:
            process = stack.enter_context(
                SupervisedProcess(
                    "agent", Path(sys.executable), "helper_process", environ={"PYTHONPATH": str(tmp_path)}
                )
            )
            process.start(30)
            return process

        yield make


Start = Callable[[], SupervisedProcess]


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def gone(pid: int, seconds: float = 10.0) -> bool:
    """Whether the process disappears; its killer need not be its parent, so that may take a moment."""
    deadline = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pid)


def failing(process: SupervisedProcess, operation: str, timeout_s: float = 30, **body: object) -> ProcessFailedError:
    pid = process.pid
    assert pid is not None
    with pytest.raises(ProcessFailedError) as raised:
        process.call(operation, body, (), timeout_s)
    assert raised.value.component == "agent"
    if not isinstance(raised.value, ProcessRaisedError):
        assert not alive(pid)
        assert process.pid is None
    return raised.value


def test_answers_come_back_with_their_arrays(start: Start) -> None:
    array = Array("a", "float64", (2,), bytes(range(16)))
    answer = start().call("echo", {"text": "hälló"}, (array,), 30)
    assert (answer.body["body"], answer.arrays) == ("hälló", (array,))


def test_close_ends_it_and_can_be_repeated(start: Start) -> None:
    process = start()
    pid = process.pid
    assert pid is not None
    process.close()
    process.close()
    assert not alive(pid)


def test_an_exception_is_told_with_its_traceback_and_the_process_lives(start: Start) -> None:
    process = start()
    error = failing(process, "raise")
    assert isinstance(error, ProcessRaisedError)
    assert error.failure_type == "agent_exception"
    assert "ValueError" in str(error)
    assert "no such thing" in str(error)
    assert error.remote_traceback is not None
    assert "helper_process.py" in error.remote_traceback
    assert process.call("echo", {"text": "still here"}, (), 30).body["body"] == "still here"


def test_an_exception_can_say_what_kind_it_is(start: Start) -> None:
    assert failing(start(), "diverge").failure_type == "agent_diverged"


def test_an_answer_that_cannot_be_sent_is_the_childs_exception(start: Start) -> None:
    assert "not JSON serializable" in str(failing(start(), "unserialisable"))


@pytest.mark.parametrize(("operation", "status"), [("exit", 0), ("exit", 9), ("system_exit", 5)])
def test_an_exit_keeps_its_status(start: Start, operation: str, status: int) -> None:
    error = failing(start(), operation, status=status)
    assert isinstance(error, ProcessExitedError)
    assert (error.failure_type, error.exit_code) == ("agent_exited", status)
    if operation == "exit":
        assert error.output.endswith("last words")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_signal_from_outside_is_a_kill(start: Start, number: int) -> None:
    error = failing(start(), "signal", number=int(number))
    assert isinstance(error, ProcessKilledError)
    assert (error.failure_type, error.exit_code) == ("agent_killed", -number)


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE])
def test_a_crash_is_its_own_doing(start: Start, number: int) -> None:
    error = failing(start(), "signal", number=int(number))
    assert isinstance(error, ProcessExitedError)
    assert (error.failure_type, error.exit_code) == ("agent_exited", -number)


def test_killed_while_idle_is_noticed_at_the_next_call(start: Start) -> None:
    process = start()
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    assert isinstance(failing(process, "echo", text="?"), ProcessKilledError)


def test_a_hang_is_cut_off_and_says_where_it_hung(start: Start) -> None:
    error = failing(start(), "hang_here", timeout_s=0.5)
    assert isinstance(error, ProcessHungError)
    assert error.failure_type == "agent_timeout"
    assert "helper_process.py" in error.output


def test_a_stopped_process_counts_as_hung(start: Start) -> None:
    process = start()
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    assert isinstance(failing(process, "echo", timeout_s=0.5, text="?"), ProcessHungError)


@pytest.mark.parametrize(
    ("operation", "words"), [("garbage", "expected a frame"), ("stale", "12345"), ("shut", "closed its channel")]
)
def test_what_is_no_answer_is_refused(
    start: Start, operation: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepwell.adapters.processes.supervised.EXIT_GRACE_S", 0.2)
    error = failing(start(), operation)
    assert isinstance(error, ProcessProtocolError)
    assert words in str(error)


def test_death_within_an_answer_is_an_exit(start: Start) -> None:
    error = failing(start(), "half")
    assert isinstance(error, ProcessExitedError)
    assert error.exit_code == 7


def test_noise_never_blocks_and_only_its_end_is_kept(start: Start) -> None:
    process = start()
    process.call("print", {"times": 5_000}, (), 60)  # ten megabytes; a pipe holds 64 KiB
    process.close()
    assert process.output.endswith("the[31m end")
    assert len(process.output) <= 32 * 1024


def test_it_inherits_no_secrets_and_no_input(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_DATABASE", "postgresql://user:hunter2@127.0.0.1/db")
    body = start().call("environ", {}, (), 30).body
    assert body["stdin"] == ""
    assert "hunter2" not in str(body["environ"])
    assert body["environ"]["MUJOCO_GL"] == "disabled"


def test_what_it_started_ends_with_it(start: Start) -> None:
    process = start()
    pids = process.call("family", {}, (), 30).body["pids"]
    assert all(map(alive, pids))
    process.close()
    assert all(map(gone, pids))


def test_a_missing_interpreter(tmp_path: Path) -> None:
    process = SupervisedProcess("sim", tmp_path / "nowhere" / "python", "x")
    with pytest.raises(StartFailedError, match="nowhere") as raised:
        process.start(5)
    assert (raised.value.failure_type, raised.value.component) == ("start_failed", "sim")


def test_a_module_that_cannot_be_imported() -> None:
    process = SupervisedProcess("sim", Path(sys.executable), "no_such_module")
    with pytest.raises(StartFailedError) as raised:
        process.start(30)
    assert raised.value.failure_type == "start_failed"
    assert "no_such_module" in raised.value.output
    assert process.pid is None


def test_it_outlives_the_thread_that_started_it(start: Start) -> None:
    started: list[SupervisedProcess] = []
    thread = threading.Thread(target=lambda: started.append(start()))
    thread.start()
    thread.join()
    time.sleep(0.2)
    assert started[0].call("echo", {"text": "alive"}, (), 30).body["body"] == "alive"


def test_it_dies_with_us_even_by_kill_9(tmp_path: Path) -> None:
    (tmp_path / "helper_process.py").write_text(textwrap.dedent(HELPER))
    script = f"""
import sys, time
from pathlib import Path
from stepwell.adapters.processes import SupervisedProcess
process = SupervisedProcess("sim", Path(sys.executable), "helper_process", environ={{"PYTHONPATH": {str(tmp_path)!r}}})
process.start(30)
print(process.pid, flush=True)
process.call("hang_here", {{}}, (), 600)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        pid = int(host.stdout.readline())
        assert alive(pid)
        host.kill()
    assert gone(pid)
