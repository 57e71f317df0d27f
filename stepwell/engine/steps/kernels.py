"""What each kind of step rule looks for: one kernel a kind.

A kernel sees one moment after the other (see `stepwell.engine.steps.signals`) and says at which it has found its label;
after that it is not asked any more. Where its signal is unknown at a moment, or steps were lost before it, it begins
anew: its window is empty, nothing that it saw before counts, nothing is guessed. An attempt that ends leaves open what
was not found.

NaN compares with nothing: it exceeds no limit, saturates nothing, is no new best and counts as movement; rules of the
kind ``nonfinite`` are for NaN. All decisions rest on IEEE float64 comparisons, additions and multiplications.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from math import isnan
from typing import Any, Generic, TypeVar

from stepwell.engine import ruleset
from stepwell.engine.steps.memory import Best, Hits, KernelState, Same, Sequel, Still, Turning
from stepwell.engine.steps.signals import (
    Reader,
    Signal,
    condition_reader,
    content_reader,
    number_reader,
    parse_signal,
    range_reader,
    sim_clock,
    step_clock,
    values_reader,
    wall_clock,
)

US_PER_S = 1_000_000

SlotOf = Callable[[object, Callable[[], Reader]], int]
"""Gives the number of the slot for a reader's key, made on first use: two rules that read the same share it."""

State = TypeVar("State", bound=KernelState)


class Kernel(ABC, Generic[State]):
    """One compiled rule.

    Attributes:
        signals: what it reads.
        slots: where it finds that among the readings of a moment.
    """

    signals: tuple[Signal, ...]
    slots: tuple[int, ...]

    @abstractmethod
    def fresh(self) -> State:
        """What it remembers before the first moment."""

    @abstractmethod
    def see(self, state: State, readings: list[Any], at: int) -> bool:
        """Take in the moment ``at``; whether the label is found with it."""

    @abstractmethod
    def gap(self, state: State) -> None:
        """Steps were lost before the next moment."""


class _KInM(Kernel[Hits]):
    """K hits within M moments that follow one another."""

    def __init__(self, rule: ruleset.LimitRule | ruleset.NonfiniteRule | ruleset.SaturatedRule) -> None:
        self._needed = rule.steps
        self._within = rule.within or rule.steps

    def fresh(self) -> Hits:
        return Hits()

    def gap(self, state: Hits) -> None:
        state.at.clear()

    def _hit(self, state: Hits, at: int) -> bool:
        hits = state.at
        hits.append(at)
        oldest = at - self._within
        while hits[0] <= oldest:
            del hits[0]
        return len(hits) >= self._needed


class LimitKernel(_KInM):
    """``limit``: in K of M moments that follow one another the largest magnitude of the signal's elements is greater
    than ``above``, or its smallest element is less than ``below``.

    NaN elements are left out; infinity has the largest magnitude. The label's step is that of the K-th hit.
    """

    def __init__(self, rule: ruleset.LimitRule, slot_of: SlotOf) -> None:
        super().__init__(rule)
        self.signals = (parse_signal(rule.signal),)
        self.slots = (range_slot(self.signals[0], slot_of),)
        self._slot = self.slots[0]
        self._above = float("inf") if rule.above is None else rule.above
        self._floor = -self._above if rule.below is None else rule.below

    def see(self, state: Hits, readings: list[Any], at: int) -> bool:
        limits = readings[self._slot]
        if limits is None:
            state.at.clear()
            return False
        return (limits[1] > self._above or limits[0] < self._floor) and self._hit(state, at)


class SaturatedKernel(_KInM):
    """``saturated``: in K of M moments that follow one another any element of the signal is at or beyond a bound: not
    greater than ``low + tolerance``, or not less than ``high - tolerance``.
    """

    def __init__(self, rule: ruleset.SaturatedRule, slot_of: SlotOf) -> None:
        super().__init__(rule)
        self.signals = (parse_signal(rule.signal),)
        self.slots = (range_slot(self.signals[0], slot_of),)
        self._slot = self.slots[0]
        self._low = rule.low + rule.tolerance
        self._high = rule.high - rule.tolerance

    def see(self, state: Hits, readings: list[Any], at: int) -> bool:
        limits = readings[self._slot]
        if limits is None:
            state.at.clear()
            return False
        return (limits[1] >= self._high or limits[0] <= self._low) and self._hit(state, at)


