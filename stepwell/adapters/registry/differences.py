"""What differs between two Avro schemas, in words: the explanation that a registry's refusal lacks."""

from typing import Any

from stepwell.events.schemas import AvroSchema

__all__ = ["differences"]


def differences(old: AvroSchema, new: AvroSchema) -> list[str]:
    """Each difference that matters to readers and writers, one sentence each; docs and aliases do not.

    Args:
        old: the registered schema.
        new: the one that is to be registered.
    """
    return _compare(old, new, "")


def _compare(old: Any, new: Any, path: str) -> list[str]:
    kind, other = _kind(old), _kind(new)
    if kind != other:
        return [f"{_at(path)}: its type changes from {_shown(old)} to {_shown(new)}"]
    if kind == "record":
        return _records(old, new, path)
    if kind == "array":
        return _compare(old["items"], new["items"], f"{path}[]")
    if kind == "map":
        return _compare(old["values"], new["values"], f"{path}{{}}")
    if kind == "union":
        return _unions(old, new, path)
    if kind == "enum":
        return _enums(old, new, path)
    if kind == "fixed" and old.get("size") != new.get("size"):
        return [f"{_at(path)}: its size changes from {old.get('size')} to {new.get('size')} bytes"]
    return []


def _records(old: AvroSchema, new: AvroSchema, path: str) -> list[str]:
    found = []
    if not path and (before := _name(old)) != (after := _name(new)):
        found.append(f"the record is named {after}, not {before}")
    was = {field["name"]: field for field in old["fields"]}
    becomes = {field["name"]: field for field in new["fields"]}
    for name, field in becomes.items():
        place = f"{path}.{name}" if path else name
        if name not in was:
            found += [] if "default" in field else [f"{_at(place)} is added without a default"]
        else:
            found += _compare(was[name]["type"], field["type"], place)
    for name, field in was.items():
        if name not in becomes and "default" not in field:
            place = f"{path}.{name}" if path else name
            found.append(f"{_at(place)} is removed, and had no default")
    return found


def _unions(old: list[Any], new: list[Any], path: str) -> list[str]:
    was, becomes = {_key(each): each for each in old}, {_key(each): each for each in new}
    found = [f"{_at(path)}: {_shown(each)} is no longer allowed" for key, each in was.items() if key not in becomes]
    found += [f"{_at(path)}: {_shown(each)} is newly allowed" for key, each in becomes.items() if key not in was]
    for key in was.keys() & becomes.keys():
        found += _compare(was[key], becomes[key], path)
    return found


def _enums(old: AvroSchema, new: AvroSchema, path: str) -> list[str]:
    was, becomes = set(old["symbols"]), set(new["symbols"])
    return [f"{_at(path)}: the symbol {each} is removed" for each in sorted(was - becomes)] + [
        f"{_at(path)}: the symbol {each} is added" for each in sorted(becomes - was)
    ]


def _at(path: str) -> str:
    return f"field {path}" if path else "the schema"


def _kind(schema: Any) -> str:
    if isinstance(schema, list):
        return "union"
    kind = schema["type"] if isinstance(schema, dict) else schema
    return _kind(kind) if isinstance(kind, dict | list) else str(kind)


def _key(schema: Any) -> str:
    """What tells the branches of a union apart."""
    return _name(schema) if isinstance(schema, dict) and "name" in schema else _kind(schema)


def _name(schema: AvroSchema) -> str:
    name = str(schema.get("name", ""))
    return name if "." in name or not schema.get("namespace") else f"{schema['namespace']}.{name}"


def _shown(schema: Any) -> str:
    if isinstance(schema, list):
        return " or ".join(_shown(each) for each in schema)
    return f"{_kind(schema)} {_name(schema)}" if isinstance(schema, dict) and "name" in schema else _kind(schema)
