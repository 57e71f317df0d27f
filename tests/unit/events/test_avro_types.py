"""Types that Stepwell does not use are refused when a schema is compiled, before any byte is read."""

from typing import Any

import pytest

from stepwell.events.avro_reader import MalformedError, compile_reader
from stepwell.events.avro_types import record_names
from stepwell.events.avro_writer import UnfitError, compile_writer
from stepwell.exceptions import SchemaCompatibilityError


def record(*types: Any, name: str = "R") -> dict[str, Any]:
    fields = [{"name": f"f{index}", "type": kind} for index, kind in enumerate(types)]
    return {"type": "record", "name": name, "namespace": "t", "fields": fields}


ENUM = {"type": "enum", "name": "E", "namespace": "t", "symbols": ["A", "B"]}


@pytest.mark.parametrize(
    "schema",
    [
        record({"type": "map", "values": "long"}),
        record("null"),
        record("int"),
        record("float"),
        record(["null", "long", "string"]),
        record(["long", "null"]),
        record(["null", ENUM]),
        record(["null", "null"]),
        record({"type": "array", "items": "null"}),
        record({"type": "array", "items": record(name="Empty")}),
        record({"type": "array", "items": {"type": "fixed", "name": "F", "namespace": "t", "size": 0}}),
        record(["null", "t.R"]),
        record({"type": "array", "items": "t.R"}),
        record({"type": "enum", "name": "Many", "namespace": "t", "symbols": [f"S{n}" for n in range(65)]}),
        record(),
    ],
)
def test_unused_types_are_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(SchemaCompatibilityError):
        compile_reader(schema, dict.fromkeys(record_names(schema), dict))
    with pytest.raises(SchemaCompatibilityError):
        compile_writer(schema, dict.fromkeys(record_names(schema), dict))


def test_named_types_can_be_used_again() -> None:
    fixed = {"type": "fixed", "name": "F", "namespace": "t", "size": 2}
    inner = record("long", name="Inner")
    schema = record(fixed, "t.F", ENUM, "t.E", inner, {"type": "array", "items": "t.Inner"}, {"type": "string"})
    read = compile_reader(schema, dict.fromkeys(record_names(schema), dict))
    body = b"aabb\x00\x02\x04\x02\x06\x00\x02x"
    wanted = {"f0": b"aa", "f1": b"bb", "f2": "A", "f3": "B", "f4": {"f0": 2}, "f5": ({"f0": 3},), "f6": "x"}
    assert read(body, 0, len(body)) == (wanted, len(body))


def test_reader_reads_from_a_place_and_says_where_it_ended() -> None:
    read = compile_reader(record("long", "string"), {"t.R": dict})
    assert read(b"..\x02\x04ab..", 2, 8) == ({"f0": 1, "f1": "ab"}, 6)
    with pytest.raises(MalformedError, match="padded"):
        read(b"\x80\x80\x00\x00", 0, 4)


def test_writer_tells_the_whole_path() -> None:
    class Inner:
        f0: object = "no number"

    class Outer:
        f0 = (Inner(),)

    inner = record("long", name="Inner")
    write = compile_writer(record({"type": "array", "items": inner}), {"t.R": Outer, "t.Inner": Inner})
    with pytest.raises(UnfitError, match=r"field f0\[\]\.f0: expected int, got str 'no number'"):
        write(Outer(), bytearray())
    Outer.f0 = ("x",)  # type: ignore[assignment]
    with pytest.raises(UnfitError, match=r"field f0\[\]: expected Inner"):
        write(Outer(), bytearray())
