"""The fold, sentence by sentence of ``docs/state-machine.md``: counters, order, repeats, bounds, numbers."""

import math
from typing import Any

import msgspec
import pytest

from stepwell.engine.fold import apply, content_digest, evolve
from stepwell.engine.snapshot import canonical
from stepwell.engine.state import (
    ACTION_LIMIT,
    HOLD_LIMIT,
    LIST_LIMIT,
    AttemptState,
    EpisodeState,
)
from stepwell.engine.verdict import mark_published, pending_verdict, verdict_of
from stepwell.events import model
from tests.unit.engine.stories import (
    EPISODE,
    Story,
    attempt_of,
    codes,
    fold,
    fold_with_findings,
    metric,
    position_at,
    sealed,
    tensor,
    timed_out,
    verdict,
)

# --- states and counters ------------------------------------------------------------------------------------------


def test_states_follow_an_episode() -> None:
    story = Story()
    story.request()
    seen = []
    for write in (story.claim, story.ready, story.started, lambda: story.action(0, 2), lambda: story.step(0, 1)):
        write()
        seen.append(attempt_of(fold(story.facts)).phase)
    assert seen == ["INIT", "SIM_READY", "AGENT_RUNNING", "AGENT_RUNNING", "AGENT_RUNNING"]
    story.step(1, 1)
    assert attempt_of(fold(story.facts)).phase == "STEP_COMPLETE"
    story.action(2)
    assert attempt_of(fold(story.facts)).phase == "AGENT_RUNNING"
    story.step(2, 2)
    story.end()
    state = fold(story.facts)
    assert attempt_of(state).phase == "EPISODE_DONE"
    assert verdict(state).outcome == "success"
    assert verdict(state).n_steps == 3


def test_the_first_action_starts_an_agent_that_sends_no_start() -> None:
    story = Story().begin(started=False)
    story.action(0)
    assert attempt_of(fold(story.facts)).phase == "AGENT_RUNNING"


def test_a_second_start_is_illegal() -> None:
    story = Story().begin()
    story.started()
    state, findings = fold_with_findings(story.facts)
    assert codes(findings) == [("violation", "illegal")]
    assert attempt_of(state).phase == "AGENT_RUNNING"


def test_an_action_must_leave_no_hole() -> None:
    story = Story().begin()
    story.action(0, 4)
    story.action(5, 4)
    state, findings = fold_with_findings(story.facts)
    assert codes(findings) == [("violation", "hole")]
    assert attempt_of(state).covered_to == 4


def test_the_first_action_must_leave_no_hole_either() -> None:
    story = Story().begin(started=False)
    story.action(1)
    state, findings = fold_with_findings(story.facts)
    assert codes(findings) == [("violation", "hole")]
    assert attempt_of(state).phase == "SIM_READY"


@pytest.mark.parametrize(("first", "count"), [(-1, 1), (0, 0), (0, -3), (2**60, 1)])
def test_an_action_over_nonsense_steps_is_refused(first: int, count: int) -> None:
    story = Story().begin()
    story.action(first, count)
    assert codes(fold_with_findings(story.facts)[1]) == [("violation", "bad_value")]


def test_chunks_overlap_and_the_maximum_counts() -> None:
    story = Story().begin()
    story.action(0, 8)
    story.action(2, 3)
    state = attempt_of(fold(story.facts))
    assert (state.covered_to, state.next_step) == (8, 0)
    story.step(0, 1)
    story.step(1, 1)
    story.step(2, 2)
    story.step(3, 2)
    story.step(4, 1)
    story.end()
    state, findings = fold_with_findings(story.facts)
    assert findings == []
    assert metric(verdict(state), "actions_unexecuted") == 0


def test_an_action_whose_steps_have_passed_is_unexecuted_and_no_violation() -> None:
    story = Story().begin().run(3)
    story.action(1)
    story.end()
    state, findings = fold_with_findings(story.facts)
    assert findings == []
    assert attempt_of(state).state == attempt_of(fold(Story().begin().run(3).facts)).state
    assert metric(verdict(state), "actions_unexecuted") == 1


def test_an_action_beyond_the_end_is_unexecuted_and_no_violation() -> None:
    story = Story().begin().run(2)
    story.action(2, 16)
    story.end()
    state, findings = fold_with_findings(story.facts)
    assert findings == []
    assert metric(verdict(state), "actions_unexecuted") == 1
    assert verdict(state).certificate.status == "complete"


