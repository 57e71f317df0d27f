"""Step rules within the fold: its promises hold with rules in force, and what they find becomes a verdict."""

import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.engine import fold as module
from stepwell.engine.fold import apply, evolve
from stepwell.engine.ruleset import STEPS_MAX
from stepwell.engine.snapshot import canonical, dump, load, snapshot_record
from stepwell.engine.state import ACTION_LIMIT, AttemptState, EpisodeState
from stepwell.engine.steps import kernels, signals
from stepwell.engine.steps.memory import PARKED
from stepwell.engine.steps.program import program_of
from stepwell.engine.steps.signals import ELEMENTS_MAX, READ_MAX, SEEN_MAX
from stepwell.engine.verdict import same_verdict, verdict_of
from stepwell.events import model
from stepwell.events.model import Event, Metric
from tests.unit.engine.histories import Plan, act_out, episodes, interleave, junk, with_duplicates, without
from tests.unit.engine.step_rules import array, dressed, rule_texts, rules_text
from tests.unit.engine.stories import (
    EPISODE,
    Story,
    attempt_of,
    fold,
    fold_with_findings,
    position_at,
    sealed,
    timed_out,
    verdict,
)
from tests.unit.engine.test_fold_properties import (
    APART,
    SEEDS,
    SHARES,
    check_snapshots,
    contents,
    everything,
    heavier,
    lighter,
)


@st.composite
def facts_to_judge(draw: st.DrawFn) -> list[Event]:
    """An honest episode in which rules find something: short and shrinkable, or long."""
    seed = draw(SEEDS)
    if draw(st.booleans()):
        return dressed(draw(episodes()), seed)
    dice = random.Random(seed)
    names = dice.choices(["chunk", "step"], [2, 3], k=dice.randint(20, 90))
    operations = [(name, dice.randint(0, 9), dice.randint(0, 9)) for name in names]
    end = dice.choice(["max_steps", "unnamed", "success", "failed"])
    return dressed(act_out(Plan(operations, end, True, dice.choice([0, 7]), [])).facts, seed)


# --- the fold's promises ------------------------------------------------------------------------------------------


@heavier
@given(facts_to_judge(), rule_texts(), SEEDS, APART, SHARES)
def test_every_interleaving_with_any_duplicates_finds_the_same(
    facts: list[Event], rules: str, seed: int, apart: int, share: float
) -> None:
    plain, findings = fold_with_findings(facts, rules=rules)
    assert findings == []
    other, findings = fold_with_findings(with_duplicates(interleave(facts, seed, apart), seed, share), rules=rules)
    assert findings == []
    assert canonical(other) == canonical(plain)
    assert contents(other) == contents(plain)


@heavier
@given(facts_to_judge(), rule_texts(), SEEDS, APART, SHARES)
def test_what_was_lost_leaves_the_same_gaps_in_every_order(
    facts: list[Event], rules: str, seed: int, apart: int, share: float
) -> None:
    facts = [fact for fact in facts if fact.attempt == 1][:64]
    arrived, _ = without(facts, seed, share / 4)
    first = fold([*arrived, sealed()], rules=rules)
    second = fold([*interleave(arrived, seed, apart), sealed()], rules=rules)
    assert canonical(first) == canonical(second)
    assert contents(first) == contents(second)


@heavier
@given(facts_to_judge(), rule_texts(), SEEDS, APART, SHARES, st.sets(st.integers(0, 120), max_size=8))
def test_a_snapshot_at_any_point_changes_nothing(
    facts: list[Event], rules: str, seed: int, apart: int, share: float, cuts: set[int]
) -> None:
    delivered = with_duplicates(interleave(without(facts, seed, share / 8)[0], seed, apart), seed, share)
    check_snapshots(delivered, cuts, rules)


