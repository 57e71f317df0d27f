"""``stepwell retrain``: a command for each request, answered with how it went."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from click.testing import Result
from typer.testing import CliRunner

from stepwell import settings
from stepwell.adapters.logs import open_log
from stepwell.adapters.logs.reading import read_all
from stepwell.cli import build_app
from stepwell.engine.ports import MessageLog
from stepwell.events.codec import Codec
from stepwell.events.model import RetrainAnswered
from stepwell.events.topics import RETRAIN_RESULTS
from stepwell.exceptions import ConfigurationError
from tests.unit.adapters.test_subscriber import append, request

CODEC = Codec()


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MessageLog]:
    """The log that the commands use."""
    url = f"local:{tmp_path / 'log'}"
    monkeypatch.setenv("STEPWELL_HOME", str(tmp_path))
    monkeypatch.setenv("STEPWELL_LOG", url)
    settings.get_settings.cache_clear()
    log = open_log(url)
    yield log
    log.close()
    settings.get_settings.cache_clear()


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
    assert answers(log) == [("t-2", "accepted", None, "queued"), ("t-3", "accepted", None, "queued")]


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
    monkeypatch.setattr("stepwell.cli.retrain.END_GRACE_S", 0.5)
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


def test_list_tells_what_became_of_each_request(log: MessageLog) -> None:
    append(log, request("t-1", "[red]p"), request("t-2"))
    invoke("listen", "--limit", "1", "--run", "false")
    shown = invoke("list").output
    rows = [line.split() for line in shown.splitlines() if line.strip().startswith("t-")]
    assert [(row[0], row[1], row[-1]) for row in rows] == [("t-1", "[red]p", "failed"), ("t-2", "p", "open")]
    lines = [json.loads(line) for line in invoke("list", "--json").output.splitlines()]
    assert [(line["trigger_id"], line["state"]) for line in lines] == [("t-1", "failed"), ("t-2", "open")]
