"""Packed headers are a column like any other, and damage is told where somebody looks."""

import msgspec
import pytest

from stepwell.engine.headers import PackedHeaders, pack_headers
from stepwell.events.model import Headers
from stepwell.exceptions import LogError

SEEN: list[Headers] = [
    (("a", b"1"), ("b", None)), (), (("a", b"1"), ("a", b"2"), ("a", b"1")), (("ü", b""), ("", b"\xff" * 300)),
]  # fmt: skip
OFFSETS = [5, 7, 8, 12]
PACKED = [pack_headers(headers) if headers else None for headers in SEEN]


def column(packed: list[bytes | None]) -> PackedHeaders:
    return PackedHeaders(packed, OFFSETS, "things/1")


def test_headers_come_out_as_they_went_in() -> None:
    headers = column(PACKED)
    assert list(headers) == [headers[index] for index in range(len(SEEN))] == SEEN
    assert len(headers) == len(SEEN)
    assert headers[-1] == SEEN[-1]
    assert [list(headers[1:3]), list(headers[::2])] == [SEEN[1:3], SEEN[::2]]
    with pytest.raises(IndexError):
        headers[len(SEEN)]


@pytest.mark.parametrize(
    "damaged",
    [b"", b"\x91", b"\xc1", PACKED[0][:-1], PACKED[0] + b"\0", b"\x91\x92\xa1\xff\xc0",
     msgspec.msgpack.encode({"a": b"1"}), msgspec.msgpack.encode([("a", "text")]), msgspec.msgpack.encode([("a",)])],
)  # fmt: skip
def test_damage_is_told_with_its_place_and_costs_no_other_record(damaged: bytes) -> None:
    headers = column([PACKED[0], None, damaged, PACKED[3]])
    assert [headers[0], headers[1], headers[3]] == [SEEN[0], (), SEEN[3]]
    for look in (lambda: headers[2], lambda: headers[1:][1], lambda: list(headers), lambda: headers[-2]):
        with pytest.raises(LogError, match=r"things/1: the headers of the record at offset 8 are damaged \(.*restore"):
            look()
