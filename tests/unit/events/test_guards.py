"""What a record must satisfy beyond its schema."""

import math
import struct
from typing import Any

import msgspec
import pytest

from stepwell.events import model
from stepwell.events.codec import Codec
from stepwell.events.guards import (
    FUTURE_WINDOW_US,
    MAX_AXES,
    MAX_ID_CHARACTERS,
    PAST_WINDOW_US,
    TIME_LIMIT_US,
    RefusalError,
    check_record,
    check_sample_times,
    check_tensor,
    check_time,
)
from stepwell.events.model import ActionSent, Metric, StepDone, Tensor
from stepwell.exceptions import DecodeError, EncodeError
from tests.unit.events.records import CLASSES, sample

NAN, INF = math.nan, math.inf


def refused(cls: type[Any], **changed: Any) -> str:
    with pytest.raises(RefusalError) as caught:
        check_record(msgspec.structs.replace(sample(cls), **changed))
    assert str(caught.value)
    return caught.value.reason


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.TYPE)
@pytest.mark.parametrize("full", [True, False])
def test_samples_pass(cls: type[Any], full: bool) -> None:
    check_record(sample(cls, full=full))


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("attempt", 0, "range"),
        ("attempt", -1, "range"),
        ("producer_seq", -1, "range"),
        ("occurred_at", -1, "range"),
        ("step", -1, "range"),
        ("sim_time", NAN, "not-finite"),
        ("sim_time", INF, "not-finite"),
        ("sim_time", -INF, "not-finite"),
        ("trace_id", "", "trace-id"),
        ("trace_id", "A" * 32, "trace-id"),
        ("trace_id", "0" * 32, "trace-id"),
        ("trace_id", "g" * 32, "trace-id"),
        ("trace_id", "a" * 33, "trace-id"),
        ("run_id", "", "id"),
        ("episode_id", "", "id"),
        ("producer_id", "", "id"),
        ("run_id", "a\x00b", "id"),
        ("episode_id", "a\nb", "id"),
        ("producer_id", "a\x1b[31m", "id"),
        ("producer_id", "a\u202eb", "id"),
        ("episode_id", "a" * (MAX_ID_CHARACTERS + 1), "id"),
    ],
)
def test_head(field: str, value: Any, reason: str) -> None:
    assert refused(StepDone, **{field: value}) == reason


def test_ids_may_be_long_and_in_any_script() -> None:
    check_record(msgspec.structs.replace(sample(StepDone), episode_id="ü" * MAX_ID_CHARACTERS, run_id="夜 run/1"))


def test_events_about_no_episode_need_no_episode() -> None:
    for cls in (model.RetrainAnswered, model.PatternDetected, model.RetrainRequested, model.RetrainWithdrawn):
        check_record(msgspec.structs.replace(sample(cls), episode_id="", run_id=""))
        assert refused(cls, producer_id="") == "id"
        assert refused(cls, run_id="a\x00") == "id"
    assert refused(model.CommandIssued, episode_id="") == "id"


