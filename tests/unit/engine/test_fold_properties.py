"""What the fold promises, over arbitrary histories."""

import random
from collections.abc import Collection, Sequence

import msgspec
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from stepwell.engine import fold as module
from stepwell.engine.fold import adopt, apply, evolve
from stepwell.engine.replay import fold_history, replay
from stepwell.engine.snapshot import canonical, dump, load, snapshot_record
from stepwell.engine.state import ACTION_LIMIT, HOLD_LIMIT, LIST_LIMIT, AttemptState, EpisodeState
from stepwell.engine.verdict import content_of, mark_published, verdict_of
from stepwell.events import model
from stepwell.events.model import Event
from tests.unit.engine.histories import Plan, act_out, episodes, interleave, junk, spoil, with_duplicates, without
from tests.unit.engine.stories import (
    EPISODE,
    Story,
    attempt_of,
    fold,
    fold_with_findings,
    position_at,
    sealed,
    timed_out,
)

SEEDS = st.integers(0, 2**32)
APART = st.sampled_from([0, 2, 8, HOLD_LIMIT])
SHARES = st.sampled_from([0.0, 0.2, 0.7])

pytestmark = pytest.mark.filterwarnings("error")
lighter = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
heavier = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def contents(state: EpisodeState) -> dict[int, bytes | None]:
    """The content of every attempt's verdict."""
    found = {}
    for number, attempt in sorted(state.attempts.items()):
        assert isinstance(attempt, AttemptState)
        verdict = verdict_of(attempt)
        found[number] = None if verdict is None else content_of(verdict)
    return found


def everything(state: EpisodeState) -> bytes:
    """The whole state, transport counters and all."""
    return msgspec.msgpack.encode(state)


def check_snapshots(delivered: Sequence[Event], cuts: Collection[int], rules: str = "") -> None:
    """Fold on from snapshots taken at the cuts: the same findings after every event, and the same state."""
    straight, cut = EpisodeState(EPISODE), EpisodeState(EPISODE)
    for offset, event in enumerate(delivered):
        position = position_at(offset, event, rules)
        assert apply(straight, event, position) == apply(cut, event, position)
        if offset in cuts:
            restored = EpisodeState(EPISODE)
            for attempt in cut.attempts.values():
                assert isinstance(attempt, AttemptState)
                loaded = load(dump(attempt))
                assert dump(loaded) == dump(attempt)
                assert not adopt(restored, loaded)
            cut = restored
    assert everything(cut) == everything(straight)


# --- order, duplicates ----------------------------------------------------------------------------------------------


@heavier
@given(episodes(), SEEDS, APART, SHARES)
def test_every_interleaving_with_any_duplicates_folds_to_the_same(
    facts: list[Event], seed: int, apart: int, share: float
) -> None:
    plain, findings = fold_with_findings(facts)
    assert findings == []
    other, findings = fold_with_findings(with_duplicates(interleave(facts, seed, apart), seed, share))
    assert findings == []
    assert canonical(other) == canonical(plain)
    assert contents(other) == contents(plain)


@heavier
@given(episodes(12), st.lists(st.tuples(st.integers(0, 99), st.integers(0, 5)), max_size=4), SEEDS, APART, SHARES)
def test_illegal_facts_are_judged_alike_in_every_interleaving(
    facts: list[Event], choices: list[tuple[int, int]], seed: int, apart: int, share: float
) -> None:
    written = spoil(facts, choices)
    assume(len(written) <= HOLD_LIMIT)
    plain, findings = fold_with_findings(written)
    assert {finding.kind for finding in findings} <= {"violation"}
    other, others = fold_with_findings(with_duplicates(interleave(written, seed, apart), seed, share))
    assert canonical(other) == canonical(plain)
    assert contents(other) == contents(plain)
    assert sorted((f.code, f.producer, f.first_seq) for f in others) == sorted(
        (f.code, f.producer, f.first_seq) for f in findings
    )


