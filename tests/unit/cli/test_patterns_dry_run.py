"""``stepwell patterns dry-run``: what other rules would have made of what a real engine and detector wrote."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from stepwell.adapters.logs import open_log
from stepwell.adapters.logs.memory import MemoryLog
from stepwell.adapters.logs.reading import read_all
from stepwell.adapters.rules.activate import activate
from stepwell.adapters.rules.dry_run import run_dry
from stepwell.adapters.rules.file import check_rules
from stepwell.adapters.workers.markers import MemoryMarkers
from stepwell.adapters.yaml_lines import parse
from stepwell.cli import build_app
from stepwell.engine.detection import restore as detector_restore
from stepwell.engine.detection.dry_run import DryTrigger
from stepwell.engine.loop import ExactlyOnceLoop
from stepwell.engine.ports import MessageLog, OutgoingRecord
from stepwell.engine.publish import outgoing
from stepwell.engine.restore import GROUP, TOPICS, EngineRestore
from stepwell.engine.ruleset import RuleSet
from stepwell.engine.steps.kernels import FrozenKernel
from stepwell.engine.timers import Timeouts
from stepwell.events.model import Event, PatternDetected, VerdictIssued
from stepwell.events.topics import FAILURE_PATTERNS, POLICY_EVENTS
from stepwell.events.topics import TOPICS as ALL_TOPICS
from stepwell.exceptions import ConfigurationError, NotFoundError, SpecError
from tests.unit.engine.episodes import Facts
from tests.unit.engine.running import CODEC, FakeClock, Notes, drain, read, send

DEFAULT = Path(__file__).parents[3] / "examples" / "rules" / "default.yaml"
ROW = "  - {kind: in_a_row, name: same_failure_in_a_row, version: %d, length: %d}\n"
FROZEN = "  - {kind: frozen, name: stuck, steps: 2, assigns: action_frozen}\n"
STALE = "  - {kind: stale, name: sensor, signal: observation.qpos, steps: 2, assigns: stale_observation}\n"


def rules(*, steps: str = "", verdicts: str = "", name: str = "trial") -> str:
    text = f"rule_set: {name}\n"
    return text + (f"steps:\n{steps}" if steps else "") + (f"verdicts:\n{verdicts}" if verdicts else "")


def rule_set(text: str) -> RuleSet:
    return check_rules(parse(text.encode(), "r.yaml"))


def work(log: MessageLog) -> None:
    """Let an engine and a detector read all there is."""
    notes = Notes()
    engine = EngineRestore(
        log, codec=CODEC, markers=MemoryMarkers(), timeouts=Timeouts(), worker_id="engine-0", report=notes
    )
    detector = detector_restore.DetectorRestore(log, CODEC, "detector-0")
    for group, topics, made in ((GROUP, TOPICS, engine), (detector_restore.GROUP, detector_restore.TOPICS, detector)):
        loop = ExactlyOnceLoop(
            log, group=group, worker_id=f"{group}-0", topics=topics, restore=made, clock=FakeClock(), report=notes,
            poll_timeout_s=0.005,
        )  # fmt: skip
        drain(loop)
        loop.close()


def episodes(log: MessageLog, first: int, count: int, *, success: bool = False) -> None:
    for number in range(first, first + count):
        in_order(log, Facts(f"ep-{number}").whole(3, success=success))
    work(log)


def in_order(log: MessageLog, facts: list[Event]) -> None:
    """All in one partition, so that their verdicts come in the order of the episodes."""
    send(log, *(outgoing(CODEC, fact, 0) for fact in facts))


def invoke(*arguments: str | Path, code: int = 0) -> Result:
    result = CliRunner().invoke(build_app(), ["patterns", "dry-run", *map(str, arguments)])
    if isinstance(result.exception, ConfigurationError | NotFoundError):
        raise result.exception
    assert result.exit_code == code, (result.output, result.exception)
    return result


def tried(home: Path, text: str, *arguments: str) -> dict[str, Any]:
    path = home / "trial.yaml"
    path.write_text(text)
    told: dict[str, Any] = json.loads(invoke(path, "--json", *arguments).output)
    return told


def counts(told: dict[str, Any]) -> tuple[int, int, int, int]:
    return len(told["appear"]), len(told["vanish"]), len(told["move"]), len(told["stay"])


def names(trigger: dict[str, Any]) -> list[str]:
    return [item["episode_id"] for item in trigger["evidence"]]


# --- verdict rules ---


def test_the_rules_in_force_change_nothing(home: Path, log: MessageLog) -> None:
    episodes(log, 0, 7)
    told = json.loads(invoke(DEFAULT, "--json").output)
    assert counts(told) == (0, 0, 0, 1)
    (pattern,) = read(log, FAILURE_PATTERNS)
    assert isinstance(pattern, PatternDetected)
    assert told["stay"][0]["trigger_id"] == pattern.trigger_id
    assert (told["verdicts"], told["changed_verdicts"]) == (7, 0)


def test_a_trigger_moves_where_the_rule_has_another_length(home: Path, log: MessageLog) -> None:
    episodes(log, 0, 7)
    told = tried(home, rules(verdicts=ROW % (2, 3)))
    assert counts(told) == (0, 0, 1, 0)
    moved = told["move"][0]
    assert names(moved["recorded"]) == [f"ep-{number}" for number in range(5)]
    assert names(moved["candidate"]) == [f"ep-{number}" for number in range(3)]


def test_triggers_appear_and_vanish_with_their_rules(home: Path, log: MessageLog) -> None:
    episodes(log, 0, 7)
    window = (
        "  - {kind: window_rate, name: half, window: 6, minimum: 4, limit: 0.5, "
        "promise: {baseline_rate: 0.1, average_run_length: 100}}\n"
    )
    told = tried(home, rules(verdicts=window))
    assert counts(told) == (1, 1, 0, 0)
    assert (told["appear"][0]["rule"], told["vanish"][0]["rule"]) == ("half", "same_failure_in_a_row")
    assert names(told["appear"][0]) == ["ep-0", "ep-1", "ep-2", "ep-3"]
    shown = invoke(home / "trial.yaml").output
    flat = [" ".join(line.split()) for line in shown.splitlines()]
    assert "1 would appear, 1 would vanish, 0 would move, 0 would stay; nothing was written" in flat
    (line,) = (line for line in flat if line.startswith("half "))
    assert line.endswith("ep-0 ep-1 ep-2 ep-3")
    assert counts(tried(home, rules())) == (0, 1, 0, 0)


def test_since_leaves_alone_what_was_before(home: Path, log: MessageLog) -> None:
    episodes(log, 0, 6)
    time.sleep(0.01)
    since = f"{time.time():.6f}"
    between = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(float(since))) + "." + since.partition(".")[2]
    episodes(log, 6, 1, success=True)
    episodes(log, 7, 4)
    whole = tried(home, rules(verdicts=ROW % (2, 3)))
    assert counts(whole) == (0, 0, 1, 0)  # nobody answers what it opens, so all that follows is merged
    late = tried(home, rules(verdicts=ROW % (2, 3)), "--since", between)
    assert counts(late) == (1, 0, 0, 1)
    assert late["since"] == between
    assert names(late["appear"][0]) == ["ep-7", "ep-8", "ep-9"]
    assert counts(tried(home, rules(verdicts=ROW % (2, 3)), "--since", "2999-01-01")) == (0, 0, 0, 1)


# --- step rules ---


def test_step_rules_give_the_verdicts_that_they_would_have_given(home: Path, log: MessageLog) -> None:
    episodes(log, 0, 6)
    told = tried(home, rules(steps=FROZEN, verdicts=ROW % (1, 5)))
    assert (told["verdicts"], told["changed_verdicts"]) == (6, 6)
    (label,) = told["labels"]
    assert (told["attempts"], told["labels"]) == (6, {label: 6})
    assert counts(told) == (1, 1, 0, 0)
    assert (told["appear"][0]["failure_type"], told["vanish"][0]["failure_type"]) == (
        "action_frozen", "task_not_completed",
    )  # fmt: skip
    (home / "trial.yaml").write_text(rules(steps=STALE, verdicts=ROW % (1, 5)))
    assert "its step rules would say something else of 6 verdicts" in invoke(home / "trial.yaml").output


def test_a_step_rule_that_finds_nothing_is_seen(home: Path, log: MessageLog) -> None:
    """A name that nobody reports is no error, since another task may report it; so the dry run tells."""
    episodes(log, 0, 3)
    typo = "  - {kind: limit, name: strong, signal: metric.no_such_thing, above: 1.0}\n"
    assert tried(home, rules(steps=typo, verdicts=ROW % (1, 5)))["labels"] == {"strong": 0}
    output = invoke(home / "trial.yaml").output
    assert "strong" in output
    assert "is its signal there?" in output


def test_a_failure_that_is_not_the_policy_s_any_more_asks_for_nothing(home: Path, log: MessageLog) -> None:
    episodes(log, 0, 6)
    told = tried(home, rules(steps=STALE, verdicts=ROW % (1, 5)))
    assert counts(told) == (0, 1, 0, 0)
    assert told["changed_verdicts"] == 6


def test_step_rules_count_for_attempts_that_begin_since_then(home: Path, log: MessageLog) -> None:
    episodes(log, 0, 6)
    text = rules(steps=FROZEN, verdicts=ROW % (1, 5))
    told = tried(home, text, "--since", "2999-01-01")
    assert counts(told) == (0, 0, 0, 1)
    assert told["changed_verdicts"] == 0


def test_rules_without_steps_are_compared_with_those_that_had_some(home: Path, log: MessageLog) -> None:
    activate(log, CODEC, rule_set(rules(steps=FROZEN, verdicts=ROW % (1, 5))), "ann@lab")
    episodes(log, 0, 6)
    told = json.loads(invoke(DEFAULT, "--json").output)
    assert counts(told) == (1, 1, 0, 0)
    assert (told["appear"][0]["failure_type"], told["vanish"][0]["failure_type"]) == (
        "task_not_completed", "action_frozen",
    )  # fmt: skip
    assert told["changed_verdicts"] == 6


@pytest.mark.parametrize("steps", ["", FROZEN, STALE, FROZEN + STALE])
def test_a_dry_run_foretells_what_an_activation_then_does(steps: str) -> None:
    """The same facts in two logs: in one the set was in force all along, in the other it is only tried."""
    candidate = rule_set(rules(steps=steps, verdicts=ROW % (2, 3)))
    tried_log, real_log = MemoryLog(), MemoryLog()
    activate(real_log, CODEC, candidate, "ann@lab")
    facts = [fact for number in range(8) for fact in Facts(f"ep-{number}").whole(3, success=number == 4)]
    for each in (tried_log, real_log):
        in_order(each, facts)
        work(each)
    found = run_dry(tried_log, CODEC, candidate).comparison
    foretold = sorted(_about(each) for each in (*found.appear, *found.stay, *(moved.candidate for moved in found.move)))
    real = sorted(_said(each) for each in read(real_log, FAILURE_PATTERNS) if isinstance(each, PatternDetected))
    assert foretold == real
    assert bool(real) == (STALE not in steps or FROZEN in steps)
    for each in (tried_log, real_log):
        each.close()


def _about(trigger: DryTrigger) -> tuple[str, str, str, str, list[str]]:
    return _said(trigger.pattern)


def _said(pattern: PatternDetected) -> tuple[str, str, str, str, list[str]]:
    episode_ids = [item.episode_id for item in pattern.evidence]
    return pattern.rule, pattern.rule_key, pattern.failure_type, pattern.detail, episode_ids


def test_a_step_rule_that_raises_is_told(home: Path, log: MessageLog, monkeypatch: pytest.MonkeyPatch) -> None:
    episodes(log, 0, 6)

    def broken(*_: object) -> bool:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(FrozenKernel, "see", broken)
    told = tried(home, rules(steps=FROZEN, verdicts=ROW % (1, 5), name="broken"))  # compiled once for each name
    assert counts(told) == (0, 0, 0, 1)
    assert told["parked"]
    assert "by zero" in told["parked"][0]
    assert "parked: step rule stuck raised" in invoke(home / "trial.yaml").output


# --- it publishes nothing ---


class ReadOnlyLog:
    """A log of which no producer may be made."""

    def __init__(self, log: MessageLog) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        assert "producer" not in name, f"a dry run asked for a {name}"
        return getattr(self._log, name)


def test_no_producer_is_ever_made_and_nothing_is_written(
    home: Path, log: MessageLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    episodes(log, 0, 7)
    before = {topic.name: log.admin().watermarks(topic.name) for topic in ALL_TOPICS}
    made: list[ReadOnlyLog] = []

    def opened(url: str) -> ReadOnlyLog:
        made.append(ReadOnlyLog(open_log(url)))
        return made[-1]

    monkeypatch.setattr("stepwell.adapters.logs.open_log", opened)
    told = tried(home, rules(steps=FROZEN, verdicts=ROW % (2, 3)))
    assert counts(told) == (1, 1, 0, 0)
    assert len(made) == 1
    with pytest.raises(AssertionError, match="a dry run asked for a producer"):
        made[0].producer()
    assert {topic.name: log.admin().watermarks(topic.name) for topic in ALL_TOPICS} == before


# --- edges ---


def test_an_empty_history_has_nothing_to_say(home: Path, log: MessageLog) -> None:
    told = tried(home, rules(verdicts=ROW % (2, 3)))
    assert counts(told) == (0, 0, 0, 0)
    assert told["verdicts"] == 0


def test_without_a_log_there_is_no_history_and_none_is_made(home: Path) -> None:
    with pytest.raises(NotFoundError, match="no log at"):
        invoke(DEFAULT)
    assert not (home / "log").exists()


def test_a_bad_file_or_time_is_refused_before_anything_is_read(home: Path) -> None:
    (home / "bad.yaml").write_text("rule_set: a\nverdict: []\n")
    with pytest.raises(SpecError, match=r"bad\.yaml:2: verdict: unknown key; did you mean verdicts\?"):
        invoke(home / "bad.yaml")
    with pytest.raises(ConfigurationError, match="--since 'yesterday': expected a date or a time"):
        invoke(DEFAULT, "--since", "yesterday")


def test_records_that_cannot_be_read_are_passed_over(home: Path, log: MessageLog) -> None:
    send(log, OutgoingRecord(POLICY_EVENTS, b"expert", b"\0no event"))
    episodes(log, 0, 5)
    verdicts = [each for each in read_all(log, CODEC, POLICY_EVENTS) if isinstance(each, VerdictIssued)]
    assert len(verdicts) == 5
    assert counts(json.loads(invoke(DEFAULT, "--json").output)) == (0, 0, 0, 1)