class NonfiniteKernel(_KInM):
    """``nonfinite``: NaN or infinity among the signal's elements in K of M moments that follow one another.

    Other than the built-in labels, which tell of everything that was sent, a rule on ``action`` judges the rows that
    were applied.
    """

    def __init__(self, rule: ruleset.NonfiniteRule, slot_of: SlotOf) -> None:
        super().__init__(rule)
        self.signals = (parse_signal(rule.signal),)
        self.slots = (values_slot(self.signals[0], slot_of),)
        self._slot = self.slots[0]

    def see(self, state: Hits, readings: list[Any], at: int) -> bool:
        values = readings[self._slot]
        if values is None:
            state.at.clear()
            return False
        total = sum(values)
        if total - total == 0.0:  # the sum of finite numbers may be infinite, but that of others is never finite
            return False
        return any(value - value != 0.0 for value in values) and self._hit(state, at)


class FrozenKernel(Kernel[Still]):
    """``frozen``: K times in a row no element of the signal changed by more than ``tolerance`` from one moment to the
    next. So K + 1 moments are needed; the label's step is that of the last.

    A change to or from NaN, or between infinities, is movement. So is another number of elements.
    """

    def __init__(self, rule: ruleset.FrozenRule, slot_of: SlotOf) -> None:
        self.signals = (parse_signal(rule.signal),)
        self.slots = (values_slot(self.signals[0], slot_of),)
        self._slot = self.slots[0]
        self._tolerance = rule.tolerance
        self._needed = rule.steps

    def fresh(self) -> Still:
        return Still()

    def gap(self, state: Still) -> None:
        state.values = None
        state.count = 0

    def see(self, state: Still, readings: list[Any], at: int) -> bool:
        del at
        values = readings[self._slot]
        before = state.values
        state.values = values
        if values is None or before is None or len(values) != len(before):
            state.count = 0
            return False
        tolerance = self._tolerance
        if not -tolerance <= values[0] - before[0] <= tolerance:  # the usual case, told quickly
            state.count = 0
            return False
        for now, then in zip(values, before, strict=True):
            if not -tolerance <= now - then <= tolerance:
                state.count = 0
                return False
        state.count += 1
        return state.count >= self._needed


class OscillatingKernel(Kernel[Turning]):
    """``oscillating``: one element of the signal turns back at least ``reversals`` times within M moments.

    An element turns back at the moment at which it is ``amplitude`` or more away from the highest value since it began
    to rise, or from the lowest since it began to fall. It begins to rise or fall when it is first ``amplitude`` or more
    above its lowest or below its highest value so far; that is no reversal yet. So M moments hold at most M - 2
    reversals of an element that is seen for the first time. NaN is passed over.
    """

    def __init__(self, rule: ruleset.OscillatingRule, slot_of: SlotOf) -> None:
        self.signals = (parse_signal(rule.signal),)
        self.slots = (values_slot(self.signals[0], slot_of),)
        self._slot = self.slots[0]
        self._amplitude = rule.amplitude
        self._needed = rule.reversals
        self._within = rule.within

    def fresh(self) -> Turning:
        return Turning()

    def gap(self, state: Turning) -> None:
        state.direction, state.high, state.low, state.turned = [], [], [], []

    def see(self, state: Turning, readings: list[Any], at: int) -> bool:
        values = readings[self._slot]
        if values is None:
            self.gap(state)
            return False
        if len(values) != len(state.direction):
            state.direction = [0] * len(values)
            state.high, state.low = list(values), list(values)
            state.turned = [[] for _ in values]
            return False
        amplitude = self._amplitude
        directions, highs, lows = state.direction, state.high, state.low
        found = False
        for index, value in enumerate(values):
            direction = directions[index]
            if direction > 0:
                if value > highs[index]:
                    highs[index] = value
                elif highs[index] - value >= amplitude:
                    directions[index] = -1
                    lows[index] = value
                    found = self._turn(state.turned[index], at) or found
            elif direction < 0:
                if value < lows[index]:
                    lows[index] = value
                elif value - lows[index] >= amplitude:
                    directions[index] = 1
                    highs[index] = value
                    found = self._turn(state.turned[index], at) or found
            else:
                self._begin(state, index, value)
        return found

    def _begin(self, state: Turning, index: int, value: float) -> None:
        """An element that neither rises nor falls yet."""
        high, low = state.high[index], state.low[index]
        if isnan(high):  # nothing else so far
            state.high[index] = state.low[index] = value
            return
        if value - low >= self._amplitude:
            state.direction[index] = 1
        elif high - value >= self._amplitude:
            state.direction[index] = -1
        if value > high:
            state.high[index] = value
        if value < low:
            state.low[index] = value

    def _turn(self, turned: list[int], at: int) -> bool:
        turned.append(at)
        if len(turned) > self._needed:
            del turned[0]
        return len(turned) == self._needed and at - turned[0] < self._within