@lighter
@given(facts_to_judge(), rule_texts(), SEEDS, APART)
def test_evolve_leaves_its_input(facts: list[Event], rules: str, seed: int, apart: int) -> None:
    state: EpisodeState | None = None
    for offset, event in enumerate(interleave(facts, seed, apart)):
        before = None if state is None else everything(state)
        after = evolve(state, event, position_at(offset, event, rules))
        assert state is None or everything(state) == before
        state = after
    assert state is not None
    assert everything(state) == everything(fold(interleave(facts, seed, apart), rules=rules))


@heavier
@given(facts_to_judge(), rule_texts(), SEEDS, APART, SHARES)
def test_the_hot_path_finds_what_the_definition_finds(
    facts: list[Event], rules: str, seed: int, apart: int, share: float
) -> None:
    delivered = with_duplicates(interleave(without(facts, seed, share / 8)[0], seed, apart), seed, share)
    hot = fold(delivered, rules=rules)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_regular_step", lambda *_: False)
        patch.setattr(module, "_regular_action", lambda *_: False)
        assert everything(fold(delivered, rules=rules)) == everything(hot)


@heavier
@given(st.lists(junk(), max_size=40), episodes(8), SEEDS, rule_texts())
def test_nothing_raises_whatever_the_events_say_and_memory_stays_bounded(
    garbage: list[Event], facts: list[Event], seed: int, rules: str
) -> None:
    mixed = [*dressed(facts, seed), *garbage]
    random.Random(seed).shuffle(mixed)
    state = EpisodeState(EPISODE)
    for offset, event in enumerate(mixed):
        findings = apply(state, event, position_at(offset, event, rules))
        assert "rule_failed" not in {finding.kind for finding in findings}
        check_bounds(state)
    for attempt in state.attempts.values():
        assert isinstance(attempt, AttemptState)
        assert dump(load(dump(attempt))) == dump(attempt)
        snapshot_record(attempt)


def check_bounds(state: EpisodeState) -> None:
    for attempt in state.attempts.values():
        assert isinstance(attempt, AttemptState)
        assert attempt.kept_actions.keys() <= attempt.actions.keys()
        assert len(attempt.kept_actions) <= ACTION_LIMIT
        assert all(len(kept.data) <= READ_MAX for kept in attempt.kept_actions.values())
        memory = attempt.step_memory
        if memory is not None:
            assert len(memory.seen_at) <= SEEN_MAX
            assert len(memory.rows) <= signals.ROWS_MAX
            # Only an oscillating signal keeps a list for each element.
            for part in memory.states:
                for value in (getattr(part, name) for name in part.__struct_fields__):
                    assert not isinstance(value, list | tuple) or len(value) <= max(STEPS_MAX, ELEMENTS_MAX)


def test_actions_that_no_step_ever_names_are_kept_no_longer_than_the_fold_remembers_them() -> None:
    story = Story().begin()
    for step in range(ACTION_LIMIT + 50):
        story.action(step)
    rules = rules_text({"kind": "frozen", "signal": "action"})
    state = fold(story.facts, rules=rules)
    check_bounds(state)
    assert len(attempt_of(state).kept_actions) == ACTION_LIMIT


# --- whom they judge ----------------------------------------------------------------------------------------------

ALWAYS = rules_text({"kind": "limit", "name": "always", "signal": "reward", "below": 9.0}, name="first", version=3)
OTHER = rules_text({"kind": "limit", "name": "other", "signal": "reward", "below": 9.0}, name="second")


def two_attempts() -> list[Event]:
    first = Story().begin().run(2)
    first.fail()
    second = Story(attempt=2).begin().run(3)
    second.end(success=False, reason="max_steps")
    return [*first.facts, *second.facts]


def test_an_attempt_keeps_the_rules_of_its_first_record() -> None:
    facts = two_attempts()
    state = EpisodeState(EPISODE)
    for offset, event in enumerate(facts):
        apply(state, event, position_at(offset, event, ALWAYS if offset < 3 else OTHER))
    assert (verdict(state, 1).labels, verdict(state, 2).labels) == (("always",), ("other",))
    assert verdict(state, 1).provenance.rule_set.startswith("step-labels/1 first/3 ")
    assert verdict(state, 2).provenance.rule_set.startswith("step-labels/1 second/1 ")


