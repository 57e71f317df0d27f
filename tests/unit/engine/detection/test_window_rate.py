"""Shares over a window of episodes, in the order of requests."""

import pytest

from stepwell.engine.detection.state import EVIDENCE_MAX
from stepwell.engine.ruleset import WINDOW_MAX
from tests.unit.engine.detection.stories import (
    OPENED,
    Story,
    answer,
    broken,
    expected,
    failed,
    kinds,
    rules,
    the_request,
    won,
)

PROMISE = {"baseline_rate": 0.1, "average_run_length": 1000.0}
RULE = {
    "kind": "window_rate", "name": "often", "window": 10, "minimum": 5, "limit": 0.5, "promise": PROMISE,
    "cooldown_episodes": 3,
}  # fmt: skip


def test_fires_above_the_limit_and_not_at_it() -> None:
    """5 of 10 are at the limit, 6 of 10 beyond it."""
    story = Story(rules(RULE))
    assert story.tell(*[won(f"s{i}") for i in range(5)], *[failed(f"f{i}") for i in range(5)]) == []
    out = story.tell(failed("f5"))
    assert kinds(out) == OPENED
    request = the_request(out)
    assert [item.episode_id for item in request.evidence] == [f"f{i}" for i in range(6)]
    assert request.detail == "6 of 10 episodes failed; limit 0.5"
    assert request.rule_key == "policy=expert version=1 checkpoint=none"


@pytest.mark.parametrize(("limit", "episodes"), [(0.1, 10), (0.2, 5), (0.3, 10), (0.6, 5), (0.7, 10)])
def test_a_share_equal_to_a_limit_written_as_a_decimal_is_not_above_it(limit: float, episodes: int) -> None:
    """0.1 * 3 and the like are not exact; a share of exactly the limit must not fire all the same."""
    rule = RULE | {"limit": limit, "minimum": episodes, "window": episodes}
    at = round(limit * episodes)
    story = Story(rules(rule))
    assert story.tell(*[failed(f"f{i}") for i in range(at)], *[won(f"s{i}") for i in range(episodes - at)]) == []
    story = Story(rules(rule))
    over = [failed(f"f{i}") for i in range(at + 1)] + [won(f"s{i}") for i in range(episodes - at - 1)]
    assert kinds(story.tell(*over)) == OPENED


def test_waits_for_its_minimum() -> None:
    """4 of 4 say nothing yet; the fifth judges, even where it is a success."""
    story = Story(rules(RULE))
    assert story.tell(*[failed(f"f{i}") for i in range(4)]) == []
    assert kinds(story.tell(won("s"))) == OPENED


def test_true_negative_over_a_long_stream() -> None:
    """A policy at its limit, evenly spread, never fires."""
    story = Story(rules(RULE))
    assert story.tell(*[failed(f"e{i}") if i % 2 else won(f"e{i}") for i in range(400)]) == []


def test_faults_of_others_neither_count_nor_fill_the_window() -> None:
    """Infrastructure faults between them: still N-1, then exactly N."""
    story = Story(rules(RULE))
    events = [event for i in range(4) for event in (failed(f"f{i}"), broken(f"b{i}"))]
    assert story.tell(*events, *[broken(f"c{i}") for i in range(30)]) == []
    assert kinds(story.tell(failed("f4"))) == OPENED


def test_slower_predecessors_are_waited_for() -> None:
    """The quick ones fail; in the order of requests a success stands between them, so the window never is over."""
    asked = [expected(f"e{i}") for i in range(10)]
    results = {f"e{i}": failed(f"e{i}") if i % 2 else won(f"e{i}") for i in range(10)}
    quick = [results[f"e{i}"] for i in range(1, 10, 2)] + [results[f"e{i}"] for i in range(0, 10, 2)]
    story = Story(rules(RULE))
    assert story.tell(*asked, *quick) == []
    assert kinds(Story(rules(RULE)).tell(*quick)) == OPENED  # in the order of finishing it would have fired


def test_overdue_predecessors_are_passed_and_admitted_on_arrival() -> None:
    """After ``wait_s`` those that are there are judged without the slow one; it counts when it comes."""
    story = Story(rules(RULE, wait_s=60.0))
    assert story.tell(*[expected(f"e{i}") for i in range(6)], *[failed(f"e{i}") for i in range(1, 6)]) == []
    assert story.tick(30.0) == []
    assert kinds(story.tick(60.0)) == OPENED
    assert story.tell(failed("e0")) == []
    (trigger,) = story.state.ledger.triggers.values()
    assert trigger.merged == 1
    stream = next(iter(story.state.rules["often"].streams.values()))
    assert [rank for rank, _, _ in stream.window] == [0, 1, 2, 3, 4, 5]


def test_the_policy_s_own_records_tell_the_time_as_well() -> None:
    """No tick is needed where something comes anyway."""
    story = Story(rules(RULE, wait_s=60.0))
    story.tell(*[expected(f"e{i}") for i in range(6)], *[failed(f"e{i}") for i in range(1, 6)])
    assert kinds(story.tell(won("other"), pause_s=61.0)) == OPENED


