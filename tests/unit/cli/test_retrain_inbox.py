"""``stepwell retrain listen`` side by side, and ``stepwell retrain inbox``: parked requests and a person's hand."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stepwell.cli import build_app
from stepwell.engine.ports import MessageLog
from stepwell.engine.publish import outgoing
from stepwell.exceptions import ConfigurationError, NotFoundError
from tests.integration.subscriptions import append, request, send, wait_for
from tests.unit.cli.test_retrain import CODEC, answers, invoke


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.adapters.inbox.store.PAUSE_MAX_S", 0.0)


def shown(*arguments: str) -> list[tuple[str, str, int, str]]:
    lines = [json.loads(line) for line in invoke("inbox", "list", "--json", *arguments).output.splitlines()]
    return [(line["request"], line["state"], line["failures"], line["reason"]) for line in lines]


def test_commands_of_different_policies_run_side_by_side_and_of_one_in_order(log: MessageLog, tmp_path: Path) -> None:
    append(log, *(request(f"{policy}-{n}", policy) for n in range(2) for policy in "abc"))
    note = tmp_path / "note"
    # Each waits until three have begun: one after another they would wait for ever.
    command = (
        f"""t=$(sed 's/.*"trigger_id":"\\([^"]*\\)".*/\\1/'); echo "$t begins" >> {note}; """
        f"""while [ $(grep -c 0.begins {note}) -lt 3 ]; do sleep 0.05; done; echo "$t ends" >> {note}"""
    )
    invoke("listen", "--parallel", "3", "--limit", "6", "--run", command)
    assert sorted(answer[:2] for answer in answers(log)) == [(f"{p}-{n}", "done") for p in "abc" for n in range(2)]
    lines = note.read_text().splitlines()
    for policy in "abc":
        own = [line for line in lines if line.startswith(policy)]
        assert own == [f"{policy}-0 begins", f"{policy}-0 ends", f"{policy}-1 begins", f"{policy}-1 ends"]


def test_try_again_later_is_parked_in_the_end_and_holds_up_nobody(log: MessageLog) -> None:
    append(log, request("bad-1", "a"), request("next", "a"), request("other", "b"))
    command = """grep -q '"bad' && { echo no free GPU; exit 75; } || true"""
    heard = invoke("listen", "--tries", "2", "--limit", "4", "--run", command).output
    told = [line for line in heard.splitlines() if line.startswith("bad-1")]
    assert told == ["bad-1  a  put back  no free GPU", "bad-1  a  parked  no free GPU"]
    assert sorted(answer[:2] for answer in answers(log)) == [("next", "done"), ("other", "done")]
    assert shown() == shown("--parked") == shown("--group", "trainer") == [("bad-1", "parked", 2, "no free GPU")]
    assert shown("--group", "another") == []
    table = invoke("inbox", "list").output
    assert "bad-1" in table
    assert "member-1.db" in table

    assert invoke("inbox", "retry", "bad").output == "bad-1  a  waits again\n"
    assert shown() == [("bad-1", "waiting", 0, "no free GPU")]
    assert invoke("inbox", "retry", "bad-1", code=1).output == "bad-1  a  is not parked\n"
    invoke("listen", "--limit", "1", "--run", "true")
    assert shown() == []
    assert answers(log)[-1][:2] == ("bad-1", "done")


def test_what_cannot_be_read_is_shown_and_dropped(log: MessageLog) -> None:
    broken = outgoing(CODEC, request("t-0"), 2)
    send(log, broken._replace(value=(broken.value or b"")[:-5]))
    append(log, request("t-1"), partition=2)
    invoke("listen", "--limit", "1", "--run", "true")
    ((name, state, _, reason),) = shown()
    assert (name, state) == ("unreadable-2-0", "parked")
    assert "the bytes end too early" in reason
    assert invoke("inbox", "drop", "unreadable-2-0").output == "unreadable-2-0    dropped\n"
    assert shown() == []


def test_a_running_listener_lets_others_look_and_what_it_works_on_stays(log: MessageLog, tmp_path: Path) -> None:
    append(log, request("t-1"), request("t-2"), request("t-3", "other"))
    started = tmp_path / "started"
    result: list[object] = []

    def look() -> None:
        wait_for(lambda: started.exists() and [row[1] for row in shown()] == ["working", "waiting", "working"])
        result.append(shown())
        result.append(invoke("inbox", "drop", "t-1", code=1).output)
        result.append(invoke("inbox", "drop", "t-2").output)
        os.kill(os.getpid(), signal.SIGINT)

    looking = threading.Thread(target=look)
    looking.start()
    invoke(
        "listen", "--inbox", str(tmp_path / "inbox" / "x" / "own.db"), "--run", f"touch {started}; sleep 60", code=130
    )
    looking.join()
    assert result == [
        [("t-1", "working", 0, ""), ("t-2", "waiting", 0, ""), ("t-3", "working", 0, "")],
        "t-1  p  is being worked on now\n",
        "t-2  p  dropped\n",
    ]
    left = [("t-1", "waiting", 0, ""), ("t-3", "waiting", 0, "")]
    assert shown() == left, "ended by Ctrl-C: it comes again, and that is no failure"


def test_a_command_that_kills_its_listener_is_parked_after_so_many(log: MessageLog, tmp_path: Path) -> None:
    """As one that takes all the machine's memory."""
    append(log, request("bad", "a"), request("good", "b"))
    pid = tmp_path / "pid"
    command = (
        f"""if grep -q '"bad"'; then until [ -s {pid} ]; do sleep 0.05; done; kill -9 $(cat {pid}); sleep 60; fi"""
    )
    for _ in range(2):
        pid.write_text("")
        listener = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "stepwell",
                "retrain",
                "listen",
                "--parallel",
                "1",
                "--tries",
                "2",
                "--run",
                command,
            ],
            stdout=subprocess.DEVNULL,
        )
        pid.write_text(str(listener.pid))
        assert listener.wait(60) == -signal.SIGKILL
    invoke("listen", "--parallel", "1", "--tries", "2", "--limit", "1", "--run", command)
    assert [answer[:2] for answer in answers(log)] == [("good", "done")]
    assert shown() == [("bad", "parked", 2, "the process ended while working on it")]


def test_wrong_arguments_are_refused(log: MessageLog, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"--inbox .*ends with \.db"):
        invoke("listen", "--inbox", str(tmp_path / "inbox"), "--run", "true")
    with pytest.raises(ConfigurationError, match="--adopt-after '6'"):
        invoke("listen", "--adopt-after", "6", "--run", "true")
    for arguments, why in (
        (["retry", "t-9"], "no request in an inbox begins with 't-9'"),
        (["list", "--inbox", str(tmp_path / "none.db")], "no inbox at"),
    ):
        result = CliRunner().invoke(build_app(), ["retrain", "inbox", *arguments])
        assert isinstance(result.exception, NotFoundError)
        assert why in str(result.exception)
    append(log, request("t-1", "a"), request("t-2", "b"))
    invoke("listen", "--limit", "2", "--run", "exit 75")
    time.sleep(0.1)
    result = CliRunner().invoke(build_app(), ["retrain", "inbox", "drop", "t-"])
    assert isinstance(result.exception, NotFoundError)
    assert "2 requests begin with 't-'" in str(result.exception)
