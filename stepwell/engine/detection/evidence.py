"""How much a stream of episodes speaks against a hypothesis, judged after every episode.

Both tests here are *e-processes*: numbers that start at 1, are never negative and, while the hypothesis is true, have
an expectation of at most 1 at whatever moment one chooses to look. By Ville's inequality the chance that such a number
*ever* reaches ``1 / level`` is then at most ``level``, however long the stream and however often one looks. A bound for
one look at a fixed number of episodes (Wilson's, say), taken again after every episode, promises nothing of the kind.

Both divide the likelihood of what was seen, averaged over every rate, by the largest likelihood that the hypothesis can
give it. The average is taken over Jeffreys' distribution Beta(1/2, 1/2), which for f failures and s successes comes to

    KT(f, s) = B(f + 1/2, s + 1/2) / B(1/2, 1/2) = r(f) r(s) / C(f + s, f),
    r(k) = (1/2) (3/4) (5/6) ... ((2k - 1) / 2k),

with C the binomial coefficient. For any one rate p the ratio ``KT(f, s) / (p^f (1 - p)^s)`` is a martingale where p is
true; dividing by the largest likelihood instead gives something that lies below every one of them.

Sources: J. Ville, Étude critique de la notion de collectif, Gauthier-Villars 1939 (the inequality). H. Robbins,
Statistical methods related to the law of the iterated logarithm, Ann. Math. Stat. 41 (1970) 1397-1409 (mixtures). R. E.
Krichevsky, V. K. Trofimov, The performance of universal encoding, IEEE Trans. Inf. Theory 27 (1981) 199-207 (this
mixture). L. Wasserman, A. Ramdas, S. Balakrishnan, Universal inference, PNAS 117 (2020) 16880-16890 (dividing by the
largest likelihood of a composite hypothesis).

**Numbers.** What is decided here is replayed on other machines, so nothing is taken from a mathematics library: only
sums, products, quotients and comparisons of IEEE doubles in a fixed order, with the power of two kept apart (`Scaled`)
so that nothing runs over. The relative error is below 1e-15 per episode counted (1e-9 at a million episodes).
"""

from dataclasses import dataclass
from math import frexp, inf, ldexp

_STRIDE = 8
"""Of each running product every 8th value is kept; the ones between are made again."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """A number that is not negative, ``mantissa * 2**exponent``, of any size; made by `scaled`.

    Attributes:
        mantissa: in [0.5, 1), or 0.
        exponent: of two; 0 where the number is 0.
    """

    mantissa: float
    exponent: int

    def __mul__(self, other: "Scaled") -> "Scaled":
        return scaled(self.mantissa * other.mantissa, self.exponent + other.exponent)

    def __truediv__(self, other: "Scaled") -> "Scaled":
        return scaled(self.mantissa / other.mantissa, self.exponent - other.exponent)

    def at_least(self, threshold: float) -> bool:
        """Whether the number is ``threshold`` or more: an exact comparison, for any finite threshold."""
        bound = scaled(threshold)
        if self.mantissa == 0.0 or bound.mantissa == 0.0:
            return bound.mantissa == 0.0
        return (self.exponent, self.mantissa) >= (bound.exponent, bound.mantissa)

    def __float__(self) -> float:
        """The nearest double; infinity and zero beyond its range."""
        try:
            return ldexp(self.mantissa, self.exponent)
        except OverflowError:
            return inf

    def __str__(self) -> str:
        """Three digits, for people, e.g. ``214`` or ``1.55e+06``."""
        value = float(self)
        return "over 1e+308" if value == inf else f"{value:.3g}"


def scaled(value: float, exponent: int = 0) -> Scaled:
    """``value * 2**exponent``, exactly (`math.frexp` only takes a double apart).

    Raises:
        ValueError: the value is negative, infinite or no number.
    """
    if not 0.0 <= value < inf:
        raise ValueError(f"must be a finite number that is not negative; got {value}")
    mantissa, shift = frexp(value)
    return Scaled(mantissa, exponent + shift) if mantissa else ZERO


ZERO = Scaled(0.0, 0)
ONE = Scaled(0.5, 1)


def rate_evidence(failures: int, episodes: int, limit: float) -> Scaled:
    """Evidence that the failure rate lies beyond ``limit``.

    With s = episodes - failures and p* = min(failures / episodes, limit), the rate up to the limit that explains the
    counts best:

        E = KT(f, s) / (p*^f (1 - p*)^s).

    While the share of failures does not exceed the limit, E is at most 1. The level also holds where the rate moves, as
    long as each episode, given all before it, fails with a chance of at most ``limit``: beyond the limit E is at most
    w + S, w being the mixture's weight below the limit and S its part above, a supermartingale that starts at 1 - w; so
    E reaches 1 / level with a chance of at most (1 - w) / (1 / level - w), which is no more than the level.

    Raises:
        ValueError: the counts are impossible, or the limit is not between 0 and 1.
    """
    _check("failures", failures, episodes)
    if not 0.0 < limit < 1.0:
        raise ValueError(f"limit must lie between 0 and 1, not {limit}")
    successes = episodes - failures
    if failures <= limit * episodes:
        return _mixture(failures, successes) / _best_likelihood(failures, successes)
    return _mixture(failures, successes) / (_power(limit, failures) * _power(1.0 - limit, successes))


def shift_evidence(old_failures: int, old_episodes: int, new_failures: int, new_episodes: int) -> Scaled:
    """Evidence that a new checkpoint fails more often than an old one.

    The hypothesis is that the new rate is not higher. Where the share of failures is not higher either, each side's own
    share explains its counts best, else the share of both together does (the two likelihoods are concave in the rate,
    so the best point under the constraint lies on its edge):

        E = KT(f0, s0) KT(f1, s1) / (p0^f0 (1 - p0)^s0 p1^f1 (1 - p1)^s1).

    The two streams may grow in any order and one may stand still. Within each stream the rate must be the same for all
    episodes: give both checkpoints the same tasks and scenes in the same proportions. 1 while either is empty.

    Raises:
        ValueError: the counts are impossible.
    """
    _check("old_failures", old_failures, old_episodes)
    _check("new_failures", new_failures, new_episodes)
    if not old_episodes or not new_episodes:
        return ONE
    old_successes, new_successes = old_episodes - old_failures, new_episodes - new_failures
    seen = _mixture(old_failures, old_successes) * _mixture(new_failures, new_successes)
    if new_failures * old_episodes <= old_failures * new_episodes:
        return seen / (_best_likelihood(old_failures, old_successes) * _best_likelihood(new_failures, new_successes))
    return seen / _best_likelihood(old_failures + new_failures, old_successes + new_successes)


def _check(name: str, failures: int, episodes: int) -> None:
    if not 0 <= failures <= episodes:
        raise ValueError(f"{name} must lie in 0..episodes; got {failures} of {episodes}")


def _mixture(failures: int, successes: int) -> Scaled:
    """KT(f, s) of the module's text, with C(f + s, f) from factorials."""
    coefficient = _FACTORIALS.at(failures + successes) / (_FACTORIALS.at(failures) * _FACTORIALS.at(successes))
    return _HALVES.at(failures) * _HALVES.at(successes) / coefficient


