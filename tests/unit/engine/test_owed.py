"""Who owes the next event, and since when."""

from stepwell.engine.ordering import is_queued, owed
from stepwell.engine.snapshot import snapshot_record
from stepwell.engine.state import PRODUCERS
from stepwell.events import model
from tests.unit.engine.stories import Story, attempt_of, fold, sealed, stalled


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


def test_an_agent_that_keeps_planning_does_not_hide_a_simulator_that_hangs() -> None:
    story = Story().begin()
    story.action(0, 4)
    since = attempt_of(fold(story.facts)).owed_since
    story.action(1, 4)
    story.action(2, 4)
    assert attempt_of(fold(story.facts)).owed_since == since


def test_a_queued_attempt_waits_for_a_host() -> None:
    story = Story()
    story.request()
    assert is_queued(attempt_of(fold(story.facts)))
    assert who(story) == ("host", 1)
    story.claim()
    assert not is_queued(attempt_of(fold(story.facts)))


def test_a_gap_under_a_pause_is_owed_by_who_has_to_close_it() -> None:
    story = Story().begin().run(1)
    story.pause()
    facts = [fact for fact in story.facts if not isinstance(fact, model.ActionSent)]
    found = owed(attempt_of(fold(facts)))
    assert found is not None
    assert (PRODUCERS[found.producer], found.seq, found.gap_to) == ("agent", 1, 1)


def test_owed_since_is_the_logs_time_of_the_record_that_made_it_owed() -> None:
    story = Story().begin().run(2)
    attempt = attempt_of(fold(story.facts))
    assert attempt.owed_since == attempt.last_event_at
    again = attempt_of(fold([*story.facts, *story.facts]))  # duplicates owe nobody anything
    assert again.owed_since == attempt.owed_since
    assert again.last_event_at > attempt.last_event_at


def test_a_token_that_changes_ends_a_stall() -> None:
    story = Story().begin().run(1)
    state = fold([*story.facts, stalled("agent", 2)])
    assert attempt_of(state).stalled
    pause = story.pause()
    fold([pause], state, start=60)
    assert not attempt_of(state).stalled
    assert attempt_of(state).owed_since == attempt_of(state).last_event_at


def test_the_snapshot_record_tells_who_owes() -> None:
    story = Story().begin().run(1)
    record = snapshot_record(attempt_of(fold(story.facts)))
    assert (record.phase, record.owes, record.owes_seq, record.kind) == ("STEP_COMPLETE", "agent", 2, "snapshot")
    story.pause()
    story.abort()
    record = snapshot_record(attempt_of(fold([*story.facts, sealed()])))
    assert (record.phase, record.owes, record.kind, record.outcome) == ("ABORTED", None, "sealed", "aborted")
    assert (record.state, record.paused) == (b"", False)