class StagnationKernel(Kernel[Best]):
    """``stagnation``: for K moments in a row the signal reached no new best.

    The first value is the first best. A value is a new best where it is less (``falling``) or greater (``rising``) than
    the best, by ``min_change`` or more. NaN is none. Progress in smaller steps adds up: the best stays until then.
    """

    def __init__(self, rule: ruleset.StagnationRule, slot_of: SlotOf) -> None:
        self.signals = (parse_signal(rule.signal),)
        self.slots = (number_slot(self.signals[0], slot_of),)
        self._slot = self.slots[0]
        self._sign = 1.0 if rule.direction == "rising" else -1.0
        self._min_change = rule.min_change
        self._needed = rule.steps

    def fresh(self) -> Best:
        return Best()

    def gap(self, state: Best) -> None:
        state.value = None
        state.count = 0

    def see(self, state: Best, readings: list[Any], at: int) -> bool:
        del at
        number = readings[self._slot]
        if number is None:
            state.value = None
            state.count = 0
            return False
        value = number * self._sign
        best = state.value
        better = not isnan(value) if best is None else value > best and value - best >= self._min_change
        if better:
            state.value = value
            state.count = 0
            return False
        state.count += 1
        return state.count >= self._needed


class StaleKernel(Kernel[Same]):
    """``stale``: the same observation K times in a row, equal to the bit (dtype and shape, too)."""

    def __init__(self, rule: ruleset.StaleRule, slot_of: SlotOf) -> None:
        signal = parse_signal(rule.signal)
        self.signals = (signal,)
        self.slots = (slot_of(("content", signal), lambda: content_reader(signal)),)
        self._slot = self.slots[0]
        self._needed = rule.steps

    def fresh(self) -> Same:
        return Same()

    def gap(self, state: Same) -> None:
        state.content = None
        state.count = 0

    def see(self, state: Same, readings: list[Any], at: int) -> bool:
        del at
        content = readings[self._slot]
        if content is None or content != state.content:
            state.content = content
            state.count = 0 if content is None else 1
            return False
        state.count += 1
        return state.count >= self._needed


