"""Which schema the headers of each record name, found out without taking most of them apart.

Records of one type have the same headers but for a few values, an id and a time among them. So the headers of one
record, taken apart, are a pattern for all that are as long when packed: where every byte is the same but those of
values that do not matter, the names, their order and the values that do matter are the same, too.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from stepwell.engine.headers import PackedHeaders, pack_headers
from stepwell.events.codec import SCHEMA_HEADER
from stepwell.events.model import Headers
from stepwell.exceptions import LogError
from stepwell.projections.writing.columns.avro import Indexes, Ints, Words, joined, windows

__all__ = ["DECISIVE", "UNKNOWN", "plans_of"]

DECISIVE = frozenset({SCHEMA_HEADER, "ce_type"})
"""The headers whose values matter, as the codec has it; of the others only the names do."""

UNKNOWN = -1
_WORD = 8
_LEAST = 32
"""Fewer records of one length are not worth a pattern."""

_PATTERNS = 8
"""The most patterns that are made for one length; what is like none of them is looked at one by one."""


def plans_of(headers: Sequence[Headers], plan_of: Callable[[Headers], int]) -> Ints:
    """What ``plan_of`` says of the headers of each record; `UNKNOWN` of damaged ones.

    ``plan_of`` may look at names, at their order, and at the values of those that are `DECISIVE`.
    """
    if not isinstance(headers, PackedHeaders):
        return np.fromiter(map(plan_of, headers), np.int64, len(headers))
    raw, starts, sizes = joined(headers.packed)
    found = np.full(len(headers), UNKNOWN, np.int64)
    for size in np.unique(sizes).tolist():
        rows = (sizes == size).nonzero()[0]
        rest = _by_patterns(headers, _rows_of(raw, starts[rows], size), rows, plan_of, found) if size else rows
        for row in rest.tolist():
            found[row] = _asked(headers, row, plan_of)
    return found


def _by_patterns(
    headers: PackedHeaders, table: Words, rows: Indexes, plan_of: Callable[[Headers], int], found: Ints
) -> Indexes:
    """Tell ``found`` of records whose packed headers are equally long; those that are left.

    Args:
        headers: of the whole batch.
        table: the packed headers in words, a line for each of ``rows``.
        rows: the places of these records in the batch.
        plan_of: see `plans_of`.
        found: one number for each record of the batch.
    """
    for _ in range(_PATTERNS):
        if len(rows) < _LEAST:
            break
        first = int(rows[0])
        mask = _mask_of(headers, first)
        if mask is None:
            break
        same = np.bitwise_or.reduce((table ^ table[0]) & mask, axis=1) == 0
        found[rows[same]] = _asked(headers, first, plan_of)
        rows, table = rows[~same], table[~same]
    return rows


def _rows_of(raw: bytes, starts: Ints, size: int) -> Words:
    """So many bytes from each start on, in words; the last word may reach into what follows."""
    count = -(-size // _WORD)
    return windows(raw, count * _WORD)[starts].view("<u8").reshape(len(starts), count)


def _mask_of(headers: PackedHeaders, row: int) -> NDArray[np.uint64] | None:
    """Which bytes of a record's packed headers matter; None where they are not as `pack_headers` writes them."""
    try:
        mine = headers[row]
    except LogError:
        return None
    if pack_headers(mine) != headers.packed[row]:
        return None
    mask = bytearray()
    for name, value in mine:
        loose = 0 if value is None or name in DECISIVE else len(value)
        whole = len(pack_headers(((name, value),))) - 1
        mask += b"\xff" * (whole - loose) + bytes(loose)
    head = len(headers.packed[row] or b"") - len(mask)
    mask[:0] = b"\xff" * head
    mask += bytes(-len(mask) % _WORD)
    return np.frombuffer(bytes(mask), "<u8")


def _asked(headers: PackedHeaders, row: int, plan_of: Callable[[Headers], int]) -> int:
    try:
        return plan_of(headers[row])
    except LogError:
        return UNKNOWN  # who reads it one by one raises it
