"""The Avro types that Stepwell uses, and the small source builder that reader and writer are compiled with.

Schemas keep to what a columnar reader can read in bulk too: records, arrays, enums, fixed, and the primitives below; a
union only of null and one type, null first; no maps, no nullable enum, no recursion, no array items without bytes.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from stepwell.exceptions import SchemaCompatibilityError

PRIMITIVES = frozenset({"long", "double", "boolean", "string", "bytes"})

MAX_SYMBOLS = 64
"""So that an enum's index always takes one byte."""


class Field(NamedTuple):
    """A field's name and its type (JSON of the schema)."""

    name: str
    type: Any


def full_name(schema: Mapping[str, Any]) -> str:
    """Namespace and name of a named type."""
    return f"{schema['namespace']}.{schema['name']}"


def type_name(schema: Any) -> str:
    """The kind of a type (``long``, ``record``, …), or the full name where it refers to a named one."""
    return schema if isinstance(schema, str) else str(schema["type"])


def fields_of(schema: Mapping[str, Any]) -> list[Field]:
    """A record's fields."""
    return [Field(field["name"], field["type"]) for field in schema["fields"]]


def item_of_nullable(schema: Any) -> Any:
    """The other type of a union with null; None where the type is no union."""
    return schema[1] if isinstance(schema, list) else None


def check_types(schema: Mapping[str, Any]) -> None:
    """Judge whether a record schema keeps to the types named above.

    Raises:
        SchemaCompatibilityError: names the field and the rule that it breaks.
    """
    _check(schema, full_name(schema), {}, ())


def _check(schema: Any, place: str, named: dict[str, Any], open_records: tuple[str, ...]) -> None:
    """``named``: types met so far. ``open_records``: those that this place lies inside of."""
    if isinstance(schema, list):
        resolved = named.get(type_name(schema[-1]), schema[-1])
        if len(schema) != 2 or schema[0] != "null" or type_name(resolved) in ("null", "enum"):
            raise SchemaCompatibilityError(f"{place}: a union may hold null and one type, null first, and no enum")
        _check(schema[1], place, named, open_records)
        return
    kind = type_name(schema)
    if kind in open_records:
        raise SchemaCompatibilityError(f"{place}: record {kind} would hold itself")
    if kind in PRIMITIVES or kind in named:
        return
    if isinstance(schema, str) or kind not in ("record", "array", "enum", "fixed"):
        raise SchemaCompatibilityError(f"{place}: type {kind} is not used here")
    if kind == "array":
        _check(schema["items"], f"{place}[]", named, open_records)
        return
    name = full_name(schema)
    if kind == "enum" and len(schema["symbols"]) > MAX_SYMBOLS:
        raise SchemaCompatibilityError(f"{place}: an enum may have {MAX_SYMBOLS} symbols")
    if kind == "fixed" and schema["size"] < 1:
        raise SchemaCompatibilityError(f"{place}: a fixed type must take at least one byte")
    if kind == "record":
        if not schema["fields"]:
            raise SchemaCompatibilityError(f"{place}: record {name} has no fields; it must take at least one byte")
        for field in fields_of(schema):
            _check(field.type, f"{place}.{field.name}", named, (*open_records, name))
    named[name] = schema


class Source:
    """Builds the source of one function, line by line."""

    def __init__(self, name: str, parameters: str) -> None:
        self._name = name
        self._lines = [f"def {name}({parameters}):"]
        self._depth = 1
        self._variables = 0
        self._constants: dict[str, Any] = {}

    def line(self, text: str) -> None:
        """Add a line at the present depth."""
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def block(self) -> Iterator[None]:
        """Lines added inside stand one level deeper."""
        self._depth += 1
        yield
        self._depth -= 1

    def variable(self, hint: str) -> str:
        """A new variable name."""
        self._variables += 1
        return f"{hint}_{self._variables}"

    def constant(self, value: Any) -> str:
        """A name under which the function sees this object."""
        name = f"CONSTANT_{len(self._constants)}"
        self._constants[name] = value
        return name

    def compile(self, label: str, names: Mapping[str, Any]) -> Any:
        """The function. Its source holds nothing but what the packaged schemas say: names, sizes, messages."""
        scope: dict[str, Any] = {**names, **self._constants}
        exec(compile("\n".join(self._lines), label, "exec"), scope)  # noqa: S102
        return scope[self._name]


def record_names(schema: Any) -> list[str]:
    """Full names of all records in a schema, the outer one first."""
    if isinstance(schema, list):
        return [name for branch in schema for name in record_names(branch)]
    if not isinstance(schema, dict):
        return []
    if schema["type"] == "record":
        return [full_name(schema)] + [name for field in schema["fields"] for name in record_names(field["type"])]
    return record_names(schema.get("items"))
