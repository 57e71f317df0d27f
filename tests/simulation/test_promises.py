"""Every kind of verdict rule against its promise, over 10,000 seeded streams of episodes.

`stepwell.adapters.rules.simulate` judges thousands of streams at once; the first test here holds it equal to the rules
as they are written down plainly (`stepwell.engine.detection.promises.judge`).
"""

from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np
import pytest
from numpy.typing import NDArray

from stepwell.adapters.rules.run_lengths import (
    early_chance,
    exact_run_length,
    from_streams,
    poisson_bounds,
    run_length_bounds,
)
from stepwell.adapters.rules.simulate import (
    STREAMS,
    Shown,
    check_promise,
    check_promises,
    earliest_alarm,
    first_alarms,
    random_episodes,
    random_pairs,
    rate_chance,
    simulated_run_length,
)
from stepwell.engine.detection.promises import judge, row_average_run_length, row_chance
from stepwell.engine.intervals import wilson
from stepwell.engine.ruleset import BUILT_IN, InARowRule, RateRule, RunPromise, ShiftRule, VerdictRule, WindowRateRule

Flags = NDArray[np.bool_]
SEED = 20_261_201


def row(length: int = 5, rate: float = 0.4, arl: float = 161.0) -> InARowRule:
    promise = RunPromise(baseline_rate=rate, average_run_length=arl)
    return InARowRule(kind="in_a_row", name="row", length=length, promise=promise)


def window(
    size: int = 40, minimum: int = 20, limit: float = 0.5, rate: float = 0.3, arl: float = 1000.0
) -> WindowRateRule:
    promise = RunPromise(baseline_rate=rate, average_run_length=arl)
    return WindowRateRule(kind="window_rate", name="window", window=size, minimum=minimum, limit=limit, promise=promise)


def rate(limit: float = 0.3, level: float = 0.01, minimum: int = 5) -> RateRule:
    return RateRule(kind="rate", name="rate", limit=limit, level=level, minimum=minimum)


def shift(level: float = 0.05, minimum: int = 5) -> ShiftRule:
    return ShiftRule(kind="shift", name="shift", level=level, minimum=minimum)


def share(alarms: NDArray[np.int64]) -> float:
    return float(np.mean(alarms > 0))


def around(alarms: NDArray[np.int64]) -> tuple[float, float]:
    """A 99.9 % interval for the share of streams that fired."""
    interval = wilson(int((alarms > 0).sum()), len(alarms), 0.999)
    assert interval is not None
    return interval


# --- many at once is one by one -----------------------------------------------------------------------------------


@lru_cache
def streams_of_two(streams: int, episodes: int, failing: float) -> list[tuple[Flags, bool]]:
    generator = np.random.default_rng(SEED)
    order = generator.random(episodes) < 0.5  # old and new come in any order
    return [(generator.random(streams) < failing + 0.2 * new, bool(new)) for new in order]


@pytest.mark.parametrize(
    "rule",
    [
        row(3), row(5), window(), window(7, 2, 0.4), window(10, 10, 0.3), rate(), rate(0.2, 0.2, 1), rate(0.2, 0.1, 40),
        shift(), shift(0.3, 1), shift(0.3, 20),
    ],
)  # fmt: skip
@pytest.mark.parametrize("failing", [0.25, 0.5])
def test_judging_many_streams_at_once_is_judging_each(rule: VerdictRule, failing: float) -> None:
    episodes = streams_of_two(60, 120, failing)
    expected = []
    for stream in range(60):
        sees = judge(rule)
        fired = (ordinal for ordinal, (failed, new) in enumerate(episodes, 1) if sees(bool(failed[stream]), new))
        expected.append(next(fired, 0))
    assert first_alarms(rule, iter(episodes)).tolist() == expected
    assert any(expected), "the case tells nothing"


# --- rows ---------------------------------------------------------------------------------------------------------


def test_five_in_a_row_at_four_in_ten_fires_in_46_percent_of_100_episodes() -> None:
    alarms = first_alarms(row(), random_episodes(STREAMS, 100, 0.4, SEED))
    low, high = around(alarms)
    assert low < row_chance(5, 0.4, 100) < high
    assert round(row_chance(5, 0.4, 100), 2) == 0.46
    assert high - low < 0.04


