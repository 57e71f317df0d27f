"""Would a request's rule fire again? It is put to fresh episodes, and says so where they are too few to tell."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from stepwell.adapters.logs.memory import MemoryLog
from stepwell.adapters.rules.activate import activate
from stepwell.adapters.runs.recurrence import recurrence, rule_of
from stepwell.engine.ruleset import BUILT_IN, InARowRule, RateRule, RuleSet, ShiftRule, VerdictRule, WindowRateRule
from stepwell.events.model import EvidenceEpisode, RetrainRequested, VerdictIssued
from tests.integration.projections.facts import retrain
from tests.unit.engine.verdicts import verdict
from tests.unit.runs.places import CODEC

ROW = InARowRule(name="row", kind="in_a_row", length=3)
WINDOW = WindowRateRule.model_validate({
    "name": "window", "kind": "window_rate", "window": 6, "minimum": 4, "limit": 0.5,
    "promise": {"baseline_rate": 0.1, "average_run_length": 100.0},
})  # fmt: skip
RATE = RateRule(name="rate", kind="rate", limit=0.1, minimum=10)
SHIFT = ShiftRule(name="shift", kind="shift", minimum=10)


def request(rule: VerdictRule, scene: str = "dark") -> RetrainRequested:
    evidence = EvidenceEpisode(
        episode_id="e",
        attempt=1,
        revision=1,
        partition=0,
        offset=0,
        scene=scene,
        perturbation="none",
        seed=1,
        n_steps=1,
    )
    return msgspec.structs.replace(
        retrain("t"), rule=rule.name, rule_version=rule.version, failure_type="task_not_completed", evidence=(evidence,)
    )


def episodes(story: str, **fields: Any) -> list[VerdictIssued]:
    """``f`` failed as requested, ``t`` in another way of the policy's, ``.`` did not; all of a regression run."""
    types = {"f": "task_not_completed", "t": "terminated_early", ".": None}
    about = {"purpose": "regression"} | fields
    return [msgspec.structs.replace(verdict(f"e{i}", types[each]), **about) for i, each in enumerate(story)]


@pytest.mark.parametrize(
    ("rule", "before", "after", "finding", "counted"),
    [
        (ROW, "", ".fff..", "fires", (6, 3)),
        (ROW, "fff", "ff.ff.", "silent", (6, 4)),
        (ROW, "", "fft", "silent", (3, 2)),
        (ROW, "", "ff", "too_few", (2, 2)),
        (WINDOW, "", "ff.f", "fires", (4, 3)),
        (WINDOW, "", ".f.f.t.f", "silent", (8, 4)),
        (WINDOW, "", "fff", "too_few", (3, 3)),
        (RATE, "", "ffffff....", "fires", (10, 6)),
        (RATE, "", ".........f", "silent", (10, 1)),
        (RATE, "", "fffffffff", "too_few", (9, 9)),
        (SHIFT, ".........." * 2, "ffffffffff", "fires", (10, 10)),
        (SHIFT, "ffffffffff", "..........", "silent", (10, 0)),
        (SHIFT, ".........", "ffffffffff", "too_few", (9, 10)),
    ],
)
def test_the_rule_is_put_to_the_fresh_episodes(
    rule: VerdictRule, before: str, after: str, finding: str, counted: tuple[int, int]
) -> None:
    found = recurrence(rule, request(rule), episodes(before), episodes(after))
    assert (found.finding, (found.episodes, found.failures)) == (finding, counted)
    assert (found.same_failure, found.scored) == (after.count("f"), len(after))


def test_words_and_figures_say_how_many_were_too_few() -> None:
    found = recurrence(RATE, request(RATE), [], episodes("ff......"))
    assert found.in_words == "too few episodes to tell (8 of minimum 10)"
    plain = found.as_plain()
    assert (plain["minimum"], plain["same_failure"], plain["scored"]) == (10, 2, 8)
    low, high = plain["same_failure_interval"]
    assert low < 0.25 < high
    fires = recurrence(RATE, request(RATE), [], episodes("ffffff...."))
    assert fires.in_words == "the rule would have fired again (6 of 10 failed)"


def test_a_rule_that_counts_some_failures_counts_those_alone() -> None:
    rule = WINDOW.model_copy(
        update={"counts": WINDOW.counts.model_copy(update={"failure_types": ["terminated_early"]})}
    )
    assert recurrence(rule, request(rule), [], episodes("ffff")).finding == "silent"
    assert recurrence(rule, request(rule), [], episodes("tttt")).finding == "fires"


def test_a_rule_that_counts_labels_counts_failures_with_one_of_them() -> None:
    rule = WINDOW.model_copy(update={"counts": WINDOW.counts.model_copy(update={"labels": ["still", "jerky"]})})
    labelled = episodes("fff.", labels=("jerky",), label_steps=(1,))
    assert recurrence(rule, request(rule), [], labelled).finding == "fires"
    assert recurrence(rule, request(rule), [], episodes("ffff", labels=("slow",), label_steps=(1,))).failures == 0


def test_only_episodes_of_the_requests_key_are_judged() -> None:
    rule = ROW.model_copy(update={"per": ["scene"]})
    after = [*episodes("f.f", scene="light"), *episodes("ffff", scene="dark")]
    found = recurrence(rule, request(rule), [], after)
    assert (found.finding, found.episodes, found.scored) == ("fires", 4, 7)
    assert recurrence(rule, request(rule, "light"), [], after).finding == "silent"


def test_a_retry_after_a_broken_simulator_counts_as_its_episode() -> None:
    assert recurrence(ROW, request(ROW), [], episodes("fff", attempt=2)).finding == "fires"


# --- which rule it was ---


@pytest.fixture
def log() -> Iterator[MemoryLog]:
    log = MemoryLog()
    yield log
    log.close()


def test_the_rule_is_found_in_whichever_set_had_it(log: MemoryLog) -> None:
    (built_in,) = BUILT_IN.verdicts
    assert rule_of(log, CODEC, request(built_in)) == built_in
    activate(log, CODEC, RuleSet(rule_set="mine", version=1, verdicts=[RATE]), "ada")
    activate(log, CODEC, RuleSet(rule_set="mine", version=2, verdicts=[ROW]), "ada")
    assert rule_of(log, CODEC, request(RATE)) == RATE
    assert rule_of(log, CODEC, request(ROW)) == ROW
    assert rule_of(log, CODEC, request(SHIFT)) is None


def test_without_the_rule_only_the_failures_are_told() -> None:
    found = recurrence(None, request(RATE), [], episodes("f..."))
    assert (found.finding, found.same_failure, found.scored, found.minimum) == ("unknown", 1, 4, None)
    assert "not known" in found.in_words
