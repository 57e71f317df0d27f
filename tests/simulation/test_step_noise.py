"""Step rules on signals that are nothing but noise: how often each finds its label by chance, over 10,000 attempts.

A step rule tells what the recorded steps show, so it has no false alarms in that sense. What its numbers must keep
apart is a healthy policy with a little noise from a sick one; for K steps in a row the chance has a formula.
"""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stepwell.engine.detection.promises import row_chance
from stepwell.engine.intervals import wilson
from stepwell.engine.ruleset import (
    Condition,
    FrozenRule,
    LimitRule,
    NonfiniteRule,
    OscillatingRule,
    SaturatedRule,
    SequenceRule,
    StagnationRule,
    StaleRule,
    StepRule,
)
from stepwell.engine.steps.kernels import Kernel, kernel_of
from stepwell.engine.steps.signals import Moment, condition_reader

Signals = NDArray[np.float64]
ATTEMPTS = 10_000
STEPS = 100
SEED = 20_261_201

SATURATED = SaturatedRule(kind="saturated", name="saturated")
FROZEN = FrozenRule(kind="frozen", name="frozen")
OSCILLATING = OscillatingRule(kind="oscillating", name="oscillating")
NONFINITE = NonfiniteRule(kind="nonfinite", name="nonfinite")
STUCK = StagnationRule(kind="stagnation", name="stuck", signal="metric.distance", direction="falling", steps=20)
HUNG = StaleRule(kind="stale", name="hung", signal="observation.proprio", steps=3)
NOT_LIFTED = SequenceRule(
    kind="sequence", name="not_lifted", first=Condition(signal="metric.grasp", above=0.5),
    then=Condition(signal="metric.lift", above=0.5), within_steps=10,
)  # fmt: skip


def found(rule: StepRule, signals: Signals) -> int:
    """In how many attempts (rows) the rule's own kernel finds its label; one element a step."""
    kernel, slots = compiled(rule)
    limits = slots.get(("range", kernel.signals[0]))
    values = slots.get(("values", kernel.signals[0]))
    number = slots.get(("number", kernel.signals[0]))
    content = slots.get(("content", kernel.signals[0]))

    def readings(value: float) -> list[Any]:
        told: list[Any] = [None] * len(slots)
        for slot, reading in ((limits, (value, value)), (values, (value,)), (number, value), (content, repr(value))):
            if slot is not None:
                told[slot] = reading
        return told

    total = 0
    for attempt in signals.tolist():
        state = kernel.fresh()
        total += any(kernel.see(state, readings(value), at) for at, value in enumerate(attempt))
    return total


def compiled(rule: StepRule) -> tuple[Kernel[Any], dict[Any, int]]:
    """The rule's kernel, and which slot holds what."""
    slots: dict[Any, int] = {}
    return kernel_of(rule, lambda key, _: slots.setdefault(key, len(slots))), slots


def noise(spread: float, attempts: int = ATTEMPTS) -> Signals:
    return np.random.default_rng(SEED).normal(0.0, spread, (attempts, STEPS))


def smooth(spread: float) -> Signals:
    """One slow swing of half the action's range, the phase of each attempt its own, with noise on it."""
    phases = np.random.default_rng(SEED + 1).random((ATTEMPTS, 1)) * 2 * np.pi
    return 0.5 * np.sin(phases + np.arange(STEPS) * 2 * np.pi / 50) + noise(spread)


def around(hits: int) -> tuple[float, float]:
    interval = wilson(hits, ATTEMPTS, 0.999)
    assert interval is not None
    return interval


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_saturated_steps_in_a_row_come_as_often_as_a_row_of_their_chance(steps: int) -> None:
    """Normal noise of spread 0.6 lies beyond -1 or 1 with a chance of 9.6 %."""
    signals = noise(0.6)
    share = float(np.mean(np.abs(signals) >= 1.0))
    low, high = around(found(SATURATED.model_copy(update={"steps": steps}), signals))
    assert low < row_chance(steps, share, STEPS) < high


