"""Stepwell: an event-sourced state-machine engine on a message log, for evaluating robot policies.

The names in ``__all__`` are the public face; each is loaded when it is first used, so that importing the package costs
nothing.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

# Public name -> module that defines it.
_HOMES: dict[str, str] = {
    "ConfigurationError": "stepwell.exceptions",
    "StepwellError": "stepwell.exceptions",
}

__all__ = ["ConfigurationError", "StepwellError", "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
