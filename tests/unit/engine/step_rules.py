"""Step rules for tests: rule sets as text, and histories whose steps have something to find in them."""

import random
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from hypothesis import strategies as st

from stepwell.engine.ruleset import RuleSet
from stepwell.events import model
from stepwell.events.model import Event, Metric, Tensor

CODES = {"float64": "d", "float32": "f", "float16": "e", "int64": "q", "int32": "i", "uint8": "B", "bool": "?"}
NAN, INF = float("nan"), float("inf")


def rules_text(*rules: dict[str, Any], name: str = "set", version: int = 1) -> str:
    """The text that an attempt carries; rules without a name get ``rule_<n>``."""
    named = [{"name": f"rule_{number}", **rule} for number, rule in enumerate(rules)]
    return RuleSet.model_validate({"rule_set": name, "version": version, "steps": named}).steps_canonical()


def array(name: str, values: Iterable[Any], dtype: str = "float64", shape: tuple[int, ...] | None = None) -> Tensor:
    """A tensor of any dtype."""
    numbers = list(values)
    data = struct.pack(f"<{len(numbers)}{CODES[dtype]}", *numbers)
    return Tensor(name=name, dtype=dtype, shape=(len(numbers),) if shape is None else shape, data=data)


# --- arbitrary rules ----------------------------------------------------------------------------------------------

VECTORS = ("action", "action[0:2]", "action_change", "action_jerk", "observation.proprio", "observation.proprio[1:3]",
           "observation.camera", "observation.touch")  # fmt: skip
NUMBERS = ("action[1]", "observation.proprio[0]", "observation.touch", "metric.distance", "reward", "inference_s",
           "latency_s", "step_wall_s", "action_change[0]")  # fmt: skip
SIGNALS = st.sampled_from(VECTORS + NUMBERS)
TASKS = st.sampled_from([None, None, ["metaworld/*"], ["metaworld/reach-v3", "another"], ["another"], ["*"]])
TYPES = st.sampled_from([None, "no_progress", "stale_observation", "limit_exceeded", "control_too_slow"])


@st.composite
def k_in_m(draw: st.DrawFn) -> dict[str, Any]:
    steps = draw(st.integers(1, 3))
    return {"steps": steps, "within": draw(st.none() | st.integers(steps, steps + 3))}


def side(draw: st.DrawFn, least: float = -1.0) -> dict[str, float]:
    number = draw(st.sampled_from([least, 0.0, 0.5, 1.0, 2.0]))
    return {"above": max(number, 0.0)} if draw(st.booleans()) else {"below": number}


@st.composite
def limit(draw: st.DrawFn) -> dict[str, Any]:
    return {"kind": "limit", "signal": draw(SIGNALS), **draw(k_in_m()), **side(draw)}


@st.composite
def nonfinite(draw: st.DrawFn) -> dict[str, Any]:
    return {"kind": "nonfinite", "signal": draw(SIGNALS), **draw(k_in_m())}


@st.composite
def saturated(draw: st.DrawFn) -> dict[str, Any]:
    return {"kind": "saturated", "signal": draw(SIGNALS), **draw(k_in_m()), "low": -1.0, "high": 1.0, "tolerance": 0.25}


@st.composite
def frozen(draw: st.DrawFn) -> dict[str, Any]:
    tolerance = draw(st.sampled_from([0.0, 0.5, 1.0]))
    return {"kind": "frozen", "signal": draw(SIGNALS), "steps": draw(st.integers(2, 4)), "tolerance": tolerance}


@st.composite
def oscillating(draw: st.DrawFn) -> dict[str, Any]:
    reversals = draw(st.integers(2, 3))
    within = draw(st.integers(reversals + 2, reversals + 5))
    amplitude = draw(st.sampled_from([0.5, 1.0]))
    return {
        "kind": "oscillating",
        "signal": draw(SIGNALS),
        "amplitude": amplitude,
        "reversals": reversals,
        "within": within,
    }


@st.composite
def stagnation(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "kind": "stagnation", "signal": draw(st.sampled_from(NUMBERS)), "steps": draw(st.integers(2, 4)),
        "direction": draw(st.sampled_from(["falling", "rising"])), "min_change": draw(st.sampled_from([0.0, 0.5])),
    }  # fmt: skip


@st.composite
def stale(draw: st.DrawFn) -> dict[str, Any]:
    signals = ["observation.proprio", "observation.proprio[0]", "observation.camera", "observation.camera[0:2]"]
    return {"kind": "stale", "signal": draw(st.sampled_from(signals)), "steps": draw(st.integers(2, 3))}


