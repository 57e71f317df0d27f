"""The static page, from answers as a database gives them."""

import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from importlib import resources
from typing import Any

import pytest

from stepwell.adapters.dashboards.catalogue import DASHBOARDS
from stepwell.adapters.dashboards.macros import ALL, Window
from stepwell.adapters.dashboards.model import Dashboard, Panel
from stepwell.adapters.dashboards.page import render
from stepwell.adapters.dashboards.reading import Answer, Reading

END = datetime(2026, 3, 1, 12, tzinfo=UTC)
WINDOW = Window(END - timedelta(hours=2), END)
SOURCE = "postgresql://ops:secret-word@db.example:5432/stepwell"
HOSTILE = '"><script>alert(1)</script>\x1b[31m\u202e'
KNOWN = {dashboard.name: dashboard for dashboard in DASHBOARDS}


def panel(dashboard: str, query: str) -> Panel:
    return next(each for each in KNOWN[dashboard].panels if each.query == query)


def reading(dashboard: Dashboard, answers: list[Answer], **chosen: list[str]) -> Reading:
    values = {variable.name: [ALL] for variable in dashboard.variables}
    return Reading(dashboard, WINDOW, {**values, **chosen}, answers)


def row(each: Panel, **values: Any) -> tuple[Any, ...]:
    return tuple(values.get(column.name) for column in each.columns)


