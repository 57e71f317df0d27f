"""gymnasium's MuJoCo tasks. Runs inside the simulator's process.

They have no notion of success; a scene can define one: ``success_return`` (the summed reward reaches it) or
``success_steps`` (so many steps without termination).
"""

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import gymnasium
import mujoco
import numpy as np
from numpy.typing import NDArray

from stepwell.adapters.simulators.base import Observation, Perturb, Simulator, Stepped, metrics_of
from stepwell.adapters.simulators.perturbations import Nominal, Physics

_PASSED_ON = ("frame_skip", "reset_noise_scale")


class GymnasiumSimulator(Simulator):
    """One gymnasium environment; the observation is its vector, under the key ``observation``."""

    def __init__(self, task: str, scene: Mapping[str, Any]) -> None:
        arguments = {name: scene[name] for name in _PASSED_ON if name in scene}
        self._env: Any = gymnasium.make(
            task, max_episode_steps=scene.get("time_limit"), disable_env_checker=True, **arguments
        )
        self._nominal = Nominal(self.model)
        self._success_return: float | None = scene.get("success_return")
        self._success_steps: int | None = scene.get("success_steps")
        self._return = 0.0
        self._steps = 0

    @property
    def versions(self) -> dict[str, str]:
        return {name: version(name) for name in ("gymnasium", "mujoco", "numpy")}

    @property
    def action_bounds(self) -> tuple[NDArray[Any], NDArray[Any]]:
        return self._env.action_space.low, self._env.action_space.high

    @property
    def step_duration_s(self) -> float:
        return float(self._env.unwrapped.dt)

    @property
    def time_limit(self) -> int | None:
        return self._env.spec.max_episode_steps  # type: ignore[no-any-return]

    @property
    def gives_success(self) -> bool:
        return self._success_return is not None or self._success_steps is not None

    @property
    def model(self) -> mujoco.MjModel:
        return self._env.unwrapped.model

    @property
    def data(self) -> mujoco.MjData:
        return self._env.unwrapped.data

    def sample_observation(self) -> Observation:
        return self.reset(0, Physics({}, 0))

    def reset(self, seed: int, perturb: Perturb) -> Observation:
        self._nominal.restore()
        perturb(self.model)
        self._return = 0.0
        self._steps = 0
        observation, _ = self._env.reset(seed=seed)
        return {"observation": np.asarray(observation)}

    def step(self, action: NDArray[Any]) -> Stepped:
        observation, reward, terminated, truncated, info = self._env.step(action)
        self._return += float(reward)
        self._steps += 1
        return Stepped(
            observation={"observation": np.asarray(observation)},
            reward=float(reward),
            terminated=bool(terminated),
            truncated=bool(truncated),
            success=self._success(bool(terminated)),
            metrics=metrics_of(info),
        )

    def close(self) -> None:
        self._env.close()

    def _success(self, terminated: bool) -> bool | None:
        if self._success_return is not None:
            return self._return >= self._success_return
        if self._success_steps is not None:
            return self._steps >= self._success_steps and not terminated
        return None
