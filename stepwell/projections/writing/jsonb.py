"""Text and JSON as PostgreSQL can hold them: no NUL, no half of a character, no NaN."""

import json
import math
from collections.abc import Sequence
from typing import Any

__all__ = ["as_json", "fits", "number", "parsed", "storable"]

_MAX_LEVELS = 100  # of JSON from elsewhere


def fits(text: str | Sequence[str]) -> bool:
    """Whether PostgreSQL's text takes it: no NUL, no half of a character."""
    if not isinstance(text, str):
        return all(map(fits, text))
    if "\0" in text:
        return False
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def storable(text: str) -> str:
    r"""The text with its NULs as ``\x00`` and halves of characters as ``\ud800``. A backslash stays as it is."""
    return text if fits(text) else text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()


def as_json(value: Any) -> str:
    """The value as JSON that PostgreSQL's jsonb takes; texts in it as `storable`."""
    text = _encode(value)
    # Most are neither; the first is also true of an innocent backslash before "u0000".
    if "\\u0000" in text or not fits(text):
        text = _encode(_storable_parts(value))
    return text


def number(value: float) -> float | str:
    """A number for JSON, which knows no NaN and no infinity: they are kept as text."""
    return value if math.isfinite(value) else str(value)


def parsed(text: str) -> str | None:
    """JSON that somebody wrote, as jsonb takes it; None where nothing was written.

    What is no JSON, or none that a database holds (numbers beyond a double, thousands of levels), stands as a string:
    a row is not lost over what it carries along.
    """
    if not text:
        return None
    try:
        value = json.loads(text, parse_constant=_no_constant)
        return as_json(value if _levels(value) <= _MAX_LEVELS else text)
    except (ValueError, RecursionError):
        return as_json(text)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _levels(value: Any) -> int:
    """How deep lists and objects stand in each other."""
    depth, here = 0, [value]
    while here := [part for part in here if isinstance(part, list | dict)]:
        depth += 1
        here = [member for part in here for member in (part.values() if isinstance(part, dict) else part)]
    return depth


def _storable_parts(value: Any) -> Any:
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict):
        return {storable(name): _storable_parts(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_storable_parts(member) for member in value]
    return value


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
