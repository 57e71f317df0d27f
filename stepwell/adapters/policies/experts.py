"""Scripted experts. Run inside the policy's process, in the environment of the simulator whose tasks they solve."""

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell.adapters.policies.base import Action, ActionSpace, Observation, Policy


class MetaworldExpert(Policy):
    """Meta-World's own scripted policy for the task."""

    def reset(self, task: str, seed: int, action_space: ActionSpace) -> None:
        from metaworld.policies import ENV_POLICY_MAP

        warnings.filterwarnings("ignore", message="Constant.* may be too high")  # said at nearly every step
        self._policy: Any = ENV_POLICY_MAP[task.rpartition("/")[2]]()
        self._space = action_space

    def act(self, observation: Observation, step: int) -> Action:
        return self._space.clip(self._policy.get_action(observation["observation"]))


class LiftExpert(Policy):
    """Grasps and lifts the cube of robosuite's Lift: above it, down, close, up.

    Actions move the gripper's frame by up to 5 cm per step and axis; the last element opens (-1) and closes (1).
    """

    HOVER_M = 0.08
    ALIGNED_M = 0.012
    GRASP_HEIGHT_M = 0.008
    CLOSING_STEPS = 12
    METRES_PER_UNIT = 0.05
    GAIN = 0.35

    def reset(self, task: str, seed: int, action_space: ActionSpace) -> None:
        self._space = action_space
        self._phase = "above"
        self._closing = 0

    def act(self, observation: Observation, step: int) -> Action:
        offset = observation["cube_pos"] - observation["robot0_eef_pos"]
        beside = float(np.hypot(offset[0], offset[1]))
        if self._phase == "above" and beside < self.ALIGNED_M:
            self._phase = "down"
        if self._phase == "down" and beside > 3 * self.ALIGNED_M:
            self._phase = "above"  # pushed it, or slid off: once more from above
        if self._phase == "down" and abs(offset[2]) < self.GRASP_HEIGHT_M:
            self._phase = "close"
        if self._phase == "close":
            self._closing += 1
            if self._closing > self.CLOSING_STEPS:
                self._phase = "up"
        return self._space.clip(self._command(offset))

    def _command(self, offset: NDArray[Any]) -> Action:
        action = np.zeros(7)
        action[6] = 1.0 if self._phase in ("close", "up") else -1.0
        if self._phase in ("above", "down"):
            target = offset.copy()
            if self._phase == "above":
                target[2] = max(target[2] + self.HOVER_M, -self.HOVER_M)
            action[:3] = self.GAIN * target / self.METRES_PER_UNIT
        elif self._phase == "up":
            action[2] = 0.5
        return action
