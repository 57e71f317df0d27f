"""What a step rule can look at: signals, and how each is read at one moment of an attempt.

A *moment* is ``sim::ready`` (it gives the first observation) or a step that was applied; both come in the canonical
order of the simulator's facts. A signal has elements at a moment, or is *unknown*; nothing is guessed.

==========================  ============================================================  =========================
signal                      what it is at step k                                          unit
==========================  ============================================================  =========================
``action``                  the row that was applied at k: row ``k - first_step`` of the  the policy's
                            chunk that the step names
``action_change``           first difference per step: ``a[k] - a[k-1]``                  action per step
``action_jerk``             third difference per step:                                    action per step cubed
                            ``a[k] - 3 a[k-1] + 3 a[k-2] - a[k-3]``
``observation.NAME``        the tensor NAME of observation k + 1, flattened in C order;   the simulator's
                            at ``sim::ready`` that of the first observation
``metric.NAME``             the metric NAME of the step                                   the metric's
``reward``                  the step's reward                                             the simulator's
``inference_s``             how long the policy took for the chunk that was applied at k  s
``latency_s``               ``occurred_at`` of that chunk minus ``occurred_at`` of the    s
                            fact that gave the observation it was computed from
                            (``sim::ready`` or ``sim::step_done``), by the clocks of the
                            two producers
``step_wall_s``             wall time that the simulator took for the step                s
==========================  ============================================================  =========================

``[i]`` and ``[i:j]`` behind an action or observation choose elements, counted from 0, ``j`` not included. The
differences are those of actions: where an action commands positions, the third difference is the commanded jerk times
the step's duration cubed. A chunk's ``inference_s`` and ``latency_s`` count at each of its steps.

Unknown is: what a fact does not say; a chunk that was lost; a difference until enough rows were applied one after the
other; the latency of a chunk that was computed from an observation more than `SEEN_MAX` moments before its first step,
from one before a lost step, or from one that had not been made when the first of its steps was done; a chosen element
that the tensor does not have; a tensor without elements, with more than `ELEMENTS_MAX` chosen ones, of more than
`READ_MAX` bytes, or kept outside the log. (Rules of the kind ``stale`` about a whole observation read large ones and
those outside, too, by their SHA-256.)

The conditions of a ``sequence`` take one of these otherwise (`condition_reader`): where a step is there and its fact
does not say the metric, the reward, the wall time or the observation, the condition does not hold.

Elements of any dtype become float64: exact but for integers beyond 2**53.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import sha256
from math import isnan
from struct import Struct
from typing import Any, Final, NamedTuple

from stepwell.engine.ruleset import ELEMENTS_MAX
from stepwell.engine.steps.memory import KeptAction
from stepwell.events.model import Metric, Tensor

READ_MAX: Final = 32_768
"""The largest tensor that is read (bytes). An action chunk is kept while its steps have not passed, a fact that waits
keeps its observation."""
SEEN_MAX: Final = 64
"""For so many moments the times of observations are remembered."""
ROWS_MAX: Final = 3
"""Rows of actions that a difference looks back."""

Values = tuple[float, ...]

_CODES: Final = {
    "float64": "d", "float32": "f", "float16": "e", "int64": "q", "int32": "i", "uint8": "B", "bool": "?",
}  # fmt: skip
_FLOATS: Final = frozenset({"float64", "float32", "float16"})


class Signal(NamedTuple):
    """A signal's name taken apart.

    Attributes:
        base: ``action``, ``observation``, ``metric`` and so on.
        name: of the observation or metric; else empty.
        first, end: chosen elements; 0 and None for all.
    """

    base: str
    name: str
    first: int
    end: int | None

    @property
    def whole(self) -> bool:
        """Whether all elements are chosen."""
        return self.end is None


def parse_signal(text: str) -> Signal:
    """Take a signal's name apart; `stepwell.engine.ruleset` has judged that it is one."""
    path, bracket, inside = text.partition("[")
    base, _, name = path.partition(".")
    if not bracket:
        return Signal(base, name, 0, None)
    first, colon, end = inside.removesuffix("]").partition(":")
    return Signal(base, name, int(first), int(end) if colon else int(first) + 1)


