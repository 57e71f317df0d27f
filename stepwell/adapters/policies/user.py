"""Policies that users bring: ``module:Class`` or ``path/to/file.py:Class``. Runs inside the policy's process."""

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepwell.adapters.policies.base import Action, ActionSpace, Observation, Policy


class UserPolicy(Policy):
    """Wraps a user's object, so that what it leaves out has a meaning."""

    def __init__(self, target: str, arguments: Mapping[str, Any] | None = None, path: str | None = None) -> None:
        if path is not None:
            sys.path.insert(0, path)
        self._policy: Any = _load(target)(**(arguments or {}))
        self.needs = tuple(getattr(self._policy, "needs", ()))
        self.checkpoint: str | None = getattr(self._policy, "checkpoint", None)

    def reset(self, task: str, seed: int, action_space: ActionSpace) -> None:
        if hasattr(self._policy, "reset"):
            self._policy.reset(task, seed, action_space)

    def act(self, observation: Observation, step: int) -> Action:
        action: Action = self._policy.act(observation, step)
        return action


def _load(target: str) -> Any:
    where, _, name = target.rpartition(":")
    if where.endswith(".py"):
        file = Path(where).resolve()
        sys.path.insert(0, str(file.parent))
        spec = importlib.util.spec_from_file_location(file.stem, file)
        if spec is None or spec.loader is None or not file.exists():
            raise FileNotFoundError(f"there is no Python file {file}")
        module = importlib.util.module_from_spec(spec)
        sys.modules[file.stem] = module
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(where)
    return getattr(module, name)
