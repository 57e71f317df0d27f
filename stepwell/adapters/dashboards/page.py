"""Dashboards as one HTML page that needs nothing else: no script, no font, no picture from anywhere.

What it says it says in text: each chart stands above a table of its series, a level is a mark as well as a colour, and
headings, captions and tables are what screen readers expect. Light and dark follow the reader's system (page.css).
"""

from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

import stepwell
from stepwell.adapters.dashboards.charts import Chart, interval_chart, time_chart, trend_chart
from stepwell.adapters.dashboards.macros import ALL
from stepwell.adapters.dashboards.model import WIDTH_MAX, Column, Level, Panel, Unit
from stepwell.adapters.dashboards.reading import ROWS_MAX, Answer, Reading
from stepwell.adapters.dashboards.units import NOTHING, write
from stepwell.redaction import redact_url

__all__ = ["render"]

_WIDTH_PX = 1280
_NUMBERS: frozenset[Unit] = frozenset({"count", "number", "ratio", "s", "/s", "By", "By/s", "Cel", "W", "N.m", "A"})
_LONG = frozenset({"message", "status_message", "detail", "last_error", "waits_for", "retry_reason", "value"})
"""Columns whose text may fill several lines."""
# Control characters, and those that turn the direction of writing, have no business in text from outside.
_UNSEEN = {code: "\N{REPLACEMENT CHARACTER}" for code in [*range(32), 127, *range(0x80, 0xA0), *range(0x202A, 0x202F),
                                                           *range(0x2066, 0x206A)] if code not in {9, 10}}  # fmt: skip
_FILTERED = (
    "Row filters decide what stands here. A team that is filtered by runs or requesters sees no sums by minute, hour "
    "and day (rates, counts and charts of them), no patterns and no requests to retrain; machines only with --fleet."
)

Shown = Mapping[str, Reading]
"""What is on the page, by name of the dashboard."""


def render(readings: Sequence[Reading], source: str) -> str:
    """The page.

    Args:
        readings: what each dashboard shows; at least one.
        source: URL of the database; its password does not appear.
    """
    shown = {each.dashboard.name: each for each in readings}
    links = "".join(f'<li><a href="#{name}">{_text(each.dashboard.title)}</a></li>' for name, each in shown.items())
    moment = write(readings[0].window.end, "moment")
    style = resources.files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    title = readings[0].dashboard.title if len(readings) == 1 else "Dashboards"
    nav = f'<nav aria-label="Dashboards"><ul>{links}</ul></nav>' if len(readings) > 1 else ""
    below = (f'<p class="meta">{_text(_FILTERED)}</p>' if readings[0].filtered else "") + nav
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # Nothing may be fetched and nothing may run, whatever a task or an episode is called.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>Stepwell: {_text(title)}, {moment} UTC</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f'<header><h1>Stepwell</h1><p class="meta">As of {moment} UTC. All times are UTC.</p>{below}</header>\n<main>\n'
        + "\n".join(_section(each, shown) for each in readings)
        + f"\n</main>\n<footer>Drawn by stepwell {_text(stepwell.__version__)} from {_text(redact_url(source))}."
        "</footer>\n</body>\n</html>\n"
    )


def _section(reading: Reading, shown: Shown) -> str:
    dashboard, window = reading.dashboard, reading.window
    values = {variable.label: list(reading.chosen[variable.name]) for variable in dashboard.variables}
    chosen = [f"{label}: {'all' if v == [ALL] else ', '.join(v) or 'none'}" for label, v in values.items()]
    steps = [f"by {window.resolution}"] if dashboard.resolved else []
    said = "; ".join(
        [
            f"--dashboard {dashboard.name}",
            f"{write(window.start, 'moment')} to {write(window.end, 'moment')}",
            *steps,
            *chosen,
        ]
    )
    figures = "\n".join(_figure(dashboard.name, answer, reading, shown) for answer in reading.answers)
    return (
        f'<section id="{dashboard.name}" aria-labelledby="{dashboard.name}-title">'
        f'<h2 id="{dashboard.name}-title">{_text(dashboard.title)}</h2><p class="about">{_text(dashboard.about)}</p>'
        f'<p class="meta">{_text(said)}</p>\n<div class="grid">\n{figures}\n</div>\n</section>'
    )