class Moment:
    """What is at hand at one moment.

    Attributes:
        at: the moment's number: the step, or the first step minus 1 at ``sim::ready``.
        observation, metrics, reward, step_wall_s, sim_time, occurred_at: of the simulator's fact.
        row: the row of the action that was applied; None where unknown, and at ``sim::ready``.
        rows: those applied one after the other just before, the last one last.
        inference_s, latency_s: of the chunk that was applied.
    """

    __slots__ = (
        "at", "inference_s", "latency_s", "metrics", "observation", "occurred_at", "reward", "row", "rows", "sim_time",
        "step_wall_s",
    )  # fmt: skip

    def __init__(self, at: int, observation: Sequence[Tensor], sim_time: float | None, occurred_at: int) -> None:
        self.at = at
        self.observation = observation
        self.sim_time = sim_time
        self.occurred_at = occurred_at
        self.metrics: Sequence[Metric] = ()
        self.reward: float | None = None
        self.step_wall_s: float | None = None
        self.row: Values | None = None
        self.rows: list[Values] = []
        self.inference_s: float | None = None
        self.latency_s: float | None = None


Reader = Callable[[Moment, list[Any]], Any]
"""Reads one slot at a moment, given the slots before it; None: unknown."""


# --- tensors ------------------------------------------------------------------------------------------------------


class _Layout(NamedTuple):
    """How to take elements out of a tensor's bytes."""

    unpack_from: Callable[..., tuple[Any, ...]]
    offset: int
    is_float: bool


@lru_cache(maxsize=4096)
def _layout(dtype: str, size: int, first: int, end: int | None) -> _Layout | None:
    """For ``size`` bytes of a dtype, the chosen elements; None where they are not all there."""
    code = _CODES.get(dtype)
    if code is None or size > READ_MAX:
        return None
    item = Struct(f"<{code}").size
    count, rest = divmod(size, item)
    last = count if end is None else end
    if rest or not first < last <= count or last - first > ELEMENTS_MAX:
        return None
    return _Layout(Struct(f"<{last - first}{code}").unpack_from, first * item, dtype in _FLOATS)


def elements(dtype: str, data: bytes, first: int = 0, end: int | None = None) -> Values | None:
    """The chosen elements of a tensor's bytes; None where they cannot be read."""
    layout = _layout(dtype, len(data), first, end)
    if layout is None:
        return None
    values = layout.unpack_from(data, layout.offset)
    return values if layout.is_float else tuple(map(float, values))


def row_of(action: KeptAction, step: int) -> Values | None:
    """The row of a kept action for a step that it covers."""
    width = action.width
    if not width:
        return None
    index = step - action.first_step
    return elements(action.dtype, action.data, index * width, (index + 1) * width)


ITEM_BYTES: Final = {name: Struct(f"<{code}").size for name, code in _CODES.items()}


@lru_cache(maxsize=4096)
def row_width(dtype: str, shape: tuple[int, ...], size: int, n_steps: int) -> int:
    """Elements of one row of a chunk of ``size`` bytes; 0 where its rows cannot be read."""
    item = ITEM_BYTES.get(dtype, 0)
    if not item or not size or size > READ_MAX or size % (item * n_steps):
        return 0
    if n_steps > 1 and (not shape or shape[0] != n_steps):
        return 0
    width = size // (item * n_steps)
    return width if width <= ELEMENTS_MAX else 0


def content_of(tensor: Tensor, first: int, end: int | None) -> bytes | None:
    """What tells a tensor (or chosen elements) from another one, to the bit; None where it cannot be read.

    The bytes with dtype and shape in front; of large tensors, and of those kept outside the log, the SHA-256 instead.
    """
    form = _form(tensor.dtype, tensor.shape)
    data = tensor.data
    if end is not None:
        layout = _layout(tensor.dtype, len(data), first, end)
        if layout is None:
            return None
        item = ITEM_BYTES[tensor.dtype]
        return form + data[first * item : end * item]
    if tensor.uri is not None:
        return None if tensor.sha256 is None else form + b"#" + tensor.sha256
    return form + data if len(data) <= CONTENT_MAX else form + b"#" + sha256(data).digest()


CONTENT_MAX: Final = 1024
"""Longer contents are remembered by their SHA-256 (bytes)."""


@lru_cache(maxsize=4096)
def _form(dtype: str, shape: tuple[int, ...]) -> bytes:
    return f"{dtype}{list(shape)}".encode()


# --- readers ------------------------------------------------------------------------------------------------------


