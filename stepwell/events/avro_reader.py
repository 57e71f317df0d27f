"""A strict reader of Avro's binary encoding, compiled from a schema to one straight-line Python function.

Why not a general reader: bytes from a log are not to be trusted, and general readers accept what no writer makes
(index -1 of an enum, 0x07 as a boolean, padded varints, trailing bytes) or try to allocate what a count merely
claims. Here each read carries its check, and one function per schema, without a dispatch per field, is faster than a
general reader with a check put in front (docs/decisions has the figures).

What makes it safe:

* every byte of the input is read at most once, and the position only moves forward;
* slices cannot outgrow the input, and the caller must compare the final position with the end: a length that reaches
  beyond the end leaves the position there, so nothing after it can be read either;
* an array's count is compared with the bytes that are left before anything is allocated. (Every item takes at least one
  byte: `compile_reader` refuses zero-width items.)
* schemas cannot be recursive, so neither can the reader.

A reader is called as ``read(buffer, position, end)`` and returns ``(record, position)``; it raises `MalformedError`, or
`IndexError`, `struct.error` or `UnicodeDecodeError` where the bytes end too early or a string is no UTF-8.
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

Reader = Callable[[bytes, int, int], tuple[Any, int]]

MAX_VARINT_BYTES = 10


class MalformedError(ValueError):
    """The bytes are no encoding that a writer of this schema makes. ``reason`` is a short stable code."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def compile_reader(
    schema: Mapping[str, Any], makers: Mapping[str, Callable[..., Any]], constants: Mapping[str, str] | None = None
) -> Reader:
    """Compile a reader.

    Args:
        schema: a record schema.
        makers: for each record in it, by full name, what makes a value from the fields (given by keyword).
        constants: fields of the outer record (enums) that must have this symbol and are not handed to its maker.

    Raises:
        SchemaCompatibilityError: the schema holds a type that Stepwell does not use.
    """
    check_types(schema)
    source = Source("read", "buf, pos, end")
    _Compiler(source, makers).record(schema, "value", "", dict(constants or {}))
    source.line("return value, pos")
    names = {
        "long_varint": long_varint,
        "long_length": long_length,
        "malformed": malformed,
        "double": struct.Struct("<d").unpack_from,
    }
    read: Reader = source.compile(f"<reader of {full_name(schema)}>", names)
    return read


def long_varint(buf: bytes, pos: int, first: int) -> tuple[int, int]:
    """The rest of a varint whose first byte has its high bit set: the unsigned number, and the position after it."""
    number, shift = first & 0x7F, 7
    rest = buf[pos : pos + MAX_VARINT_BYTES - 1]
    for byte in rest:
        if byte < 0x80:
            break
        number |= (byte & 0x7F) << shift
        shift += 7
    else:
        if len(rest) < MAX_VARINT_BYTES - 1:
            malformed("truncated", "the bytes end within a number")
        malformed("varint", "a varint is longer than 10 bytes")
    if byte == 0:
        malformed("varint", "a varint is padded with zeros")
    number |= byte << shift
    if number >> 64:
        malformed("varint", "a varint exceeds 64 bits")
    return number, pos + shift // 7


def long_length(buf: bytes, pos: int, first: int, place: str) -> tuple[int, int]:
    """The rest of a length (still zigzag) of more than 63 bytes, and the position after it; never a negative one."""
    size = first
    if first > 0x7F:
        size, pos = long_varint(buf, pos, first)
    if size & 1:
        malformed("length", f"field {place}: the length is negative")
    return size, pos


def malformed(reason: str, message: str) -> NoReturn:
    """Raise `MalformedError`."""
    raise MalformedError(reason, message)


