"""The fold, sentence by sentence of ``docs/state-machine.md``: ends, losses, silence, attempts, the seal."""

from typing import Any

import msgspec
import pytest

from stepwell.engine.fold import adopt, apply
from stepwell.engine.snapshot import canonical, seal_marker
from stepwell.engine.state import (
    HOLD_LIMIT,
    EpisodeState,
    SealedAttempt,
)
from stepwell.events import model
from stepwell.events.model import SequenceRange
from tests.unit.engine.stories import (
    EPISODE,
    Story,
    attempt_of,
    codes,
    fold,
    fold_with_findings,
    lost_of,
    position_at,
    sealed,
    stalled,
    timed_out,
    verdict,
)

# --- ends ---------------------------------------------------------------------------------------------------------


def test_the_first_end_stands() -> None:
    story = Story().begin().run(1)
    story.end()
    story.fail()
    state, findings = fold_with_findings(story.facts)
    assert codes(findings) == [("violation", "second_end")]
    assert verdict(state).outcome == "success"
    swapped, findings = fold_with_findings([*story.facts[:-2], story.facts[-1], story.facts[-2]])
    assert codes(findings) == [("violation", "second_end")]
    assert canonical(state) == canonical(swapped)


def test_facts_beyond_the_last_sequence_are_violations() -> None:
    story = Story().begin().run(2)
    story.end()
    story.pause()
    story.run(1, first_step=2)
    state, findings = fold_with_findings(story.facts)
    assert codes(findings) == [("violation", "beyond_end")] * 3
    assert attempt_of(state).total_reward == 2.0
    assert verdict(state).certificate.violation_count == 3
    assert verdict(state).revision == 4


def test_held_facts_beyond_the_end_are_violations_too() -> None:
    story = Story().begin().run(1)
    story.end()
    story.action(1)
    beyond = msgspec.structs.replace(story.step(1, 2), producer_seq=4)
    facts = [*story.facts[:5], beyond, story.facts[5], story.facts[6]]
    state, findings = fold_with_findings(facts)
    assert ("violation", "beyond_end") in codes(findings)
    assert attempt_of(state).held_count == 0


def test_facts_beyond_the_end_that_came_before_it_are_counted_and_named() -> None:
    story = Story().begin().run(2)
    end = story.end()
    story.facts[-1] = msgspec.structs.replace(end, last_sim_seq=1, last_agent_seq=1, n_steps=1)
    state, findings = fold_with_findings(story.facts)
    assert [(finding.code, finding.producer, finding.first_seq) for finding in findings] == [
        ("beyond_end", "sim", 2),
        ("beyond_end", "agent", 2),
    ]
    assert verdict(state).certificate.violation_count == 2


@pytest.mark.parametrize(("name", "value"), [("n_steps", -1), ("last_sim_seq", -2), ("last_agent_seq", 2**60)])
def test_an_end_with_nonsense_numbers_is_refused(name: str, value: int) -> None:
    story = Story().begin().run(1)
    story.facts[-1] = msgspec.structs.replace(story.end(), **{name: value})
    state, findings = fold_with_findings(story.facts)
    assert codes(findings) == [("violation", "bad_value")]
    assert attempt_of(state).end_stands_at is None


def test_another_step_count_than_announced_is_noted() -> None:
    story = Story().begin().run(2)
    story.end(n_steps=5)
    found = verdict(fold(story.facts))
    assert found.n_steps == 5
    assert found.certificate.notes == ("step count differs",)
    assert found.certificate.status == "incomplete"


@pytest.mark.parametrize(
    ("success", "reason", "outcome", "failure_type", "fault"),
    [
        (True, "success", "success", None, None),
        (False, "max_steps", "failure", "task_not_completed", "policy"),
        (None, "truncated", "failure", "task_not_completed", "policy"),
        (False, "terminated", "failure", "terminated_early", "policy"),
    ],
)
def test_outcomes_of_ends(success: Any, reason: str, outcome: str, failure_type: Any, fault: Any) -> None:
    story = Story().begin().run(1)
    story.end(success=success, reason=reason)
    found = verdict(fold(story.facts))
    assert (found.outcome, found.failure_type, found.fault) == (outcome, failure_type, fault)


