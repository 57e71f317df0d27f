"""What differs between two schemas, said so that a person can act on it."""

import copy
from typing import Any

import pytest

from stepwell.adapters.registry.differences import differences
from stepwell.events.schemas import packaged_schemas

OLD: dict[str, Any] = {
    "type": "record", "name": "Thing", "namespace": "a", "doc": "Before.",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["x", "y"]}},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "parts", "type": {"type": "array", "items": {
            "type": "record", "name": "Part", "fields": [{"name": "size", "type": "long"}]}}},
        {"name": "digest", "type": {"type": "fixed", "name": "Digest", "size": 16}},
    ],
}  # fmt: skip


def changed(**fields: Any) -> dict[str, Any]:
    """The schema with fields replaced, added, or (None) removed."""
    new = copy.deepcopy(OLD)
    kept = {field["name"]: field for field in new["fields"]}
    for name, field in fields.items():
        if field is None:
            del kept[name]
        else:
            kept[name] = {"name": name, **field}
    new["fields"] = list(kept.values())
    return new


@pytest.mark.parametrize(
    ("new", "sentences"),
    [
        (OLD, []),
        ({**OLD, "doc": "After."}, []),
        (changed(more={"type": "long", "default": 0}), []),
        (changed(note=None), []),
        (changed(more={"type": "long"}), ["field more is added without a default"]),
        (changed(id=None), ["field id is removed, and had no default"]),
        (changed(id={"type": "string"}), ["field id: its type changes from long to string"]),
        (
            changed(kind={"type": {"type": "enum", "name": "Kind", "symbols": ["x", "z"]}}),
            ["field kind: the symbol y is removed", "field kind: the symbol z is added"],
        ),
        (changed(note={"type": ["null", "long"], "default": None}),
         ["field note: string is no longer allowed", "field note: long is newly allowed"]),
        (
            changed(parts={"type": {"type": "array", "items": {
                "type": "record", "name": "Part", "fields": [{"name": "size", "type": "double"}]}}}),
            ["field parts[].size: its type changes from long to double"],
        ),
        (
            changed(parts={"type": {"type": "array", "items": {"type": "record", "name": "Part", "fields": []}}}),
            ["field parts[].size is removed, and had no default"],
        ),
        (changed(digest={"type": {"type": "fixed", "name": "Digest", "size": 32}}),
         ["field digest: its size changes from 16 to 32 bytes"]),
        ({**OLD, "name": "Other"}, ["the record is named a.Other, not a.Thing"]),
        ({"type": "enum", "name": "Thing", "symbols": ["x"]},
         ["the schema: its type changes from record a.Thing to enum Thing"]),
    ],
)  # fmt: skip
def test_each_difference_is_one_sentence(new: dict[str, Any], sentences: list[str]) -> None:
    assert differences(OLD, new) == sentences


def test_no_version_of_ours_breaks_another() -> None:
    """What `differences` reports, other than added union branches, would be a break: ours have none."""
    by_type: dict[str, list[dict[str, Any]]] = {}
    for version in packaged_schemas().versions:
        by_type.setdefault(version.entry.type, []).append(version.schema)
    several = {name: schemas for name, schemas in by_type.items() if len(schemas) > 1}
    assert several
    for schemas in several.values():
        for old in schemas:
            assert [each for each in differences(old, schemas[-1]) if "is added without" in each] == []
