"""Charts as SVG text, drawn by Vega-Lite inside this process (vl-convert): no browser, no network.

Colours are written as those of the light theme. The page's style sheet gives each of them its dark counterpart by
selecting on the attribute, so the same SVG fits both, and one that is copied out of the page still has colours.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from stepwell.adapters.dashboards.macros import Window
from stepwell.adapters.dashboards.model import Level, Panel
from stepwell.adapters.dashboards.units import axis
from stepwell.exceptions import MissingPartError

try:
    import vl_convert
except ImportError as error:
    raise MissingPartError("vl-convert is not installed. Run: pip install 'stepwell[dashboard]'") from error

__all__ = [
    "LEVEL_COLOURS",
    "OTHERS",
    "SERIES_COLOURS",
    "Chart",
    "Series",
    "interval_chart",
    "time_chart",
    "trend_chart",
]

# Told apart with every common colour blindness, in this order; the dark ones stand in page.css.
SERIES_COLOURS = ("#2a78d6", "#1baf7a", "#eda100", "#4a3aa7", "#e34948", "#008300", "#e87ba4", "#eb6834")
LEVEL_COLOURS: dict[Level, str] = {"good": "#0ca30c", "warn": "#fab219", "bad": "#d03b3b"}
OTHERS = "#898781"
TEXT, GRID, LINE = "#52514e", "#e1e0d9", "#c3c2b7"
POINTS_SHOWN_MAX = 40
"""A line of at most so many values shows each as a dot."""

VERSION = "6.4"
HEIGHT = 190
# The time of day, and the date where a day begins.
_CLOCK = "utcFormat(datum.value, utchours(datum.value) + utcminutes(datum.value) == 0 ? '%-d %b' : '%H:%M')"
_CONFIG: dict[str, Any] = {
    "font": "system-ui, -apple-system, 'Segoe UI', sans-serif", "background": None, "view": {"stroke": None},
    "axis": {"labelColor": TEXT, "titleColor": TEXT, "gridColor": GRID, "domainColor": LINE, "tickColor": LINE,
             "labelFontSize": 11, "gridWidth": 1, "labelFlush": False},
    "axisX": {"grid": False}, "axisY": {"domain": False, "ticks": False, "labelPadding": 6, "tickCount": 5},
    "aria": False,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Series:
    """One line or layer, as the legend shows it.

    Attributes:
        name: of the series.
        colour: `SERIES_COLOURS`, a level's, or `OTHERS`.
        values: finite ones, in order.
    """

    name: str
    colour: str
    values: list[float]


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawn chart.

    Attributes:
        svg: the element, without an XML declaration.
        unit: that the value axis is in; may be empty.
        series: in the order of the legend.
        left_out: names of series that found no room.
    """

    svg: str
    unit: str
    series: list[Series]
    left_out: list[str]


Point = tuple[datetime, str, float | None]
"""Time, name of the series, value; None where there was none, or no finite one."""


def time_chart(panel: Panel, rows: Sequence[tuple[datetime, str, float | None]], window: Window, width: int) -> Chart:
    """Lines over time, or bars on each other where the panel is stacked."""
    points: list[Point] = [(time, name, _finite(value)) for time, name, value in rows]
    names = _ranked(points, panel)
    colours = _colours(names[: len(SERIES_COLOURS)], panel)
    left_out = names[len(SERIES_COLOURS) :]
    if panel.stacked and left_out:
        points = [(time, name if name in colours else "others", value) for time, name, value in points]
        colours["others"] = OTHERS
    largest = _largest(points, stacked=panel.stacked)
    factor, unit = axis(panel.unit, largest)
    step = _step(points, window)
    data = _bars(points, colours, step, factor) if panel.stacked else _lines(points, colours, step, factor)
    scale = {"type": "utc", "domain": [_ms(window.start), _ms(window.end)]}
    x = {"field": "t", "type": "temporal", "scale": scale, "axis": {"title": None, "tickCount": 6, "labelExpr": _CLOCK}}
    encoding = {"x": x, "y": _y(panel, largest / factor), "color": _colour(colours)}
    if panel.stacked:
        mark: dict[str, Any] = {"type": "rect", "opacity": 0.88}
        encoding |= {"x2": {"field": "t2"}, "y2": {"field": "v2"}}
    else:
        mark = _line(max(map(len, _by_name(points).values()), default=0))
    layers = [{"mark": mark, "encoding": encoding}, *_threshold_lines(panel, factor, largest)]
    found = _by_name(points)
    series = [Series(name, colour, found.get(name, [])) for name, colour in colours.items()]
    return Chart(_svg(data, layers, width), unit, series, [] if panel.stacked else left_out)


