"""How long a rule that looks at the last few episodes takes to fire by chance: formulas, and bounds that always hold.

All about streams of episodes that fail independently of each other with chance ``p``; q is 1 - p. T is the ordinal of
the first alarm, the average run length is E T. Where a formula or a bound decides whether a promise is kept, nobody
needs to simulate it; where none does, `from_streams` tells what simulated streams show, and how surely.
"""

from math import exp, inf, lgamma, log, log1p, sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from stepwell.engine.detection.promises import row_average_run_length
from stepwell.engine.intervals import wilson
from stepwell.engine.ruleset import InARowRule, WindowRateRule

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CONFIDENCE = 0.99
GROUPS = 50
FEW = 100
"""Of fewer alarms the normal approximation is not good enough."""


def needed_failures(rule: WindowRateRule, held: int) -> int:
    """With how many failures at least of ``held`` episodes the share is above the limit."""
    count = int(rule.limit * held)
    while count > 0 and count / held > rule.limit:
        count -= 1
    while count / held <= rule.limit:
        count += 1
    return count


def exact_run_length(rule: InARowRule | WindowRateRule) -> float | None:
    """E T, where there is a formula: for rows, and for windows that fire only where all that they hold failed.

    Such a window fires with its first ``m = minimum`` episodes, if all of them fail. Otherwise the first success among
    them is at 1/q on average, given that it comes among them at all, and from there on only N = window failures in a
    row will do, which takes A episodes (`row_average_run_length`). By the mean of min(first success, m), which is
    (1 - p^m) / q, that comes to E T = (1 - p^m) (1 / q + A).
    """
    rate = rule.promise.baseline_rate
    if isinstance(rule, InARowRule):
        return row_average_run_length(rule.length, rate)
    if any(needed_failures(rule, held) < held for held in range(rule.minimum, rule.window + 1)):
        return None
    return (1.0 - rate**rule.minimum) * (1.0 / (1.0 - rate) + row_average_run_length(rule.window, rate))


def run_length_bounds(rule: WindowRateRule) -> tuple[float, float]:
    """Numbers between which E T lies, whatever the window.

    Below: let k be the least count that fires of a full window, W its size and e the chance to fire while it fills
    (`early_chance`). A full window that was not over the line comes over it only by a failure that takes the place of a
    success, k - 1 failures being among the W - 1 between: each later episode is the first alarm with a chance of at
    most h = p q C(W - 1, k - 1) p^(k - 1) q^(W - k). So P(T <= n) <= e + n h, and the sum of what is left of 1 is
    E T >= (1 - e)^2 / (2 h).

    Above: windows that do not overlap are independent, and each is over the line with chance B = P(Bin(W, p) >= k); so
    E T <= W / B.
    """
    rate, window = rule.promise.baseline_rate, rule.window
    least = needed_failures(rule, window)
    comes_over = log(rate) + log1p(-rate) + log_binomial(window - 1, least - 1, rate)
    is_over = sum(exp(log_binomial(window, count, rate)) for count in range(least, window + 1))
    outlived = _filling(rule)[1]
    low = _exp(2.0 * log(outlived) - log(2.0) - comes_over) if outlived else 0.0
    high = window / is_over if is_over else inf
    return min(max(low, float(rule.minimum)), high), high


def early_chance(rule: WindowRateRule) -> float:
    """The chance to fire within the first ``window`` episodes: while it fills, nothing leaves it, so the number of
    failures says all. A small minimum makes it large, and a long average run length does not show that.
    """
    return min(_filling(rule)[0], 1.0)


def _filling(rule: WindowRateRule) -> tuple[float, float]:
    """The chances that a window fires while it fills, and that it does not. The second is summed by itself: where it is
    next to nothing, 1 minus the first would be rounding.
    """
    rate = rule.promise.baseline_rate
    alive, fired = [1.0], 0.0
    for held in range(1, rule.window + 1):
        stays = [chance * (1.0 - rate) for chance in alive] + [0.0]
        fails = [0.0] + [chance * rate for chance in alive]
        alive = [one + other for one, other in zip(stays, fails, strict=True)]
        if held >= rule.minimum:
            least = needed_failures(rule, held)
            fired += sum(alive[least:])
            del alive[least:]
    return fired, sum(alive)


