"""What a record becomes in the tables, without a database."""

import json
import math
import struct
from typing import Any

import msgspec
import pytest

from stepwell.events import model
from stepwell.events.codec import Codec
from stepwell.events.routing import topic_of
from stepwell.events.topics import (
    BY_NAME,
    DEAD_LETTERS,
    EPISODE_COMMANDS,
    EPISODE_EVENTS,
    POLICY_EVENTS,
    POLICY_SNAPSHOTS,
)
from stepwell.projections.sums.standing import EARLIEST_US
from stepwell.projections.tables import KINDS, reduce_rows
from stepwell.projections.writing.copy_format import encode_rows
from stepwell.projections.writing.rows import PROJECTED_TOPICS, Source, rows_of
from tests.unit.events.records import CLASSES, sample

CODEC = Codec()

# Kinds of records that no table holds, each with the reason.
IN_NO_TABLE = {
    "agent::started", "sim::ready", "episode::ended", "episode::failed", "episode::aborted", "episode::paused",
    "episode::resumed", "episode::checkpoint_saved", "episode::intervened",  # told by snapshots and verdicts
    "episode::stalled", "episode::timed_out", "episode::sealed",  # likewise
    "operator::commanded",  # what came of it is a fact of its own
    "engine::position_saved", "engine::policy_snapshot",  # the workers' own book-keeping
    "detector::ticked",  # what it brought about is a record of its own
}  # fmt: skip


def named(row: Any) -> dict[str, Any]:
    return dict(zip(KINDS[row.kind].columns, row.values, strict=True))


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.TYPE)
def test_every_record_has_its_rows_or_is_known_to_have_none(cls: Any) -> None:
    record = sample(cls)
    source = Source(topic_of(record), 1, 2, 3)
    rows = rows_of(record, source)
    assert bool(rows) == (cls.TYPE not in IN_NO_TABLE)
    for row in rows:
        kind = KINDS[row.kind]
        assert len(row.values) == len(kind.columns)
        assert None not in [row.values[position] for position in kind.key]
        encode_rows(kind.types, [row.values])


def test_a_record_on_a_wrong_topic_has_no_rows() -> None:
    assert rows_of(sample(model.StepDone), Source(POLICY_EVENTS, 0, 0, 0)) == ()


def test_copies_of_a_rule_set_have_no_rows() -> None:
    for topic in (EPISODE_EVENTS, POLICY_EVENTS):
        assert rows_of(sample(model.RulesActivated), Source(topic, 0, 0, 0)) == ()


def test_all_topics_but_commands_and_the_detector_s_snapshots_are_projected() -> None:
    assert set(PROJECTED_TOPICS) == set(BY_NAME) - {EPISODE_COMMANDS, POLICY_SNAPSHOTS}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", None),
        ('{"scene":{"name":"table","n":1.5}}', {"scene": {"name": "table", "n": 1.5}}),
        ("[1, 2]", [1, 2]),
        ("null", None),
        ("not JSON", "not JSON"),
        ("{", "{"),
        ("[NaN]", "[NaN]"),
        ("[1e999]", "[1e999]"),
        ('{"a":"\\u0000b"}', {"a": "\\x00b"}),
        ("[" * 100 + "]" * 100, json.loads("[" * 100 + "]" * 100)),
        ("[" * 101 + "]" * 101, "[" * 101 + "]" * 101),
        ('{"a":' * 90_000 + "1" + "}" * 90_000, '{"a":' * 90_000 + "1" + "}" * 90_000),
    ],
)
def test_json_from_elsewhere_is_kept_whatever_it_is(text: str, wanted: Any) -> None:
    event = msgspec.structs.replace(sample(model.EpisodeRequested), definition_json=text)
    found = named(rows_of(event, Source(topic_of(event), 0, 0, 0))[1])["definition"]
    assert (found is None) == (text == "")
    assert found is None or json.loads(found) == wanted


@pytest.mark.parametrize(
    ("dtype", "packed", "wanted"),
    [
        ("float32", struct.pack("<2f", 0.5, -math.inf), [0.5, -math.inf]),
        ("float64", struct.pack("<2d", 1e300, 0.1), [1e300, 0.1]),
        ("int32", struct.pack("<2i", -1, 2**31 - 1), [-1, 2**31 - 1]),
        ("int64", struct.pack("<2q", -1, 2**53), [-1, 2**53]),
        ("uint8", bytes([0, 255]), [0, 255]),
        ("bool", bytes([1, 0]), [1, 0]),
    ],
)
def test_actions_of_every_dtype(dtype: str, packed: bytes, wanted: list[float]) -> None:
    tensor = model.Tensor(name="action", dtype=dtype, shape=(1, 2), data=packed)
    event = model.ActionSent(**{**fields(sample(model.ActionSent)), "action": tensor})
    assert named(rows_of(event, Source(topic_of(event), 0, 0, 0))[0])["action"] == wanted