class SequenceKernel(Kernel[Sequel]):
    """``sequence``: ``first``, and then ``then`` is missed.

    The wait begins at the moment at which ``first`` comes to hold: it holds, and did not at the moment before (or there
    was none). It ends well at a moment, that one included, at which ``then`` holds and no more than the time has
    passed. It is missed, and the label found, at the first moment at which more than the time has passed, or just the
    time and ``then`` does not hold. While it waits, ``first`` is not looked at. Afterwards the next wait begins when
    ``first`` comes to hold again.

    What a step that is there does not say, does not hold: a metric that is reported only when something happens is not
    there at the other steps (`stepwell.engine.steps.signals.condition_reader`). Where ``then`` or the clock is unknown
    at a moment (an action was lost, a tensor cannot be read, a step has no ``sim_time``), nobody can say that it was
    missed: no wait begins there, and one that runs is given up. So it is where steps were lost.

    The clock: ``within_steps`` counts steps, ``within_sim_s`` goes by ``sim_time`` (unknown where a step has none),
    ``within_wall_s`` by the simulator's ``occurred_at``, pauses included. While nothing waits in the log and the
    attempt is not paused, the ``occurred_at`` of ``episode::stalled`` and ``episode::timed_out`` proves absence, too
    (by the engine's clock); then the label's step is the last one done.
    """

    def __init__(self, rule: ruleset.SequenceRule, slot_of: SlotOf) -> None:
        self.signals = (parse_signal(rule.first.signal), parse_signal(rule.then.signal))
        first, then = (condition_slot(signal, slot_of) for signal in self.signals)
        self.wall = rule.within_wall_s is not None
        self._within: float
        if rule.within_steps is not None:
            self._within = rule.within_steps
            clock = slot_of("step clock", lambda: step_clock)
        elif rule.within_sim_s is not None:
            self._within = rule.within_sim_s
            clock = slot_of("sim clock", lambda: sim_clock)
        else:
            assert rule.within_wall_s is not None
            self._within = rule.within_wall_s * US_PER_S
            clock = slot_of("wall clock", lambda: wall_clock)
        self.slots = (first, then, clock)
        self._first, self._then = rule.first, rule.then

    def fresh(self) -> Sequel:
        return Sequel()

    def gap(self, state: Sequel) -> None:
        state.held = -1
        state.since = None

    def see(self, state: Sequel, readings: list[Any], at: int) -> bool:
        del at
        first_slot, then_slot, clock_slot = self.slots
        first, then, now = readings[first_slot], readings[then_slot], readings[clock_slot]
        holds = -1 if first is None else int(_holds(self._first, first))
        before, state.held = state.held, holds
        if state.since is None:
            if holds == 1 and before == 0 and then is not None and now is not None and not _holds(self._then, then):
                state.since = now
            return False
        if then is None or now is None:
            state.since = None
            return False
        passed = now - state.since
        if passed > self._within:
            return True
        if _holds(self._then, then):
            state.since = None
            return False
        return bool(passed >= self._within)

    def tick(self, state: Sequel, now_us: int) -> bool:
        """Whether the time is up at ``now_us`` by the engine's clock, nothing having come since the last moment."""
        return self.wall and state.since is not None and now_us - state.since > self._within


def _holds(condition: ruleset.Condition, value: float) -> bool:
    if condition.above is not None:
        return value > condition.above
    assert condition.below is not None
    return value < condition.below


# --- slots --------------------------------------------------------------------------------------------------------


def values_slot(signal: Signal, slot_of: SlotOf) -> int:
    """The slot of a signal's elements."""
    return slot_of(("values", signal), lambda: values_reader(signal))


def number_slot(signal: Signal, slot_of: SlotOf) -> int:
    """The slot of a signal of one number."""
    return slot_of(("number", signal), lambda: number_reader(signal))


def condition_slot(signal: Signal, slot_of: SlotOf) -> int:
    """The slot of a signal of one number, as conditions take it."""
    number = number_slot(signal, slot_of)
    return slot_of(("condition", signal), lambda: condition_reader(signal, number))


def range_slot(signal: Signal, slot_of: SlotOf) -> int:
    """The slot of a signal's least and greatest element."""
    values = values_slot(signal, slot_of)
    return slot_of(("range", signal), lambda: range_reader(values))


_KERNELS: dict[type, Callable[[Any, SlotOf], Kernel[Any]]] = {
    ruleset.LimitRule: LimitKernel,
    ruleset.NonfiniteRule: NonfiniteKernel,
    ruleset.SaturatedRule: SaturatedKernel,
    ruleset.FrozenRule: FrozenKernel,
    ruleset.OscillatingRule: OscillatingKernel,
    ruleset.StagnationRule: StagnationKernel,
    ruleset.StaleRule: StaleKernel,
    ruleset.SequenceRule: SequenceKernel,
}


def kernel_of(rule: ruleset.StepRule, slot_of: SlotOf) -> Kernel[Any]:
    """The kernel of a rule."""
    return _KERNELS[type(rule)](rule, slot_of)
