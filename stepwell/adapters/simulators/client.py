"""The simulator as its host sees it: a process to start, reset, step and close. Needs no numpy and no simulator."""

import math
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Self

import msgspec

from stepwell.adapters.processes.errors import InvalidActionError
from stepwell.adapters.processes.frames import ITEM_BYTES, Array
from stepwell.adapters.processes.supervised import SupervisedProcess
from stepwell.adapters.simulators.install import environment_digest, environment_python
from stepwell.adapters.simulators.spec import SimulatorSpec, validate_simulator
from stepwell.events.model import Metric, Tensor
from stepwell.exceptions import SpecError

ADAPTER_VERSION = "1"
"""Goes up whenever an adapter's results can change for the same seed and actions."""

START_TIMEOUT_S = 180.0
RESET_TIMEOUT_S = 120.0
STEP_TIMEOUT_S = 30.0
_TYPECODES = {"float32": "f", "float64": "d"}


class ArraySpec(msgspec.Struct, frozen=True):
    """Name, dtype and shape of one observation."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class ActionSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Dtype and shape of one action, and its lowest and highest values."""

    dtype: str
    shape: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


class SimulatorDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What an opened simulator says about itself.

    Attributes:
        environment_digest: SHA-256 (hex) of the lock of its environment.
        versions: package -> version of all that decides results.
        time_limit: steps after which it truncates by itself; None where it does not.
        gives_success: whether steps say if the task stands achieved.
    """

    simulator: str
    simulator_version: str
    adapter_version: str
    environment_digest: str
    versions: dict[str, str]
    observation: tuple[ArraySpec, ...]
    action: ActionSpec
    step_duration_s: float
    time_limit: int | None
    gives_success: bool


class Reset(msgspec.Struct, frozen=True, kw_only=True):
    """An episode's beginning. ``factors`` are the perturbation's factors drawn for it; ``wall_s`` what it took."""

    observation: tuple[Tensor, ...]
    state_digest: bytes
    sim_time: float
    factors: dict[str, float]
    wall_s: float


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """One step's result; fields as in `stepwell.events.model.StepDone`, and MuJoCo's warnings by name."""

    observation: tuple[Tensor, ...]
    reward: float
    success: bool | None
    terminated: bool
    truncated: bool
    metrics: tuple[Metric, ...]
    warnings: tuple[str, ...]
    state_digest: bytes
    sim_time: float
    step_wall_s: float


class SimulatorProcess:
    """A simulator in a process of its own.

    One process can run many episodes, one after the other; each depends on its seed alone. Every failure is raised as a
    `ProcessFailedError`; after any but `ProcessRaisedError` the process is gone, and after that one its state is
    unknown: start a new one in both cases.
    """

    def __init__(self, spec: SimulatorSpec, *, working_directory: Path | None = None) -> None:
        """Nothing is started yet.

        Raises:
            SpecError: the spec is wrong.
            MissingPartError: the simulator's environment is not installed.
        """
        if problems := validate_simulator(spec):
            raise SpecError("; ".join(map(str, problems)))
        self.spec = spec
        self.description: SimulatorDescription | None = None
        self._process = SupervisedProcess(
            "sim",
            environment_python(spec.simulator),
            "stepwell.adapters.simulators.process",
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

    def start(self, timeout_s: float = START_TIMEOUT_S) -> SimulatorDescription:
        """Start the process and open the task. A start that fails leaves no process behind.

        Raises:
            ProcessFailedError: see there.
        """
        self._process.start(timeout_s)
        spec = self.spec
        request = {
            "simulator": spec.simulator,
            "task": spec.task,
            "scene": spec.scene,
            "perturbation": spec.perturbation,
        }
        body = self._process.open(request, timeout_s)
        action = body["action"]
        self.description = SimulatorDescription(
            simulator=spec.simulator,
            simulator_version=body["versions"][spec.simulator],
            adapter_version=ADAPTER_VERSION,
            environment_digest=environment_digest(spec.simulator),
            versions=body["versions"],
            observation=tuple(ArraySpec(name, dtype, tuple(shape)) for name, dtype, shape in body["observation"]),
            action=ActionSpec(
                dtype=action["dtype"],
                shape=tuple(action["shape"]),
                low=tuple(action["low"]),
                high=tuple(action["high"]),
            ),
            step_duration_s=body["step_duration_s"],
            time_limit=body["time_limit"],
            gives_success=body["gives_success"],
        )
        return self.description

    def reset(self, seed: int, timeout_s: float = RESET_TIMEOUT_S) -> Reset:
        """Begin the episode of ``seed`` (0 to 2**32 - 1).

        Raises:
            ProcessFailedError: see there.
        """
        if not 0 <= seed < 2**32:
            raise SpecError(f"A seed is a whole number from 0 to 2**32 - 1, not {seed}.")
        answer = self._process.call("reset", {"seed": seed}, (), timeout_s)
        return Reset(
            observation=tensors(answer.arrays),
            state_digest=bytes.fromhex(answer.body["state_digest"]),
            sim_time=answer.body["sim_time"],
            factors=answer.body["factors"],
            wall_s=answer.body["wall_s"],
        )

    def step(self, action: Tensor, row: int | None = None, timeout_s: float = STEP_TIMEOUT_S) -> StepResult:
        """One step.

        Args:
            action: shape (action dimensions,), or a chunk (n, action dimensions) with ``row``.
            row: which action of the chunk.
            timeout_s: longest wait for the result.

        Raises:
            InvalidActionError: not finite, or of a wrong shape or dtype; the simulator did not see it.
            ProcessFailedError: see there; ``sim_diverged`` where the simulation became unstable.
        """
        if self.description is None:
            raise RuntimeError("start() comes before step()")
        one = action_row(action, row, self.description.action)
        answer = self._process.call("step", {}, (one,), timeout_s)
        body = answer.body
        return StepResult(
            observation=tensors(answer.arrays),
            reward=body["reward"],
            success=body["success"],
            terminated=body["terminated"],
            truncated=body["truncated"],
            metrics=tuple(Metric(name=name, value=value) for name, value in body["metrics"].items()),
            warnings=tuple(body["warnings"]),
            state_digest=bytes.fromhex(body["state_digest"]),
            sim_time=body["sim_time"],
            step_wall_s=body["wall_s"],
        )

    def close(self) -> None:
        """End the process and everything it started; fine to call twice."""
        self._process.close()


def action_row(action: Tensor, row: int | None, wanted: ActionSpec) -> Array:
    """One action out of a chunk, checked: what may be given to a simulator.

    Raises:
        InvalidActionError: it has another shape or dtype than wanted, or holds NaN or infinity.
    """
    size = math.prod(wanted.shape)
    shape = action.shape if row is None else action.shape[1:]
    typecode = _TYPECODES.get(action.dtype)
    if shape != wanted.shape or typecode is None or (row is not None and not 0 <= row < action.shape[0]):
        raise InvalidActionError(
            f"The policy sent an action of dtype {action.dtype} and shape {action.shape}"
            f" where the simulator takes floats of shape {wanted.shape}."
        )
    bytes_each = size * ITEM_BYTES[action.dtype]
    start = (row or 0) * bytes_each
    data = action.data[start : start + bytes_each]
    if len(data) != bytes_each:
        raise InvalidActionError(f"The policy sent an action whose {len(action.data)} bytes don't fill its shape.")
    values = array(typecode, data)
    if bad := [f"[{at}] is {value}" for at, value in enumerate(values) if not math.isfinite(value)]:
        raise InvalidActionError(f"The policy sent an action that is not finite: {', '.join(bad)}.")
    return Array("action", action.dtype, wanted.shape, data)


def tensors(arrays: Iterable[Array]) -> tuple[Tensor, ...]:
    """Frames' arrays as they stand in events."""
    return tuple(Tensor(name=name, dtype=dtype, shape=shape, data=data) for name, dtype, shape, data in arrays)


def frame_arrays(observation: Iterable[Tensor]) -> tuple[Array, ...]:
    """Events' tensors for a frame."""
    return tuple(Array(tensor.name, tensor.dtype, tensor.shape, tensor.data) for tensor in observation)
