"""Two rates of success on the same trials, e.g. two checkpoints on the same seeds."""

from dataclasses import dataclass
from math import comb, sqrt

from stepwell.engine.intervals import wilson


@dataclass(frozen=True, slots=True)
class Pairs:
    """How often each pair of results came up.

    Attributes:
        both: success before and after.
        lost: only before.
        gained: only after.
        neither: in neither.
    """

    both: int = 0
    lost: int = 0
    gained: int = 0
    neither: int = 0

    @property
    def n(self) -> int:
        """Pairs."""
        return self.both + self.lost + self.gained + self.neither

    @property
    def before(self) -> int:
        """Successes before."""
        return self.both + self.lost

    @property
    def after(self) -> int:
        """Successes after."""
        return self.both + self.gained

    @property
    def difference(self) -> float | None:
        """Rate after minus rate before; None without pairs."""
        return (self.gained - self.lost) / self.n if self.n else None

    def __add__(self, other: "Pairs") -> "Pairs":
        return Pairs(
            self.both + other.both, self.lost + other.lost, self.gained + other.gained, self.neither + other.neither
        )

    def interval(self, confidence: float = 0.95) -> tuple[float, float] | None:
        """An interval for `difference`; None without pairs.

        Source: R. G. Newcombe, Improved confidence intervals for the difference between binomial proportions based on
        paired data, Statistics in Medicine 17 (1998) 2635-2650, method 10: Wilson's bounds of the two rates, joined
        with their correlation, which is corrected for continuity where it is positive.
        """
        before, after = wilson(self.before, self.n, confidence), wilson(self.after, self.n, confidence)
        if before is None or after is None:
            return None
        n = self.n
        old, new = self.before / n, self.after / n
        phi = self._correlation()
        down_new, up_new = new - after[0], after[1] - new
        down_old, up_old = old - before[0], before[1] - old
        difference = (self.gained - self.lost) / n
        low = difference - _joined(down_new, up_old, phi)
        high = difference + _joined(up_new, down_old, phi)
        return max(low, -1.0), min(high, 1.0)

    def p_value(self) -> float:
        """The chance of so uneven a split of the pairs that differ, were better and worse equally likely; two-sided.

        Source: Q. McNemar, Note on the sampling error of the difference between correlated proportions or percentages,
        Psychometrika 12 (1947) 153-157, in its exact form: the sign test on the pairs that differ.
        """
        differing = self.lost + self.gained
        if self.lost == self.gained:
            return 1.0
        tail = sum(comb(differing, k) for k in range(min(self.lost, self.gained) + 1))
        return float(min(1.0, 2 * tail / 2.0**differing))

    def _correlation(self) -> float:
        product = self.before * (self.n - self.before) * self.after * (self.n - self.after)
        if product == 0:
            return 0.0
        excess = self.both * self.neither - self.lost * self.gained
        corrected = max(excess - self.n / 2, 0.0) if excess > 0 else float(excess)
        return corrected / sqrt(product)


def _joined(one: float, other: float, phi: float) -> float:
    """The distance that two one-sided distances with correlation ``phi`` add up to."""
    return sqrt(max(one * one - 2 * phi * one * other + other * other, 0.0))
