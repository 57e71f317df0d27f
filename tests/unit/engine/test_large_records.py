"""Records as large as a broker takes them: every one becomes a letter that the log takes as well."""

import msgspec
import pytest

from stepwell.engine.publish import check_size, outgoing_letter
from stepwell.events.guards import LETTER_KEY_MAX, MAX_STORED_BYTES, stored_bytes
from stepwell.events.model import DeadLetter, HeaderField
from stepwell.events.routing import key_of
from tests.unit.engine.running import CODEC

LETTER = DeadLetter(
    kind="unreadable",
    reason="magic",
    detail="why it was refused",
    source_topic="stepwell.episode-events",
    source_partition=3,
    source_offset=7,
    source_timestamp=1,
    source_key=None,
    source_value=None,
    source_headers=(),
    episode_id=None,
    attempt=None,
    event_type=None,
    reported_by="stepwell-engine-0",
)
FEW = (HeaderField(name="h", value=b"1"),)


@pytest.mark.parametrize(
    ("key", "value", "headers", "left_out"),
    [
        (bytes(600_000), b"garbage", FEW, ""),
        (bytes(9_900), bytes(985_000), FEW, ""),
        (bytes(9_900), bytes(1_038_000), FEW, "value"),
        (b"k", b"garbage", (HeaderField(name="h", value=bytes(100_000)),) * 10, "headers"),
        (bytes(1_040_000), b"garbage", FEW, "key"),
        (bytes(500_000), bytes(540_000), FEW, "value"),
        (b"k", b"", (HeaderField(name="", value=None),) * 100_000, ""),
        (b"k", bytes(10), (HeaderField(name="ü" * 60_000, value=b""),) * 8, ""),
        (b"k" * 340_000, bytes(350_000), (HeaderField(name="h", value=bytes(340_000)),), "value"),
        (None, bytes(1_048_000), (), "value"),
    ],
)
def test_the_largest_part_is_left_out_until_the_letter_fits(
    key: bytes | None, value: bytes, headers: tuple[HeaderField, ...], left_out: str
) -> None:
    letter = msgspec.structs.replace(LETTER, source_key=key, source_value=value, source_headers=headers)
    record = outgoing_letter(CODEC, letter)
    assert stored_bytes(record.key, record.value, record.headers) <= MAX_STORED_BYTES
    assert record.key == (key or b"")[:LETTER_KEY_MAX]
    kept = CODEC.decode(record.value, record.headers)
    assert isinstance(kept, DeadLetter)
    assert kept.source_value == (None if "value" in left_out else value)
    assert kept.source_headers == (() if "headers" in left_out else headers)
    assert kept.source_key == (key[:LETTER_KEY_MAX] if key is not None and "key" in left_out else key)
    assert kept.detail.endswith("why it was refused")
    assert ("left at their place" in kept.detail) == bool(left_out)
    assert f"({left_out}: too-large)" in kept.detail or not left_out
    assert (kept.source_offset, key_of(kept)) == (7, record.key)
    check_size(record)