def _best_likelihood(failures: int, successes: int) -> Scaled:
    """p^f (1 - p)^s at its highest, p = f / (f + s)."""
    episodes = failures + successes
    if not failures or not successes:
        return ONE
    return _power(failures / episodes, failures) * _power(successes / episodes, successes)


def _power(base: float, exponent: int) -> Scaled:
    """By repeated squaring; mantissas and exponents stand by themselves, which is three times as fast."""
    result, result_exponent = 1.0, 0
    square, square_exponent = frexp(base)
    while exponent:
        if exponent & 1:
            result, shift = frexp(result * square)
            result_exponent += square_exponent + shift
        exponent >>= 1
        square, shift = frexp(square * square)
        square_exponent = 2 * square_exponent + shift
    return scaled(result, result_exponent)


class _Products:
    """A running product ``prod_{i < k} (a i + b) / (c i + d)`` for every k.

    What was worked out is kept (every 8th value), so a growing stream costs a bounded number of multiplications per
    episode; the order of the multiplications, and so each value's last bit, is the same whatever was asked before.
    """

    def __init__(self, numerator: tuple[int, int], denominator: tuple[int, int]) -> None:
        self._numerator = numerator
        self._denominator = denominator
        self._kept: tuple[Scaled, ...] = (ONE,)

    def at(self, k: int) -> Scaled:
        block = k // _STRIDE
        kept = self._kept
        if block >= len(kept):
            grown = list(kept)
            while len(grown) <= max(block, 2 * len(kept)):  # at least twofold: the copying is amortised
                grown.append(self._onwards(grown[-1], (len(grown) - 1) * _STRIDE, len(grown) * _STRIDE))
            kept = self._kept = tuple(grown)  # in one step: another thread sees the old or the new
        return self._onwards(kept[block], block * _STRIDE, k)

    def _onwards(self, value: Scaled, start: int, end: int) -> Scaled:
        (a, b), (c, d) = self._numerator, self._denominator
        mantissa, exponent = value.mantissa, value.exponent
        for i in range(start, end):
            mantissa, shift = frexp(mantissa * ((a * i + b) / (c * i + d)))
            exponent += shift
        return Scaled(mantissa, exponent)


_FACTORIALS = _Products((1, 1), (0, 1))
_HALVES = _Products((2, 1), (2, 2))