def test_each_attempt_has_a_memory_of_its_own() -> None:
    """Two steps of attempt 1 and three of attempt 2: only the second finds three in a row."""
    rules = rules_text({"kind": "limit", "name": "three", "signal": "reward", "above": 0.5, "steps": 3})
    state = fold(two_attempts(), rules=rules)
    assert (verdict(state, 1).labels, verdict(state, 2).labels) == ((), ("three",))


def test_without_rules_nothing_is_kept() -> None:
    state = fold(interleave(two_attempts(), 1, 8))
    for number in (1, 2):
        attempt = attempt_of(state, number)
        assert (attempt.rules, attempt.step_memory, attempt.kept_actions) == ("", None, {})
        assert verdict(state, number).provenance.rule_set == "step-labels/1"


def held_facts(rules: str) -> Iterator[Any]:
    story = Story().begin()
    story.action(0)
    for _ in range(2):
        story.facts.pop()  # the agent's start and its first action are late
    tensors = (array("proprio", [1.0]), array("camera", [0] * 50_000, "uint8"), array("other", [2.0]))
    story.step(0, 1, metrics=(Metric(name="d", value=1.0), Metric(name="e", value=2.0)))
    story.facts[-1] = msgspec.structs.replace(story.facts[-1], observation=tensors)
    sent = story.action(1)
    story.facts[-1] = msgspec.structs.replace(sent, action=array("action", [1.0], shape=(1, 1)), observed_step=1)
    attempt = attempt_of(fold(story.facts, rules=rules))
    for producer in (attempt.sim, attempt.agent):
        yield from (held.fact for held in producer.held.values())


def test_a_fact_that_waits_keeps_only_what_rules_read() -> None:
    step, action = held_facts("")
    assert (step.observation, step.metrics, action.action) == ((), (), None)
    step, action = held_facts(rules_text({"kind": "limit", "signal": "metric.d", "above": 1.0}))
    assert ([entry.name for entry in step.metrics], step.observation, action.action) == (["d"], (), None)
    rules = rules_text(
        {"kind": "stale", "signal": "observation.camera"},
        {"kind": "limit", "signal": "observation.proprio", "above": 1.0},
        {"kind": "limit", "signal": "action", "above": 1.0},
    )
    step, action = held_facts(rules)
    assert [(tensor.name, len(tensor.data)) for tensor in step.observation] == [("proprio", 8), ("camera", 0)]
    assert action.action is not None
    assert action.observed_step == 1


def test_the_first_observation_is_not_kept_for_good() -> None:
    rules = rules_text({"kind": "stale", "signal": "observation.qpos"})
    ready = attempt_of(fold(Story().begin().facts, rules=rules)).ready_fact
    assert ready is not None
    assert ready.observation == ()


# --- what they find becomes a verdict ------------------------------------------------------------------------------


def ended(story: Story, end: str) -> Story:
    ends = {
        "max_steps": lambda: story.end(success=False, reason="max_steps"),
        "terminated": lambda: story.end(success=False, reason="terminated"),
        "success": story.end,
        "crash": lambda: story.fail("sim_exited"),
        "abort": story.abort,
    }
    ends[end]()
    return story


ASSIGNING = rules_text(
    {"kind": "limit", "name": "never", "signal": "reward", "above": 9.0, "assigns": "limit_exceeded"},
    {"kind": "limit", "name": "silent", "signal": "reward", "below": 9.0},
    {"kind": "limit", "name": "zz_late", "signal": "reward", "below": 9.0, "steps": 2, "assigns": "stale_observation"},
    {"kind": "limit", "name": "early", "signal": "reward", "below": 9.0, "assigns": "no_progress"},
)


