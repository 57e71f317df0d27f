"""Runs real episodes for the tests of simulators and policies."""

import random
import struct
from typing import Any, NamedTuple

from stepwell.adapters.policies import PolicyProcess
from stepwell.adapters.simulators import Reset, SimulatorDescription, SimulatorProcess, SimulatorSpec, StepResult
from stepwell.events.model import Tensor


class Episode(NamedTuple):
    """What an episode was."""

    reset: Reset
    steps: list[StepResult]

    @property
    def digests(self) -> list[bytes]:
        return [self.reset.state_digest, *(step.state_digest for step in self.steps)]

    @property
    def observations(self) -> list[tuple[Tensor, ...]]:
        return [self.reset.observation, *(step.observation for step in self.steps)]

    @property
    def last(self) -> StepResult:
        return self.steps[-1]


def vector(*values: float) -> Tensor:
    """One action."""
    return Tensor(name="action", dtype="float64", shape=(len(values),), data=struct.pack(f"<{len(values)}d", *values))


def floats(tensor: Tensor) -> tuple[float, ...]:
    """The elements of a float64 tensor."""
    assert tensor.dtype == "float64"
    return struct.unpack(f"<{len(tensor.data) // 8}d", tensor.data)


def started(full_task: str, scene: dict[str, Any] | None = None, **perturbation: Any) -> SimulatorProcess:
    """A simulator, started."""
    process = SimulatorProcess(SimulatorSpec.parse(full_task, scene, perturbation))
    process.start()
    return process


def play(simulator: SimulatorProcess, seed: int, n_steps: int, action: float | None = None) -> Episode:
    """Steps with actions that a fixed generator draws, or with one constant action."""
    assert simulator.description is not None
    size = simulator.description.action.shape[0]
    draw = random.Random(1)
    reset = simulator.reset(seed)
    steps = []
    for _ in range(n_steps):
        values = [draw.uniform(-1, 1) if action is None else action for _ in range(size)]
        steps.append(simulator.step(vector(*values)))
    return Episode(reset, steps)


def act_out(
    simulator: SimulatorProcess, agent: PolicyProcess, seed: int, max_steps: int, timeout_s: float = 60
) -> Episode:
    """An episode of a policy, until success, an end or the budget."""
    description = simulator.description
    assert isinstance(description, SimulatorDescription)
    reset = simulator.reset(seed)
    agent.reset(simulator.spec.full_task, seed, description)
    steps: list[StepResult] = []
    observation = reset.observation
    while len(steps) < max_steps:
        chunk = agent.act(observation, len(steps), timeout_s)
        for row in range(chunk.n_steps):
            steps.append(simulator.step(chunk.action, row))
            if steps[-1].success or steps[-1].terminated or steps[-1].truncated:
                return Episode(reset, steps)
        observation = steps[-1].observation
    return Episode(reset, steps)
