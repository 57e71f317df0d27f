"""Records as plain data: for JSON on a terminal, for shell commands, for other languages.

Ids become text, times ISO 8601 in UTC with microseconds, arrays nested lists, other bytes hexadecimal. NaN and the
infinities have no form in JSON: they become the texts ``NaN``, ``Infinity`` and ``-Infinity``.
"""

import json
import math
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from stepwell.events.arrays import to_list
from stepwell.events.ids import event_id_text
from stepwell.events.model import LogRecord, Tensor

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIMES = ("now", "until")  # beside what ends in "_at"


def as_plain(record: LogRecord) -> dict[str, Any]:
    """The record as dicts, lists, text, numbers, booleans and None; its type first."""
    return {"type": record.TYPE} | _struct(record)


def as_json(record: LogRecord) -> str:
    """The record as one line of JSON."""
    return as_text(as_plain(record))


def as_text(plain: Any) -> str:
    """Plain data as one line of JSON, whatever numbers are in it."""
    return json.dumps(_value(plain), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def time_text(at: int) -> str:
    """Microseconds since 1970 as ISO 8601 in UTC, e.g. ``2026-11-30T21:45:45.000123Z``."""
    try:
        return (_EPOCH + timedelta(microseconds=at)).isoformat(timespec="microseconds").replace("+00:00", "Z")
    except OverflowError:  # a record may claim any 64-bit number
        return f"{at} µs"


def _struct(value: msgspec.Struct) -> dict[str, Any]:
    return {name: _field(name, getattr(value, name)) for name in value.__struct_fields__}


def _field(name: str, value: Any) -> Any:
    if name == "event_id":
        return event_id_text(value)
    if name.endswith("_at") or name in _TIMES:
        if isinstance(value, int):
            return time_text(value)
        if isinstance(value, tuple):
            return [time_text(at) for at in value]
    return _value(value)


def _value(value: Any) -> Any:
    match value:
        case Tensor(uri=None):
            return {
                "name": value.name,
                "dtype": value.dtype,
                "shape": list(value.shape),
                "values": _value(to_list(value)),
            }
        case msgspec.Struct():
            return _struct(value)
        case bytes():
            return value.hex()
        case list() | tuple():
            return [_value(item) for item in value]
        case dict():
            return {name: _value(item) for name, item in value.items()}
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case _:
            return value
