"""What is drawn: gaps stay gaps, stacks add up, nothing is left out in silence."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from stepwell.adapters.dashboards.charts import (
    LEVEL_COLOURS,
    OTHERS,
    SERIES_COLOURS,
    interval_chart,
    time_chart,
    trend_chart,
)
from stepwell.adapters.dashboards.macros import Window
from stepwell.adapters.dashboards.model import Column, Panel, Threshold

END = datetime(2026, 3, 1, 12, tzinfo=UTC)
WINDOW = Window(END - timedelta(hours=2), END)
LINES = Panel(query="q", title="t", about="a.", kind="time", unit="s")
BARS = Panel(query="q", title="t", about="a.", kind="time", unit="count", stacked=True)


def at(minute: int) -> datetime:
    return WINDOW.start + timedelta(minutes=minute)


def lines_of(svg: str) -> list[str]:
    """The path data of the lines drawn."""
    return re.findall(r'<path d="(M[^"]*)"[^>]*stroke="#2a78d6"', svg)


def test_a_line_is_broken_where_nothing_was_measured() -> None:
    whole = time_chart(LINES, [(at(minute), "a", 0.5) for minute in range(60)], WINDOW, 500)
    gap = time_chart(LINES, [(at(minute), "a", 0.5) for minute in [*range(20), *range(40, 60)]], WINDOW, 500)
    (unbroken,) = lines_of(whole.svg)
    (broken,) = lines_of(gap.svg)
    assert unbroken.count("M") == 1
    assert broken.count("M") == 2


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_what_is_no_number_leaves_a_gap_and_counts_for_nothing(value: float | None) -> None:
    rows = [(at(minute), "a", value if minute == 30 else 0.5) for minute in range(60)]
    chart = time_chart(LINES, rows, WINDOW, 500)
    (path,) = lines_of(chart.svg)
    assert path.count("M") == 2
    assert chart.series[0].values == [0.5] * 59
    assert chart.unit == "ms"


def test_the_smallest_lines_are_left_out_by_name() -> None:
    rows = [(at(0), f"series {number}", float(number)) for number in range(1, 11)]
    chart = time_chart(LINES, rows, WINDOW, 500)
    assert [series.name for series in chart.series] == [f"series {number}" for number in (10, *range(3, 10))]
    assert chart.left_out == ["series 2", "series 1"]
    assert [series.colour for series in chart.series] == list(SERIES_COLOURS)


def test_stacked_bars_keep_the_sum_of_those_that_get_no_colour() -> None:
    rows = [(at(0), f"series {number}", float(number)) for number in range(1, 11)]
    chart = time_chart(BARS, rows, WINDOW, 500)
    assert chart.left_out == []
    assert (chart.series[-1].name, chart.series[-1].colour) == ("others", OTHERS)
    assert sum(sum(series.values) for series in chart.series) == 55


def test_bars_stand_on_each_other() -> None:
    chart = time_chart(BARS, [(at(60), "a", 3.0), (at(60), "b", 1.0)], WINDOW, 500)
    boxes = {
        colour: (float(top), float(height))
        for top, height, colour in re.findall(
            r'd="M[\d.]+,([\d.]+)h[\d.]+v([\d.]+)h[^"]*"[^>]*fill="(#\w+)"', chart.svg
        )
        if colour in SERIES_COLOURS
    }
    (lower_top, lower), (upper_top, upper) = boxes[SERIES_COLOURS[0]], boxes[SERIES_COLOURS[1]]
    assert lower == pytest.approx(3 * upper, rel=0.02)
    assert upper_top + upper == pytest.approx(lower_top, abs=0.5)


def test_names_that_mean_something_have_their_colour() -> None:
    panel = Panel(
        query="q", title="t", about="a.", kind="time", stacked=True, colours={"success": "good", "failure": "bad"}
    )
    rows = [(at(0), name, 1.0) for name in ("aborted", "failure", "success")]
    found = {series.name: series.colour for series in time_chart(panel, rows, WINDOW, 500).series}
    assert list(found) == ["success", "failure", "aborted"]
    assert found == {"success": LEVEL_COLOURS["good"], "failure": LEVEL_COLOURS["bad"], "aborted": OTHERS}


@pytest.mark.parametrize(("highest", "drawn"), [(50.0, False), (70.0, True), (95.0, True)])
def test_a_threshold_is_drawn_where_values_come_near(highest: float, drawn: bool) -> None:
    panel = Panel(
        query="q", title="t", about="a.", kind="time", unit="Cel",
        thresholds=(Threshold(80, "warn"), Threshold(900, "bad")),
    )  # fmt: skip
    svg = time_chart(panel, [(at(0), "gpu", highest)], WINDOW, 500).svg
    assert (f'stroke="{LEVEL_COLOURS["warn"]}"' in svg) == drawn
    assert f'stroke="{LEVEL_COLOURS["bad"]}"' not in svg


def test_times_are_told_in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    labels = re.findall(r">(\d\d:\d\d)<", time_chart(LINES, [(at(0), "a", 1.0)], WINDOW, 500).svg)
    assert labels[0] == "10:00"
    assert labels[-1] == "12:00"


def test_a_trend_has_one_line_a_column() -> None:
    panel = Panel(
        query="q", title="t", about="a.", kind="trend", unit="s",
        columns=(Column("step", "step", "count"), Column("sim", "simulator", "s"), Column("policy", "policy", "s")),
    )  # fmt: skip
    chart = trend_chart(panel, [(step, 0.02, None if step == 5 else 0.04) for step in range(50)], 500)
    assert [(series.name, len(series.values)) for series in chart.series] == [("simulator", 50), ("policy", 49)]
    assert chart.unit == "ms"
    assert all(f'stroke="{colour}"' in chart.svg for colour in SERIES_COLOURS[:2])


def test_intervals_stand_in_the_order_of_the_rows() -> None:
    columns = (Column("p", "p"), Column("r", "r", "ratio"), Column("l", "l", "ratio"), Column("h", "h", "ratio"))
    panel = Panel(query="q", title="t", about="a.", kind="interval", unit="ratio", maximum=1.0, columns=columns)
    svg = interval_chart(panel, [("zeta", 0.9, 0.8, 0.95), ("alpha", 0.2, 0.1, 0.4)], 500).svg
    assert svg.index(">zeta<") < svg.index(">alpha<")
    assert ">100%<" in svg


def test_names_from_outside_are_text() -> None:
    svg = time_chart(LINES, [(at(0), "<script>alert(1)</script>", 1.0)], WINDOW, 500).svg
    assert "<script" not in svg


@pytest.mark.parametrize("count", [1.0, 2.0, 3.0])
def test_an_axis_of_few_counts_has_whole_marks(count: float) -> None:
    svg = time_chart(BARS, [(at(60), "a", count)], WINDOW, 500).svg
    marks = [float(text) for text in re.findall(r"<text[^>]*>([\d.]+)</text>", svg)]
    assert count in marks
    assert all(mark == round(mark) for mark in marks)