@heavier
@given(episodes(12), SEEDS, APART, st.integers(0, 3))
def test_foreign_facts_and_equivocations_never_touch_the_numbers(
    facts: list[Event], seed: int, apart: int, count: int
) -> None:
    assume(len(facts) <= HOLD_LIMIT)
    rng = random.Random(seed)
    delivered = interleave(facts, seed, apart)
    honest = fold(delivered)
    strangers = [rng.choice(facts) for _ in range(count)]
    bad: list[Event] = []
    for fact in strangers:
        if isinstance(fact, model.Request | model.EpisodeClaimed):
            continue  # asking twice and losing a claim are no violations
        kept_id = fact.producer_id
        bad.append(
            msgspec.structs.replace(fact, producer_id="zombie" if rng.random() < 0.5 else kept_id, occurred_at=7)
        )
    state, findings = fold_with_findings([*delivered, *bad])
    assert {finding.code for finding in findings} <= {"foreign", "equivocation"}
    assert len(findings) == len({(f.code, f.producer, f.first_seq, f.attempt) for f in findings}) <= len(bad)
    for number, attempt in honest.attempts.items():
        assert isinstance(attempt, AttemptState)
        after = attempt_of(state, number)
        assert (after.next_step, after.covered_to, after.state, after.end_state) == (
            attempt.next_step,
            attempt.covered_to,
            attempt.state,
            attempt.end_state,
        )
        assert msgspec.msgpack.encode(after.total_reward) == msgspec.msgpack.encode(attempt.total_reward)


@settings(max_examples=15, deadline=None)
@given(SEEDS, st.sampled_from(["success", "failed", "unnamed"]))
def test_long_histories_fold_alike_as_long_as_facts_are_at_most_h_apart(seed: int, end: str) -> None:
    rng = random.Random(seed)
    names = ["chunk", "step", "step", "step", "step", "step", "pause", "checkpoint"]
    operations = [(rng.choice(names), rng.randint(0, 9), rng.randint(0, 9)) for _ in range(600)]
    facts = act_out(Plan(operations, end, rng.random() < 0.5, 0, [rng.gauss(0, 1e6) for _ in range(7)])).facts
    plain, findings = fold_with_findings(facts)
    assert findings == []
    other, findings = fold_with_findings(with_duplicates(interleave(facts, seed, HOLD_LIMIT), seed, 0.2))
    assert findings == []
    assert canonical(other) == canonical(plain)
    assert contents(other) == contents(plain)
    assert not attempt_of(other).overflow


@lighter
@given(episodes(12), SEEDS, APART, st.lists(st.integers(0, 60), max_size=6))
def test_a_token_that_does_not_fit_changes_nothing(
    facts: list[Event], seed: int, apart: int, places: list[int]
) -> None:
    rng = random.Random(seed)
    state, plain = EpisodeState(EPISODE), EpisodeState(EPISODE)
    offset = 0
    for index, event in enumerate(interleave(facts, seed, apart)):
        apply(plain, event, position_at(index, event))
        apply(state, event, position_at(offset, event))
        offset += 1
        attempt = attempt_of(state, event.attempt)
        for _ in range(places.count(index)):
            record = snapshot_record(attempt)
            token = (rng.choice(["sim", "agent", "host"]), rng.randint(0, 5), rng.randint(0, 2))
            if token == (record.owes, record.owes_seq, attempt.flips):
                continue
            stale = timed_out(*token, attempt=event.attempt)
            findings = apply(state, stale, position_at(offset, stale))
            assert [finding.kind for finding in findings] == ["stale"]
            offset += 1
    assert canonical(state) == canonical(plain)
    assert contents(state) == contents(plain)


# --- loss -----------------------------------------------------------------------------------------------------------


def _known_to(facts: Sequence[Event], arrived: Sequence[Event], producer: str) -> int:
    """The highest sequence of a producer that can be known to exist: from a fact, a step's action or an end."""
    known = [fact.producer_seq for fact in arrived if producer == fact.PRODUCER]
    known += [getattr(fact, f"last_{producer}_seq", None) or -1 for fact in arrived]
    if producer == "agent":
        known += [fact.action_seq for fact in arrived if isinstance(fact, model.StepDone)]
    return max(known, default=-1)


@heavier
@given(episodes(14), SEEDS, APART, SHARES)
def test_every_lost_event_is_named_and_none_falsely(facts: list[Event], seed: int, apart: int, share: float) -> None:
    facts = [fact for fact in facts if fact.attempt == 1]
    assume(len(facts) <= HOLD_LIMIT)
    arrived, lost = without(facts, seed, share)
    ended = any(isinstance(fact, model.EpisodeEnded | model.EpisodeFailed | model.EpisodeAborted) for fact in arrived)
    assume(ended)
    state, findings = fold_with_findings([*interleave(arrived, seed, apart), sealed()])
    assert {finding.kind for finding in findings} <= {"lost"}
    attempt = attempt_of(state)
    assert attempt.sealed
    named = {
        (producer.name, seq) for producer in attempt.producers() for first, last in producer.lost
        for seq in range(first, last + 1)
    }  # fmt: skip
    truly_lost = {(fact.PRODUCER, fact.producer_seq) for fact in lost}
    assert named <= truly_lost
    known = {name: _known_to(facts, arrived, name) for name in ("sim", "agent", "host")}
    assert named >= {(name, seq) for name, seq in truly_lost if seq < known[name]}
    verdict = verdict_of(attempt)
    assert verdict is not None
    assert verdict.certificate.lost_count == len(named)
    assert verdict.certificate.violation_count == 0
    assert not attempt.overflow


