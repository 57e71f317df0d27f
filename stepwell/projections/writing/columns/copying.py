"""Columns as PostgreSQL's binary COPY wants them: the bytes of `stepwell.projections.writing.copy_format.encode_rows`.

A row is a count of fields, then each field's length and bytes. So the place of every field of every row follows from
the lengths alone, and each column is put to its places at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stepwell.projections.writing.columns.avro import Bytes, Flags, Indexes, Ints, Places, windows
from stepwell.projections.writing.copy_format import EPOCH_US, FLOAT8_OID, HEADER, INT4_OID, TRAILER

__all__ = ["CopyColumn", "Fixed", "NumberArrays", "Ragged", "encode_columns", "times"]

_FEW_SIZES = 64


class CopyColumn(Protocol):
    """One column of a table."""

    @property
    def sizes(self) -> Ints:
        """Bytes of each row's value; -1 for null."""

    def put(self, out: Bytes, at: Ints) -> None:
        """Write each row's value (what is not null) to its place in ``out``."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Values of one width. ``values``: big-endian as the column wants them; ``present``: None: all are."""

    values: NDArray[Any]
    present: Flags | None = None

    @property
    def sizes(self) -> Ints:
        """See `CopyColumn`."""
        width = self.values.dtype.itemsize
        return np.full(len(self.values), width) if self.present is None else np.where(self.present, width, -1)

    def put(self, out: Bytes, at: Ints) -> None:
        """See `CopyColumn`."""
        if self.present is None:
            _scatter(out, at, self.values)
        else:
            _scatter(out, at[self.present], self.values[self.present])


@dataclass(frozen=True, slots=True)
class Ragged:
    """Texts and bytes, as they lie in a buffer."""

    buffer: Bytes
    places: Places

    @property
    def sizes(self) -> Ints:
        """See `CopyColumn`."""
        places = self.places
        return places.sizes if places.present is None else np.where(places.present, places.sizes, -1)

    def put(self, out: Bytes, at: Ints) -> None:
        """See `CopyColumn`."""
        starts, sizes = self.places.starts, self.places.sizes
        distinct = _distinct(sizes)
        if len(distinct) > _FEW_SIZES:
            into = np.cumsum(sizes) - sizes
            step = np.arange(int(sizes.sum()))
            out[step + np.repeat(at - into, sizes)] = self.buffer[step + np.repeat(starts - into, sizes)]
            return
        for size in distinct.tolist():
            if size:
                rows = slice(None) if len(distinct) == 1 else (sizes == size).nonzero()[0]
                _scatter(out, at[rows], windows(self.buffer, size)[starts[rows]])


@dataclass(frozen=True, slots=True)
class NumberArrays:
    """Arrays of numbers of one dimension: ``double precision[]`` or ``integer[]``.

    Attributes:
        counts: elements of each row's array.
        groups: rows whose arrays are equally long, and their elements (a row each), big-endian, 4 or 8 bytes wide.
            Those without elements need not be there.
        present: None: all are.
    """

    counts: Ints
    groups: Sequence[tuple[Indexes, NDArray[Any]]]
    width: int
    present: Flags | None = None
    sizes: Ints = field(init=False)

    def __post_init__(self) -> None:
        sizes = np.where(self.counts == 0, 12, 20 + self.counts * (4 + self.width))
        object.__setattr__(self, "sizes", sizes if self.present is None else np.where(self.present, sizes, -1))

    def put(self, out: Bytes, at: Ints) -> None:
        """See `CopyColumn`."""
        oid = FLOAT8_OID if self.width == 8 else INT4_OID
        empty = (self.sizes == 12).nonzero()[0]
        if len(empty):
            _scatter(out, at[empty], _repeated([0, 0, oid], len(empty)))
        for rows, elements in self.groups:
            count = elements.shape[1]
            layout = np.dtype([("head", ">i4", 5), ("items", [("size", ">i4"), ("value", elements.dtype)], count)])
            packed = np.empty(len(rows), layout)
            packed["head"] = [1, 0, oid, count, 1]
            packed["items"]["size"] = self.width
            packed["items"]["value"] = elements
            _scatter(out, at[rows], packed)


def times(at: Ints) -> Fixed:
    """Times (µs since 1970, UTC) as PostgreSQL counts them."""
    return Fixed((at - EPOCH_US).astype(">i8"))


def encode_columns(columns: Sequence[CopyColumn]) -> memoryview:
    """The whole stream for ``COPY ... FROM STDIN (FORMAT binary)``."""
    sizes = [column.sizes for column in columns]
    rows = np.full(len(sizes[0]), 2 + 4 * len(columns))
    for size in sizes:
        rows += np.maximum(size, 0)
    ends = np.cumsum(rows) + len(HEADER)
    end = int(ends[-1]) if len(ends) else len(HEADER)
    out = np.empty(end + len(TRAILER), np.uint8)
    out[: len(HEADER)] = np.frombuffer(HEADER, np.uint8)
    out[end:] = np.frombuffer(TRAILER, np.uint8)
    at = ends - rows
    _scatter(out, at, np.full(len(rows), len(columns), ">i2"))
    at = at + 2
    for column, size in zip(columns, sizes, strict=True):
        _scatter(out, at, size.astype(">i4"))
        at += 4
        column.put(out, at)
        at += np.maximum(size, 0)
    return out.data


def _repeated(numbers: Sequence[int], count: int) -> NDArray[Any]:
    packed = np.empty(count, np.dtype([("head", ">i4", len(numbers))]))
    packed["head"] = numbers
    return packed


def _distinct(sizes: Ints) -> Ints:
    return sizes[:1] if sizes.min() == sizes.max() else np.unique(sizes)


def _scatter(out: Bytes, at: Ints, values: NDArray[Any]) -> None:
    if len(at):
        windows(out, values.dtype.itemsize)[at] = values.view(f"V{values.dtype.itemsize}")
