"""The e-processes against exact fractions, against 60 digits, and against what makes them e-processes."""

from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import pairwise
from math import comb, inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.engine.detection.evidence import ONE, ZERO, Scaled, _Products, rate_evidence, scaled, shift_evidence

COUNTS = st.integers(1, 120).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
LIMITS = st.floats(0.01, 0.99)


def mixture(failures: int, successes: int) -> Fraction:
    """KT(f, s) by the sequential rule (f + 1/2) / (n + 1) of Krichevsky and Trofimov, failures first."""
    value, half = Fraction(1), Fraction(1, 2)
    for i in range(failures):
        value *= (i + half) / (i + 1)
    for i in range(successes):
        value *= (i + half) / (failures + i + 1)
    return value


def likelihood(rate: Fraction, failures: int, successes: int) -> Fraction:
    return rate**failures * (1 - rate) ** successes


def exact_rate(failures: int, episodes: int, limit: float) -> Fraction:
    best = min(Fraction(failures, episodes), Fraction(limit)) if episodes else Fraction(0)
    successes = episodes - failures
    return mixture(failures, successes) / likelihood(best, failures, successes)


def exact_shift(f0: int, n0: int, f1: int, n1: int) -> Fraction:
    old, new = Fraction(f0, n0), Fraction(f1, n1)
    if new > old:
        old = new = Fraction(f0 + f1, n0 + n1)
    null = likelihood(old, f0, n0 - f0) * likelihood(new, f1, n1 - f1)
    return mixture(f0, n0 - f0) * mixture(f1, n1 - f1) / null


def as_fraction(value: Scaled) -> Fraction:
    return Fraction(value.mantissa) * Fraction(2) ** value.exponent


def assert_close(value: Scaled, exact: Fraction, episodes: int) -> None:
    assert abs(as_fraction(value) / exact - 1) < Fraction(max(episodes, 1), 10**15)


@given(COUNTS, LIMITS)
def test_the_rate_evidence_is_its_formula(counts: tuple[int, int], limit: float) -> None:
    failures, episodes = counts
    assert_close(rate_evidence(failures, episodes, limit), exact_rate(failures, episodes, limit), episodes)


@given(COUNTS, COUNTS)
def test_the_shift_evidence_is_its_formula(old: tuple[int, int], new: tuple[int, int]) -> None:
    assert_close(shift_evidence(*old, *new), exact_shift(*old, *new), old[1] + new[1])


@given(COUNTS, COUNTS, st.integers(0, 40), st.integers(0, 40))
def test_no_rates_of_the_hypothesis_explain_the_counts_better(
    old: tuple[int, int], new: tuple[int, int], first: int, second: int
) -> None:
    """The evidence is the smallest of the ratios over the whole hypothesis, tried on a grid."""
    low, high = sorted((Fraction(first, 40), Fraction(second, 40)))
    limit = 0.5
    for failures, episodes in (old, new):
        null = likelihood(min(low, Fraction(1, 2)), failures, episodes - failures)
        ratio = mixture(failures, episodes - failures)
        assert as_fraction(rate_evidence(failures, episodes, limit)) * null <= ratio * (1 + Fraction(1, 10**12))
    null = likelihood(high, old[0], old[1] - old[0]) * likelihood(low, new[0], new[1] - new[0])
    joint = mixture(old[0], old[1] - old[0]) * mixture(new[0], new[1] - new[0])
    assert as_fraction(shift_evidence(*old, *new)) * null <= joint * (1 + Fraction(1, 10**12))


@given(COUNTS, LIMITS)
def test_no_evidence_while_the_share_is_within_the_limit(counts: tuple[int, int], limit: float) -> None:
    failures, episodes = counts
    if failures <= limit * episodes:
        assert float(rate_evidence(failures, episodes, limit)) <= 1.0 + 1e-12


@given(COUNTS, COUNTS)
def test_no_evidence_while_the_new_share_is_not_higher(old: tuple[int, int], new: tuple[int, int]) -> None:
    if Fraction(*new) <= Fraction(*old):
        assert float(shift_evidence(*old, *new)) <= 1.0 + 1e-12


@pytest.mark.parametrize("limit", [0.05, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("episodes", [1, 7, 60])
def test_its_expectation_at_the_limit_is_at_most_one(episodes: int, limit: float) -> None:
    """By summing over every outcome of a fixed number of episodes: what makes it an e-value."""
    p = Fraction(limit)
    total = sum(
        comb(episodes, f) * likelihood(p, f, episodes - f) * as_fraction(rate_evidence(f, episodes, limit))
        for f in range(episodes + 1)
    )
    assert total <= 1 + Fraction(1, 10**12)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.8])
def test_the_expectation_of_a_shift_between_equals_is_at_most_one(rate: float) -> None:
    p, n0, n1 = Fraction(rate), 12, 9
    total = sum(
        comb(n0, f0) * comb(n1, f1) * likelihood(p, f0 + f1, n0 + n1 - f0 - f1)
        * as_fraction(shift_evidence(f0, n0, f1, n1))
        for f0 in range(n0 + 1)
        for f1 in range(n1 + 1)
    )  # fmt: skip
    assert total <= 1 + Fraction(1, 10**12)