@pytest.mark.parametrize(
    ("cls", "field", "value", "reason"),
    [
        (model.EpisodeRequested, "repetition", -1, "range"),
        (model.RetryRequested, "max_steps", 0, "range"),
        (model.EpisodeRequested, "policy", "", "id"),
        (model.SimReady, "first_step", -1, "range"),
        (model.SimReady, "step_duration_s", NAN, "not-finite"),
        (model.SimReady, "step_duration_s", -0.1, "range"),
        (model.SimReady, "state_digest", bytes(65), "digest"),
        (ActionSent, "first_step", -1, "range"),
        (ActionSent, "n_steps", 0, "range"),
        (ActionSent, "observed_step", -1, "range"),
        (ActionSent, "inference_s", INF, "not-finite"),
        (ActionSent, "step", None, "step"),
        (ActionSent, "step", 4, "step"),
        (StepDone, "step", None, "step"),
        (StepDone, "action_seq", -1, "range"),
        (StepDone, "step_wall_s", NAN, "not-finite"),
        (StepDone, "state_digest", bytes(65), "digest"),
        (model.EpisodeEnded, "n_steps", -1, "range"),
        (model.EpisodeFailed, "last_sim_seq", -2, "range"),
        (model.EpisodeAborted, "last_agent_seq", -2, "range"),
        (model.CheckpointSaved, "size_bytes", -1, "range"),
        (model.CheckpointSaved, "sha256", b"short", "digest"),
        (model.EpisodeStalled, "owed_seq", -1, "range"),
        (model.EpisodeTimedOut, "flips", -1, "range"),
        (model.EpisodeTimedOut, "idle_s", NAN, "not-finite"),
        (model.VerdictIssued, "revision", -1, "range"),
        (model.VerdictIssued, "policy", "a\x00", "id"),
        (model.VerdictIssued, "label_steps", (-2,), "range"),
        (model.VerdictIssued, "label_steps", (0, 1), "range"),
        (model.VerdictExpected, "policy", "", "id"),
        (model.VerdictExpected, "episode_id", "", "id"),
        (model.VerdictExpected, "requested_at", TIME_LIMIT_US, "range"),
        (model.EpisodeRequested, "purpose", "", "id"),
        (model.RetryRequested, "purpose", "p" * 101, "id"),
        (model.VerdictExpected, "purpose", "", "id"),
        (model.VerdictExpected, "purpose", "p" * 101, "id"),
        (model.VerdictIssued, "purpose", "", "id"),
        (model.VerdictIssued, "purpose", "p" * 101, "id"),
        (model.RulesActivated, "rule_set", "", "id"),
        (model.RulesActivated, "version", 0, "range"),
        (model.RulesActivated, "sha256", bytes(32), "digest"),
        (model.RulesActivated, "rules_json", "{}", "digest"),
        (model.DetectorTicked, "now", -1, "range"),
        (model.DetectorTicked, "now", TIME_LIMIT_US, "range"),
        (model.RetrainExpired, "trigger_id", "", "id"),
        (model.RetrainAcknowledged, "policy", "", "id"),
        (model.RetrainMuted, "policy", "", "id"),
        (model.RetrainMuted, "rule", "", "id"),
        (model.RetrainMuted, "until", -1, "range"),
        (model.RetrainUnmuted, "rule", "a\n", "id"),
        (model.PolicySnapshot, "partition", -1, "range"),
        (model.PolicySnapshot, "last_offset", -1, "range"),
        (model.PatternDetected, "trigger_id", "", "id"),
        (model.RetrainWithdrawn, "policy", "", "id"),
        (model.CommandIssued, "command_id", "", "id"),
        (model.SnapshotTaken, "episode_id", "", "id"),
        (model.SnapshotTaken, "attempt", 0, "range"),
        (model.PositionSaved, "rewind_offset", -1, "range"),
        (model.TelemetrySampled, "worker_id", "", "id"),
        (model.TelemetrySampled, "sample_seq", -1, "range"),
        (model.WorkerReported, "worker_id", "", "id"),
        (model.WorkerReported, "kind", "a\nb", "id"),
        (model.WorkerReported, "report_seq", -1, "range"),
        (model.WorkerReported, "reported_at", -1, "range"),
        (model.TelemetrySampled, "episode_id", "", "id"),
        (model.TelemetrySampled, "attempt", 0, "range"),
        (model.TelemetrySampled, "point_at", (), "columns"),
        (model.TelemetrySampled, "point_value", (1.0, 2.0), "columns"),
        (model.TelemetrySampled, "point_series", (1,), "range"),
        (model.TelemetrySampled, "point_series", (-1,), "range"),
        (model.TelemetrySampled, "distributions", (model.Distribution(point=1, count=0),), "range"),
        (
            model.TelemetrySampled,
            "distributions",
            (model.Distribution(point=0, count=1, bounds=(1.0,), counts=(1,)),),
            "columns",
        ),
        (model.SpansEnded, "worker_id", "a\n", "id"),
        (model.SpansEnded, "spans", (msgspec.structs.replace(sample(model.Span), trace_id="0" * 32),), "trace-id"),
        (model.SpansEnded, "spans", (msgspec.structs.replace(sample(model.Span), span_id="ABCD" * 4),), "trace-id"),
        (model.SpansEnded, "spans", (msgspec.structs.replace(sample(model.Span), parent_span_id=""),), "trace-id"),
    ],
)
def test_control_fields(cls: type[Any], field: str, value: Any, reason: str) -> None:
    assert refused(cls, **{field: value}) == reason


def test_a_histogram_may_come_without_buckets_and_a_point_with_nan() -> None:
    bare = (model.Distribution(point=0, count=1),)
    check_record(msgspec.structs.replace(sample(model.TelemetrySampled), distributions=bare, point_value=(NAN,)))


@pytest.mark.parametrize(
    ("age_us", "fits"),
    [(0, True), (PAST_WINDOW_US, True), (PAST_WINDOW_US + 1, False), (-FUTURE_WINDOW_US - 1, False)],
)
def test_points_and_spans_lie_near_the_brokers_time(age_us: int, fits: bool) -> None:
    at = 1_795_000_000_000_000
    span = msgspec.structs.replace(sample(model.Span), end_at=at)
    points = {"point_series": (0, 0), "point_start_at": (0, 0), "point_at": (at + 1, at), "point_value": (1.0, 2.0)}
    for record in (
        msgspec.structs.replace(sample(model.TelemetrySampled), **points),
        msgspec.structs.replace(sample(model.SpansEnded), spans=(span,)),
    ):
        if fits:
            check_sample_times(record, at + age_us)
        else:
            with pytest.raises(DecodeError) as caught:
                check_sample_times(record, at + age_us)
            assert caught.value.reason == "timestamp"
    check_sample_times(msgspec.structs.replace(sample(model.SpansEnded), spans=()), at)


def test_weights_are_finite() -> None:
    weight = model.SamplingWeight(scene="s", perturbation="none", weight=NAN)
    assert refused(model.RetrainRequested, sampling_weights=(weight,)) == "not-finite"


