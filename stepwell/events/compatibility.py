"""FULL_TRANSITIVE: every version of a type can read what every other version wrote, both ways.

    python -m stepwell.events.compatibility

compares all packaged schemas, current and released, and exits with 1 and one line per fault. The rules of schema
resolution are those of Apache Avro's own package (``pip install avro``), a tool for developing, not needed to run.

Beside resolution it checks what has to hold for our own records: ids and versions that are never reused, fingerprints
that fit their files, an upcaster for every step, a default for every field that a version added.
"""

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from stepwell.events.avro_reader import compile_reader
from stepwell.events.avro_types import record_names
from stepwell.events.schemas import SchemaVersion, fingerprint_of, packaged_schemas
from stepwell.events.upcasters import UPCASTERS
from stepwell.exceptions import MissingPartError, SchemaCompatibilityError


def check(versions: Sequence[SchemaVersion]) -> list[str]:
    """What is wrong with a set of versions, one sentence each; empty when all is well.

    Raises:
        MissingPartError: Apache Avro's package is not installed.
    """
    faults = _doubled("id", (str(version.id) for version in versions))
    faults += _doubled("fingerprint", (version.fingerprint for version in versions))
    by_type: dict[str, list[SchemaVersion]] = defaultdict(list)
    for version in versions:
        by_type[version.entry.type].append(version)
        faults += _single(version)
    for type_name, released in by_type.items():
        faults += _sequence(type_name, released)
        for reader in released:
            for writer in released:
                faults += _resolution(reader, writer)
    return faults


def require_compatible(versions: Sequence[SchemaVersion]) -> None:
    """As `check`, but an error.

    Raises:
        SchemaCompatibilityError: names every fault.
    """
    faults = check(versions)
    if faults:
        raise SchemaCompatibilityError("\n".join(faults), reason="incompatible-schema")


def main() -> int:
    """The command: 0 when all is well."""
    versions = packaged_schemas().versions
    faults = check(versions)
    for fault in faults:
        sys.stderr.write(f"{fault}\n")
    if not faults:
        types = len({version.entry.type for version in versions})
        sys.stdout.write(f"{len(versions)} versions of {types} record types are fully compatible\n")
    return 1 if faults else 0


def _doubled(what: str, values: Iterable[str]) -> list[str]:
    return [f"{what} {value} is given to {times} versions" for value, times in Counter(values).items() if times > 1]


def _single(version: SchemaVersion) -> list[str]:
    """What one version says about itself."""
    name = f"{version.entry.type} version {version.version}"
    faults = []
    if record_names(version.schema)[0] != version.entry.avro_name:
        faults.append(f"{name}: the record must be named {version.entry.avro_name}")
    if fingerprint_of(version.schema) != version.fingerprint:
        faults.append(
            f"{name}: its file no longer has the fingerprint {version.fingerprint} that was released; "
            "make a new version instead (docs/events.md says how)"
        )
    try:
        compile_reader(version.schema, dict.fromkeys(record_names(version.schema), dict))
    except SchemaCompatibilityError as error:
        faults.append(f"{name}: {error}")
    return faults


def _sequence(type_name: str, released: list[SchemaVersion]) -> list[str]:
    """Versions count from 1, the last is the current one, and each step up has its upcaster."""
    faults = []
    numbers = [version.version for version in released]
    if numbers != list(range(1, len(released) + 1)):
        faults.append(f"{type_name}: versions must count 1, 2, 3 …, not {numbers}")
    if [version.latest for version in released] != [False] * (len(released) - 1) + [True]:
        faults.append(f"{type_name}: the last version, and only that, must be the current one")
    faults += [
        f"{type_name}: there is no upcaster from version {number}"
        for number in numbers[:-1]
        if (type_name, number) not in UPCASTERS
    ]
    return faults


def _resolution(reader: SchemaVersion, writer: SchemaVersion) -> list[str]:
    """Whether one version can read another's records, by Avro's rules."""
    try:
        from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
        from avro.schema import parse
    except ImportError as error:
        raise MissingPartError("Apache Avro's package is needed to compare schemas: pip install avro") from error
    checker = ReaderWriterCompatibilityChecker()  # type: ignore[no-untyped-call]
    result = checker.get_compatibility(parse(json.dumps(reader.schema)), parse(json.dumps(writer.schema)))
    if result.compatibility is SchemaCompatibilityType.compatible:
        return []
    where = ", ".join(sorted(result.locations))
    why = "; ".join(sorted(result.messages))
    return [f"{reader.entry.type}: version {reader.version} cannot read version {writer.version}: {why} (at {where})"]


if __name__ == "__main__":
    sys.exit(main())
