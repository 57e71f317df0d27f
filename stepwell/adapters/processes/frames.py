"""Frames on a stream socket: a JSON header and raw arrays behind it.

Layout, little-endian::

    magic "SWP1" | header length u32 | payload length u64 | header (JSON, UTF-8) | arrays, end to end, in C order

The header is ``{"body": {...}, "arrays": [[name, dtype, [shape...]], ...]}``. JSON keeps floats exactly, and
NaN and infinity as Python writes them. Nothing here needs more than the standard library, and nothing executes what it
reads.
"""

import json
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

MAGIC = b"SWP1"
PREFIX = struct.Struct("<4sIQ")
HEADER_BYTES_MAX = 4 * 1024 * 1024
PAYLOAD_BYTES_MAX = 256 * 1024 * 1024
ITEM_BYTES = {"float32": 4, "float64": 8, "int32": 4, "int64": 8, "uint8": 1, "bool": 1}


class FrameError(ValueError):
    """The bytes are no frame: garbage, torn, too large, or a header that contradicts itself."""


class Array(NamedTuple):
    """A typed array; ``data`` holds the elements in C order, little-endian."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes


class Message(NamedTuple):
    """What one frame says."""

    body: dict[str, Any]
    arrays: tuple[Array, ...]


def encode(body: dict[str, Any], arrays: Sequence[Array] = ()) -> bytes:
    """One frame. Raises `FrameError` for what the other side would refuse."""
    described = [[array.name, array.dtype, array.shape] for array in arrays]
    header = json.dumps({"body": body, "arrays": described}, separators=(",", ":")).encode()
    for array in arrays:
        _check_array(array.name, array.dtype, array.shape, len(array.data))
    payload = b"".join(array.data for array in arrays)
    _check_lengths(len(header), len(payload))
    return b"".join((PREFIX.pack(MAGIC, len(header), len(payload)), header, payload))


def read_message(read: Callable[[int], bytes]) -> Message | None:
    """The next message, or None where the stream ended between two frames.

    Args:
        read: gives exactly as many bytes as asked for, fewer only at the end of the stream.

    Raises:
        FrameError: for everything that is not a whole, consistent frame.
    """
    prefix = read(PREFIX.size)
    if not prefix:
        return None
    if len(prefix) < PREFIX.size:
        raise FrameError(f"the stream ended inside a frame's first {PREFIX.size} bytes")
    magic, header_bytes, payload_bytes = PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise FrameError(f"expected a frame, got bytes that begin with {prefix[:8]!r}")
    _check_lengths(header_bytes, payload_bytes)
    content = read(header_bytes + payload_bytes)
    if len(content) < header_bytes + payload_bytes:
        raise FrameError(f"the stream ended {header_bytes + payload_bytes - len(content)} bytes before the frame did")
    return _decode(content[:header_bytes], memoryview(content)[header_bytes:])


def _decode(header: bytes, payload: memoryview) -> Message:
    try:
        fields = json.loads(header)
        body = fields["body"]
        described = [(str(name), str(dtype), tuple(shape)) for name, dtype, shape in fields["arrays"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FrameError(f"the frame's header is not what it should be: {error!r}") from error
    if not isinstance(body, dict):
        raise FrameError("the frame's body is no object")
    arrays = []
    at = 0
    for name, dtype, shape in described:
        if dtype not in ITEM_BYTES or not all(type(length) is int and length >= 0 for length in shape):
            raise FrameError(f"array {name!r} has dtype {dtype!r} and shape {shape!r}")
        size = math.prod(shape) * ITEM_BYTES[dtype]
        arrays.append(Array(name, dtype, shape, bytes(payload[at : at + size])))
        _check_array(name, dtype, shape, len(arrays[-1].data))
        at += size
    if at != len(payload):
        raise FrameError(f"the frame carries {len(payload)} bytes, its arrays need {at}")
    return Message(body, tuple(arrays))


def _check_array(name: str, dtype: str, shape: Sequence[int], size: int) -> None:
    if dtype not in ITEM_BYTES:
        raise FrameError(f"array {name!r} has dtype {dtype!r}; possible are {', '.join(ITEM_BYTES)}")
    if math.prod(shape) * ITEM_BYTES[dtype] != size:
        raise FrameError(f"array {name!r} of dtype {dtype} and shape {tuple(shape)} carries {size} bytes")


def _check_lengths(header_bytes: int, payload_bytes: int) -> None:
    if header_bytes > HEADER_BYTES_MAX or payload_bytes > PAYLOAD_BYTES_MAX:
        raise FrameError(
            f"a frame of {header_bytes} + {payload_bytes} bytes is larger than"
            f" {HEADER_BYTES_MAX} + {PAYLOAD_BYTES_MAX} bytes"
        )