def trend_chart(panel: Panel, rows: Sequence[tuple[Any, ...]], width: int) -> Chart:
    """One line a column, over the first column."""
    first, *lines = panel.columns
    colours = dict(zip((column.title for column in lines), SERIES_COLOURS, strict=False))
    found = {column.title: [_finite(row[place]) for row in rows] for place, column in enumerate(lines, 1)}
    series = [Series(name, colours[name], [v for v in values if v is not None]) for name, values in found.items()]
    largest = max((abs(value) for each in series for value in each.values), default=0.0)
    factor, unit = axis(panel.unit, largest)
    data = [
        {"t": row[0], "s": name, "v": None if value is None else value / factor}
        for name, values in found.items()
        for row, value in zip(rows, values, strict=True)
    ]
    title = {"title": first.title, "titleFontWeight": "normal", "tickCount": 8, "format": "~d"}
    x = {"field": "t", "type": "quantitative", "scale": {"nice": False, "zero": False}, "axis": title}
    encoding = {"x": x, "y": _y(panel, largest / factor), "color": _colour(colours)}
    return Chart(_svg(data, [{"mark": _line(len(rows)), "encoding": encoding}], width), unit, series, [])


def interval_chart(panel: Panel, rows: Sequence[tuple[Any, ...]], width: int) -> Chart:
    """A dot and its interval for each label, in the rows' order."""
    data = [{"s": str(row[0]), "v": row[1], "low": row[2], "high": row[3]} for row in rows]
    label = {"title": None, "labelLimit": round(width * 0.45), "labelFontSize": 12, "grid": True}
    share = {"title": None, "format": ".0%", "tickCount": 5, "grid": True, "domain": False, "ticks": False}
    y = {"field": "s", "type": "nominal", "sort": [row["s"] for row in data], "axis": label}
    x = {"type": "quantitative", "scale": {"domain": [0, panel.maximum or 1]}, "axis": share}
    colour = SERIES_COLOURS[0]
    bar = {"type": "rule", "strokeWidth": 5, "opacity": 0.35, "color": colour, "strokeCap": "round"}
    dot = {"type": "point", "filled": True, "size": 70, "opacity": 1, "color": colour}
    layers: list[dict[str, Any]] = [
        {"mark": bar, "encoding": {"x": {"field": "low", **x}, "x2": {"field": "high"}, "y": y}},
        {"mark": dot, "encoding": {"x": {"field": "v", **x}, "y": y}},
    ]
    return Chart(_svg(data, layers, width, max(60, 30 * len(data))), "", [], [])


def _colour(colours: dict[str, str]) -> dict[str, Any]:
    scale = {"domain": list(colours), "range": list(colours.values())}
    # The legend stands below the chart, as a table with the values.
    return {"field": "s", "type": "nominal", "legend": None, "scale": scale}


def _line(points: int) -> dict[str, Any]:
    few = points <= POINTS_SHOWN_MAX
    return {"type": "line", "strokeWidth": 2, "strokeJoin": "round", "point": {"size": 24} if few else False}


def _y(panel: Panel, largest: float) -> dict[str, Any]:
    """The value axis; ``largest`` is in the axis's own unit."""
    scale: dict[str, Any] = {"zero": True, "nice": True}
    if panel.maximum is not None:
        scale = {"domain": [0, panel.maximum], "clamp": True}
    form = ".0%" if panel.unit == "ratio" else "~s" if largest >= 1000 else ".3~r"
    # Half an episode is no mark on an axis.
    ticks = {"tickMinStep": 1, "tickCount": max(1, min(5, math.floor(largest)))} if panel.unit == "count" else {}
    return {"field": "v", "type": "quantitative", "scale": scale, "axis": {"title": None, "format": form, **ticks}}