@pytest.mark.parametrize(
    ("failure_type", "outcome", "fault"),
    [
        ("agent_exited", "failure", "policy"),
        ("sim_exception", "error", "simulator"),
        ("agent_killed", "error", "infrastructure"),
        ("never heard of", "error", "infrastructure"),
    ],
)
def test_outcomes_of_failures(failure_type: str, outcome: str, fault: str) -> None:
    story = Story().begin().run(1)
    story.fail(failure_type)
    found = verdict(fold(story.facts))
    assert (found.outcome, found.failure_type, found.fault) == (outcome, failure_type, fault)
    assert found.message == f"{failure_type}: told by the host"


def test_an_abort_is_the_operators() -> None:
    story = Story().begin().run(1)
    story.abort()
    state = fold(story.facts)
    assert attempt_of(state).phase == "ABORTED"
    assert (verdict(state).outcome, verdict(state).fault) == ("aborted", "operator")


# --- pauses, checkpoints, interventions ---------------------------------------------------------------------------


def test_paused_is_a_flag_and_facts_apply_beneath_it() -> None:
    story = Story().begin()
    story.pause()
    story.run(2)
    state = attempt_of(fold(story.facts))
    assert (state.paused, state.phase, state.next_step, state.flips) == (True, "STEP_COMPLETE", 2, 1)
    story.resume()
    story.end()
    state, findings = fold_with_findings(story.facts)
    assert findings == []
    assert attempt_of(state).flips == 2
    assert verdict(state).outcome == "success"


def test_an_end_applies_beneath_a_pause() -> None:
    story = Story().begin()
    story.pause()
    story.abort()
    assert attempt_of(fold(story.facts)).phase == "ABORTED"


def test_pausing_twice_and_resuming_what_runs_are_illegal() -> None:
    story = Story().begin()
    story.resume()
    story.pause()
    story.pause()
    state, findings = fold_with_findings(story.facts)
    assert codes(findings) == [("violation", "illegal")] * 2
    assert attempt_of(state).flips == 1


def test_checkpoints_and_interventions_move_no_state() -> None:
    story = Story().begin().run(1)
    story.checkpoint(1)
    story.intervene()
    story.end()
    state = fold(story.facts)
    assert attempt_of(state).last_checkpoint == (1, "s3://b/1")
    assert attempt_of(state).checkpoints == 1
    assert not verdict(state).autonomous


# --- loss ---------------------------------------------------------------------------------------------------------


def test_the_seal_names_what_never_came_and_lets_go_on_what_waited() -> None:
    story = Story().begin().run(4)
    story.end()
    missing = next(fact for fact in story.facts if isinstance(fact, model.StepDone) and fact.step == 1)
    rest = [fact for fact in story.facts if fact is not missing]
    state, findings = fold_with_findings([*rest, sealed()])
    assert codes(findings) == [("lost", "seal")]
    found = verdict(state)
    assert lost_of(found) == [("sim", 2, 2)]
    assert (found.n_steps, found.total_reward, found.certificate.notes) == (4, 3.0, ("lost",))
    assert attempt_of(state).sealed


def test_a_lost_action_does_not_make_its_steps_violations() -> None:
    story = Story().begin()
    story.action(0, 4)
    story.action(2, 6)
    story.action(4, 2)  # plans shorter than the one that gets lost
    story.action(8, 2)  # no hole in truth, since the lost one covered steps 2 to 7
    for step in range(10):
        story.step(step, 1 if step < 2 else 2 if step < 8 else 4)
    story.end()
    lost = next(fact for fact in story.facts if isinstance(fact, model.ActionSent) and fact.producer_seq == 2)
    state, findings = fold_with_findings([*(fact for fact in story.facts if fact is not lost), sealed()])
    assert codes(findings) == [("lost", "seal")]
    assert lost_of(verdict(state)) == [("agent", 2, 2)]
    assert verdict(state).n_steps == 10
    assert verdict(state).certificate.violation_count == 0


def test_a_lost_ready_lets_everything_else_count() -> None:
    story = Story()
    story.request()
    story.claim()
    story.ready(first_step=40)
    story.started()
    story.run(3, first_step=40)
    story.end()
    facts = [fact for fact in story.facts if not isinstance(fact, model.SimReady)]
    state, findings = fold_with_findings([*facts, sealed()])
    assert codes(findings) == [("lost", "seal")]
    assert (verdict(state).n_steps, verdict(state).total_reward) == (3, 3.0)
    assert verdict(state).certificate.violation_count == 0


