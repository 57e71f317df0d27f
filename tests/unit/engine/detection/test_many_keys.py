"""Rules that tell many keys apart: nothing is forgotten in silence, and the state stays within its bounds."""

from collections import Counter
from typing import Any

import pytest

from stepwell.engine.detection import fold as fold_module
from stepwell.engine.detection import in_a_row, in_order
from stepwell.engine.detection import state as state_module
from stepwell.engine.detection.bearing import Key
from stepwell.engine.detection.ledger import Ledger
from stepwell.engine.detection.partition import pack
from stepwell.engine.detection.policies import Place, Policies
from stepwell.engine.detection.state import PolicyState, dump, load, named_max
from stepwell.engine.detection.turn import Parked
from stepwell.engine.ruleset import WINDOW_MAX
from stepwell.events.model import Event, PatternDetected
from tests.unit.engine.detection.stories import OPENED, START, Story, activated, answer, failed, kinds, rules, won

ROW = {"kind": "in_a_row", "name": "row", "length": 5, "per": ["scene"]}
RATE = {"kind": "rate", "name": "often", "limit": 0.1, "level": 0.01, "minimum": 5, "per": ["scene"]}
WINDOW = {
    "kind": "window_rate", "name": "window", "window": 20, "minimum": 5, "limit": 0.5, "per": ["scene"],
    "promise": {"baseline_rate": 0.1, "average_run_length": 1.0},
}  # fmt: skip
SHIFT = {"kind": "shift", "name": "worse", "level": 0.01, "minimum": 5, "per": ["scene"]}


def rounds(scenes: int, count: int, start: int = 0) -> list[Event]:
    """Every scene fails once a round."""
    return [failed(f"e{k}-{s}", scene=f"s{s}") for k in range(start, start + count) for s in range(scenes)]


def told(made: Policies, events: list[Event]) -> list[Any]:
    return [item for i, event in enumerate(events) for item in made.take(event, Place(0, i, START + i))]


# --- rows -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scenes", [100, 130, 300])
def test_every_scene_s_pattern_is_found_however_many_scenes_there_are(scenes: int) -> None:
    story = Story(rules(ROW, RATE, WINDOW))
    found = [event for event in story.tell(*rounds(scenes, 6)) if isinstance(event, PatternDetected)]
    assert Counter(event.rule for event in found) == {"row": scenes, "often": scenes, "window": scenes}
    assert len({(event.rule, event.rule_key) for event in found}) == 3 * scenes


def test_the_longest_row_is_found_among_several_scenes() -> None:
    story = Story(rules(ROW | {"length": 128, "promise": {"baseline_rate": 0.1, "average_run_length": 1.0}}))
    assert story.tell(*rounds(5, 127)) == []
    assert kinds(story.tell(*rounds(5, 1, start=127))) == OPENED * 5


def test_only_the_rows_that_go_on_are_kept() -> None:
    """A success ends the row, and a trigger takes it in: then its episodes go, known by their revisions."""
    story = Story(rules(ROW))
    story.tell(*rounds(1, 3), *[won(f"w{i}", scene=f"w{i}") for i in range(WINDOW_MAX)])
    assert list(story.state.kept) == ["e0-0", "e1-0", "e2-0"]
    other = load(dump(story.state))
    story.tell(won("x", scene="s0"))
    assert story.state.kept == {}
    assert {"e0-0", "e1-0", "e2-0"} <= set(story.state.forgotten)
    story.policies.states["expert"] = other
    (pattern, _) = story.tell(*rounds(1, 2, start=3))
    assert isinstance(pattern, PatternDetected)
    assert [item.episode_id for item in pattern.evidence] == [f"e{k}-0" for k in range(5)]
    assert other.kept == {}
    assert kinds(story.tell(won("e1-0", scene="s0", revision=1))) == ["withdrawn"]


def test_what_is_kept_is_amended_in_place() -> None:
    story = Story(rules(ROW))
    story.tell(*rounds(1, 4), *[won(f"w{i}", scene=f"w{i}") for i in range(WINDOW_MAX + 5)])
    assert story.tell(won("e1-0", scene="s0", revision=1)) == []
    assert list(story.state.kept) == ["e2-0", "e3-0"]
    assert story.tell(failed("e2-0", scene="s0", revision=1), failed("e2-0", scene="s0", revision=1)) == []
    assert story.state.ignored == 1
    assert story.tell(*rounds(1, 2, start=4)) == []
    assert kinds(story.tell(*rounds(1, 1, start=6))) == OPENED


def test_an_activation_lets_go_what_the_new_rules_do_not_need() -> None:
    story = Story(rules(ROW))
    story.tell(*rounds(1, 3), *[won(f"w{i}", scene=f"w{i}") for i in range(WINDOW_MAX)])
    assert len(story.state.kept) == 3
    story.tell(activated(rules(ROW, RATE)))
    assert len(story.state.kept) == 3
    story.tell(activated(rules(RATE)))
    assert story.state.kept == {}


