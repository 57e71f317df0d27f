"""Which task, scene, perturbation or seed explains a policy's failures.

Every value of every factor is tested by itself: do the episodes that have it fail more often (or less) than those that
have another? Episodes are compared with their like only: within strata of equal values of the other factors (seeds
aside: hardly two episodes share all of them), so that a perturbation is not blamed for the scene that it was mostly
run in. The test is exact (`stepwell.adapters.analysis.exact`), since a handful of episodes per cell is the usual case.

Where most episodes with a value have no counterpart in their stratum (a scene that was only run with one task, say),
no comparison can tell the two apart. Then as few factors as possible are left out of the strata, and the result names
what the value goes together with.

All P values of the report are adjusted together after Holm: the chance that *anything* is called significant while
nothing explains the failures is at most 5 %. A false discovery rate (Benjamini and Hochberg) would find a little more,
but tests of one value against the rest depend on each other, and whoever reads the first line and retrains for it wants
that line to be right.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from stepwell.adapters.analysis.exact import OddsRatio, Stratum, common_odds_ratio, holm
from stepwell.adapters.analysis.verdicts import Sample, Wanted
from stepwell.events.model import VerdictIssued
from stepwell.exceptions import NotFoundError

FACTORS: dict[str, Callable[[VerdictIssued], str]] = {
    "task": lambda verdict: verdict.task,
    "scene": lambda verdict: verdict.scene,
    "perturbation": lambda verdict: verdict.perturbation,
    "seed": lambda verdict: str(verdict.seed),
}
STRATIFIED_BY = ("task", "scene", "perturbation")
ALPHA = 0.05
EPISODES_MIN = 20
FAILURES_MIN = 3
"""Fewer failures, or fewer episodes without one, cannot come out significant after correction."""
VALUE_EPISODES_MIN = 3
"""A value with fewer episodes is not tested: it could not come out, and would make the others' correction worse."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """One value of one factor.

    Attributes:
        factor, value: e.g. ``perturbation`` and ``dark``.
        failures, episodes: with this value, in the strata that were compared.
        other_failures, other_episodes: with another value, in the same strata.
        odds_ratio: of failing, with this value against the others; with its exact 95 % interval and P value.
        adjusted: the P value after Holm's correction over all tests of the report.
        goes_with: what it could not be told apart from: a value of another factor that all its episodes share, e.g.
            ``scene=desk``, or a factor.
    """

    factor: str
    value: str
    failures: int
    episodes: int
    other_failures: int
    other_episodes: int
    odds_ratio: OddsRatio
    adjusted: float
    goes_with: tuple[str, ...]

    @property
    def significant(self) -> bool:
        """Whether it stands after correction, at 5 %."""
        return self.adjusted <= ALPHA

    @property
    def more(self) -> bool:
        """Whether episodes with this value fail more often, not less."""
        return self.odds_ratio.estimate > 1.0

    @property
    def difference(self) -> float:
        """Failure rate with this value less that with the others, as counted."""
        return self.failures / self.episodes - self.other_failures / self.other_episodes


@dataclass(frozen=True, slots=True)
class Explained:
    """The ranking.

    Attributes:
        tests: what makes failures likelier first, by P value; then what makes them rarer.
        untested: values with too few episodes or nothing to compare them with.
        failures, episodes: of the whole sample.
    """

    tests: tuple[Explanation, ...]
    untested: int
    failures: int
    episodes: int


def explain(sample: Sample, wanted: Wanted) -> Explained:
    """Rank what explains the failures.

    Raises:
        NotFoundError: too few episodes, failures or successes to tell anything.
        MissingPartError: SciPy is not installed.
    """
    failed = [wanted.failed(verdict) for verdict in sample.scored]
    _check_enough(len(failed), sum(failed))
    values = [{name: of(verdict) for name, of in FACTORS.items()} for verdict in sample.scored]
    found: list[Explanation] = []
    untested = 0
    for factor in FACTORS:
        counts = Counter(each[factor] for each in values)
        if len(counts) < 2:
            continue
        for value, count in sorted(counts.items()):
            test = _test(factor, value, values, failed) if count >= VALUE_EPISODES_MIN else None
            if test is None:
                untested += 1
            else:
                found.append(test)
    return Explained(_ranked(found), untested, sum(failed), len(failed))


def _check_enough(episodes: int, failures: int) -> None:
    if episodes < EPISODES_MIN or min(failures, episodes - failures) < FAILURES_MIN:
        raise NotFoundError(
            f"too few to explain anything: {episodes} scored first attempts, {failures} of them failures; at least "
            f"{EPISODES_MIN} are needed, {FAILURES_MIN} of them failures and {FAILURES_MIN} not"
        )


def _test(factor: str, value: str, values: Sequence[dict[str, str]], failed: Sequence[bool]) -> Explanation | None:
    by, compared = _compared(factor, value, values, failed)
    result = common_odds_ratio(compared)
    if result is None:
        return None
    return Explanation(
        factor, value,
        failures=sum(each.exposed_failed for each in compared), episodes=sum(each.exposed for each in compared),
        other_failures=sum(each.others_failed for each in compared),
        other_episodes=sum(each.others for each in compared),
        odds_ratio=result, adjusted=1.0, goes_with=_companions(factor, value, values, by),
    )  # fmt: skip


def _compared(
    factor: str, value: str, values: Sequence[dict[str, str]], failed: Sequence[bool]
) -> tuple[tuple[str, ...], list[Stratum]]:
    """The factors that the strata go by, as many as can be, and the strata that hold this value and others."""
    count = sum(each[factor] == value for each in values)
    others = [name for name in STRATIFIED_BY if name != factor]
    for by in (subset for size in range(len(others), 0, -1) for subset in combinations(others, size)):
        compared = _strata(factor, value, values, failed, by)
        if 2 * sum(stratum.exposed for stratum in compared) >= count:
            return by, compared
    return (), _strata(factor, value, values, failed, ())


def _strata(
    factor: str, value: str, values: Sequence[dict[str, str]], failed: Sequence[bool], by: Sequence[str]
) -> list[Stratum]:
    counts: dict[tuple[str, ...], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for each, failure in zip(values, failed, strict=True):
        cell = counts[tuple(each[name] for name in by)]
        at = 0 if each[factor] == value else 2
        cell[at] += 1
        cell[at + 1] += failure
    strata = [Stratum(*cell) for _, cell in sorted(counts.items())]
    return [stratum for stratum in strata if stratum.exposed and stratum.others]


def _companions(factor: str, value: str, values: Sequence[dict[str, str]], by: Sequence[str]) -> tuple[str, ...]:
    """What the strata left out: the one value that all these episodes share, or the factor."""
    found = []
    for name in STRATIFIED_BY:
        if name != factor and name not in by:
            own = {each[name] for each in values if each[factor] == value}
            found.append(f"{name}={own.pop()}" if len(own) == 1 else name)
    return tuple(found)


def _ranked(found: Iterable[Explanation]) -> tuple[Explanation, ...]:
    tests = list(found)
    adjusted = holm([test.odds_ratio.p_value for test in tests])
    final = [replace(test, adjusted=p_value) for test, p_value in zip(tests, adjusted, strict=True)]
    order = tuple(FACTORS)
    return tuple(
        sorted(
            final,
            key=lambda test: (
                not test.more, test.odds_ratio.p_value, -abs(test.difference), order.index(test.factor), test.value,
            ),
        )
    )  # fmt: skip