@pytest.mark.parametrize(
    ("step", "action_seq", "code"),
    [
        (1, 1, "not_next_step"),
        (0, 0, "not_covered"),  # fact 0 of the agent is its start
        (0, -1, "not_covered"),
        (-5, 1, "bad_value"),
        (None, 1, "bad_value"),
    ],
)
def test_a_step_must_be_the_next_and_name_the_action_that_covers_it(step: Any, action_seq: int, code: str) -> None:
    story = Story().begin()
    story.action(0)
    done = story.step(0, action_seq)
    story.facts[-1] = msgspec.structs.replace(done, step=step)
    state, findings = fold_with_findings(story.facts)
    assert codes(findings) == [("violation", code)]
    assert attempt_of(state).steps == 0
    assert attempt_of(state).total_reward == 0.0


def test_a_step_before_ready_is_illegal_at_once_and_waits_for_nothing() -> None:
    story = Story()
    story.request()
    story.claim()
    story.step(0, 5)
    story.ready()
    state, findings = fold_with_findings(story.facts)
    assert codes(findings) == [("violation", "illegal")]
    assert attempt_of(state).phase == "SIM_READY"


def test_a_step_in_sim_ready_is_refused() -> None:
    story = Story().begin(started=False)
    story.action(3)  # leaves a hole: refused, so the agent has not started
    story.step(0, 0)
    assert codes(fold_with_findings(story.facts)[1]) == [("violation", "hole"), ("violation", "not_covered")]


def test_ready_twice_is_illegal_and_nonsense_is_refused() -> None:
    story = Story().begin()
    story.ready()
    assert codes(fold_with_findings(story.facts)[1]) == [("violation", "illegal")]
    story = Story()
    story.request()
    story.ready(first_step=-1)
    assert codes(fold_with_findings(story.facts)[1]) == [("violation", "bad_value")]


def test_steps_count_from_the_checkpoint_that_was_restored() -> None:
    story = Story()
    story.request()
    story.claim()
    story.ready(first_step=500)
    story.started()
    story.run(3, first_step=500)
    story.end()
    state, findings = fold_with_findings(story.facts)
    assert findings == []
    assert verdict(state).n_steps == 3
    assert verdict(state).certificate.status == "complete"


# --- order --------------------------------------------------------------------------------------------------------


def test_a_step_waits_for_its_action() -> None:
    story = Story().begin().run(1)
    action = story.action(1)
    step = story.step(1, action.producer_seq)
    early = fold([*story.facts[:-2], step])
    assert attempt_of(early).held_count == 1
    assert attempt_of(early).next_step == 1
    late = fold([action], early, start=len(story.facts))
    assert attempt_of(late).next_step == 2
    assert canonical(late) == canonical(fold(story.facts))


def test_agent_facts_wait_for_ready() -> None:
    story = Story().begin()
    story.action(0)
    ready = story.facts[2]
    waiting = fold([fact for fact in story.facts if fact is not ready])
    assert attempt_of(waiting).phase == "INIT"
    assert attempt_of(waiting).held_count == 2
    assert attempt_of(fold([ready], waiting, start=10)).phase == "AGENT_RUNNING"


def test_an_end_waits_for_the_sequences_that_it_names() -> None:
    story = Story().begin().run(2)
    story.end()
    step, end = story.facts[-2:]
    waiting = fold([*story.facts[:-2], end])
    assert attempt_of(waiting).end is None
    assert attempt_of(waiting).end_stands_at is not None
    assert verdict_of(attempt_of(waiting)) is None
    done = fold([step], waiting, start=20)
    assert verdict(done).n_steps == 2
    assert verdict(done).certificate.status == "complete"


def test_an_end_that_names_no_sequences_waits_for_nothing_and_is_amended() -> None:
    story = Story().begin().run(2)
    story.end(named=False, n_steps=None)
    step, end = story.facts[-2:]
    state = fold([*story.facts[:-2], end])
    first = pending_verdict(attempt_of(state))
    assert first is not None
    assert (first.revision, first.n_steps, first.certificate.notes) == (1, 1, ("tail unknown",))
    mark_published(attempt_of(state))
    assert pending_verdict(attempt_of(state)) is None
    fold([step], state, start=20)
    second = pending_verdict(attempt_of(state))
    assert second is not None
    assert (second.revision, second.n_steps, second.total_reward) == (2, 2, 2.0)
    assert canonical(state) == canonical(fold(story.facts))


