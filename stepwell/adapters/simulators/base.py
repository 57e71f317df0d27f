"""What a simulator adapter has to give. Runs inside the simulator's process: needs numpy and mujoco, nothing of ours.

An adapter drives one environment. Everything that the adapters share (perturbations, digests, time, warnings) is done
once around them, in `session`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

Observation = dict[str, NDArray[Any]]
"""Observation key -> array."""

Perturb = Callable[[mujoco.MjModel], None]
"""Scales a model's physics by this episode's factors."""


@dataclass(frozen=True, slots=True)
class Stepped:
    """What one step gave."""

    observation: Observation
    reward: float
    terminated: bool
    truncated: bool
    success: bool | None
    metrics: dict[str, float] = field(default_factory=dict)


class Simulator(ABC):
    """One environment of one task. Built by ``open`` of the protocol, then reset and stepped."""

    @abstractmethod
    def __init__(self, task: str, scene: Mapping[str, Any]) -> None:
        """Make the environment. ``scene`` was validated before (see `catalogue`)."""

    @property
    @abstractmethod
    def versions(self) -> dict[str, str]:
        """Name -> version of what decides the results; the simulator's own package first."""

    @property
    @abstractmethod
    def action_bounds(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Lowest and highest action, both of shape (action dimensions,) and of the simulator's own dtype."""

    @property
    @abstractmethod
    def step_duration_s(self) -> float:
        """Simulated seconds per step."""

    @property
    @abstractmethod
    def time_limit(self) -> int | None:
        """Steps after which the simulator itself truncates; None where it does not."""

    @property
    @abstractmethod
    def gives_success(self) -> bool:
        """Whether `Stepped.success` is ever other than None."""

    @property
    @abstractmethod
    def model(self) -> mujoco.MjModel:
        """The model in use now; an adapter may make a new one at each reset."""

    @property
    @abstractmethod
    def data(self) -> mujoco.MjData:
        """The state in use now."""

    @abstractmethod
    def sample_observation(self) -> Observation:
        """An observation with the right keys, shapes and dtypes; its content means nothing."""

    @abstractmethod
    def reset(self, seed: int, perturb: Perturb) -> Observation:
        """Begin the episode that ``seed`` determines, whatever ran before.

        ``perturb(model)`` has to be called once, as soon as the episode's model exists.
        """

    @abstractmethod
    def step(self, action: NDArray[Any]) -> Stepped:
        """One step with a finite action of the right shape."""

    def close(self) -> None:  # noqa: B027 - not all hold something
        """Free what the environment holds."""


def metrics_of(info: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of an info dict, as floats; what is no single number is left out.

    Simulators mix Python and NumPy types, and the same key can be a bool in one task and a float in another.
    """
    metrics = {}
    for name, value in info.items():
        if isinstance(value, bool | int | float | np.generic) or (isinstance(value, np.ndarray) and value.size == 1):
            array = np.asarray(value)
            if array.dtype.kind in "biuf":
                metrics[str(name)] = float(array.reshape(()))
    return metrics
