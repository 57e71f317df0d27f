"""The other side of the channel: answers requests, one at a time, until told to close or the channel ends."""

import contextlib
import socket
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from stepwell.adapters.processes.frames import Array, Message, encode, read_message

Reply = tuple[dict[str, Any], Sequence[Array]]
MESSAGE_CHARS_MAX = 4_000
TRACEBACK_CHARS_MAX = 20_000


def serve(channel: socket.socket, handle: Callable[[str, Message], Reply]) -> None:
    """Answer every request by ``handle(operation, message)``.

    An exception becomes an error reply with type, message and traceback, and the process lives on; an exception with an
    attribute ``failure_kind`` passes that on. ``SystemExit`` ends the process, as it would anywhere.
    """
    channel.settimeout(None)
    requests = channel.makefile("rb")  # lives as long as the process
    while (message := read_message(requests.read)) is not None:
        number = message.body.get("id")
        operation = str(message.body.get("op"))
        if operation == "close":
            with contextlib.suppress(OSError):
                channel.sendall(encode({"id": number}))
            return
        try:
            body, arrays = handle(operation, message)
            frame = encode({**body, "id": number}, arrays)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other side has to hear of it
            frame = encode({"id": number, "error": _describe(error)})
        channel.sendall(frame)


def _describe(error: Exception) -> dict[str, str | None]:
    text = "".join(traceback.format_exception(error))
    return {
        "type": type(error).__qualname__,
        "message": str(error)[:MESSAGE_CHARS_MAX],
        "traceback": text[-TRACEBACK_CHARS_MAX:],
        "kind": getattr(error, "failure_kind", None),
    }