def log_binomial(trials: int, hits: int, rate: float) -> float:
    """The natural logarithm of P(Bin(trials, rate) = hits)."""
    ways = lgamma(trials + 1) - lgamma(hits + 1) - lgamma(trials - hits + 1)
    return ways + hits * log(rate) + (trials - hits) * log1p(-rate)


def _exp(value: float) -> float:
    try:
        return exp(value)
    except OverflowError:
        return inf


# --- from streams -------------------------------------------------------------------------------------------------


def from_streams(alarms: "NDArray[np.int64]", horizon: int) -> tuple[float, float, float | None]:
    """Estimate, lower and upper end (99 %) of E T from the first alarms of streams that were cut at ``horizon``.

    E T = E min(T, L) + P(T > L) E(T - L | T > L). The first two are measured. After half of the horizon, far beyond the
    window, an alarm that has not come yet comes with a chance per episode that no longer changes (the state of a
    stream without an alarm has settled), so the last term is what the second half shows: its episodes per alarm.

    With many alarms there the interval is the jackknife's over groups of streams. With few, or none, each of the three
    has an interval of its own, together at the confidence (Bonferroni), the alarms per episode that of a Poisson count
    (`poisson_bounds`). Without any alarm there is no upper end (None), and the lower end is what the exposure shows.

    Args:
        alarms: ordinal of each stream's first alarm; 0 where it had none. Shape: streams.
        horizon: episodes of each stream.
    """
    import numpy as np

    half = horizon // 2
    capped = np.where(alarms > 0, alarms, horizon).astype(np.float64)
    late = (alarms > half).astype(np.float64)
    exposed = np.maximum(capped - half, 0.0)
    outlived = (alarms == 0).astype(np.float64)
    columns = np.stack([capped, outlived, exposed, late])

    def estimate(sums: Any, count: int) -> float:
        restricted, survivors, exposure, hits = (float(each) for each in sums)
        if not survivors:
            return restricted / count
        return restricted / count + survivors / count * exposure / max(hits, 1.0)

    total = columns.sum(axis=1)
    value = estimate(total, len(alarms))
    hits, survivors, exposure = int(late.sum()), int(outlived.sum()), float(exposed.sum())
    if survivors and hits < FEW:
        return value, *_of_few(capped, survivors, exposure, hits)
    parts = np.array_split(np.arange(len(alarms)), min(GROUPS, len(alarms)))
    left_out = [estimate(total - columns[:, part].sum(axis=1), len(alarms) - len(part)) for part in parts]
    mean = sum(left_out) / len(left_out)
    error = sqrt((len(parts) - 1) / len(parts) * sum((each - mean) ** 2 for each in left_out))
    z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
    return value, value - z * error, value + z * error


def _of_few(capped: "NDArray[np.float64]", survivors: int, exposure: float, hits: int) -> tuple[float, float | None]:
    """Lower and upper end of E T, each of its three parts by itself."""
    each = 1.0 - (1.0 - CONFIDENCE) / 3
    z = NormalDist().inv_cdf(0.5 + each / 2)
    waited, spread = float(capped.mean()), z * float(capped.std()) / sqrt(len(capped))
    share = wilson(survivors, len(capped), each)
    assert share is not None, "at least one stream"
    fewest, most = poisson_bounds(hits, each)
    low = waited - spread + share[0] * exposure / most
    return low, waited + spread + share[1] * exposure / fewest if fewest else None


def poisson_bounds(count: int, confidence: float) -> tuple[float, float]:
    """The exact two-sided interval for the mean of a Poisson count (Garwood, Biometrika 28, 1936, 437-442).

    The ends are the means under which so many or more, or so many or fewer, come with a chance of half of what the
    confidence leaves: chi-square quantiles, found here by halving. For a count of 0 they are 0 and -ln(alpha / 2).
    """
    tail = (1.0 - confidence) / 2
    low = _mean_with(count - 1, 1.0 - tail) if count else 0.0
    return low, _mean_with(count, tail)


def _mean_with(count: int, chance: float) -> float:
    """The mean under which a Poisson variable is at most ``count`` with this chance."""
    low, high = 0.0, 2.0 * count + 100.0
    for _ in range(100):
        middle = (low + high) / 2
        below = sum(exp(number * log(middle) - middle - lgamma(number + 1)) for number in range(count + 1))
        low, high = (middle, high) if below > chance else (low, middle)
    return (low + high) / 2