def test_rows_take_as_long_as_they_promise() -> None:
    report = check_promise(row())
    assert report.exact is not None
    assert report.exact == pytest.approx(161.09, abs=0.01)
    assert report.kept
    assert report.streams == 0, "there is a formula"
    assert check_promise(row(arl=162.0)).shown is Shown.NOT_KEPT
    _, low, high, _ = simulated_run_length(row(), seed=SEED)
    assert low < report.exact < (high or 0.0)


def test_the_built_in_rule_takes_a_hundred_thousand_episodes() -> None:
    rule = BUILT_IN.verdicts[0]
    assert isinstance(rule, InARowRule)
    exact = check_promise(rule).exact
    assert exact is not None
    assert exact > rule.promise.average_run_length
    _, low, high, _ = simulated_run_length(rule, seed=SEED)
    assert low < exact < (high or 0.0)


def test_failures_of_several_types_take_longer_than_of_one() -> None:
    """The exact figure takes all failures to be of one type: with two, a row of the same type is rarer."""
    generator = np.random.default_rng(SEED)
    longest = np.zeros(STREAMS, dtype=np.int64)
    fired = np.zeros(STREAMS, dtype=np.bool_)
    before = np.zeros(STREAMS, dtype=np.int64)
    for _ in range(100):
        kind = np.where(generator.random(STREAMS) < 0.4, 1 + (generator.random(STREAMS) < 0.5), 0)
        longest = np.where(kind == 0, 0, np.where(kind == before, longest + 1, 1))
        before = kind
        fired |= longest >= 5
    assert fired.mean() < row_chance(5, 0.4, 100) / 4


# --- windows ------------------------------------------------------------------------------------------------------


def test_a_window_takes_as_long_as_it_promises() -> None:
    promised = check_promise(window(), seed=SEED)
    assert promised.kept
    assert promised.high is not None
    assert promised.streams == STREAMS, "neither a formula nor bounds decide it"
    beyond = check_promise(window(arl=2 * promised.high), seed=SEED + 1)
    assert beyond.shown is Shown.NOT_KEPT
    # Two seeds and two horizons measure the same.
    assert promised.low < (beyond.high or 0.0)
    assert beyond.low < promised.high
    between = check_promise(window(arl=(promised.low + promised.high) / 2), seed=SEED)
    assert between.shown is Shown.OPEN
    assert not between.kept


@pytest.mark.parametrize(
    ("size", "minimum", "limit", "failing"),
    [(4, 4, 0.76, 0.4), (4, 2, 0.76, 0.4), (6, 3, 0.9, 0.5), (5, 5, 0.99, 0.3), (3, 2, 0.7, 0.2)],
)
def test_a_window_that_must_all_fail_has_a_formula(size: int, minimum: int, limit: float, failing: float) -> None:
    rule = window(size, minimum, limit, failing, 60.0)
    exact = exact_run_length(rule)
    assert exact is not None
    _, low, high, _ = simulated_run_length(rule, seed=SEED)
    assert low < exact < (high or 0.0)
    assert (high or 0.0) - low < 0.06 * exact
    assert run_length_bounds(rule)[0] <= exact <= run_length_bounds(rule)[1]
    if minimum == size:
        assert exact == pytest.approx(row_average_run_length(size, failing))


@pytest.mark.parametrize(
    ("size", "minimum", "limit", "failing"),
    [(40, 20, 0.5, 0.3), (10, 2, 0.6, 0.3), (10, 10, 0.7, 0.3), (3, 2, 0.5, 0.1)],
)
def test_bounds_of_a_window_hold(size: int, minimum: int, limit: float, failing: float) -> None:
    rule = window(size, minimum, limit, failing, 500.0)
    assert exact_run_length(rule) is None
    least, most = run_length_bounds(rule)
    _, low, high, horizon = simulated_run_length(rule, seed=SEED)
    assert least < (high or 0.0)
    assert most > low
    assert horizon >= 4 * size
    alarms = first_alarms(rule, random_episodes(STREAMS, size, failing, SEED + 1))
    assert around(alarms)[0] < early_chance(rule) < around(alarms)[1]


@pytest.mark.parametrize("failing", [1e-9, 1e-3, 0.5, 0.99, 1 - 1e-9, 1 - 2**-53])
@pytest.mark.parametrize("limit", [1e-9, 0.3, 0.5, 0.999, 1 - 2**-53])
@pytest.mark.parametrize(("size", "minimum"), [(2, 2), (10, 2), (512, 2), (512, 512)])
def test_bounds_at_the_ends_of_what_numbers_can_say(failing: float, limit: float, size: int, minimum: int) -> None:
    """A window that nearly always fires has a short run length, whatever underflows on the way to saying so."""
    rule = window(size, minimum, limit, failing, 500.0)
    least, most = run_length_bounds(rule)
    assert minimum <= least <= most
    assert 0.0 <= early_chance(rule) <= 1.0
    if failing > 0.9 > limit:
        assert least <= minimum + 1
    exact = exact_run_length(rule)
    assert exact is None or exact >= minimum * (1 - 1e-12)


