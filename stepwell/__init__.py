"""Stepwell: an event-sourced state-machine engine on a message log, for evaluating robot policies.

The names in ``__all__`` are the public face; each is loaded when it is first used, so that importing the package costs
nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepwell.api import (
        AsyncSubscription,
        Delivery,
        RetrainRequested,
        RetrainWithdrawn,
        Subscription,
        subscribe,
        subscribe_async,
    )
    from stepwell.exceptions import ConfigurationError, StepwellError

__version__ = "0.1.0"

# Public name -> module that it is loaded from.
_HOMES: dict[str, str] = {
    "AsyncSubscription": "stepwell.api",
    "ConfigurationError": "stepwell.exceptions",
    "Delivery": "stepwell.api",
    "RetrainRequested": "stepwell.api",
    "RetrainWithdrawn": "stepwell.api",
    "StepwellError": "stepwell.exceptions",
    "Subscription": "stepwell.api",
    "subscribe": "stepwell.api",
    "subscribe_async": "stepwell.api",
}

__all__ = [
    "AsyncSubscription",
    "ConfigurationError",
    "Delivery",
    "RetrainRequested",
    "RetrainWithdrawn",
    "StepwellError",
    "Subscription",
    "__version__",
    "subscribe",
    "subscribe_async",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