def test_a_lost_first_action_counts_as_the_agents_start() -> None:
    story = Story().begin(started=False).run(2)
    story.end()
    facts = [fact for fact in story.facts if not (isinstance(fact, model.ActionSent) and fact.producer_seq == 0)]
    state, findings = fold_with_findings([*facts, sealed()])
    assert codes(findings) == [("lost", "seal")]
    assert attempt_of(state).steps == 2


def test_agent_facts_lost_before_ready_count_once_it_is_ready() -> None:
    story = Story()
    story.request()
    story.claim()
    story.ready()
    agent_first = [story.action(step) for step in range(HOLD_LIMIT + 3)]
    story.step(0, 0)
    ready, step = story.facts[2], story.facts[-1]
    state, findings = fold_with_findings([*story.facts[:2], *agent_first[1:], ready, step])
    assert ("lost", "overflow") in codes(findings)
    assert attempt_of(state).steps == 1
    assert attempt_of(state).phase == "AGENT_RUNNING"


def test_a_lost_host_fact_makes_the_next_pause_or_resume_legal() -> None:
    story = Story().begin()
    paused = story.pause()
    story.resume()
    story.pause()
    story.abort()
    facts = [fact for fact in story.facts if fact is not paused]
    state, findings = fold_with_findings([*facts, sealed()])
    assert codes(findings) == [("lost", "seal")]
    assert verdict(state).certificate.violation_count == 0


def test_a_late_fact_changes_the_certificate_only() -> None:
    story = Story().begin().run(3)
    story.end()
    missing = next(fact for fact in story.facts if isinstance(fact, model.StepDone) and fact.step == 0)
    rest = [fact for fact in story.facts if fact is not missing]
    state = fold([*rest, timed_out("sim", 1)])
    before = verdict(state)
    assert lost_of(before) == [("sim", 1, 1)]
    _, findings = fold_with_findings([missing, missing], state, start=50)
    after = verdict(state)
    assert codes(findings) == [("late", "late")]
    assert after.certificate.lost == ()
    assert after.certificate.late == (SequenceRange(producer="sim", first=1, last=1),)
    assert (after.total_reward, after.n_steps, after.revision) == (before.total_reward, before.n_steps, 2)
    assert after.certificate.notes == ("late",)
    assert attempt_of(state).duplicate_count == 1
    other = msgspec.structs.replace(missing, reward=77.0)
    assert codes(fold_with_findings([other], state, start=60)[1]) == [("violation", "equivocation")]


def test_overflow_gives_up_the_whole_gap_and_says_so() -> None:
    story = Story().begin().run(HOLD_LIMIT + 10)
    story.end()
    dropped = [fact for fact in story.facts if isinstance(fact, model.StepDone) and fact.step in {3, 4, 5}]
    state, findings = fold_with_findings([fact for fact in story.facts if fact not in dropped])
    assert codes(findings) == [("lost", "overflow")]
    found = verdict(state)
    assert lost_of(found) == [("sim", 4, 6)]
    assert "overflow" in found.certificate.notes
    assert found.n_steps == HOLD_LIMIT + 10


def test_overflow_gives_up_the_gap_of_another_producer() -> None:
    story = Story().begin()
    chunk = story.action(0, 200)
    for step in range(HOLD_LIMIT + 10):
        story.step(step, chunk.producer_seq)
    state, findings = fold_with_findings([fact for fact in story.facts if fact is not chunk])
    assert [(f.code, f.producer, f.first_seq, f.last_seq) for f in findings] == [("overflow", "agent", 1, 1)]
    assert attempt_of(state).steps == HOLD_LIMIT + 10


def test_a_gap_is_cut_at_the_first_fact_that_is_there() -> None:
    story = Story().begin()
    story.action(0, 1)
    story.action(1, 1)
    story.action(2, 1)
    story.step(0, 3)  # names the last, which does not cover it
    facts = [fact for fact in story.facts if fact.producer_seq != 1 or fact.PRODUCER != "agent"]
    state, findings = fold_with_findings([*facts, timed_out("agent", 1)])
    assert [(f.kind, f.first_seq, f.last_seq) for f in findings if f.kind == "lost"] == [("lost", 1, 1)]
    assert attempt_of(state).agent.next_seq == 4


