"""The README's SQL and Python, and those of the pages for users, are run as they stand."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

import stepwell
from stepwell.adapters.logs import open_log
from stepwell.adapters.retrain_history import read_requests
from stepwell.engine.ports import MessageLog
from stepwell.projections.schema.migrate import migrate
from stepwell.projections.writing.projector import Projector
from stepwell.projections.writing.rows import PROJECTED_TOPICS
from stepwell.settings import get_settings
from tests.integration.projections import facts

REPOSITORY = Path(__file__).resolve().parents[2]
README = REPOSITORY / "README.md"
DEADLINE_S = 60.0
RUN = {"run_id": "demo"}


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert found, f"{page.name} has no {language} block"
    return found


def wait_until(ready: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not ready():
        assert time.monotonic() < deadline, f"{what}: not within {DEADLINE_S:g} s"
        time.sleep(0.05)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where `stepwell.subscribe` keeps its inboxes here."""
    monkeypatch.setenv("STEPWELL_HOME", str(tmp_path))
    get_settings.cache_clear()
    yield tmp_path
    get_settings.cache_clear()


@pytest.fixture(scope="module")
def log_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A local log: one episode that has ended, one that runs, and a request to retrain."""
    url = f"local:{tmp_path_factory.mktemp('log')}"
    log = open_log(url)
    facts.publish(
        log,
        [
            *(facts.again(fact, **RUN) for fact in facts.episode("ep-srezpbd6so2h3bwmcxlr", steps=2)),
            facts.verdict("ep-srezpbd6so2h3bwmcxlr", outcome="failure", failure_type="task_not_completed", **RUN),
            *(facts.again(fact, **RUN) for fact in facts.episode("ep-runs", steps=3)),
            facts.snapshot("ep-runs", next_step=3, owes="agent", **RUN),
            facts.retrain("tr-1"),
            facts.dead_letter(),
        ],
    )
    log.close()
    return url


@pytest.fixture(scope="module")
def database(postgres_url: str, log_url: str) -> str:
    """The tables made of that log."""
    migrate(postgres_url)
    log = open_log(log_url)
    admin = log.admin()
    ends = {source: marks.high for topic in PROJECTED_TOPICS for source, marks in admin.watermarks(topic).items()}
    admin.close()
    projector, stop = Projector(log, postgres_url, facts.CODEC), threading.Event()
    thread = threading.Thread(target=projector.run, args=(stop,))
    thread.start()
    try:
        wait_until(
            lambda: not thread.is_alive() or all(projector.positions.get(s, -1) >= end for s, end in ends.items()),
            "the projector's end",
        )
        now = time.time()
        with psycopg.connect(postgres_url, autocommit=True) as opened:
            known = "SELECT FROM stepwell.projection_freshness WHERE as_of > to_timestamp(%s)"
            wait_until(lambda: opened.execute(known, (now,)).rowcount == 1, "the projector's report")
        assert thread.is_alive()
    finally:
        stop.set()
        thread.join(DEADLINE_S)
        log.close()
    return postgres_url


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    with psycopg.connect(database) as opened:
        yield opened
        opened.rollback()


def asked(connection: psycopg.Connection[tuple[object, ...]], statement: str) -> list[dict[str, object]]:
    cursor = connection.execute(statement.encode())
    names = [column.name for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def shown_columns(answer: str) -> list[str]:
    """The head of an example answer."""
    return answer.strip("\n").splitlines()[0].split()


def test_the_three_questions_of_ops_have_the_answers_that_are_shown(
    connection: psycopg.Connection[tuple[object, ...]],
) -> None:
    running, stuck, behind, as_of = blocks(README, "sql")
    connection.execute("UPDATE stepwell.settings SET value = 0 WHERE name = 'stuck_after_s'")
    (row,) = asked(connection, running)
    assert {name: row[name] for name in ("episode_id", "policy", "owes", "steps_done", "max_steps")} == {
        "episode_id": "ep-runs", "policy": "reach-expert", "owes": "agent", "steps_done": 3, "max_steps": 100,
    }  # fmt: skip
    (stuck_row,) = asked(connection, stuck)
    assert (stuck_row["episode_id"], stuck_row["stuck_on"], stuck_row["host"]) == ("ep-runs", "agent", "lab-3")
    behind_rows = asked(connection, behind)
    assert len(behind_rows) == 3
    assert {row["consumer"] for row in behind_rows} == {"stepwell-projector"}
    assert {row["events"] for row in behind_rows} == {0}
    answers = re.findall(r"^```sql\n.*?^```$\n\n```\n(.*?)^```$", README.read_text(), re.DOTALL | re.MULTILINE)
    (freshness,) = asked(connection, as_of)
    assert freshness["state"] == "current"
    assert [shown_columns(answer) for answer in answers] == [
        list(row), list(stuck_row), list(behind_rows[0]), list(freshness),
    ]  # fmt: skip


def test_the_analysts_statements_run(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    (block,) = blocks(REPOSITORY / "docs" / "analysts.md", "sql")
    outcomes, summary, steps = [asked(connection, each) for each in block.split(";") if each.strip()]
    assert [(row["outcome"], row["failure_type"], row["episodes"]) for row in outcomes] == [
        ("failure", "task_not_completed", 1)
    ]
    assert [(row["planned"], row["scored"], row["succeeded"]) for row in summary] == [(2, 1, 0)]
    assert [row["step"] for row in steps] == [0, 1]


def test_the_training_services_statement_runs(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    (statement,) = blocks(REPOSITORY / "docs" / "training-services.md", "sql")
    assert [(row["policy"], row["status"]) for row in asked(connection, statement)] == [("p", "open")]


# A shell that runs the tests in the background has them ignore Ctrl-C, and what they start inherits that.
HEAR_CTRL_C = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"


def started(program: str, directory: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HEAR_CTRL_C + program],
        env={**os.environ, "STEPWELL_LOG": f"local:{directory / 'log'}", "STEPWELL_HOME": str(directory)},
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


LOOP, THREADS, CRON, ASYNCIO, TASKS = range(5)
"""The examples of docs/training-services.md, in their order."""


@pytest.mark.parametrize(
    ("page", "number", "end"),
    [
        ("README.md", 0, "KeyboardInterrupt"),
        *(("docs/training-services.md", number, "") for number in (LOOP, THREADS, ASYNCIO, TASKS)),
    ],
    ids=["readme", "loop", "threads", "asyncio", "tasks"],
)
def test_python_examples_receive_and_answer(page: str, number: int, end: str, tmp_path: Path) -> None:
    log = open_log(f"local:{tmp_path / 'log'}")
    facts.publish(log, [facts.retrain("tr-1"), facts.retrain("tr-2")])
    process = started(blocks(REPOSITORY / page, "python")[number], tmp_path)
    try:
        wait_until(lambda: process.poll() is not None or states(log) == {"done"}, "the answers")
        assert process.poll() is None, process.communicate()[0]
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=DEADLINE_S)
        assert output.rstrip().endswith(end), output
        assert ("Traceback" in output) == bool(end), output
    finally:
        process.kill()
        process.wait()
        log.close()


def test_every_example_of_the_page_is_run() -> None:
    assert len(blocks(REPOSITORY / "docs" / "training-services.md", "python")) == TASKS + 1


def test_the_example_for_cron_takes_what_is_there_once_and_leaves(tmp_path: Path) -> None:
    program = blocks(REPOSITORY / "docs" / "training-services.md", "python")[CRON]
    program = program.replace("timeout_s=10.0", "timeout_s=3.0")
    log = open_log(f"local:{tmp_path / 'log'}")
    facts.publish(log, [facts.retrain("tr-1"), facts.retrain("tr-2")])
    for expected in ("queued tr-1 p\nqueued tr-2 p\n", ""):
        process = started(program, tmp_path)
        output, _ = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, output) == (0, expected)
    assert states(log) == {"accepted"}
    log.close()


def states(log: MessageLog) -> set[str]:
    return {entry.state for entry in read_requests(log, facts.CODEC)}


# --- what the pages promise of subscribe() ---


@pytest.mark.usefixtures("home")
def test_a_request_comes_again_until_the_next_is_asked_for(log_url: str) -> None:
    for _ in range(2):
        with stepwell.subscribe("careless", log=log_url) as subscription:
            delivery = next(iter(subscription))  # the next one is never asked for
            assert delivery.event.trigger_id == "tr-1"
    with stepwell.subscribe("careless", log=log_url) as subscription:
        assert subscription.receive(DEADLINE_S)
        subscription.handled()
    with stepwell.subscribe("careless", log=log_url) as subscription:
        assert not subscription.receive(3.0)


@pytest.mark.usefixtures("home")
def test_only_the_policies_asked_for_are_handed_out(log_url: str) -> None:
    with stepwell.subscribe("picky", log=log_url, policies=["other"]) as subscription:
        assert not subscription.receive(3.0)
    with stepwell.subscribe("eager", log=log_url, policies=["other", "p"]) as subscription:
        assert next(iter(subscription)).event.policy == "p"


@pytest.mark.usefixtures("home")
def test_wrong_arguments_are_refused(log_url: str) -> None:
    with pytest.raises(stepwell.ConfigurationError, match="needs a group name"):
        stepwell.subscribe("", log=log_url)
    with pytest.raises(stepwell.ConfigurationError, match=r"policies=\['reach'\]"):
        stepwell.subscribe("trainer", log=log_url, policies="reach")
    with pytest.raises(stepwell.ConfigurationError, match="none that Stepwell knows"):
        stepwell.subscribe("trainer", log="nonsense:log")
