"""Grafana's macros and variables become the SQL that Grafana would send."""

from datetime import UTC, datetime, timedelta

import pytest

from stepwell.adapters.dashboards.macros import POINTS_MAX, Window, expand
from stepwell.exceptions import ConfigurationError

END = datetime(2026, 3, 1, 12, tzinfo=UTC)
WINDOW = Window(END - timedelta(hours=6), END)
FROM, TO = "'2026-03-01T06:00:00.000000Z'", "'2026-03-01T12:00:00.000000Z'"


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ("$__timeFilter(v.ended_at)", f"v.ended_at BETWEEN {FROM} AND {TO}"),
        ("x BETWEEN $__timeFrom() AND $__timeTo()", f"x BETWEEN {FROM} AND {TO}"),
        ("interval '$__interval'", "interval '300s'"),
        ("success_by_${resolution:raw}", "success_by_minute"),
        ("p IN (${policy:sqlstring})", "p IN ('a','b')"),
        ("'100 $' || \"a\"", "'100 $' || \"a\""),
    ],
)
def test_what_grafana_would_send(written: str, sent: str) -> None:
    assert expand(written, WINDOW, {"policy": ["a", "b"]}) == sent


def test_a_moment_in_another_zone_is_told_in_utc() -> None:
    zone = datetime.fromisoformat("2026-03-01T13:00:00+01:00")
    assert expand("$__timeTo()", Window(zone - timedelta(hours=1), zone), {}) == TO


@pytest.mark.parametrize("value", ["'; DROP TABLE x; --", "it's", "${task:sqlstring}", "$__timeFrom()", "a\\'b"])
def test_a_value_stays_a_value(value: str) -> None:
    quoted = "'" + value.replace("'", "''") + "'"
    assert expand("p IN (${policy:sqlstring})", WINDOW, {"policy": [value], "task": ["t"]}) == f"p IN ({quoted})"


@pytest.mark.parametrize(
    "written",
    [
        "$__timeGroup(x, '5m')",  # not used by us, so not kept true to Grafana
        "$__timeFilter(coalesce(a, b))",  # Grafana cuts the argument at the first comma and bracket
        "$policy",
        "${policy}",
        "${nobody:sqlstring}",
        "${policy:raw}",
        "$__range",
    ],
)
def test_what_would_be_sent_otherwise_is_refused(written: str) -> None:
    with pytest.raises(ConfigurationError):
        expand(written, WINDOW, {"policy": ["minute"]})


@pytest.mark.parametrize("value", ["minutes; DROP TABLE x", "", "week"])
def test_no_other_text_than_a_resolution_goes_in_raw(value: str) -> None:
    with pytest.raises(ConfigurationError, match="minute, hour, day"):
        expand("${resolution:raw}", WINDOW, {"resolution": [value]})


@pytest.mark.parametrize(
    ("span", "resolution", "bucket"),
    [
        (timedelta(minutes=10), "minute", timedelta(minutes=1)),
        (timedelta(hours=6), "minute", timedelta(minutes=5)),
        (timedelta(hours=7), "hour", timedelta(hours=1)),
        (timedelta(days=20), "hour", timedelta(hours=6)),
        (timedelta(days=21), "day", timedelta(days=1)),
    ],
)
def test_a_longer_time_is_shown_more_coarsely(span: timedelta, resolution: str, bucket: timedelta) -> None:
    window = Window(END - span, END)
    assert (window.resolution, window.bucket) == (resolution, bucket)
    assert span / window.interval <= POINTS_MAX
    assert Window(END - span, END, "day").resolution == "day"