def _figure(dashboard: str, answer: Answer, reading: Reading, shown: Shown) -> str:
    panel = answer.panel
    name = f"{dashboard}-{panel.query}"
    unit = ""
    if answer.problem:
        body = f'<p class="problem" role="alert">Could not be read: {_text(answer.problem)}</p>'
    elif not answer.rows:
        body = f'<p class="empty">{_nothing(panel, reading)}</p>'
    elif panel.kind in {"time", "trend", "interval"}:
        unit, body = _charted(answer, reading)
    else:
        body = {"stat": _tiles, "matrix": _matrix}.get(panel.kind, _table)(answer, reading, shown)
    if answer.cut:
        body += f'<p class="note">Only the first {ROWS_MAX:,} rows are shown.</p>'
    if whole := _unnarrowed(answer, reading):
        body += f'<p class="note">Not narrowed by {_text(" and ".join(whole))}.</p>'
    label = f'<span class="unit">{_text(unit)}</span>' if unit else ""
    return (
        f'<figure id="{name}" style="--span:{panel.width}" aria-labelledby="{name}-title"><figcaption>'
        f'<h3 id="{name}-title">{_text(panel.title)}{label}</h3><p>{_text(panel.about)}</p></figcaption>\n'
        f"{body}</figure>"
    )


def _unnarrowed(answer: Answer, reading: Reading) -> list[str]:
    """Variables of which something was chosen that the panel does not know."""
    sql = reading.dashboard.sql(answer.panel)
    chosen = [name for name, values in reading.chosen.items() if name != "episode" and list(values) != [ALL]]
    return [name for name in chosen if f"${{{name}:" not in sql]


def _nothing(panel: Panel, reading: Reading) -> str:
    if any(not values for values in reading.chosen.values()):
        return "No episode ended in this time; choose one with --episode."
    return "Nothing in this time." if panel.kind in {"time", "interval", "matrix"} else "Nothing."


def _charted(answer: Answer, reading: Reading) -> tuple[str, str]:
    panel, rows = answer.panel, answer.rows
    width = _WIDTH_PX * panel.width // WIDTH_MAX - 34
    if panel.kind == "interval":
        chart = interval_chart(panel, rows, width)
        table = _table(answer, reading, {})
    else:
        made = (
            time_chart(panel, rows, reading.window, width) if panel.kind == "time" else trend_chart(panel, rows, width)
        )
        chart, table = made, _legend(panel, made)
    # The table below says it in words; the picture is announced by its name alone.
    picture = f'<div class="chart" role="img" aria-label="Chart: {_text(panel.title)}">{chart.svg}</div>'
    left = f'<p class="note">{_left_out(chart)}</p>' if chart.left_out else ""
    return chart.unit, picture + table + left


def _left_out(chart: Chart) -> str:
    named = ", ".join(chart.left_out[:6]) + (" …" if len(chart.left_out) > 6 else "")
    return _text(f"Smaller, and left out: {len(chart.left_out)} ({named}).")


def _legend(panel: Panel, chart: Chart) -> str:
    """The series with what they came to: the chart in numbers."""
    columns = ("total",) if panel.stacked else ("last", "least", "mean", "most")
    head = "".join(f'<th scope="col" class="n">{name}</th>' for name in columns)
    lines = []
    for series in chart.series:
        values = series.values
        if panel.stacked:
            numbers: list[float | None] = [sum(values)]
        elif values:
            numbers = [values[-1], min(values), sum(values) / len(values), max(values)]
        else:
            numbers = [None] * 4
        cells = "".join(f'<td class="n">{_text(write(number, panel.unit))}</td>' for number in numbers)
        key = f'<span class="key" data-c="{series.colour}" style="--c:{series.colour}"></span>'
        lines.append(f'<tr><th scope="row">{key}{_text(series.name)}</th>{cells}</tr>')
    return (
        '<div class="scroll" tabindex="0" role="group" aria-label="Series"><table class="legend"><thead><tr>'
        f'<th scope="col"></th>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
    )


