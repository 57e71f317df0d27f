"""``stepwell patterns explain | cluster`` on a local log, and which verdicts they rest on."""

import builtins
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from stepwell.adapters.analysis.verdicts import Wanted, read_sample
from stepwell.cli import build_app
from stepwell.engine.ports import MessageLog
from stepwell.events.model import VerdictIssued
from stepwell.exceptions import MissingPartError, NotFoundError
from tests.unit.engine.running import CODEC, send
from tests.unit.engine.verdicts import verdict

Command = Callable[..., str]


@pytest.fixture
def command(log: MessageLog) -> Command:
    def run(*arguments: str) -> str:
        result = CliRunner().invoke(build_app(), ["patterns", *arguments], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    return run


def issued(episode: str, failed: bool, **values: Any) -> VerdictIssued:
    plain = verdict(episode, "task_not_completed" if failed else None)
    return msgspec.structs.replace(plain, **({"ended_at": 10} | values))


def planted() -> list[VerdictIssued]:
    """Dark scenes fail and end early; a few of the plain ones fail at the end of their steps."""
    return [
        issued(
            f"ep-{number:03}", (dark and number % 10 != 0) or number % 12 == 3,
            perturbation="dark" if dark else "none", scene=f"scene-{number % 3}", n_steps=20 if dark else 200,
        )
        for number in range(60)
        for dark in [number % 2 == 0]
    ]  # fmt: skip


# --- which verdicts -----------------------------------------------------------------------------------------------


def test_the_last_revision_of_each_first_attempt_counts(log: MessageLog) -> None:
    amended = verdict("ep-1", None, revision=1)
    send(
        log, amended, verdict("ep-1"), verdict("ep-2"), verdict("ep-2", None, attempt=2), verdict("ep-3", "sim_exited"),
        verdict("ep-4", autonomous=False), verdict("ep-5", policy="other"),
    )  # fmt: skip
    sample = read_sample(log, CODEC, Wanted("expert"))
    assert [(each.episode_id, each.outcome) for each in sample.scored] == [("ep-1", "success"), ("ep-2", "failure")]
    assert sample.left_out == 2


def test_only_the_checkpoint_that_was_judged_last_counts(log: MessageLog) -> None:
    old = [issued(f"old-{i}", True, checkpoint="a", run_id="r1") for i in range(3)]
    new = [issued(f"new-{i}", True, checkpoint="b", ended_at=20, run_id="r2") for i in range(2)]
    send(log, *new, *old)

    def episodes(**narrowed: str) -> list[str]:
        return [each.episode_id for each in read_sample(log, CODEC, Wanted("expert", **narrowed)).scored]

    assert episodes() == ["new-0", "new-1"]
    assert episodes(checkpoint="a") == episodes(run_id="r1") == ["old-0", "old-1", "old-2"]
    with pytest.raises(NotFoundError, match="no verdict on a first attempt of policy expert, checkpoint c"):
        episodes(checkpoint="c")


def test_regression_runs_are_left_out_but_where_one_is_asked_for(log: MessageLog) -> None:
    """They try the old checkpoint again where it failed, and would make it the one judged last."""
    new = [issued(f"new-{i}", False, checkpoint="b", ended_at=20) for i in range(2)]
    again = issued("again", True, checkpoint="a", ended_at=30, run_id="regress-t-b", purpose="regression")
    send(log, *new, again)
    assert [each.episode_id for each in read_sample(log, CODEC, Wanted("expert")).scored] == ["new-0", "new-1"]
    sample = read_sample(log, CODEC, Wanted("expert", run_id="regress-t-b"))
    assert [each.episode_id for each in sample.scored] == ["again"]
    with pytest.raises(NotFoundError, match="policy expert, checkpoint a in an evaluation \\(--run looks into one run"):
        read_sample(log, CODEC, Wanted("expert", checkpoint="a"))


def test_an_unknown_policy_is_told_the_known_ones(log: MessageLog, command: Command) -> None:
    with pytest.raises(NotFoundError, match="no verdict on policy nobody; it has none at all"):
        command("explain", "nobody")
    send(log, verdict("ep-1"), verdict("ep-2", policy="other"))
    with pytest.raises(NotFoundError, match="no verdict on policy nobody; it has some on expert, other"):
        command("cluster", "nobody")


# --- explain ------------------------------------------------------------------------------------------------------


def test_explain_ranks_what_was_planted_first(log: MessageLog, command: Command) -> None:
    send(log, *planted(), verdict("broken", "sim_exited"))
    output = command("explain", "expert")
    assert "expert version 1, checkpoint none: 29 of 60 failed (1 first attempt left out: not scored)" in output
    assert "stands at 5%: failures are likelier with perturbation dark" in output
    rows = [line.split() for line in output.splitlines() if line.split()[:1] in (["perturbation"], ["scene"])]
    assert rows[0][:2] == ["perturbation", "dark"]
    assert "*" in rows[0]
    assert rows[1][:2] == ["perturbation", "none"]  # the other side of the same coin, and it stands as well
    assert [row[0] for row in rows[2:]] == ["scene"] * 3


def test_explain_as_json_has_every_test(log: MessageLog, command: Command) -> None:
    send(log, *planted())
    lines = [json.loads(line) for line in command("explain", "expert", "--json").splitlines()]
    assert {(line["factor"], line["value"]) for line in lines} == {
        ("perturbation", "dark"), ("perturbation", "none"), ("scene", "scene-0"), ("scene", "scene-1"),
        ("scene", "scene-2"),
    }  # fmt: skip
    assert (lines[0]["value"], lines[0]["failures"], lines[0]["episodes"]) == ("dark", 24, 30)
    assert lines[0]["significant"]
    assert lines[0]["odds_ratio_low"] > 1.0
    assert lines[0]["p_corrected"] >= lines[0]["p_value"]


def test_explain_says_when_nothing_stands(log: MessageLog, command: Command) -> None:
    send(log, *(issued(f"ep-{i}", i % 4 < 2, scene=f"scene-{i % 2}") for i in range(40)))
    assert "nothing stands at 5%" in command("explain", "expert")


def test_explain_refuses_few_episodes(log: MessageLog, command: Command) -> None:
    send(log, verdict("ep-1"))
    with pytest.raises(NotFoundError, match="too few to explain anything: 1 scored first attempts, 1 of them failures"):
        command("explain", "expert")


# --- cluster ------------------------------------------------------------------------------------------------------


def test_cluster_shows_each_group_with_an_episode_of_its_own(log: MessageLog, command: Command) -> None:
    send(log, *planted())
    output = command("cluster", "expert")
    assert "29 failures" in output
    assert "n_steps 20 | 200" in output
    assert "perturbation=dark 100% | 0%" in output
    large, small = (json.loads(line) for line in command("cluster", "expert", "--json").splitlines())
    assert (large["size"], small["size"]) == (24, 5)
    assert large["representative"] in large["episodes"]
    assert small["representative"] in small["episodes"]
    assert command("cluster", "expert") == output


def test_cluster_of_failures_that_are_all_alike(log: MessageLog, command: Command) -> None:
    send(log, *(issued(f"ep-{i}", True) for i in range(9)))
    output = command("cluster", "expert", "--failure-type", "task_not_completed")
    assert "9 failures as task_not_completed" in output
    assert "one group: nothing that was compared sets these failures apart" in output


# --- without the extra --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "module"), [("explain", "scipy.stats"), ("cluster", "sklearn.cluster")])
def test_a_missing_extra_is_named(
    log: MessageLog, command: Command, monkeypatch: pytest.MonkeyPatch, name: str, module: str
) -> None:
    send(log, *planted())
    real = builtins.__import__

    def without(wanted: str, *arguments: Any, **options: Any) -> Any:
        if wanted == module:
            raise ModuleNotFoundError(f"No module named {wanted!r}")
        return real(wanted, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingPartError, match=r"pip install 'stepwell\[analysis\]'"):
        command(name, "expert")


def test_the_extra_is_not_loaded_by_the_commands_themselves() -> None:
    heavy = "[name for name in ('numpy', 'scipy', 'sklearn') if name in sys.modules]"
    code = f"import sys, stepwell.cli.patterns_analysis; print({heavy})"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
