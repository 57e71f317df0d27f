"""The way by columns gives the same bytes as the way record by record, whatever the batch holds."""

import io
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import fastavro
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.engine.ports import RecordBatch, TopicPartition
from stepwell.events import model
from stepwell.events.codec import SCHEMA_HEADER, Codec
from stepwell.events.guards import FUTURE_WINDOW_US, MAX_EVENT_BYTES, PAST_WINDOW_US, TIME_LIMIT_US
from stepwell.events.model import Headers
from stepwell.events.schemas import without_logical_types
from stepwell.events.topics import EPISODE_EVENTS, POLICY_EVENTS
from stepwell.exceptions import EventError
from stepwell.projections.tables import KINDS, Values, reduce_rows
from stepwell.projections.writing.columns.batch import ColumnReader, ColumnRows
from stepwell.projections.writing.columns.deltas import NO_BUCKET, step_deltas
from stepwell.projections.writing.copy_format import encode_rows
from stepwell.projections.writing.rows import project
from tests.unit.events.records import sample

CODEC = Codec()
READER = ColumnReader(CODEC.schemas, least=1)
NOW = 1_790_000_000_000_000
STEP: model.StepDone = msgspec.structs.replace(
    sample(model.StepDone), attempt=1, occurred_at=NOW, step=3, origin="live", observation=(), metrics=()
)
ACTION: model.ActionSent = msgspec.structs.replace(
    sample(model.ActionSent), attempt=1, occurred_at=NOW, step=3, first_step=3, n_steps=1, observed_step=3,
    origin="live", action=model.Tensor(name="action", dtype="float64", shape=(1, 2), data=struct.pack("<2d", 0.5, -1)),
)  # fmt: skip