@heavier
@given(episodes(14), SEEDS, SEEDS, APART, SHARES)
def test_what_is_missing_at_the_seal_does_not_depend_on_the_order(
    facts: list[Event], seed: int, other_seed: int, apart: int, share: float
) -> None:
    facts = [fact for fact in facts if fact.attempt == 1]
    assume(len(facts) <= HOLD_LIMIT)
    arrived, _ = without(facts, seed, share)
    first = fold([*arrived, sealed()])
    second = fold([*interleave(arrived, other_seed, apart), sealed()])
    assert canonical(first) == canonical(second)
    assert contents(first) == contents(second)


@lighter
@given(episodes(14), SEEDS, APART)
def test_late_facts_change_the_certificate_only(facts: list[Event], seed: int, apart: int) -> None:
    facts = [fact for fact in facts if fact.attempt == 1]
    assume(len(facts) <= HOLD_LIMIT)
    arrived, lost = without(facts, seed, 0.2)
    # That the simulator never spoke is said by the end alone: where that is lost, a fact that never was is given up.
    assume(any(fact.PRODUCER == "sim" for fact in facts) or all(fact.PRODUCER != "host" for fact in lost))
    state = fold(arrived)
    attempt = attempt_of(state) if state.attempts else None
    assume(attempt is not None and attempt.held_count)
    assert attempt is not None
    while attempt.held_count:
        token = snapshot_record(attempt)
        assert token.owes is not None
        assert token.owes_seq is not None
        fold([timed_out(token.owes, token.owes_seq, attempt.flips)], state, start=1000)
    before = attempt_of(fold([], state))
    numbers = (before.next_step, before.covered_to, before.steps, before.actions_applied, before.violation_count)
    reward = msgspec.msgpack.encode(before.total_reward)
    given_up = sum(producer.lost_count for producer in before.producers())
    late = [
        fact for fact in lost
        if any(p.name == fact.PRODUCER and fact.producer_seq < p.next_seq for p in before.producers())
    ]  # fmt: skip
    assert len(late) == given_up
    _, findings = fold_with_findings(with_duplicates(interleave(late, seed, apart), seed, 0.5), state, start=2000)
    after = attempt_of(state)
    assert {finding.kind for finding in findings} <= {"late"}
    assert sum(producer.lost_count for producer in after.producers()) == 0
    assert sum(producer.late_count for producer in after.producers()) == given_up
    assert (after.next_step, after.covered_to, after.steps, after.actions_applied, after.violation_count) == numbers
    assert msgspec.msgpack.encode(after.total_reward) == reward


@lighter
@given(SEEDS, st.integers(HOLD_LIMIT + 2, 3 * HOLD_LIMIT))
def test_beyond_h_the_certificate_says_overflow(seed: int, n_steps: int) -> None:
    story = Story().begin().run(n_steps)
    story.end()
    rng = random.Random(seed)
    missing = rng.choice([fact for fact in story.facts if isinstance(fact, model.StepDone) and fact.step == 0])
    state, findings = fold_with_findings([fact for fact in story.facts if fact is not missing])
    verdict = verdict_of(attempt_of(state))
    assert verdict is not None
    assert "overflow" in verdict.certificate.notes
    assert [(f.kind, f.first_seq, f.last_seq) for f in findings] == [("lost", 1, 1)]
    assert verdict.n_steps == n_steps


# --- snapshots, batches, purity -------------------------------------------------------------------------------------


@heavier
@given(episodes(), SEEDS, APART, SHARES, st.sets(st.integers(0, 80), max_size=6))
def test_a_snapshot_at_any_point_changes_nothing(
    facts: list[Event], seed: int, apart: int, share: float, cuts: set[int]
) -> None:
    delivered = with_duplicates(interleave(without(facts, seed, share / 4)[0], seed, apart), seed, share)
    check_snapshots(delivered, cuts)


