"""The policy as its host sees it: a process to start, reset, ask and close, apart from the simulator's."""

from collections.abc import Iterable
from pathlib import Path
from typing import Self

import msgspec

from stepwell.adapters.policies.spec import PolicySpec, needs_of, problems_between, validate_policy
from stepwell.adapters.processes.errors import InvalidActionError
from stepwell.adapters.processes.supervised import SupervisedProcess
from stepwell.adapters.simulators.client import SimulatorDescription, frame_arrays, tensors
from stepwell.adapters.simulators.install import environment_python
from stepwell.adapters.simulators.spec import SimulatorSpec
from stepwell.events.model import Tensor
from stepwell.exceptions import SpecError

START_TIMEOUT_S = 180.0
RESET_TIMEOUT_S = 60.0
ACT_TIMEOUT_S = 30.0


class PolicyDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What a loaded policy says about itself; ``needs`` are the observation keys it reads."""

    name: str
    version: str
    checkpoint: str | None
    needs: tuple[str, ...]


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """Actions for ``n_steps`` steps: ``action`` has shape (n_steps, action dimensions)."""

    action: Tensor
    n_steps: int
    inference_s: float


class PolicyProcess:
    """A policy in a process of its own, by the interpreter of the simulator's environment or of the user's choice.

    Every failure is raised as a `ProcessFailedError`; after any but `ProcessRaisedError` the process is gone, and after
    that one its state is unknown: start a new one in both cases.
    """

    def __init__(self, policy: PolicySpec, simulator: SimulatorSpec, *, working_directory: Path | None = None) -> None:
        """Nothing is started yet.

        Raises:
            SpecError: the spec is wrong, or the policy cannot act in this task or scene.
            MissingPartError: the environment that runs it is not installed.
        """
        if problems := validate_policy(policy) or problems_between(policy, simulator):
            raise SpecError("; ".join(map(str, problems)))
        self.policy = policy
        self._simulator = simulator
        interpreter = policy.options.get("interpreter")
        self._process = SupervisedProcess(
            "agent",
            Path(interpreter) if interpreter else environment_python(simulator.simulator),
            "stepwell.adapters.policies.process",
            working_directory=working_directory,
        )

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self._process.pid

    @property
    def output(self) -> str:
        """The last lines that it printed."""
        return self._process.output

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, timeout_s: float = START_TIMEOUT_S) -> PolicyDescription:
        """Start the process and load the policy. A start that fails leaves no process behind.

        Raises:
            ProcessFailedError: see there.
        """
        self._process.start(timeout_s)
        policy = self.policy
        ours = ("needs", "interpreter")  # what the host reads; the policy is given the rest
        request = {
            "kind": policy.kind,
            "options": {name: value for name, value in policy.options.items() if name not in ours},
            "defects": [{"kind": defect.kind, "options": defect.options} for defect in policy.defects],
        }
        body = self._process.open(request, timeout_s)
        needs = dict.fromkeys((*needs_of(policy), *body["needs"]))
        return PolicyDescription(
            name=policy.name, version=policy.version, checkpoint=body["checkpoint"], needs=tuple(needs)
        )

    def reset(
        self, task: str, seed: int, description: SimulatorDescription, timeout_s: float = RESET_TIMEOUT_S
    ) -> None:
        """Begin an episode of ``task`` (``simulator/task``) in the simulator so described.

        Raises:
            ProcessFailedError: see there.
        """
        action = msgspec.to_builtins(description.action)
        self._process.call("reset", {"task": task, "seed": seed, "action": action}, (), timeout_s)

    def act(self, observation: Iterable[Tensor], step: int, timeout_s: float = ACT_TIMEOUT_S) -> Chunk:
        """The policy's answer to the observation before ``step``. Its content is not judged here.

        Raises:
            ProcessFailedError: see there.
        """
        answer = self._process.call("act", {"step": step}, frame_arrays(observation), timeout_s)
        if len(answer.arrays) != 1 or len(answer.arrays[0].shape) != 2:
            raise InvalidActionError("The policy's answer holds no action of shape (n, action dimensions).")
        (action,) = tensors(answer.arrays)
        return Chunk(action=action, n_steps=action.shape[0], inference_s=answer.body["inference_s"])

    def close(self) -> None:
        """End the process and everything it started; fine to call twice."""
        self._process.close()
