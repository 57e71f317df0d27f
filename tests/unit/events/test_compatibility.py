"""Every version of a type can read what every other one wrote; what would break that is named."""

import builtins
import copy
import sys
from dataclasses import replace
from typing import Any

import pytest

from stepwell.events import compatibility
from stepwell.events.compatibility import check, main, require_compatible
from stepwell.events.schemas import PackagedSchemas, SchemaVersion, fingerprint_of, packaged_schemas
from stepwell.events.upcasters import UPCASTERS
from stepwell.exceptions import MissingPartError, SchemaCompatibilityError

VERSIONS = packaged_schemas().versions
PAUSED = packaged_schemas().current("episode::paused")


def test_packaged_schemas_are_fully_compatible(capsys: pytest.CaptureFixture[str]) -> None:
    require_compatible(VERSIONS)
    assert main() == 0
    assert "fully compatible" in capsys.readouterr().out


def next_version(change: Any) -> list[str]:
    """What is said of a next version of episode::paused, after a change to its fields."""
    schema = copy.deepcopy(PAUSED.schema)
    change(schema["fields"])
    fingerprint = "0" * 16
    new = SchemaVersion(900, PAUSED.entry, 2, True, fingerprint, schema)
    try:
        new = replace(new, fingerprint=fingerprint_of(copy.deepcopy(schema)))
    finally:
        faults = check([replace(PAUSED, latest=False), new])
    return [fault for fault in faults if "no upcaster" not in fault]


def field(fields: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(item for item in fields if item["name"] == name)


def test_a_field_with_a_default_may_be_added() -> None:
    assert next_version(lambda fields: fields.append({"name": "x", "type": ["null", "long"], "default": None})) == []


def test_an_upcaster_is_demanded() -> None:
    new = replace(PAUSED, id=900, version=2, fingerprint="0" * 16)
    faults = check([replace(PAUSED, latest=False), new])
    assert any("no upcaster from version 1" in fault for fault in faults)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda fields: fields.append({"name": "x", "type": "long"}), "cannot read version 1"),
        (lambda fields: fields.remove(field(fields, "reason")), "version 1 cannot read version 2"),
        (lambda fields: field(fields, "reason").update(type="bytes", default=""), ""),
        (lambda fields: field(fields, "attempt").update(type="string"), "cannot read"),
        (
            lambda fields: field(fields, "producer")["type"]["symbols"].append("robot"),
            "version 1 cannot read version 2",
        ),
        (lambda fields: field(fields, "event_id")["type"].update(size=8), "cannot read"),
        (lambda fields: field(fields, "reason").update(type={"type": "map", "values": "long"}), "map"),
        (lambda fields: field(fields, "reason").update(type=["null", "long", "string"]), "union"),
    ],
)
def test_changes_that_break_are_named(change: Any, said: str) -> None:
    if not said:  # string and bytes promote into each other: legal Avro, and so no fault
        assert next_version(change) == []
        return
    faults = next_version(change)
    assert any(said in fault for fault in faults), faults
    assert all("episode::paused" in fault for fault in faults)


def test_released_files_must_not_change() -> None:
    changed = copy.deepcopy(PAUSED.schema)
    field(changed["fields"], "reason")["type"] = "bytes"
    assert any("make a new version" in fault for fault in check([replace(PAUSED, schema=changed)]))


def test_ids_and_versions_are_given_once_and_in_order() -> None:
    twice = [PAUSED, replace(packaged_schemas().current("episode::resumed"), id=PAUSED.id)]
    assert any(f"id {PAUSED.id} is given to 2" in fault for fault in check(twice))
    assert any("versions must count" in fault for fault in check([replace(PAUSED, version=2)]))
    assert any("current one" in fault for fault in check([replace(PAUSED, latest=False)]))
    renamed = replace(PAUSED, entry=packaged_schemas().current("episode::resumed").entry)
    assert any("must be named" in fault for fault in check([renamed]))
    with pytest.raises(SchemaCompatibilityError, match="versions must count"):
        require_compatible([replace(PAUSED, version=2)])


def test_command_fails_with_one_line_per_fault(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compatibility, "packaged_schemas", lambda: PackagedSchemas((replace(PAUSED, version=3),)))
    assert main() == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_avro(name: str, *args: Any) -> Any:
        if name.startswith("avro"):
            raise ImportError(name)
        return real(name, *args)

    for name in [name for name in sys.modules if name.split(".")[0] == "avro"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without_avro)
    with pytest.raises(MissingPartError, match="pip install avro"):
        check([PAUSED])


def test_upcasters_are_for_known_types() -> None:
    assert {name for name, _ in UPCASTERS} <= {version.entry.type for version in VERSIONS}
