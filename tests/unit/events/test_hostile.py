"""Bytes that no writer makes: refused fast, in constant memory, one record at a time."""

import io
import json
import struct
import subprocess
import sys
from typing import Any

import fastavro
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.events import model
from stepwell.events.avro_writer import zigzag
from stepwell.events.codec import Codec
from stepwell.events.model import Headers
from stepwell.events.schemas import SchemaVersion, packaged_schemas, without_logical_types
from stepwell.exceptions import DecodeError, EventError
from tests.unit.events.records import sample
from tests.unit.events.test_golden import NAMES, golden

CODEC = Codec()
STEP: model.StepDone = sample(model.StepDone)
VALUE, HEADERS = CODEC.encode(STEP)
SPARSE: model.StepDone = sample(model.StepDone, full=False)
SPARSE_VALUE, _ = CODEC.encode(SPARSE)


def refused(value: bytes, headers: Headers = HEADERS) -> str:
    """The reason for which a value is refused."""
    with pytest.raises(DecodeError) as caught:
        CODEC.decode(value, headers)
    return caught.value.reason


def offset_of(field: str, record: Any = SPARSE) -> int:
    """Where a field's bytes begin in the encoded value."""
    schema = packaged_schemas().current(record.TYPE).schema
    names = [item["name"] for item in schema["fields"]]
    fields = msgspec.to_builtins(record, builtin_types=(bytes,)) | {"producer": record.PRODUCER}
    head = {**schema, "name": "Head", "fields": schema["fields"][: names.index(field)]}
    out = io.BytesIO()
    parsed = fastavro.parse_schema(without_logical_types(head))
    fastavro.schemaless_writer(out, parsed, {name: fields[name] for name in names[: names.index(field)]})
    return 5 + len(out.getvalue())


def with_byte(field: str, byte: bytes) -> bytes:
    """The sparse step with the first byte of a field replaced."""
    at = offset_of(field)
    return SPARSE_VALUE[:at] + byte + SPARSE_VALUE[at + 1 :]


@pytest.mark.parametrize("name", NAMES)
def test_truncated_at_every_byte(name: str) -> None:
    value, headers, _ = golden(name)
    for length in range(len(value)):
        with pytest.raises(DecodeError):
            CODEC.decode(value[:length], headers)
    CODEC.decode(value, headers)


@pytest.mark.parametrize("name", NAMES)
def test_trailing_bytes(name: str) -> None:
    value, headers, _ = golden(name)
    for tail in (b"\x00", b"\xff", value):
        assert refused(value + tail, headers) == "trailing-bytes"


@pytest.mark.parametrize("name", NAMES)
def test_prefix_not_stripped_or_put_twice(name: str) -> None:
    value, headers, _ = golden(name)
    with pytest.raises(EventError):
        CODEC.decode(value[:5] + value, headers)
    with pytest.raises(EventError):
        CODEC.decode(value[5:], headers)


def test_index_minus_one_of_an_enum() -> None:
    assert refused(with_byte("origin", b"\x01")) == "enum-index"
    assert refused(with_byte("origin", b"\x04")) == "enum-index"
    assert refused(with_byte("producer", b"\x01")) == "enum-index"


def test_index_minus_one_of_a_union() -> None:
    assert refused(with_byte("reward", b"\x01")) == "union-index"
    assert refused(with_byte("reward", b"\x04")) == "union-index"


def test_boolean_is_zero_or_one() -> None:
    assert refused(with_byte("terminated", b"\x07")) == "boolean"
    assert refused(with_byte("terminated", b"\xff")) == "boolean"


def test_another_producer_cannot_write_the_type() -> None:
    for index in range(1, 6):
        assert refused(with_byte("producer", bytes([2 * index]))) == "producer"


def test_padded_and_overlong_varints() -> None:
    one = zigzag(1)[0]
    assert refused(with_byte("attempt", bytes([one | 0x80, 0x00]))) == "varint"
    assert refused(with_byte("attempt", bytes([one | 0x80, 0x80, 0x00]))) == "varint"
    assert refused(with_byte("attempt", bytes([one | 0x80] + [0x80] * 38 + [0x00]))) == "varint"
    assert refused(with_byte("attempt", b"\xff" * 9 + b"\x02")) == "varint"
    assert refused(with_byte("attempt", b"\xff" * 9 + b"\x01")) == "range"  # 64 bits, the least number: no attempt
    assert refused(with_byte("run_id", b"\x86\x00")) == "varint"


def test_lengths_negative_or_beyond_the_end() -> None:
    assert refused(with_byte("run_id", b"\x01")) == "length"
    assert refused(with_byte("run_id", zigzag(-(2**62)))) == "length"
    for length in (2**20, 2**40, 2**62):
        assert refused(with_byte("run_id", zigzag(length))) in ("truncated", "text")


@pytest.mark.parametrize("count", [2, 10_000, 2_000_000_000, 2**62])
def test_giant_array_counts(count: int) -> None:
    assert refused(with_byte("observation", zigzag(count))) in ("array-count", "truncated")
    assert refused(with_byte("observation", zigzag(-count) + zigzag(10))) in ("array-count", "truncated")


