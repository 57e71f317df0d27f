"""``stepwell patterns list | check | activate``: rules looked at, held to their promises, put into force."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from stepwell.adapters.logs.reading import read_all
from stepwell.adapters.rules.activate import RulesRefusedError
from stepwell.adapters.rules.in_force import rules_in_force
from stepwell.adapters.runs.identity import operator
from stepwell.cli import build_app
from stepwell.engine.ports import MessageLog
from stepwell.engine.ruleset import BUILT_IN, RuleSet
from stepwell.events.codec import Codec
from stepwell.events.topics import RULE_SETS
from stepwell.exceptions import ConfigurationError, SpecError

CODEC = Codec()
EXAMPLES = Path(__file__).parents[3] / "examples" / "rules"

GOOD = """\
rule_set: arm
version: 2
steps:
  - {kind: frozen, name: stuck, steps: 30}
verdicts:
  - kind: in_a_row
    name: three
    length: 3
    promise: {baseline_rate: 0.1, average_run_length: 1000}
"""


def invoke(*arguments: str | Path, code: int = 0) -> Result:
    result = CliRunner().invoke(build_app(), ["patterns", *map(str, arguments)])
    if isinstance(result.exception, ConfigurationError):
        raise result.exception
    assert result.exit_code == code, (result.output, result.exception)
    return result


def written(home: Path, text: str = GOOD) -> Path:
    path = home / "rules.yaml"
    path.write_text(text)
    return path


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


# --- list ---


def test_without_a_log_the_built_in_rules_are_in_force_and_none_is_made(home: Path) -> None:
    shown = lines(invoke("list").output)
    assert shown[0] == "rule set built_in version 1, built in: no other was activated"
    assert shown[-1] == (
        "same_failure_in_a_row 1 in_a_row the same failure type in 5 episodes in a row policy, version, checkpoint "
        "on average at least 100,000 episodes until the first false alarm, where 10 % fail"
    )
    assert not (home / "log").exists()


def test_list_of_a_file(home: Path) -> None:
    shown = lines(invoke("list", written(home)).output)
    assert shown[0] == f"rule set arm version 2, of {home / 'rules.yaml'}"
    assert "stuck frozen action unchanged (within 1e-06) 30 times in a row label" in shown
    told = json.loads(invoke("list", home / "rules.yaml", "--json").output)
    assert (told["rule_set"], told["version"], told["file"]) == ("arm", 2, str(home / "rules.yaml"))
    assert told["steps"][0]["looks_for"] == "action unchanged (within 1e-06) 30 times in a row"
    assert told["verdicts"][0]["cooldown_episodes"] == 10
    assert not (home / "log").exists()


def test_list_of_what_is_in_force(home: Path, log: MessageLog) -> None:
    assert invoke("list", "--all").output == "no set was activated: the built-in one is in force\n"
    invoke("activate", written(home))
    told = json.loads(invoke("list", "--json").output)
    assert (told["rule_set"], told["version"], told["activated_by"]) == ("arm", 2, operator())
    assert f"activated by {operator()}" in invoke("list").output
    invoke("activate", EXAMPLES / "default.yaml")
    assert json.loads(invoke("list", "--json").output)["rule_set"] == "built_in"
    every = [json.loads(line) for line in invoke("list", "--all", "--json").output.splitlines()]
    assert [(each["rule_set"], each["version"], each["in_force"]) for each in every] == [
        ("arm", 2, False), ("built_in", 1, True),
    ]  # fmt: skip
    assert [line.split()[-2:] for line in lines(invoke("list", "--all").output)[-1:]] == [["in", "force"]]


def test_a_set_without_rules_is_said_to_look_for_nothing(home: Path) -> None:
    assert "no rules: nothing is looked for" in invoke("list", written(home, "rule_set: quiet\n")).output


# --- check ---


def test_check_tells_what_was_promised_and_what_was_found(home: Path) -> None:
    shown = lines(invoke("check", written(home)).output)
    assert "three in_a_row average run length at least 1,000 1,110 exactly formula yes" in shown
    assert shown[-1] == f"{home / 'rules.yaml'}: fine; rule set arm version 2: 1 over steps, 1 over verdicts"
    assert not (home / "log").exists()


def test_a_promise_that_is_not_kept_is_told_and_nothing_takes_effect(home: Path, log: MessageLog) -> None:
    bold = GOOD.replace("average_run_length: 1000", "average_run_length: 1200")
    for command in ("check", "activate"):
        shown = lines(invoke(command, written(home, bold), code=1).output)
        assert "three in_a_row average run length at least 1,200 1,110 exactly formula no" in shown
        assert shown[-1] == (
            f"{home / 'rules.yaml'}: the promise is not kept by: three; make the rule stricter, or promise less"
        )
    assert list(read_all(log, CODEC, RULE_SETS)) == []


WINDOW = """\
rule_set: arm
verdicts:
  - kind: window_rate
    name: ten
    window: 10
    minimum: {minimum}
    limit: {limit}
    promise: {{baseline_rate: 0.18, average_run_length: {promised}}}
