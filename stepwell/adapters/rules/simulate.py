"""Holds the verdict rules to their promises: many random streams of episodes at once, with NumPy.

`first_alarms` is `stepwell.engine.detection.promises.judge` for thousands of streams side by side (a test holds the two
equal on the same streams); `check_promise` compares what it measures with what the rule promises. Everything follows
from a seed.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from stepwell.adapters.rules.run_lengths import (
    CONFIDENCE,
    early_chance,
    exact_run_length,
    from_streams,
    run_length_bounds,
)
from stepwell.engine.detection.promises import rate_is_beyond, shift_is_seen
from stepwell.engine.intervals import wilson
from stepwell.engine.ruleset import InARowRule, RateRule, ShiftRule, VerdictRule, WindowRateRule
from stepwell.exceptions import MissingPartError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Flags = NDArray[np.bool_]
    Counts = NDArray[np.int64]
    Step = Callable[[Flags, bool], Flags]

STREAMS = 10_000
EPISODES_IN_ALL = 200_000_000
"""What the simulation of one average run length may take; seconds, not minutes."""
LEVEL_EPISODES = 1_000
SHIFT_EPISODES = 400
"""Of each checkpoint; more where the minimum leaves less than half of them to look at."""
SHIFT_RATES = (0.1, 0.3, 0.5, 0.7, 0.9)
"""The hypothesis of no shift says nothing about the rate itself: the level is measured at each of these."""


class Shown(StrEnum):
    """What came of holding a rule to its promise."""

    KEPT = "yes"
    NOT_KEPT = "no"
    OPEN = "cannot be shown"


@dataclass(frozen=True, slots=True)
class PromiseReport:
    """What was promised and what came of it.

    Attributes:
        rule: its name.
        kind: its kind.
        measure: ``average_run_length`` (at least ``promised``) or ``false_alarm_share`` (at most ``promised``).
        promised: what the rule states.
        measured: the exact value, or the estimate from the simulation; where bounds alone decided, the lower one.
        low: of the interval for it (99 %, or bounds that always hold).
        high: None where there is no upper end.
        exact: the true value, where there is a formula.
        streams: how many were simulated; 0 where a formula or bounds decided.
        episodes: the length of each.
        early: the chance to fire within the first ``early_episodes``, where an average may hide it (exact).
        early_episodes: the window's size.
    """

    rule: str
    kind: str
    measure: str
    promised: float
    measured: float
    low: float
    high: float | None
    exact: float | None
    streams: int
    episodes: int
    early: float | None = None
    early_episodes: int = 0

    @property
    def shown(self) -> Shown:
        """Whether the promise stands.

        A run length must be shown: its exact value, or the lower end of what was found, must reach it. The levels of
        ``rate`` and ``shift`` are theorems (`stepwell.engine.detection.evidence`); simulations can only contradict
        them.
        """
        if self.measure == "average_run_length":
            if self.promised <= (self.exact if self.exact is not None else self.low):
                return Shown.KEPT
            at_most = self.exact if self.exact is not None else self.high
            return Shown.NOT_KEPT if at_most is not None and at_most < self.promised else Shown.OPEN
        return Shown.KEPT if (self.exact if self.exact is not None else self.low) <= self.promised else Shown.NOT_KEPT

    @property
    def kept(self) -> bool:
        """Whether it was shown that the promise stands."""
        return self.shown is Shown.KEPT

    @property
    def found_by(self) -> str:
        """What was done, in words."""
        if not self.streams:
            return "formula" if self.exact is not None else "bounds"
        by = f"{self.streams:,} streams of {self.episodes:,}"
        if self.measure == "average_run_length":
            return by
        return f"formula, {by}" if self.exact is not None else f"theorem, {by}"


def check_promises(rules: Iterable[VerdictRule], tell: Callable[[VerdictRule], None]) -> list[PromiseReport]:
    """Hold each rule to its promise; rules that differ in what they count, not in how they judge, only once.

    Args:
        rules: all of a set.
        tell: called with each rule before it is looked at.

    Raises:
        MissingPartError: NumPy is not installed.
    """
    known: dict[str, PromiseReport] = {}
    reports = []
    for rule in rules:
        judged = rule.model_dump_json(exclude={"name", "version", "per", "counts", *_AFTERWARDS, "baseline"})
        if judged not in known:
            tell(rule)
            known[judged] = check_promise(rule)
        reports.append(replace(known[judged], rule=rule.name))
    return reports


_AFTERWARDS = ("cooldown_episodes", "cooldown_s", "expires_s")


def check_promise(rule: VerdictRule, streams: int = STREAMS, seed: int = 0) -> PromiseReport:
    """Compare what a rule promises with the exact value, with bounds, or with streams of independent episodes.

    Raises:
        MissingPartError: NumPy is not installed.
    """
    match rule:
        case InARowRule() | WindowRateRule():
            return _check_run_length(rule, streams, seed)
        case RateRule():
            return _check_rate_level(rule, streams, seed)
        case ShiftRule():
            return _check_shift_level(rule, streams, seed)


# --- many streams at once -----------------------------------------------------------------------------------------


def first_alarms(rule: VerdictRule, episodes: "Iterator[tuple[Flags, bool]]") -> "Counts":
    """For each stream the ordinal (from 1) of the episode at which the rule first fires; 0 if it never does.

    Args:
        rule: what judges.
        episodes: for each ordinal, which streams' episode failed (shape: streams) and whether it is the new
            checkpoint's (for a shift).
    """
    np = _numpy()
    step: Step | None = None
    alarms: Counts = np.zeros(0, dtype=np.int64)
    for ordinal, (failed, new) in enumerate(episodes, 1):
        if step is None:
            alarms = np.zeros(len(failed), dtype=np.int64)
            step = _step(rule, len(failed))
        fires = step(failed, new)
        alarms[fires & (alarms == 0)] = ordinal
        if alarms.all():
            break
    return alarms


def random_episodes(streams: int, episodes: int, rate: float, seed: int) -> "Iterator[tuple[Flags, bool]]":
    """Episodes of one checkpoint that fail independently with chance ``rate``; the same for the same seed."""
    generator = _numpy().random.Generator(_numpy().random.PCG64(seed))
    for _ in range(episodes):
        yield generator.random(streams) < rate, True


def random_pairs(
    streams: int, old: tuple[int, float], new: tuple[int, float], seed: int
) -> "Iterator[tuple[Flags, bool]]":
    """(episodes, rate) of an old checkpoint, then of a new one."""
    generator = _numpy().random.Generator(_numpy().random.PCG64(seed))
    for (episodes, rate), is_new in ((old, False), (new, True)):
        for _ in range(episodes):
            yield generator.random(streams) < rate, is_new


def _step(rule: VerdictRule, streams: int) -> "Step":
    match rule:
        case InARowRule():
            return _row_step(rule, streams)
        case WindowRateRule():
            return _window_step(rule, streams)
        case RateRule():
            return _rate_step(rule, streams)
        case ShiftRule():
            return _shift_step(rule, streams)


def _row_step(rule: InARowRule, streams: int) -> "Step":
    np = _numpy()
    run = np.zeros(streams, dtype=np.int64)

    def step(failed: "Flags", _: bool) -> "Flags":
        np.add(run, 1, out=run)
        np.multiply(run, failed, out=run)
        fires: Flags = run >= rule.length
        return fires

    return step


def _window_step(rule: WindowRateRule, streams: int) -> "Step":
    np = _numpy()
    window = np.zeros((rule.window, streams), dtype=np.bool_)
    failures = np.zeros(streams, dtype=np.int64)
    seen = 0

    def step(failed: "Flags", _: bool) -> "Flags":
        nonlocal seen
        slot = window[seen % rule.window]
        np.add(failures, failed, out=failures)
        np.subtract(failures, slot, out=failures)
        slot[:] = failed
        seen += 1
        held = min(seen, rule.window)
        fires: Flags = (failures / held > rule.limit) & (held >= rule.minimum)
        return fires

    return step


def _rate_step(rule: RateRule, streams: int) -> "Step":
    np = _numpy()
    failures = np.zeros(streams, dtype=np.int64)
    seen = needed = 0

    def step(failed: "Flags", _: bool) -> "Flags":
        nonlocal seen, needed
        np.add(failures, failed, out=failures)
        seen += 1
        needed = _least_failing_rate(rule, seen, needed)
        fires: Flags = failures >= needed
        return fires

    return step


def _shift_step(rule: ShiftRule, streams: int) -> "Step":
    np = _numpy()
    failures = np.zeros((2, streams), dtype=np.int64)
    episodes = [0, 0]
    needed: dict[int, int] = {}  # failures of the old checkpoint -> least failures of the new one that fire
    none: Flags = np.zeros(streams, dtype=np.bool_)

    def step(failed: "Flags", new: bool) -> "Flags":
        failures[int(new)] += failed
        episodes[int(new)] += 1
        if not new:
            needed.clear()
        if min(episodes) < rule.minimum:
            return none
        bound = np.zeros(episodes[0] + 1, dtype=np.int64)
        for old in np.unique(failures[0]).tolist():
            needed[old] = _least_failing_shift(rule, old, episodes, needed.get(old, 0))
            bound[old] = needed[old]
        fires: Flags = failures[1] >= bound[failures[0]]
        return fires

    return step


def _least_failing_rate(rule: RateRule, episodes: int, before: int) -> int:
    """With how many failures at least the rule fires after so many episodes; ``episodes + 1`` if with none.

    It never falls as episodes are added, so the search goes on from what it was one episode ``before``.
    """
    start = before if episodes > rule.minimum else 0
    fires = (count for count in range(start, episodes + 1) if rate_is_beyond(count, episodes, rule))
    return next(fires, episodes + 1)


def _least_failing_shift(rule: ShiftRule, old: int, episodes: list[int], before: int) -> int:
    """The same for failures of the new checkpoint, given those of the old one and the episodes of both.

    Beyond the old one's share the evidence grows with every failure, and below it there is none: so where nothing is
    known from before, halving finds it.
    """
    counts = range(episodes[1] + 1)
    if min(episodes) < rule.minimum:
        return len(counts)
    if before:
        fires = (n for n in counts[before:] if shift_is_seen(old, episodes[0], n, episodes[1], rule))
        return next(fires, len(counts))
    return bisect_left(counts, True, key=lambda n: shift_is_seen(old, episodes[0], n, episodes[1], rule))


# --- promises -----------------------------------------------------------------------------------------------------


def _check_run_length(rule: InARowRule | WindowRateRule, streams: int, seed: int) -> PromiseReport:
    promised = rule.promise.average_run_length
    early, episodes = (early_chance(rule), rule.window) if isinstance(rule, WindowRateRule) else (None, 0)

    def report(measured: float, low: float, high: float | None, exact: float | None) -> PromiseReport:
        return PromiseReport(
            rule=rule.name, kind=rule.kind, measure="average_run_length", promised=promised, measured=measured,
            low=low, high=high, exact=exact, streams=0, episodes=0, early=early, early_episodes=episodes,
        )  # fmt: skip

    exact = exact_run_length(rule)
    if exact is not None:
        return report(exact, exact, exact, exact)
    assert isinstance(rule, WindowRateRule), "rows have a formula"
    least, most = run_length_bounds(rule)
    if not least < promised <= most:
        return report(least, least, most, None)
    measured, low, high, horizon = simulated_run_length(rule, streams, seed)
    found = report(measured, max(low, least), most if high is None else min(high, most), None)
    return replace(found, streams=streams, episodes=horizon)


def simulated_run_length(
    rule: InARowRule | WindowRateRule, streams: int = STREAMS, seed: int = 0
) -> tuple[float, float, float | None, int]:
    """What streams show of a rule's average run length: estimate, lower and upper end, episodes of each stream.

    They are as long as four times the promise, but no more than `EPISODES_IN_ALL` together.
    """
    promise = rule.promise
    shortest = 4 * (rule.length if isinstance(rule, InARowRule) else rule.window)
    horizon = int(min(max(4 * promise.average_run_length, 1_000), EPISODES_IN_ALL / streams))
    horizon = max(horizon, shortest)
    alarms = first_alarms(rule, random_episodes(streams, horizon, promise.baseline_rate, seed))
    return *from_streams(alarms, horizon), horizon


def _check_rate_level(rule: RateRule, streams: int, seed: int) -> PromiseReport:
    episodes = max(LEVEL_EPISODES, 2 * rule.minimum)
    alarms = first_alarms(rule, random_episodes(streams, episodes, rule.limit, seed))
    return _level_report(rule, rule.level, alarms, episodes, rate_chance(rule, rule.limit, episodes))


def _check_shift_level(rule: ShiftRule, streams: int, seed: int) -> PromiseReport:
    episodes = max(SHIFT_EPISODES, rule.minimum + SHIFT_EPISODES // 2)
    worst = max(
        (
            first_alarms(rule, random_pairs(streams, (episodes, rate), (episodes, rate), seed + number))
            for number, rate in enumerate(SHIFT_RATES)
        ),
        key=lambda alarms: int((alarms > 0).sum()),
    )
    return _level_report(rule, rule.level, worst, 2 * episodes, None)


def _level_report(
    rule: RateRule | ShiftRule, level: float, alarms: "Counts", episodes: int, exact: float | None
) -> PromiseReport:
    fired = int((alarms > 0).sum())
    interval = wilson(fired, len(alarms), CONFIDENCE)
    assert interval is not None, "at least one stream"
    return PromiseReport(
        rule=rule.name, kind=rule.kind, measure="false_alarm_share", promised=level,
        measured=fired / len(alarms), low=interval[0], high=interval[1], exact=exact, streams=len(alarms),
        episodes=episodes,
    )  # fmt: skip


def rate_chance(rule: RateRule, rate: float, episodes: int) -> float:
    """The exact chance that the rule fires within so many episodes that fail independently with chance ``rate``.

    By carrying the distribution of the number of failures in streams that have not fired from episode to episode.
    """
    np = _numpy()
    alive = np.zeros(episodes + 2)
    alive[0] = 1.0
    fired, needed = 0.0, 0
    for seen in range(1, episodes + 1):
        alive[1:] = alive[1:] * (1.0 - rate) + alive[:-1] * rate
        alive[0] *= 1.0 - rate
        needed = _least_failing_rate(rule, seen, needed)
        fired += float(alive[needed:].sum())
        alive[needed:] = 0.0
    return fired


def earliest_alarm(rule: RateRule) -> int:
    """How many failures without any success, from the start, the rule needs before it fires."""
    count = rule.minimum
    while not rate_is_beyond(count, count, rule):
        count += 1
    return count


def _numpy() -> Any:
    try:
        import numpy as np
    except ImportError as error:
        raise MissingPartError("simulating streams needs NumPy: pip install 'stepwell[arrays]'") from error
    return np