@given(st.integers(1, 200), LIMITS)
def test_more_failures_are_more_evidence(episodes: int, limit: float) -> None:
    beyond = [f for f in range(episodes + 1) if f >= limit * episodes]
    values = [as_fraction(rate_evidence(f, episodes, limit)) for f in beyond]
    assert all(low < high for low, high in pairwise(values))


@given(COUNTS, st.integers(1, 80))
def test_more_failures_of_the_new_checkpoint_are_more_evidence(old: tuple[int, int], episodes: int) -> None:
    beyond = [f for f in range(episodes + 1) if Fraction(f, episodes) >= Fraction(*old)]
    values = [as_fraction(shift_evidence(*old, f, episodes)) for f in beyond]
    assert all(low < high for low, high in pairwise(values))


def precise_rate(failures: int, episodes: int, limit: float) -> Decimal:
    with localcontext(prec=60, Emax=10**12, Emin=-(10**12)):
        value = Decimal(1)
        for i in range(failures):
            value *= Decimal(2 * i + 1) / (2 * i + 2)
        for i in range(episodes - failures):
            value *= Decimal(2 * i + 1) / (2 * (failures + i + 1))
        p = Decimal(limit)  # the double's exact value
        return value / p**failures / (1 - p) ** (episodes - failures)


@pytest.mark.parametrize("failures", [302_000, 340_000, 1_000_000])
def test_a_million_episodes_keep_nine_digits(failures: int) -> None:
    value = rate_evidence(failures, 1_000_000, 0.3)
    with localcontext(prec=60, Emax=10**12, Emin=-(10**12)):
        seen = Decimal(value.mantissa) * Decimal(2) ** value.exponent
        assert abs(seen / precise_rate(failures, 1_000_000, 0.3) - 1) < Decimal("1e-9")
    if failures == 1_000_000:
        assert float(value) == inf
        assert str(value) == "over 1e+308"


def test_a_million_episodes_of_both_checkpoints() -> None:
    # A difference of one in a hundred among a million is beyond doubt, one in ten thousand is not.
    assert shift_evidence(500_000, 1_000_000, 510_000, 1_000_000).at_least(1e30)
    assert not shift_evidence(500_000, 1_000_000, 500_100, 1_000_000).at_least(1.0)


@pytest.mark.parametrize(("failures", "shown"), [(3, "11.6"), (5, "101"), (9, "9.42e+03")])
def test_straight_failures_at_a_limit_of_three_in_ten(failures: int, shown: str) -> None:
    """KT(n, 0) / 0.3^n by hand: for n = 5 it is 0.24609375 / 0.00243 = 101.27."""
    assert str(rate_evidence(failures, failures, 0.3)) == shown


def test_nothing_seen_is_no_evidence() -> None:
    assert rate_evidence(0, 0, 0.2) == ONE
    assert shift_evidence(0, 0, 5, 5) == ONE
    assert shift_evidence(0, 5, 0, 0) == ONE


def test_the_last_bit_does_not_depend_on_what_was_asked_before() -> None:
    cold, warm = _Products((1, 1), (0, 1)), _Products((1, 1), (0, 1))
    for k in range(700):
        warm.at(k)
    assert [cold.at(k) for k in (699, 3, 512, 64, 63)] == [warm.at(k) for k in (699, 3, 512, 64, 63)]


@given(st.floats(0.0, 1e300), st.floats(1e-300, 1e300), st.integers(-2000, 2000))
def test_scaled_numbers_compare_exactly(value: float, threshold: float, exponent: int) -> None:
    number = scaled(value, exponent)
    assert number.at_least(threshold) == (Fraction(value) * Fraction(2) ** exponent >= Fraction(threshold))


@given(st.floats(0.0, 1e300), st.floats(1e-300, 1e300))
def test_products_and_quotients_round_once(left: float, right: float) -> None:
    for result, exact in (
        (scaled(left) * scaled(right), Fraction(left) * Fraction(right)),
        (scaled(left) / scaled(right), Fraction(left) / Fraction(right)),
    ):
        assert abs(as_fraction(result) - exact) <= exact * Fraction(1, 2**52)
        assert result == ZERO or 0.5 <= result.mantissa < 1.0


def test_zero_is_at_least_zero_only() -> None:
    assert ZERO.at_least(0.0)
    assert not ZERO.at_least(1e-300)
    assert ONE.at_least(0.0)
    assert ZERO * ONE == ZERO / ONE == ZERO
    assert float(ZERO) == 0.0


@pytest.mark.parametrize("value", [-1.0, inf, float("nan")])
def test_only_finite_numbers_that_are_not_negative(value: float) -> None:
    with pytest.raises(ValueError, match="finite number"):
        scaled(value)


def test_impossible_counts_and_limits_are_refused() -> None:
    with pytest.raises(ValueError, match=r"failures must lie in 0\.\.episodes; got 4 of 3"):
        rate_evidence(4, 3, 0.5)
    with pytest.raises(ValueError, match="new_failures must lie"):
        shift_evidence(1, 3, -1, 3)
    for limit in (0.0, 1.0, float("nan")):
        with pytest.raises(ValueError, match="limit must lie between 0 and 1"):
            rate_evidence(1, 3, limit)