# --- silence ------------------------------------------------------------------------------------------------------


def test_stalled_holds_until_the_owed_fact_comes() -> None:
    story = Story().begin()
    action = story.action(0)
    state, findings = fold_with_findings([*story.facts, stalled("sim", 1), stalled("sim", 1)])
    assert findings == []
    assert attempt_of(state).stalled
    fold([Story.step(story, 0, action.producer_seq)], state, start=20)
    assert not attempt_of(state).stalled


def test_a_stale_token_is_ignored_and_counted() -> None:
    story = Story().begin().run(1)
    for token in (timed_out("sim", 1), timed_out("agent", 1), timed_out("agent", 2, flips=2), stalled("host", 2)):
        state, findings = fold_with_findings([*story.facts, token])
        assert codes(findings) == [("stale", "stale")]
        assert attempt_of(state).stale_count == 1
        assert attempt_of(state).end is None


def test_a_time_out_for_which_nothing_waits_fails_the_attempt_and_names_who_owed() -> None:
    story = Story().begin().run(1)
    state, findings = fold_with_findings([*story.facts, timed_out("agent", 2)])
    assert findings == []
    found = verdict(state)
    assert attempt_of(state).phase == "FAILED"
    assert (found.outcome, found.failure_type, found.fault) == ("error", "silent_timeout", "infrastructure")
    assert found.message.startswith("agent owed its fact 2")
    assert found.certificate.notes == ("tail unknown",)
    again, findings = fold_with_findings([timed_out("agent", 2)], state, start=30)
    assert codes(findings) == [("stale", "stale")]
    assert verdict(again).revision == 1


def test_a_paused_episode_whose_host_vanished_fails_by_the_host() -> None:
    story = Story().begin()
    story.pause()
    state = fold([*story.facts, timed_out("host", 3, flips=1)])
    assert verdict(state).failure_type == "host_lost"


def test_what_comes_after_a_time_out_amends_the_numbers_but_not_the_end() -> None:
    story = Story().begin().run(1)
    late = Story().begin().run(2)
    late.end()
    state, findings = fold_with_findings([*story.facts, timed_out("agent", 2), *late.facts[6:]])
    assert codes(findings) == [("violation", "second_end")]
    assert verdict(state).n_steps == 2
    assert verdict(state).failure_type == "silent_timeout"


def test_a_time_out_gives_up_what_something_waits_for_and_goes_on() -> None:
    story = Story().begin().run(3)
    missing = next(fact for fact in story.facts if isinstance(fact, model.StepDone) and fact.step == 1)
    rest = [fact for fact in story.facts if fact is not missing]
    state, findings = fold_with_findings([*rest, timed_out("sim", 2)])
    assert codes(findings) == [("lost", "timed_out")]
    assert attempt_of(state).end is None
    assert attempt_of(state).next_step == 3


def test_an_end_behind_a_missing_host_fact_is_no_reason_to_fail_the_attempt() -> None:
    story = Story().begin().run(1)
    paused = story.pause()
    story.resume()
    story.end()
    rest = [fact for fact in story.facts if fact is not paused]
    state = fold(rest)
    assert attempt_of(state).end is None
    after, findings = fold_with_findings([timed_out("host", 2)], state, start=20)
    assert codes(findings) == [("lost", "timed_out")]
    assert verdict(after).outcome == "success"


# --- attempts -----------------------------------------------------------------------------------------------------


def retry_after(first: Story) -> tuple[list[model.Event], list[model.Event]]:
    second = Story(attempt=2).begin().run(1)
    second.end()
    return first.facts, second.facts


def test_a_retry_is_accepted_once_the_end_stands_and_is_no_success() -> None:
    story = Story().begin().run(1)
    story.fail("sim_killed")
    one, two = retry_after(story)
    state, findings = fold_with_findings([*one, *two])
    assert findings == []
    assert verdict(state, 2).outcome == "success"
    assert verdict(state, 1).outcome == "error"
    early, findings = fold_with_findings([*two, *one])
    assert findings == []
    assert canonical(early) == canonical(state)


