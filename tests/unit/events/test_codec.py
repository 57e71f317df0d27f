"""Records to bytes and back; headers; what is refused when writing."""

import io
from typing import Any

import fastavro
import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepwell.events import model
from stepwell.events.catalogue import BY_CLASS
from stepwell.events.codec import Codec, quoted, traceparent_of
from stepwell.events.guards import MAX_EVENT_BYTES, MAX_RECORD_BYTES
from stepwell.events.model import Event, Headers, LogRecord, Metric, StepDone
from stepwell.events.schemas import SchemaVersion, packaged_schemas, without_logical_types
from stepwell.exceptions import DecodeError, EncodeError, UnknownSchemaError
from tests.unit.events.records import CLASSES, records, sample

CODEC = Codec()
PARSED = {
    version.id: fastavro.parse_schema(without_logical_types(version.schema)) for version in packaged_schemas().versions
}
STEP: StepDone = sample(StepDone)
slow_to_build = settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def same(left: Any, right: Any) -> bool:
    """Equal by content; NaN equals NaN, -0.0 differs from 0.0."""
    return type(left) is type(right) and repr(left) == repr(right)


def other(headers: Headers, **changed: bytes | None) -> Headers:
    """Headers with some values changed; None takes one out."""
    names = {name.replace("_", "-") if name != "ce_type" else name: value for name, value in changed.items()}
    kept = [(name, names.get(name, value)) for name, value in headers]
    return tuple((name, value) for name, value in kept if not (name in names and value is None))


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.TYPE)
@given(data=st.data())
@slow_to_build
def test_round_trip_and_agreement_with_fastavro(cls: type[LogRecord], data: st.DataObject) -> None:
    record = data.draw(records(cls))
    value, headers = CODEC.encode(record)
    assert same(CODEC.decode(value, headers), record)

    # A general implementation of Avro writes the same bytes, and reads the same values from ours.
    schema = PARSED[int.from_bytes(value[1:5], "big")]
    fields = msgspec.to_builtins(record, builtin_types=(bytes,))
    if issubclass(cls, Event):
        fields["producer"] = cls.PRODUCER
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, fields)
    assert out.getvalue() == value[5:]
    read = fastavro.schemaless_reader(io.BytesIO(value[5:]), schema, None)
    read.pop("producer", None)
    assert same(msgspec.convert(read, cls), record)


def test_headers_follow_cloudevents() -> None:
    value, headers = CODEC.encode(STEP)
    assert value[:5] == bytes([0, 0, 0, 0, 7])
    assert dict(headers) == {
        "ce_specversion": b"1.0",
        "ce_type": b"sim::step_done",
        "content-type": b"application/avro",
        "stepwell-schema": packaged_schemas().current("sim::step_done").fingerprint.encode(),
        "ce_id": b"0197f3c2-a4b8-7000-8000-00000000002a",
        "ce_source": b"/stepwell/sim/producer_id%20%C3%A4",
        "ce_time": b"2026-11-18T11:06:40.123456Z",
        "traceparent": b"00-4bf92f3577b34da6a3ce929d0e0e4736-800000000000002a-01",
    }


def test_records_without_head_have_ids_from_their_position() -> None:
    position = model.PositionSaved(topic="t", partition=2, rewind_offset=5, committed_offset=9, fold_hash="f")
    headers = dict(CODEC.encode(position)[1])
    assert headers["ce_id"] == b"t/2/9"
    assert headers["ce_source"] == b"/stepwell/engine/worker"
    assert "traceparent" not in headers
    for cls in (model.DeadLetter, model.SnapshotTaken, model.TelemetrySampled):
        assert b"/" in (dict(CODEC.encode(sample(cls))[1])["ce_id"] or b"")


def test_traceparent_never_has_an_empty_span() -> None:
    assert traceparent_of(msgspec.structs.replace(STEP, event_id=bytes(16))).endswith("-0000000000000001-01")


def test_quoted_is_a_uri_part() -> None:
    assert quoted("a b/ü~", keep="/") == "a%20b/%C3%BC~"
    assert quoted("a/b") == "a%2Fb"


# --- headers are checked before the body --------------------------------------------------------------------------


def test_a_fingerprint_that_nobody_knows_is_refused() -> None:
    value, headers = CODEC.encode(STEP)
    with pytest.raises(UnknownSchemaError, match="that of none of the") as caught:
        CODEC.decode(value, other(headers, stepwell_schema=b"0123456789abcdef"))
    assert caught.value.reason == "unknown-fingerprint"
    with pytest.raises(UnknownSchemaError):
        CODEC.decode(value, (("stepwell-schema", None),))


def test_fingerprint_of_another_type_is_refused() -> None:
    value, headers = CODEC.encode(STEP)
    foreign = packaged_schemas().current("sim::ready").fingerprint.encode()
    with pytest.raises(DecodeError, match="ce_type says 'sim::step_done'") as caught:
        CODEC.decode(value, other(headers, stepwell_schema=foreign))
    assert caught.value.reason == "type-mismatch"


