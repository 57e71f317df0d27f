"""Exact inference for one or more 2x2 tables with a common odds ratio.

Each stratum k has ``n`` episodes, of which ``m`` are exposed (have the value that is looked at) and ``t`` failed. Given
these margins, the number x of exposed episodes that failed follows, with an odds ratio psi, a noncentral
hypergeometric distribution, P(x) ~ C(m, x) C(n - m, t - x) psi^x. The sum S over the strata has the convolution of
these as its distribution. That needs no large numbers, and strata that differ in their failure rates do not lead it
astray. With one stratum the test is Fisher's.

Sources: R. A. Fisher, The logic of inductive inference, J. R. Stat. Soc. 98 (1935) 39-82. J. J. Gart, Point and
interval estimation of the common odds ratio in the combination of 2x2 tables with fixed marginals, Biometrika 57 (1970)
471-475. C. R. Mehta, N. R. Patel, R. Gray, Computing an exact confidence interval for the common odds ratio in several
2x2 contingency tables, JASA 80 (1985) 969-973.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from stepwell.exceptions import MissingPartError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TIE = 1.0 + 1e-7
"""Outcomes whose probabilities differ by rounding alone are equally extreme."""
LOG_ODDS_MAX = 700.0


class Stratum(NamedTuple):
    """One 2x2 table."""

    exposed: int
    exposed_failed: int
    others: int
    others_failed: int

    @property
    def informative(self) -> bool:
        """Whether it can tell anything: both groups are there, and neither all nor none of the episodes failed."""
        failed = self.exposed_failed + self.others_failed
        return self.exposed > 0 and self.others > 0 and 0 < failed < self.exposed + self.others


class OddsRatio(NamedTuple):
    """What the tables say about a common odds ratio.

    Attributes:
        estimate: the conditional maximum likelihood estimate; 0 and infinity are possible.
        low, high: the exact interval.
        p_value: two-sided, for an odds ratio of 1: all outcomes that are no more probable than the one seen.
    """

    estimate: float
    low: float
    high: float
    p_value: float


def common_odds_ratio(strata: Sequence[Stratum], confidence: float = 0.95) -> OddsRatio | None:
    """Test and estimate; None where no stratum is informative.

    Raises:
        MissingPartError: SciPy is not installed.
    """
    tables = [stratum for stratum in strata if stratum.informative]
    if not tables:
        return None
    np = _numpy()
    first, weights = _null_distribution(tables)
    support = np.arange(first, first + len(weights), dtype=np.float64)
    at = sum(table.exposed_failed for table in tables) - first
    p_value = float(min(1.0, weights[weights <= weights[at] * TIE].sum()))
    tail = (1.0 - confidence) / 2.0
    solve = _Solver(support, weights)
    top = len(weights) - 1
    # The interval holds the odds ratios at which what was seen is not in the outer tail.
    low = 0.0 if at == 0 else solve.log_odds(lambda p: p[at:].sum() - tail)
    high = float("inf") if at == top else solve.log_odds(lambda p: tail - p[: at + 1].sum())
    if at in (0, top):
        estimate = 0.0 if at == 0 else float("inf")
    else:
        estimate = solve.log_odds(lambda p: float(p @ support) - support[at])
    return OddsRatio(estimate, low, high, p_value)


def _null_distribution(tables: Sequence[Stratum]) -> "tuple[int, NDArray[np.float64]]":
    """Least value of S and the probabilities from there on, for an odds ratio of 1."""
    np = _numpy()
    try:
        from scipy.stats import hypergeom
    except ImportError as error:
        raise MissingPartError("this analysis needs SciPy: pip install 'stepwell[analysis]'") from error
    first, weights = 0, np.ones(1)
    for exposed, exposed_failed, others, others_failed in tables:
        failed = exposed_failed + others_failed
        low, high = max(0, failed - others), min(failed, exposed)
        values = hypergeom.pmf(np.arange(low, high + 1), exposed + others, failed, exposed)
        weights = np.convolve(weights, values)
        first += low
    return first, weights / weights.sum()


class _Solver:
    """Finds the odds ratio at which something of the distribution of S is zero."""

    def __init__(self, support: Any, weights: Any) -> None:
        np = _numpy()
        self._support = support - support[0]
        # A probability that is too small for a double is that of an outcome which no odds ratio here comes near.
        with np.errstate(divide="ignore"):
            self._logs = np.log(weights)

    def log_odds(self, value: Any) -> float:
        """The odds ratio at the root of ``value``, which must rise with it."""
        low, high = -LOG_ODDS_MAX, LOG_ODDS_MAX
        while high - low > 1e-10 * max(1.0, abs(low), abs(high)):
            middle = (low + high) / 2.0
            if value(self._probabilities(middle)) < 0.0:
                low = middle
            else:
                high = middle
        odds: float = _numpy().exp((low + high) / 2.0)
        return float(odds)

    def _probabilities(self, log_odds: float) -> Any:
        np = _numpy()
        tilted = self._logs + log_odds * self._support
        probabilities = np.exp(tilted - tilted.max())
        return probabilities / probabilities.sum()


def holm(p_values: Sequence[float]) -> list[float]:
    """P values adjusted so that the chance of *any* false finding among them is at most the level they are held to.

    Holds however the tests depend on each other. S. Holm, A simple sequentially rejective multiple test procedure,
    Scand. J. Stat. 6 (1979) 65-70.
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted = [1.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def _numpy() -> Any:
    try:
        import numpy as np
    except ImportError as error:
        raise MissingPartError("this analysis needs NumPy and SciPy: pip install 'stepwell[analysis]'") from error
    return np