def test_the_bounds_decide_what_no_stream_could_show() -> None:
    """Nothing is simulated: 18 of 20 at 10 % is beyond anybody's patience, and a trillionth of it is not."""
    assert check_promise(window(20, 20, 0.85, 0.1, 1e12)).found_by == "bounds"
    assert check_promise(window(20, 20, 0.85, 0.1, 1e12)).kept
    assert check_promise(window(10, 10, 0.85, 0.18, 1e12)).shown is Shown.NOT_KEPT
    assert check_promise(window(10, 10, 0.85, 0.18, 1e12)).found_by == "bounds"
    assert check_promise(window(10, 10, 0.95, 0.18, 1e12)).shown is Shown.NOT_KEPT, "truly 3.4e7"


def test_few_alarms_show_little_and_none_only_what_was_waited() -> None:
    """Exponential waits of a known mean, cut far below it: the interval holds, in nearly all of 200 repetitions."""
    generator = np.random.default_rng(SEED)
    held = 0
    for _ in range(200):
        waits = generator.geometric(1e-5, 1_000)
        alarms = np.where(waits <= 1_000, waits, 0)
        _, low, high = from_streams(alarms, 1_000)
        held += low <= 1e5 <= (high if high is not None else np.inf)
    assert held >= 196
    value, low, high = from_streams(np.zeros(1_000, dtype=np.int64), 1_000)
    assert high is None
    assert low < value
    assert 5e4 < low < 1e5, "half a million episodes without an alarm, over -ln of a sixth of a percent"


@pytest.mark.parametrize(
    ("count", "low", "high"), [(0, 0.0, 5.298), (1, 0.00501, 7.430), (5, 1.078, 14.15), (60, 41.93, 82.99)]
)
def test_the_interval_of_a_poisson_count(count: int, low: float, high: float) -> None:
    """At 99 %: chi-square quantiles over 2; and the ends have the tails that they must have."""
    found = poisson_bounds(count, 0.99)
    assert found == pytest.approx((low, high), rel=2e-3)
    generator = np.random.default_rng(SEED)
    assert np.mean(generator.poisson(found[1], 200_000) <= count) == pytest.approx(0.005, abs=0.0008)


def test_a_window_finds_what_it_is_for() -> None:
    alarms = first_alarms(window(), random_episodes(STREAMS, 200, 0.7, SEED))
    assert share(alarms) > 0.999


# --- rates --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "level"), [(0.1, 0.01), (0.3, 0.01), (0.3, 0.05), (0.5, 0.2)])
def test_a_rate_at_its_limit_keeps_the_level(limit: float, level: float) -> None:
    report = check_promise(rate(limit, level), seed=SEED)
    assert report.episodes >= 500
    assert report.kept
    assert report.exact is not None
    assert report.low <= report.exact <= (report.high or 0.0)
    assert report.exact <= level


def test_a_rate_keeps_its_level_to_a_hundred_thousand_episodes() -> None:
    alarms = first_alarms(rate(0.3, 0.05), random_episodes(200, 100_000, 0.3, SEED))
    assert around(alarms)[0] <= 0.05


def drifting(limit: float) -> Iterator[tuple[Flags, bool]]:
    """The rate moves, never above the limit, and as it is worst for the test: at the limit while the share of failures
    is above it, at nearly none while it is not.
    """
    generator = np.random.default_rng(SEED)
    failures = np.zeros(STREAMS)
    for seen in range(500):
        now = np.where(failures >= limit * seen, limit, limit * generator.random(STREAMS))
        failed = generator.random(STREAMS) < now
        failures += failed
        yield failed, True


def test_a_rate_keeps_its_level_while_the_true_rate_moves_below_the_limit() -> None:
    alarms = first_alarms(rate(0.3, 0.05), drifting(0.3))
    assert around(alarms)[0] <= 0.05


@pytest.mark.parametrize(("true", "episodes", "power"), [(0.5, 150, 0.9), (0.6, 60, 0.9), (0.9, 15, 0.9)])
def test_a_rate_above_its_limit_is_found(true: float, episodes: int, power: float) -> None:
    alarms = first_alarms(rate(), random_episodes(STREAMS, episodes, true, SEED))
    low, high = around(alarms)
    assert low < rate_chance(rate(), true, episodes) < high
    assert low > power


