"""The rules of `stepwell.events.guards` for steps and actions, by columns.

Each function tells which records plainly keep a rule. One that is not told so may keep it all the same: the rare forms
(arrays without elements, names of tensors that are no ASCII) are left to the rules themselves.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import cast

import numpy as np

from stepwell.events.guards import (
    FUTURE_WINDOW_US,
    ITEM_BYTES,
    MAX_AXES,
    MAX_EVENT_BYTES,
    MAX_ID_CHARACTERS,
    PAST_WINDOW_US,
    TIME_LIMIT_US,
)
from stepwell.projections.writing.columns import texts
from stepwell.projections.writing.columns.avro import Array, Bodies, Flags, Ints, Numbers, Places, Struct

__all__ = ["actions_pass", "heads_pass", "numbers_of", "places_of", "steps_pass"]

_MAX_ID_BYTES = 4 * MAX_ID_CHARACTERS
_MAX_DIGEST_BYTES = 64
_SHA256_BYTES = 32
_MANY = 1 << 31


def numbers_of(columns: Struct, name: str) -> Numbers:
    """A column of numbers by its field's name."""
    return cast(Numbers, columns.fields[name])


def places_of(columns: Struct, name: str) -> Places:
    """A column of texts, bytes or fixed values by its field's name."""
    return cast(Places, columns.fields[name])


def heads_pass(
    bodies: Bodies, columns: Struct, sound: Flags, *, producer: int, imported: int, logged_at: Ints
) -> Flags:
    """The head of an event about an episode, and its time against the log's.

    Args:
        bodies: the records.
        columns: their columns.
        sound: which records are worth a look.
        producer: index of the symbol that the field ``producer`` must have.
        imported: index of the symbol of ``origin`` whose time is not judged.
        logged_at: the log's time of append (µs).
    """
    occurred_at, sim_time = numbers_of(columns, "occurred_at").values, numbers_of(columns, "sim_time").values
    late_us = logged_at - occurred_at
    passed: Flags = (
        sound
        & (numbers_of(columns, "producer").values == producer)
        & (numbers_of(columns, "attempt").values >= 1)
        & (numbers_of(columns, "producer_seq").values >= 0)
        & (occurred_at >= 0)
        & (occurred_at < TIME_LIMIT_US)
        & (numbers_of(columns, "step").values >= 0)
        & np.isfinite(sim_time)
        & (
            (numbers_of(columns, "origin").values == imported)
            | ((late_us >= -FUTURE_WINDOW_US) & (late_us <= PAST_WINDOW_US))
        )
    )
    passed &= texts.are_hex(bodies.buffer, places_of(columns, "trace_id"), 32)
    for name in ("run_id", "episode_id", "producer_id"):
        passed &= _ids_pass(bodies, places_of(columns, name), passed)
    return passed


def steps_pass(bodies: Bodies, columns: Struct) -> Flags:
    """What ``sim::step_done`` says beyond its head."""
    step = numbers_of(columns, "step")
    passed: Flags = (
        (numbers_of(columns, "action_seq").values >= 0)
        & _are_durations(numbers_of(columns, "step_wall_s"))
        & (places_of(columns, "state_digest").sizes <= _MAX_DIGEST_BYTES)
    )
    if step.present is not None:
        passed &= step.present
    observation = columns.fields["observation"]
    assert isinstance(observation, Array)
    for slot in observation.slots:
        whole = _tensors_pass(bodies, cast(Struct, slot.item))
        if slot.rows is None:
            passed &= whole
        else:
            passed[slot.rows] &= whole
    return passed


def actions_pass(bodies: Bodies, columns: Struct) -> Flags:
    """What ``agent::action_sent`` says beyond its head."""
    step, first_step = numbers_of(columns, "step"), numbers_of(columns, "first_step").values
    passed: Flags = (
        (first_step >= 0)
        & (numbers_of(columns, "n_steps").values >= 1)
        & (numbers_of(columns, "observed_step").values >= 0)
        & _are_durations(numbers_of(columns, "inference_s"))
        & (step.values == first_step)
        & _tensors_pass(bodies, cast(Struct, columns.fields["action"]))
    )
    return passed if step.present is None else passed & step.present


def _are_durations(seconds: Numbers) -> Flags:
    # Where there is none, the value is 0.
    found: Flags = (seconds.values >= 0) & (seconds.values < np.inf)
    return found


def _tensors_pass(bodies: Bodies, columns: Struct) -> Flags:
    buffer, name, uri = bodies.buffer, places_of(columns, "name"), places_of(columns, "uri")
    item_bytes, data, sha256 = (
        item_sizes(bodies, places_of(columns, "dtype")),
        places_of(columns, "data"),
        places_of(columns, "sha256"),
    )
    count = len(item_bytes)
    shape = columns.fields["shape"]
    assert isinstance(shape, Array)
    elements, least = np.ones(count, np.int64), np.ones(count, np.int64)
    for slot in shape.slots:
        axis = cast(Numbers, slot.item).values
        rows = slice(None) if slot.rows is None else slot.rows
        least[rows] = np.minimum(least[rows], axis)
        # Beyond what any record holds it does not matter how many there are.
        elements[rows] = np.minimum(elements[rows] * np.clip(axis, 0, _MANY), _MANY)
    passed: Flags = (item_bytes > 0) & (shape.counts <= MAX_AXES) & texts.are_ascii(buffer, name)
    here = (least >= 1) & (elements <= MAX_EVENT_BYTES) & (elements * item_bytes == data.sizes)
    if uri.present is None and sha256.present is None and count:
        return passed & _references_pass(bodies, least, data, uri, sha256)
    outside, digested = _present(uri), _present(sha256)
    passed &= np.where(outside, _references_pass(bodies, least, data, uri, sha256), ~digested & here)
    return passed


def _references_pass(bodies: Bodies, least: Ints, data: Places, uri: Places, sha256: Places) -> Flags:
    found: Flags = (
        (least >= 0) & (data.sizes == 0) & (sha256.sizes == _SHA256_BYTES) & texts.are_printable(bodies.buffer, uri)
    )
    return found


def _present(places: Places) -> Flags:
    return np.ones(len(places.sizes), np.bool_) if places.present is None else places.present


def item_sizes(bodies: Bodies, dtype: Places) -> Ints:
    """The bytes of one element of each tensor; 0 where its dtype is none that there is."""
    words = texts.short_words(bodies.buffer, dtype)
    found = np.zeros(len(words), np.int64)
    for name, size in ITEM_BYTES.items():
        found[(words == int.from_bytes(name.encode(), "little")) & (dtype.sizes == len(name))] = size
    return found


def _ids_pass(bodies: Bodies, places: Places, wanted: Flags) -> Flags:
    """The ids in all scripts: those in ASCII at once, the others each by itself."""
    passed = (places.sizes >= 1) & (places.sizes <= MAX_ID_CHARACTERS)
    passed &= texts.are_printable(bodies.buffer, places)
    _look_closer(bodies, places, passed, wanted & (places.sizes >= 1) & (places.sizes <= _MAX_ID_BYTES), _is_id)
    return passed


def _look_closer(bodies: Bodies, places: Places, passed: Flags, wanted: Flags, judge: Callable[[bytes], bool]) -> None:
    rows = (wanted & ~passed).nonzero()[0]
    for row, start, size in zip(rows.tolist(), places.starts[rows].tolist(), places.sizes[rows].tolist(), strict=True):
        passed[row] = judge(bodies.raw[start : start + size])


@lru_cache(maxsize=4096)
def _is_id(raw: bytes) -> bool:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return False
    return len(text) <= MAX_ID_CHARACTERS and text.isprintable()