@lighter
@given(episodes(), SEEDS, APART, SHARES)
def test_replay_and_history_fold_alike(facts: list[Event], seed: int, apart: int, share: float) -> None:
    delivered = with_duplicates(interleave(without(facts, seed, share / 4)[0], seed, apart), seed, share)
    history = [(event, position_at(offset, event)) for offset, event in enumerate(delivered)]
    folded = fold_history(history)
    steps = list(replay(history))
    assert everything(folded.state) == everything(fold(delivered)) if delivered else folded.state.attempts == {}
    assert [finding for step in steps for finding in step.findings] == folded.findings
    assert sum(step.fate == "duplicate" for step in steps) == sum(
        attempt.duplicate_count for attempt in folded.state.attempts.values() if isinstance(attempt, AttemptState)
    )
    last = {step.event.attempt: step for step in steps}
    if len(folded.state.attempts) == 1:  # else an end may let the retry that waits for it go on
        assert last[1].after == attempt_of(folded.state).phase


@lighter
@given(episodes(8), SEEDS, APART, SHARES)
def test_evolve_leaves_its_input_and_gives_what_apply_gives(
    facts: list[Event], seed: int, apart: int, share: float
) -> None:
    delivered = with_duplicates(interleave(without(facts, seed, share / 4)[0], seed, apart), seed, share)
    state: EpisodeState | None = None
    for offset, event in enumerate([*delivered, sealed()]):
        before = None if state is None else everything(state)
        after = evolve(state, event, position_at(offset, event))
        assert state is None or everything(state) == before
        state = after
    assert state is not None
    assert everything(state) == everything(fold([*delivered, sealed()]))


@heavier
@given(st.data())
def test_the_hot_path_only_skips_questions(data: st.DataObject) -> None:
    facts = data.draw(episodes())
    seed, apart, share = data.draw(SEEDS), data.draw(APART), data.draw(SHARES)
    delivered = with_duplicates(interleave(without(facts, seed, share / 4)[0], seed, apart), seed, share)
    if data.draw(st.booleans()):
        delivered += data.draw(st.lists(junk(), max_size=10))
    hot = fold(delivered)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_regular_step", lambda *_: False)
        patch.setattr(module, "_regular_action", lambda *_: False)
        assert everything(fold(delivered)) == everything(hot)


# --- totality, bounds -----------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(junk(), max_size=40), episodes(6), SEEDS)
def test_nothing_raises_whatever_the_events_say(garbage: list[Event], facts: list[Event], seed: int) -> None:
    mixed = [*facts, *garbage]
    random.Random(seed).shuffle(mixed)
    state = EpisodeState(EPISODE)
    for offset, event in enumerate(mixed):
        before = canonical(state)
        findings = apply(state, event, position_at(offset, event))
        if event.episode_id != EPISODE:
            assert canonical(state) == before
        for finding in findings:
            assert finding.detail
        _check_bounds(state)
    for attempt in state.attempts.values():
        assert isinstance(attempt, AttemptState)
        assert dump(load(dump(attempt))) == dump(attempt)
        snapshot_record(attempt)
        verdict = verdict_of(attempt)
        assert (verdict is not None) == (attempt.revision > 0)
        mark_published(attempt)


def _check_bounds(state: EpisodeState) -> None:
    for attempt in state.attempts.values():
        assert isinstance(attempt, AttemptState)
        assert len(attempt.violations) <= LIST_LIMIT
        assert len(attempt.actions) <= ACTION_LIMIT
        assert attempt.held_count == sum(len(producer.held) for producer in attempt.producers())
        for producer in attempt.producers():
            assert len(producer.held) <= HOLD_LIMIT
            assert all(seq >= producer.next_seq for seq in producer.held)
            assert max(len(producer.lost), len(producer.late)) <= LIST_LIMIT
            assert producer.lost_count >= 0
            listed = sum(last - first + 1 for first, last in producer.lost)
            assert listed <= producer.lost_count


@lighter
@given(st.lists(junk([model.StepDone, model.ActionSent, model.SimReady]), max_size=30))
def test_the_state_follows_from_the_counters(garbage: list[Event]) -> None:
    state = EpisodeState(EPISODE)
    for offset, event in enumerate(garbage):
        apply(state, event, position_at(offset, event))
        for attempt in state.attempts.values():
            assert isinstance(attempt, AttemptState)
            if attempt.phase == "STEP_COMPLETE":
                assert attempt.covered_to == attempt.next_step
                assert attempt.steps > 0
            elif attempt.phase == "AGENT_RUNNING" and attempt.steps:
                assert attempt.covered_to > attempt.next_step
