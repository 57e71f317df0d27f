"""The fold against the oracle, over arbitrary histories: honest, torn, spoiled, and pure junk."""

import os
import random
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepwell.engine.verdict import verdict_of
from stepwell.events.model import Event
from tests.simulation.judging import compare
from tests.unit.engine.histories import Plan, act_out, episodes, interleave, junk, spoil, with_duplicates, without
from tests.unit.engine.step_rules import dressed, rule_texts
from tests.unit.engine.stories import Story, attempt_of, fold, fold_with_findings, sealed, stalled, timed_out
from tests.unit.engine.test_golden_histories import NAMES, golden_events, golden_rules

SEEDS = st.integers(0, 2**32)
APART = st.sampled_from([0, 2, 8, 64, 200])
SHARES = st.sampled_from([0.0, 0.1, 0.4])


def many(examples: int) -> Any:
    """So many examples, and as many again for each ten seeds of ``make soak``."""
    times = 1 + int(os.environ.get("SOAK_SEEDS", "0")) // 10
    return settings(max_examples=examples * times, deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def engine_facts(draw: st.DrawFn) -> Event:
    """A stall, a time-out or a seal with a token that fits often enough."""
    attempt = draw(st.sampled_from([1, 1, 1, 2]))
    if draw(st.integers(0, 3)) == 0:
        return sealed(attempt)
    make = draw(st.sampled_from([stalled, timed_out, timed_out, timed_out]))
    return make(
        draw(st.sampled_from(["sim", "agent", "host"])), draw(st.integers(0, 6)), draw(st.integers(0, 1)), attempt
    )


@st.composite
def histories(draw: st.DrawFn, operations: int = 14) -> list[Event]:
    """An episode with everything that may happen to it on its way, in the order of the log."""
    facts = draw(episodes(operations))
    facts = spoil(facts, draw(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 5)), max_size=3)))
    seed = draw(SEEDS)
    dice = random.Random(seed)
    arrived, lost = without(facts, seed, draw(SHARES))
    delivered = with_duplicates(interleave(arrived, seed, draw(APART)), seed, draw(SHARES))
    for fact in dice.sample(lost, min(len(lost), draw(st.integers(0, 4)))):
        delivered.insert(dice.randint(0, len(delivered)), fact)
    for _ in range(draw(st.integers(0, 2))):
        if facts:
            changed = msgspec.structs.replace(
                dice.choice(facts), **dice.choice([{"producer_id": "zombie"}, {"occurred_at": 7}])
            )
            delivered.insert(dice.randint(0, len(delivered)), changed)
    for fact in draw(st.lists(engine_facts(), max_size=4)):
        delivered.insert(draw(st.integers(0, len(delivered))), fact)
    return delivered


@many(600)
@given(histories())
def test_fold_and_oracle_agree_on_every_history(history: list[Event]) -> None:
    compare(history)


@st.composite
def dressed_histories(draw: st.DrawFn, operations: int = 24) -> list[Event]:
    """As `histories`, with something for step rules to find."""
    facts = dressed(draw(episodes(operations)), draw(SEEDS))
    if draw(st.integers(0, 3)) == 0:
        facts = spoil(facts, draw(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 5)), max_size=2)))
    seed = draw(SEEDS)
    arrived, lost = without(facts, seed, draw(st.sampled_from([0.0, 0.0, 0.1])))
    delivered = with_duplicates(interleave(arrived, seed, draw(APART)), seed, draw(SHARES))
    for fact in lost:
        if draw(st.booleans()):
            delivered.insert(draw(st.integers(0, len(delivered))), fact)
    for fact in draw(st.lists(engine_facts(), max_size=3)):
        moved = msgspec.structs.replace(fact, occurred_at=fact.occurred_at + draw(st.sampled_from([0, 3_500, 9_000])))
        delivered.insert(draw(st.integers(0, len(delivered))), moved)
    return delivered


@many(500)
@given(dressed_histories(), rule_texts())
def test_fold_and_oracle_find_the_same_by_step_rules(history: list[Event], rules: str) -> None:
    compare(history, rules)


