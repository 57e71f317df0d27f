"""Records to test with: strategies for every class, and plain samples."""

import hashlib
import types
import typing
from typing import Any

import msgspec
from hypothesis import strategies as st

from stepwell.events import model
from stepwell.events.catalogue import CATALOGUE
from stepwell.events.model import Event, LogRecord, Tensor

CLASSES: list[type[LogRecord]] = [entry.cls for entry in CATALOGUE]
LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1

ids = st.text(st.characters(categories=("L", "N", "P"), include_characters=" "), min_size=1, max_size=12)
texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
counts = st.one_of(st.integers(0, 200), st.integers(0, LONG_MAX))
durations = st.floats(0, 1e9)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    dtype, size = draw(st.sampled_from([("float32", 4), ("float64", 8), ("int64", 8), ("uint8", 1), ("bool", 1)]))
    shape = draw(st.lists(st.integers(0, 3), max_size=3).map(tuple))
    if draw(st.booleans()):
        sha256 = draw(st.binary(min_size=32, max_size=32))
        return Tensor(name=draw(ids), dtype=dtype, shape=shape, data=b"", uri=draw(texts), sha256=sha256)
    length = size
    for axis in shape:
        length *= axis
    return Tensor(name=draw(ids), dtype=dtype, shape=shape, data=draw(st.binary(min_size=length, max_size=length)))


_BY_NAME: dict[str, st.SearchStrategy[Any]] = {
    "event_id": st.binary(min_size=16, max_size=16),
    "run_id": ids,
    "episode_id": ids,
    "producer_id": ids,
    "policy": ids,
    "trigger_id": ids,
    "command_id": ids,
    "worker_id": ids,
    "trace_id": st.binary(min_size=16, max_size=16).filter(any).map(bytes.hex),
    "span_id": st.binary(min_size=8, max_size=8).filter(any).map(bytes.hex),
    "parent_span_id": st.binary(min_size=8, max_size=8).filter(any).map(bytes.hex),
    "attempt": st.integers(1, LONG_MAX),
    "max_steps": st.integers(1, LONG_MAX),
    "n_steps": st.integers(1, LONG_MAX),
    "version": st.integers(1, LONG_MAX),
    "rule_set": ids,
    "rule": ids,
    "purpose": ids,
    "occurred_at": st.integers(0, 4_000_000_000_000_000),
    "requested_at": st.integers(0, 4_000_000_000_000_000),
    "now": st.integers(0, 4_000_000_000_000_000),
    "until": st.integers(0, 4_000_000_000_000_000),
    "sim_time": st.floats(allow_nan=False, allow_infinity=False),
    "last_sim_seq": st.integers(-1, LONG_MAX),
    "last_agent_seq": st.integers(-1, LONG_MAX),
    "sha256": st.binary(min_size=32, max_size=32),
    "state_digest": st.binary(max_size=64),
    "step_duration_s": durations,
    "inference_s": durations,
    "step_wall_s": durations,
    "idle_s": durations,
    "weight": durations,
    "kind": ids,
    "rate": durations,
    "arrival_rate": durations,
    **dict.fromkeys(
        (
            "started_at",
            "reported_at",
            "last_error_at",
            "last_progress_at",
            "looked_at",
            "progressed_at",
            "complete_until_at",
        ),
        st.integers(0, 4_000_000_000_000_000),
    ),
}
_COUNTS = ("producer_seq", "step", "first_step", "observed_step", "action_seq", "repetition", "size_bytes", "owed_seq")
_MORE_COUNTS = ("flips", "revision", "partition", "rewind_offset", "committed_offset", "sampled_at", "sample_seq")
_OFFSETS = ("last_offset", "position", "log_end", "report_seq")


