"""robosuite's manipulation tasks. Runs inside the simulator's process.

A reset builds the model anew (``hard_reset``), because some tasks draw an object's size; all draws come from the
environment's own generator, which is therefore set to the seed before each reset.
"""

import random
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import mujoco
import numpy as np
import robosuite
from numpy.typing import NDArray

from stepwell.adapters.simulators.base import Observation, Perturb, Simulator, Stepped
from stepwell.adapters.simulators.catalogue import ROBOSUITE_REDUNDANT

_NEVER = 10**9


class RobosuiteSimulator(Simulator):
    """One robosuite task; observations keep their own keys.

    By default those are left out that others determine (cosines, sines, concatenations); see `catalogue`.
    """

    def __init__(self, task: str, scene: Mapping[str, Any]) -> None:
        self._time_limit = int(scene.get("time_limit", 1000))
        self._placement: Mapping[str, Any] | None = scene.get("placement")
        self._chosen: list[str] | None = scene.get("observations")
        self._env: Any = robosuite.make(
            task,
            robots=scene.get("robot", "Panda"),
            has_renderer=False,
            has_offscreen_renderer=False,
            use_camera_obs=False,
            control_freq=scene.get("control_freq", 20),
            reward_shaping=scene.get("reward_shaping", True),
            horizon=_NEVER,  # it raises when stepped past its horizon; the time limit is ours
            ignore_done=True,
            seed=0,
        )
        self._steps = 0

    @property
    def versions(self) -> dict[str, str]:
        return {name: version(name) for name in ("robosuite", "mujoco", "numpy")}

    @property
    def action_bounds(self) -> tuple[NDArray[Any], NDArray[Any]]:
        low, high = self._env.action_spec
        return low, high

    @property
    def step_duration_s(self) -> float:
        return float(self._env.control_timestep)

    @property
    def time_limit(self) -> int | None:
        return self._time_limit

    @property
    def gives_success(self) -> bool:
        return True

    @property
    def model(self) -> mujoco.MjModel:
        return self._env.sim.model._model

    @property
    def data(self) -> mujoco.MjData:
        return self._env.sim.data._data

    def sample_observation(self) -> Observation:
        return self._select(self._env._get_observations(force_update=True))

    def reset(self, seed: int, perturb: Perturb) -> Observation:
        self._steps = 0
        # Parts of robosuite draw from the global generators (observable corruption, some samplers).
        random.seed(seed)
        np.random.seed(seed)
        self._env.rng = np.random.default_rng(seed)
        self._env.placement_initializer = self._sampler()
        self._env.reset()
        perturb(self.model)
        self._env.sim.forward()
        return self._select(self._env._get_observations(force_update=True))

    def step(self, action: NDArray[Any]) -> Stepped:
        observation, reward, _, _ = self._env.step(action)
        self._steps += 1
        return Stepped(
            observation=self._select(observation),
            reward=float(reward),
            terminated=False,
            truncated=self._steps >= self._time_limit,
            success=bool(self._env._check_success()),
        )

    def close(self) -> None:
        self._env.close()

    def _sampler(self) -> Any:
        """The sampler for objects' places; None lets the task make its own from the generator just set."""
        if self._placement is None:
            return None
        from robosuite.utils.placement_samplers import UniformRandomSampler

        return UniformRandomSampler(
            name="ObjectSampler",
            x_range=self._placement.get("x", [-0.03, 0.03]),
            y_range=self._placement.get("y", [-0.03, 0.03]),
            rotation=self._placement.get("rotation"),
            ensure_object_boundary_in_range=False,
            ensure_valid_placement=True,
            reference_pos=self._env.table_offset,
            z_offset=0.01,
            rng=self._env.rng,
        )

    def _select(self, observation: Mapping[str, Any]) -> Observation:
        if self._chosen is not None:
            return {key: np.asarray(observation[key]) for key in self._chosen}
        return {key: np.asarray(value) for key, value in observation.items() if not key.endswith(ROBOSUITE_REDUNDANT)}
