"""The simulator's side of the protocol: what is the same for every adapter. Runs inside the simulator's process.

open(simulator, task, scene, perturbation) -> description
reset(seed)                                -> observation, digest, time
step + array "action"                      -> observation, reward, flags, metrics, digest, time
"""

import time
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell.adapters.processes.child import Reply
from stepwell.adapters.processes.frames import ITEM_BYTES, Array, Message
from stepwell.adapters.simulators.base import Observation, Simulator
from stepwell.adapters.simulators.perturbations import Physics, Sensors
from stepwell.adapters.simulators.state import StateDigest, Warnings

ADAPTERS = {
    "gymnasium": ("stepwell.adapters.simulators.gymnasium", "GymnasiumSimulator"),
    "metaworld": ("stepwell.adapters.simulators.metaworld", "MetaworldSimulator"),
    "robosuite": ("stepwell.adapters.simulators.robosuite", "RobosuiteSimulator"),
}


class Session:
    """One opened environment, and the episode that runs in it."""

    def __init__(self) -> None:
        self._simulator: Simulator | None = None
        self._perturbation: Mapping[str, Any] = {}
        self._episode: _Episode | None = None

    def handle(self, operation: str, message: Message) -> Reply:
        """Answer one request."""
        if operation == "open":
            return self._open(message.body)
        if self._simulator is None:
            raise RuntimeError("open comes first")
        if operation == "reset":
            return self._reset(int(message.body["seed"]))
        if operation == "step":
            if self._episode is None:
                raise RuntimeError("reset comes before step")
            return self._episode.step(to_numpy(message.arrays[0]))
        raise ValueError(f"unknown operation {operation!r}")

    def _open(self, body: Mapping[str, Any]) -> Reply:
        module, name = ADAPTERS[body["simulator"]]
        self._perturbation = body["perturbation"]
        self._simulator = simulator = getattr(import_module(module), name)(body["task"], body["scene"])
        low, high = simulator.action_bounds
        sample = from_observation(simulator.sample_observation())
        described = [[array.name, array.dtype, array.shape] for array in sample]
        description = {
            "versions": simulator.versions,
            "observation": described,
            "action": {"dtype": str(low.dtype), "shape": low.shape, "low": low.tolist(), "high": high.tolist()},
            "step_duration_s": simulator.step_duration_s,
            "time_limit": simulator.time_limit,
            "gives_success": simulator.gives_success,
        }
        return description, ()

    def _reset(self, seed: int) -> Reply:
        assert self._simulator is not None
        began = time.perf_counter()
        self._episode = _Episode(self._simulator, self._perturbation, seed)
        return self._episode.first(began)


class _Episode:
    """From a reset to the next."""

    def __init__(self, simulator: Simulator, perturbation: Mapping[str, Any], seed: int) -> None:
        self._simulator = simulator
        self._sensors = Sensors(perturbation, seed)
        self._physics = Physics(perturbation, seed)
        self._first = simulator.reset(seed, self._physics)
        self._digest = StateDigest(simulator.model)
        self._warnings = Warnings(simulator.data)
        self._began_at = float(simulator.data.time)  # some resets step the simulation
        self._dtype = simulator.action_bounds[0].dtype

    def first(self, began: float) -> Reply:
        body = {
            "state_digest": self._digest(self._simulator.data).hex(),
            "sim_time": 0.0,
            "factors": self._physics.factors,
        }
        observation = from_observation(self._sensors(self._first))
        return {**body, "wall_s": time.perf_counter() - began}, observation

    def step(self, action: NDArray[Any]) -> Reply:
        if not np.isfinite(action).all():
            raise ValueError("the action is not finite; it was not given to the simulator")
        began = time.perf_counter()
        stepped = self._simulator.step(action.astype(self._dtype, copy=False))
        wall_s = time.perf_counter() - began
        data = self._simulator.data
        warnings = self._warnings.check(data)
        body = {
            "reward": stepped.reward,
            "terminated": stepped.terminated,
            "truncated": stepped.truncated,
            "success": stepped.success,
            "metrics": stepped.metrics,
            "warnings": warnings,
            "sim_time": float(data.time) - self._began_at,
            "state_digest": self._digest(data).hex(),
            "wall_s": wall_s,
        }
        return body, from_observation(self._sensors(stepped.observation))


def to_numpy(array: Array) -> NDArray[Any]:
    """A frame's array as a NumPy array of its own memory."""
    return np.frombuffer(array.data, dtype=array.dtype).reshape(array.shape).copy()


def from_numpy(name: str, array: NDArray[Any]) -> Array:
    """A NumPy array for a frame; of a dtype that frames don't know, it becomes float64."""
    if str(array.dtype) not in ITEM_BYTES:
        array = array.astype(np.float64)
    return Array(name, str(array.dtype), array.shape, array.tobytes())


def from_observation(observation: Observation) -> list[Array]:
    """An observation for a frame, in the order of its keys."""
    return [from_numpy(name, array) for name, array in observation.items()]
