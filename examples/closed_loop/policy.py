"""The learned policy: a small network from what the robot sees to what its expert would do. Needs numpy only."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SEEN = np.array([0, 1, 2, 3, 4, 5, 6, 36, 37, 38])
"""Of Meta-World's 39 numbers: the hand's place, the gripper's opening, the puck's place, the goal's place."""


def forward(features: NDArray[Any], weights: list[NDArray[Any]], biases: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """The activations of each layer, (n, units): tanh, the last one linear."""
    layers = [features]
    for number, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        out = layers[-1] @ weight + bias
        layers.append(out if number == len(weights) - 1 else np.tanh(out))
    return layers


class Pusher:
    """Plays a checkpoint that `cloning.train` wrote."""

    needs = ("observation",)

    def __init__(self, weights: str) -> None:
        with np.load(weights) as saved:
            self._mean, self._scale = saved["mean"], saved["scale"]
            number = sum(name.startswith("weight") for name in saved.files)
            self._weights = [saved[f"weight{i}"] for i in range(number)]
            self._biases = [saved[f"bias{i}"] for i in range(number)]
        self.checkpoint = Path(weights).stem

    def act(self, observation: dict[str, NDArray[Any]], step: int) -> NDArray[Any]:
        """The action, shape (4,): where the hand moves, and the gripper."""
        features = (observation["observation"][SEEN] - self._mean) / self._scale
        return np.clip(forward(features[None], self._weights, self._biases)[-1][0], -1.0, 1.0)
