"""What a policy is, inside its process. Needs numpy only.

User-supplied classes need not inherit from anything: ``act(observation, step)`` is enough, ``reset(task, seed,
action_space)`` and the class attributes ``needs`` and ``checkpoint`` are read where they exist.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Observation = Mapping[str, NDArray[Any]]
Action = NDArray[Any]
"""Shape (action dimensions,), or (n, action dimensions) for a chunk."""


@dataclass(frozen=True, slots=True)
class ActionSpace:
    """What the simulator takes: dtype, and lowest and highest values of shape (action dimensions,)."""

    dtype: str
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    @property
    def size(self) -> int:
        """Action dimensions."""
        return int(self.low.shape[0])

    def clip(self, action: Action) -> Action:
        """The nearest action within the bounds."""
        return np.clip(action, self.low, self.high)


class Policy(ABC):
    """Chooses actions from observations."""

    def reset(self, task: str, seed: int, action_space: ActionSpace) -> None:  # noqa: B027 - not all need it
        """Begin an episode; everything random from here on comes from ``seed``."""

    @abstractmethod
    def act(self, observation: Observation, step: int) -> Action:
        """The action for ``step``, or a chunk of actions for ``step`` and those after it."""
