"""Which columns of ``steps`` and ``actions`` come from which fields; as `stepwell.projections.writing.rows` has it."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from stepwell.events.guards import ITEM_BYTES
from stepwell.projections.writing.columns import texts
from stepwell.projections.writing.columns.avro import (
    Array,
    Bodies,
    Bytes,
    Column,
    Flags,
    Ints,
    Numbers,
    Places,
    Slot,
    Struct,
    windows,
)
from stepwell.projections.writing.columns.copying import CopyColumn, Fixed, NumberArrays, Ragged, times
from stepwell.projections.writing.columns.guards import numbers_of, places_of

__all__ = ["MAKERS", "Facts", "select"]

_MAX_INT = 2**31 - 1
_DTYPES = {"float32": "<f4", "float64": "<f8", "int32": "<i4", "int64": "<i8", "uint8": "u1", "bool": "u1"}


@dataclass(frozen=True, slots=True)
class Facts:
    """Records of one type of one batch, each sound, in the log's order.

    Attributes:
        bodies: where they lie.
        columns: their fields.
        partition: of the log.
        offsets, logged_at: where each stands, and the log's time of append (µs).
    """

    bodies: Bodies
    columns: Struct
    partition: int
    offsets: Ints
    logged_at: Ints

    def __len__(self) -> int:
        return len(self.offsets)


def select(facts: Facts, rows: NDArray[np.intp]) -> Facts:
    """Some of the records."""
    columns = cast(Struct, _select(facts.columns, rows, len(facts)))
    return replace(facts, columns=columns, offsets=facts.offsets[rows], logged_at=facts.logged_at[rows])


def _select(column: Column, rows: NDArray[np.intp], count: int) -> Column:
    match column:
        case Numbers():
            return Numbers(column.values[rows], None if column.present is None else column.present[rows])
        case Places():
            present = None if column.present is None else column.present[rows]
            return Places(column.starts[rows], column.sizes[rows], present)
        case Struct():
            return Struct({name: _select(field, rows, count) for name, field in column.fields.items()})
        case Array():
            return Array(column.counts[rows], [_select_slot(slot, rows, count) for slot in column.slots])


def _select_slot(slot: Slot, rows: NDArray[np.intp], count: int) -> Slot:
    if slot.rows is None:
        return Slot(None, _select(slot.item, rows, count))
    # Where each record's item stands in the slot; -1: it has none.
    place = np.full(count, -1)
    place[slot.rows] = np.arange(len(slot.rows))
    chosen = place[rows]
    having = (chosen >= 0).nonzero()[0]
    return Slot(having, _select(slot.item, chosen[having], len(slot.rows)))


def _step_columns(facts: Facts) -> tuple[dict[str, CopyColumn], Flags]:
    """The columns of ``steps`` by name, and which records fit them."""
    columns = facts.columns
    made, fit = _common(facts)
    metrics, plain = _metrics(facts.bodies, cast(Array, columns.fields["metrics"]))
    made |= {
        "step": _ints(columns, "step"),
        "action_seq": _longs(columns, "action_seq"),
        "reward": _floats(columns, "reward"),
        "success": _bools(columns, "success"),
        "terminated": _bools(columns, "terminated"),
        "truncated": _bools(columns, "truncated"),
        "step_wall_s": _floats(columns, "step_wall_s"),
        "metrics": metrics,
        "state_digest": Ragged(facts.bodies.buffer, places_of(columns, "state_digest")),
    }
    return made, fit & plain & (numbers_of(columns, "step").values <= _MAX_INT)


def _action_columns(facts: Facts) -> tuple[dict[str, CopyColumn], Flags]:
    """The columns of ``actions`` by name, and which records fit them."""
    columns = facts.columns
    made, fit = _common(facts)
    action = cast(Struct, columns.fields["action"])
    shape, small = _shape(cast(Array, action.fields["shape"]))
    made |= {
        "first_step": _ints(columns, "first_step"),
        "n_steps": _ints(columns, "n_steps"),
        "observed_step": _ints(columns, "observed_step"),
        "inference_s": _floats(columns, "inference_s"),
        "shape": shape,
        "action": _elements(facts.bodies, action),
        "action_uri": Ragged(facts.bodies.buffer, places_of(action, "uri")),
    }
    for name in ("first_step", "n_steps", "observed_step"):
        fit &= numbers_of(columns, name).values <= _MAX_INT
    return made, fit & small


MAKERS: Mapping[str, Callable[[Facts], tuple[dict[str, CopyColumn], Flags]]] = {
    "steps": _step_columns,
    "actions": _action_columns,
}
"""By kind of row (`stepwell.projections.tables.KINDS`)."""


def _common(facts: Facts) -> tuple[dict[str, CopyColumn], Flags]:
    """What both tables have of the head and of the place in the log."""
    columns, buffer, count = facts.columns, facts.bodies.buffer, len(facts)
    made: dict[str, CopyColumn] = {
        "occurred_at": times(numbers_of(columns, "occurred_at").values),
        "logged_at": times(facts.logged_at),
        "episode_id": Ragged(buffer, places_of(columns, "episode_id")),
        "attempt": _ints(columns, "attempt"),
        "producer_id": Ragged(buffer, places_of(columns, "producer_id")),
        "producer_seq": _longs(columns, "producer_seq"),
        "event_id": Ragged(buffer, places_of(columns, "event_id")),
        "sim_time": _floats(columns, "sim_time"),
        "source_partition": Fixed(np.full(count, facts.partition, ">i4")),
        "source_offset": Fixed(facts.offsets.astype(">i8")),
    }
    return made, numbers_of(columns, "attempt").values <= _MAX_INT


def _ints(columns: Struct, name: str) -> Fixed:
    numbers = numbers_of(columns, name)
    return Fixed(numbers.values.astype(">i4"), numbers.present)


def _longs(columns: Struct, name: str) -> Fixed:
    numbers = numbers_of(columns, name)
    return Fixed(numbers.values.astype(">i8"), numbers.present)


def _floats(columns: Struct, name: str) -> Fixed:
    numbers = numbers_of(columns, name)
    # By its bits: what a NaN carries stays.
    return Fixed(numbers.values.view("<u8").astype(">u8"), numbers.present)


def _bools(columns: Struct, name: str) -> Fixed:
    numbers = numbers_of(columns, name)
    return Fixed(numbers.values.astype(np.uint8), numbers.present)


def _shape(shape: Array) -> tuple[NumberArrays, Flags]:
    counts = shape.counts
    axes = np.zeros((len(counts), len(shape.slots)), np.int64)
    for number, slot in enumerate(shape.slots):
        axes[slice(None) if slot.rows is None else slot.rows, number] = cast(Numbers, slot.item).values
    fit: Flags = np.logical_and.reduce(axes <= _MAX_INT, axis=1)
    groups = []
    for count in np.unique(counts).tolist():
        rows = (counts == count).nonzero()[0]
        if count:
            groups.append((rows, axes[rows, :count].astype(">i4")))
    return NumberArrays(counts, groups, 4), fit


def _elements(bodies: Bodies, action: Struct) -> NumberArrays:
    """The elements of arrays that are in the log, as doubles."""
    data, dtype = places_of(action, "data"), places_of(action, "dtype")
    uri = places_of(action, "uri").present
    here = np.zeros(len(data.sizes), np.bool_) if uri is None else ~uri
    words = texts.short_words(bodies.buffer, dtype)
    counts = np.zeros(len(words), np.int64)
    groups = []
    for name, size in ITEM_BYTES.items():
        of_type = here & (words == int.from_bytes(name.encode(), "little"))
        if not of_type.any():
            continue
        counts[of_type] = data.sizes[of_type] // size
        for count in np.unique(counts[of_type]).tolist():
            rows = (of_type & (counts == count)).nonzero()[0]
            if count:
                groups.append((rows, _doubles(bodies.buffer, data.starts[rows], count, name)))
    return NumberArrays(counts, groups, 8, None if here.all() else here)


def _doubles(buffer: Bytes, starts: Ints, count: int, dtype: str) -> NDArray[Any]:
    width = count * ITEM_BYTES[dtype]
    elements = windows(buffer, width)[starts].view(_DTYPES[dtype]).reshape(len(starts), count)
    if dtype == "float64":
        return elements.view("<u8").astype(">u8")
    return elements.astype(">f8")


def _metrics(bodies: Bodies, metrics: Array) -> tuple[Ragged, Flags]:
    """The metrics as JSON, and where their names are plain enough for that; null where there are none."""
    counts = metrics.counts
    plain, present = np.ones(len(counts), np.bool_), counts > 0
    names: dict[int, list[bytes]] = {row: [] for row in present.nonzero()[0].tolist()}
    values: dict[int, list[float]] = {row: [] for row in names}
    for slot in metrics.slots:
        item = cast(Struct, slot.item)
        name, numbers = places_of(item, "name"), numbers_of(item, "value").values.tolist()
        rows = np.arange(len(counts)) if slot.rows is None else slot.rows
        plain[rows] &= texts.are_printable(bodies.buffer, name)
        ends = name.starts + name.sizes
        for row, start, end, value in zip(rows.tolist(), name.starts.tolist(), ends.tolist(), numbers, strict=True):
            names[row].append(bodies.raw[start:end])
            values[row].append(value)
    made: list[bytes] = []
    sizes = np.zeros(len(counts), np.int64)
    for row, mine in names.items():
        if not plain[row]:
            continue
        form = _form(tuple(mine))
        if form is None:
            plain[row] = False
            continue
        text = (form % tuple([_number(value) for value in values[row]])).encode()
        made.append(text)
        sizes[row] = len(text)
    starts = np.cumsum(sizes) - sizes
    return Ragged(np.frombuffer(b"".join(made) or b"\0", np.uint8), Places(starts, sizes, present)), plain


@lru_cache(maxsize=1024)
def _form(names: tuple[bytes, ...]) -> str | None:
    """The JSON of metrics with these names, with a place for each number; None where a name stands twice.

    It begins with the byte that says which form of jsonb follows.
    """
    if len(set(names)) < len(names):
        return None
    parts = [json.dumps(name.decode()).replace("%", "%%") + ":%s" for name in names]
    return "\1{" + ",".join(parts) + "}"


def _number(value: float) -> str:
    return repr(value) if math.isfinite(value) else f'"{value}"'
