"""Records to bytes and back: Confluent wire format, CloudEvents headers, every guard.

The value is 0x00, the schema's id (4 bytes, big-endian), then Avro. The headers follow CloudEvents' Kafka binding in
binary mode, with ``traceparent`` for events, and ``stepwell-schema``: the fingerprint of the writer's schema.

The fingerprint says which schema the body was written with. The id is for other clients: the packaged schemas and
every registry count from 1, so the same number names different schemas in one log, and bytes read with a wrong schema
can decode to something without any error. A record without the header, as Confluent's own serializers write it, can be
read only where a registry is set whose id it carries (`stepwell.adapters.registry`). Of the other headers, ``ce_type``
must agree with the schema where it is given; the rest are for others, and never read: the body is the truth.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, cast

import msgspec

from stepwell.events import model
from stepwell.events.avro_reader import MalformedError, Reader, compile_reader
from stepwell.events.avro_types import record_names
from stepwell.events.avro_writer import UnfitError, Writer, compile_writer
from stepwell.events.catalogue import Entry
from stepwell.events.guards import MAX_EVENT_BYTES, MAX_RECORD_BYTES, RefusalError, check_record
from stepwell.events.ids import event_id_text
from stepwell.events.model import Event, Headers, LogRecord
from stepwell.events.schemas import SchemaSource, SchemaVersion, packaged_schemas
from stepwell.events.upcasters import upcast
from stepwell.exceptions import DecodeError, EncodeError, EventError, StepwellError, UnknownSchemaError

MAGIC = 0
PREFIX_BYTES = 5
"""Magic byte and schema id, before the Avro body."""

SCHEMA_HEADER = "stepwell-schema"
CONTENT_TYPE = b"application/avro"

_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


@dataclass(frozen=True, slots=True)
class _ReadPlan:
    """How records of one schema version are read."""

    version: SchemaVersion
    type: bytes
    read: Reader
    max_bytes: int
    finish: Callable[[Any], LogRecord] | None
    """Makes the record from an older version's fields; None where the reader makes it itself."""


@dataclass(frozen=True, slots=True)
class _WritePlan:
    """How records of one class are written."""

    prefix: bytes
    write: Writer
    max_bytes: int
    headers: Headers


