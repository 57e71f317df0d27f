"""Adds records to the golden corpus: what was encoded once must decode for ever to the same values.

    python -m tests.golden.add_events

Writes one pair of files for every type and released version that has none yet: ``NAME.bin`` (the record's value) and
``NAME.json`` (its headers, and the record that it must decode to). Existing files are never touched, so a new version
is added by running it once after its schema; nothing is ever changed or removed.
"""

import io
import json
import math
from pathlib import Path
from typing import Any

import fastavro
import msgspec

from stepwell.events.codec import Codec
from stepwell.events.model import Headers
from stepwell.events.schemas import SchemaVersion, packaged_schemas, without_logical_types
from tests.unit.events.records import sample

FOLDER = Path(__file__).parent / "events"


def main() -> None:
    for version in packaged_schemas().versions:
        for label, full in (("full", True), ("sparse", False)):
            name = f"{version.entry.type.replace('::', '.')}.v{version.version}.{label}"
            if not (FOLDER / f"{name}.bin").exists():
                add(name, version, sample(version.entry.cls, full=full))
                print("added", name)


def add(name: str, version: SchemaVersion, record: Any) -> None:
    """Encode with the general writer, so that the corpus doesn't rest on our own; keep bytes, headers and values."""
    codec = Codec()
    _, headers = codec.encode(record)
    headers = tuple((key, version.fingerprint.encode() if key == "stepwell-schema" else text) for key, text in headers)
    fields = msgspec.to_builtins(record, builtin_types=(bytes,))
    if version.entry.producer:
        fields["producer"] = version.entry.producer
    fields = {field["name"]: fields[field["name"]] for field in version.schema["fields"]}
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(without_logical_types(version.schema)), fields, strict=True)
    value = b"\x00" + version.id.to_bytes(4, "big") + body.getvalue()
    kept = {"headers": headers_as_json(headers), "record": as_json(codec.decode(value, headers))}
    (FOLDER / f"{name}.bin").write_bytes(value)
    (FOLDER / f"{name}.json").write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def headers_as_json(headers: Headers) -> list[list[str]]:
    return [[name, (content or b"").decode()] for name, content in headers]


def as_json(value: Any) -> Any:
    """Exact: bytes as hexadecimal, what is not finite by name."""
    if isinstance(value, msgspec.Struct):
        return {name: as_json(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, tuple):
        return [as_json(item) for item in value]
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    return value


if __name__ == "__main__":
    main()
