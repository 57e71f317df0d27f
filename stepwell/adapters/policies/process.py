"""Entry of the policy's process; started by `stepwell.adapters.processes.bootstrap`."""

import socket

from stepwell.adapters.policies.session import Session
from stepwell.adapters.processes.child import serve


def main(channel: socket.socket) -> None:
    """Serve one policy until told to close."""
    serve(channel, Session().handle)
