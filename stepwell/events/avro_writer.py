"""A strict writer of Avro's binary encoding, compiled from a schema to one straight-line Python function.

Nothing is coerced: a float where the schema says long, True where it says long, a list for a tuple, an unknown
symbol, a number beyond 64 bits are refused with the field's name. General writers truncate, guess a union's branch or
drop fields instead, and checking before calling them costs more than the writing.

Two exceptions lose nothing and are let through: an `int` that a double holds exactly, and subclasses of `str`,
`float` and `bytes` (string enums, NumPy's float64).

A writer is called as ``write(record, out)`` and appends to the bytearray; it raises `UnfitError`. After an error
``out`` holds half a record: throw it away.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from stepwell.events.avro_types import (
    PRIMITIVES,
    Field,
    Source,
    check_types,
    fields_of,
    full_name,
    item_of_nullable,
    type_name,
)

Writer = Callable[[Any, bytearray], None]

_EXACT_IN_DOUBLE = 2**53


class UnfitError(ValueError):
    """A value does not fit its field. ``reason`` is a short stable code."""

    reason = "wrong-type"


def zigzag(number: int) -> bytes:
    """A signed number of 64 bits as a varint."""
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 0x7F:
        out.append((number & 0x7F) | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


_SMALL = tuple(zigzag(number) for number in range(4096))


def compile_writer(
    schema: Mapping[str, Any], classes: Mapping[str, type], constants: Mapping[str, str] | None = None
) -> Writer:
    """Compile a writer.

    Args:
        schema: a record schema.
        classes: for each record in it, by full name, the class whose instances (and no others) it writes.
        constants: fields of the outer record (enums) that are written with this symbol, whatever the record says.

    Raises:
        SchemaCompatibilityError: the schema holds a type that Stepwell does not use.
    """
    check_types(schema)
    source = Source("write", "value, out")
    _Compiler(source, classes).record(schema, "value", "", dict(constants or {}))
    names = {
        "small": _SMALL,
        "long": _long,
        "text": _text,
        "raw": _raw,
        "number": _number,
        "unfit": _unfit,
        "pack": struct.Struct("<d").pack,
    }
    write: Writer = source.compile(f"<writer of {full_name(schema)}>", names)
    return write


def _unfit(place: str, wanted: str, value: object) -> NoReturn:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    raise UnfitError(f"field {place}: expected {wanted}, got {type(value).__name__} {shown}")


def _long(value: Any, place: str) -> bytes:
    """What the fast path (0 to 4095) leaves over."""
    if type(value) is not int:
        _unfit(place, "int", value)
    if not -(2**63) <= value < 2**63:
        _unfit(place, "an int of 64 bits", value)
    return zigzag(value)


def _number(value: Any, place: str) -> float:
    """A float subclass, or an int that a double holds exactly."""
    if isinstance(value, float) or (type(value) is int and -_EXACT_IN_DOUBLE <= value <= _EXACT_IN_DOUBLE):
        return float(value)
    _unfit(place, "float", value)


def _text(value: Any, place: str) -> str:
    if isinstance(value, str):
        return str.__str__(value)
    _unfit(place, "str", value)


def _raw(value: Any, place: str) -> bytes:
    if isinstance(value, bytes):
        return bytes(value)
    _unfit(place, "bytes", value)


class _Compiler:
    """Writes the statements that write one variable as one type."""

    def __init__(self, source: Source, classes: Mapping[str, type]) -> None:
        self.source = source
        self.classes = classes
        self.named: dict[str, Any] = {}

    def record(self, schema: Mapping[str, Any], value: str, path: str, constants: Mapping[str, str]) -> None:
        """Write a record's fields in order."""
        name = full_name(schema)
        self.named[name] = schema
        cls = self.classes[name]
        self.source.line(f"if type({value}) is not {self.source.constant(cls)}:")
        self.source.line(f"    unfit({path.removesuffix('.') or name!r}, {cls.__name__!r}, {value})")
        for field in fields_of(schema):
            if field.name in constants:
                self.named[full_name(field.type)] = field.type
                encoded = zigzag(field.type["symbols"].index(constants[field.name]))
                self.source.line(f"out += {encoded!r}")
                continue
            variable = self.source.variable(field.name)
            self.source.line(f"{variable} = {value}.{field.name}")
            self.value(field, variable, path)

    def value(self, field: Field, value: str, path: str) -> None:
        """Write one value of the field's type."""
        schema, place = field.type, path + field.name
        inner = item_of_nullable(schema)
        if inner is not None:
            self.source.line(f"if {value} is None:")
            self.source.line("    out.append(0)")
            self.source.line("else:")
            with self.source.block():
                self.source.line("out.append(2)")
                self.value(Field(field.name, inner), value, path)
            return
        kind = type_name(schema)
        if kind in self.named:
            schema = self.named[kind]
            kind = type_name(schema)
        if kind in PRIMITIVES:
            getattr(self, kind)(value, place)
        elif kind == "record":
            self.record(schema, value, place + ".", {})
        elif kind == "array":
            self.array(schema["items"], value, place)
        elif kind == "enum":
            self.enum(schema, value, place)
        else:
            self.fixed(schema, value, place)

    def array(self, items: Any, value: str, place: str) -> None:
        """Write a tuple as one block, or as the empty array."""
        item = self.source.variable("item")
        self.source.line(f"if type({value}) is not tuple:")
        self.source.line(f"    unfit({place!r}, 'tuple', {value})")
        self.source.line(f"if {value}:")
        with self.source.block():
            self.length(value)
            self.source.line(f"for {item} in {value}:")
            with self.source.block():
                self.value(Field("[]", items), item, place)
        self.source.line("out.append(0)")

    def enum(self, schema: Mapping[str, Any], value: str, place: str) -> None:
        """Write a symbol's index."""
        self.named[full_name(schema)] = schema
        symbols = schema["symbols"]
        codes = self.source.constant({symbol: zigzag(index) for index, symbol in enumerate(symbols)})
        self.source.line(f"if not isinstance({value}, str) or {value} not in {codes}:")
        self.source.line(f"    unfit({place!r}, {'one of ' + ', '.join(symbols)!r}, {value})")
        self.source.line(f"out += {codes}[{value}]")

    def fixed(self, schema: Mapping[str, Any], value: str, place: str) -> None:
        """Write bytes of a fixed number."""
        self.named[full_name(schema)] = schema
        self.source.line(f"if type({value}) is not bytes or len({value}) != {schema['size']}:")
        self.source.line(f"    unfit({place!r}, '{schema['size']} bytes', {value})")
        self.source.line(f"out += {value}")

    def length(self, value: str) -> None:
        """Write the length of a value."""
        self.source.line(f"size = len({value})")
        self.source.line("out += small[size] if size < 4096 else long(size, 'length')")

    def long(self, value: str, place: str) -> None:
        """Write a signed (zigzag) number."""
        self.source.line(
            f"out += small[{value}] if type({value}) is int and 0 <= {value} < 4096 else long({value}, {place!r})"
        )

    def boolean(self, value: str, place: str) -> None:
        """Write a boolean."""
        self.source.line(f"if {value} is not True and {value} is not False:")
        self.source.line(f"    unfit({place!r}, 'bool', {value})")
        self.source.line(f"out.append({value})")

    def double(self, value: str, place: str) -> None:
        """Write a float of 64 bits."""
        self.source.line(f"out += pack({value} if type({value}) is float else number({value}, {place!r}))")

    def bytes(self, value: str, place: str) -> None:
        """Write bytes with their length in front."""
        self.source.line(f"if type({value}) is not bytes:")
        self.source.line(f"    {value} = raw({value}, {place!r})")
        self.length(value)
        self.source.line(f"out += {value}")

    def string(self, value: str, place: str) -> None:
        """Write UTF-8 text with its length in front."""
        self.source.line(f"if type({value}) is not str:")
        self.source.line(f"    {value} = text({value}, {place!r})")
        self.source.line(f"{value} = {value}.encode()")
        self.length(value)
        self.source.line(f"out += {value}")
