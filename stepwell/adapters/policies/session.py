"""The policy's side of the protocol. Runs inside the policy's process.

open(kind, options, defects)                  -> needs, checkpoint
reset(task, seed, action)                     -> nothing
act(step) + the observation's arrays          -> array "action" (n_steps, action dimensions), inference time
"""

import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from stepwell.adapters.policies.base import ActionSpace, Policy
from stepwell.adapters.processes.child import Reply
from stepwell.adapters.processes.frames import Array, Message

POLICIES = {
    "random": ("stepwell.adapters.policies.simple", "RandomPolicy"),
    "constant": ("stepwell.adapters.policies.simple", "ConstantPolicy"),
    "pendulum_balancer": ("stepwell.adapters.policies.simple", "PendulumBalancer"),
    "metaworld_expert": ("stepwell.adapters.policies.experts", "MetaworldExpert"),
    "lift_expert": ("stepwell.adapters.policies.experts", "LiftExpert"),
    "python": ("stepwell.adapters.policies.user", "UserPolicy"),
}


class Session:
    """One loaded policy."""

    def __init__(self) -> None:
        self._policy: Policy | None = None
        self._ready = False

    def handle(self, operation: str, message: Message) -> Reply:
        """Answer one request."""
        body = message.body
        if operation == "open":
            return self._open(body["kind"], body["options"], body["defects"])
        if self._policy is None:
            raise RuntimeError("open comes first")
        if operation == "reset":
            action = body["action"]
            space = ActionSpace(action["dtype"], np.array(action["low"]), np.array(action["high"]))
            self._policy.reset(body["task"], int(body["seed"]), space)
            self._ready = True
            return {}, ()
        if operation == "act":
            if not self._ready:
                raise RuntimeError("reset comes before act")
            return _act(self._policy, message.arrays, int(body["step"]))
        raise ValueError(f"unknown operation {operation!r}")

    def _open(self, kind: str, options: Mapping[str, Any], defects: Sequence[Mapping[str, Any]]) -> Reply:
        module, name = POLICIES[kind]
        innermost = policy = getattr(import_module(module), name)(**options)
        if defects:
            kinds = import_module("stepwell.adapters.policies.defects").KINDS
            for number, defect in enumerate(defects):
                policy = kinds[defect["kind"]](policy, number, **defect["options"])
        self._policy = policy
        needs = list(getattr(innermost, "needs", ()))
        return {"needs": needs, "checkpoint": getattr(innermost, "checkpoint", None)}, ()


def _act(policy: Policy, arrays: Sequence[Array], step: int) -> Reply:
    observation = {
        array.name: np.frombuffer(array.data, dtype=array.dtype).reshape(array.shape).copy() for array in arrays
    }
    began = time.perf_counter()
    action = np.asarray(policy.act(observation, step))
    inference_s = time.perf_counter() - began
    if action.dtype not in (np.float32, np.float64):
        action = action.astype(np.float64)  # raises for what is no number, as the policy's own fault
    chunk = np.ascontiguousarray(np.atleast_2d(action))
    if chunk.ndim != 2 or chunk.shape[0] == 0:
        raise ValueError(f"act() gave an array of shape {action.shape}; expected (dimensions,) or (n, dimensions)")
    return {"inference_s": inference_s}, [Array("action", str(chunk.dtype), chunk.shape, chunk.tobytes())]
