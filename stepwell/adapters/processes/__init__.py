"""Simulators and policies run in processes of their own; this is how we start, ask and end them.

Both sides speak frames (`frames`) over one socket pair. `bootstrap` and `child` run inside the other process, in
whatever environment it has: they need the standard library alone. `supervised` is our side: time-outs, errors that say
whose fault it was, and nothing left behind.
"""

from stepwell.adapters.processes.errors import (
    InvalidActionError,
    ProcessExitedError,
    ProcessFailedError,
    ProcessHungError,
    ProcessKilledError,
    ProcessProtocolError,
    ProcessRaisedError,
    StartFailedError,
)
from stepwell.adapters.processes.supervised import SupervisedProcess

__all__ = [
    "InvalidActionError",
    "ProcessExitedError",
    "ProcessFailedError",
    "ProcessHungError",
    "ProcessKilledError",
    "ProcessProtocolError",
    "ProcessRaisedError",
    "StartFailedError",
    "SupervisedProcess",
]