def test_the_earliest_alarm_of_a_rate() -> None:
    assert earliest_alarm(rate()) == 5
    assert earliest_alarm(rate(0.5, 0.01)) > earliest_alarm(rate(0.1, 0.01, 1))
    assert judge_all_failed(rate(0.5, 0.01)) == earliest_alarm(rate(0.5, 0.01))


def judge_all_failed(rule: VerdictRule) -> int:
    sees = judge(rule)
    return next(ordinal for ordinal in range(1, 1000) if sees(True, True))


@pytest.mark.parametrize(("limit", "size", "share_fired"), [(0.3, 500, 0.30), (0.2, 50, 0.68)])
def test_a_wilson_bound_looked_at_after_every_episode_has_no_level(limit: float, size: int, share_fired: float) -> None:
    """The contrast: for one look its level is 2.5 %. Looked at after each episode, over all so far or the last 50, it
    has soon fired in a large part of the streams, though the rate is at the limit, not beyond it.
    """
    generator = np.random.default_rng(SEED)
    failed = generator.random((STREAMS, 500)) < limit
    counts = np.cumsum(np.pad(failed, ((0, 0), (1, 0))), axis=1)
    fired = np.zeros(STREAMS, dtype=np.bool_)
    for seen in range(1, 501):
        held = min(seen, size)
        bounds = [wilson(count, held) for count in range(held + 1)]
        lows = np.array([bound[0] for bound in bounds if bound is not None])
        if seen >= 20 or size == 500:
            fired |= lows[counts[:, seen] - counts[:, seen - held]] > limit
    assert fired.mean() == pytest.approx(share_fired, abs=0.015)
    assert rate_chance(rate(limit, 0.025), limit, 500) < 0.025


# --- shifts -------------------------------------------------------------------------------------------------------


def test_a_shift_that_is_none_keeps_the_level() -> None:
    report = check_promise(shift(), seed=SEED)
    assert report.kept
    assert report.streams == STREAMS
    assert report.high is not None
    assert report.high <= 0.05


@pytest.mark.parametrize("failing", [0.1, 0.5])
def test_a_shift_keeps_its_level_while_both_checkpoints_run(failing: float) -> None:
    def both() -> Iterator[tuple[Flags, bool]]:
        generator = np.random.default_rng(SEED)
        for ordinal in range(240):
            yield generator.random(STREAMS) < failing, ordinal % 2 == 1

    alarms = first_alarms(shift(), both())
    assert around(alarms)[0] <= 0.05


def test_an_improvement_is_no_shift() -> None:
    alarms = first_alarms(shift(), random_pairs(STREAMS, (100, 0.5), (200, 0.3), SEED))
    assert share(alarms) < 0.001


@pytest.mark.parametrize(("old", "new", "episodes"), [(0.1, 0.5, 60), (0.2, 0.6, 60), (0.3, 0.8, 50)])
def test_a_shift_is_found(old: float, new: float, episodes: int) -> None:
    alarms = first_alarms(shift(), random_pairs(STREAMS, (100, old), (episodes, new), SEED))
    assert around(alarms)[0] > 0.9


# --- and all of it again ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [window, rate])
def test_the_same_seed_gives_the_same_report(make: Callable[[], VerdictRule]) -> None:
    assert check_promise(make(), streams=300, seed=7) == check_promise(make(), streams=300, seed=7)
    assert check_promise(make(), streams=300, seed=7) != check_promise(make(), streams=300, seed=8)


def test_rules_that_judge_alike_are_simulated_once() -> None:
    told: list[str] = []
    rules = [rate(), rate().model_copy(update={"name": "other", "cooldown_s": 5.0}), rate(0.5)]
    reports = check_promises(rules, lambda rule: told.append(f"{rule.name} {rule.kind}"))
    assert [report.rule for report in reports] == ["rate", "other", "rate"]
    assert len(told) == 2
    assert reports[0].exact == reports[1].exact != reports[2].exact


def test_the_same_seed_gives_the_same_pairs() -> None:
    def alarms(seed: int) -> list[int]:
        return first_alarms(shift(), random_pairs(300, (40, 0.1), (40, 0.5), seed)).tolist()

    assert alarms(7) == alarms(7)
    assert alarms(7) != alarms(8)
