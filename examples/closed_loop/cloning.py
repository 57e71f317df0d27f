"""Behaviour cloning: demonstrations from Meta-World's scripted expert, and a small network fitted to them.

Everything random comes from seeds: the same demonstrations and seed give the same checkpoint on the same machine.
"""

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from policy import SEEN, forward

from stepwell.adapters.policies import PolicyProcess, PolicySpec
from stepwell.adapters.simulators import SimulatorProcess, SimulatorSpec
from stepwell.events.arrays import tensor, to_numpy

STEPS_MAX = 120
NOISE = 0.3
"""Standard deviation of what is added to the expert's commands while it demonstrates; its own are what is learned.

So the data also say how to come back from small mistakes: M. Laskey et al., DART: Noise injection for robust imitation
learning, CoRL 2017.
"""
HIDDEN = 64
EPOCHS = 60
BATCH = 128
RATE = 2e-3


class Wanted(NamedTuple):
    """A demonstration: in which scene, with which seed."""

    scene: str
    seed: int


Demonstration = tuple[NDArray[Any], NDArray[Any]]
"""What was seen, (n, 10), and what the expert chose, (n, 4)."""


def demonstrate(wanted: Iterable[Wanted], scenes: Mapping[str, SimulatorSpec]) -> list[Demonstration]:
    """One demonstration for each, in real simulators; scenes in the order of their first use."""
    by_scene: dict[str, list[int]] = {}
    for each in wanted:
        by_scene.setdefault(each.scene, []).append(each.seed)
    made: list[Demonstration] = []
    if not by_scene:
        return made
    expert = PolicySpec(name="expert", kind="metaworld_expert")
    with PolicyProcess(expert, scenes[next(iter(by_scene))]) as policy:  # one task, so one expert for all scenes
        policy.start()
        for scene, seeds in by_scene.items():
            with SimulatorProcess(scenes[scene]) as world:
                world.start()
                made += [_demonstration(world, policy, seed) for seed in seeds]
    return made


def _demonstration(world: SimulatorProcess, policy: PolicyProcess, seed: int) -> Demonstration:
    assert world.description is not None
    random = np.random.default_rng([0xDE30, seed])
    observation = world.reset(seed).observation
    policy.reset(world.spec.full_task, seed, world.description)
    seen, chosen = [], []
    for step in range(STEPS_MAX):
        action = to_numpy(policy.act(observation, step).action)[0].astype(np.float64)
        seen.append(to_numpy(observation[0])[SEEN])
        chosen.append(action)
        disturbed = action.copy()
        disturbed[:3] += random.normal(0.0, NOISE, 3)
        result = world.step(tensor("action", np.clip(disturbed, -1.0, 1.0)))
        observation = result.observation
        if result.success:
            break
    return np.array(seen), np.array(chosen)


def train(demonstrations: Sequence[Demonstration], seed: int) -> dict[str, NDArray[Any]]:
    """A network fitted to the demonstrations by least squares with Adam (Kingma and Ba, 2015)."""
    random = np.random.default_rng([0x7A11, seed])
    seen = np.concatenate([each[0] for each in demonstrations])
    chosen = np.concatenate([each[1] for each in demonstrations])
    mean, scale = seen.mean(axis=0), seen.std(axis=0) + 1e-3
    features = (seen - mean) / scale
    sizes = [features.shape[1], HIDDEN, HIDDEN, chosen.shape[1]]
    weights = [random.normal(0, 1 / np.sqrt(n), (n, m)) for n, m in itertools.pairwise(sizes)]
    biases = [np.zeros(n) for n in sizes[1:]]
    parameters = [*weights, *biases]
    first, second = ([np.zeros_like(each) for each in parameters] for _ in range(2))
    step = 0
    for epoch in range(EPOCHS):
        rate = RATE * (1 - epoch / EPOCHS)
        for rows in np.array_split(random.permutation(len(features)), max(1, len(features) // BATCH)):
            step += 1
            gradients = _gradients(features[rows], chosen[rows], weights, biases)
            for i, gradient in enumerate(gradients):
                first[i] += 0.1 * (gradient - first[i])
                second[i] += 0.001 * (gradient * gradient - second[i])
                towards = (first[i] / (1 - 0.9**step)) / (np.sqrt(second[i] / (1 - 0.999**step)) + 1e-8)
                parameters[i] -= rate * towards  # in place: weights and biases are these arrays
    named = {f"weight{i}": weight for i, weight in enumerate(weights)}
    named |= {f"bias{i}": bias for i, bias in enumerate(biases)}
    return named | {"mean": mean, "scale": scale}


def _gradients(
    features: NDArray[Any], chosen: NDArray[Any], weights: list[NDArray[Any]], biases: list[NDArray[Any]]
) -> list[NDArray[Any]]:
    """Of the mean squared error, for all weights, then all biases."""
    layers = forward(features, weights, biases)
    error = 2 * (layers[-1] - chosen) / len(features)
    of_weights, of_biases = [], []
    for number in reversed(range(len(weights))):
        of_weights.insert(0, layers[number].T @ error)
        of_biases.insert(0, error.sum(axis=0))
        if number:
            error = (error @ weights[number].T) * (1 - layers[number] ** 2)
    return [*of_weights, *of_biases]


# --- on the disk --------------------------------------------------------------------------------------------------


def save(directory: Path, checkpoint: str, weights: Mapping[str, NDArray[Any]], about: Mapping[str, Any]) -> None:
    """The checkpoint, and beside it what it was made of; whole or not at all."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{checkpoint}.json").write_text(json.dumps(about, indent=2) + "\n")
    partial = directory / f"{checkpoint}.partial.npz"
    np.savez(partial, **weights)
    partial.replace(directory / f"{checkpoint}.npz")


def save_demonstrations(path: Path, demonstrations: Sequence[Demonstration]) -> None:
    """For the next training, which goes on from them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {
        f"{name}{i}": array for i, each in enumerate(demonstrations) for name, array in zip("sc", each, strict=True)
    }
    np.savez(path, **arrays)


def load_demonstrations(path: Path) -> list[Demonstration]:
    """What `save_demonstrations` wrote."""
    with np.load(path) as saved:
        return [(saved[f"s{i}"], saved[f"c{i}"]) for i in range(len(saved.files) // 2)]