class Codec:
    """Encodes and decodes every record type. Cheap to make; readers and writers are compiled on first use.

    Safe to share between threads: plans are only ever added, and two threads that make the same one make equal ones.

    Attributes:
        schemas: where the schemas come from.
    """

    def __init__(self, schemas: SchemaSource | None = None) -> None:
        self.schemas: SchemaSource = schemas or packaged_schemas()
        self._readers: dict[bytes, _ReadPlan] = {}  # by fingerprint
        self._ids: dict[bytes, _ReadPlan] = {}  # by the frame's first bytes, for records without a fingerprint
        self._writers: dict[type, _WritePlan] = {}

    def encode(self, record: LogRecord) -> tuple[bytes, Headers]:
        """The value and the headers of a log record.

        Raises:
            EncodeError: the record does not fit its schema or breaks a guard; ``reason`` says which kind.
        """
        plan = self._writers.get(type(record)) or self._write_plan(record)
        out = bytearray(plan.prefix)
        try:
            plan.write(record, out)
            check_record(record)
        except (UnfitError, RefusalError) as error:
            raise EncodeError(f"{record.TYPE}: {error}", reason=error.reason) from None
        except UnicodeEncodeError as error:
            raise EncodeError(f"{record.TYPE}: a text holds half a character: {error}", reason="text") from None
        if len(out) > plan.max_bytes:
            raise EncodeError(
                f"{record.TYPE}: {len(out)} bytes are more than the {plan.max_bytes} of a record; "
                "put large arrays into the artifact store and refer to them",
                reason="too-large",
            )
        return bytes(out), plan.headers + _own_headers(record)

    def decode(self, value: bytes | None, headers: Headers) -> LogRecord:
        """The record behind a value and its headers.

        Raises:
            UnknownSchemaError: no schema is known for it.
            DecodeError: the bytes hold no record of that schema, or it breaks a guard. ``reason`` says which kind;
                ``unexpected``: reading it failed by a defect of ours.
            SchemaRegistryUnavailableError: it has no fingerprint, and the registry that knows its id is away.
        """
        try:
            plan = self._read_plan(value, headers)
        except (StepwellError, MemoryError):
            raise
        except Exception as error:
            raise _unexpected("its schema", error) from error
        assert value is not None
        end = len(value)
        if end > plan.max_bytes:
            raise DecodeError(f"{end} bytes are more than the {plan.max_bytes} of a record", reason="too-large")
        try:
            record, position = plan.read(value, PREFIX_BYTES, end)
            if position != end:
                _wrong_end(position, end)
            if plan.finish is not None:
                record = plan.finish(record)
            check_record(record)
        except (IndexError, struct.error):
            raise DecodeError(f"{plan.version.entry.type}: the bytes end too early", reason="truncated") from None
        except UnicodeDecodeError as error:
            raise DecodeError(f"{plan.version.entry.type}: a text is no UTF-8: {error}", reason="text") from None
        except (MalformedError, RefusalError) as error:
            raise DecodeError(f"{plan.version.entry.type}: {error}", reason=error.reason) from None
        except (EventError, MemoryError):
            raise
        except Exception as error:
            # A defect of ours (of an upcaster, of a guard) costs this record and not the pipeline.
            raise _unexpected(plan.version.entry.type, error) from error
        return cast(LogRecord, record)

    def decode_event(self, value: bytes | None, headers: Headers) -> Event:
        """As `decode`, for topics that hold events only.

        Raises:
            DecodeError: also where the record is none (reason ``not-an-event``).
        """
        record = self.decode(value, headers)
        if not isinstance(record, Event):
            raise DecodeError(f"{record.TYPE} is no event; it does not belong on this topic", reason="not-an-event")
        return record

    def fingerprint_of(self, value: bytes, headers: Headers) -> str:
        """The fingerprint of the schema that a record was written with, for a record that `decode` has read."""
        return self._plan_of(value, headers)[0].version.fingerprint

    def _read_plan(self, value: bytes | None, headers: Headers) -> _ReadPlan:
        """Check frame and headers, and find out how to read the body."""
        if value is None:
            raise DecodeError("the record has no value", reason="no-value")
        if len(value) < PREFIX_BYTES:
            raise DecodeError(f"{len(value)} bytes are no record: the shortest has {PREFIX_BYTES}", reason="truncated")
        if value[0] != MAGIC:
            raise DecodeError(f"the first byte is 0x{value[0]:02x}, not 0x00 (Confluent wire format)", reason="magic")
        plan, claimed = self._plan_of(value, headers)
        if claimed is not None and claimed != plan.type:
            raise DecodeError(
                f"header ce_type says {_shown(claimed)}, but the schema is that of {plan.version.entry.type}",
                reason="type-mismatch",
            )
        return plan

    def _plan_of(self, value: bytes, headers: Headers) -> tuple[_ReadPlan, bytes | None]:
        """How to read the body, and the type that the headers claim."""
        plan = claimed = fingerprint = None
        for name, content in headers:
            if name == SCHEMA_HEADER:
                if plan is not None and content != fingerprint:
                    raise UnknownSchemaError(
                        f"two headers {SCHEMA_HEADER} name two schemas, {_shown(fingerprint)} and {_shown(content)}",
                        reason="fingerprint-mismatch",
                    )
                fingerprint = content or b""
                plan = self._readers.get(fingerprint) or self._new_read_plan(fingerprint)
            elif name == "ce_type":
                claimed = content or b""
        return plan or self._plan_by_id(value[:PREFIX_BYTES]), claimed

    def _plan_by_id(self, prefix: bytes) -> _ReadPlan:
        """For a record without a fingerprint: by the id that a registry gave."""
        plan = self._ids.get(prefix)
        if plan is None:
            fingerprint = self.schemas.by_registry_id(int.from_bytes(prefix[1:], "big")).fingerprint.encode()
            plan = self._ids[prefix] = self._readers.get(fingerprint) or self._new_read_plan(fingerprint)
        return plan

    def _new_read_plan(self, fingerprint: bytes) -> _ReadPlan:
        version = self.schemas.by_fingerprint(fingerprint.decode("ascii", "backslashreplace"))
        entry = version.entry
        makers: dict[str, Any] = dict.fromkeys(record_names(version.schema), dict)
        finish = None
        if version.latest:
            makers = _classes(version)
        else:
            latest = self.schemas.current(entry.type).version
            cls = cast(Any, entry.cls)

            def finish(fields: Any) -> Any:
                return msgspec.convert(upcast(entry.type, version.version, latest, fields), cls)

        plan = _ReadPlan(
            version=version,
            type=entry.type.encode(),
            read=compile_reader(version.schema, makers, _constants(entry)),
            max_bytes=MAX_EVENT_BYTES if entry.is_event else MAX_RECORD_BYTES,
            finish=finish,
        )
        self._readers[fingerprint] = plan
        return plan

    def _write_plan(self, record: LogRecord) -> _WritePlan:
        type_name = getattr(record, "TYPE", None)
        if type_name is None:
            raise EncodeError(f"{type(record).__name__} is no record type of the catalogue", reason="unknown-type")
        try:
            version = self.schemas.current(type_name)
        except UnknownSchemaError as error:
            raise EncodeError(str(error), reason=error.reason) from error
        entry = version.entry
        plan = _WritePlan(
            prefix=bytes([MAGIC]) + version.id.to_bytes(4, "big"),
            write=compile_writer(version.schema, _classes(version), _constants(entry)),
            max_bytes=MAX_EVENT_BYTES if entry.is_event else MAX_RECORD_BYTES,
            headers=(
                ("ce_specversion", b"1.0"),
                ("ce_type", entry.type.encode()),
                ("content-type", CONTENT_TYPE),
                (SCHEMA_HEADER, version.fingerprint.encode()),
            ),
        )
        self._writers[type(record)] = plan
        return plan


