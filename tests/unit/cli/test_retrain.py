"""``stepwell retrain``: a command for each request, answered with how it went."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from click.testing import Result
from typer.testing import CliRunner

from stepwell.adapters.logs.reading import read_all
from stepwell.adapters.processes.command import run_command
from stepwell.cli import build_app
from stepwell.engine.ports import MessageLog
from stepwell.events.codec import Codec
from stepwell.events.model import RetrainAnswered
from stepwell.events.topics import RETRAIN_RESULTS
from stepwell.exceptions import ConfigurationError, NotFoundError
from tests.integration.projections.facts import withdrawn
from tests.integration.subscriptions import append, request, wait_for

CODEC = Codec()


def invoke(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(build_app(), ["retrain", *arguments])
    if isinstance(result.exception, ConfigurationError):
        raise result.exception
    assert result.exit_code == code, (result.output, result.exception)
    return result


def _group(process: psutil.Process) -> int | None:
    try:
        return os.getpgid(process.pid)
    except ProcessLookupError:
        return None


def answers(log: MessageLog) -> list[tuple[str, str, str | None, str]]:
    return [
        (event.trigger_id, event.status, event.new_checkpoint, event.detail)
        for event in read_all(log, CODEC, RETRAIN_RESULTS)
        if isinstance(event, RetrainAnswered)
    ]


def python(code: str) -> str:
    return f'{sys.executable} -c "{code}"'


def test_a_command_that_succeeds_is_answered_done_with_its_checkpoint(log: MessageLog) -> None:
    append(log, request("t-1", "p-1"))
    code = "import json,sys; r=json.load(sys.stdin); print(r['trigger_id']); print('checkpoint:', r['policy'] + '-2')"
    shown = invoke("listen", "--limit", "1", "--run", python(code)).output
    assert "t-1  p-1  done" in shown
    assert answers(log) == [("t-1", "done", "p-1-2", "t-1\ncheckpoint: p-1-2")]


def test_one_that_fails_is_answered_failed_with_the_end_of_its_output(log: MessageLog) -> None:
    append(log, request("t-1"), request("t-2"))
    invoke("listen", "--limit", "1", "--run", python("print('x' * 100000); raise SystemExit('out of memory')"))
    invoke("listen", "--limit", "1", "--run", "exit 7")
    (first, second) = answers(log)
    assert first[:3] == ("t-1", "failed", None)
    assert len(first[3]) == 4000
    assert first[3].endswith("x\nout of memory")
    assert second == ("t-2", "failed", None, "exit code 7")


def test_limit_leaves_the_rest_for_the_next_time(log: MessageLog) -> None:
    append(log, *(request(f"t-{n}") for n in range(4)))
    invoke("listen", "--limit", "1", "--run", "true")
    invoke("listen", "--limit", "2", "--run", "true")
    assert [answer[0] for answer in answers(log)] == ["t-0", "t-1", "t-2"]


def test_answer_accepted_and_the_policy_filter(log: MessageLog) -> None:
    append(log, request("t-1", "a"), request("t-2", "b"), request("t-3", "c"))
    arguments = ["--policy", "b", "--policy", "c", "--limit", "2", "--answer", "accepted", "--run", "echo queued"]
    invoke("listen", *arguments)
    assert sorted(answers(log)) == [("t-2", "accepted", None, "queued"), ("t-3", "accepted", None, "queued")]


@pytest.mark.parametrize("parallel", [None, 1])
def test_a_policy_does_not_wait_for_another_unless_one_at_a_time_is_asked_for(
    log: MessageLog, tmp_path: Path, parallel: int | None
) -> None:
    append(log, request("t-1", "a"), request("t-2", "b"))
    lines = tmp_path / "lines"
    options = [] if parallel is None else ["--parallel", str(parallel)]
    invoke("listen", "--limit", "2", *options, "--run", f"echo begin >> {lines}; sleep 3; echo end >> {lines}")
    expected = ["begin", "end"] * 2 if parallel else ["begin", "begin", "end", "end"]
    assert lines.read_text().split() == expected


def test_output_keeps_each_request_as_a_line(log: MessageLog, tmp_path: Path) -> None:
    append(log, request("t-1"), request("t-2"))
    file = tmp_path / "requests.jsonl"
    invoke("listen", "--limit", "2", "--output", str(file), "--run", "true")
    assert [json.loads(line)["trigger_id"] for line in file.read_text().splitlines()] == ["t-1", "t-2"]
    with pytest.raises(ConfigurationError, match=r"--output .*: cannot be written"):
        invoke("listen", "--output", str(tmp_path / "no" / "file"), "--run", "true")


def test_a_command_that_leaves_something_running_blocks_nobody(log: MessageLog) -> None:
    append(log, request("t-1"))
    invoke("listen", "--limit", "1", "--run", "sleep 3 & echo started")
    assert answers(log) == [("t-1", "done", None, "started")]


@pytest.mark.parametrize("traps", ["", "trap '' TERM; "])
def test_ctrl_c_ends_the_command_unanswered_and_it_comes_again(
    log: MessageLog, tmp_path: Path, traps: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepwell.adapters.processes.command.END_GRACE_S", 0.5)
    append(log, request("t-1"))
    started = tmp_path / "started"

    def interrupt() -> None:
        while not (started.exists() and started.read_text().endswith("\n")):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    before = signal.getsignal(signal.SIGINT)
    invoke("listen", "--run", f"{traps}echo $$ > {started}; while true; do sleep 600; done", code=130)
    assert signal.getsignal(signal.SIGINT) is before
    assert answers(log) == []
    members = [each for each in psutil.process_iter() if _group(each) == int(started.read_text())]
    assert all(each.status() == psutil.STATUS_ZOMBIE for each in members), members
    invoke("listen", "--limit", "1", "--run", "true")
    assert answers(log) == [("t-1", "done", None, "exit code 0")]


def test_ctrl_c_while_it_waits_is_a_good_end(log: MessageLog) -> None:
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
    assert "listening for retrain requests as group 'trainer'" in invoke("listen", "--run", "true").output


def test_a_command_that_cannot_be_run_ends_the_listener_and_answers_nothing(log: MessageLog, tmp_path: Path) -> None:
    append(log, request("t-1"), request("t-2"))
    with pytest.raises(ConfigurationError, match=r"exit code 127: .*nosuchprog.*request t-1 was not answered"):
        invoke("listen", "--run", "nosuchprog x")
    no_program = tmp_path / "data"
    no_program.write_text("text")
    with pytest.raises(ConfigurationError, match=r"exit code 126: .*request t-1 was not answered"):
        invoke("listen", "--run", str(no_program))
    assert answers(log) == []
    invoke("listen", "--limit", "2", "--run", "true")
    assert [answer[:2] for answer in answers(log)] == [("t-1", "done"), ("t-2", "done")]


def test_a_failure_is_told_with_its_reason(log: MessageLog) -> None:
    append(log, request("t-1"), request("t-2"))
    assert (
        "t-1  p  failed  out of memory\n"
        in invoke("listen", "--limit", "1", "--run", "echo epoch 1; echo out of memory; exit 1").output
    )
    assert "t-2  p  failed  exit code 137\n" in invoke("listen", "--limit", "1", "--run", "kill -9 $$").output


def test_a_listener_that_is_killed_takes_the_command_and_its_children_with_it(log: MessageLog, tmp_path: Path) -> None:
    append(log, request("t-1"))
    pids = tmp_path / "pids"
    command = f"sh -c 'trap : TERM; echo $$ >> {pids}; while :; do sleep 600; done' & echo $$ >> {pids}; wait"
    listener = subprocess.Popen(
        [sys.executable, "-m", "stepwell", "retrain", "listen", "--run", command], stdout=subprocess.DEVNULL
    )
    try:
        wait_for(lambda: pids.exists() and pids.read_text().count("\n") == 2)
        running = [psutil.Process(int(pid)) for pid in pids.read_text().split()]
        running += running[0].children(recursive=True)
    finally:
        listener.kill()
        listener.wait()
    wait_for(lambda: not any(_lives(each) for each in running))
    assert answers(log) == []


def _lives(which: psutil.Process | int) -> bool:
    try:
        process = psutil.Process(which) if isinstance(which, int) else which
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # gone between the two questions
        return False


def test_the_command_does_not_outlive_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    """Its supervisor is the shell's parent; without it nothing would tie the command to us."""
    pid = tmp_path / "pid"
    result = run_command(f"echo $$ > {pid}; kill -9 $PPID; sleep 600", b"", threading.Event())
    assert result is not None
    assert result.code == 137
    process = int(pid.read_text())
    wait_for(lambda: not _lives(process))