def test_nothing_known_is_a_legal_end() -> None:
    ended = sample(model.EpisodeEnded)
    check_record(msgspec.structs.replace(ended, n_steps=None, last_sim_seq=-1, last_agent_seq=None))


def test_nan_and_infinity_are_facts_elsewhere() -> None:
    nan = Tensor(name="action", dtype="float64", shape=(2,), data=struct.pack("<2d", NAN, INF))
    check_record(msgspec.structs.replace(sample(ActionSent), action=nan))
    step = msgspec.structs.replace(
        sample(StepDone), observation=(nan,), reward=-INF, metrics=(Metric(name="m", value=NAN),)
    )
    check_record(step)
    check_record(msgspec.structs.replace(sample(model.VerdictIssued), total_reward=NAN))


def test_people_may_write_anything_in_messages() -> None:
    check_record(msgspec.structs.replace(sample(model.EpisodeFailed), message="line\nnext\x00\x1b[31m"))


# --- tensors ------------------------------------------------------------------------------------------------------

GOOD = Tensor(name="x", dtype="float32", shape=(2, 3), data=bytes(24))
REFERENCE = Tensor(name="x", dtype="uint8", shape=(480, 640, 3), data=b"", uri="s3://frames/1", sha256=bytes(32))


@pytest.mark.parametrize(
    "tensor",
    [
        GOOD,
        REFERENCE,
        Tensor(name="scalar", dtype="int64", shape=(), data=bytes(8)),
        Tensor(name="empty", dtype="float64", shape=(0,), data=b""),
        Tensor(name="empty", dtype="float64", shape=(3, 0), data=b""),
        Tensor(name="flag", dtype="bool", shape=(1,), data=b"\x01"),
    ],
)
def test_tensors_that_fit(tensor: Tensor) -> None:
    check_tensor(tensor, "x")


@pytest.mark.parametrize(
    ("good", "changed"),
    [
        (GOOD, {"dtype": "float16"}),
        (GOOD, {"dtype": "object"}),
        (GOOD, {"shape": (2, 2)}),
        (GOOD, {"shape": (-2, -3)}),
        (GOOD, {"shape": (1,) * (MAX_AXES + 1)}),
        (GOOD, {"shape": ()}),
        (GOOD, {"data": b""}),
        (GOOD, {"sha256": bytes(32)}),
        (GOOD, {"shape": (2**60, 0), "data": b""}),
        (GOOD, {"shape": (2**20, 2**20, 0), "data": b""}),
        (REFERENCE, {"sha256": None}),
        (REFERENCE, {"sha256": bytes(31)}),
        (REFERENCE, {"data": b"x"}),
        (REFERENCE, {"shape": (-1,)}),
    ],
)
def test_tensors_that_do_not_fit(good: Tensor, changed: dict[str, Any]) -> None:
    with pytest.raises(RefusalError, match=r"^here: ") as caught:
        check_tensor(msgspec.structs.replace(good, **changed), "here")
    assert caught.value.reason == "tensor"


def test_tensors_are_judged_within_their_events() -> None:
    bad = msgspec.structs.replace(GOOD, data=b"")
    assert refused(StepDone, observation=(GOOD, bad)) == "tensor"
    assert refused(model.SimReady, observation=(bad,)) == "tensor"
    assert refused(ActionSent, action=bad) == "tensor"


# --- the window of time -------------------------------------------------------------------------------------------

NOW_US = 1_795_000_000_000_000


@pytest.mark.parametrize("at", [NOW_US, NOW_US - PAST_WINDOW_US, NOW_US + FUTURE_WINDOW_US])
def test_time_within_the_window(at: int) -> None:
    check_time(msgspec.structs.replace(sample(StepDone), occurred_at=at), NOW_US)


@pytest.mark.parametrize(
    "at", [0, 32_472_144_000_000_000, 2**61, NOW_US - PAST_WINDOW_US - 1, NOW_US + FUTURE_WINDOW_US + 1]
)
def test_time_beyond_the_window(at: int) -> None:
    event = msgspec.structs.replace(sample(StepDone), occurred_at=at)
    with pytest.raises(DecodeError, match="broker") as caught:
        check_time(event, NOW_US)
    assert caught.value.reason == "timestamp"
    # Recordings may be of any age; and the record's own broker time counts, whenever it is judged.
    check_time(msgspec.structs.replace(event, origin="import"), NOW_US)
    check_time(event, at)


@pytest.mark.parametrize("occurred_at", [TIME_LIMIT_US, 2**61, 2**63 - 1])
def test_a_time_beyond_the_calendar_is_refused_on_both_sides(occurred_at: int) -> None:
    beyond = msgspec.structs.replace(sample(model.StepDone), occurred_at=occurred_at)
    with pytest.raises(EncodeError, match="the year must be 9999 at most") as caught:
        Codec().encode(beyond)
    assert caught.value.reason == "range"
    last = msgspec.structs.replace(beyond, occurred_at=TIME_LIMIT_US - 1)
    assert Codec().decode(*Codec().encode(last)) == last
