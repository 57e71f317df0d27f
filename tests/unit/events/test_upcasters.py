"""Old versions read as the current one."""

import pytest

from stepwell.events.codec import Codec
from stepwell.events.model import EpisodeFailed, Series, TelemetrySampled
from stepwell.events.schemas import packaged_schemas
from stepwell.events.taxonomy import FAILURE_TYPES
from stepwell.events.upcasters import UPCASTERS, upcast, upcast_episode_failed_v1_v2
from stepwell.exceptions import DecodeError
from tests.unit.events.test_golden import golden


@pytest.mark.parametrize(
    ("failure_type", "component"),
    [
        ("sim_exited", "sim"),
        ("sim_diverged", "sim"),
        ("agent_killed", "agent"),
        ("invalid_action", "agent"),
        ("host_lost", "host"),
        ("start_failed", "host"),
        ("of a later version", "host"),
    ],
)
def test_episode_failed_v1_v2(failure_type: str, component: str) -> None:
    fields = {"failure_type": failure_type, "message": "m"}
    assert upcast_episode_failed_v1_v2(fields) == {**fields, "component": component}
    assert "component" not in fields


def test_every_failure_type_has_a_component() -> None:
    for failure_type in FAILURE_TYPES:
        made = upcast_episode_failed_v1_v2({"failure_type": failure_type})["component"]
        assert made in ("sim", "agent", "host")


def test_table_holds_one_step_for_each_old_version() -> None:
    old = {(version.entry.type, version.version) for version in packaged_schemas().versions if not version.latest}
    assert set(UPCASTERS) == old


def test_steps_are_chained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(UPCASTERS, ("t", 1), lambda fields: {**fields, "b": fields["a"] + 1})
    monkeypatch.setitem(UPCASTERS, ("t", 2), lambda fields: {**fields, "c": fields["b"] + 1})
    assert upcast("t", 1, 3, {"a": 1}) == {"a": 1, "b": 2, "c": 3}
    assert upcast("t", 2, 3, {"a": 1, "b": 7}) == {"a": 1, "b": 7, "c": 8}
    assert upcast("t", 3, 3, {"a": 1}) == {"a": 1}


def test_recorded_version_1_decodes_and_is_written_as_version_2() -> None:
    codec = Codec()
    value, headers, _ = golden("episode.failed.v1.full")
    record = codec.decode(value, headers)
    assert isinstance(record, EpisodeFailed)
    assert (record.failure_type, record.component) == ("sim_exited", "sim")
    again, new_headers = codec.encode(record)
    assert again[:5] != value[:5]
    assert codec.decode(again, new_headers) == record


@pytest.mark.parametrize(
    ("name", "added"),
    [
        ("episode.requested.v1.full", {"definition_json": "", "purpose": "evaluation"}),
        ("episode.retry_requested.v1.full", {"definition_json": "", "purpose": "evaluation"}),
        ("verdict.issued.v1.full", {"label_steps": (), "purpose": "evaluation"}),
        ("failure.pattern_detected.v1.full", {"detail": ""}),
        (
            "retrain.requested.v1.full",
            {"detail": "", "hard_negatives": (), "weights_formula": "", "regression_spec_json": ""},
        ),
        ("engine.position_saved.v1.full", {"rules_json": ""}),
    ],
)
def test_what_version_2_added_is_empty_in_version_1(name: str, added: dict[str, object]) -> None:
    codec = Codec()
    value, headers, _ = golden(name)
    record = codec.decode(value, headers)
    assert {field: getattr(record, field) for field in added} == added
    for episode in getattr(record, "evidence", ()):
        places = (episode.events_partition, episode.first_offset, episode.last_offset)
        assert (episode.task, places) == ("", (-1, -1, -1))
    again, new_headers = codec.encode(record)
    assert again[:5] != value[:5]
    assert codec.decode(again, new_headers) == record


def test_guards_hold_for_old_versions_too() -> None:
    value, headers, _ = golden("episode.failed.v1.full")
    assert value.count(b"\x02\x04") >= 1  # attempt 1, producer host
    at = value.index(b"\x02\x04")
    with pytest.raises(DecodeError, match="attempt is 0") as caught:
        Codec().decode(value[:at] + b"\x00\x04" + value[at + 2 :], headers)
    assert caught.value.reason == "range"


def test_points_of_version_1_become_columns_of_gauges() -> None:
    codec = Codec()
    value, headers, _ = golden("telemetry.sampled.v1.full")
    record = codec.decode(value, headers)
    assert isinstance(record, TelemetrySampled)
    (point,) = record.points
    assert record.series == (Series(metric=point.metric, unit=point.unit, attributes=point.attributes),)
    assert (record.series[0].kind, record.series[0].temporality) == ("gauge", "none")
    assert (record.point_series, record.point_value) == ((0,), (point.value,))
    assert record.point_at == record.point_start_at == (record.sampled_at,)
    assert (record.resource, record.scope, record.distributions) == ((), "", ())
