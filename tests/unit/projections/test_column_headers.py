"""Headers compared as they lie say the same as headers taken apart one by one, whatever they hold."""

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.engine.headers import PackedHeaders, pack_headers
from stepwell.engine.ports import RecordBatch
from stepwell.events.codec import SCHEMA_HEADER
from stepwell.events.model import Headers
from stepwell.exceptions import LogError
from stepwell.projections.writing.batch_reader import BatchReader
from stepwell.projections.writing.columns.batch import ColumnReader
from stepwell.projections.writing.columns.headers import DECISIVE, UNKNOWN, plans_of
from tests.unit.projections.test_columns import ACTION, CODEC, STEP, Given, batch_of, check, given_of

MANY = 50
"""More than a pattern is made for."""


class Judge:
    """Tells apart all that may be told apart, and counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0
        self._numbers: dict[object, int] = {}

    def __call__(self, headers: Headers) -> int:
        self.asked += 1
        seen = tuple((name, value if name in DECISIVE else None) for name, value in headers)
        return self._numbers.setdefault(seen, len(self._numbers))


def packed_of(packed: Sequence[bytes | None]) -> PackedHeaders:
    return PackedHeaders(packed, range(len(packed)), "things/0")


def one_by_one(headers: PackedHeaders, judge: Judge) -> list[int]:
    found = []
    for row in range(len(headers)):
        try:
            found.append(judge(headers[row]))
        except LogError:
            found.append(UNKNOWN)
    return found


def like_events(number: int, schema: bytes = b"f" * 16) -> Headers:
    return (
        ("ce_type", b"t"), (SCHEMA_HEADER, schema), ("ce_id", b"%09d" % number), ("x", b"%d" % (number % 3)),
    )  # fmt: skip


names = st.sampled_from(["ce_type", SCHEMA_HEADER, "ce_id", "x", "y", ""])
values = st.one_of(st.none(), st.binary(max_size=3), st.sampled_from([b"t", b"u", b"f" * 16, b"g" * 16, b"." * 40]))
any_headers = st.lists(st.tuples(names, values), max_size=5).map(tuple)


@st.composite
def blobs(draw: st.DrawFn) -> list[bytes | None]:
    """Many records that are alike, records that are not, and damaged ones, each as long as one of the others."""
    base = pack_headers(draw(st.one_of(st.just(like_events(0)), any_headers)))
    kinds: list[bytes | None] = [None, b"", base, *(pack_headers(each) for each in draw(st.lists(any_headers)))]
    for _ in range(draw(st.integers(0, 12))):
        at = draw(st.integers(0, len(base) - 1))
        kinds.append(base[:at] + draw(st.binary(min_size=1, max_size=1)) + base[at + 1 :])
    chosen = draw(st.lists(st.sampled_from(kinds), max_size=30))
    return draw(st.permutations([*chosen, *[draw(st.sampled_from(kinds))] * MANY, *[base] * MANY]))


@settings(max_examples=200, deadline=None)
@given(blobs())
def test_any_headers_are_judged_as_one_by_one(packed: list[bytes | None]) -> None:
    judge = Judge()
    wanted = one_by_one(packed_of(packed), judge)
    assert plans_of(packed_of(packed), judge).tolist() == wanted


def test_what_is_alike_is_asked_of_once_for_each_length() -> None:
    judge = Judge()
    headers = packed_of([pack_headers(like_events(number)) for number in range(1_000)])
    assert set(plans_of(headers, judge).tolist()) == {0}
    assert judge.asked == 1


def test_values_that_decide_are_seen_in_each_record() -> None:
    judge = Judge()
    schemas = [b"f" * 16, b"e" * 16, b"f" * 15 + b"e"]
    headers = packed_of([pack_headers(like_events(number, schemas[number % 3])) for number in range(600)])
    assert plans_of(headers, judge).tolist() == [0, 1, 2] * 200
    assert judge.asked == 3


def test_lengths_that_make_up_for_each_other_are_no_match() -> None:
    # As long in all, and each byte outside the values is at another place.
    one, other = (("a", b"12"), ("b", b"3"), ("ce_type", b"t")), (("a", b"1"), ("b", b"23"), ("ce_type", b"t"))
    judge = Judge()
    assert len(pack_headers(one)) == len(pack_headers(other))
    assert plans_of(packed_of([pack_headers(one), pack_headers(other)] * MANY), judge).tolist() == [0] * (2 * MANY)
    assert judge.asked == 2


def test_another_writers_messagepack_is_taken_apart() -> None:
    # Names with a length of their own byte: as good, but not as we pack them.
    foreign = b"\x91\x92\xd9\x07ce_type\xc4\x01"
    judge = Judge()
    plans = plans_of(packed_of([foreign + each for each in (b"t", b"u")] * MANY), judge)
    assert plans.tolist() == [0, 1] * MANY
    assert judge.asked == 2 * MANY


def test_headers_that_are_not_packed_are_asked_one_by_one() -> None:
    assert plans_of([like_events(1), (), like_events(2)], Judge()).tolist() == [0, 1, 0]


def packed_batch(given: Sequence[Given], damaged: int | None = None) -> RecordBatch:
    batch = batch_of(given)
    packed = [pack_headers(headers) if headers else None for headers in batch.headers]
    if damaged is not None:
        packed[damaged] = b"\xc1"
    batch.headers = PackedHeaders(packed, batch.offsets, "things/0")
    return batch


def a_batch() -> list[Given]:
    events = [msgspec.structs.replace(event, producer_seq=number) for number in range(MANY) for event in (STEP, ACTION)]
    return [given_of(event) for event in events]


def test_a_packed_batch_gives_the_same_rows() -> None:
    given = a_batch()
    packed, rest = check(packed_batch(given), ColumnReader(CODEC.schemas))
    plain, _ = check(batch_of(given), ColumnReader(CODEC.schemas))
    assert rest == list(range(2 * MANY))  # each type has too few
    assert packed == plain == []
    packed, rest = check(packed_batch(given), ColumnReader(CODEC.schemas, least=MANY))
    plain, _ = check(batch_of(given), ColumnReader(CODEC.schemas, least=MANY))
    assert rest == []
    assert [bytes(rows.stream) for rows in packed] == [bytes(rows.stream) for rows in plain]


def test_names_that_stand_twice_send_a_record_one_by_one() -> None:
    given = a_batch()
    twice = (*given[4].headers, given[4].headers[0])
    given[4] = Given(given[4].key, given[4].value, twice)
    _, rest = check(packed_batch(given), ColumnReader(CODEC.schemas, least=MANY - 1))
    assert rest == [4]


def test_damaged_headers_stop_the_projector_by_name() -> None:
    batch = packed_batch(a_batch(), damaged=6)
    _, rest = ColumnReader(CODEC.schemas, least=MANY - 1).read(batch)
    assert rest == [6]
    with pytest.raises(LogError, match=f"offset {batch.offsets[6]} are damaged"):
        BatchReader(CODEC, "sink", columns_from=MANY - 1).read(batch)


def test_a_batch_without_headers_has_no_plan() -> None:
    assert np.array_equal(plans_of(packed_of([None] * MANY), lambda headers: 3), [3] * MANY)