@pytest.mark.parametrize(("steps", "within"), [(3, 10), (5, 20)])
def test_k_in_m_comes_as_often_as_counting_windows_gives(steps: int, within: int) -> None:
    rule = LimitRule(kind="limit", name="limit", signal="action", above=1.0, steps=steps, within=within)
    signals = noise(0.6)
    hits = np.cumsum(np.pad(np.abs(signals) > 1.0, ((0, 0), (within, 0))), axis=1)
    windows = hits[:, within:] - hits[:, :-within]
    expected = int((windows.max(axis=1) >= steps).sum())
    assert found(rule, signals) == expected
    assert 0 < expected < ATTEMPTS


def test_noise_is_never_frozen_and_a_halt_always_is() -> None:
    assert found(FROZEN, noise(1e-3)) == 0
    assert found(FROZEN, noise(1e-8)) == ATTEMPTS


def test_a_smooth_action_with_a_little_noise_does_not_oscillate() -> None:
    """The default amplitude is 0.1: noise of a fifth of it is let pass, in at least 998 of 1,000 attempts."""
    assert around(found(OSCILLATING, smooth(0.02)))[1] < 0.002


def test_white_noise_of_the_whole_range_oscillates() -> None:
    """An action that is thrown anew at every step turns back at two of three: the rule is there to find it."""
    assert around(found(OSCILLATING, noise(0.5)))[0] > 0.998


# --- nonfinite ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_broken_numbers_in_a_row_come_as_often_as_a_row_of_their_chance(steps: int) -> None:
    """A sensor that gives NaN in a tenth of the steps and infinity in a tenth."""
    signals = noise(1.0)
    dice = np.random.default_rng(SEED + 2).random(signals.shape)
    signals[dice < 0.1] = np.nan
    signals[dice > 0.9] = -np.inf
    low, high = around(found(NONFINITE.model_copy(update={"steps": steps}), signals))
    assert low < row_chance(steps, 0.2, STEPS) < high


def test_finite_noise_of_any_size_is_never_broken() -> None:
    """Normal noise times powers of ten up to 1e307."""
    signals = noise(1.0) * 10.0 ** np.random.default_rng(SEED + 3).integers(-307, 307, (ATTEMPTS, STEPS))
    assert np.isfinite(signals).all()
    assert found(NONFINITE, signals) == 0


# --- stagnation ---------------------------------------------------------------------------------------------------


def test_white_noise_stagnates_as_often_as_records_are_that_far_apart() -> None:
    """In exchangeable noise step n is a new best with chance 1 / (n + 1), each by itself (A. Rényi, Théorie des
    éléments saillants d'une suite d'observations, Ann. Fac. Sci. Clermont-Ferrand 8, 1962, 7-13). So the chance of so
    many steps without one follows from the chance of each length of waiting.
    """
    rule = STUCK.model_copy(update={"min_change": 0.0, "steps": 60})
    waiting = {0: 1.0}  # steps since the last best -> chance; the first step is one
    stuck = 0.0
    for n in range(1, STEPS):
        best = 1.0 / (n + 1)
        after = {since + 1: chance * (1.0 - best) for since, chance in waiting.items()}
        after[0] = sum(waiting.values()) * best
        stuck += after.pop(rule.steps, 0.0)
        waiting = after
    low, high = around(found(rule, noise(1.0)))
    assert low < stuck < high
    assert 0.1 < stuck < 0.9


def test_steady_progress_with_a_little_noise_does_not_stagnate() -> None:
    """A distance that falls by 1 a step under noise of spread 2: in at least 998 of 1,000 attempts 20 steps show it."""
    assert around(found(STUCK, noise(2.0) - np.arange(STEPS)))[1] < 0.002
    assert found(STUCK, noise(2.0) + np.arange(STEPS)) > 0.99 * ATTEMPTS  # and one that grows is found