@pytest.mark.parametrize(
    ("end", "outcome", "failure_type", "fault"),
    [
        # The first rule of the set, not the first in time, says what it was.
        ("max_steps", "error", "stale_observation", "simulator"),
        ("terminated", "error", "stale_observation", "simulator"),
        ("success", "success", None, None),
        ("crash", "error", "sim_exited", "simulator"),
        ("abort", "aborted", "aborted_by_operator", "operator"),
    ],
)
def test_rules_explain_plain_failures_only(end: str, outcome: str, failure_type: str, fault: str) -> None:
    said = verdict(fold(ended(Story().begin().run(3), end).facts, rules=ASSIGNING))
    assert (said.outcome, said.failure_type, said.fault) == (outcome, failure_type, fault)
    assert (said.labels, said.label_steps) == (("early", "silent", "zz_late"), (0, 0, 1))


def test_one_step_less_gives_the_next_rules_type() -> None:
    said = verdict(fold(ended(Story().begin().run(1), "max_steps").facts, rules=ASSIGNING))
    assert (said.outcome, said.failure_type, said.fault) == ("failure", "no_progress", "policy")


@pytest.mark.parametrize(
    ("scope", "found"),
    [
        ({}, True),
        ({"tasks": ["metaworld/reach-v3"]}, True),
        ({"tasks": ["metaworld/*"], "policies": ["other", "expert"]}, True),
        ({"tasks": ["*"]}, True),
        ({"tasks": ["metaworld"]}, False),
        ({"tasks": ["gymnasium/*"]}, False),
        ({"scenes": ["nowhere"]}, False),
        ({"tasks": ["metaworld/*"], "policies": ["other"]}, False),
    ],
)
def test_a_rule_for_some_tasks_scenes_or_policies(scope: dict[str, list[str]], found: bool) -> None:
    """Neither its label nor its failure type reaches the others."""
    rules = rules_text(
        {"kind": "limit", "name": "high", "signal": "reward", "below": 9.0, "assigns": "no_progress", **scope}
    )
    story = ended(Story().begin().run(2), "max_steps")
    said = verdict(fold(story.facts, rules=rules))
    assert said.labels == (("high",) if found else ())
    assert said.failure_type == ("no_progress" if found else "task_not_completed")
    # The request may come last: then nobody knew what the steps were of.
    late = [fact for fact in story.facts if fact.producer_seq or fact.PRODUCER != "host"]
    assert (
        verdict(fold([*late, *(fact for fact in story.facts if fact not in late)], rules=rules)).labels == said.labels
    )


def test_built_in_labels_stand_beside_those_of_rules() -> None:
    story = Story().begin().run(1, reward=float("nan"))
    said = verdict(fold(ended(story, "max_steps").facts, rules=ALWAYS))
    assert (said.labels, said.label_steps) == (("nonfinite_reward",), (-1,))
    story = Story().begin().run(1).run(1, 1, reward=float("nan"))
    said = verdict(fold(ended(story, "max_steps").facts, rules=ALWAYS))
    assert (said.labels, said.label_steps) == (("always", "nonfinite_reward"), (0, -1))


def test_a_label_found_beneath_the_end_amends_the_verdict() -> None:
    """The end does not name the last facts; a step that comes after it still counts."""
    story = Story().begin().run(2)
    end = story.end(success=False, reason="max_steps", named=False)
    late = story.facts[-2]
    rules = rules_text(
        {"kind": "limit", "name": "two", "signal": "reward", "above": 0.5, "steps": 2, "assigns": "no_progress"}
    )
    state = fold([*story.facts[:-2], end], rules=rules)
    before = verdict(state)
    assert (before.labels, before.failure_type, before.revision) == ((), "task_not_completed", 1)
    after = verdict(fold([late], state, start=50))
    assert (after.labels, after.label_steps, after.failure_type, after.revision) == (("two",), (1,), "no_progress", 2)
    assert not same_verdict(before, after)


