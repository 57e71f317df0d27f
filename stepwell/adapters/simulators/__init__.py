"""Simulators: what there is (`catalogue`), what to run (`spec`), how it is installed and driven (`install`, `client`).

The other modules run inside the simulator's own process and environment; see `session` for the protocol.
"""

from stepwell.adapters.simulators.client import (
    ActionSpec,
    ArraySpec,
    Reset,
    SimulatorDescription,
    SimulatorProcess,
    StepResult,
)
from stepwell.adapters.simulators.install import environment_digest, environment_python
from stepwell.adapters.simulators.spec import Problem, SimulatorSpec, observation_keys, validate_simulator

__all__ = [
    "ActionSpec",
    "ArraySpec",
    "Problem",
    "Reset",
    "SimulatorDescription",
    "SimulatorProcess",
    "SimulatorSpec",
    "StepResult",
    "environment_digest",
    "environment_python",
    "observation_keys",
    "validate_simulator",
]
