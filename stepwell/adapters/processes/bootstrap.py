"""Entry of a simulator's or policy's process: ``python -P bootstrap.py FD PARENT_PID MODULE``.

It runs in an environment that has neither Stepwell nor its dependencies. So it makes the modules
beside it importable without running the packages' ``__init__``, says hello, and hands over to MODULE's
``main(channel)``.
"""

import ctypes
import faulthandler
import importlib
import os
import signal
import socket
import sys
import types
from pathlib import Path

PR_SET_PDEATHSIG = 1
# Packages whose __init__ serves our side, with dependencies that this process does not have.
BARE = (
    "stepwell", "stepwell.adapters",
    "stepwell.adapters.processes", "stepwell.adapters.simulators", "stepwell.adapters.policies",
)  # fmt: skip


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, also by ``kill -9``.

    Linux only; elsewhere the closed socket ends a process once it waits for a request.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before we had asked
        os._exit(0)


def make_importable() -> None:
    """Put packages without code in place of those in `BARE`, so that the modules below them can be imported."""
    root = Path(__file__).resolve().parents[3]
    for name in BARE:
        package = types.ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")))]
        sys.modules[name] = package


def main() -> None:
    """Set up, say hello, hand over."""
    descriptor, parent, module_name = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    die_with_parent(parent)
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # how we learn where a hung process hangs
    make_importable()
    channel = socket.socket(fileno=descriptor)
    channel.set_inheritable(False)
    module = importlib.import_module(module_name)
    frames = importlib.import_module("stepwell.adapters.processes.frames")
    channel.sendall(frames.encode({"hello": module_name}))
    module.main(channel)


if __name__ == "__main__":
    main()
