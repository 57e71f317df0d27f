"""Every record as JSON: exact where JSON can be, told as text where it cannot."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.events.model import LogRecord, StepDone, TelemetrySampled, Tensor
from stepwell.events.plain import as_json, as_plain, as_text, time_text
from tests.unit.events.records import CLASSES, LONG_MAX, LONG_MIN, records, sample


def refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} is no JSON")


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("cls", CLASSES)
def test_every_class_is_a_line_of_strict_json_with_every_field(cls: type[LogRecord], full: bool) -> None:
    record = sample(cls, full=full)
    line = as_json(record)
    assert "\n" not in line
    read = json.loads(line, parse_constant=refuse)
    assert list(read) == ["type", *cls.__struct_fields__]
    assert read["type"] == cls.TYPE
    assert read == as_plain(record)


@given(st.sampled_from(CLASSES).flatmap(records))
def test_any_record_is_strict_json(record: LogRecord) -> None:
    json.loads(as_json(record), parse_constant=refuse)


def test_values_keep_their_meaning() -> None:
    reference = Tensor(name="rgb", dtype="uint8", shape=(2, 2), data=b"", uri="s3://b/1", sha256=bytes(32))
    numbers = msgspec.structs.replace(sample(Tensor), name="q")
    step = msgspec.structs.replace(
        sample(StepDone), reward=float("nan"), sim_time=0.1, observation=(numbers, reference), state_digest=b"\x00\xff"
    )
    plain = as_plain(step)
    assert plain["event_id"] == "0197f3c2-a4b8-7000-8000-00000000002a"
    assert plain["occurred_at"] == "2026-11-18T11:06:40.123456Z"
    assert (plain["reward"], plain["sim_time"], plain["state_digest"]) == ("NaN", 0.1, "00ff")
    assert plain["observation"][0] == {"name": "q", "dtype": "float64", "shape": [2], "values": [0.0, "NaN"]}
    assert plain["observation"][1]["uri"] == "s3://b/1"
    assert "values" not in plain["observation"][1]
    for value, told in ((float("inf"), "Infinity"), (float("-inf"), "-Infinity")):
        assert as_plain(msgspec.structs.replace(step, reward=value))["reward"] == told


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (0, "1970-01-01T00:00:00.000000Z"),
        (-1, "1969-12-31T23:59:59.999999Z"),
        (1_795_000_000_123_456, "2026-11-18T11:06:40.123456Z"),
        (LONG_MAX, f"{LONG_MAX} µs"),
        (LONG_MIN, f"{LONG_MIN} µs"),
        (-62_135_596_800_000_001, "-62135596800000001 µs"),
    ],
)
def test_times_that_no_calendar_has_are_told_as_numbers(at: int, text: str) -> None:
    assert time_text(at) == text


def test_plain_data_with_any_number_in_it_is_strict_json() -> None:
    assert as_text({"a": [1, float("inf")], "b": {"c": float("nan")}}) == '{"a":[1,"Infinity"],"b":{"c":"NaN"}}'


def test_columns_of_times_are_told_as_times() -> None:
    told = as_plain(sample(TelemetrySampled))
    assert told["point_at"] == [time_text(108)]
    assert told["point_value"] == [111.25]
