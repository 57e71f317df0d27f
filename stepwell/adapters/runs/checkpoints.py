"""``{checkpoint}`` in a policy's options: the place where the name of its weights goes.

So a new checkpoint is the same policy with other weights, and whoever knows only its name can run it.
"""

import re
from typing import Any

PLACE = "{checkpoint}"
NAME_CHARS_MAX = 200
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@=+/-]*")


def has_place(value: Any) -> bool:
    """Whether any text in an option's value, however deep, has the place."""
    if isinstance(value, str):
        return PLACE in value
    if isinstance(value, dict):
        return any(map(has_place, value.values()))
    return isinstance(value, list) and any(map(has_place, value))


def filled(value: Any, checkpoint: str) -> Any:
    """The option's value with the checkpoint's name in every such place."""
    if isinstance(value, str):
        return value.replace(PLACE, checkpoint)
    if isinstance(value, dict):
        return {key: filled(item, checkpoint) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item, checkpoint) for item in value]
    return value


def checkpoint_problem(checkpoint: str | None) -> str | None:
    """Why a checkpoint's name cannot stand in an option; None where it can.

    The name can come from a training service's answer and becomes part of a path: it must not lead out of its folder.
    """
    if checkpoint is None:
        return f"{PLACE} stands in the options, but no checkpoint is named; expected the key checkpoint"
    if len(checkpoint) > NAME_CHARS_MAX or not _NAME.fullmatch(checkpoint) or ".." in checkpoint.split("/"):
        return (
            f"{checkpoint!r} cannot take the place of {PLACE}; expected up to {NAME_CHARS_MAX} letters, digits and"
            " . _ : @ = + / -, a letter or digit first, and no part that is '..'"
        )
    return None