@pytest.mark.parametrize("schema_id", [0, 6, 7, 4_000_000_000])
def test_the_fingerprint_decides_and_not_the_id(schema_id: int) -> None:
    """Packaged ids and a registry's collide: 6 is another schema here, 0 and four thousand million are none."""
    value, headers = CODEC.encode(STEP)
    value = b"\0" + schema_id.to_bytes(4, "big") + value[5:]
    assert same(CODEC.decode(value, headers), STEP)
    assert CODEC.fingerprint_of(value, headers) == packaged_schemas().current("sim::step_done").fingerprint


def test_missing_fingerprint_is_refused() -> None:
    value, headers = CODEC.encode(STEP)
    for fewer in (other(headers, stepwell_schema=None), ()):
        with pytest.raises(UnknownSchemaError) as caught:
            CODEC.decode(value, fewer)
        assert caught.value.reason == "no-fingerprint"


def test_second_fingerprint_must_agree_too() -> None:
    value, headers = CODEC.encode(STEP)
    for second in (b"0000000000000000", packaged_schemas().current("sim::ready").fingerprint.encode(), None):
        with pytest.raises(UnknownSchemaError) as caught:
            CODEC.decode(value, (*headers, ("stepwell-schema", second)))
        assert caught.value.reason == "fingerprint-mismatch"
    assert same(CODEC.decode(value, (*headers, *headers)), STEP)


def test_type_header_must_agree_where_given() -> None:
    value, headers = CODEC.encode(STEP)
    with pytest.raises(DecodeError, match="sim::ready") as caught:
        CODEC.decode(value, other(headers, ce_type=b"sim::ready"))
    assert caught.value.reason == "type-mismatch"
    assert CODEC.decode(value, other(headers, ce_type=None)) is not None
    only = tuple(pair for pair in headers if pair[0] == "stepwell-schema")
    assert same(CODEC.decode(value, only), STEP)


def test_other_headers_are_not_read() -> None:
    value, headers = CODEC.encode(STEP)
    noise = (("ce_id", b"\xff\x00"), ("traceparent", b"nonsense"), ("x", None))
    assert same(CODEC.decode(value, headers + noise), STEP)


def test_frame_is_checked() -> None:
    value, headers = CODEC.encode(STEP)
    cases: list[tuple[bytes | None, str]] = [(None, "no-value"), (b"", "truncated"), (value[:4], "truncated")]
    cases += [(b"\x01" + value[1:], "magic"), (value[5:], "magic")]
    for bad, reason in cases:
        with pytest.raises(DecodeError) as caught:
            CODEC.decode(bad, headers)
        assert caught.value.reason == reason


def test_decode_event_takes_events_only() -> None:
    assert same(CODEC.decode_event(*CODEC.encode(STEP)), STEP)
    with pytest.raises(DecodeError, match="engine::position_saved") as caught:
        CODEC.decode_event(*CODEC.encode(sample(model.PositionSaved)))
    assert caught.value.reason == "not-an-event"


# --- writing ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attempt", 1.0),
        ("attempt", True),
        ("attempt", "1"),
        ("attempt", None),
        ("attempt", np.int64(1)),
        ("producer_seq", 2**63),
        ("producer_seq", 10.5),
        ("occurred_at", "2026-11-30"),
        ("event_id", b"short"),
        ("event_id", "0197f3c2-a4b8-7000-8000-00000000002a"),
        ("event_id", bytearray(16)),
        ("run_id", b"bytes"),
        ("run_id", 7),
        ("origin", "replay"),
        ("origin", 1),
        ("origin", ["live"]),
        ("reward", "1.0"),
        ("reward", True),
        ("reward", np.float32(1)),
        ("reward", 2**53 + 1),
        ("sim_time", 1j),
        ("success", 1),
        ("terminated", None),
        ("terminated", 0),
        ("truncated", np.True_),
        ("observation", []),
        ("observation", None),
        ("observation", ({"name": "qpos"},)),
        ("observation", (Metric(name="a", value=1.0),)),
        ("metrics", (Metric(name="a", value="1"),)),  # type: ignore[arg-type]
        ("state_digest", "text"),
        ("state_digest", memoryview(b"")),
        ("run_id", "\ud800"),
    ],
)
def test_nothing_is_coerced(field: str, value: Any) -> None:
    with pytest.raises(EncodeError, match="sim::step_done") as caught:
        CODEC.encode(msgspec.structs.replace(STEP, **{field: value}))
    assert caught.value.reason in ("wrong-type", "text")


def test_datetimes_are_refused() -> None:
    from datetime import UTC, datetime

    for when in (datetime(2026, 11, 30, tzinfo=UTC), datetime(2026, 11, 30)):  # noqa: DTZ001
        with pytest.raises(EncodeError, match=r"occurred_at: expected int, got datetime"):
            CODEC.encode(msgspec.structs.replace(STEP, occurred_at=when))


