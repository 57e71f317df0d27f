"""Policies that need no knowledge of the task, and one that balances a pendulum. Run inside the policy's process."""

from typing import Any

import numpy as np

from stepwell.adapters.policies.base import Action, ActionSpace, Observation, Policy


class RandomPolicy(Policy):
    """Uniform within the action bounds; ``chunk`` actions per answer."""

    def __init__(self, chunk: int = 1) -> None:
        self._chunk = chunk

    def reset(self, task: str, seed: int, action_space: ActionSpace) -> None:
        self._random = np.random.default_rng(seed)
        # Some action spaces are open; there, one is as good a bound as any.
        self._low = np.nan_to_num(action_space.low, neginf=-1.0)
        self._high = np.nan_to_num(action_space.high, posinf=1.0)

    def act(self, observation: Observation, step: int) -> Action:
        return self._random.uniform(self._low, self._high, (self._chunk, self._low.shape[0]))


class ConstantPolicy(Policy):
    """Always the same action: ``value``, one number for all dimensions or a list; ``chunk`` of them per answer."""

    def __init__(self, value: Any = 0.0, chunk: int = 1) -> None:
        self._value = np.asarray(value, dtype=np.float64)
        self._chunk = chunk

    def reset(self, task: str, seed: int, action_space: ActionSpace) -> None:
        self._action = np.broadcast_to(self._value, (self._chunk, action_space.size)).copy()

    def act(self, observation: Observation, step: int) -> Action:
        return self._action


class PendulumBalancer(Policy):
    """State feedback for gymnasium's InvertedPendulum-v5.

    Observation: cart position (m), pole angle (rad), cart velocity (m/s), pole velocity (rad/s). The gains move the
    cart under the pole and slowly back to the middle.
    """

    GAINS = np.array([1.0, 20.0, 1.5, 4.0])

    def reset(self, task: str, seed: int, action_space: ActionSpace) -> None:
        self._space = action_space

    def act(self, observation: Observation, step: int) -> Action:
        force = float(self.GAINS @ observation["observation"])
        return self._space.clip(np.array([force]))
