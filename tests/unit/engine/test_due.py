"""Who owes the next event, and what the engine has to say about silence."""

import pytest

from stepwell.engine.due import DAY_S, due, is_complete, next_due_us
from stepwell.engine.ordering import owed
from stepwell.engine.snapshot import snapshot_record
from stepwell.engine.state import PRODUCERS, AttemptState
from stepwell.events import model
from tests.unit.engine.stories import Story, attempt_of, fold, sealed, timed_out

STALL_S, TIMEOUT_S, GRACE_S = 30.0, 300.0, 600.0


def decide(attempt: AttemptState, now_us: int) -> list[model.Event]:
    return due(attempt, now_us, STALL_S, TIMEOUT_S, GRACE_S)


def who(story: Story) -> tuple[str, int] | None:
    found = owed(attempt_of(fold(story.facts)))
    return None if found is None else (PRODUCERS[found.producer], found.seq)


def test_who_owes_follows_an_episode() -> None:
    story = Story()
    story.request()
    seen = [who(story)]
    for write in (story.claim, story.ready, story.started, lambda: story.action(0), lambda: story.step(0, 1)):
        write()
        seen.append(who(story))
    story.pause()
    seen.append(who(story))
    story.resume()
    story.end()
    seen.append(who(story))
    assert seen == [
        ("host", 1), ("sim", 0), ("agent", 0), ("agent", 1), ("sim", 1), ("agent", 2), ("host", 3), None,
    ]  # fmt: skip


def test_what_waits_in_the_log_tells_who_owes() -> None:
    story = Story().begin()
    story.action(0)
    early = story.step(0, 1)
    story.facts.pop(-2)
    assert story.facts[-1] is early
    assert who(story) == ("agent", 1)


def test_an_idle_attempt_is_stalled_then_timed_out_by_the_logs_clock() -> None:
    attempt = attempt_of(fold(Story().begin().run(1).facts))
    since = attempt.owed_since
    assert next_due_us(attempt, STALL_S, TIMEOUT_S, GRACE_S) == since + 30_000_000
    assert decide(attempt, since + 29_999_999) == []
    (stall,) = decide(attempt, since + 30_000_000)
    assert isinstance(stall, model.EpisodeStalled)
    assert (stall.owed, stall.owed_seq, stall.flips, stall.idle_s) == ("agent", 2, 0, 30.0)
    (end,) = decide(attempt, since + 300_000_000)
    assert isinstance(end, model.EpisodeTimedOut)
    assert end.occurred_at == since + 300_000_000


def test_deciding_again_later_gives_the_same_fact() -> None:
    attempt = attempt_of(fold(Story().begin().run(1).facts))
    now = attempt.owed_since + 31_000_000
    assert decide(attempt, now) == decide(attempt, now + 5_000_000)
    assert decide(attempt, now)[0].event_id != decide(attempt, now + 300_000_000)[0].event_id


def test_a_stalled_attempt_is_not_stalled_twice_and_its_time_out_still_fits() -> None:
    story = Story().begin().run(1)
    state = fold(story.facts)
    since = attempt_of(state).owed_since
    (stall,) = decide(attempt_of(state), since + 30_000_000)
    fold([stall], state, start=50)
    assert attempt_of(state).stalled
    assert decide(attempt_of(state), since + 31_000_000) == []
    (end,) = decide(attempt_of(state), since + 300_000_000)
    fold([end], state, start=51)
    assert attempt_of(state).phase == "FAILED"


def test_an_agent_that_keeps_planning_does_not_hide_a_simulator_that_hangs() -> None:
    story = Story().begin()
    story.action(0, 4)
    since = attempt_of(fold(story.facts)).owed_since
    story.action(1, 4)
    story.action(2, 4)
    assert attempt_of(fold(story.facts)).owed_since == since


def test_a_queued_attempt_waits_for_ever() -> None:
    story = Story()
    story.request()
    attempt = attempt_of(fold(story.facts))
    assert decide(attempt, 10**18) == []
    assert next_due_us(attempt, STALL_S, TIMEOUT_S, GRACE_S) is None


def test_a_pause_is_no_stall_and_times_out_after_a_day() -> None:
    story = Story().begin()
    story.pause()
    attempt = attempt_of(fold(story.facts))
    assert decide(attempt, attempt.owed_since + 3_600_000_000) == []
    (end,) = decide(attempt, attempt.owed_since + round(DAY_S * 1e6))
    assert isinstance(end, model.EpisodeTimedOut)
    assert (end.owed, end.flips) == ("host", 1)


def test_a_gap_under_a_pause_is_not_excused_by_it() -> None:
    story = Story().begin().run(1)
    story.pause()
    facts = [fact for fact in story.facts if not isinstance(fact, model.ActionSent)]
    attempt = attempt_of(fold(facts))
    (stall,) = decide(attempt, attempt.owed_since + 30_000_000)
    assert isinstance(stall, model.EpisodeStalled)
    assert (stall.owed, stall.owed_seq) == ("agent", 1)


def test_a_complete_attempt_is_sealed_at_once() -> None:
    story = Story().begin().run(1)
    story.end()
    state = fold(story.facts)
    attempt = attempt_of(state)
    assert is_complete(attempt)
    (seal,) = decide(attempt, attempt.changed_at)
    assert isinstance(seal, model.EpisodeSealed)
    assert seal.reason == "complete"
    fold([seal], state, start=50)
    assert attempt.sealed
    assert decide(attempt, 10**18) == []


@pytest.mark.parametrize("named", [True, False])
def test_an_incomplete_attempt_is_sealed_after_grace(named: bool) -> None:
    story = Story().begin().run(2)
    story.end(named=named)
    facts = [fact for fact in story.facts if not (isinstance(fact, model.StepDone) and fact.step == 0)]
    attempt = attempt_of(fold(facts))
    assert not is_complete(attempt)
    stands = attempt.end_stands_at
    assert stands is not None
    assert not any(isinstance(fact, model.EpisodeSealed) for fact in decide(attempt, stands + 599_999_999))
    (seal,) = decide(attempt, stands + 600_000_000)
    assert isinstance(seal, model.EpisodeSealed)
    assert seal.reason == "grace"
    assert seal.occurred_at == stands + 600_000_000


def test_a_time_out_that_ended_the_attempt_leaves_its_tail_open_until_grace() -> None:
    state = fold([*Story().begin().run(1).facts, timed_out("agent", 2)])
    attempt = attempt_of(state)
    assert not is_complete(attempt)
    assert next_due_us(attempt, STALL_S, TIMEOUT_S, GRACE_S) == attempt.last_event_at + 600_000_000


def test_the_snapshot_record_tells_who_owes() -> None:
    story = Story().begin().run(1)
    record = snapshot_record(attempt_of(fold(story.facts)))
    assert (record.phase, record.owes, record.owes_seq, record.kind) == ("STEP_COMPLETE", "agent", 2, "snapshot")
    story.pause()
    story.abort()
    record = snapshot_record(attempt_of(fold([*story.facts, sealed()])))
    assert (record.phase, record.owes, record.kind, record.outcome) == ("ABORTED", None, "sealed", "aborted")
    assert (record.state, record.paused) == (b"", False)