class Outline(HTMLParser):
    """What a browser would load, and the text that it would show."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in {"meta", "wbr"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_it_holds_together_and_loads_nothing() -> None:
    types, newest = panel("failures", "types"), panel("failures", "newest")
    answers = [
        Answer(types, [(END - timedelta(hours=1), HOSTILE, 2.0), (END, "collision", 1.0)]),
        Answer(newest, [row(newest, episode_id=HOSTILE, message="x" * 300, ended_at=END, attempt=1)]),
    ]
    page = render([reading(KNOWN["failures"], answers, policy=[HOSTILE])], SOURCE)
    outline = Outline(page)
    assert outline.open == []
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in outline.tags}
    assert not [name for _, attributes in outline.tags for name in attributes if name.startswith("on") or name == "src"]
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "secret-word" not in page
    assert "db.example" in page
    addresses = set(re.findall(r"(?:href|url)\W+(https?:[^\s\"')]+)", page))
    assert addresses <= {"http://www.w3.org/1999/xlink", "http://www.w3.org/2000/svg"}


def test_headings_and_names_serve_those_who_cannot_see() -> None:
    counts = panel("failures", "counts")
    outline = Outline(render([reading(KNOWN["failures"], [Answer(counts, [(1, 2, 0, 0.5, 0, 3)])])], SOURCE))
    ids = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    named = [attributes["aria-labelledby"] for _, attributes in outline.tags if "aria-labelledby" in attributes]
    assert named
    assert set(named) <= set(ids)
    assert [tag for tag, _ in outline.tags if tag in {"h1", "h2", "h3"}] == ["h1", "h2", "h3"]
    assert ("html", {"lang": "en"}) in outline.tags


def test_a_chart_is_told_in_numbers_below_it() -> None:
    rate = panel("fleet", "rate")
    rows = [(END - timedelta(minutes=10 - minute), "lab-1", 2.0 + minute) for minute in range(5)]
    text = Outline(render([reading(KNOWN["fleet"], [Answer(rate, rows)])], SOURCE)).text
    assert text[text.index("lab-1") + 1 : text.index("lab-1") + 5] == ["6 /s", "2 /s", "4 /s", "6 /s"]


def test_levels_are_a_mark_as_well_as_a_colour() -> None:
    stuck = panel("fleet", "stuck")
    rows = [row(stuck, episode_id="e", stuck_s=seconds) for seconds in (10.0, 60.0, 299.0, 300.0)]
    page = render([reading(KNOWN["fleet"], [Answer(stuck, rows)])], SOURCE)
    assert re.findall(r'<td class="(n[ a-z]*)">[\d.]+ \w+', page.replace(" min", " min")) == [
        "n",
        "n warn",
        "n warn",
        "n bad",
    ]
    assert "td.bad::before" in page
    workers = panel("pipeline", "workers")
    page = render([reading(KNOWN["pipeline"], [Answer(workers, [row(workers, state="silent")])])], SOURCE)
    assert '<td class="bad">silent</td>' in page


def test_what_is_empty_or_failed_says_so() -> None:
    answers = [
        Answer(panel("fleet", "outcomes"), []),
        Answer(panel("fleet", "stuck"), []),
        Answer(panel("fleet", "running"), [], problem="canceling statement due to statement timeout <b>"),
        Answer(panel("fleet", "runs"), [row(panel("fleet", "runs"), run_id="r")], cut=True),
    ]
    page = render([reading(KNOWN["fleet"], answers)], SOURCE)
    assert page.count("Nothing in this time.") == 1
    assert page.count("Nothing.") == 1
    assert "Could not be read: canceling statement due to statement timeout &lt;b&gt;" in page
    assert "Only the first 20,000 rows are shown." in page


def test_an_episode_that_nobody_chose_is_told() -> None:
    dashboard = KNOWN["episode"]
    page = render([reading(dashboard, [Answer(each, []) for each in dashboard.panels], episode=[])], SOURCE)
    assert "choose one with --episode" in page
    assert "Episode: none" in page


def test_a_panel_says_by_what_it_is_not_narrowed() -> None:
    answers = [Answer(panel("fleet", query), []) for query in ("running", "outcomes", "rate")]
    page = render([reading(KNOWN["fleet"], answers, run=["nightly"], policy=["p"], episode=["e"])], SOURCE)
    said = dict(re.findall(r'<figure id="fleet-(\w+)".*?</figcaption>\n(.*?)</figure>', page, re.DOTALL))
    assert "Not narrowed" not in said["running"]
    assert "Not narrowed by run." in said["outcomes"]
    assert "Not narrowed by run and policy." in said["rate"] or "Not narrowed by policy and run." in said["rate"]
    whole = render([reading(KNOWN["fleet"], answers)], SOURCE)
    assert "Not narrowed" not in whole


def test_the_episode_on_the_page_can_be_led_to_and_no_other() -> None:
    newest = panel("failures", "newest")
    rows = [row(newest, episode_id="here", ended_at=END), row(newest, episode_id="elsewhere", ended_at=END)]
    episode = KNOWN["episode"]
    page = render(
        [
            reading(KNOWN["failures"], [Answer(newest, rows)]),
            reading(episode, [Answer(each, []) for each in episode.panels], episode=["here"]),
        ],
        SOURCE,
    )
    assert '<a href="#episode"><code>here</code></a>' in page
    assert "<code>elsewhere</code></td>" in page
    assert "<td><code>elsewhere" in page


def test_a_matrix_has_a_cell_for_each_pair_that_was_tested() -> None:
    scene = panel("policies", "by_scene")
    rows = [("a", "table", 1.0), ("a", "shelf", 0.0), ("b", "table", 0.5)]
    page = render([reading(KNOWN["policies"], [Answer(scene, rows)])], SOURCE)
    body = page[page.index('<table class="matrix">') : page.index("</table>")]
    assert re.findall(r'<th scope="(?:col|row)"[^>]*>([^<]*)</th>', body) == ["policy", "shelf", "table", "a", "b"]
    assert re.findall(r"<td[^>]*>([^<]*)</td>", body) == ["0.0 %", "100.0 %", "", "50.0 %"]
    assert re.findall(r"var\(--(\w+)-fill\) (\d+)%", body) == [("bad", "42"), ("good", "42"), ("good", "0")]


def test_every_colour_of_a_chart_has_a_dark_counterpart() -> None:
    from stepwell.adapters.dashboards.charts import GRID, LINE, SERIES_COLOURS, TEXT

    style = render([reading(KNOWN["fleet"], [])], SOURCE)
    dark = style[style.index("prefers-color-scheme: dark") :]
    for colour in SERIES_COLOURS:
        if colour != "#008300":  # reads well on both
            assert all(f'[{kind}="{colour}"]' in dark for kind in ("fill", "stroke", "data-c"))
    assert f'[fill="{TEXT}"]' in style
    assert f'[stroke="{GRID}"]' in style
    assert f'[stroke="{LINE}"]' in style


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it (0 to 1)."""
    shares = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (s / 12.92 if s <= 0.03928 else ((s + 0.055) / 1.055) ** 2.4 for s in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_what_it_is_written_on(scheme: str) -> None:
    """WCAG 2 asks for 4.5 to 1."""
    style = resources.files("stepwell.adapters.dashboards").joinpath("page.css").read_text(encoding="utf-8")
    light, dark = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    colours = dict(re.findall(r"--([\w-]+): (#\w{6})", light))
    if scheme == "dark":
        colours |= dict(re.findall(r"--([\w-]+): (#\w{6})", dark))
    for ink in ("ink", "ink-2", "ink-3", "good", "warn", "bad", "link"):
        for ground in ("page", "surface"):
            assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)