def test_list_tells_what_became_of_each_request(log: MessageLog) -> None:
    append(log, *(request(f"t-{n}", "[red]p") for n in range(1, 5)), withdrawn("t-3"))
    invoke("listen", "--limit", "1", "--group", "a", "--run", "echo first; echo no data; false")
    invoke("listen", "--limit", "1", "--group", "b", "--run", "echo checkpoint: c-2")
    rows = [line.split() for line in invoke("list").output.splitlines() if line.strip().startswith("t-")]
    told = ("t-1 [red]p failed a: no data", "t-2 [red]p done c-2 b: checkpoint: c-2", "t-3 [red]p withdrawn amended",
            "t-4 [red]p open")  # fmt: skip
    assert len(rows) == 4
    for row, words in zip(rows, told, strict=True):
        assert [word for word in row if word in words.split()] == words.split()
    lines = [json.loads(line) for line in invoke("list", "--json").output.splitlines()]
    fields = ("trigger_id", "state", "trainer", "new_checkpoint", "answer_detail")
    assert [tuple(line[name] for name in fields) for line in lines[:3]] == [
        ("t-1", "failed", "a", None, "first\nno data"),
        ("t-2", "done", "b", "c-2", "checkpoint: c-2"),
        ("t-3", "withdrawn", None, None, None),
    ]


def test_show_and_answer_want_one_request(log: MessageLog) -> None:
    append(log, request("tr-abc"), request("tr-abd"))
    for arguments in (("show",), ("answer",)):
        rest = ("done",) if arguments == ("answer",) else ()
        for name, why in (("tr-x", "no request in the log begins with 'tr-x'"), ("tr-ab", "2 requests begin with")):
            result = CliRunner().invoke(build_app(), ["retrain", *arguments, name, *rest])
            assert isinstance(result.exception, NotFoundError)
            assert why in str(result.exception)
    assert answers(log) == []


def test_closed_requests_are_passed_over_unless_all_are_wanted(log: MessageLog) -> None:
    append(log, *(request(f"t-{n}") for n in range(3)), withdrawn("t-2"))
    invoke("answer", "t-0", "rejected")
    assert "t-1  p  done" in invoke("listen", "--group", "new", "--limit", "1", "--run", "true").output
    shown = invoke("listen", "--group", "all", "--all", "--limit", "3", "--run", "true").output
    assert [line.split()[0] for line in shown.splitlines() if line.startswith("t-")] == ["t-0", "t-1", "t-2"]
    invoke("list")
    assert [json.loads(line)["state"] for line in invoke("list", "--json").output.splitlines()] == [
        "rejected", "done", "withdrawn",
    ]  # fmt: skip
