"""The packaged schemas: files, ids, fingerprints, versions. No service is needed.

``schemas/ids.json`` lists every version that was ever released: its id on the wire, its type and version number, its
file and its fingerprint. The current version of a type stands in ``schemas/``, older ones in ``schemas/released/``. A
line, once released, never changes; a new version gets the next free id (CONTRIBUTING.md says how).

The fingerprint is CRC-64-AVRO over the schema's parsing canonical form, as 16 hexadecimal digits in the byte order of
Avro's single-object encoding (little-endian). It leaves out docs and defaults: two schemas with one fingerprint have
the same bytes on the wire.

`SchemaSource` is the port; a registry by URL is another implementation of it.
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, Protocol

import fastavro
from fastavro.schema import fingerprint, to_parsing_canonical_form

from stepwell.events.catalogue import BY_TYPE, Entry
from stepwell.exceptions import UnknownSchemaError

AvroSchema = dict[str, Any]
"""A record schema as parsed JSON."""


@dataclass(frozen=True, slots=True, eq=False)
class SchemaVersion:
    """One released version of one record type.

    Attributes:
        id: the number in the wire format.
        entry: the record type.
        version: from 1.
        latest: whether this is the current version, the one that is written.
        fingerprint: see the module's docstring.
        schema: the record schema, with docs and logical types, as in its file.
    """

    id: int
    entry: Entry
    version: int
    latest: bool
    fingerprint: str
    schema: AvroSchema


class SchemaSource(Protocol):
    """Where schemas come from."""

    def by_fingerprint(self, fingerprint: str) -> SchemaVersion:
        """The version with this fingerprint. Raises `UnknownSchemaError`."""

    def by_registry_id(self, schema_id: int) -> SchemaVersion:
        """The version behind an id of the wire format, for a record that has nothing else to tell it by.

        Raises `UnknownSchemaError`, also where ids mean nothing because no registry is set.
        """

    def current(self, type_name: str) -> SchemaVersion:
        """The version in which records of a type are written. Raises `UnknownSchemaError`."""


class PackagedSchemas:
    """The schemas that this package brings (see the module's docstring)."""

    def __init__(self, versions: tuple[SchemaVersion, ...]) -> None:
        self.versions = versions
        self._by_fingerprint = {version.fingerprint: version for version in versions}
        self._current = {version.entry.type: version for version in versions if version.latest}

    def by_fingerprint(self, fingerprint: str) -> SchemaVersion:
        """See `SchemaSource.by_fingerprint`."""
        found = self._by_fingerprint.get(fingerprint)
        if found is None:
            raise UnknownSchemaError(
                f"fingerprint {fingerprint[:40]!r} is that of none of the {len(self.versions)} packaged schemas; "
                "was the record written by a newer Stepwell?",
                reason="unknown-fingerprint",
            )
        return found

    def by_registry_id(self, schema_id: int) -> SchemaVersion:
        """See `SchemaSource.by_registry_id`: ids of packaged schemas are never taken alone."""
        raise UnknownSchemaError(
            f"the record has no header stepwell-schema, and schema id {schema_id} alone does not say which schema it "
            "was written with: no schema registry is set (STEPWELL_SCHEMA_REGISTRY)",
            reason="no-fingerprint",
        )

    def current(self, type_name: str) -> SchemaVersion:
        """See `SchemaSource.current`."""
        found = self._current.get(type_name)
        if found is None:
            raise UnknownSchemaError(f"there is no record type {type_name!r}", reason="unknown-type")
        return found


@cache
def packaged_schemas() -> PackagedSchemas:
    """The packaged schemas, read once."""
    folder = resources.files("stepwell") / "schemas"
    listed = json.loads((folder / "ids.json").read_text(encoding="utf-8"))["schemas"]
    return PackagedSchemas(tuple(_version(folder, line) for line in listed))


def fingerprint_of(schema: AvroSchema) -> str:
    """CRC-64-AVRO of the schema's parsing canonical form (16 hexadecimal digits, little-endian)."""
    return fingerprint(to_parsing_canonical_form(fastavro.parse_schema(schema)), "CRC-64-AVRO")


def without_logical_types(schema: Any) -> Any:
    """A copy that reads plain numbers where the file says timestamps: our times are integers (µs) throughout."""
    if isinstance(schema, dict):
        return {key: without_logical_types(value) for key, value in schema.items() if key != "logicalType"}
    if isinstance(schema, list):
        return [without_logical_types(item) for item in schema]
    return schema


def _version(folder: Traversable, line: dict[str, Any]) -> SchemaVersion:
    entry = BY_TYPE[line["type"]]
    text = folder.joinpath(*line["file"].split("/")).read_text(encoding="utf-8")
    return SchemaVersion(
        id=line["id"],
        entry=entry,
        version=line["version"],
        latest=line["file"] == entry.file,
        fingerprint=line["fingerprint"],
        schema=json.loads(text),
    )
