"""Series, points and spans as rows, without a database."""

import json
import math
from typing import Any

import msgspec
import pytest

from stepwell.events import model
from stepwell.events.codec import Codec
from stepwell.events.model import Attribute, Series
from stepwell.events.topics import TELEMETRY
from stepwell.projections.tables import KINDS
from stepwell.projections.writing.rows import Source, rows_of
from stepwell.projections.writing.rows_telemetry import series_id_of
from tests.unit.events.records import sample
from tests.unit.events.test_golden import golden

TEXTS = ("metric", "unit", "kind", "temporality")
AT = Source(TELEMETRY, 3, 17, 1_795_000_000_000_000)
ATTRIBUTES = (Attribute(name="arm", value="left"), Attribute(name="joint", value="elbow"))
SERIES = Series(metric="torque", unit="N.m", attributes=ATTRIBUTES)
SENDER: dict[str, Any] = {
    "worker_id": "robot-1", "host": "lab-3", "resource": (Attribute(name="model", value="ur5"),), "scope": "driver 1.2",
}  # fmt: skip


def rows(record: Any, kind: str) -> list[dict[str, Any]]:
    return [dict(zip(KINDS[kind].columns, row.values, strict=True)) for row in rows_of(record, AT) if row.kind == kind]


def sampled(**more: Any) -> model.TelemetrySampled:
    fields: dict[str, Any] = {
        **SENDER, "sampled_at": 1, "sample_seq": 0, "series": (SERIES,), "point_series": (0, 0),
        "point_start_at": (5, 6), "point_at": (5, 6), "point_value": (1.5, math.nan),
    }  # fmt: skip
    return model.TelemetrySampled(**{**fields, **more})


def test_the_number_of_a_series_never_changes() -> None:
    """Tables that were filled by an earlier version hold it."""
    assert series_id_of(**SENDER, series=SERIES) == -1191160364876822277


@pytest.mark.parametrize(
    "changed",
    [
        {"worker_id": "robot-2"}, {"host": "lab-4"}, {"resource": ()}, {"scope": ""},
        *({"series": msgspec.structs.replace(SERIES, **{name: "x"})} for name in TEXTS),
        {"series": msgspec.structs.replace(SERIES, attributes=ATTRIBUTES[:1])},
    ],
    ids=str,
)  # fmt: skip
def test_all_that_a_series_says_of_itself_counts(changed: dict[str, Any]) -> None:
    assert series_id_of(**{**SENDER, "series": SERIES, **changed}) != series_id_of(**SENDER, series=SERIES)


def test_neither_episode_nor_the_order_of_attributes_makes_another_series() -> None:
    turned = msgspec.structs.replace(SERIES, attributes=ATTRIBUTES[::-1])
    assert series_id_of(**SENDER, series=turned) == series_id_of(**SENDER, series=SERIES)
    (plain,) = rows(sampled(), "telemetry_series")
    (of_episode,) = rows(sampled(episode_id="e-1", attempt=2), "telemetry_series")
    assert plain == of_episode
    assert plain["series_id"] == series_id_of(**SENDER, series=SERIES)
    assert json.loads(plain["attributes"]) == {"arm": "left", "joint": "elbow"}


def test_points_stand_in_rows_of_their_own() -> None:
    first, second = rows(sampled(episode_id="e-1", attempt=2), "telemetry_points")
    assert (first["sampled_at"], first["started_at"], first["value"], first["distribution"]) == (5, 5, 1.5, None)
    assert math.isnan(second["value"])
    assert (first["episode_id"], first["attempt"]) == ("e-1", 2)
    assert (first["logged_at"], first["source_partition"], first["source_offset"]) == (AT.timestamp, 3, 17)
    (nobodys, _) = rows(sampled(), "telemetry_points")
    assert (nobodys["episode_id"], nobodys["attempt"]) == ("", 0)


def test_a_distribution_is_json_whatever_numbers_are_in_it() -> None:
    spread = model.Distribution(point=1, count=3, min=-math.inf, max=None, bounds=(0.5,), counts=(1, 2))
    first, second = rows(sampled(distributions=(spread,)), "telemetry_points")
    assert first["distribution"] is None
    assert json.loads(second["distribution"]) == {
        "count": 3, "min": "-inf", "max": None, "bounds": [0.5], "counts": [1, 2],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "temporality", "count", "measurements"),
    [
        ("gauge", "none", None, 1), ("counter", "delta", None, 1), ("counter", "cumulative", None, None),
        ("up_down_counter", "delta", None, 1), ("up_down_counter", "cumulative", None, 1),
        ("histogram", "delta", 7, 7), ("histogram", "delta", 0, 0), ("histogram", "delta", None, None),
        ("histogram", "delta", -1, None), ("histogram", "delta", 2**63 - 1, None), ("histogram", "cumulative", 7, None),
    ],
)  # fmt: skip
def test_a_point_says_how_many_measurements_may_be_added_up(
    kind: str, temporality: str, count: int | None, measurements: int | None
) -> None:
    series = msgspec.structs.replace(SERIES, kind=kind, temporality=temporality)
    spreads = () if count is None else (model.Distribution(point=1, count=count),)
    _, point = rows(sampled(series=(series,), distributions=spreads), "telemetry_points")
    assert point["measurements"] == measurements


def test_what_a_database_cannot_hold_is_written_out() -> None:
    series = msgspec.structs.replace(SERIES, metric="a\0b", attributes=(Attribute(name="n\0", value="\0"),))
    (row,) = rows(sampled(series=(series,)), "telemetry_series")
    assert (row["metric"], json.loads(row["attributes"])) == ("a\\x00b", {"n\\x00": "\\x00"})


def test_points_of_version_1_have_the_same_rows() -> None:
    value, headers, kept = golden("telemetry.sampled.v1.full")
    record = Codec().decode(value, headers)
    (series,) = rows(record, "telemetry_series")
    (point,) = rows(record, "telemetry_points")
    assert (series["metric"], series["kind"]) == (kept["points"][0]["metric"], "gauge")
    assert (point["value"], point["sampled_at"]) == (kept["points"][0]["value"], kept["sampled_at"])


def test_spans_keep_events_and_links() -> None:
    (row,) = rows(sample(model.SpansEnded), "spans")
    span = sample(model.Span)
    assert (row["trace_id"], row["parent_span_id"]) == (span.trace_id, span.parent_span_id)
    assert (row["started_at"], row["ended_at"]) == (span.start_at, span.end_at)
    (event,) = json.loads(row["events"])
    assert event == {"name": span.events[0].name, "at_us": span.events[0].event_at, "attributes": {"name ä": "value ä"}}
    assert json.loads(row["links"])[0]["span_id"] == span.links[0].span_id
