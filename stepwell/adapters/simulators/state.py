"""Digests and warnings of a MuJoCo simulation. Runs inside the simulator's process."""

import hashlib

import mujoco
import numpy as np

_SPEC = mujoco.mjtState.mjSTATE_INTEGRATION
"""All that decides how the simulation goes on: positions, velocities, controls, warm start, mocap, history."""

_MODEL_FIELDS = (
    "body_pos", "body_quat", "body_mass", "body_inertia", "geom_size", "geom_pos", "geom_friction", "site_pos",
    "actuator_gainprm", "actuator_biasprm", "dof_damping", "eq_data",
)  # fmt: skip

DIVERGENCE = (
    mujoco.mjtWarning.mjWARN_BADQPOS,
    mujoco.mjtWarning.mjWARN_BADQVEL,
    mujoco.mjtWarning.mjWARN_BADQACC,
)


class DivergedError(Exception):
    """The simulation became numerically unstable although the action was finite."""

    failure_kind = "diverged"


class StateDigest:
    """SHA-256 over the model's physical parameters and the state.

    The model belongs to it: some tasks draw an object's size or place at each reset, and perturbations change masses.
    Equal digests mean that equal actions lead to equal futures.
    """

    def __init__(self, model: mujoco.MjModel) -> None:
        self._model = model
        self._state = np.empty(mujoco.mj_stateSize(model, _SPEC))
        digest = hashlib.sha256(model.opt.gravity.tobytes())
        for name in _MODEL_FIELDS:
            digest.update(getattr(model, name).tobytes())
        self._of_model = digest.digest()

    def __call__(self, data: mujoco.MjData) -> bytes:
        """Digest of the state now (32 bytes)."""
        mujoco.mj_getState(self._model, data, self._state, _SPEC)
        return hashlib.sha256(self._of_model + self._state.tobytes()).digest()


class Warnings:
    """Watches MuJoCo's warning counters."""

    def __init__(self, data: mujoco.MjData) -> None:
        self._seen = np.array(data.warning.number)

    def check(self, data: mujoco.MjData) -> list[str]:
        """Names of the warnings since the last check, e.g. ``CONTACTFULL``.

        Raises:
            DivergedError: MuJoCo met NaN or huge numbers in positions, velocities or accelerations; it then resets
                its state by itself, so nothing after this means anything.
        """
        numbers = np.array(data.warning.number)
        if np.array_equal(numbers, self._seen):
            return []
        new = [kind for kind in _KINDS if numbers[int(kind)] > self._seen[int(kind)]]
        self._seen = numbers
        names = [kind.name.removeprefix("mjWARN_") for kind in new]
        if any(kind in DIVERGENCE for kind in new):
            raise DivergedError(f"the simulation became unstable: MuJoCo warns of {', '.join(names)}")
        return names


_KINDS = [kind for kind in mujoco.mjtWarning.__members__.values() if kind.name != "mjNWARNING"]