"""


def test_a_promise_that_cannot_be_shown_is_not_taken_for_kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine of ten at 18 %: about a million episodes, of which so few streams see no more than a hint."""
    monkeypatch.setattr("stepwell.adapters.rules.simulate.EPISODES_IN_ALL", 1_000_000)
    shown = lines(
        invoke("check", written(home, WINDOW.format(minimum=10, limit=0.85, promised=800_000)), code=1).output
    )
    assert any(line.startswith("ten window_rate") and line.endswith("cannot be shown") for line in shown)
    assert (
        "10,000 streams of 100 episodes cannot show an average run length of 800,000; what can be shown is" in shown[-1]
    )


def test_a_promise_far_beyond_the_truth_is_refused_without_simulating(home: Path) -> None:
    shown = lines(invoke("check", written(home, WINDOW.format(minimum=10, limit=0.95, promised=1e12)), code=1).output)
    assert (
        "ten window_rate average run length at least 1e+12 34,155,534 exactly formula 3.57e-06 % within 10 no" in shown
    )


def test_check_tells_how_often_a_small_minimum_fires_early(home: Path) -> None:
    """Two failures among the first two are 3.24 %, whatever the average says."""
    shown = lines(invoke("check", written(home, WINDOW.format(minimum=2, limit=0.95, promised=1e6))).output)
    assert any("% within 10" in line and " 3.24 % within 10 yes" in line for line in shown)


def test_a_bad_file_is_refused_by_every_command_with_its_line(home: Path, log: MessageLog) -> None:
    path = written(home, GOOD.replace("kind: frozen", "kind: frozn"))
    for command in ("list", "check", "activate"):
        with pytest.raises(SpecError, match=r"rules\.yaml:4: steps\[0\]\.kind: .*did you mean frozen\?"):
            invoke(command, path)
    assert rules_in_force(log, CODEC) == BUILT_IN


# --- activate ---


def test_activate_says_what_was_in_force_and_does_it_once(home: Path, log: MessageLog) -> None:
    path = written(home)
    told = invoke("activate", path).output
    assert told == "rule set arm version 2 is in force in 8 partitions; before: built_in version 1\n"
    assert rules_in_force(log, CODEC).rule_set == "arm"
    told = invoke("activate", path, "--skip-promises").output
    assert told == "rule set arm version 2 is in force already; nothing was written\n"


def test_a_step_back_needs_force_and_other_content_a_new_version(home: Path, log: MessageLog) -> None:
    invoke("activate", written(home))
    lower = GOOD.replace("version: 2", "version: 1").replace("steps: 30", "steps: 20")
    with pytest.raises(RulesRefusedError, match="--force"):
        invoke("activate", written(home, lower))
    invoke("activate", written(home, lower), "--force")
    with pytest.raises(RulesRefusedError, match="raise the set's version"):
        invoke("activate", written(home, GOOD.replace("steps: 30", "steps: 31")), "--force")
    expected = RuleSet.model_validate(rules_in_force(log, CODEC).model_dump())
    assert (expected.version, expected.steps[0].name) == (1, "stuck")


def test_activate_makes_the_log_where_there_is_none(home: Path) -> None:
    """A team may set its rules before its first run."""
    invoke("activate", written(home))
    assert (home / "log" / "log.db").is_file()
    assert json.loads(invoke("list", "--json").output)["rule_set"] == "arm"
