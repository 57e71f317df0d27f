"""Frames between processes: what goes in comes out, and nothing else is taken for a frame."""

import io
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.adapters.processes.frames import (
    HEADER_BYTES_MAX,
    ITEM_BYTES,
    MAGIC,
    PREFIX,
    Array,
    FrameError,
    Message,
    encode,
    read_message,
)

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def arrays(draw: st.DrawFn) -> Array:
    dtype = draw(st.sampled_from(sorted(ITEM_BYTES)))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    size = math.prod(shape) * ITEM_BYTES[dtype]
    return Array(draw(st.text(max_size=8)), dtype, shape, draw(st.binary(min_size=size, max_size=size)))


def read(data: bytes) -> Message | None:
    return read_message(io.BytesIO(data).read)


def frame(header: bytes, payload: bytes = b"") -> bytes:
    return PREFIX.pack(MAGIC, len(header), len(payload)) + header + payload


@given(st.dictionaries(st.text(), JSON_VALUES, max_size=4), st.lists(arrays(), max_size=3))
def test_what_goes_in_comes_out(body: dict[str, object], given_arrays: list[Array]) -> None:
    assert read(encode(body, given_arrays)) == Message(body, tuple(given_arrays))


def test_floats_are_exact_and_may_be_nan_or_infinite() -> None:
    values = [0.1, 1e-310, -0.0, math.inf, -math.inf, math.nan]
    message = read(encode({"values": values}))
    assert message is not None
    assert struct.pack("<6d", *message.body["values"]) == struct.pack("<6d", *values)


def test_the_stream_may_end_between_frames_only() -> None:
    whole = encode({"id": 1}, [Array("a", "float64", (2,), bytes(16))])
    assert read(b"") is None
    for cut in range(1, len(whole)):
        with pytest.raises(FrameError, match="stream ended"):
            read(whole[:cut])


@given(st.binary(min_size=1, max_size=200))
def test_garbage_is_refused_or_short(data: bytes) -> None:
    with pytest.raises(FrameError):
        read(data)


@given(st.data())
def test_a_damaged_frame_is_refused_or_still_consistent(data: st.DataObject) -> None:
    whole = bytearray(encode({"id": 1, "reward": 0.5}, [Array("qpos", "float32", (3,), bytes(12))]))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    try:
        message = read(bytes(whole))
    except FrameError:
        return
    assert message is not None
    assert all(math.prod(array.shape) * ITEM_BYTES[array.dtype] == len(array.data) for array in message.arrays)


def test_a_print_on_the_channel_is_named() -> None:
    with pytest.raises(FrameError, match="Loading"):
        read(b"Loading controller configuration from ...\n")


@pytest.mark.parametrize("lengths", [(HEADER_BYTES_MAX + 1, 0), (2, 1 << 40), (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)])
def test_oversize_is_refused_before_it_is_read(lengths: tuple[int, int]) -> None:
    asked: list[int] = []
    stream = io.BytesIO(PREFIX.pack(MAGIC, *lengths))

    def reading(size: int) -> bytes:
        asked.append(size)
        return stream.read(size)

    with pytest.raises(FrameError, match="larger than"):
        read_message(reading)
    assert asked == [PREFIX.size]


@pytest.mark.parametrize(
    ("header", "payload"),
    [
        (b"", b""),
        (b"[]", b""),
        (b"{}", b""),
        (b'{"body": 1, "arrays": []}', b""),
        (b'{"body": {}, "arrays": [["a", "float64"]]}', b""),
        (b'{"body": {}, "arrays": [["a", "object", [1]]]}', bytes(8)),
        (b'{"body": {}, "arrays": [["a", "float64", [2]]]}', bytes(8)),
        (b'{"body": {}, "arrays": [["a", "float64", [1]]]}', bytes(9)),
        (b'{"body": {}, "arrays": [["a", "uint8", [-1]]]}', b""),
        (b'{"body": {}, "arrays": [["a", "uint8", [1.0]]]}', b"x"),
        (b'{"body": {}, "arrays": [["a", "uint8", "12"]]}', b"x"),
        (b"[" * 100_000, b""),
        (b"\xff\xfe", b""),
    ],
)
def test_headers_that_contradict_themselves(header: bytes, payload: bytes) -> None:
    with pytest.raises(FrameError):
        read(frame(header, payload))


@pytest.mark.parametrize(
    "array", [Array("a", "object", (1,), bytes(8)), Array("a", "float64", (2,), bytes(8)), Array("a", "U4", (), b"")]
)
def test_encoding_refuses_what_reading_would(array: Array) -> None:
    with pytest.raises(FrameError, match="array 'a'"):
        encode({}, [array])


def test_two_frames_in_a_row() -> None:
    stream = io.BytesIO(encode({"id": 1}) + encode({"id": 2}))
    first, second, end = (read_message(stream.read) for _ in range(3))
    assert (first, second, end) == (Message({"id": 1}, ()), Message({"id": 2}, ()), None)
