"""Reads the Avro bodies of many records of one schema in lock-step: one field of all records, then the next.

Each record has its own position in one buffer. A record that breaks a rule of the strict reader
(`stepwell.events.avro_reader`), or that uses something rare which this reader leaves to it, is *lost*: its position
jumps beyond the buffer, where no record ends. So one comparison at the end tells which records were read whole: those
whose position is where they end. Positions only move forward, so nothing of such a record was read from a neighbour.

Left to the strict reader: numbers of more than 8 bytes on the wire, arrays in several blocks or with more than
`MAX_ITEMS` items.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from stepwell.events.avro_types import fields_of, full_name, item_of_nullable, type_name

__all__ = [
    "MAX_ITEMS",
    "Array",
    "Bodies",
    "Bytes",
    "Column",
    "Flags",
    "Indexes",
    "Ints",
    "Numbers",
    "Places",
    "Slot",
    "Struct",
    "joined",
    "windows",
    "words_at",
]

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
Bytes = NDArray[np.uint8]
Words = NDArray[np.uint64]
Doubles = NDArray[np.float64]
Indexes = NDArray[np.intp]

MAX_ITEMS = 64
"""The most items of an array that are read in lock-step; each costs a pass over all records."""

PADDING = 16
"""Bytes behind the last record, so that whole words can be read up to its end."""

_LOST = 1 << 40
_HIGH_BITS = np.uint64(0x8080808080808080)
_ONE = np.uint64(1)


@dataclass(frozen=True, slots=True)
class Numbers:
    """A column of numbers (``long``: int64, ``double``: float64, ``boolean``: bool, enum: index of the symbol, uint8).

    ``present``: where there is one, for fields that may be null; None: everywhere. Elsewhere ``values`` is 0.
    """

    values: NDArray[Any]
    present: Flags | None = None


@dataclass(frozen=True, slots=True)
class Places:
    """A column of texts, bytes or fixed values: where each begins in the buffer, and its length (bytes).

    ``present``: as of `Numbers`; elsewhere both are 0.
    """

    starts: Ints
    sizes: Ints
    present: Flags | None = None


@dataclass(frozen=True, slots=True)
class Slot:
    """The items that stand at one index of their arrays. ``rows``: the records that have one; None: all of them."""

    rows: Indexes | None
    item: "Column"


@dataclass(frozen=True, slots=True)
class Array:
    """A column of arrays: how many items each has, and the items, slot by slot."""

    counts: Ints
    slots: Sequence[Slot]


@dataclass(frozen=True, slots=True)
class Struct:
    """A column of records: a column for each field."""

    fields: Mapping[str, "Column"]


Column = Numbers | Places | Array | Struct


class Bodies:
    """Records of one schema in one buffer.

    Args:
        raw: holds all of them, and `PADDING` zeros more.
        starts, ends: where each body begins and ends.

    Attributes:
        buffer: ``raw`` as an array.
    """

    def __init__(self, raw: bytes, starts: Ints, ends: Ints) -> None:
        self.raw = raw
        self.buffer: Bytes = np.frombuffer(raw, np.uint8)
        self._last = len(raw) - PADDING
        self._starts = starts
        self._ends = ends
        self._named: dict[str, Any] = {}

    def words(self, at: Ints) -> Words:
        """See `words_at`."""
        return words_at(self.raw, at)

    def read(self, schema: Mapping[str, Any]) -> tuple[Struct, Flags]:
        """A column for each field of a record schema, and which records were read whole.

        What the columns say of other records means nothing.
        """
        at = self._starts.copy()
        columns = self._struct(schema, at)
        return columns, at == self._ends

    # --- one type each; every method moves the positions ``at`` in place ---

    def _column(self, schema: Any, at: Ints) -> Column:
        inner = item_of_nullable(schema)
        if inner is not None:
            return self._nullable(inner, at)
        kind = type_name(schema)
        if kind in self._named:
            schema = self._named[kind]
            kind = type_name(schema)
        match kind:
            case "long":
                return Numbers(self._longs(at))
            case "double":
                return Numbers(self._doubles(at))
            case "boolean":
                return Numbers(self._symbols(at, 2, step=1) == 1)
            case "string" | "bytes":
                return self._places(at)
            case "record":
                return self._struct(schema, at)
            case "array":
                return self._array(schema["items"], at)
            case "enum":
                self._named[full_name(schema)] = schema
                return Numbers(self._symbols(at, len(schema["symbols"]), step=2))
            case _:
                self._named[full_name(schema)] = schema
                starts = at.copy()
                at += schema["size"]
                return Places(starts, np.full(len(at), schema["size"]))

    def _struct(self, schema: Mapping[str, Any], at: Ints) -> Struct:
        self._named[full_name(schema)] = schema
        return Struct({field.name: self._column(field.type, at) for field in fields_of(schema)})

    def _bytes(self, at: Ints) -> Bytes:
        found = self.buffer.take(at, mode="clip")
        at += 1
        return found

    def _symbols(self, at: Ints, count: int, *, step: int) -> Bytes:
        """One byte with one of ``count`` values: 0, ``step``, … The values by their index."""
        found = self._bytes(at)
        bad = found >= count * step
        if step == 2:
            bad |= (found & np.uint8(1)) != 0
            found >>= np.uint8(1)
        if bad.any():
            at[bad] = _LOST
        return found

    def _longs(self, at: Ints) -> Ints:
        first = self.buffer.take(at, mode="clip")
        if first.size == 0 or first.max() < 0x80:
            at += 1
            return (first >> 1).astype(np.int64) ^ -(first & 1).astype(np.int64)
        word = self.words(at)
        stop = ~word & _HIGH_BITS
        low = stop & -stop  # the high bit of the number's last byte; 0: there are more than 8
        kept = (low << _ONE) - _ONE
        # The seven bits that the last byte brings: all zero is padding, unless it is the only byte.
        padded = (word & (low - (low >> np.uint64(7)))) == 0
        bad = (low == 0) | (padded & (low != 0x80))
        value = _without_high_bits(word & kept)
        at += (np.bitwise_count(kept) >> 3).astype(np.int64)
        if bad.any():
            at[bad] = _LOST
        return (value >> _ONE).astype(np.int64) ^ -(value & _ONE).astype(np.int64)

    def _doubles(self, at: Ints) -> Doubles:
        found: Doubles = self.words(at).view("<f8")
        at += 8
        return found

    def _places(self, at: Ints) -> Places:
        sizes = self._longs(at)
        starts = at.copy()
        bad = (sizes < 0) | (sizes > self._last)
        if bad.any():
            at[bad] = _LOST
            sizes = np.where(bad, 0, sizes)
        at += sizes
        return Places(starts, sizes)

    def _nullable(self, schema: Any, at: Ints) -> Column:
        present = self._symbols(at, 2, step=2) == 1
        if present.all():
            return self._column(schema, at)
        rows = present.nonzero()[0]
        inside = at[rows]
        found = self._column(schema, inside)
        at[rows] = inside
        match found:
            case Numbers():
                return Numbers(_spread(found.values, rows, len(at)), present)
            case Places():
                starts, sizes = (_spread(part, rows, len(at)) for part in (found.starts, found.sizes))
                return Places(starts, sizes, present)
            case _:
                raise TypeError(f"a nullable {type_name(schema)} is not read by columns")

    def _array(self, items: Any, at: Ints) -> Array:
        counts = self._longs(at)
        bad = (counts < 0) | (counts > MAX_ITEMS)
        if bad.any():
            at[bad] = _LOST
            counts = np.where(bad, 0, counts)
        slots = []
        for number in range(int(counts.max(initial=0))):
            having = counts > number
            if having.all():
                slots.append(Slot(None, self._column(items, at)))
                continue
            rows = having.nonzero()[0]
            inside = at[rows]
            slots.append(Slot(rows, self._column(items, inside)))
            at[rows] = inside
        # One block of items, then an empty one; the count of an empty array is that block itself.
        rows = counts.nonzero()[0]
        more = self.buffer.take(at[rows], mode="clip") != 0
        at[rows] += 1
        if more.any():
            at[rows[more]] = _LOST
        return Array(counts, slots)


def joined(parts: Sequence[bytes | None]) -> tuple[bytes, Ints, Ints]:
    """All parts and the padding; where each begins; and its size, 0 for None."""
    known = cast("Sequence[bytes]", parts)
    try:
        sizes = np.fromiter(map(len, known), np.int64, len(known))
    except TypeError:  # some are None, which is rare
        known = [part or b"" for part in parts]
        sizes = np.fromiter(map(len, known), np.int64, len(known))
    return b"".join([*known, bytes(PADDING)]), np.cumsum(sizes) - sizes, sizes


def windows(buffer: Bytes | bytes, width: int) -> NDArray[Any]:
    """Every stretch of ``width`` bytes of a buffer, as one opaque value each."""
    return np.ndarray((len(buffer) - width + 1,), f"V{width}", buffer, strides=(1,))


def words_at(raw: Bytes | bytes, at: Ints) -> Words:
    """Eight bytes from each position on, little-endian; of positions beyond the buffer its last ones."""
    view: Words = np.ndarray((len(raw) - 7,), "<u8", raw, strides=(1,))
    return view[np.minimum(at, len(raw) - 8)]


def _without_high_bits(word: Words) -> Words:
    """The low seven bits of each byte, pushed together."""
    word = word & np.uint64(0x7F7F7F7F7F7F7F7F)
    word = (word & np.uint64(0x007F007F007F007F)) | ((word & np.uint64(0x7F007F007F007F00)) >> _ONE)
    word = (word & np.uint64(0x00003FFF00003FFF)) | ((word & np.uint64(0x3FFF00003FFF0000)) >> np.uint64(2))
    return (word & np.uint64(0x000000000FFFFFFF)) | ((word & np.uint64(0x0FFFFFFF00000000)) >> np.uint64(4))


def _spread(values: NDArray[Any], rows: Indexes, count: int) -> NDArray[Any]:
    """``values`` at ``rows`` of a column of zeros."""
    whole = np.zeros(count, values.dtype)
    whole[rows] = values
    return whole
