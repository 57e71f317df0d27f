"""Rows as PostgreSQL's binary COPY wants them.

Made by hand, because it spares what a general driver must do: times stay integers, arrays of numbers are packed at
once, nothing is looked up by value. Format: PostgreSQL's manual, "COPY", section "Binary Format"; the values are those
of each type's ``send`` function.
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

__all__ = ["TYPE_NAMES", "encode_rows"]

HEADER = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
TRAILER = struct.pack(">h", -1)
_NULL = struct.pack(">i", -1)
# PostgreSQL counts time from 2000-01-01.
EPOCH_US = 946_684_800_000_000

_INT = struct.Struct(">ii").pack
_LONG = struct.Struct(">iq").pack
_FLOAT = struct.Struct(">id").pack
_LENGTH = struct.Struct(">i").pack
_TRUE, _FALSE = b"\0\0\0\1\1", b"\0\0\0\1\0"
_ARRAY = struct.Struct(">iiiii").pack
FLOAT8_OID, INT4_OID, TEXT_OID = 701, 23, 25


def _text(value: str) -> bytes:
    raw = value.encode()
    return _LENGTH(len(raw)) + raw


def _bytes(value: bytes) -> bytes:
    return _LENGTH(len(value)) + value


def _json(value: str) -> bytes:
    raw = value.encode()
    return _LENGTH(len(raw) + 1) + b"\1" + raw


def _int(value: int) -> bytes:
    return _INT(4, value)


def _long(value: int) -> bytes:
    return _LONG(8, value)


def _float(value: float) -> bytes:
    return _FLOAT(8, value)


def _bool(value: bool) -> bytes:
    return _TRUE if value else _FALSE


def _time(value: int) -> bytes:
    return _LONG(8, value - EPOCH_US)


@cache
def _interleaved(letter: str, count: int) -> struct.Struct:
    return struct.Struct(">" + f"i{letter}" * count)


def _numbers(values: Sequence[Any], letter: str, size: int, oid: int) -> bytes:
    count = len(values)
    if not count:
        return _LENGTH(12) + struct.pack(">iii", 0, 0, oid)
    # Few lengths occur (action dimensions times chunk length), so the layouts are kept.
    flat: list[Any] = [size] * (2 * count)
    flat[1::2] = values
    body = _interleaved(letter, count).pack(*flat)
    return _LENGTH(20 + len(body)) + _ARRAY(1, 0, oid, count, 1) + body


def _floats(values: Sequence[float]) -> bytes:
    return _numbers(values, "d", 8, FLOAT8_OID)


def _ints(values: Sequence[int]) -> bytes:
    return _numbers(values, "i", 4, INT4_OID)


def _texts(values: Sequence[str]) -> bytes:
    if not values:
        return _LENGTH(12) + struct.pack(">iii", 0, 0, TEXT_OID)
    body = b"".join([_text(value) for value in values])
    return _LENGTH(20 + len(body)) + _ARRAY(1, 0, TEXT_OID, len(values), 1) + body


_ENCODERS: dict[str, Callable[[Any], bytes]] = {
    "text": _text, "bytes": _bytes, "uuid": _bytes, "json": _json, "int": _int, "long": _long, "float": _float,
    "bool": _bool, "time": _time, "floats": _floats, "ints": _ints, "texts": _texts,
}  # fmt: skip

TYPE_NAMES: dict[str, str] = {
    "text": "text", "bytes": "bytea", "uuid": "uuid", "json": "jsonb", "int": "integer", "long": "bigint",
    "float": "double precision", "bool": "boolean", "time": "timestamp with time zone",
    "floats": "double precision[]", "ints": "integer[]", "texts": "text[]",
}  # fmt: skip
"""Our names of types -> PostgreSQL's (as ``format_type`` spells them)."""


def encode_rows(types: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> bytes:
    """The whole stream for ``COPY ... FROM STDIN (FORMAT binary)``. None is NULL in every type.

    Raises:
        struct.error: a number does not fit its column.
        UnicodeEncodeError: a text holds half a character.
    """
    encoders = [_ENCODERS[name] for name in types]
    count = struct.pack(">h", len(encoders))
    parts = [HEADER]
    append = parts.append
    for row in rows:
        append(count)
        for encode, value in zip(encoders, row, strict=True):
            append(_NULL if value is None else encode(value))
    append(TRAILER)
    return b"".join(parts)