# --- stale --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", [4, 8])
def test_a_coarse_sensor_seems_to_hang_as_often_as_equal_values_follow_one_another(levels: int) -> None:
    """Each of the equally likely readings is the one before with chance 1 / levels: K the same are K - 1 in a row."""
    readings = np.random.default_rng(SEED + levels).integers(0, levels, (ATTEMPTS, STEPS)).astype(np.float64)
    low, high = around(found(HUNG, readings))
    assert low < row_chance(HUNG.steps - 1, 1.0 / levels, STEPS - 1) < high


def test_the_noise_of_a_sensor_never_hangs() -> None:
    """Not even one bit's worth of it: the values lie a few units in the last place apart."""
    assert found(HUNG, noise(1.0)) == 0
    assert found(HUNG.model_copy(update={"steps": 10}), 1.0 + noise(1e-15)) == 0


# --- sequence -----------------------------------------------------------------------------------------------------


def missed(grasps: NDArray[np.bool_], lifts: NDArray[np.bool_], *, sparse: bool) -> int:
    """In how many attempts the sequence is missed. ``sparse``: metrics are told only where something happened."""
    kernel, slots = compiled(NOT_LIFTED)
    first, then = (slots["condition", signal] for signal in kernel.signals)
    absent = condition_reader(kernel.signals[0], 0)(Moment(0, (), None, 0), [None]) if sparse else 0.0
    readings: list[Any] = [None] * len(slots)
    total = 0
    for grasped, lifted in zip(grasps.tolist(), lifts.tolist(), strict=True):
        state = kernel.fresh()
        for at in range(STEPS):
            readings[first] = 1.0 if grasped[at] else absent
            readings[then] = 1.0 if lifted[at] else absent
            readings[slots["step clock"]] = at
            if kernel.see(state, readings, at):
                total += 1
                break
    return total


def events(chance: float, seed: int) -> NDArray[np.bool_]:
    return np.random.default_rng(SEED + seed).random((ATTEMPTS, STEPS)) < chance


def miss_chance(grasp: float, lift: float, within: int) -> float:
    """By carrying the chance of each state from step to step: what is waited, or whether ``first`` held before."""
    idle = {False: 1.0, True: 0.0}  # whether it held at the step before -> chance
    waits = [0.0] * within  # steps passed since the wait began
    done = 0.0
    for _ in range(STEPS):
        begins = idle[False] * grasp * (1.0 - lift)
        ended = sum(waits) * lift  # the step's own grasp says what held before the next
        still = sum(idle.values()) - begins
        missed_now = waits[-1] * (1.0 - lift)
        held = idle[True] * grasp + idle[False] * grasp * lift + ended * grasp
        done += missed_now
        waits = [begins, *(chance * (1.0 - lift) for chance in waits[:-1])]
        idle = {True: held, False: still + ended - held}
    return done


@pytest.mark.parametrize(("grasp", "lift"), [(0.05, 0.1), (0.5, 0.3), (0.02, 0.02)])
def test_a_sequence_of_independent_moments_is_missed_as_often_as_its_chance(grasp: float, lift: float) -> None:
    grasps, lifts = events(grasp, 4), events(lift, 5)
    told = missed(grasps, lifts, sparse=False)
    low, high = around(told)
    assert low < miss_chance(grasp, lift, 10) < high
    assert missed(grasps, lifts, sparse=True) == told, "told only when it happens, or always: the same"


def test_a_lift_after_every_grasp_is_never_missed() -> None:
    grasps = events(0.05, 6)
    lifts = np.zeros_like(grasps)
    lifts[:, 9:] = grasps[:, :-9]
    assert missed(grasps, lifts, sparse=True) == 0
    assert missed(grasps, np.zeros_like(grasps), sparse=True) > 0.9 * ATTEMPTS