def test_an_end_with_zero_steps_is_legal_in_any_live_state() -> None:
    for count in range(5):
        story = Story()
        for write in (story.request, story.claim, story.ready, story.started)[:count]:
            write()
        if not count:
            story.request()
        story.fail("start_failed")
        state, findings = fold_with_findings(story.facts)
        assert findings == []
        assert verdict(state).outcome == "error"
        assert verdict(state).n_steps == 0
        assert verdict(state).labels == ("zero_steps",)
        assert verdict(state).certificate.status == "complete"


def test_an_agent_that_started_beside_a_simulator_that_never_did_is_no_violation() -> None:
    story = Story()
    story.request()
    story.claim()
    story.started()
    story.action(0)
    story.fail("start_failed")
    for facts in (story.facts, list(reversed(story.facts))):
        state, findings = fold_with_findings(facts)
        assert findings == []
        assert attempt_of(state).phase == "FAILED"
        assert verdict(state).certificate.status == "complete"
        assert metric(verdict(state), "actions_unexecuted") == 1
    assert canonical(fold(story.facts)) == canonical(fold(reversed(story.facts)))


def test_a_step_that_names_an_action_beyond_the_announced_last_waits_for_nothing() -> None:
    story = Story().begin().run(1)
    story.step(1, 9)
    story.end()
    state, findings = fold_with_findings(story.facts)
    assert codes(findings) == [("violation", "not_covered")]
    assert attempt_of(state).phase == "EPISODE_DONE"


# --- duplicates, equivocation, incarnations -----------------------------------------------------------------------


def test_duplicates_change_nothing_but_their_count() -> None:
    story = Story().begin().run(4)
    story.end()
    once = fold(story.facts)
    twice, findings = fold_with_findings(story.facts * 2)
    assert findings == []
    assert canonical(once) == canonical(twice)
    assert attempt_of(twice).duplicate_count == len(story.facts)
    assert attempt_of(twice).revision == 1


def test_a_held_fact_twice_is_a_duplicate_and_with_other_content_an_equivocation() -> None:
    story = Story().begin()
    story.action(0)
    story.step(0, 1)
    story.step(1, 2)
    last = story.facts[-1]
    other = msgspec.structs.replace(last, reward=9.0)
    state, findings = fold_with_findings([*story.facts, last, other])
    assert codes(findings) == [("violation", "equivocation")]
    assert attempt_of(state).duplicate_count == 1


def test_equivocation_leaves_the_first_in_the_log_standing() -> None:
    story = Story().begin().run(3)
    other = msgspec.structs.replace(story.facts[-1], reward=100.0)
    state, findings = fold_with_findings([*story.facts, other, other])
    assert codes(findings) == [("violation", "equivocation")]
    assert findings[0].offset == len(story.facts)
    assert attempt_of(state).total_reward == 3.0
    assert attempt_of(state).duplicate_count == 1  # the same violating record again


def test_an_older_repeat_counts_as_a_duplicate() -> None:
    story = Story().begin().run(HOLD_LIMIT + 5)
    first_step = next(fact for fact in story.facts if isinstance(fact, model.StepDone))
    state, findings = fold_with_findings([*story.facts, msgspec.structs.replace(first_step, reward=5.0)])
    assert findings == []
    assert attempt_of(state).duplicate_count == 1


def test_a_foreign_incarnation_is_refused() -> None:
    story = Story().begin().run(1)
    foreign = msgspec.structs.replace(story.facts[-1], producer_id="sim-2", producer_seq=2, step=1)
    state, findings = fold_with_findings([*story.facts, foreign])
    assert codes(findings) == [("violation", "foreign")]
    assert attempt_of(state).next_step == 1


def test_the_first_claim_wins_and_a_lost_claim_is_no_violation() -> None:
    story = Story()
    story.request()
    won = story.claim()
    lost = msgspec.structs.replace(won, producer_id="host-2", host="lab-2")
    story.ready()
    zombie = msgspec.structs.replace(Story().begin().fail(), producer_id="host-2")
    state, findings = fold_with_findings([*story.facts, lost, zombie])
    assert codes(findings) == [("violation", "foreign")]
    assert attempt_of(state).lost_claims == 1
    assert attempt_of(state).host.producer_id == "host-1"
    assert attempt_of(state).claimed