def test_extra_fields_cannot_be_given() -> None:
    with pytest.raises(TypeError, match="colour"):
        StepDone(**{**msgspec.structs.asdict(STEP), "colour": "red"})
    with pytest.raises(TypeError, match="producer"):
        StepDone(**{**msgspec.structs.asdict(STEP), "producer": "host"})


def test_lossless_numbers_and_subclasses_are_let_through() -> None:
    class Name(str):
        __slots__ = ()

    class Raw(bytes):
        __slots__ = ()

    record = msgspec.structs.replace(
        STEP, reward=3, sim_time=np.float64(0.5), run_id=Name("run"), state_digest=Raw(b"d"), origin=Name("live")
    )
    read = CODEC.decode(*CODEC.encode(record))
    assert isinstance(read, StepDone)
    assert (read.reward, read.sim_time, read.run_id, read.state_digest) == (3.0, 0.5, "run", b"d")
    assert type(read.reward) is float


def test_long_values_in_messages_are_cut() -> None:
    with pytest.raises(EncodeError, match=r"\.\.\.$"):
        CODEC.encode(msgspec.structs.replace(STEP, attempt="x" * 1000))


def test_subclasses_and_strangers_are_no_records() -> None:
    class Richer(StepDone, frozen=True, kw_only=True):
        colour: str = "red"

    with pytest.raises(EncodeError, match="expected StepDone, got Richer"):
        CODEC.encode(Richer(**msgspec.structs.asdict(STEP)))
    with pytest.raises(EncodeError, match="catalogue") as caught:
        CODEC.encode(Metric(name="a", value=1.0))  # type: ignore[arg-type]
    assert caught.value.reason == "unknown-type"

    class Unlisted(Event, frozen=True, kw_only=True):
        TYPE = "sim::unlisted"
        PRODUCER = "sim"

    head = {name: getattr(STEP, name) for name in Event.__struct_fields__}
    with pytest.raises(EncodeError, match="sim::unlisted"):
        CODEC.encode(Unlisted(**head))


def test_guards_hold_when_writing() -> None:
    with pytest.raises(EncodeError, match="attempt is 0") as caught:
        CODEC.encode(msgspec.structs.replace(STEP, attempt=0))
    assert caught.value.reason == "range"


def test_size_is_capped_both_ways() -> None:
    letter: model.DeadLetter = sample(model.DeadLetter)
    fits = msgspec.structs.replace(letter, source_value=bytes(MAX_EVENT_BYTES))
    assert same(CODEC.decode(*CODEC.encode(fits)), fits)
    with pytest.raises(EncodeError, match="artifact store") as caught:
        CODEC.encode(msgspec.structs.replace(letter, source_value=bytes(MAX_RECORD_BYTES)))
    assert caught.value.reason == "too-large"
    value, headers = CODEC.encode(STEP)
    with pytest.raises(DecodeError) as refused:
        CODEC.decode(value + bytes(MAX_EVENT_BYTES), headers)
    assert refused.value.reason == "too-large"


# --- another source of schemas ------------------------------------------------------------------------------------


class Registry:
    """The same schemas under a registry's own ids."""

    def by_fingerprint(self, fingerprint: str) -> SchemaVersion:
        return packaged_schemas().by_fingerprint(fingerprint)

    def by_registry_id(self, schema_id: int) -> SchemaVersion:
        return packaged_schemas().versions[schema_id - 40_001]

    def current(self, type_name: str) -> SchemaVersion:
        found = packaged_schemas().current(type_name)
        return SchemaVersion(found.id + 40_000, found.entry, found.version, True, found.fingerprint, found.schema)


def test_a_registry_can_take_the_packages_place() -> None:
    value, headers = Codec(Registry()).encode(STEP)
    assert int.from_bytes(value[1:5], "big") == 40_007
    assert same(Codec(Registry()).decode(value, headers), STEP)
    assert same(CODEC.decode(value, headers), STEP)


def test_a_record_without_fingerprint_is_read_by_the_registrys_id() -> None:
    codec = Codec(Registry())
    value, _ = codec.encode(STEP)
    assert same(codec.decode(value, ()), STEP)
    assert same(codec.decode(value, (("ce_type", b"sim::step_done"),)), STEP)
    assert codec.fingerprint_of(value, ()) == packaged_schemas().current("sim::step_done").fingerprint
    with pytest.raises(DecodeError, match="ce_type"):
        codec.decode(value, (("ce_type", b"sim::ready"),))
    with pytest.raises(UnknownSchemaError) as caught:
        CODEC.decode(value, ())
    assert caught.value.reason == "no-fingerprint"


def test_every_class_has_one_entry() -> None:
    assert [BY_CLASS[cls].cls for cls in CLASSES] == CLASSES