def values_reader(signal: Signal) -> Reader:
    """Reads the elements of a signal, as a tuple of floats."""
    base, name, first, end = signal
    chosen = slice(first, end)
    if base == "action":
        return _action if signal.whole else lambda moment, _: _cut(moment.row, chosen)
    if base == "action_change":
        return lambda moment, _: _change(moment, chosen)
    if base == "action_jerk":
        return lambda moment, _: _jerk(moment, chosen)
    if base == "observation":

        def observed(moment: Moment, _: list[Any]) -> Values | None:
            for tensor in moment.observation:
                if tensor.name == name:
                    return elements(tensor.dtype, tensor.data, first, end)
            return None

        return observed
    number = number_reader(signal)

    def single(moment: Moment, slots: list[Any]) -> Values | None:
        value = number(moment, slots)
        return None if value is None else (value,)

    return single


def number_reader(signal: Signal) -> Reader:
    """Reads a signal of one number; unknown where it has more than one element."""
    base, name = signal.base, signal.name
    if base == "metric":

        def metric(moment: Moment, _: list[Any]) -> float | None:
            for entry in moment.metrics:
                if entry.name == name:
                    return entry.value
            return None

        return metric
    if base in _NUMBERS:
        return _NUMBERS[base]
    values = values_reader(signal)

    def only(moment: Moment, slots: list[Any]) -> float | None:
        found = values(moment, slots)
        return found[0] if found is not None and len(found) == 1 else None

    return only


def condition_reader(signal: Signal, number_slot: int) -> Reader:
    """Reads a signal of one number for a condition: NaN, with which no condition holds, where the simulator's fact is
    there and does not say it. A metric may be reported only when it has something to tell.

    Unknown stays what cannot be read, and what belongs to an action: that one may be lost.
    """
    base, name = signal.base, signal.name

    def condition(moment: Moment, slots: list[Any]) -> float | None:
        value: float | None = slots[number_slot]
        if value is not None or base in _OF_ACTIONS:
            return value
        if base == "observation" and any(tensor.name == name for tensor in moment.observation):
            return None
        return _NOT_THERE

    return condition


_OF_ACTIONS: Final = frozenset({"action", "action_change", "action_jerk", "inference_s", "latency_s"})
_NOT_THERE: Final = float("nan")


def content_reader(signal: Signal) -> Reader:
    """Reads what tells an observation from another one."""
    _, name, first, end = signal

    def content(moment: Moment, _: list[Any]) -> bytes | None:
        for tensor in moment.observation:
            if tensor.name == name:
                return content_of(tensor, first, end)
        return None

    return content


def range_reader(values_slot: int) -> Reader:
    """Reads the least and the greatest element of another slot, NaN left out; both NaN where there is nothing else."""

    def limits(_: Moment, slots: list[Any]) -> tuple[float, float] | None:
        values = slots[values_slot]
        if values is None:
            return None
        first = values[0]
        if isnan(first):  # `min` and `max` pass over every NaN but a first one
            values = [value for value in values if not isnan(value)] or _NO_NUMBER
        return min(values), max(values)

    return limits


_NO_NUMBER: Final = (float("nan"),)


def step_clock(moment: Moment, _: list[Any]) -> int:
    """The moment's number: time in steps."""
    return moment.at


def sim_clock(moment: Moment, _: list[Any]) -> float | None:
    """Simulated seconds."""
    return moment.sim_time


def wall_clock(moment: Moment, _: list[Any]) -> int:
    """µs since 1970 by the simulator's clock."""
    return moment.occurred_at


def _action(moment: Moment, _: list[Any]) -> Values | None:
    return moment.row


def _cut(row: Values | None, chosen: slice) -> Values | None:
    if row is None or (chosen.stop is not None and chosen.stop > len(row)):
        return None
    return row[chosen]


def _change(moment: Moment, chosen: slice) -> Values | None:
    now = _cut(moment.row, chosen)
    if now is None or not moment.rows:
        return None
    return tuple([a - b for a, b in zip(now, moment.rows[-1][chosen], strict=True)])


def _jerk(moment: Moment, chosen: slice) -> Values | None:
    now = _cut(moment.row, chosen)
    rows = moment.rows
    if now is None or len(rows) < ROWS_MAX:
        return None
    third, second, first = rows
    return tuple([
        a - 3.0 * b + 3.0 * c - d
        for a, b, c, d in zip(now, first[chosen], second[chosen], third[chosen], strict=True)
    ])  # fmt: skip


_NUMBERS: Final[dict[str, Reader]] = {
    "reward": lambda moment, _: moment.reward,
    "inference_s": lambda moment, _: moment.inference_s,
    "latency_s": lambda moment, _: moment.latency_s,
    "step_wall_s": lambda moment, _: moment.step_wall_s,
}
