"""Two checkpoints on the same seeds: the interval covers as it says, the test counts the pairs that differ."""

from collections.abc import Iterator
from itertools import product
from math import comb

import pytest

from stepwell.engine.intervals import wilson
from stepwell.engine.paired import Pairs


def tables(n: int) -> Iterator[Pairs]:
    for both, lost, gained in product(range(n + 1), repeat=3):
        if both + lost + gained <= n:
            yield Pairs(both, lost, gained, n - both - lost - gained)


def chance(table: Pairs, p: tuple[float, float, float, float]) -> float:
    """Multinomial."""
    counts = (table.both, table.lost, table.gained, table.neither)
    ways, left = 1, table.n
    for count in counts:
        ways *= comb(left, count)
        left -= count
    out = float(ways)
    for count, rate in zip(counts, p, strict=True):
        out *= rate**count
    return out


def test_counts_rates_and_sums() -> None:
    pairs = Pairs(both=5, lost=1, gained=3, neither=1) + Pairs(gained=2)
    assert (pairs.n, pairs.before, pairs.after, pairs.difference) == (12, 6, 10, 4 / 12)
    assert (Pairs().difference, Pairs().interval(), Pairs().p_value()) == (None, None, 1.0)


@pytest.mark.parametrize(
    "p", [(0.25, 0.25, 0.25, 0.25), (0.1, 0.05, 0.6, 0.25), (0.7, 0.1, 0.1, 0.1), (0.3, 0.02, 0.38, 0.3)]
)
def test_the_interval_covers_the_true_difference_in_about_95_percent(p: tuple[float, float, float, float]) -> None:
    covered = 0.0
    for table in tables(14):
        interval = table.interval()
        assert interval is not None
        covered += chance(table, p) * (interval[0] <= p[2] - p[1] <= interval[1])
    assert 0.93 <= covered <= 0.995


def test_the_interval_holds_the_difference_stays_within_bounds_and_turns_with_it() -> None:
    for table in tables(8):
        low, high = table.interval() or (2.0, -2.0)
        assert -1 <= low <= (table.difference or 0.0) <= high <= 1
        turned = Pairs(table.both, table.gained, table.lost, table.neither).interval()
        assert turned == pytest.approx((-high, -low), abs=1e-12)


def test_without_correlation_it_is_the_interval_of_two_independent_rates() -> None:
    pairs = Pairs(both=0, lost=0, gained=6, neither=14)  # one rate is 0: no correlation can be told
    (_, old_high), (new_low, new_high) = wilson(0, 20) or (0, 0), wilson(6, 20) or (0, 0)
    expected = (0.3 - ((0.3 - new_low) ** 2 + old_high**2) ** 0.5, 0.3 + (new_high - 0.3))
    assert pairs.interval() == pytest.approx(expected)


def test_a_positive_correlation_narrows_it() -> None:
    together, apart = Pairs(both=8, gained=4, neither=8), Pairs(both=4, lost=4, gained=8, neither=4)
    assert together.difference == apart.difference
    spans = [high - low for low, high in (together.interval() or (0, 0), apart.interval() or (0, 0))]
    assert spans[0] < spans[1]


@pytest.mark.parametrize(
    ("lost", "gained", "p"),
    [(0, 0, 1.0), (4, 4, 1.0), (0, 5, 2 / 2**5), (1, 9, 2 * (1 + 10) / 2**10), (9, 1, 2 * 11 / 2**10), (0, 1, 1.0)],
)
def test_mcnemars_exact_test(lost: int, gained: int, p: float) -> None:
    assert Pairs(both=7, lost=lost, gained=gained, neither=3).p_value() == pytest.approx(p)


def test_its_p_value_is_rarely_small_where_nothing_changed() -> None:
    p = (0.4, 0.2, 0.2, 0.2)
    assert sum(chance(table, p) for table in tables(12) if table.p_value() <= 0.05) <= 0.05