def test_an_action_kept_elsewhere_is_a_reference() -> None:
    tensor = model.Tensor(name="action", dtype="float32", shape=(9, 9), data=b"", uri="s3://b/k", sha256=bytes(32))
    event = model.ActionSent(**{**fields(sample(model.ActionSent)), "action": tensor})
    row = named(rows_of(event, Source(topic_of(event), 0, 0, 0))[0])
    assert (row["action"], row["action_uri"]) == (None, "s3://b/k")


def test_metrics_keep_what_json_cannot_say() -> None:
    metrics = tuple(model.Metric(name=str(n), value=v) for n, v in enumerate((0.1, math.nan, math.inf, -math.inf)))
    event = model.StepDone(**{**fields(sample(model.StepDone)), "metrics": metrics})
    row = named(rows_of(event, Source(topic_of(event), 0, 0, 0))[0])
    assert json.loads(row["metrics"]) == {"0": 0.1, "1": "nan", "2": "inf", "3": "-inf"}


def test_dead_letters_take_anything() -> None:
    letter = model.DeadLetter(
        kind="violation", reason="\0", detail="\0", source_topic="t", source_partition=0, source_offset=0,
        source_timestamp=-5, source_key=None, source_value=None,
        source_headers=(model.HeaderField(name="\0", value=None),), attempt=-1, reported_by="\0",
    )  # fmt: skip
    (row,) = rows_of(letter, Source(DEAD_LETTERS, 0, 0, 0))
    assert "\0" not in repr(row.values)
    assert (named(row)["logged_at"], named(row)["attempt"]) == (EARLIEST_US, None)


def test_rows_of_one_key_meet() -> None:
    facts, status, runs, steps = (KINDS[name] for name in ("attempt_facts", "attempt_status", "runs", "episodes"))
    none = (None,) * 3
    requested, claimed = ("e", 1, "r", 10, None, None, *none), ("e", 1, "r", *none, 20, "lab", 5)
    second = ("e", 1, "r", *none, 30, "other", 6)
    assert reduce_rows(facts, [requested, claimed, second]) == [("e", 1, "r", 10, None, None, 20, "lab", 5)]
    old, new, far = (("e", 1, *[value] * 12, value[0] == "f", "hash") for value in ("old", "new", "far"))
    assert reduce_rows(status, [old, new]) == [new]
    assert reduce_rows(status, [far, new]) == [far]
    assert reduce_rows(runs, [("r", "ada", 7), ("r", "bob", 5), ("r", "eve", 6)]) == [("r", "bob", 5)]
    assert reduce_rows(runs, [("r", "eve", 5), ("r", "bob", 5)]) == [("r", "bob", 5)]
    again = ("e", 1, "r", 11, "lost host", "s3://c", *none)
    assert reduce_rows(facts, [requested, again]) == [requested], "a later request lends the first one nothing"
    assert reduce_rows(steps, [("e", 1), ("f", 2), ("e", 3)]) == [("e", 1), ("f", 2)]


def test_numbers_that_do_not_fit_are_refused_before_they_are_sent() -> None:
    with pytest.raises(struct.error):
        encode_rows(["int"], [(2**31,)])
    with pytest.raises(struct.error):
        encode_rows(["time"], [(-(2**63),)])
    with pytest.raises(UnicodeEncodeError):
        encode_rows(["text"], [("\ud800",)])


@pytest.mark.parametrize("bad", ["a\0b", "a\ud800b"])
@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.TYPE)
def test_no_text_of_a_record_stands_against_its_rows(cls: Any, bad: str) -> None:
    """Every text anywhere in a record replaced by one that PostgreSQL has no form for."""
    record = poisoned(sample(cls), bad)
    for row in rows_of(record, Source(topic_of(record), 1, 2, 3)):
        kind = KINDS[row.kind]
        encoded = encode_rows(kind.types, [row.values])
        assert b"a\\u0000b" not in encoded
        for type_, value in zip(kind.types, row.values, strict=True):
            if type_ in ("text", "texts", "json") and value is not None:
                assert "\0" not in str(value)
                if type_ == "json":
                    assert bad not in repr(json.loads(value))
    letters = rows_of(record, Source(topic_of(record), 1, 2, 3))
    assert "a\0b" not in repr(letters)


def test_what_looks_like_a_nul_is_left_alone() -> None:
    texts = (r"a\x00b", r"a\u0000b", "ümläut", "\U0001f600")
    metrics = tuple(model.Metric(name=text, value=1.0) for text in texts)
    event = model.StepDone(**{**fields(sample(model.StepDone)), "metrics": metrics})
    assert list(json.loads(named(rows_of(event, Source(topic_of(event), 0, 0, 0))[0])["metrics"])) == list(texts)


def poisoned(value: Any, bad: str) -> Any:
    if isinstance(value, str):
        return bad
    if isinstance(value, tuple):
        return tuple(poisoned(member, bad) for member in value)
    if isinstance(value, model.Tensor):
        return value  # its texts are judged by the codec, and steer how it is unpacked
    if isinstance(value, msgspec.Struct):
        changes = {name: poisoned(getattr(value, name), bad) for name in value.__struct_fields__}
        return msgspec.structs.replace(value, **changes)
    return value


def fields(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in type(record).__struct_fields__}