def test_blocks_with_their_size_are_legal_avro() -> None:
    metrics = (model.Metric(name="a", value=1.0), model.Metric(name="b", value=2.0))
    item = [b"\x02a" + struct.pack("<d", 1.0), b"\x02b" + struct.pack("<d", 2.0)]
    wanted = msgspec.structs.replace(SPARSE, metrics=metrics)
    blocks = zigzag(-1) + zigzag(len(item[0])) + item[0] + zigzag(1) + item[1] + b"\x00"
    assert CODEC.decode(with_byte("metrics", blocks), HEADERS) == wanted
    for lie in (0, 9, 11, -10, 2**40):
        wrong = zigzag(-1) + zigzag(lie) + item[0] + zigzag(1) + item[1] + b"\x00"
        assert refused(with_byte("metrics", wrong)) == "array-size"


def test_text_must_be_utf8() -> None:
    for bad in (b"\xff\xfe", b"\xc0\x80", b"\xed\xa0\x80"):
        at = offset_of("run_id")
        end = offset_of("episode_id")
        assert refused(SPARSE_VALUE[:at] + zigzag(len(bad)) + bad + SPARSE_VALUE[end:]) == "text"


@given(st.integers(5, len(VALUE) - 1), st.binary(min_size=1, max_size=12), st.integers(0, 12))
@settings(deadline=None, max_examples=600)
def test_damage_is_refused_or_is_another_record(at: int, put: bytes, cut: int) -> None:
    """Whatever decodes is a record in full: it encodes again, and decodes to the same."""
    damaged = VALUE[:at] + put + VALUE[at + cut :]
    try:
        record = CODEC.decode(damaged, HEADERS)
    except DecodeError:
        return
    again, headers = CODEC.encode(record)
    assert repr(CODEC.decode(again, headers)) == repr(record)


@given(st.binary(max_size=200), st.sampled_from(packaged_schemas().versions))
@settings(deadline=None, max_examples=300)
def test_noise_is_refused(noise: bytes, version: SchemaVersion) -> None:
    with pytest.raises(DecodeError):
        CODEC.decode(
            b"\x00" + version.id.to_bytes(4, "big") + noise, (("stepwell-schema", version.fingerprint.encode()),)
        )


_CHILD = """
import json, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (600_000_000, 600_000_000))
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
from stepwell.events.codec import Codec
from stepwell.exceptions import EventError
codec = Codec()
reasons = []
for value, fingerprint in json.load(sys.stdin):
    try:
        codec.decode(bytes.fromhex(value), (("stepwell-schema", fingerprint.encode()),))
        reasons.append("accepted")
    except EventError as error:
        reasons.append(error.reason)
# Not getrusage: its peak is handed down from the process that started this one.
status = dict(line.split(":", 1) for line in open("/proc/self/status", encoding="utf-8"))
print(json.dumps([reasons, int(status["VmHWM"].split()[0])]))
"""


def test_hostile_corpus_in_a_process_with_little_memory() -> None:
    """Counts and lengths up to 2**62, all over every schema, as short as six bytes or as long as is allowed."""
    corpus: list[tuple[str, str]] = []
    giants = [zigzag(2_000_000_000), zigzag(2**62), zigzag(-(2**62)), b"\xff" * 9 + b"\x01", b"\x80" * 40]
    for version in packaged_schemas().versions:
        prefix = b"\x00" + version.id.to_bytes(4, "big")
        corpus += [((prefix + giant).hex(), version.fingerprint) for giant in giants]
    for name in NAMES:
        value, headers, _ = golden(name)
        fingerprint = (dict(headers)["stepwell-schema"] or b"").decode()
        for at in range(5, len(value), 7):
            corpus += [((value[:at] + giant + value[at:]).hex(), fingerprint) for giant in giants[:3]]
    step = packaged_schemas().current("sim::step_done").fingerprint
    at = offset_of("observation")
    corpus.append(((SPARSE_VALUE[:at] + zigzag(700_000) + bytes(700_000)).hex(), step))
    corpus.append(((SPARSE_VALUE[:at] + b"\x80" * 700_000).hex(), step))
    child = subprocess.run(
        [sys.executable, "-c", _CHILD],
        input=json.dumps(corpus),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    reasons, peak_kib = json.loads(child.stdout)
    assert len(reasons) == len(corpus)
    # Bytes put into the middle of free text or a digest's place may still be a record; a giant count never is.
    accepted = [pair for pair, reason in zip(corpus, reasons, strict=True) if reason == "accepted"]
    for value, fingerprint in accepted:
        assert CODEC.decode(bytes.fromhex(value), (("stepwell-schema", fingerprint.encode()),)) is not None
    assert reasons[: 5 * len(packaged_schemas().versions)].count("accepted") == 0
    assert reasons[-2:].count("accepted") == 0
    assert peak_kib < 400_000
