"""Workers as processes: supervisor, signals, exit codes, disk cache, idle check."""

import itertools
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from stepwell.adapters.logs.memory import MemoryLog
from stepwell.adapters.workers import process
from stepwell.adapters.workers import supervisor as supervisor_module
from stepwell.adapters.workers.idle import LOOK_INTERVAL_S, IdleCheck
from stepwell.adapters.workers.markers import DiskMarkers, MemoryMarkers
from stepwell.adapters.workers.process import (
    EXIT_FAILED,
    EXIT_FENCED,
    EXIT_OK,
    EXIT_POSITION_LOST,
    EXIT_STUCK,
    StopFlag,
    SystemClock,
    run_as_worker,
    stopping_by_signal,
)
from stepwell.adapters.workers.supervisor import (
    FENCED_MAX,
    FENCED_PAUSE_S,
    PAUSE_FIRST_S,
    Supervisor,
    stepwell_command,
)
from stepwell.engine.ports import OutgoingRecord, TopicPartition
from stepwell.engine.state import SealedAttempt
from stepwell.events.topics import EPISODE_EVENTS, RETRAIN_RESULTS
from stepwell.exceptions import (
    ConfigurationError,
    FencedError,
    LogUnavailableError,
    PositionLostError,
    TopicError,
)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


SLEEP = python("import time; time.sleep(600)")


