"""Entry of the simulator's process; started by `stepwell.adapters.processes.bootstrap`."""

import socket

from stepwell.adapters.processes.child import serve
from stepwell.adapters.simulators.session import Session


def main(channel: socket.socket) -> None:
    """Serve one simulator until told to close."""
    serve(channel, Session().handle)