def traceparent_of(event: Event) -> str:
    """The W3C ``traceparent`` of an event: its trace, the event itself as the parent span, sampled."""
    span = event.event_id[8:].hex()
    return f"00-{event.trace_id}-{span if span.strip('0') else '0000000000000001'}-01"


def _constants(entry: Entry) -> dict[str, str]:
    """The field that is on the wire but not in the class: it follows from the type."""
    return {} if entry.producer is None else {"producer": entry.producer}


def _classes(version: SchemaVersion) -> dict[str, type]:
    """The class of each record in a current schema; nested ones are named like their classes."""
    outer, *nested = record_names(version.schema)
    return {outer: version.entry.cls, **{name: getattr(model, name.rpartition(".")[2]) for name in nested}}


def _own_headers(record: LogRecord) -> Headers:
    """The headers that differ from record to record."""
    if isinstance(record, Event):
        return (
            ("ce_id", event_id_text(record.event_id).encode()),
            ("ce_source", _source(record.PRODUCER, record.producer_id)),
            ("ce_time", _time(record.occurred_at)),
            ("traceparent", traceparent_of(record).encode()),
        )
    name, producer = _identity(record)
    return ("ce_id", quoted(name, keep="/").encode()), ("ce_source", _source("engine", producer))


def _identity(
    record: model.DeadLetter
    | model.SnapshotTaken
    | model.PolicySnapshot
    | model.PositionSaved
    | model.TelemetrySampled
    | model.SpansEnded
    | model.WorkerReported,
) -> tuple[str, str]:
    """What identifies a record without a head, and who made it."""
    match record:
        case model.DeadLetter():
            name = f"{record.source_topic}/{record.source_partition}/{record.source_offset}/{record.reason}"
            return name, record.reported_by
        case model.SnapshotTaken():
            return f"{record.episode_id}/{record.attempt}/{record.last_offset}", "worker"
        case model.PolicySnapshot():
            return f"{record.policy}/{record.last_offset}", "worker"
        case model.PositionSaved():
            return f"{record.topic}/{record.partition}/{record.committed_offset}", "worker"
        case model.TelemetrySampled() | model.SpansEnded():
            return f"{record.worker_id}/{record.sampled_at}/{record.sample_seq}", record.worker_id
        case model.WorkerReported():
            return f"{record.worker_id}/{record.started_at}/{record.report_seq}", record.worker_id


def quoted(text: str, keep: str = "") -> str:
    """Percent-encoded for a URI: all but letters, digits, ``-._~`` of ASCII and what is to be kept."""
    kept = _UNRESERVED | set(keep.encode())
    return "".join(chr(byte) if byte in kept else f"%{byte:02X}" for byte in text.encode())


@lru_cache(maxsize=4096)
def _source(kind: str, producer_id: str) -> bytes:
    """CloudEvents wants a URI reference."""
    return f"/stepwell/{kind}/{quoted(producer_id)}".encode()


def _time(microseconds: int) -> bytes:
    seconds, fraction = divmod(microseconds, 1_000_000)
    return b"%s.%06dZ" % (_second(seconds), fraction)


@lru_cache(maxsize=256)
def _second(seconds: int) -> bytes:
    """RFC 3339 up to the second; the many events of one second share it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S").encode()


def _unexpected(what: str, error: Exception) -> DecodeError:
    return DecodeError(f"{what}: cannot be read: {type(error).__name__}: {error}", reason="unexpected")


def _wrong_end(position: int, end: int) -> None:
    if position > end:
        raise MalformedError("truncated", "the bytes end too early")
    raise MalformedError("trailing-bytes", f"{end - position} bytes follow the record")


def _shown(content: bytes | None) -> str:
    return "nothing" if content is None else repr(content[:40].decode("ascii", "backslashreplace"))
