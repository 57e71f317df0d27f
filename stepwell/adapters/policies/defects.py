"""Defects: what goes wrong with policies in practice, on purpose and repeatably. Run inside the policy's process.

Every defect begins at ``at_step`` and strikes an episode with ``probability``, drawn from the episode's seed: so with
0.5 about half the seeds are struck, always the same ones.
"""

import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from stepwell.adapters.policies.base import Action, ActionSpace, Observation, Policy

_STREAM = 0xDEFEC7


class DefectError(RuntimeError):
    """Raised by the defect ``die`` where it is to raise."""


class Defect(Policy):
    """A policy around another; what it does to actions stands in `strike`."""

    def __init__(self, inner: Policy, number: int, at_step: int = 0, probability: float = 1.0) -> None:
        self._inner = inner
        self._number = number
        self._at_step = at_step
        self._probability = probability

    def reset(self, task: str, seed: int, action_space: ActionSpace) -> None:
        self._inner.reset(task, seed, action_space)
        self._space = action_space
        self._random = np.random.default_rng([_STREAM, self._number, seed])
        self._struck = bool(self._random.random() < self._probability)

    def act(self, observation: Observation, step: int) -> Action:
        action = self._inner.act(observation, step)
        if not self._struck:
            return action
        chunk = np.array(np.atleast_2d(action), dtype=np.float64)
        for row in range(chunk.shape[0]):
            if step + row >= self._at_step:
                chunk[row] = self.strike(chunk[row])
        return chunk

    def strike(self, action: Action) -> Action:
        """What becomes of one action (shape (action dimensions,)) once the defect acts."""
        return action


class Noise(Defect):
    """Gaussian noise of standard deviation ``sigma`` on every action, within the bounds."""

    def __init__(self, inner: Policy, number: int, sigma: float, **when: Any) -> None:
        super().__init__(inner, number, **when)
        self._sigma = sigma

    def strike(self, action: Action) -> Action:
        return self._space.clip(action + self._random.normal(0.0, self._sigma, action.shape))


class DropGripper(Defect):
    """The gripper's command is lost: the last element is ``value`` (-1: open) whatever the policy chose."""

    def __init__(self, inner: Policy, number: int, value: float = -1.0, **when: Any) -> None:
        super().__init__(inner, number, **when)
        self._value = value

    def strike(self, action: Action) -> Action:
        action[-1] = self._value
        return action


class NanAction(Defect):
    """The first element is not a number."""

    def strike(self, action: Action) -> Action:
        action[0] = np.nan
        return action


class WrongShape(Defect):
    """One action dimension too many."""

    def act(self, observation: Observation, step: int) -> Action:
        action = self._inner.act(observation, step)
        if not self._struck or step < self._at_step:
            return action
        chunk = np.atleast_2d(action)
        return np.hstack((chunk, np.zeros((chunk.shape[0], 1))))


class Die(Defect):
    """The policy raises (``raise``), or its process exits (``exit``), crashes (``crash``) or is killed (``kill``)."""

    def __init__(self, inner: Policy, number: int, how: str = "raise", **when: Any) -> None:
        super().__init__(inner, number, **when)
        self._how = how

    def strike(self, action: Action) -> Action:
        if self._how == "raise":
            raise DefectError("the policy broke, as its defect 'die' asks")
        if self._how == "exit":
            sys.exit(3)
        os.kill(os.getpid(), signal.SIGKILL if self._how == "kill" else signal.SIGSEGV)
        return action


class Hang(Defect):
    """The policy never answers."""

    def strike(self, action: Action) -> Action:
        while True:
            time.sleep(3600)


class Slow(Defect):
    """Every answer takes ``latency_s`` longer."""

    def __init__(self, inner: Policy, number: int, latency_s: float, **when: Any) -> None:
        super().__init__(inner, number, **when)
        self._latency_s = latency_s

    def strike(self, action: Action) -> Action:
        time.sleep(self._latency_s)
        return action


KINDS: Mapping[str, type[Defect]] = {
    "noise": Noise,
    "drop_gripper": DropGripper,
    "nan_action": NanAction,
    "wrong_shape": WrongShape,
    "die": Die,
    "hang": Hang,
    "slow": Slow,
}
