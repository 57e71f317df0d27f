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
from stepwell.engine.ruleset import FrozenRule, LimitRule, OscillatingRule, SaturatedRule, StepRule
from stepwell.engine.steps.kernels import kernel_of

Signals = NDArray[np.float64]
ATTEMPTS = 10_000
STEPS = 100
SEED = 20_261_201

SATURATED = SaturatedRule(kind="saturated", name="saturated")
FROZEN = FrozenRule(kind="frozen", name="frozen")
OSCILLATING = OscillatingRule(kind="oscillating", name="oscillating")


def found(rule: StepRule, signals: Signals) -> int:
    """In how many attempts (rows) the rule's own kernel finds its label; one element a step."""
    slots: dict[Any, int] = {}
    kernel = kernel_of(rule, lambda key, _: slots.setdefault(key, len(slots)))
    limits = slots.get(("range", kernel.signals[0]))
    values = slots[("values", kernel.signals[0])]
    readings: list[Any] = [None] * len(slots)
    total = 0
    for attempt in signals.tolist():
        state = kernel.fresh()
        for at, value in enumerate(attempt):
            readings[values] = (value,)
            if limits is not None:
                readings[limits] = (value, value)
            if kernel.see(state, readings, at):
                total += 1
                break
    return total


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
