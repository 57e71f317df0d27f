"""Holds the verdict rules to their promises: many random streams of episodes at once, with NumPy.

`first_alarms` is `stepwell.engine.detection.promises.judge` for thousands of streams side by side (a test holds the two
equal on the same streams); `check_promise` compares what it measures with what the rule promises. Everything follows
from a seed.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from stepwell.engine.detection.promises import (
    rate_is_beyond,
    row_average_run_length,
    shift_is_seen,
)
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
"""What a simulation of an average run length may take; seconds, not minutes."""
LEVEL_EPISODES = 1_000
SHIFT_EPISODES = 400
"""Of each checkpoint."""
SHIFT_RATES = (0.1, 0.3, 0.5, 0.7, 0.9)
"""The hypothesis of no shift says nothing about the rate itself: the level is measured at each of these."""
CONFIDENCE = 0.99
GROUPS = 50


@dataclass(frozen=True, slots=True)
class PromiseReport:
    """What was promised and what came of it.

    Attributes:
        rule: its name.
        kind: its kind.
        measure: ``average_run_length`` (at least ``promised``) or ``false_alarm_share`` (at most ``promised``).
        promised: what the rule states.
        measured: the estimate from the simulation. For an average run length of which no stream saw the end: a bound
            from below.
        low: of the interval for what was measured (99 %).
        high: None where the simulation gives no upper bound.
        exact: the true value, where there is a formula.
        streams: how many were simulated.
        episodes: the length of each.
        fired: the share of streams that fired within it (for a shift: at the rate where most did).
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
    fired: float

    @property
    def kept(self) -> bool:
        """Whether the promise stands: by the exact value where there is one, else unless the simulation refutes it."""
        if self.measure == "average_run_length":
            return self.promised <= (self.exact if self.exact is not None else self.high or float("inf"))
        return (self.exact if self.exact is not None else self.low) <= self.promised


def check_promise(rule: VerdictRule, streams: int = STREAMS, seed: int = 0) -> PromiseReport:
    """Simulate a rule on streams of independent episodes and compare with its promise.

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

    def step(failed: "Flags", new: bool) -> "Flags":
        failures[int(new)] += failed
        episodes[int(new)] += 1
        if not new:
            needed.clear()
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
    """The same for failures of the new checkpoint, given those of the old one and the episodes of both."""
    start = before if episodes[1] > rule.minimum else 0
    fires = (n for n in range(start, episodes[1] + 1) if shift_is_seen(old, episodes[0], n, episodes[1], rule))
    return next(fires, episodes[1] + 1)


# --- promises -----------------------------------------------------------------------------------------------------


def _check_run_length(rule: InARowRule | WindowRateRule, streams: int, seed: int) -> PromiseReport:
    np = _numpy()
    promise = rule.promise
    shortest = 4 * (rule.length if isinstance(rule, InARowRule) else rule.window)
    horizon = int(min(max(4 * promise.average_run_length, 1_000), EPISODES_IN_ALL / streams))
    horizon = max(horizon, shortest)
    alarms = first_alarms(rule, random_episodes(streams, horizon, promise.baseline_rate, seed))
    measured, low, high = _run_length(alarms, horizon)
    exact = row_average_run_length(rule.length, promise.baseline_rate) if isinstance(rule, InARowRule) else None
    return PromiseReport(
        rule=rule.name, kind=rule.kind, measure="average_run_length",
        promised=promise.average_run_length, measured=measured, low=low, high=high, exact=exact, streams=streams,
        episodes=horizon, fired=float(np.mean(alarms > 0)),
    )  # fmt: skip


def _run_length(alarms: "Counts", horizon: int) -> tuple[float, float, float | None]:
    """Estimate, lower and upper end of the average run length from streams that were cut at ``horizon``.

    E T = E min(T, L) + P(T > L) E(T - L | T > L). The first two are measured. After half of the horizon, far beyond the
    window, an alarm that has not come yet comes with a chance per episode that no longer changes (the state of a
    stream without an alarm has settled), so the last term is what the second half shows: its episodes per alarm. The
    interval is the jackknife's over groups of streams.
    """
    np = _numpy()
    half = horizon // 2
    capped = np.where(alarms > 0, alarms, horizon)
    late = (alarms > half).astype(np.float64)
    exposed = np.maximum(capped - half, 0).astype(np.float64)
    outlived = (alarms == 0).astype(np.float64)
    columns = np.stack([capped.astype(np.float64), outlived, exposed, late])

    def estimate(sums: Any, count: int) -> float:
        restricted, survivors, exposure, hits = (float(each) for each in sums)
        if not survivors:
            return restricted / count
        return restricted / count + survivors / count * exposure / max(hits, 1.0)

    total = columns.sum(axis=1)
    value = estimate(total, len(alarms))
    parts = np.array_split(np.arange(len(alarms)), min(GROUPS, len(alarms)))
    left_out = [estimate(total - columns[:, part].sum(axis=1), len(alarms) - len(part)) for part in parts]
    mean = sum(left_out) / len(left_out)
    error = sqrt((len(parts) - 1) / len(parts) * sum((each - mean) ** 2 for each in left_out))
    z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
    if outlived.any() and late.sum() < 10:  # too few alarms to say more than what was certainly waited
        return value, float(capped.mean()), None
    return value, value - z * error, value + z * error


def _check_rate_level(rule: RateRule, streams: int, seed: int) -> PromiseReport:
    episodes = max(LEVEL_EPISODES, 2 * rule.minimum)
    alarms = first_alarms(rule, random_episodes(streams, episodes, rule.limit, seed))
    return _level_report(rule, rule.level, alarms, episodes, rate_chance(rule, rule.limit, episodes))


def _check_shift_level(rule: ShiftRule, streams: int, seed: int) -> PromiseReport:
    episodes = max(SHIFT_EPISODES, 2 * rule.minimum)
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
        episodes=episodes, fired=fired / len(alarms),
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