def _svg(data: list[dict[str, Any]], layers: list[dict[str, Any]], width: int, height: int = HEIGHT) -> str:
    spec = {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "width": width,
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "padding": 2,
        "data": {"values": data},
        "layer": layers,
        "config": _CONFIG,
    }
    return str(vl_convert.vegalite_to_svg(spec, vl_version=VERSION))


def _ranked(points: Sequence[Point], panel: Panel) -> list[str]:
    """Names of the series: those with a colour in the panel's order, else by name; then the smallest, by size."""
    weight: dict[str, float] = {}
    for _, name, value in points:
        weight[name] = weight.get(name, 0.0) + abs(value or 0.0)
    largest = sorted(weight, key=lambda name: (-weight[name], name))
    order = {name: place for place, name in enumerate(panel.colours)}
    kept = sorted(largest[: len(SERIES_COLOURS)], key=lambda name: (order.get(name, len(order)), name))
    return kept + largest[len(SERIES_COLOURS) :]


def _colours(names: Sequence[str], panel: Panel) -> dict[str, str]:
    """Colours that mean something where the panel gives any, else those of series."""
    if panel.colours:
        return {name: LEVEL_COLOURS[panel.colours[name]] if name in panel.colours else OTHERS for name in names}
    return dict(zip(names, SERIES_COLOURS, strict=False))


def _by_name(points: Sequence[Point]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for _, name, value in points:
        if value is not None:
            found.setdefault(name, []).append(value)
    return found


def _largest(points: Sequence[Point], *, stacked: bool) -> float:
    """Largest absolute value that is drawn: of stacked bars their height together."""
    if not stacked:
        return max((abs(value) for _, _, value in points if value is not None), default=0.0)
    sums: dict[datetime, float] = {}
    for time, _, value in points:
        sums[time] = sums.get(time, 0.0) + (value or 0.0)
    return max(sums.values(), default=0.0)


def _step(points: Sequence[Point], window: Window) -> timedelta:
    """Width of a bucket: the smallest distance that occurs, and no more than the window's."""
    times = sorted({time for time, _, _ in points})
    return min([*(later - earlier for earlier, later in pairwise(times)), window.bucket])


def _lines(points: Sequence[Point], colours: dict[str, str], step: timedelta, factor: float) -> list[dict[str, Any]]:
    """Rows for lines, with a null where buckets are missing: a line over a gap tells of what nobody measured."""
    data: list[dict[str, Any]] = []
    last: dict[str, datetime] = {}
    for time, name, value in points:
        if name not in colours:
            continue
        if name in last and time - last[name] > 3 * step:
            data.append({"t": _ms(last[name] + step), "s": name, "v": None})
        last[name] = time
        data.append({"t": _ms(time), "s": name, "v": None if value is None else value / factor})
    return data


def _bars(points: Sequence[Point], colours: dict[str, str], step: timedelta, factor: float) -> list[dict[str, Any]]:
    """Rows for the parts of bars, each from where the one below it ends."""
    parts: dict[datetime, dict[str, float]] = {}
    for time, name, value in points:
        layer = parts.setdefault(time, {})
        layer[name] = layer.get(name, 0.0) + (value or 0.0) / factor
    data = []
    for time, layer in parts.items():
        base = 0.0
        for name in colours:
            if height := layer.get(name, 0.0):
                span = {"t": _ms(time + step * 0.06), "t2": _ms(time + step * 0.94)}
                data.append({**span, "s": name, "v": base + height, "v2": base})
                base += height
    return data


def _threshold_lines(panel: Panel, factor: float, largest: float) -> list[dict[str, Any]]:
    """Dashed, and only where the values come near: far above them a line would flatten what is to be seen."""
    return [
        {
            "mark": {"type": "rule", "strokeDash": [4, 4], "color": LEVEL_COLOURS[step.level]},
            "encoding": {"y": {"datum": step.value / factor, "type": "quantitative"}},
        }
        for step in panel.thresholds
        if largest >= step.value * 0.8
    ]


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