def test_a_row_is_the_same_whether_it_stayed_in_the_window_or_not() -> None:
    """Interleaved with so many others that its episodes leave the window, or with none: the same triggers."""
    alone, crowded = Story(rules(ROW)), Story(rules(ROW))
    pattern = "ffsfffffffsfffff"
    for i, letter in enumerate(pattern):
        event = (failed if letter == "f" else won)(f"e{i}", scene="s")
        alone.tell(event)
        crowded.tell(event, *[won(f"w{i}-{k}", scene=f"w{k}") for k in range(200)])
    found = [[event for event in story.published if isinstance(event, PatternDetected)] for story in (alone, crowded)]
    named = [[[item.episode_id for item in event.evidence] for event in events] for events in found]
    assert named == [[[f"e{i}" for i in range(3, 8)]]] * 2


# --- bounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [ROW, RATE, WINDOW, SHIFT], ids=["in_a_row", "rate", "window_rate", "shift"])
def test_one_key_too_many_parks_the_rule_and_says_so(rule: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The others go on; activating again starts it anew."""
    monkeypatch.setattr(in_a_row, "KEYS_MAX", 10)
    monkeypatch.setattr(in_order, "KEYS_MAX", 10)
    overall = {"kind": "in_a_row", "name": "overall", "length": 11}
    made = Policies(rules(rule, overall).canonical())
    assert told(made, rounds(10, 1)) == []
    found = told_from(made, [failed("more", scene="one more")], 10)
    (parked,) = [item for item in found if isinstance(item, Parked)]
    assert (parked.rule, parked.detail) == (rule["name"], "more than 10 keys")
    assert kinds([item for item in found if isinstance(item, Event)]) == OPENED
    state = made.states["expert"]
    assert (state.parked, state.rules[parked.rule].streams, state.rules[parked.rule].rows) == (
        {parked.rule: 10},
        {},
        {},
    )
    assert told_from(made, [failed("another", scene="another")], 11) == []
    made.take(activated(rules(rule, overall)), Place(0, 12, START))
    assert state.parked == {}
    assert told_from(made, [won("another", scene="x", revision=2)], 13) == []


def told_from(made: Policies, events: list[Event], offset: int) -> list[Any]:
    return [item for i, event in enumerate(events, offset) for item in made.take(event, Place(0, i, START + i))]


def test_too_many_episodes_of_rows_park_the_rule_that_keeps_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold_module, "KEPT_MAX", 100)
    short = {"kind": "in_a_row", "name": "short", "length": 3}
    made = Policies(rules(ROW, short).canonical())
    found = told(made, [won("first", scene="x"), *rounds(WINDOW_MAX // 2, 3)])
    parked = [item for item in found if isinstance(item, Parked)]
    assert parked == [("row", "more than 100 episodes of rows that go on")]
    state = made.states["expert"]
    assert (state.kept, len(state.window)) == ({}, WINDOW_MAX)


def test_the_bounds_are_these() -> None:
    assert (state_module.KEYS_MAX, state_module.KEPT_MAX) == (4096, 32_768)
    assert [named_max(keys) for keys in (0, 1, 512, 1024, 4096)] == [64, 64, 64, 32, 8]


def test_with_many_keys_state_and_snapshot_stay_within_what_the_decision_says() -> None:
    """1,000 scenes with rows that go on, under three rules: the figures of decision 36."""
    story = Story(rules(ROW, RATE | {"minimum": 500}, WINDOW | {"limit": 0.9, "minimum": 20}))
    story.tell(*rounds(1000, 4))
    state: PolicyState = story.state
    assert len(state.kept) + len(state.window) == 4000
    raw = dump(state)
    assert dump(load(raw)) == raw
    assert len(raw) < 4_000_000
    assert len(pack(state)) < 300_000


# --- many standing triggers -------------------------------------------------------------------------------------------


def test_standing_triggers_of_other_keys_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by the next record, nor by an amendment: that reads the rows of its own key, once."""
    story = Story(rules(ROW | {"length": 2, "expires_s": 1e6}))
    story.tell(*rounds(100, 2), won("w", scene="w"))
    assert len(story.state.ledger.standing()) == 100
    looked, read = Counter[str](), Counter[str]()
    live, runs = Ledger.live, in_a_row.InARowJudge._runs

    def counted_live(self: Ledger) -> Any:
        looked["live"] += 1
        return live(self)

    def counted_runs(self: Any, turn: Any, own: Any, key: Key) -> Any:
        read[key.text("")] += 1
        return runs(self, turn, own, key)

    monkeypatch.setattr(Ledger, "live", counted_live)
    monkeypatch.setattr(in_a_row.InARowJudge, "_runs", counted_runs)
    assert story.tell(*[won(f"x{i}", scene=f"s{i}") for i in range(10)]) == []
    assert (looked, read) == ({}, {})
    assert story.tell(won("w", scene="w", revision=1)) == []
    assert (looked, list(read.values())) == ({}, [1])
    read.clear()
    assert kinds(story.tell(won("e0-7", scene="s7", revision=1))) == ["withdrawn"]
    assert list(read.values()) == [1]


def test_the_first_of_many_expiries_is_the_deadline() -> None:
    story = Story(rules(ROW | {"length": 1, "expires_s": 100.0}))
    story.tell(*rounds(3, 1))
    assert story.policies.next_deadline() == START + 101 * 1_000_000
    (first, *_) = story.state.ledger.triggers
    story.tell(answer(first))
    assert story.policies.next_deadline() == START + 102 * 1_000_000
    assert kinds(story.tick(200.0)) == ["expired", "expired"]
    assert story.policies.next_deadline() is None
