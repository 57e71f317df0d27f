"""The schema files: they mirror the classes, explain every field, and keep to what columnar readers can read."""

import json
import typing
from importlib import resources
from types import UnionType
from typing import Any

import fastavro
import msgspec
import pytest

from stepwell.events import model
from stepwell.events.catalogue import BY_AVRO_NAME, BY_CLASS, BY_TYPE, CATALOGUE, Entry
from stepwell.events.model import Event, LogRecord
from stepwell.events.schemas import fingerprint_of, packaged_schemas, without_logical_types
from stepwell.events.topics import BY_NAME
from stepwell.exceptions import UnknownSchemaError

SCHEMAS = packaged_schemas()
HEAD = [
    *("event_id", "run_id", "episode_id", "attempt", "producer", "producer_id", "producer_seq", "occurred_at"),
    *("trace_id", "sim_time", "step", "origin"),
]
entries = pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.type)


def concrete(cls: type) -> set[type]:
    found = {cls} if "TYPE" in vars(cls) else set()
    return found.union(*(concrete(child) for child in cls.__subclasses__()))


def test_catalogue_holds_every_record_class() -> None:
    others = {arg for arg in typing.get_args(LogRecord) if arg is not Event}
    assert set(BY_CLASS) == concrete(Event) | others
    assert len(BY_TYPE) == len(BY_AVRO_NAME) == len(CATALOGUE)
    assert {entry.topic for entry in CATALOGUE} <= set(BY_NAME)


def test_names_are_mechanical() -> None:
    entry = BY_TYPE["sim::step_done"]
    assert entry.avro_name == "stepwell.sim.StepDone"
    assert entry.file == "sim.step_done.avsc"
    assert entry.is_event
    assert not BY_CLASS[model.DeadLetter].is_event


@entries
def test_schema_mirrors_class(entry: Entry) -> None:
    schema = SCHEMAS.current(entry.type).schema
    assert f"{schema['namespace']}.{schema['name']}" == entry.avro_name
    mirrored(schema, entry.cls, {})


def mirrored(schema: dict[str, Any], cls: Any, named: dict[str, Any]) -> None:
    names = [field["name"] for field in schema["fields"]]
    expected = list(cls.__struct_fields__)
    if issubclass(cls, Event):
        assert names[: len(HEAD)] == HEAD
        assert next(f for f in schema["fields"] if f["name"] == "producer")["type"]["symbols"] == list(
            typing.get_args(model.Producer)
        )
        names.remove("producer")
    assert names == expected
    hints = typing.get_type_hints(cls)
    defaults = {field.name: field.default for field in msgspec.structs.fields(cls)}
    for field in schema["fields"]:
        if field["name"] == "producer" and issubclass(cls, Event):
            continue
        same_type(field["type"], hints[field["name"]], field["name"], named)
        if type(None) in typing.get_args(hints[field["name"]]):
            assert field["default"] is None
        elif defaults[field["name"]] is not msgspec.NODEFAULT:
            wire = defaults[field["name"]]
            assert field["default"] == (list(wire) if isinstance(wire, tuple) else wire)


def same_type(avro: Any, hint: Any, name: str, named: dict[str, Any]) -> None:
    """An Avro type says the same as a Python annotation."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(avro, str) and avro in named:
        avro = named[avro]
    if isinstance(avro, dict) and "name" in avro:
        named[f"{avro['namespace']}.{avro['name']}"] = avro
    if origin in (typing.Union, UnionType):
        assert isinstance(avro, list)
        assert avro[0] == "null"
        assert len(avro) == len(args) == 2
        assert not (isinstance(avro[1], dict) and avro[1]["type"] == "enum")
        same_type(avro[1], next(arg for arg in args if arg is not type(None)), name, named)
    elif origin is tuple:
        assert avro["type"] == "array"
        same_type(avro["items"], args[0], name, named)
    elif origin is typing.Literal:
        assert (avro["type"], avro["symbols"]) == ("enum", list(args))
    elif isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        assert avro["type"] == "record"
        assert avro["name"] == hint.__name__
        mirrored(avro, hint, named)
    elif name == "event_id":
        assert (avro["type"], avro["size"]) == ("fixed", 16)
    elif name.endswith("_at") or name in ("source_timestamp", "now", "until"):
        assert hint is int
        assert avro == {"type": "long", "logicalType": "timestamp-micros"}
    else:
        assert avro == {int: "long", float: "double", bool: "boolean", str: "string", bytes: "bytes"}[hint]


@pytest.mark.parametrize("version", SCHEMAS.versions, ids=lambda v: f"{v.entry.type} v{v.version}")
def test_every_field_of_every_version_is_explained_and_has_its_unit(version: Any) -> None:
    def walk(schema: Any) -> None:
        if isinstance(schema, list):
            for branch in schema:
                walk(branch)
        elif isinstance(schema, dict):
            if schema["type"] == "record":
                assert schema["doc"]
                for field in schema["fields"]:
                    assert field["doc"].endswith((".", "...")), field["name"]
                    if field["name"].endswith("_s") or field["name"] == "sim_time":
                        assert "(s)" in field["doc"], field["name"]
                    if field["name"].endswith("_at") or field["name"] in ("now", "until"):
                        assert "microseconds" in field["doc"]
                    if field["name"].endswith("_bytes"):
                        assert "(bytes)" in field["doc"]
                    walk(field["type"])
            elif schema["type"] == "array":
                walk(schema["items"])

    walk(version.schema)
    fastavro.parse_schema(version.schema)


def test_every_file_is_listed_and_every_listed_file_exists() -> None:
    folder = resources.files("stepwell") / "schemas"
    found = {item.name for item in folder.iterdir() if item.name.endswith(".avsc")}
    found |= {f"released/{item.name}" for item in (folder / "released").iterdir() if item.name.endswith(".avsc")}
    listed = [line["file"] for line in json.loads((folder / "ids.json").read_text())["schemas"]]
    assert sorted(listed) == sorted(found)


def test_fingerprint_is_avros_own() -> None:
    # The value that Apache Avro's test data (schema-tests.txt) gives for "null", 7195948357588979594, little-endian.
    assert fingerprint_of("null") == (7195948357588979594).to_bytes(8, "little").hex()  # type: ignore[arg-type]
    for version in SCHEMAS.versions:
        assert fingerprint_of(version.schema) == version.fingerprint


def test_runtime_copy_has_plain_numbers_for_times() -> None:
    schema = SCHEMAS.current("telemetry::sampled").schema
    assert "timestamp-micros" in json.dumps(schema)
    plain = without_logical_types(schema)
    assert "logicalType" not in json.dumps(plain)
    assert [field["name"] for field in plain["fields"]] == [field["name"] for field in schema["fields"]]


def test_unknown_fingerprints_ids_and_types_are_named() -> None:
    with pytest.raises(UnknownSchemaError, match="0123456789abcdef") as by_fingerprint:
        SCHEMAS.by_fingerprint("0123456789abcdef")
    assert by_fingerprint.value.reason == "unknown-fingerprint"
    with pytest.raises(UnknownSchemaError, match="schema id 7 alone") as by_id:
        SCHEMAS.by_registry_id(7)
    assert by_id.value.reason == "no-fingerprint"
    with pytest.raises(UnknownSchemaError, match="sim::nothing") as by_type:
        SCHEMAS.current("sim::nothing")
    assert by_type.value.reason == "unknown-type"