def _tiles(answer: Answer, _reading: Reading, _shown: Shown) -> str:
    tiles = []
    for column, value in zip(answer.panel.columns, answer.rows[0], strict=True):
        level = _level(column, value)
        words = "words" if column.unit in {"text", "id"} and value not in {None, ""} else ""
        # Names may be long and have no spaces; they break where their words end.
        text = _text(write(value, column.unit)).replace("_", "_<wbr>")
        tiles.append(f'<div><dt>{_text(column.title)}</dt><dd class="{level} {words}">{text}</dd></div>')
    return f'<dl class="tiles">{"".join(tiles)}</dl>'


def _table(answer: Answer, _reading: Reading, shown: Shown) -> str:
    columns = answer.panel.columns
    head = "".join(f'<th scope="col"{_class(column)}>{_text(column.title)}</th>' for column in columns)
    lines = "".join(
        f"<tr>{''.join(_cell(column, value, shown) for column, value in zip(columns, row, strict=True))}</tr>"
        for row in answer.rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="group" aria-label="{_text(answer.panel.title)}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>"
    )


def _cell(column: Column, value: Any, shown: Shown) -> str:
    text = _text(write(value, column.unit))
    if text != NOTHING and column.unit == "id":
        text = f"<code>{text}</code>"
    # The page holds one episode; only that one can be led to.
    target = shown.get(column.leads_where)
    if target is not None and value in target.chosen.get(column.leads_to, ()):
        text = f'<a href="#{column.leads_where}">{text}</a>'
    return f"<td{_class(column, _level(column, value))}>{text}</td>"


def _class(column: Column, level: str = "") -> str:
    kinds = [
        "n" if column.unit in _NUMBERS else "when" if column.unit == "moment" else "",
        "long" if column.name in _LONG else "",
        level,
    ]
    named = " ".join(kind for kind in kinds if kind)
    return f' class="{named}"' if named else ""


def _matrix(answer: Answer, _reading: Reading, _shown: Shown) -> str:
    panel = answer.panel
    cells = {(str(row), str(column)): float(value) for row, column, value in answer.rows}
    rows, columns = sorted({row for row, _ in cells}), sorted({column for _, column in cells})
    largest = panel.maximum or max(cells.values())
    head = "".join(f'<th scope="col" class="n">{_text(column)}</th>' for column in columns)
    lines = []
    for row in rows:
        line = "".join(_matrix_cell(cells.get((row, column)), panel, largest) for column in columns)
        lines.append(f'<tr><th scope="row">{_text(row)}</th>{line}</tr>')
    corner = f'<th scope="col">{_text(panel.columns[0].title)}</th>'
    return (
        f'<div class="scroll" tabindex="0" role="group" aria-label="{_text(panel.title)}"><table class="matrix">'
        f"<thead><tr>{corner}{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _matrix_cell(value: float | None, panel: Panel, largest: float) -> str:
    if value is None:
        return "<td></td>"
    share = value / largest if largest else 0.0
    # Rates go from bad to good through plain; of counts, which all are of failures, many are bad.
    level = "good" if panel.maximum and share >= 0.5 else "bad"
    strength = abs(share - 0.5) * 2 if panel.maximum else share
    mixed = f"color-mix(in srgb, var(--{level}-fill) {round(42 * strength)}%, transparent)"
    return f'<td style="background:{mixed}">{_text(write(value, panel.unit))}</td>'


def _level(column: Column, value: Any) -> Level | str:
    if isinstance(value, str):
        return column.words.get(value, "")
    if value is None or isinstance(value, bool) or not column.thresholds:
        return ""
    return next((step.level for step in reversed(column.thresholds) if value >= step.value), "")


def _text(value: str) -> str:
    return escape(value.translate(_UNSEEN))