def test_a_request_may_come_from_another_process_and_asking_again_does_nothing() -> None:
    story = Story()
    asked = msgspec.structs.replace(story.request(), producer_id="cli-1")
    story.facts[0] = asked
    again = msgspec.structs.replace(asked, producer_id="cli-2", occurred_at=5, event_id=bytes(16))
    story.claim()
    state, findings = fold_with_findings([story.facts[0], again, story.facts[1], again])
    assert findings == []
    assert attempt_of(state).host.producer_id == "host-1"
    held, findings = fold_with_findings([msgspec.structs.replace(asked, attempt=2)] * 2)
    assert findings == [] or codes(findings) == [("violation", "wrong_request")]
    assert attempt_of(held, 2).duplicate_count == 1


@pytest.mark.parametrize("seq", [-1, 2**60])
def test_a_nonsense_sequence_is_refused_and_binds_nobody(seq: int) -> None:
    fact = msgspec.structs.replace(Story().ready(), producer_seq=seq)
    state, findings = fold_with_findings([fact])
    assert codes(findings) == [("violation", "bad_sequence")]
    assert attempt_of(state).sim.producer_id is None


def test_host_facts_stand_in_their_places() -> None:
    story = Story()
    story.request()
    story.pause()
    story.claim()
    asked_again = msgspec.structs.replace(story.facts[0], producer_seq=3)
    state, findings = fold_with_findings([*story.facts, asked_again])
    assert codes(findings) == [("violation", "misplaced_claim"), ("violation", "misplaced_request")]
    for write in ("claim", "pause", "intervene", "fail"):
        alone = Story()
        getattr(alone, write)()
        state, findings = fold_with_findings(alone.facts)
        assert codes(findings) == [("violation", "misplaced_claim" if write == "claim" else "no_request")]
        assert attempt_of(state).phase == "INIT"


def test_a_request_of_the_wrong_kind_is_refused() -> None:
    plain = msgspec.structs.replace(Story().request(), attempt=2)
    assert codes(fold_with_findings([plain])[1]) == [("violation", "wrong_request")]
    retry = msgspec.structs.replace(Story(attempt=2).request(), attempt=1)
    assert codes(fold_with_findings([retry])[1]) == [("violation", "wrong_request")]


# --- bounds, numbers, labels --------------------------------------------------------------------------------------


def test_lists_are_bounded_and_counts_go_on() -> None:
    story = Story().begin().run(2)
    base = story.facts[-1]
    crowd = [
        msgspec.structs.replace(base, producer_id=f"sim-{number}", producer_seq=number)
        for number in range(2, LIST_LIMIT + 20)
    ]
    state, findings = fold_with_findings([*story.facts, *crowd])
    assert len(findings) == attempt_of(state).violation_count == len(crowd)
    assert len(attempt_of(state).violations) == LIST_LIMIT


def test_lost_ranges_are_bounded_and_never_named_falsely() -> None:
    story = Story().begin().run(3 * LIST_LIMIT)
    state = EpisodeState(EPISODE)
    offset = 0
    for fact in story.facts:
        if isinstance(fact, model.StepDone) and fact.step is not None and fact.step % 2:
            owed_seq = fact.producer_seq
            continue
        for event in [fact]:
            apply(state, event, position_at(offset, event))
            offset += 1
        if isinstance(fact, model.StepDone) and fact.step:
            token = timed_out("sim", owed_seq)
            apply(state, token, position_at(offset, token))
            offset += 1
    sim = attempt_of(state).sim
    assert len(sim.lost) == LIST_LIMIT
    assert sim.lost_count == 3 * LIST_LIMIT // 2 - 1
    assert sim.unlisted == sim.lost_count - LIST_LIMIT
    assert attempt_of(state).violation_count == 0


def test_a_late_fact_that_splits_a_full_list_keeps_the_count() -> None:
    state = EpisodeState(EPISODE)
    story = Story().begin()
    fold(story.facts, state)
    sim = attempt_of(state).sim
    sim.next_seq = 1000
    sim.lost = [[10 * number, 10 * number + 4] for number in range(1, LIST_LIMIT + 1)]
    sim.lost_count = 5 * LIST_LIMIT
    late = msgspec.structs.replace(Story().begin().run(1).facts[-1], producer_seq=11)
    fold([late], state, start=10)
    assert len(sim.lost) == LIST_LIMIT
    assert sim.lost[0] == [12, 14]
    assert (sim.lost_count, sim.late_count, sim.unlisted) == (5 * LIST_LIMIT - 1, 1, 1)
    sim.late = [[2 * number, 2 * number] for number in range(100, 100 + LIST_LIMIT)]
    later = msgspec.structs.replace(late, producer_seq=13)
    fold([later], state, start=11)
    assert len(sim.late) == LIST_LIMIT
    assert sim.late_count == 2