class _Compiler:
    """Writes the statements that read one type into one variable."""

    def __init__(self, source: Source, makers: Mapping[str, Callable[..., Any]]) -> None:
        self.source = source
        self.makers = makers
        self.named: dict[str, Any] = {}

    def record(self, schema: Mapping[str, Any], target: str, path: str, constants: Mapping[str, str]) -> None:
        """Read a record's fields, then make the value."""
        name = full_name(schema)
        self.named[name] = schema
        arguments = []
        for field in fields_of(schema):
            variable = self.source.variable(field.name)
            self.value(field, variable, path)
            if field.name in constants:
                wanted = constants[field.name]
                self.source.line(f"if {variable} != {wanted!r}:")
                self.source.line(
                    f"    malformed({field.name!r}, f'field {path + field.name} says {{{variable}}},"
                    f" but only {wanted} writes {name}')"
                )
            else:
                arguments.append(f"{field.name}={variable}")
        maker = self.source.constant(self.makers[name])
        self.source.line(f"{target} = {maker}({', '.join(arguments)})")

    def value(self, field: Field, target: str, path: str) -> None:
        """Read one value of the field's type."""
        schema, place = field.type, path + field.name
        inner = item_of_nullable(schema)
        if inner is not None:
            self.nullable(Field(field.name, inner), target, path)
            return
        kind = type_name(schema)
        if kind in self.named:
            schema = self.named[kind]
            kind = type_name(schema)
        if kind in PRIMITIVES:
            getattr(self, kind)(target, place)
        elif kind == "record":
            self.record(schema, target, place + ".", {})
        elif kind == "array":
            self.array(schema["items"], target, place)
        elif kind == "enum":
            self.enum(schema, target, place)
        else:
            self.named[full_name(schema)] = schema
            self.source.line(f"{target} = buf[pos:pos + {schema['size']}]")
            self.source.line(f"pos += {schema['size']}")

    def nullable(self, field: Field, target: str, path: str) -> None:
        """Read a union of null and one type."""
        place = path + field.name
        self.source.line("byte = buf[pos]")
        self.source.line("pos += 1")
        self.source.line("if byte == 2:")
        with self.source.block():
            self.value(field, target, path)
        self.source.line("elif byte == 0:")
        self.source.line(f"    {target} = None")
        self.source.line("else:")
        self.source.line(f"    malformed('union-index', 'field {place}: no such branch of the union')")

    def array(self, items: Any, target: str, place: str) -> None:
        """Read an array in one or more blocks; a negative count is followed by the block's size in bytes."""
        count, collected, item = (self.source.variable(name) for name in ("count", "items", "item"))
        size_end = self.source.variable("size_end")
        self.source.line(f"{target} = ()")
        self.varint(count)
        self.source.line(f"if {count}:")
        with self.source.block():
            self.source.line(f"{collected} = []")
            self.source.line(f"while {count}:")
            with self.source.block():
                self.source.line(f"{size_end} = -1")
                self.source.line(f"if {count} & 1:")
                with self.source.block():
                    self.source.line(f"{count} += 1")
                    self.varint(size_end)
                    self.source.line(f"{size_end} = pos + ({size_end} >> 1 if not {size_end} & 1 else -1)")
                self.source.line(f"{count} >>= 1")
                self.source.line(f"if {count} > end - pos:")
                self.source.line(
                    f"    malformed('array-count', f'field {place}: claims {{{count}}} items in {{end - pos}} bytes')"
                )
                self.source.line(f"for _ in range({count}):")
                with self.source.block():
                    self.value(Field("[]", items), item, place)
                    self.source.line(f"{collected}.append({item})")
                self.source.line(f"if {size_end} != -1 and {size_end} != pos:")
                self.source.line(f"    malformed('array-size', 'field {place}: a block is not as long as it says')")
                self.varint(count)
            self.source.line(f"{target} = tuple({collected})")

    def enum(self, schema: Mapping[str, Any], target: str, place: str) -> None:
        """Read an enum: with at most 64 symbols, the index is one byte."""
        self.named[full_name(schema)] = schema
        symbols = self.source.constant({2 * index: symbol for index, symbol in enumerate(schema["symbols"])})
        self.source.line(f"{target} = {symbols}.get(buf[pos])")
        self.source.line("pos += 1")
        self.source.line(f"if {target} is None:")
        self.source.line(f"    malformed('enum-index', 'field {place}: no such symbol')")

    def varint(self, target: str) -> None:
        """Read an unsigned varint."""
        self.source.line(f"{target} = buf[pos]")
        self.source.line("pos += 1")
        self.source.line(f"if {target} > 127:")
        self.source.line(f"    {target}, pos = long_varint(buf, pos, {target})")

    def long(self, target: str, _place: str) -> None:
        """Read a signed (zigzag) number."""
        self.varint(target)
        self.source.line(f"{target} = ({target} >> 1) ^ -({target} & 1)")

    def boolean(self, target: str, place: str) -> None:
        """Read a boolean."""
        self.source.line("byte = buf[pos]")
        self.source.line("pos += 1")
        self.source.line("if byte > 1:")
        self.source.line(f"    malformed('boolean', 'field {place}: a boolean is 0 or 1')")
        self.source.line(f"{target} = byte == 1")

    def double(self, target: str, _place: str) -> None:
        """Read a float of 64 bits."""
        self.source.line(f"({target},) = double(buf, pos)")
        self.source.line("pos += 8")

    def bytes(self, target: str, place: str) -> None:
        """Read bytes with their length in front."""
        self.source.line("size = buf[pos]")
        self.source.line("pos += 1")
        self.source.line("if size & 0x81:")
        self.source.line(f"    size, pos = long_length(buf, pos, size, {place!r})")
        self.source.line("stop = pos + (size >> 1)")
        self.source.line(f"{target} = buf[pos:stop]")
        self.source.line("pos = stop")

    def string(self, target: str, place: str) -> None:
        """Read UTF-8 text with its length in front."""
        self.bytes(target, place)
        self.source.line(f"{target} = {target}.decode()")