def test_an_amendment_takes_the_old_one_s_place_and_withdraws() -> None:
    """What remains at the opening is at the limit, so the trigger has lost its evidence."""
    story = Story(rules(RULE))
    opened = the_request(story.tell(*[failed(f"f{i}") for i in range(3)], *[won(f"s{i}") for i in range(2)]))
    assert len(opened.evidence) == 3
    out = story.tell(won("f1", revision=1))
    assert kinds(out) == ["withdrawn"]
    assert "2 of 5 episodes failed" in out[0].reason  # type: ignore[attr-defined]
    assert story.tell(won("f1", revision=1), failed("f1", revision=0)) == []  # a repeat, and an old revision
    out = story.tell(failed("f1", revision=2))
    assert kinds(out) == OPENED
    assert the_request(out).trigger_id != opened.trigger_id


def test_an_amendment_that_leaves_enough_changes_nothing() -> None:
    story = Story(rules(RULE))
    story.tell(*[failed(f"f{i}") for i in range(5)])
    assert story.tell(won("f1", revision=1)) == []
    (trigger,) = story.state.ledger.standing()
    assert trigger.lost == ["f1"]
    assert trigger.sample is not None
    assert (trigger.sample.failures, trigger.sample.episodes) == (4, 5)


def test_an_amendment_of_what_left_the_window_counts_for_the_trigger_alone() -> None:
    """The window has moved on; the trigger's own sample has not."""
    story = Story(rules(RULE))
    story.tell(*[failed(f"f{i}") for i in range(3)], *[won(f"s{i}") for i in range(2)])
    story.tell(*[won(f"w{i}") for i in range(20)])
    stream = next(iter(story.state.rules["often"].streams.values()))
    before = (stream.tally.failures, stream.tally.episodes)
    assert kinds(story.tell(won("f0", revision=1))) == ["withdrawn"]
    assert (stream.tally.failures, stream.tally.episodes) == before == (0, 10)


def test_beyond_the_detector_s_window_lost_evidence_is_still_noticed() -> None:
    """512 verdicts later only the named failures are known; that is enough to withdraw."""
    story = Story(rules(RULE))
    story.tell(*[failed(f"f{i}") for i in range(3)], *[won(f"s{i}") for i in range(2)])
    story.tell(*[won(f"w{i}") for i in range(WINDOW_MAX)])
    assert story.tell(failed("f0", revision=1)) == []
    assert kinds(story.tell(won("f0", revision=2))) == ["withdrawn"]
    assert story.tell(won("f0", revision=2), won("s0", revision=1)) == []


def test_labels_and_types_choose_what_counts() -> None:
    """Other failures are episodes that did not fail in that way."""
    rule = RULE | {"counts": {"labels": ["frozen", "shaky"]}}
    story = Story(rules(rule))
    assert story.tell(*[failed(f"f{i}", labels=("other",)) for i in range(10)]) == []
    assert kinds(story.tell(*[failed(f"g{i}", labels=("a", "frozen")) for i in range(6)])) == OPENED
    rule = RULE | {"counts": {"failure_types": ["agent_timeout"]}}
    story = Story(rules(rule))
    assert story.tell(*[failed(f"f{i}") for i in range(10)]) == []
    out = story.tell(*[failed(f"g{i}", "agent_timeout") for i in range(6)])
    assert (kinds(out), the_request(out).failure_type) == (OPENED, "agent_timeout")


def test_keys_are_judged_apart() -> None:
    """Per scene: a scene that fails is found among others, and named."""
    rule = RULE | {"per": ["scene", "perturbation"]}
    story = Story(rules(rule))
    events = [event for i in range(5) for event in (won(f"a{i}"), won(f"b{i}"), failed(f"c{i}", scene="dark"))]
    out = story.tell(*events)
    assert kinds(out) == OPENED
    assert the_request(out).rule_key == "policy=expert version=1 checkpoint=none scene=dark perturbation=none"


def test_an_amendment_may_move_an_episode_to_another_key() -> None:
    """It leaves the one window and joins the other, at its place."""
    rule = RULE | {"per": ["scene"]}
    story = Story(rules(rule))
    assert story.tell(*[failed(f"f{i}", scene="dark") for i in range(4)], failed("x", scene="lit")) == []
    out = story.tell(failed("x", scene="dark", revision=1))
    assert kinds(out) == OPENED
    streams = {key.parts: stream for key, stream in story.state.rules["often"].streams.items()}
    assert streams[("scene", "lit"),].tally.episodes == 0
    assert kinds(story.tell(failed("x", scene="lit", revision=2))) == ["withdrawn"]


def test_after_an_answer_the_window_starts_anew_behind_the_cool_down() -> None:
    """Three episodes are aftermath; then it takes the minimum again."""
    story = Story(rules(RULE))
    request = the_request(story.tell(*[failed(f"f{i}") for i in range(5)]))
    assert story.tell(answer(request.trigger_id)) == []
    assert story.tell(*[failed(f"g{i}") for i in range(3 + 4)]) == []
    out = story.tell(failed("g7"))
    assert kinds(out) == OPENED
    assert [item.episode_id for item in the_request(out).evidence] == [f"g{i}" for i in range(3, 8)]
    assert story.tell(won("g0", revision=1), won("f0", revision=1)) == []  # closed: nothing rests on these any more


def test_evidence_is_bounded() -> None:
    """A wide window names its last failures."""
    story = Story(rules(RULE | {"window": 200, "minimum": 200}))
    request = the_request(story.tell(*[failed(f"f{i}") for i in range(200)]))
    assert len(request.evidence) == EVIDENCE_MAX
    assert request.evidence[-1].episode_id == "f199"
    assert request.detail == "200 of 200 episodes failed; limit 0.5"
