"""Records that nobody may take for facts, each made from a genuine one by one kind of damage."""

import struct
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from stepwell.engine.ports import OutgoingRecord
from stepwell.engine.publish import outgoing
from stepwell.events.codec import SCHEMA_HEADER, Codec
from stepwell.events.model import StepDone
from stepwell.events.schemas import packaged_schemas

CODEC = Codec()
ANOTHER = packaged_schemas().current("sim::ready")
NAN = struct.pack("<d", float("nan"))


class Bad(NamedTuple):
    """``reason``: the code under which it must be set aside; empty where any will do."""

    name: str
    record: OutgoingRecord
    reason: str


def bad_records(step: StepDone) -> Iterator[Bad]:
    """One bad record of each kind. ``step``: a genuine step; its ``sim_time`` and ``reward`` are replaced."""
    step = msgspec.structs.replace(step, sim_time=1234.5, reward=0.75, success=True)
    good = outgoing(CODEC, step)
    value = good.value
    assert value is not None

    def changed(name: str, new: bytes | None, reason: str) -> Bad:
        return Bad(name, good._replace(value=new), reason)

    def at(where: int, new: bytes, length: int = 1) -> bytes:
        assert value is not None
        return value[:where] + new + value[where + length :]

    def differing(**fields: object) -> int:
        """Where the encoding of a changed event first differs."""
        other = outgoing(CODEC, msgspec.structs.replace(step, **fields)).value
        assert value is not None
        assert other is not None
        return next(index for index, (a, b) in enumerate(zip(value, other, strict=False)) if a != b)

    yield changed("no value", None, "no-value")
    yield changed("empty", b"", "truncated")
    yield changed("cut in the head", value[:30], "truncated")
    yield changed("cut in the end", value[:-1], "truncated")
    yield changed("trailing bytes", value + b"\0\0", "trailing-bytes")
    yield changed("frame not stripped", b"\0\0\0\0\7" + value, "")  # whatever it happens to read like
    yield changed("frame lost", value[5:], "magic")
    yield changed("other magic", at(0, b"\1"), "magic")
    yield Bad("no fingerprint", good._replace(headers=()), "no-fingerprint")
    for name, fingerprint, reason in (
        ("fingerprint of nobody", b"0" * 16, "unknown-fingerprint"),
        ("fingerprint of another", ANOTHER.fingerprint.encode(), "type-mismatch"),
    ):
        headers = tuple((key, fingerprint if key == SCHEMA_HEADER else text) for key, text in good.headers)
        yield Bad(name, good._replace(headers=headers), reason)
    yield Bad(
        "two fingerprints", good._replace(headers=(*good.headers, (SCHEMA_HEADER, b"0" * 16))), "fingerprint-mismatch"
    )
    yield changed("union index -1", at(differing(reward=None), b"\1"), "union-index")
    yield changed("enum index -1", at(differing(origin="import"), b"\1"), "enum-index")
    yield changed("boolean of 7", at(differing(terminated=not step.terminated), b"\7"), "boolean")
    yield changed("endless varint", at(differing(attempt=7), b"\xff" * 40), "varint")
    count = differing(observation=())
    yield changed("two thousand million items", at(count, b"\x80\xa8\xd6\xb9\x07" * 2), "array-count")
    place = value.index(struct.pack("<d", 1234.5))
    yield changed("no number in the head", at(place, NAN, 8), "not-finite")
    for name, when in (("1970", 86_400_000_000), ("2999", 32_472_144_000_000_000)):
        yield Bad(name, outgoing(CODEC, msgspec.structs.replace(step, occurred_at=when)), "timestamp")
