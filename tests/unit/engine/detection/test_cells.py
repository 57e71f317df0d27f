"""What a request proposes to train on: every failing cell, however early or rarely it failed."""

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.engine.detection import in_order
from stepwell.engine.detection.requests import HARD_NEGATIVES_MAX, sampling_weights
from stepwell.engine.detection.state import CELLS_MAX, EVIDENCE_MAX, Tally
from stepwell.events.model import Event, RetrainRequested
from tests.unit.engine.detection.stories import Story, answer, failed, rules, the_request, won

RATE = {"kind": "rate", "name": "often", "limit": 0.1, "level": 0.01, "minimum": 300}
WINDOW = {
    "kind": "window_rate", "name": "window", "window": 300, "minimum": 300, "limit": 0.3,
    "promise": {"baseline_rate": 0.1, "average_run_length": 1.0},
}  # fmt: skip
ROW = {"kind": "in_a_row", "name": "row", "length": 3}


def scene(name: str, pattern: str, count: int = 1) -> list[Event]:
    """Episodes of a scene: ``f`` failed, ``s`` succeeded."""
    make: dict[str, Any] = {"f": failed, "s": won}
    return [make[letter](f"{name}{i}", scene=name, seed=i) for i, letter in enumerate(pattern * count)]


def weights(request: RetrainRequested) -> dict[str, float]:
    return {share.scene: share.weight for share in request.sampling_weights}


@pytest.mark.parametrize("rule", [RATE, WINDOW], ids=["rate", "window_rate"])
def test_weights_follow_failure_rates_over_the_whole_sample(rule: dict[str, Any]) -> None:
    """Scene A failed 100 of 100, then B, then C 20 of 100: A is in weights, evidence and regression."""
    story = Story(rules(rule))
    request = the_request(story.tell(*scene("A", "f", 100), *scene("B", "f", 100), *scene("C", "fssss", 20)))
    rates = {"A": 100.5 / 101, "B": 100.5 / 101, "C": 20.5 / 101}
    assert weights(request) == {name: rate / sum(rates.values()) for name, rate in rates.items()}
    shares = Counter(item.scene for item in request.evidence)
    assert (sum(shares.values()), set(shares)) == (EVIDENCE_MAX, {"A", "B", "C"})
    assert min(shares.values()) >= 20
    newest = {item.episode_id for item in request.evidence}
    assert {"A99", "B99", "C95"} <= newest
    assert len(request.hard_negatives) == HARD_NEGATIVES_MAX
    spec = json.loads(request.regression_spec_json)
    assert [cell["scene"] for cell in spec["cells"]] == ["A", "B", "C"]


def test_a_scene_that_failed_once_long_ago_is_named() -> None:
    story = Story(rules(RATE | {"minimum": 512}))
    request = the_request(story.tell(*scene("early", "f"), *scene("late", "fs", 400)))
    assert request.evidence[0].episode_id == "early0"
    assert weights(request)["early"] == pytest.approx((1.5 / 2) / (1.5 / 2 + 0.5), abs=0.01)


def test_every_failing_cell_up_to_the_limit_is_in_evidence() -> None:
    """64 cells, the first of them early and once; one more lets the one go that failed the longest ago."""
    cells = [event for i in range(EVIDENCE_MAX) for event in scene(f"c{i:02}", "f")]
    request = the_request(Story(rules(RATE)).tell(*cells, *scene("c63", "ff" * 118 + "f")[1:]))
    assert {item.scene for item in request.evidence} == {f"c{i:02}" for i in range(EVIDENCE_MAX)}
    story = Story(rules(RATE))
    request = the_request(story.tell(*cells, *scene("one more", "f", 236)))
    assert {item.scene for item in request.evidence} == {f"c{i:02}" for i in range(1, EVIDENCE_MAX)} | {"one more"}
    assert len(request.sampling_weights) == EVIDENCE_MAX + 1


def test_hard_negatives_come_from_every_cell_those_first_that_the_evidence_lacks() -> None:
    story = Story(rules(ROW))
    old = [event for i in range(40) for event in (*scene(f"c{i:02}", "f"), won(f"w{i}"))]
    request = the_request(story.tell(*old, *[failed(f"plain{i}", scene="c39") for i in range(3)]))
    assert [item.episode_id for item in request.hard_negatives] == [f"c{i:02}0" for i in reversed(range(7, 39))]
    assert len(request.sampling_weights) == 40


def test_an_answer_starts_the_counts_anew() -> None:
    story = Story(rules(RATE | {"minimum": 5, "cooldown_episodes": 0}))
    request = the_request(story.tell(*scene("A", "f", 5)))
    story.tell(answer(request.trigger_id))
    request = the_request(story.tell(*scene("B", "f", 5)))
    assert {item.scene for item in request.evidence} == {"B"}
    # The five of A are hard negatives still: they are named, so they have their share.
    assert weights(request) == {"A": 0.5, "B": 0.5}


def test_cells_are_bounded() -> None:
    story = Story(rules(RATE | {"minimum": 512}))
    story.tell(*[failed(f"e{i}", scene=f"s{i}") for i in range(CELLS_MAX + 10)])
    story.tell(won("e0", scene=f"s{CELLS_MAX}", revision=1), won(f"e{CELLS_MAX}", scene=f"s{CELLS_MAX}", revision=1))
    (stream,) = story.state.rules["often"].streams.values()
    assert len(stream.cells) == CELLS_MAX
    assert (stream.cells["s0", "none"].episodes, stream.tally.failures) == (0, CELLS_MAX + 8)
    assert all(tally.episodes >= 0 for tally in stream.cells.values())


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from("abcd"), st.booleans(), st.integers(0, 3)), max_size=80),
    st.sampled_from([RATE, WINDOW | {"window": 10, "minimum": 10}]),
)
def test_cells_are_what_a_plain_recount_gives(told: list[tuple[int, str, bool, int]], rule: dict[str, Any]) -> None:
    """Whatever is amended, and from which scene to which."""
    story = Story(rules(rule))
    for episode, where, bad, revision in told:
        story.tell((failed if bad else won)(f"e{episode}", scene=where, revision=revision))
    if not told:
        return
    judge: Any = story.policies.detector.judges[str(rule["name"])]
    assert isinstance(judge, in_order.InOrderJudge)
    for stream in story.state.rules[judge.rule.name].streams.values():
        plain: dict[tuple[str, str], Tally] = {}
        for entry in story.state.window.values():
            if entry.rank >= stream.since:
                plain.setdefault((entry.evidence.scene, "none"), Tally()).add(entry.bearing == "counts")
        counted = {cell: tally for cell, tally in judge.cells_of(stream).items() if tally.episodes}
        assert counted == plain


@given(st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1))
def test_weights_sum_to_one_and_grow_with_the_rate(cells: dict[str, tuple[int, int]]) -> None:
    counted = {(name, "none"): Tally(bad, bad + good) for name, (bad, good) in cells.items()}
    made = sampling_weights(counted)
    failing = sorted(name for name, (bad, _) in cells.items() if bad)
    assert [share.scene for share in made] == failing
    if failing:
        assert sum(share.weight for share in made) == pytest.approx(1.0, abs=1e-12)
        rates = {name: (bad + 0.5) / (bad + good + 1) for name, (bad, good) in cells.items()}
        assert [share.weight / rates[share.scene] for share in made] == pytest.approx(
            [1 / sum(rates[n] for n in failing)] * len(made)
        )
