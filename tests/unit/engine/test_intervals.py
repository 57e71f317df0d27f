"""Wilson intervals against published values and their own equation."""

import pytest

from stepwell.engine.intervals import wilson


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        # R. G. Newcombe, Two-sided confidence intervals for the single proportion, Stat. Med. 17 (1998), table I.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_agrees_with_published_intervals(successes: int, trials: int, low: float, high: float) -> None:
    interval = wilson(successes, trials)
    assert interval is not None
    assert interval == pytest.approx((low, high), abs=5e-5)


def test_no_trials_give_no_interval() -> None:
    assert wilson(0, 0) is None


def test_all_successes_reach_one_exactly() -> None:
    interval = wilson(7, 7)
    assert interval is not None
    assert interval[1] == 1.0


@pytest.mark.parametrize(("successes", "trials"), [(-1, 3), (4, 3)])
def test_refuses_impossible_counts(successes: int, trials: int) -> None:
    with pytest.raises(ValueError, match="successes must lie"):
        wilson(successes, trials)
