"""Perturbations: changed physics and worse sensors, drawn from the episode's seed.

A factor is a number, or ``[low, high]`` to draw one per episode. The draws have a random stream of their own, so that
the same seed gives the same start with and without perturbations. Runs inside the simulator's process.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any

import mujoco
import numpy as np

from stepwell.adapters.simulators.base import Observation

SCALES = ("gravity_scale", "friction_scale", "mass_scale", "actuator_scale")
_STREAM = 0x57E9  # sets these draws apart from every other use of the seed

_FIELDS = {
    "friction_scale": ("geom_friction", "pair_friction"),
    "mass_scale": ("body_mass", "body_inertia"),
    "actuator_scale": ("actuator_gainprm", "actuator_biasprm"),
}


class Physics:
    """Scales gravity, friction, masses (with inertias) and actuators (gain and bias: force or stiffness)."""

    def __init__(self, perturbation: Mapping[str, Any], seed: int) -> None:
        random = np.random.default_rng([_STREAM, seed])
        self.factors = {name: _draw(perturbation[name], random) for name in SCALES if name in perturbation}

    def __call__(self, model: mujoco.MjModel) -> None:
        """Scale a model that has not been scaled before."""
        for name, factor in self.factors.items():
            if name == "gravity_scale":
                model.opt.gravity[:] *= factor
                continue
            for field in _FIELDS[name]:
                getattr(model, field)[:] *= factor
        if "mass_scale" in self.factors:
            # What MuJoCo derives from masses when it compiles a model (subtree masses, inverse weights).
            mujoco.mj_setConst(model, mujoco.MjData(model))


class Nominal:
    """A model's physics as it was before any perturbation, for adapters that keep their model between episodes."""

    def __init__(self, model: mujoco.MjModel) -> None:
        self._model = model
        self._gravity = model.opt.gravity.copy()
        self._values = {name: getattr(model, name).copy() for fields in _FIELDS.values() for name in fields}

    def restore(self) -> None:
        """Undo whatever an earlier episode's perturbation did."""
        changed = not np.array_equal(self._model.body_mass, self._values["body_mass"])
        self._model.opt.gravity[:] = self._gravity
        for name, value in self._values.items():
            getattr(self._model, name)[:] = value
        if changed:
            mujoco.mj_setConst(self._model, mujoco.MjData(self._model))


class Sensors:
    """Adds Gaussian noise to observations and hands them over late, per episode and deterministic in its seed."""

    def __init__(self, perturbation: Mapping[str, Any], seed: int) -> None:
        self._sigma = float(perturbation.get("observation_noise", 0.0))
        self._delay = int(perturbation.get("observation_delay", 0))
        self._random = np.random.default_rng([_STREAM, seed, 1])
        self._waiting: deque[Observation] = deque(maxlen=self._delay + 1)

    def __call__(self, observation: Observation) -> Observation:
        """What the policy gets to see: until ``observation_delay`` steps have passed, the first observation."""
        self._waiting.append(observation)
        seen = self._waiting[0]
        if not self._sigma:
            return seen
        return {
            key: (array + self._random.normal(0.0, self._sigma, array.shape)).astype(array.dtype)
            if array.dtype.kind == "f"
            else array
            for key, array in seen.items()
        }


def _draw(value: Any, random: np.random.Generator) -> float:
    if isinstance(value, list | tuple):
        low, high = value
        return float(random.uniform(low, high))
    return float(value)
