"""Meta-World's fifty tasks. Runs inside the simulator's process.

``reset(seed=...)`` does nothing there: the start and the goal are drawn once, in the constructor. So each episode gets
an environment of its own (0.2 to 0.7 s), which also makes it independent of what ran before.
"""

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import mujoco
import numpy as np
from gymnasium.spaces import Box
from metaworld.env_dict import ALL_V3_ENVIRONMENTS_GOAL_HIDDEN, ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE
from numpy.typing import NDArray

from stepwell.adapters.simulators.base import Observation, Perturb, Simulator, Stepped, metrics_of
from stepwell.adapters.simulators.catalogue import metaworld_region


class MetaworldSimulator(Simulator):
    """One Meta-World task; the observation is its 39 numbers, under the key ``observation``.

    With ``goal_observable: false`` the goal's place in it is zero, as in the meta-learning benchmarks.
    ``object_region`` and ``goal_region`` narrow what their places are drawn from.
    """

    def __init__(self, task: str, scene: Mapping[str, Any]) -> None:
        if scene.get("goal_observable", True):
            self._kind: Any = ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE[f"{task}-goal-observable"]
        else:
            self._kind = ALL_V3_ENVIRONMENTS_GOAL_HIDDEN[f"{task}-goal-hidden"]
        self._env: Any = self._kind(seed=0)
        wanted = "object_region" in scene or "goal_region" in scene
        self._region = _random_space(task, scene) if wanted else None
        longest = int(self._env.max_path_length)
        self._time_limit = min(int(scene.get("time_limit", longest)), longest)

    @property
    def versions(self) -> dict[str, str]:
        return {name: version(name) for name in ("metaworld", "gymnasium", "mujoco", "numpy")}

    @property
    def action_bounds(self) -> tuple[NDArray[Any], NDArray[Any]]:
        return self._env.action_space.low, self._env.action_space.high

    @property
    def step_duration_s(self) -> float:
        return float(self._env.dt)

    @property
    def time_limit(self) -> int | None:
        return self._time_limit

    @property
    def gives_success(self) -> bool:
        return True

    @property
    def model(self) -> mujoco.MjModel:
        return self._env.model

    @property
    def data(self) -> mujoco.MjData:
        return self._env.data

    def sample_observation(self) -> Observation:
        return {"observation": np.asarray(self._env.reset()[0])}

    def reset(self, seed: int, perturb: Perturb) -> Observation:
        self._env.close()
        self._env = self._kind(seed=seed)
        if self._region is not None:
            self._place(seed, self._region)
        perturb(self.model)
        observation, _ = self._env.reset()
        return {"observation": np.asarray(observation)}

    def _place(self, seed: int, region: Box) -> None:
        """Draw object and goal from ``region``, as the constructor has from the task's own: from numpy's one stream."""
        state = np.random.get_state()
        np.random.seed(seed)
        try:
            self._env._random_reset_space = region
            self._env._freeze_rand_vec = False
            self._env.reset()
            self._env._freeze_rand_vec = True
        finally:
            np.random.set_state(state)

    def step(self, action: NDArray[Any]) -> Stepped:
        observation, reward, terminated, truncated, info = self._env.step(action)
        return Stepped(
            observation={"observation": np.asarray(observation)},
            reward=float(reward),
            terminated=bool(terminated),
            truncated=bool(truncated) or self._env.curr_path_length >= self._time_limit,
            success=bool(info["success"]),
            metrics=metrics_of({name: value for name, value in info.items() if name != "success"}),
        )

    def close(self) -> None:
        self._env.close()


def _random_space(task: str, scene: Mapping[str, Any]) -> Box:
    """What object and goal (x, y, z of each, m) are drawn from in such a scene."""
    places = (*metaworld_region(task, "object_region", scene), *metaworld_region(task, "goal_region", scene))
    low, high = (np.array([bounds[i] for bounds in places]) for i in (0, 1))
    return Box(low, high, dtype=np.float64)
