"""What each verdict rule promises about firing by chance, and the rule itself as plainly as it can be written.

There are two kinds of promise. Rules that look for a pattern in the last few episodes (`InARowRule`, `WindowRateRule`)
fire by chance sooner or later, if only the stream is long enough; what can be promised is how long that takes on
average, at a failure rate that is called normal: the *average run length*, the usual measure of control charts. Rules
that collect evidence from the stream's start (`RateRule`, `ShiftRule`) promise a *level*: the chance ever to fire while
their hypothesis is true, however long the stream.

Every promise is about one key (policy, version, checkpoint and what the rule says under ``per``), about episodes that
fail independently of each other, and about the stream since it last started anew (after an answer and its cool-down).

`judge` gives each rule as a function of a plain stream of episodes. Simulations hold the promises against these judges
(`stepwell.adapters.rules.simulate`), and a test holds the detector's fold equal to them.
"""

from collections import deque
from collections.abc import Callable

from stepwell.engine.detection.evidence import rate_evidence, shift_evidence
from stepwell.engine.ruleset import InARowRule, RateRule, ShiftRule, VerdictRule, WindowRateRule

Judge = Callable[[bool, bool], bool]
"""(whether the next counted episode failed, whether it is one of the new checkpoint) -> whether the rule fires now.

Only a `ShiftRule` looks at the second; episodes that say nothing about the policy never come to a judge."""


def judge(rule: VerdictRule) -> Judge:
    """A fresh judge for one stream of episodes: the rule's meaning, without keys, windows of time or amendments."""
    match rule:
        case InARowRule():
            return _row_judge(rule.length)
        case WindowRateRule():
            return _window_judge(rule)
        case RateRule():
            return _rate_judge(rule)
        case ShiftRule():
            return _shift_judge(rule)


def _row_judge(length: int) -> Judge:
    run = 0

    def sees(failed: bool, _: bool) -> bool:
        nonlocal run
        run = run + 1 if failed else 0
        return run >= length

    return sees


def _window_judge(rule: WindowRateRule) -> Judge:
    window: deque[bool] = deque(maxlen=rule.window)

    def sees(failed: bool, _: bool) -> bool:
        window.append(failed)
        return window_is_over(sum(window), len(window), rule)

    return sees


def _rate_judge(rule: RateRule) -> Judge:
    failures = episodes = 0

    def sees(failed: bool, _: bool) -> bool:
        nonlocal failures, episodes
        failures, episodes = failures + failed, episodes + 1
        return rate_is_beyond(failures, episodes, rule)

    return sees


def _shift_judge(rule: ShiftRule) -> Judge:
    failures, episodes = [0, 0], [0, 0]  # of the old and of the new checkpoint

    def sees(failed: bool, new: bool) -> bool:
        failures[new] += failed
        episodes[new] += 1
        return shift_is_seen(failures[0], episodes[0], failures[1], episodes[1], rule)

    return sees


def window_is_over(failures: int, episodes: int, rule: WindowRateRule) -> bool:
    """Whether the share of failures in a window is above the limit; a quotient, so that 29 of 100 is 0.29, not more."""
    return episodes >= rule.minimum and failures / episodes > rule.limit


def rate_is_beyond(failures: int, episodes: int, rule: RateRule) -> bool:
    """Whether the evidence for a rate beyond the limit has reached 1 / level."""
    return episodes >= rule.minimum and rate_evidence(failures, episodes, rule.limit).at_least(1.0 / rule.level)


def shift_is_seen(old_failures: int, old_episodes: int, new_failures: int, new_episodes: int, rule: ShiftRule) -> bool:
    """Whether the evidence that the new checkpoint fails more often has reached 1 / level."""
    if min(old_episodes, new_episodes) < rule.minimum:
        return False
    return shift_evidence(old_failures, old_episodes, new_failures, new_episodes).at_least(1.0 / rule.level)


# --- runs, exactly ------------------------------------------------------------------------------------------------


def row_average_run_length(length: int, rate: float) -> float:
    """Episodes on average until ``length`` failures in a row are first complete, each failing with chance ``rate``.

    (1 - p^N) / (p^N (1 - p)); W. Feller, An Introduction to Probability Theory and Its Applications, vol. 1, 3rd ed.
    1968, XIII.7.

    All failures are taken to be of one type. Where they are of several, a row of the same type is rarer than a row of
    any: the figure is a lower bound, and a promise that holds for one type holds for any mixture.
    """
    power = _power(rate, length)
    return (1.0 - power) / (power * (1.0 - rate)) if power else float("inf")


def row_chance(length: int, rate: float, episodes: int) -> float:
    """The chance that a stream of so many episodes holds a row of ``length`` failures.

    The chance of no row within n episodes obeys a(n) = a(n - 1) - p^N (1 - p) a(n - N - 1): the row that is complete at
    n begins after a success, before which there was none.
    """
    power = _power(rate, length)
    none = [1.0] * min(length, episodes + 1)
    for n in range(length, episodes + 1):
        none.append(1.0 - power if n == length else none[-1] - power * (1.0 - rate) * none[n - length - 1])
    return 1.0 - none[episodes]


def _power(base: float, exponent: int) -> float:
    result = 1.0
    for _ in range(exponent):
        result *= base
    return result