def test_a_retry_goes_on_when_the_end_is_only_held() -> None:
    story = Story().begin().run(1)
    story.fail("sim_killed")
    missing = story.facts[-2]
    one, two = retry_after(story)
    state = fold([fact for fact in [*one, *two] if fact is not missing])
    assert attempt_of(state, 1).end is None
    assert verdict(state, 2).outcome == "success"


def test_a_retry_after_a_success_is_refused() -> None:
    story = Story().begin().run(1)
    story.end()
    one, two = retry_after(story)
    for order in ([*one, *two], [*two, *one]):
        state, findings = fold_with_findings(order)
        assert codes(findings) == [("violation", "retry_after_success")]
        assert verdict(state, 2).certificate.notes == ("no request",)


def test_a_retry_whose_predecessor_never_ended_is_given_up_in_the_end() -> None:
    _, two = retry_after(Story())
    state, findings = fold_with_findings([*two, timed_out("host", 0, attempt=2)])
    assert codes(findings) == [("violation", "retry_without_end")]
    assert verdict(state, 2).policy == "expert"  # as the agent reports it


def test_a_retry_knows_a_predecessor_that_was_put_away() -> None:
    _, two = retry_after(Story())
    for outcome, expected in (("error", []), ("success", [("violation", "retry_after_success")])):
        state = EpisodeState(EPISODE)
        adopt(state, SealedAttempt(EPISODE, 1, outcome, 1, 40))
        assert codes(fold_with_findings(two, state, start=50)[1]) == expected
        late = fold(two)
        findings = adopt(late, SealedAttempt(EPISODE, 1, outcome, 1, 40))
        assert codes(list(findings)) == expected
        assert canonical(fold([], late)) == canonical(state)


def test_attempts_are_folds_of_their_own() -> None:
    story = Story().begin().run(2)
    story.fail()
    one, two = retry_after(story)
    state = fold([*one, sealed(), *two])
    assert attempt_of(state, 2).steps == 1
    assert attempt_of(state, 1).sealed
    assert not attempt_of(state, 2).sealed


# --- the seal -----------------------------------------------------------------------------------------------------


def test_facts_after_the_seal_are_found_and_change_nothing() -> None:
    story = Story().begin().run(1)
    story.end()
    state = fold([*story.facts, sealed()])
    before = canonical(state)
    marked = EpisodeState(EPISODE, {1: seal_marker(attempt_of(state))})
    for subject in (state, marked):
        _, findings = fold_with_findings([story.facts[-2], *story.facts[:1], sealed(), stalled("sim", 3)], subject, 90)
        assert codes(findings) == [("after_seal", "after_seal"), ("stale", "stale"), ("stale", "stale")]
    assert canonical(state) == before


def test_a_seal_without_an_end_is_stale() -> None:
    story = Story().begin().run(1)
    state, findings = fold_with_findings([*story.facts, sealed()])
    assert codes(findings) == [("stale", "stale")]
    assert not attempt_of(state).sealed


def test_a_seal_over_an_end_that_turns_out_illegal_is_stale() -> None:
    story = Story().begin().run(1)
    end = story.end()
    story.facts[-1] = msgspec.structs.replace(end, producer_seq=0)
    state, findings = fold_with_findings([*story.facts[2:], sealed()])
    assert codes(findings) == [("violation", "no_request"), ("stale", "stale")]
    assert not attempt_of(state).sealed


def test_an_engine_fact_about_an_unknown_attempt_is_stale() -> None:
    state, findings = fold_with_findings([sealed()])
    assert codes(findings) == [("stale", "stale")]
    assert state.attempts == {}


# --- events that belong elsewhere ---------------------------------------------------------------------------------


def test_events_that_belong_elsewhere_touch_nothing() -> None:
    story = Story().begin().run(1)
    story.end()
    state = fold(story.facts)
    other = msgspec.structs.replace(story.facts[0], episode_id="ep-other")
    zeroth = msgspec.structs.replace(story.facts[0], attempt=0)
    found = verdict(state)
    for fact, code in ((other, "wrong_episode"), (zeroth, "bad_attempt"), (found, "unexpected_type")):
        before = canonical(state)
        assert codes(list(apply(state, fact, position_at(90, fact)))) == [("violation", code)]
        assert canonical(state) == before
    assert codes(list(apply(EpisodeState(EPISODE), found, position_at(0, found)))) == [("violation", "unexpected_type")]
