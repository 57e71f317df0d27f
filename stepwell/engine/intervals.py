"""Confidence intervals for rates."""

from math import sqrt
from statistics import NormalDist


def wilson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float] | None:
    """Wilson's score interval for a binomial rate; None without trials.

    It holds for one look at a fixed number of trials: looked at again after every episode it has no level.

    Source: E. B. Wilson, Probable inference, the law of succession, and statistical inference, JASA 22 (1927) 209-212.
    """
    if not 0 <= successes <= trials:
        raise ValueError(f"successes must lie in 0..trials; got {successes} of {trials}")
    if trials == 0:
        return None
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    rate = successes / trials
    scale = 1 + z * z / trials
    centre = (rate + z * z / (2 * trials)) / scale
    half = z / scale * sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    # At 0 and n successes the bound is exactly 0 and 1; rounding would leave 1e-17 of doubt.
    return (0.0 if successes == 0 else centre - half, 1.0 if successes == trials else centre + half)