@dataclass(frozen=True)
class Given:
    """A record as it stands in the log."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int = NOW


def given_of(event: model.Event) -> Given:
    value, headers = CODEC.encode(event)
    return Given(event.episode_id.encode(), value, headers)


def batch_of(records: Sequence[Given], topic: str = EPISODE_EVENTS) -> RecordBatch:
    count = len(records)
    return RecordBatch(
        TopicPartition(topic, 2), 100, 100 + 3 * count, [100 + 3 * number for number in range(count)],
        [record.timestamp for record in records], [record.key for record in records],
        [record.value for record in records], [record.headers for record in records],
    )  # fmt: skip


def one_by_one(batch: RecordBatch, indexes: Sequence[int]) -> dict[str, list[Values]]:
    """The rows of some records by kind, by the way that is the definition."""
    rows: dict[str, list[Values]] = {}
    for index in indexes:
        try:
            made = project(CODEC, batch, index)
        except EventError:
            continue
        for kind, values in made:
            rows.setdefault(kind, []).append(values)
    return rows


def check(batch: RecordBatch, reader: ColumnReader = READER) -> tuple[list[ColumnRows], list[int]]:
    """What went by columns equals, byte by byte, what the same records give one by one."""
    columns, rest = reader.read(batch)
    assert rest == sorted(set(rest))
    taken = sorted(set(range(len(batch))) - set(rest))
    wanted = one_by_one(batch, taken)
    # Every record taken has its row: none of them is a dead letter, and none is lost.
    assert sum(map(len, wanted.values())) == len(taken)
    assert {rows.kind for rows in columns} == set(wanted)
    for rows in columns:
        kind = KINDS[rows.kind]
        reduced = reduce_rows(kind, wanted[rows.kind])
        assert len(rows) == len(reduced)
        assert bytes(rows.stream) == encode_rows(kind.types, reduced)
    return columns, rest


# --- whatever a batch may hold ---

numbers = st.one_of(st.integers(0, 300), st.sampled_from([2**31 - 1, 2**31, 2**55 - 1, 2**55, 2**62, 2**63 - 1]))
reals = st.one_of(
    st.none(), st.floats(), st.binary(min_size=8, max_size=8).map(lambda raw: struct.unpack("<d", raw)[0])
)
ids = st.one_of(
    st.sampled_from(["ep-1", "ep-22", "e" * 8, "x" * 200]),
    st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=20),
    st.text(st.characters(categories=("L", "N"), include_characters=" "), min_size=1, max_size=12),
)
texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
names = st.one_of(st.sampled_from(["qpos", "reward_run", "100%", 'quo"te\\']), texts)


@st.composite
def tensors(draw: st.DrawFn, rows: int | None = None) -> model.Tensor:
    dtype, size = draw(
        st.sampled_from([("float32", 4), ("float64", 8), ("int32", 4), ("int64", 8), ("uint8", 1), ("bool", 1)])
    )
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    if draw(st.integers(0, 4)) == 0:
        return model.Tensor(name=draw(names), dtype=dtype, shape=shape, data=b"", uri=draw(texts), sha256=bytes(32))
    count = int(np.prod(shape, dtype=np.int64)) * size
    return model.Tensor(
        name=draw(names), dtype=dtype, shape=shape, data=draw(st.binary(min_size=count, max_size=count))
    )


def heads(draw: st.DrawFn, step: int | None) -> dict[str, Any]:
    return {
        "event_id": draw(st.binary(min_size=16, max_size=16)), "run_id": draw(ids), "episode_id": draw(ids),
        "attempt": draw(st.one_of(st.integers(1, 3), numbers.filter(bool))), "producer_id": draw(ids),
        "producer_seq": draw(numbers), "trace_id": draw(st.binary(min_size=16, max_size=16).filter(any)).hex(),
        "occurred_at": NOW + draw(st.one_of(st.integers(-5, 5), st.sampled_from(
            [-PAST_WINDOW_US - 1, -PAST_WINDOW_US, FUTURE_WINDOW_US, FUTURE_WINDOW_US + 1, -NOW]))),
        "sim_time": draw(st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False))),
        "step": step, "origin": draw(st.sampled_from(["live", "live", "live", "import"])),
    }  # fmt: skip


@st.composite
def steps(draw: st.DrawFn) -> model.StepDone:
    return model.StepDone(
        **heads(draw, draw(numbers)), action_seq=draw(numbers), reward=draw(reals),
        success=draw(st.sampled_from([None, True, False])), terminated=draw(st.booleans()),
        truncated=draw(st.booleans()), observation=tuple(draw(st.lists(tensors(), max_size=3))),
        metrics=tuple(
            model.Metric(name=name, value=value)
            for name, value in draw(st.lists(st.tuples(names, reals.filter(lambda real: real is not None)), max_size=3))
        ),
        state_digest=draw(st.one_of(st.none(), st.binary(max_size=64))),
        step_wall_s=draw(st.one_of(st.none(), st.floats(0, 1e12))),
    )  # fmt: skip


@st.composite
def actions(draw: st.DrawFn) -> model.ActionSent:
    step = draw(numbers)
    return model.ActionSent(
        **heads(draw, step), first_step=step, n_steps=draw(numbers.filter(bool)), action=draw(tensors()),
        observed_step=draw(st.one_of(st.none(), numbers)), inference_s=draw(st.one_of(st.none(), st.floats(0, 1e12))),
    )  # fmt: skip


others = st.sampled_from([sample(model.EpisodeRequested), sample(model.EpisodeFailed), sample(model.SimReady)])


@st.composite
def records(draw: st.DrawFn) -> Given:
    """A record as its writer made it, or damaged in one of many ways."""
    made = given_of(draw(st.one_of(steps(), steps(), actions(), actions(), others)))
    assert made.value is not None
    value, at = made.value, draw(st.integers(0, len(made.value) - 1))
    match draw(st.integers(0, 15)):
        case 0:
            return replace(made, value=value[:at])
        case 1:
            return replace(made, value=value[:at] + draw(st.binary(min_size=1, max_size=3)) + value[at:])
        case 2 | 3 | 4:
            return replace(made, value=value[:at] + draw(st.binary(min_size=1, max_size=1)) + value[at + 1 :])
        case 5:
            return replace(made, value=draw(st.sampled_from([None, b"", b"\0", value[1:], value + b"\0", value * 2])))
        case 6:
            return replace(made, key=draw(st.sampled_from([None, b"", b"ep-", b"ep-1", made.key and made.key + b"\0"])))
        case 7:
            return replace(made, headers=draw(st.sampled_from(odd_headers(made.headers))))
        case 8:
            late = draw(st.sampled_from([-(10**15), -FUTURE_WINDOW_US - 7, PAST_WINDOW_US + 7, 10**15]))
            return replace(made, timestamp=NOW + late)
        case _:
            return made


def odd_headers(headers: Headers) -> list[Headers]:
    """The same record under other headers; some of them are good all the same."""
    plain = tuple(header for header in headers if header[0] not in (SCHEMA_HEADER, "ce_type"))
    mine, other = dict(headers)[SCHEMA_HEADER], CODEC.encode(sample(model.SimReady))[1]
    return [
        (), plain, tuple(reversed(headers)), (*headers, *headers), ((SCHEMA_HEADER, mine),),
        (*plain, (SCHEMA_HEADER, None)), (*headers, (SCHEMA_HEADER, b"0" * 16)), ((SCHEMA_HEADER, b"0" * 16), *headers),
        (*plain, (SCHEMA_HEADER, mine), ("ce_type", b"sim::ready")), (*plain, (SCHEMA_HEADER, mine), ("ce_type", None)),
        other, (*headers, ("x", None)), (*headers, ("ce_type", b"sim::ready"), ("ce_type", dict(headers)["ce_type"])),
    ]  # fmt: skip


@settings(max_examples=250, deadline=None)
@given(st.lists(records(), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_any_batch_gives_the_same_rows_both_ways(found: list[Given], chance: Any) -> None:
    # Repeats, of the whole and of the key alone, in any order.
    found = found + chance.choices(found, k=chance.randrange(3))
    chance.shuffle(found)
    check(batch_of(found))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(steps(), actions()), min_size=1, max_size=12), st.data())
def test_no_byte_changes_hands_between_two_records(events: list[model.Event], data: st.DataObject) -> None:
    # Each record's bytes are moved by the same number, so that the whole is as long as it was: what one lacks, the next
    # has too many.
    found = [given_of(event) for event in events]
    whole = b"".join(record.value or b"" for record in found)
    ends = np.cumsum([len(record.value or b"") for record in found]).tolist()
    shifted = [min(max(end + data.draw(st.integers(-2, 2)), 0), len(whole)) for end in ends[:-1]] + [len(whole)]
    shifted.sort()
    cut = [whole[start:end] for start, end in zip([0, *shifted], shifted, strict=False)]
    check(batch_of([replace(record, value=value) for record, value in zip(found, cut, strict=True)]))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=6))
def test_bytes_of_no_meaning_go_one_by_one(bodies: list[bytes]) -> None:
    good = given_of(STEP)
    assert good.value is not None
    batch = batch_of([replace(good, value=good.value[:5] + body) for body in bodies])
    check(batch)


# --- what goes by columns, and what does not ---


def taken(record: Given) -> bool:
    """Whether a record among plain ones goes by columns."""
    _, rest = check(batch_of([given_of(STEP), record, given_of(ACTION)]))
    assert 0 not in rest
    assert 2 not in rest
    return not rest


def step(**changes: Any) -> Given:
    return given_of(msgspec.structs.replace(STEP, **changes))


def action(**changes: Any) -> Given:
    return given_of(msgspec.structs.replace(ACTION, **changes))


def tensor(dtype: str, shape: tuple[int, ...], data: bytes, **more: Any) -> model.Tensor:
    return model.Tensor(name="t", dtype=dtype, shape=shape, data=data, **more)


CAMERA = tensor("uint8", (480, 640, 3), b"", uri="s3://b/k", sha256=bytes(32))


@pytest.mark.parametrize(
    "record",
    [
        step(producer_seq=2**54), step(run_id="中文-1", producer_id="über"), step(episode_id="x" * 200), step(step=0),
        step(sim_time=None, reward=None, success=None, state_digest=None, step_wall_s=None),
        step(observation=(tensor("float32", (3,), bytes(12)), CAMERA, tensor("bool", (), b"\1"))),
        step(observation=(tensor("uint8", (300_000,), bytes(300_000)),)),
        step(metrics=(model.Metric(name='a"%', value=float("nan")), model.Metric(name="b_m", value=-0.0))),
        step(occurred_at=NOW - 10**15, origin="import"), step(occurred_at=NOW + FUTURE_WINDOW_US),
        action(action=tensor("float32", (2, 3), struct.pack("<6f", *range(6)))), action(action=CAMERA),
        action(observed_step=None, inference_s=None), action(action=tensor("int64", (1, 1), struct.pack("<q", -5))),
    ],
)  # fmt: skip
def test_plain_records_go_by_columns(record: Given) -> None:
    assert taken(record)


@pytest.mark.parametrize(
    "record",
    [
        step(attempt=2**31), step(step=2**31), step(producer_seq=2**55), step(occurred_at=NOW - 10**15),
        step(metrics=(model.Metric(name="a", value=1.0), model.Metric(name="a", value=2.0))),
        step(metrics=(model.Metric(name="\0", value=1.0),)), step(observation=(tensor("uint8", (0,), b""),)),
        step(observation=tuple(tensor("uint8", (1,), b"1") for _ in range(65))),
        action(n_steps=2**31), action(action=tensor("uint8", (1, 2**31), b"", uri="u", sha256=bytes(32))),
        action(action=tensor("uint8", (1, 1), b"", uri="u\0", sha256=bytes(32))),
        replace(step(), key=b"another"), replace(step(), key=None), replace(step(), value=None),
        replace(step(), headers=step().headers[:3]), given_of(sample(model.SimReady)),
    ],
)  # fmt: skip
def test_what_is_rare_or_wrong_goes_one_by_one(record: Given) -> None:
    assert not taken(record)


def unguarded(event: model.Event, **changes: Any) -> Given:
    """A record that fits its schema, by a writer that checks nothing else."""
    entry = CODEC.schemas.current(event.TYPE)
    fields = msgspec.to_builtins(event, builtin_types=(bytes,)) | {"producer": event.PRODUCER} | changes
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(without_logical_types(entry.schema)), fields)
    made = given_of(event)
    assert made.value is not None
    return Given(fields["episode_id"].encode(), made.value[:5] + out.getvalue(), made.headers)


def bad_tensor(**changes: Any) -> dict[str, Any]:
    good = {"name": "t", "dtype": "uint8", "shape": [2], "data": b"12", "uri": None, "sha256": None}
    return good | changes


BAD_HEADS: list[dict[str, Any]] = [
    {"attempt": 0}, {"attempt": -1}, {"producer_seq": -1}, {"occurred_at": -1},
    {"occurred_at": -1, "origin": "import"}, {"occurred_at": TIME_LIMIT_US, "origin": "import"}, {"step": None},
    {"step": -1}, {"sim_time": float("nan")}, {"sim_time": float("-inf")}, {"producer": "host"}, {"run_id": ""},
    {"run_id": "a\tb"}, {"run_id": "a\x7f"}, {"run_id": "x" * 201}, {"run_id": "é" * 201}, {"run_id": "\u200b"},
    {"producer_id": ""}, {"episode_id": ""}, {"trace_id": ""}, {"trace_id": "0" * 32}, {"trace_id": "a" * 31},
    {"trace_id": "a" * 33},
    *({"trace_id": "a" * at + odd + "1" * (31 - at)} for at in (0, 13, 31) for odd in "/:@`gAF"),
]  # fmt: skip
BAD_TENSORS = [
    bad_tensor(dtype="float16"), bad_tensor(dtype="uint8\0"), bad_tensor(dtype=""), bad_tensor(dtype="unsigned8"),
    bad_tensor(shape=[3]), bad_tensor(shape=[-2]), bad_tensor(shape=[-1, -2]), bad_tensor(shape=[2] + [1] * 16),
    bad_tensor(shape=[2**62, 2]), bad_tensor(sha256=bytes(32)), bad_tensor(data=b""), bad_tensor(uri="u"),
    bad_tensor(data=b"", uri="u"), bad_tensor(data=b"", uri="u", sha256=bytes(31)),
    bad_tensor(uri="u", sha256=bytes(32)), bad_tensor(shape=[-2], data=b"", uri="u", sha256=bytes(32)),
]  # fmt: skip


@pytest.mark.parametrize(
    "record",
    [
        *(unguarded(STEP, **changes) for changes in BAD_HEADS),
        *(unguarded(ACTION, **changes) for changes in BAD_HEADS),
        *(unguarded(STEP, observation=[bad_tensor(), tensor_]) for tensor_ in BAD_TENSORS),
        *(unguarded(ACTION, action=tensor_) for tensor_ in BAD_TENSORS),
        unguarded(STEP, action_seq=-1), unguarded(STEP, step_wall_s=-0.5), unguarded(STEP, step_wall_s=float("nan")),
        unguarded(STEP, step_wall_s=float("inf")), unguarded(STEP, state_digest=bytes(65)),
        unguarded(ACTION, step=4), unguarded(ACTION, first_step=0, step=None),
        unguarded(ACTION, first_step=-1, step=-1), unguarded(ACTION, n_steps=0),
        unguarded(ACTION, observed_step=-1), unguarded(ACTION, inference_s=-1.0),
        unguarded(ACTION, inference_s=float("nan")),
    ],
)  # fmt: skip
def test_what_the_guards_refuse_goes_one_by_one_and_has_no_row(record: Given) -> None:
    assert one_by_one(batch_of([record]), [0]) == {}
    assert not taken(record)


def test_a_length_below_zero_lets_nothing_be_read_twice() -> None:
    # The name's length is -1: who goes back by it finds that very byte again, as the first of the number.
    good = step(metrics=(model.Metric(name="", value=0.0),))
    number = bytes(8)
    assert good.value is not None
    assert good.value.count(b"\2\0" + number) == 1
    record = replace(good, value=good.value.replace(b"\2\0" + number, b"\2\1" + number[1:]))
    assert one_by_one(batch_of([record]), [0]) == {}
    assert not taken(record)


def test_an_array_in_blocks_goes_one_by_one() -> None:
    # Two blocks of one item each, and one block that also says its size.
    good = step(metrics=(model.Metric(name="ab", value=0.0), model.Metric(name="cd", value=0.0)))
    first, second = b"\4ab" + bytes(8), b"\4cd" + bytes(8)
    assert good.value is not None
    assert good.value.count(b"\4" + first + second + b"\0") == 1
    for blocks in (b"\2" + first + b"\2" + second + b"\0", b"\3\x2c" + first + second + b"\0"):
        record = replace(good, value=good.value.replace(b"\4" + first + second + b"\0", blocks))
        assert len(one_by_one(batch_of([record]), [0])["steps"]) == 1
        assert not taken(record)


BYTES = [*range(9), 32, 48, 57, 58, 96, 97, 102, 103, 126, *range(127, 256, 16)]


def test_every_byte_of_a_record_matters() -> None:
    """Of each type, every cut, and many values of each byte."""
    for event in (msgspec.structs.replace(STEP, metrics=(model.Metric(name="m", value=2.0),)), ACTION):
        good = given_of(event)
        value = good.value
        assert value is not None
        check(batch_of([replace(good, value=value[:size]) for size in range(len(value))]))
        for at in range(len(value)):
            check(batch_of([replace(good, value=value[:at] + bytes([byte]) + value[at + 1 :]) for byte in BYTES]))


def test_repeats_keep_the_first_of_each_key() -> None:
    other = step(reward=7.0)
    found = [step(), other, step(producer_seq=9), step(), step(producer_id="sim-2"), step(producer_seq=9, reward=5.0)]
    columns, rest = check(batch_of(found))
    assert rest == []
    assert [len(rows) for rows in columns] == [3]


def test_keys_with_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.projections.writing.columns.batch.texts.mixed", lambda found, _: np.zeros_like(found))
    keys = [
        ("ep-1", 1, 0, "sim-1", 0),
        ("ep-1", 1, 0, "sim-1", 0),
        ("ep-2", 1, 0, "sim-1", 0),
        ("ep-1", 2, 0, "sim-1", 0),
    ]
    keys += [
        ("ep-1", 1, 1, "sim-1", 0),
        ("ep-1", 1, 0, "sim-2", 0),
        ("ep-1", 1, 0, "sim-1", 1),
        ("ep-1", 2, 0, "sim-1", 0),
    ]
    (columns,), _ = check(batch_of([
        step(episode_id=episode, attempt=attempt, producer_seq=seq, producer_id=producer, occurred_at=NOW + late)
        for episode, attempt, seq, producer, late in keys
    ]))  # fmt: skip
    assert len(columns) == len(set(keys))


def test_few_records_and_other_topics_go_one_by_one() -> None:
    reader = ColumnReader(CODEC.schemas, least=3)
    assert reader.read(batch_of([step(), step(step=4)])) == ([], [0, 1])
    columns, rest = check(batch_of([step(), action(), step(step=4), step(step=5)]), reader)
    assert ([rows.kind for rows in columns], rest) == (["steps"], [1])
    assert READER.read(batch_of([step()], POLICY_EVENTS)) == ([], [0])
    assert READER.read(batch_of([])) == ([], [])


def test_too_large_a_record_is_left_to_its_refusal() -> None:
    count = MAX_EVENT_BYTES - 10
    record = unguarded(STEP, observation=[bad_tensor(shape=[count], data=bytes(count))])
    assert one_by_one(batch_of([record]), [0]) == {}
    assert not taken(record)


def test_a_defect_costs_time_and_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise IndexError("a defect")

    monkeypatch.setattr("stepwell.projections.writing.columns.batch.guards.heads_pass", fail)
    assert READER.read(batch_of([step(), action()])) == ([], [0, 1])


# --- rollups ---


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 2), st.integers(0, 3), st.one_of(st.none(), st.floats(0, 2e9))),
        min_size=1,
        max_size=30,
    )
)
def test_steps_are_counted_by_minute_attempt_and_bucket(rows: list[tuple[int, int, int, float | None]]) -> None:
    bounds = np.array([1, 10, 100, 10**6])
    found = [
        step(episode_id=f"ep-{episode}", attempt=attempt, occurred_at=NOW + minute * 30_000_000, step_wall_s=wall,
             producer_seq=number)
        for number, (episode, attempt, minute, wall) in enumerate(rows)
    ]  # fmt: skip
    (columns,), rest = check(batch_of(found))
    assert rest == []
    steps_, wall = Counter[tuple[Any, ...]](), Counter[tuple[Any, ...]]()
    for episode, attempt, minute, seconds in rows:
        told = seconds is not None and seconds < 1e9
        us = round(seconds * 1e6) if seconds is not None and told else 0
        bucket = sum(us >= bound for bound in bounds.tolist()) if told else NO_BUCKET
        key = ((NOW + minute * 30_000_000) // 60_000_000 * 60_000_000, f"ep-{episode}", attempt, bucket)
        steps_[key] += 1
        wall[key] += us
    made = step_deltas(columns, bounds)
    keys = list(zip(made.minutes, made.episode_ids, made.attempts, made.wall_buckets, strict=True))
    assert len(set(keys)) == len(keys)
    assert dict(zip(keys, made.steps, strict=True)) == steps_
    assert dict(zip(keys, made.wall_us, strict=True)) == wall
