"""What rules promise: exact figures against brute force, judges against their words."""

from itertools import product

import pytest

from stepwell.engine.detection.promises import judge, row_average_run_length, row_chance
from stepwell.engine.ruleset import (
    BUILT_IN,
    InARowRule,
    RateRule,
    RunPromise,
    ShiftRule,
    VerdictRule,
    WindowRateRule,
)

PROMISE = RunPromise(baseline_rate=0.2, average_run_length=1234.5)
ROW = InARowRule(kind="in_a_row", name="row", length=3, promise=PROMISE)
WINDOW = WindowRateRule(kind="window_rate", name="window", window=4, minimum=3, limit=0.5, promise=PROMISE)
RATE = RateRule(kind="rate", name="rate", limit=0.3, level=0.01, minimum=2)
SHIFT = ShiftRule(kind="shift", name="shift", level=0.05, minimum=4)


def fired_at(rule: VerdictRule, pattern: str, new: bool = True) -> list[int]:
    """Ordinals at which the rule fires over x (failure) and . (success)."""
    sees = judge(rule)
    return [ordinal for ordinal, each in enumerate(pattern, 1) if sees(each == "x", new)]


@pytest.mark.parametrize(("length", "rate"), [(1, 0.5), (2, 0.3), (3, 0.4), (5, 0.4)])
@pytest.mark.parametrize("episodes", [0, 1, 4, 5, 11])
def test_the_chance_of_a_row_is_what_counting_all_streams_gives(length: int, rate: float, episodes: int) -> None:
    row = InARowRule(kind="in_a_row", name="row", length=length)
    total = sum(
        rate ** sum(stream) * (1 - rate) ** (episodes - sum(stream))
        for stream in product((0, 1), repeat=episodes)
        if fired_at(row, "".join(".x"[each] for each in stream))
    )
    assert row_chance(length, rate, episodes) == pytest.approx(total, abs=1e-12)


@pytest.mark.parametrize(("length", "rate"), [(1, 0.25), (2, 0.5), (3, 0.4)])
def test_the_average_run_length_is_the_sum_of_its_tail(length: int, rate: float) -> None:
    tail = sum(1 - row_chance(length, rate, episodes) for episodes in range(800))
    assert row_average_run_length(length, rate) == pytest.approx(tail, rel=1e-9)


def test_five_in_a_row_at_four_in_ten() -> None:
    assert row_chance(5, 0.4, 100) == pytest.approx(0.4591, abs=5e-5)
    assert row_average_run_length(5, 0.4) == pytest.approx(161.09, abs=5e-3)


def test_a_row_that_never_comes_takes_for_ever() -> None:
    assert row_average_run_length(128, 1e-9) == float("inf")
    assert row_chance(128, 1e-9, 1000) == 0.0


def test_the_built_in_rule_keeps_its_promise() -> None:
    (rule,) = BUILT_IN.verdicts
    assert isinstance(rule, InARowRule)
    assert row_average_run_length(rule.length, rule.promise.baseline_rate) >= rule.promise.average_run_length


@pytest.mark.parametrize(
    ("rule", "pattern", "ordinals"),
    [
        (ROW, "xx.xxxx.x", [6, 7]),
        (ROW, "xx.xx.", []),
        (WINDOW, "xx", []),  # all failed, but fewer than the minimum
        (WINDOW, "xx.", [3]),
        (WINDOW, ".x.x.x.x", []),  # exactly half is not more than half
        (WINDOW, "..xxx...", [5, 6]),  # ..xxx: 3 of the last 4; xxx. still; xx.. is half
        (RATE, "xxxx.", []),
        (RATE, "xxxxx", [5]),
    ],
)
def test_judges_fire_where_the_words_say(rule: VerdictRule, pattern: str, ordinals: list[int]) -> None:
    assert fired_at(rule, pattern) == ordinals


def test_twenty_nine_of_a_hundred_are_not_more_than_029() -> None:
    """0.29 * 100 is a little less than 29 in IEEE arithmetic."""
    rule = WindowRateRule(kind="window_rate", name="w", window=100, minimum=100, limit=0.29, promise=PROMISE)
    assert fired_at(rule, "x" * 29 + "." * 71) == []
    assert fired_at(rule, "x" * 30 + "." * 70) == [100]


def test_a_shift_needs_the_minimum_of_both_checkpoints() -> None:
    def first(old: int, new: int) -> int | None:
        sees = judge(SHIFT)
        for _ in range(old):
            assert not sees(False, False)
        return next((ordinal for ordinal in range(1, new + 1) if sees(True, True)), None)

    assert first(20, 10) == 4  # the evidence is there after two
    assert first(3, 30) is None
    assert first(4, 30) == 5  # the evidence after four is 19.1, and 20 is needed
