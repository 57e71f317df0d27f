"""A regression run is planned from the log alone; before and after are told from what became of its episodes."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from stepwell.adapters.logs.memory import MemoryLog
from stepwell.adapters.policies import Chunk, PolicyDescription
from stepwell.adapters.runs.before_after import BeforeAfter, before_and_after
from stepwell.adapters.runs.definitions import read_episode_requests
from stepwell.adapters.runs.plan import PlannedEpisode, plan
from stepwell.adapters.runs.recorder import AttemptRecorder
from stepwell.adapters.runs.regression import (
    FRESH_FROM,
    RegressionCell,
    fresh_seeds,
    plan_regression,
    read_regression_spec,
    regression_run_id,
)
from stepwell.adapters.runs.spec import check_spec
from stepwell.adapters.simulators import ActionSpec, Reset, SimulatorDescription, StepResult
from stepwell.adapters.yaml_lines import parse
from stepwell.engine.publish import outgoing
from stepwell.events.arrays import tensor
from stepwell.events.model import LogRecord, PatternDetected, RetrainRequested
from stepwell.exceptions import NotFoundError, SpecError
from tests.integration.projections.facts import pattern, retrain
from tests.unit.runs.places import CODEC, ME

SPEC = """\
run: unit
seeds: [1, 2, 3, 4]
max_steps: 1
scenes:
  - {name: balance, task: gymnasium/InvertedPendulum-v5, options: {success_steps: 1}}
perturbations: [{name: none}, {name: heavy, options: {mass_scale: 2.0}}]
policies:
  - name: learned
    kind: python
    checkpoint: first
    options: {target: "my.module:Mine", arguments: {weights: "w/{checkpoint}.npz"}}