# --- a rule that raises -------------------------------------------------------------------------------------------


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Limit rules raise when they see a reward of 13, and so does whoever reads a metric of 13."""
    see = kernels.LimitKernel.see

    def raising(self: kernels.LimitKernel, state: Any, readings: list[Any], at: int) -> bool:
        if readings[self.slots[0]] == (13.0, 13.0):
            raise ZeroDivisionError("thirteen")
        return see(self, state, readings, at)

    number_reader = signals.number_reader

    def reader(signal: signals.Signal) -> signals.Reader:
        read = number_reader(signal)

        def number(moment: signals.Moment, slots: list[Any]) -> float | None:
            value: float | None = read(moment, slots)
            if signal.base == "metric" and value == 13.0:
                raise KeyError("thirteen")
            return value

        return number

    monkeypatch.setattr(kernels.LimitKernel, "see", raising)
    monkeypatch.setattr(kernels, "number_reader", reader)
    program_of.cache_clear()
    yield
    program_of.cache_clear()


RAISING = rules_text(
    {"kind": "limit", "name": "raises", "signal": "reward", "above": 1.0},
    {"kind": "nonfinite", "name": "goes_on", "signal": "reward"},
    {"kind": "stagnation", "name": "cannot_read", "signal": "metric.d", "direction": "falling", "steps": 2},
)


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("apart", [0, 64])
def test_a_rule_that_raises_is_parked_and_the_others_go_on(apart: int) -> None:
    story = Story().begin()
    for step, (reward, metric) in enumerate([(0.0, 1.0), (13.0, 13.0), (99.0, 1.0), (float("inf"), 1.0)]):
        sent = story.action(step)
        story.step(step, sent.producer_seq, reward=reward, metrics=(Metric(name="d", value=metric),))
    story.end(success=False, reason="max_steps")
    delivered = interleave(story.facts, 3, apart)
    state, findings = fold_with_findings(delivered, rules=RAISING)
    guilty = next(at for at, fact in enumerate(delivered) if isinstance(fact, model.StepDone) and fact.step == 1)
    assert {(f.kind, f.event_type, f.producer, f.first_seq, f.offset) for f in findings} == {
        ("rule_failed", "sim::step_done", "sim", 2, guilty)
    }
    assert sorted(f.code for f in findings) == ["cannot_read", "raises"]
    assert sorted(f.detail for f in findings) == [
        "step rule cannot_read raised and is parked for this attempt: KeyError: 'thirteen'",
        "step rule raises raised and is parked for this attempt: ZeroDivisionError: thirteen",
    ]
    said = verdict(state)
    assert (said.labels, said.label_steps) == (("goes_on", "nonfinite_reward"), (3, -1))
    memory = attempt_of(state).step_memory
    assert memory is not None
    assert [found == PARKED for found in memory.found] == [True, False, True]
    assert dump(load(dump(attempt_of(state)))) == dump(attempt_of(state))


@pytest.mark.usefixtures("broken")
def test_a_parked_rule_judges_the_next_attempt_again() -> None:
    first = Story().begin().run(1, reward=13.0)
    first.fail()
    second = Story(attempt=2).begin().run(1, reward=2.0)
    second.fail()
    state, findings = fold_with_findings([*first.facts, *second.facts], rules=RAISING)
    assert len(findings) == 1
    assert (verdict(state, 1).labels, verdict(state, 2).labels) == ((), ("raises",))


def test_a_rule_that_raises_on_silence_is_parked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def tick(*_: object) -> bool:
        raise OverflowError("time")

    monkeypatch.setattr(kernels.SequenceKernel, "tick", tick)
    rules = rules_text({
        "kind": "sequence", "first": {"signal": "reward", "above": 0.5}, "then": {"signal": "reward", "above": 9.0},
        "within_wall_s": 1.0,
    })  # fmt: skip
    state, findings = fold_with_findings([*Story().begin().run(1).facts, timed_out("agent", 2)], rules=rules)
    assert [(f.kind, f.event_type) for f in findings] == [("rule_failed", "episode::timed_out")]
    assert verdict_of(attempt_of(state)) is not None