def records(cls: type[Any]) -> st.SearchStrategy[Any]:
    """Records of a class that satisfy every guard."""
    if cls is Tensor:
        return tensors()
    hints = typing.get_type_hints(cls)
    fields = {name: _field(cls, name, hints[name]) for name in cls.__struct_fields__}
    made = st.builds(cls, **fields)
    if cls is model.ActionSent:
        return made.map(lambda action: msgspec.structs.replace(action, step=action.first_step))
    if cls is model.StepDone:
        return st.builds(cls, **{**fields, "step": counts})
    if cls is model.RulesActivated:
        return made.map(lambda event: msgspec.structs.replace(event, sha256=digest(event.rules_json)))
    if cls is model.TelemetrySampled:
        return made.map(in_columns)
    if cls is model.VerdictIssued:
        return made.map(lambda event: msgspec.structs.replace(event, label_steps=(-1, *range(9))[: len(event.labels)]))
    return made


def in_columns(record: model.TelemetrySampled) -> model.TelemetrySampled:
    """The record with columns of one length whose places exist."""
    count = len(record.point_value) if record.series else 0
    spreads = [
        msgspec.structs.replace(spread, point=number, counts=(7,) * (len(spread.bounds) + 1))
        for number, spread in enumerate(record.distributions[:count])
    ]
    return msgspec.structs.replace(
        record,
        point_series=tuple(number % len(record.series) for number in range(count)),
        point_start_at=(record.point_start_at + (0,) * count)[:count],
        point_at=(record.point_at + (1_795_000_000_123_456,) * count)[:count],
        point_value=record.point_value[:count],
        distributions=tuple(spreads),
    )


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _field(cls: type[Any], name: str, hint: Any) -> st.SearchStrategy[Any]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        inner = next(arg for arg in typing.get_args(hint) if arg is not type(None))
        return st.none() | _field(cls, name, inner)
    if name in _COUNTS + _MORE_COUNTS + _OFFSETS:
        return counts
    # The same name can mean less elsewhere, but what fits there fits here.
    if (cls, name) == (model.WorkerReported, "version"):
        return texts
    return _BY_NAME[name] if name in _BY_NAME else _of_type(hint)


def _of_type(hint: Any) -> st.SearchStrategy[Any]:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return st.lists(_of_type(args[0]), max_size=3).map(tuple)
    if origin is typing.Literal:
        return st.sampled_from(args)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return records(hint)
    plain: dict[Any, st.SearchStrategy[Any]] = {
        int: st.one_of(st.integers(-100, 100), st.integers(LONG_MIN, LONG_MAX)),
        float: st.floats(),
        bool: st.booleans(),
        str: texts,
        bytes: st.binary(max_size=80),
    }
    return plain[hint]


# --- samples ------------------------------------------------------------------------------------------------------


def sample(cls: type[Any], *, full: bool = True) -> Any:
    """One fixed record of a class: ``full`` with every optional field given, else with none."""
    hints = typing.get_type_hints(cls)
    values = {name: _sample_value(name, hints[name], full) for name in cls.__struct_fields__}
    if cls is Tensor:
        values |= {"dtype": "float64", "shape": (2,), "data": bytes(8) + b"\x00\x00\x00\x00\x00\x00\xf8\x7f"}
        values |= {"uri": None, "sha256": None}
    if issubclass(cls, Event):
        values |= {"step": 3, "attempt": 1, "origin": "live"}
    if cls is model.ActionSent:
        values["first_step"] = 3
    if cls is model.RulesActivated:
        values["sha256"] = digest(values["rules_json"])
    made = cls(**values)
    return in_columns(made) if cls is model.TelemetrySampled else made


def _sample_value(name: str, hint: Any, full: bool) -> Any:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        if not full:
            return None
        hint = next(arg for arg in typing.get_args(hint) if arg is not type(None))
    fixed: dict[str, Any] = {
        "event_id": bytes.fromhex("0197f3c2a4b87000800000000000002a"),
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
        "occurred_at": 1_795_000_000_123_456,
        "span_id": "00f067aa0ba902b7",
        "parent_span_id": "53995c3f42cd8ad8",
        "sha256": bytes(range(32)),
        "failure_type": "sim_exited",
    }
    if name in fixed:
        return fixed[name]
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return (_sample_value(name, args[0], full),) if full else ()
    if origin is typing.Literal:
        return args[0]
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return sample(hint, full=full)
    number = 100 + len(name)
    plain: dict[Any, Any] = {int: number, float: number + 0.25, bool: full, str: f"{name} ä", bytes: name.encode()}
    return plain[hint]
