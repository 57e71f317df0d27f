"""``stepwell episodes | show | replay | verify`` and what ``stepwell run`` refuses, on a local log."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from stepwell import settings
from stepwell.adapters.logs import open_log
from stepwell.adapters.runs.attempt import AttemptResult
from stepwell.adapters.runs.definitions import not_planned
from stepwell.adapters.runs.plan import plan
from stepwell.adapters.runs.spec import load_spec
from stepwell.adapters.workers.markers import MemoryMarkers
from stepwell.cli import build_app
from stepwell.cli.run import _step_rules_assign, _told
from stepwell.engine.loop import ExactlyOnceLoop
from stepwell.engine.ports import MessageLog
from stepwell.engine.restore import GROUP, TOPICS, EngineRestore
from stepwell.engine.timers import Timeouts
from stepwell.events.model import Event
from stepwell.exceptions import ConfigurationError, MissingPartError, VerificationError
from tests.unit.engine.episodes import Facts
from tests.unit.engine.running import CODEC, FakeClock, Notes, drain, send

SPEC = """\
run: unit
seeds: [1]
scenes: [{name: balance, task: gymnasium/InvertedPendulum-v5, options: {success_steps: 5}}]
policies: [{name: balancer, kind: pendulum_balancer}]
"""
Command = Callable[..., str]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MessageLog]:
    """An empty log, the one in force."""
    monkeypatch.setenv("STEPWELL_HOME", str(tmp_path))
    settings.get_settings.cache_clear()
    opened = open_log(f"local:{tmp_path / 'log'}")
    yield opened
    opened.close()
    settings.get_settings.cache_clear()


@pytest.fixture
def stepwell(log: MessageLog) -> Command:
    """Runs a command; what it prints. Raises what it raised."""

    def run(*arguments: str, raises: str = "", kind: type[Exception] = VerificationError) -> str:
        if raises:
            with pytest.raises(kind, match=raises):
                CliRunner().invoke(build_app(), arguments, catch_exceptions=False)
            return ""
        done = CliRunner().invoke(build_app(), arguments, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    return run


def judge(log: MessageLog) -> None:
    """Let an engine read all there is."""
    notes = Notes()
    restore = EngineRestore(
        log, codec=CODEC, markers=MemoryMarkers(), timeouts=Timeouts(), worker_id="engine-0", report=notes
    )
    loop = ExactlyOnceLoop(
        log, group=GROUP, worker_id="engine-0", topics=TOPICS, restore=restore, clock=FakeClock(), report=notes,
        poll_timeout_s=0.005,
    )  # fmt: skip
    drain(loop)
    loop.close()


def at(facts: list[Event], occurred_at: int) -> list[Event]:
    return [msgspec.structs.replace(fact, occurred_at=occurred_at + i) for i, fact in enumerate(facts)]


# --- verify -------------------------------------------------------------------------------------------------------


def test_a_verification_that_compared_nothing_says_so_and_fails(log: MessageLog, stepwell: Command) -> None:
    send(log, *Facts("ep-new").whole(success=True))
    stepwell("verify", "ep-new", raises=r"nothing to compare: no engine has read ep-new yet \(stepwell work")
    stepwell("verify", "--all", raises="nothing to compare: no engine has read the episodes yet")
    judge(log)
    assert stepwell("verify", "ep-new").splitlines() == [
        "folded 12 events of 1 episode again; compared 1 verdict, 0 snapshots, 1 seal", "no difference",
    ]  # fmt: skip
    send(log, *Facts("ep-later").whole(success=True))
    stepwell("verify", "ep-new", "ep-later", raises="nothing to compare: .*ep-later")


def test_an_empty_log_has_nothing_to_verify_and_is_fine(
    log: MessageLog, stepwell: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepwell.cli.episodes._verify_tables", lambda *_: [])  # no database is needed to see this
    assert stepwell("verify", "--all").splitlines()[-2:] == ["there are no episodes in this log", "no difference"]


# --- episodes -----------------------------------------------------------------------------------------------------


def test_episodes_come_in_the_order_in_which_they_were_asked_for(log: MessageLog, stepwell: Command) -> None:
    now = Facts("ep-x").requested().occurred_at
    names = [f"ep-{i}" for i in range(8)]  # in several partitions
    for i, name in enumerate(names):
        send(log, *at(Facts(name).whole(), now - 1_000_000 * i))
    listed = [json.loads(line)["episode"] for line in stepwell("episodes", "--json").splitlines()]
    assert listed == names[::-1]
    last = [json.loads(line)["episode"] for line in stepwell("episodes", "--json", "--limit", "2").splitlines()]
    assert last == ["ep-1", "ep-0"]


def test_an_empty_list_says_what_there_is(log: MessageLog, stepwell: Command) -> None:
    assert stepwell("episodes") == "no episodes in this log yet\n"
    send(log, *Facts("ep-1").whole())
    told = stepwell("episodes", "--run", "other", "--outcome", "error")
    assert told == "no episodes of run other and outcome error; runs in this log: run-1; policies in this log: expert\n"


def test_what_no_host_has_taken_is_pending(log: MessageLog, stepwell: Command) -> None:
    waits, runs = Facts("ep-waits"), Facts("ep-runs")
    send(log, waits.requested(), runs.requested(), runs.claimed(), *Facts("ep-done").whole())
    told = {row["episode"]: row for row in map(json.loads, stepwell("episodes", "--json").splitlines())}
    assert {name: row["outcome"] for name, row in told.items()} == {
        "ep-waits": "pending", "ep-runs": "running", "ep-done": "failure",
    }  # fmt: skip
    assert {row["run_id"] for row in told.values()} == {"run-1"}
    (row,) = map(json.loads, stepwell("episodes", "--json", "--outcome", "pending", "--run", "run-1").splitlines())
    assert row["episode"] == "ep-waits"


def test_show_says_which_attempt_counts(log: MessageLog, stepwell: Command) -> None:
    first = Facts("ep-1")
    send(log, *first.begun(), first.failed("host_lost"))
    assert stepwell("show", "ep-1").startswith("ep-1: 1 attempt, 7 events\n")
    send(log, *Facts("ep-1", attempt=2).whole(success=True))
    assert stepwell("show", "ep-1").startswith("ep-1: 2 attempts, 18 events; attempt 2 counts\n")


def test_columns_of_a_replay_are_apart(log: MessageLog, stepwell: Command) -> None:
    facts = Facts("ep-1")
    begun = facts.begun(steps=120)
    send(log, *begun, begun[-1], facts.ended(120))
    lines = stepwell("replay", "ep-1").splitlines()
    head = lines[0]
    (again,) = [line for line in lines if line.endswith("  duplicate")]
    assert "agent 121  duplicate" in again
    start = head.index("next")
    assert all(line[start - 1] == " " for line in lines if line.strip() and line[0] == " " and len(line) > start)


RULES = """\
rule_set: lab
version: 1
steps: [{kind: frozen, name: arm_still, signal: action, steps: 2}]
"""


def test_labels_stand_with_the_step_at_which_they_were_found(
    log: MessageLog, stepwell: Command, tmp_path: Path
) -> None:
    (tmp_path / "rules.yaml").write_text(RULES)
    stepwell("patterns", "activate", str(tmp_path / "rules.yaml"))
    facts = Facts("ep-1")
    send(log, *facts.begun(5), facts.ended(5))
    assert "  labels: arm_still (step 2)" in stepwell("show", "ep-1").splitlines()
    marked = [line.split() for line in stepwell("replay", "ep-1").splitlines() if "label" in line]
    assert [(line[1], line[3], line[-2:]) for line in marked] == [("sim::step_done", "2", ["label", "arm_still"])]
    facts = Facts("ep-2")
    send(log, *facts.begun(0), facts.failed("host_lost"))
    assert "  labels: zero_steps" in stepwell("show", "ep-2").splitlines()


# --- run ----------------------------------------------------------------------------------------------------------


def test_a_run_id_with_episodes_of_another_definition_is_refused(
    log: MessageLog, stepwell: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC)
    send(log, *Facts("ep-old").whole(), *Facts("ep-older").begun())
    stepwell(
        "run", str(spec), "--run-id", "run-1", kind=ConfigurationError,
        raises="run run-1 has 2 episodes of another definition: .* another --run-id, or --mix-definitions to go on",
    )  # fmt: skip
    monkeypatch.setenv("STEPWELL_PARTS", str(tmp_path))  # what comes next: the simulator is missing there
    going_on = ("run", str(spec), "--run-id", "run-1", "--mix-definitions")
    stepwell(*going_on, kind=MissingPartError, raises="'gymnasium' is not installed")
    assert not_planned(log, CODEC, "run-1", ["ep-old"]) == {"ep-older"}
    assert not_planned(log, CODEC, "run-2", []) == set()


@pytest.mark.parametrize(
    ("ending", "told"),
    [
        ("success", "success"),
        ("max_steps", "failure: task_not_completed"),
        ("truncated", "failure: task_not_completed"),
        ("terminated", "failure: terminated_early"),
        ("agent_killed", "error: agent_killed"),
        ("aborted", "aborted: aborted_by_operator"),
    ],
)
def test_progress_speaks_of_endings_as_verdicts_do(ending: str, told: str) -> None:
    assert AttemptResult(ending, 3).told() == told


def test_progress_says_where_step_rules_have_the_last_word(log: MessageLog, stepwell: Command, tmp_path: Path) -> None:
    assert not _step_rules_assign(log)
    for text, assign in (
        (RULES, False),
        (RULES.replace("version: 1", "version: 2").replace("arm_still,", "arm_still, assigns: no_progress,"), True),
    ):
        (tmp_path / "rules.yaml").write_text(text)
        stepwell("patterns", "activate", str(tmp_path / "rules.yaml"))
        assert _step_rules_assign(log) is assign
    (tmp_path / "spec.yaml").write_text(SPEC)
    (episode,) = plan(load_spec(tmp_path / "spec.yaml"), "r")
    told = [
        _told(episode, AttemptResult(ending, 60), assigning).rpartition(": ")[2]
        for ending in ("max_steps", "success", "agent_killed")
        for assigning in (True, False)
    ]
    assert told == [
        "task_not_completed (60 steps, before step rules)", "task_not_completed (60 steps)",
        "success (60 steps)", "success (60 steps)", "agent_killed (60 steps)", "agent_killed (60 steps)",
    ]  # fmt: skip


def test_the_hosts_endings_are_what_the_engine_makes_of_them(log: MessageLog, stepwell: Command) -> None:
    for reason in ("max_steps", "truncated", "terminated"):
        facts: Any = Facts(f"ep-{reason}")
        *before, end = facts.whole()
        send(log, *before, msgspec.structs.replace(end, reason=reason))
        (row,) = map(json.loads, stepwell("episodes", "--json").splitlines()[-1:])
        assert AttemptResult(reason, 3).told() == f"{row['outcome']}: {row['failure_type']}"