def test_actions_are_forgotten_only_far_ahead_and_steps_are_then_believed() -> None:
    story = Story().begin()
    story.action(0, 2)
    for number in range(ACTION_LIMIT + 10):
        story.action(number, 4)
    story.step(0, 1)
    state, findings = fold_with_findings(story.facts)
    assert findings == []
    assert len(attempt_of(state).actions) <= ACTION_LIMIT
    assert attempt_of(state).next_step == 1


def test_numbers_come_from_finite_values_and_the_reward_sum_from_all() -> None:
    story = Story().begin()
    for step, reward in enumerate([0.1, math.nan, 0.2, math.inf]):
        action = story.action(step, values=(math.inf,) if step == 3 else (0.0,), inference_s=math.nan)
        story.step(
            step, action.producer_seq, reward=reward, values=(math.nan,) if step == 1 else (1.0,), step_wall_s=None
        )
    story.end(success=None, reason="truncated")
    found = verdict(fold(story.facts))
    assert math.isnan(found.total_reward)
    assert metric(found, "reward_max") == 0.2
    assert found.certificate.nonfinite_count == 3
    assert found.labels == ("nonfinite_action", "nonfinite_observation", "nonfinite_reward")
    assert "inference_s_mean" not in {entry.name for entry in found.metrics}
    assert (found.success_once, found.success_at_end) == (False, False)


def test_a_nonfinite_first_observation_is_counted() -> None:
    story = Story()
    story.request()
    story.claim()
    story.ready(observation=(math.nan,), sim_time=None)
    story.run(1, sim_time=None)
    story.end(success=True)
    found = verdict(fold(story.facts))
    assert found.labels == ("nonfinite_observation",)
    assert metric(found, "sim_duration_s") == 0.0125


def test_success_once_and_at_end_are_told_apart() -> None:
    story = Story().begin()
    for step, success in enumerate([False, True, False]):
        action = story.action(step)
        story.step(step, action.producer_seq, success=success)
    story.end(success=False, reason="max_steps")
    found = verdict(fold(story.facts))
    assert (found.success_once, found.success_at_end, found.outcome) == (True, False, "failure")


def test_provenance_names_its_sources() -> None:
    story = Story().begin().run(1)
    story.end()
    origin = verdict(fold(story.facts)).provenance
    assert (origin.simulator, origin.seed, origin.first_offset, origin.last_offset) == ("metaworld", 7, 0, 6)
    assert origin.schema_fingerprints == ("4057b0", "5157a0", "a6e270")


# --- evolve, digests ----------------------------------------------------------------------------------------------


def test_evolve_gives_what_apply_gives_and_leaves_its_input() -> None:
    story = Story().begin().run(2)
    story.fail()
    second = Story(attempt=2).begin().run(1)
    second.end()
    one, two = story.facts, second.facts
    pure: EpisodeState | None = None
    for offset, event in enumerate([*two, *one, sealed()]):
        before = None if pure is None else msgspec.msgpack.encode(pure)
        after = evolve(pure, event, position_at(offset, event))
        assert (None if pure is None else msgspec.msgpack.encode(pure)) == before
        pure = after
    assert pure is not None
    assert msgspec.msgpack.encode(pure) == msgspec.msgpack.encode(fold([*two, *one, sealed()]))


def test_the_content_digest_ignores_the_frame() -> None:
    assert content_digest(b"\0\0\0\0\1body") == content_digest(b"\0\0\0\0\2body") != content_digest(b"\0\0\0\0\1bodY")


def test_a_step_without_tensors_or_with_integers_is_finite() -> None:
    story = Story().begin()
    odd = model.Tensor(name="x", dtype="int32", shape=(1,), data=b"\xff\xff\xff\x7f")
    single = model.Tensor(name="y", dtype="float32", shape=(1,), data=b"\x00\x00\x80\x7f")
    half = model.Tensor(name="z", dtype="float16", shape=(1,), data=b"\x00\x7c")
    huge = tensor([1.7e308])
    for step, observation in enumerate([(), (odd,), (huge,), (single,), (half,)]):
        action = story.action(step)
        done = story.step(step, action.producer_seq)
        story.facts[-1] = msgspec.structs.replace(done, observation=observation)
    assert attempt_of(fold(story.facts)).nonfinite_observations == 2


def test_attempt_state_is_what_apply_keeps() -> None:
    assert isinstance(fold(Story().begin().facts).attempts[1], AttemptState)