@many(250)
@given(
    SEEDS, rule_texts(8), st.sampled_from([0.0, 0.0, 0.02]), APART, st.sampled_from(["max_steps", "unnamed", "success"])
)
def test_fold_and_oracle_find_the_same_in_long_histories(
    seed: int, rules: str, share: float, apart: int, end: str
) -> None:
    dice = random.Random(seed)
    names = dice.choices(["chunk", "step"], [2, 3], k=dice.randint(20, 90))
    operations = [(name, dice.randint(0, 9), dice.randint(0, 9)) for name in names]
    facts = dressed(act_out(Plan(operations, end, True, dice.choice([0, 7]), [])).facts, seed)
    arrived, _ = without(facts, seed, share)
    compare([*with_duplicates(interleave(arrived, seed, apart), seed, 0.1), sealed()], rules, every=False)


@many(60)
@given(dressed_histories(), rule_texts(3), rule_texts(3), st.integers(0, 40))
def test_fold_and_oracle_agree_on_whom_a_new_rule_set_judges(
    history: list[Event], rules: str, later: str, changes_at: int
) -> None:
    compare(history, rules, later, changes_at)


@many(40)
@given(st.lists(junk(), max_size=30), episodes(6), SEEDS, rule_texts())
def test_fold_and_oracle_agree_on_junk_under_step_rules(
    garbage: list[Event], facts: list[Event], seed: int, rules: str
) -> None:
    mixed = [*dressed(facts, seed), *garbage]
    random.Random(seed).shuffle(mixed)
    compare(mixed, rules)


@many(150)
@given(st.lists(junk(), max_size=30), episodes(6), SEEDS)
def test_fold_and_oracle_agree_on_junk(garbage: list[Event], facts: list[Event], seed: int) -> None:
    mixed = [*facts, *garbage]
    random.Random(seed).shuffle(mixed)
    compare(mixed)


@many(60)
@given(SEEDS, st.integers(66, 150), SHARES, APART)
def test_fold_and_oracle_agree_beyond_what_is_held(seed: int, n_steps: int, share: float, apart: int) -> None:
    story = Story().begin().run(n_steps)
    story.end()
    arrived, _ = without(story.facts, seed, share / 4)
    compare([*interleave(arrived, seed, apart * 2), sealed()])


@pytest.mark.parametrize("name", NAMES)
def test_fold_and_oracle_agree_on_the_golden_histories(name: str) -> None:
    """Their verdicts were worked out by hand; a second implementation confirms everything else that they come to."""
    compare(golden_events(name), golden_rules(name))


def test_what_never_came_is_no_violation_of_the_end() -> None:
    """Fact 2 of the simulator is lost, 3 came, and then the end names 1 as the last: one violation, one loss."""
    story = Story().begin().run(1)
    action = story.action(1)
    story.next_seq["sim"] = 3
    story.step(1, action.producer_seq)
    ended = msgspec.structs.replace(story.end(), last_sim_seq=1, n_steps=1)
    history = [*story.facts[:-1], timed_out("sim", 2), ended]
    compare(history)
    verdict = verdict_of(attempt_of(fold(history)))
    assert verdict is not None
    assert (verdict.certificate.violation_count, verdict.certificate.lost_count) == (1, 1)


def test_a_step_cannot_make_everything_of_the_agent_late() -> None:
    """It names an action that no agent will ever reach: a bad value, and nothing waits for it."""
    story = Story().begin().run(1)
    story.step(1, 2**62)
    story.run(1, 1)
    story.end(n_steps=2)
    history = [*story.facts, sealed()]
    compare(history)
    state, findings = fold_with_findings(history)
    assert [finding.code for finding in findings] == ["bad_value"]
    verdict = verdict_of(attempt_of(state))
    assert verdict is not None
    assert (verdict.n_steps, verdict.certificate.lost_count, verdict.certificate.late_count) == (2, 0, 0)


def test_the_end_of_one_attempt_may_show_what_is_beyond_the_end_of_the_next() -> None:
    """Attempt 2 waits for the end of attempt 1; that record is the one at which its surplus action was noticed."""
    first = Story().begin().run(1)
    end = first.fail()
    second = Story(2)
    second.request()
    second.claim()
    second.ready()
    second.action(0)
    second.fail("start_failed")
    facts = [*second.facts[:-1], msgspec.structs.replace(second.facts[-1], last_agent_seq=-1)]
    compare([*first.facts[:-1], *facts, end])


def test_the_oracle_shares_no_code_with_the_engine() -> None:
    script = (
        "import sys, tests.simulation.oracle, tests.simulation.oracle_steps, tests.simulation.oracle_verdict\n"
        "print([name for name in sys.modules if name.startswith('stepwell.engine')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