@st.composite
def sequence(draw: st.DrawFn) -> dict[str, Any]:
    clock = draw(
        st.sampled_from([{"within_steps": 1}, {"within_steps": 3}, {"within_sim_s": 0.025}, {"within_wall_s": 0.003}])
    )
    first, then = ({"signal": draw(st.sampled_from(NUMBERS)), **side(draw)} for _ in range(2))
    return {"kind": "sequence", "first": first, "then": then, **clock}


KINDS = (limit, nonfinite, saturated, frozen, oscillating, stagnation, stale, sequence)


@st.composite
def rule_texts(draw: st.DrawFn, most: int = 6) -> str:
    """The text of an arbitrary set of step rules."""
    rules = draw(st.lists(st.one_of(*(kind() for kind in KINDS)), min_size=1, max_size=most))
    drawn = ({**rule, "assigns": draw(TYPES), "tasks": draw(TASKS)} for rule in rules)
    return rules_text(*drawn, version=draw(st.integers(1, 3)))


# --- histories with something to find -----------------------------------------------------------------------------


DTYPES = ("float64", "float64", "float32", "float16", "int32")


def dressed(facts: Sequence[Event], seed: int, dtypes: Sequence[str] = DTYPES) -> list[Event]:
    """The same facts with actions, observations, metrics and times in which rules can find something.

    Few different values, often the same as before; now and then NaN, another shape, or nothing at all. ``dtypes``: of
    the actions, one for all of them.
    """
    dice = random.Random(seed)
    calm = dice.choice([0.2, 0.6, 0.9])
    odd = dice.choice([0.0, 0.03, 0.2])
    wardrobe = _Wardrobe(dice, calm, odd, dtypes)
    return [wardrobe.dress(fact) for fact in facts]


class _Wardrobe:
    def __init__(self, dice: random.Random, calm: float, odd: float, dtypes: Sequence[str]) -> None:
        self._dice, self._calm, self._odd = dice, calm, odd
        self._last: dict[str, list[float]] = {}
        self._width = dice.choice([1, 2, 3])
        self._dtype = dice.choice(dtypes)

    def dress(self, fact: Event) -> Event:
        dice = self._dice
        if isinstance(fact, model.ActionSent):
            return msgspec.structs.replace(
                fact,
                action=self._action(fact.n_steps),
                inference_s=dice.choice([None, 0.5, 1.0, 2.0]),
                observed_step=dice.choice([None, fact.first_step, max(0, fact.first_step - dice.randint(0, 3)), 500]),
                occurred_at=fact.occurred_at + dice.choice([0, 1_000_000, 2_000_000]),
            )
        if isinstance(fact, model.SimReady):
            return msgspec.structs.replace(fact, observation=self._observation())
        if isinstance(fact, model.StepDone):
            return msgspec.structs.replace(
                fact,
                observation=self._observation(),
                metrics=(Metric(name="distance", value=self._number("distance")),) if self._usual() else (),
                reward=self._number("reward") + 0.0
                if self._usual()
                else None,  # no -0.0: JSON in a table drops its sign
                step_wall_s=dice.choice([None, 0.5, 1.0, 2.0]),
                sim_time=fact.sim_time if self._usual() else None,
            )
        return fact

    def _usual(self) -> bool:
        return self._dice.random() >= self._odd

    def _number(self, name: str) -> float:
        dice, kept = self._dice, self._last.get(name)
        if kept is None or dice.random() >= self._calm:
            kept = self._last[name] = [dice.choice([-2.0, -1.0, -0.5, 0.0, 0.5, 0.75, 1.0, 2.0])]
        return kept[0] if self._usual() else dice.choice([NAN, INF, -INF, -0.0])

    def _vector(self, name: str, count: int) -> list[float]:
        return [self._number(f"{name} {index}") for index in range(count)]

    def _action(self, n_steps: int) -> Tensor:
        width = self._width if self._usual() else self._dice.choice([0, 1, 4])
        dtype = self._dtype
        flat = [value for _ in range(n_steps) for value in self._vector("action", width)]
        if dtype == "int32":
            flat = [int(value) if value - value == 0.0 else 7 for value in flat]  # type: ignore[misc]
        shape = (n_steps, width) if self._usual() else (n_steps * width,)
        return array("action", flat, dtype, shape)

    def _observation(self) -> tuple[Tensor, ...]:
        found = []
        if self._usual():
            found.append(array("proprio", self._vector("proprio", 3 if self._usual() else 2)))
        if self._usual():
            found.append(array("touch", self._vector("touch", 1), "float32", ()))
        if self._usual():
            pixels = [int(abs(value)) if value - value == 0.0 else 9 for value in self._vector("camera", 4)]
            found.append(array("camera", pixels, "uint8", (2, 2)))
        return tuple(found)