"""
TRIGGER = "tr-regress"
FAILED = "task_not_completed"


@pytest.fixture
def log() -> Iterator[MemoryLog]:
    log = MemoryLog()
    yield log
    log.close()


def put(log: MemoryLog, *records: LogRecord) -> None:
    producer = log.producer()
    producer.send([outgoing(CODEC, record) for record in records])
    producer.flush(10)
    producer.close()


def ran(log: MemoryLog, episode: PlannedEpisode, success: bool | None) -> None:
    """Record an episode of one step; None: the simulator broke, so it is not scored."""
    facts: list[LogRecord] = []
    recorder = AttemptRecorder(facts.append, episode, 1, ME)
    recorder.requested()
    recorder.claimed()
    if success is None:
        recorder.failed("sim_killed", "sim", "killed")
    else:
        seen = (tensor("observation", [0.0]),)
        action = ActionSpec(dtype="float64", shape=(1,), low=(-1.0,), high=(1.0,))
        recorder.ready(
            SimulatorDescription(
                simulator="gymnasium", simulator_version="1", adapter_version="1", environment_digest="d", versions={},
                observation=(), action=action, step_duration_s=0.1, time_limit=None, gives_success=True,
            ),
            Reset(observation=seen, state_digest=b"d", sim_time=0.0, factors={}, wall_s=0.0),
        )  # fmt: skip
        recorder.agent_started(PolicyDescription(name="learned", version="1", checkpoint=None, needs=()))
        recorder.action_sent(0, Chunk(action=tensor("action", [[0.0]]), n_steps=1, inference_s=0.0))
        recorder.step_done(
            0,
            StepResult(
                observation=seen, reward=0.0, success=success, terminated=False, truncated=False, metrics=(),
                warnings=(), state_digest=b"d", sim_time=0.1, step_wall_s=0.0,
            ),
        )  # fmt: skip
        recorder.ended("success" if success else "max_steps", success)
    put(log, *facts)


def first_run(text: str = SPEC) -> list[PlannedEpisode]:
    return plan(check_spec(parse(text.encode(), "s.yaml")), "nightly")


def cell_of(episode: PlannedEpisode, *seeds: int) -> dict[str, Any]:
    return {
        "task": episode.simulator.full_task, "scene": episode.scene, "perturbation": episode.perturbation,
        "example_episode": episode.episode_id, "seeds": list(seeds),
    }  # fmt: skip


def request(cells: list[dict[str, Any]], **changes: Any) -> RetrainRequested:
    spec = {
        "format": "stepwell-regression/1", "trigger_id": TRIGGER, "policy": "learned", "policy_version": "1",
        "baseline_checkpoint": "first", "failure_type": FAILED, "cells": cells, "fresh_seeds_per_cell": 4,
    } | changes  # fmt: skip
    return msgspec.structs.replace(
        retrain(TRIGGER),
        policy="learned",
        checkpoint="first",
        failure_type=FAILED,
        regression_spec_json=json.dumps(spec),
    )


@pytest.fixture
def asked(log: MemoryLog) -> RetrainRequested:
    """A request after a first run in which the plain cell failed with seeds 1 and 3."""
    episodes = first_run()
    plain = [episode for episode in episodes if episode.perturbation == "none"]
    for episode in plain:
        ran(log, episode, success=episode.seed not in (1, 3))
    made = request([cell_of(plain[0], 1, 3)])
    put(log, made)
    return made


def test_the_seeds_that_failed_and_fresh_ones_run_with_the_definitions_of_the_log(
    log: MemoryLog, asked: RetrainRequested
) -> None:
    regression = plan_regression(log, CODEC, asked, "second")
    (cell,) = regression.cells
    assert regression.run_id == "regress-tr-regress-second"
    assert [(e.seed, e.checkpoint) for e in cell.again] == [(1, "second"), (3, "second")]
    assert {e.policy.options["arguments"]["weights"] for e in cell.again} == {"w/second.npz"}
    assert [(p.before.checkpoint, p.after.checkpoint) for p in cell.fresh] == [("first", "second")] * 4
    assert all(p.before.seed == p.after.seed >= FRESH_FROM for p in cell.fresh)
    assert len(regression.episodes) == 2 + 2 * 4 == len({e.episode_id for e in regression.episodes})
    old = first_run()[0]
    assert replace(cell.fresh[0].before, seed=1, run_id="", episode_id="", cell="") == replace(
        old, run_id="", episode_id="", cell="", purpose="regression"
    )


def test_its_requests_say_that_they_are_no_evaluation(log: MemoryLog, asked: RetrainRequested) -> None:
    regression = plan_regression(log, CODEC, asked, "second")
    for episode in regression.episodes:
        ran(log, episode, success=True)
    runs = {(event.run_id, event.purpose) for event in read_episode_requests(log, CODEC)}
    assert runs == {("nightly", "evaluation"), (regression.run_id, "regression")}


def test_a_plan_made_twice_is_the_same(log: MemoryLog, asked: RetrainRequested) -> None:
    regression = plan_regression(log, CODEC, asked, "second")
    for episode in regression.episodes:
        ran(log, episode, success=True)
    assert plan_regression(log, CODEC, asked, "second") == regression


def test_the_old_checkpoint_is_not_run_again_where_an_earlier_run_scored_it(
    log: MemoryLog, asked: RetrainRequested
) -> None:
    first = plan_regression(log, CODEC, asked, "second")
    pairs = first.cells[0].fresh
    for pair, success in zip(pairs[:3], (True, False, None), strict=True):
        ran(log, pair.before, success)
    later = plan_regression(log, CODEC, asked, "third")
    assert [pair.earlier for pair in later.cells[0].fresh] == [
        pairs[0].before.episode_id, pairs[1].before.episode_id, None, None,
    ]  # fmt: skip
    assert len(later.episodes) == 2 + 4 + 2


# --- other cells --------------------------------------------------------------------------------------------------

MANY = SPEC.replace(
    "perturbations: [{name: none}, {name: heavy, options: {mass_scale: 2.0}}]", "perturbations:"
).replace(
    "policies:",
    "".join(f"  - {{name: p{i}, options: {{mass_scale: {1 + i / 10}}}}}\n" for i in range(8)) + "policies:",
)
"""Eight cells, p0 to p7, with four seeds each."""


def evaluated(log: MemoryLog, failures: dict[str, int]) -> list[PlannedEpisode]:
    """An evaluation: in each of these cells so many of its first seeds fail."""
    episodes = [episode for episode in first_run(MANY) if episode.perturbation in failures]
    for episode in episodes:
        ran(log, episode, success=episode.seed > failures[episode.perturbation])
    return episodes


def test_the_best_other_cells_run_beside_with_fresh_seeds_alone(log: MemoryLog) -> None:
    episodes = evaluated(log, {"p0": 4, "p1": 3, "p2": 0, "p3": 4, "p4": 1, "p5": 0, "p6": 2, "p7": 1})
    asked = request([cell_of(episodes[0], 1)])
    put(log, asked)
    regression = plan_regression(log, CODEC, asked, "second")
    assert [each.cell.perturbation for each in regression.others] == ["p2", "p4", "p5", "p7"]
    for each in regression.others:
        assert each.again == ()
        assert [(p.before.checkpoint, p.after.checkpoint) for p in each.fresh] == [("first", "second")] * 4
        assert all(p.before.seed == p.after.seed >= FRESH_FROM for p in each.fresh)
    assert len(regression.episodes) == 1 + 5 * 4 * 2

    for each in (*regression.cells, *regression.others):
        for pair in each.fresh:
            ran(log, pair.before, success=each in regression.others)
            ran(log, pair.after, success=pair is not each.fresh[0])
    for episode in regression.cells[0].again:
        ran(log, episode, success=True)
    result = only(before_and_after(log, CODEC, TRIGGER))
    assert (result.total.pairs.gained, result.total.pairs.lost) == (3, 0)
    assert (result.others_total.pairs.both, result.others_total.pairs.lost) == (12, 4)
    assert [(cell.name, cell.pairs.lost) for cell in result.others] == [
        (f"balance + {name}", 1) for name in ("p2", "p4", "p5", "p7")
    ]  # fmt: skip
    assert result.as_plain()["others_total"]["fresh"]["lost"] == 4
    assert (result.unfinished, result.recurrence.scored, result.recurrence.same_failure) == (0, 20, 5)


def test_a_run_keeps_the_other_cells_that_it_began_with(log: MemoryLog) -> None:
    episodes = evaluated(log, {"p0": 4, "p1": 1, "p2": 2})
    asked = request([cell_of(episodes[0], 1)])
    regression = plan_regression(log, CODEC, asked, "second")
    for episode in regression.episodes:
        ran(log, episode, success=True)
    evaluated(log, {"p3": 0, "p4": 0, "p5": 0, "p6": 0})
    again = plan_regression(log, CODEC, asked, "second")
    assert [each.cell.perturbation for each in again.others] == ["p1", "p2"]
    assert again.episodes == regression.episodes
    third = plan_regression(log, CODEC, asked, "third")
    assert [each.cell.perturbation for each in third.others] == ["p3", "p4", "p5", "p6"]


def test_a_cell_that_cannot_be_run_again_does_not_run_beside(log: MemoryLog) -> None:
    episodes = evaluated(log, {"p0": 4})
    for episode in first_run(MANY):
        if episode.perturbation == "p1":
            ran(log, replace(episode, definition=""), success=True)
        if episode.perturbation == "p2":
            ran(log, episode, success=None)
    regression = plan_regression(log, CODEC, request([cell_of(episodes[0], 1)]), "second")
    assert regression.others == ()


def test_without_fresh_seeds_nothing_runs_beside(log: MemoryLog) -> None:
    episodes = evaluated(log, {"p0": 4, "p1": 0})
    asked = request([cell_of(episodes[0], 1)], fresh_seeds_per_cell=0)
    regression = plan_regression(log, CODEC, asked, "second")
    assert (regression.others, len(regression.episodes)) == ((), 1)


def test_fresh_seeds_follow_from_trigger_and_cell_and_avoid_those_taken() -> None:
    cell = RegressionCell(task="a/b", scene="s", perturbation="none", example_episode="e", seeds=[])
    seeds = fresh_seeds("tr-1", cell, 50, ())
    assert seeds == fresh_seeds("tr-1", cell, 50, ())
    assert len(set(seeds)) == 50
    assert all(FRESH_FROM <= seed < 2**32 for seed in seeds)
    assert not set(seeds) & set(fresh_seeds("tr-2", cell, 50, ()))
    assert not set(seeds) & set(fresh_seeds("tr-1", cell.model_copy(update={"scene": "t"}), 50, ()))
    assert fresh_seeds("tr-1", cell, 50, seeds[:10])[:40] == seeds[10:]


@pytest.mark.parametrize(
    ("checkpoint", "run_id"),
    [
        ("v2", "regress-tr-1-v2"),
        ("runs/7/step 9", "regress-tr-1-runs-7-step-9-"),
        ("x" * 90, "regress-tr-1-" + "x" * 60 + "-"),
    ],
)
def test_any_checkpoint_gives_a_run_id(checkpoint: str, run_id: str) -> None:
    found = regression_run_id("tr-1", checkpoint)
    assert found.startswith(run_id)
    assert len(found) <= 120
    assert found != regression_run_id("tr-1", checkpoint + "y")


# --- what cannot be run -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no regression spec"),
        ("{", "no JSON"),
        ('{"format": "stepwell-regression/2"}', "format: "),
        (json.dumps({"format": "stepwell-regression/1", "cells": []}), "trigger_id: Field required"),
    ],
)
def test_a_spec_that_cannot_be_used_is_refused(text: str, words: str) -> None:
    asked = msgspec.structs.replace(retrain(TRIGGER), regression_spec_json=text)
    with pytest.raises(SpecError, match=words) as caught:
        read_regression_spec(asked)
    assert TRIGGER in str(caught.value)


def test_an_example_that_the_log_has_not_is_named(log: MemoryLog) -> None:
    (episode, *_) = first_run()
    with pytest.raises(NotFoundError, match=f"{episode.episode_id} is no longer in the log"):
        plan_regression(log, CODEC, request([cell_of(episode, 1)]), "second")


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (lambda text: "", NotFoundError, "was asked for without definitions"),
        (lambda text: "{}", SpecError, "no definition of this version"),
        (lambda text: text.replace("{checkpoint}", "first"), SpecError, r"nothing in its options says \{checkpoint\}"),
        (lambda text: text.replace('"hidden":[]', '"hidden":["policy.options.k"]'), SpecError, "policy.options.k"),
        (lambda text: text.replace('"name":"balance"', '"name":"other"'), SpecError, "its example episode .* is of"),
    ],
)  # fmt: skip
def test_definitions_that_cannot_be_run_again_are_refused(
    log: MemoryLog, change: Callable[[str], str], kind: type[Exception], words: str
) -> None:
    (episode, *_) = first_run()
    ran(log, replace(episode, definition=change(episode.definition)), success=False)
    with pytest.raises(kind, match=words):
        plan_regression(log, CODEC, request([cell_of(episode, 1)]), "second")


@pytest.mark.parametrize(
    ("checkpoint", "words"), [("first", "is the checkpoint that request"), ("../x", "cannot take the place")]
)
def test_a_checkpoint_that_makes_no_sense_is_refused(
    log: MemoryLog, asked: RetrainRequested, checkpoint: str, words: str
) -> None:
    with pytest.raises(SpecError, match=words):
        plan_regression(log, CODEC, asked, checkpoint)


def test_files_that_are_not_here_are_told_before_anything_runs(log: MemoryLog) -> None:
    (episode, *_) = first_run()
    definition = json.loads(episode.definition)
    definition["policy"]["options"]["target"] = "nowhere.py:Mine"
    definition["directory"] = "/lab/project"
    ran(log, replace(episode, definition=json.dumps(definition)), success=False)
    regression = plan_regression(log, CODEC, request([cell_of(episode, 1)]), "second")
    with pytest.raises(SpecError, match=r"no file nowhere.py(.|\n)*its run was started in /lab/project"):
        regression.check()


# --- before and after ---------------------------------------------------------------------------------------------


def only(results: list[BeforeAfter]) -> BeforeAfter:
    (result,) = results
    return result


def test_before_and_after_are_paired_by_seed(log: MemoryLog, asked: RetrainRequested) -> None:
    assert before_and_after(log, CODEC, TRIGGER) == []
    regression = plan_regression(log, CODEC, asked, "second")
    (cell,) = regression.cells
    for episode, success in zip(cell.again, (True, False), strict=True):
        ran(log, episode, success)
    outcomes = [(False, True), (False, False), (True, False), (None, True)]
    for pair, (before, after) in zip(cell.fresh, outcomes, strict=True):
        ran(log, pair.before, before)
        ran(log, pair.after, after)
    result = only(before_and_after(log, CODEC, TRIGGER[:6]))
    assert (result.baseline_checkpoint, result.checkpoint, result.run_id) == ("first", "second", regression.run_id)
    total = result.total
    assert (total.again, total.again_scored, total.again_succeeded) == (2, 2, 1)
    assert (total.pairs.both, total.pairs.lost, total.pairs.gained, total.pairs.neither) == (0, 1, 1, 1)
    assert (total.same_failure, total.missing, result.unfinished, result.opened) == (2, 1, 0, ())
    assert (result.others, result.others_total.pairs.n) == ((), 0)
    plain = result.as_plain()
    assert json.loads(json.dumps(plain))["total"]["fresh"]["after"]["succeeded"] == 1
    assert [each["name"] for each in plain["cells"]] == ["balance"]
    assert (plain["recurrence"]["same_failure"], plain["recurrence"]["scored"]) == (2, 4)


def test_a_run_that_goes_on_says_so_and_each_checkpoint_has_its_own(log: MemoryLog, asked: RetrainRequested) -> None:
    for checkpoint in ("second", "third"):
        regression = plan_regression(log, CODEC, asked, checkpoint)
        ran(log, regression.cells[0].again[0], success=True)
    second, third = before_and_after(log, CODEC, TRIGGER)
    assert (second.checkpoint, third.checkpoint) == ("second", "third")
    assert (second.unfinished, second.total.missing) == (9, 5)


def test_what_the_same_failure_has_opened_for_the_new_checkpoint_is_told(
    log: MemoryLog, asked: RetrainRequested
) -> None:
    regression = plan_regression(log, CODEC, asked, "second")
    ran(log, regression.cells[0].again[0], success=True)

    def opened(trigger: str, **changes: Any) -> PatternDetected:
        about = {"policy": "learned", "policy_version": "1", "checkpoint": "second", "failure_type": FAILED}
        return msgspec.structs.replace(pattern(trigger), **(about | changes))

    put(
        log,
        opened("tr-again"),
        opened("tr-old", checkpoint="first"),
        opened("tr-other", failure_type="agent_timeout"),
        opened("tr-theirs", policy="another"),
    )
    assert only(before_and_after(log, CODEC, TRIGGER)).opened == ("tr-again",)
