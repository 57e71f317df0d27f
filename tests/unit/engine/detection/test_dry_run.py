"""What other rules would have found in what was recorded."""

import pytest
from hypothesis import given, settings

from stepwell.engine.detection import in_a_row
from stepwell.engine.detection.dry_run import compare, dry_run
from stepwell.engine.detection.policies import Place
from stepwell.engine.ruleset import BUILT_IN
from stepwell.events.model import PatternDetected, RetrainWithdrawn
from tests.unit.engine.detection.stories import SECOND, START, Story, activated, answer, failed, rules, the_request, won
from tests.unit.engine.detection.test_properties import HISTORIES, SETS, events_of

ROW = {"kind": "in_a_row", "name": "row", "length": 3, "cooldown_episodes": 0}


def row(length: int, **more: object) -> dict[str, object]:
    return ROW | {"length": length} | more


def test_the_recorded_rules_give_what_was_published() -> None:
    story = Story()
    story.tell(*[failed(f"f{i}") for i in range(5)], activated(rules(ROW)), *[failed(f"g{i}") for i in range(3)])
    ledger = dry_run([story.history])
    published = [event for event in story.published if isinstance(event, PatternDetected)]
    assert [trigger.pattern for trigger in ledger.triggers] == published
    assert [(trigger.offset, trigger.status) for trigger in ledger.triggers] == [(4, "open"), (8, "open")]
    assert ledger.triggers[0].opened_at == START + 5 * SECOND


def test_triggers_appear_vanish_move_and_stay() -> None:
    story = Story(None)
    story.tell(activated(rules(row(3), row(2, name="pair", counts={"failure_types": ["agent_timeout"]}))))
    story.tell(*[failed(f"a{i}") for i in range(4)], won("s"))
    story.tell(*[failed(f"b{i}", "agent_timeout") for i in range(2)], won("t"))
    story.tell(*[failed(f"c{i}", "agent_exception") for i in range(3)])
    candidate = rules(row(4, counts={"failure_types": ["task_not_completed", "agent_exception"]}), row(2, name="new"))
    found = compare(dry_run([story.history]), dry_run([story.history], candidate))
    assert [trigger.kind[::2] for trigger in found.vanish] == [("pair", "agent_timeout"), ("row", "agent_exception")]
    assert [trigger.kind[::2] for trigger in found.appear] == [
        ("new", "task_not_completed"), ("new", "agent_timeout"), ("new", "agent_exception"),
    ]  # fmt: skip
    (moved,) = found.move
    assert (moved.recorded.offset, moved.candidate.offset) == (3, 4)
    assert found.stay == ()
    same = compare(dry_run([story.history]), dry_run([story.history], rules(row(3), name="other")))
    assert [trigger.kind[::2] for trigger in same.stay] == [("row", "task_not_completed"), ("row", "agent_exception")]
    assert [trigger.kind[0] for trigger in same.vanish] == ["pair"]
    assert (same.appear, same.move) == ((), ())


def test_from_a_time_on_only_what_comes_later_is_judged_anew() -> None:
    """What was open stays open, and the new rules see nothing from before."""
    story = Story(rules(ROW))
    story.tell(activated(rules(ROW)), *[failed(f"a{i}") for i in range(3)], won("s"))
    story.tell(*[failed(f"b{i}", "agent_timeout") for i in range(3)], activated(BUILT_IN), won("t"))
    since = story.history[6][1].timestamp  # at b1
    found = compare(dry_run([story.history]), dry_run([story.history], rules(row(2)), since_us=since))
    assert [trigger.kind[2] for trigger in found.stay] == ["task_not_completed"]
    (moved,) = found.move
    assert [item.episode_id for item in moved.candidate.pattern.evidence] == ["b1", "b2"]
    late = compare(dry_run([story.history]), dry_run([story.history], rules(row(2)), since_us=story.now + 1))
    assert (late.appear, late.vanish, late.move) == ((), (), ())
    assert len(late.stay) == 2


def test_a_raised_version_keeps_its_openings() -> None:
    """Other ids, the same openings: nothing moves."""
    story = Story(None)
    story.tell(activated(rules(ROW)), *[failed(f"a{i}") for i in range(3)])
    found = compare(dry_run([story.history]), dry_run([story.history], rules(ROW | {"version": 2})))
    assert len(found.stay) == 1
    assert found.stay[0].pattern.rule_version == 2


def test_statuses_at_the_end() -> None:
    story = Story(None)
    story.tell(activated(rules(ROW)))
    request = the_request(story.tell(*[failed(f"a{i}") for i in range(3)]))
    story.tell(answer(request.trigger_id), won("s"), *[failed(f"b{i}") for i in range(3)])
    out = story.tell(won("b1", revision=1))
    assert isinstance(out[0], RetrainWithdrawn)
    assert [trigger.status for trigger in dry_run([story.history]).triggers] == ["done", "withdrawn"]


def test_partitions_are_folded_apart_and_listed_by_time() -> None:
    one, two = Story(None), Story(None)
    two.now -= SECOND // 2
    for story, policy in ((one, "a"), (two, "b")):
        story.tell(activated(rules(ROW)), *[failed(f"{policy}{i}", policy=policy) for i in range(3)])
    ledger = dry_run([one.history, two.history])
    assert [trigger.pattern.policy for trigger in ledger.triggers] == ["b", "a"]


def test_a_rule_that_raises_is_told_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def recorded(*_: object) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(in_a_row.InARowJudge, "recorded", recorded)
    histories = [[(failed(f"f{i}"), Place(0, i, START + i)) for i in range(8)]]
    rate = {"kind": "rate", "name": "rate", "limit": 0.35, "level": 0.01, "minimum": 3}
    ledger = dry_run(histories, rules(ROW, rate))
    assert ledger.parked == (("row", "rule row raised ZeroDivisionError: a defect"),)
    assert [trigger.kind[0] for trigger in ledger.triggers] == ["rate"]


@settings(max_examples=60, deadline=None)
@given(HISTORIES)
def test_the_same_rules_change_nothing(items: list[object]) -> None:
    """Whatever was recorded: against itself every trigger stays."""
    history = [(event, place) for event, place in events_of(items) if event.TYPE != "rules::activated"]
    recorded = dry_run([history], SETS[0])
    found = compare(recorded, dry_run([history], SETS[0]))
    assert (found.appear, found.vanish, found.move) == ((), (), ())
    assert found.stay == recorded.triggers