def wait_for(condition: Any, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


class Running:
    """A supervisor in a thread."""

    def __init__(self, commands: dict[str, list[str]], finished: Any = None) -> None:
        self.supervisor = Supervisor(commands)
        self.stop = StopFlag()
        self.code: int | None = None
        self.thread = threading.Thread(target=self._run, args=(finished,))
        self.thread.start()

    def _run(self, finished: Any) -> None:
        self.code = self.supervisor.run(self.stop, finished)

    def end(self) -> int | None:
        self.stop.set()
        self.thread.join(40)
        return self.code


def test_a_child_that_dies_is_started_again_and_the_end_is_clean() -> None:
    """kill -9, a new process takes its place; at the end no child is left."""
    running = Running({"one": SLEEP, "two": SLEEP})
    try:
        wait_for(lambda: len(running.supervisor.pids()) == 2)
        first = running.supervisor.pids()
        os.kill(first["one"], signal.SIGKILL)
        wait_for(lambda: running.supervisor.pids().get("one", first["one"]) != first["one"])
        second = running.supervisor.pids()
        assert second["two"] == first["two"]
        assert running.supervisor.restarts() == {"one": 1, "two": 0}
    finally:
        assert running.end() == EXIT_OK
    assert all(gone(pid) for pid in (*first.values(), *second.values()))


@pytest.mark.parametrize("code", [2, EXIT_POSITION_LOST])
def test_an_exit_that_a_restart_cannot_help_ends_all(code: int) -> None:
    """The others are ended too, and the exit code is passed on."""
    running = Running({"bad": python(f"raise SystemExit({code})"), "good": SLEEP})
    running.thread.join(40)
    assert running.code == code
    assert running.supervisor.pids() == {}


def test_a_fenced_child_is_started_again_and_then_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fenced without a rival, as after a broker's crash: the next start finds its place free."""
    monkeypatch.setattr(supervisor_module, "FENCED_PAUSE_S", 0.1)
    monkeypatch.setattr(supervisor_module, "PAUSE_FIRST_S", 0.1)
    mark = tmp_path / "fenced once"
    code = (
        f"import pathlib, sys, time; mark = pathlib.Path({str(mark)!r})\n"
        f"if not mark.exists(): mark.touch(); sys.exit({EXIT_FENCED})\n"
        "time.sleep(600)"
    )
    running = Running({"one": python(code)})
    try:
        wait_for(lambda: running.supervisor.restarts() == {"one": 1} and running.supervisor.pids())
        pid = running.supervisor.pids()["one"]
        time.sleep(0.5)
        assert running.supervisor.pids() == {"one": pid}
    finally:
        assert running.end() == EXIT_OK


def test_with_a_rival_it_gives_way_after_some_tries_with_growing_pauses() -> None:
    now = [0.0]
    supervisor = Supervisor({"one": python(f"raise SystemExit({EXIT_FENCED})")}, clock=lambda: now[0])
    restarted_at: list[float] = []

    def finished() -> bool:
        if len(restarted_at) < supervisor.restarts()["one"]:
            restarted_at.append(now[0])
        now[0] += 0.25
        return False

    stop = StopFlag()
    stop.wait = lambda timeout=None: time.sleep(0.02) is not None  # type: ignore[method-assign]
    assert supervisor.run(stop, finished) == EXIT_FENCED
    assert len(restarted_at) == FENCED_MAX - 1
    pauses = [later - earlier for earlier, later in itertools.pairwise(restarted_at)]
    assert pauses[0] >= FENCED_PAUSE_S
    assert all(later > 1.5 * earlier for earlier, later in itertools.pairwise(pauses))


def test_a_stuck_child_is_started_again(tmp_path: Path) -> None:
    """Its watchdog ended it so that a fresh one takes its place."""
    mark = tmp_path / "stuck once"
    code = (
        f"import pathlib, sys, time; mark = pathlib.Path({str(mark)!r})\n"
        f"if not mark.exists(): mark.touch(); sys.exit({EXIT_STUCK})\n"
        "time.sleep(600)"
    )
    running = Running({"one": python(code)})
    try:
        wait_for(lambda: running.supervisor.restarts() == {"one": 1} and running.supervisor.pids())
    finally:
        assert running.end() == EXIT_OK


def test_pauses_between_restarts_grow() -> None:
    """A child that dies at once is not started in a busy loop."""
    now = [0.0]
    supervisor = Supervisor({"bad": python("raise SystemExit(1)")}, clock=lambda: now[0])
    starts: list[float] = []

    def finished() -> bool:
        restarts = supervisor.restarts()["bad"]
        if len(starts) < restarts:
            starts.append(now[0])
        now[0] += 0.25
        return restarts >= 3

    stop = StopFlag()
    stop.wait = lambda timeout=None: time.sleep(0.05) is not None  # type: ignore[method-assign]
    assert supervisor.run(stop, finished) == EXIT_OK
    assert starts[2] - starts[1] >= 2 * PAUSE_FIRST_S


def test_finished_ends_the_supervisor() -> None:
    """As ``work --until-idle`` does."""
    running = Running({"one": SLEEP}, finished=lambda: True)
    running.thread.join(40)
    assert running.code == EXIT_OK
    assert running.supervisor.pids() == {}


def test_a_child_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """After its time is up."""
    from stepwell.adapters.workers import supervisor as module

    monkeypatch.setattr(module, "STOP_TIMEOUT_S", 0.5)
    code = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    running = Running({"deaf": python(code)})
    wait_for(lambda: bool(running.supervisor.pids()))
    pid = running.supervisor.pids()["deaf"]
    time.sleep(0.5)
    assert running.end() == EXIT_OK
    assert gone(pid)


def test_children_end_with_their_supervisor(tmp_path: Path) -> None:
    """Also when it is killed with -9: standard input ends, and the child stops by itself."""
    import subprocess

    child = (
        "import sys; from stepwell.adapters.workers.process import stopping_by_signal\n"
        "with stopping_by_signal(with_stdin=True) as stop:\n"
        "    open(sys.argv[1], 'w').write('up')\n"
        "    assert stop.wait(60)\n"
        "    open(sys.argv[1], 'w').write('stopped')\n"
    )
    file = tmp_path / "said"
    parent = (
        "import subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {child!r}, {str(file)!r}], stdin=subprocess.PIPE)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen(python(parent)) as process_:
        wait_for(lambda: file.exists() and file.read_text() == "up")
        process_.kill()
    wait_for(lambda: file.read_text() == "stopped")


def test_signals_set_the_flag_and_the_handlers_come_back() -> None:
    """SIGTERM asks to stop; afterwards everything is as before."""
    before = signal.getsignal(signal.SIGTERM)
    with stopping_by_signal() as stop:
        assert not stop()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(5)
        clock = SystemClock(stop)
        clock.wait(60)
        assert abs(clock.now_us() - time.time_ns() // 1000) < 60_000_000
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (None, EXIT_OK),
        (FencedError("taken"), EXIT_FENCED),
        (PositionLostError("gone"), EXIT_POSITION_LOST),
        (TopicError("none"), EXIT_FAILED),
    ],
)
def test_exit_codes_say_how_a_worker_ended(error: Exception | None, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One code for each thing that a supervisor or a person must tell apart."""
    monkeypatch.setattr(process, "tune_garbage_collection", lambda: None)

    def work() -> None:
        if error:
            raise error

    assert run_as_worker(work, "w") == code


def test_a_wrong_configuration_is_for_the_command_line_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """It prints it as of every command, and ends with the code that tells supervisors to leave the worker alone."""
    monkeypatch.setattr(process, "tune_garbage_collection", lambda: None)

    def work() -> None:
        raise ConfigurationError("the port is taken")

    with pytest.raises(ConfigurationError, match="the port is taken"):
        run_as_worker(work, "w")


def test_a_programming_error_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It must be seen with its traceback."""
    monkeypatch.setattr(process, "tune_garbage_collection", lambda: None)
    with pytest.raises(ZeroDivisionError):
        run_as_worker(lambda: 1 // 0, "w")  # type: ignore[arg-type, return-value]


def test_stepwell_command_runs_this_interpreter() -> None:
    """So that children live in the same environment."""
    assert stepwell_command("engine", "--slot", "1") == [sys.executable, "-m", "stepwell", "engine", "--slot", "1"]


@pytest.mark.parametrize("kind", ["disk", "memory"])
def test_markers_are_kept_by_partition_and_episode(kind: str, tmp_path: Path) -> None:
    """Put, replaced, cleared by partition; both kinds alike."""
    markers = DiskMarkers(tmp_path / "deep" / "markers.db") if kind == "disk" else MemoryMarkers()
    second = SealedAttempt("ep", 2, "success", 1, 20)
    first = SealedAttempt("ep", 1, "failure", 3, 10)
    markers.put(0, [second, first])
    markers.put(1, [SealedAttempt("ep", 1, "error", 1, 5)])
    markers.put(0, [])
    assert markers.get(0, "ep") == [first, second]
    assert markers.get(0, "other") == []
    changed = SealedAttempt("ep", 1, "failure", 4, 11)
    markers.put(0, [changed])
    assert markers.get(0, "ep") == [changed, second]
    markers.clear(0)
    assert markers.get(0, "ep") == []
    assert len(markers.get(1, "ep")) == 1
    markers.close()


def test_the_disk_cache_begins_empty_and_leaves_nothing(tmp_path: Path) -> None:
    """It is a cache: what an earlier worker left is thrown away, broken files included."""
    path = tmp_path / "markers.db"
    path.write_bytes(b"no database")
    markers = DiskMarkers(path)
    assert markers.get(0, "ep") == []
    markers.close()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="disk cache cannot be made"):
        DiskMarkers(tmp_path / "file" / "markers.db")


def test_idle_needs_two_equal_looks_with_every_group_at_the_end() -> None:
    """Unread records, a group that never committed, an empty partition, a log that is away for a moment."""
    log, now = MemoryLog(), [100.0]
    check = IdleCheck(log, {"g": (EPISODE_EVENTS,), "h": (RETRAIN_RESULTS,)}, clock=lambda: now[0])

    def look() -> bool:
        now[0] += LOOK_INTERVAL_S
        return check()

    assert [look(), look()] == [False, True]
    assert not check()
    producer = log.producer()
    producer.send([OutgoingRecord(EPISODE_EVENTS, b"k", b"v", (), 2)])
    producer.flush(5)
    assert [look(), look(), look()] == [False, False, False]
    consumer = log.consumer("g")
    source = TopicPartition(EPISODE_EVENTS, 2)
    consumer.assign({source: 0})
    consumer.commit({source: 1})
    assert [look(), look()] == [False, True]
    asking: Any = check._consumers["g"]
    real, asking.watermarks = asking.watermarks, _away
    assert not look()
    asking.watermarks = real
    assert [look(), look()] == [False, True]
    check.close()
    producer.close()
    consumer.close()
    log.close()


def _away(_source: TopicPartition) -> Any:
    raise LogUnavailableError
