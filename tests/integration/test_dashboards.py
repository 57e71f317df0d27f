"""Dashboards against the real thing: a database that a projector filled, Grafana's types, promtool, a browser."""

import copy
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
import pytest
import yaml

from stepwell.adapters.dashboards.catalogue import DASHBOARDS
from stepwell.adapters.dashboards.macros import RESOLUTIONS, Window, expand
from stepwell.adapters.dashboards.page import render
from stepwell.adapters.dashboards.reading import Reading, read_dashboards
from stepwell.adapters.logs.memory import MemoryLog
from stepwell.adapters.parts import grafana_schema
from stepwell.adapters.parts.debian import program
from stepwell.projections.access import roles
from stepwell.projections.access.row_filters import RowFilter
from stepwell.projections.schema.migrate import migrate
from stepwell.projections.writing.projector import Projector
from tests.integration import fleet
from tests.integration.projections.conftest import Running
from tests.integration.projections.facts import CODEC

COMPOSE = Path(__file__).resolve().parents[2] / "compose"
DOCS = COMPOSE.parent / "docs"
NUMBERS = {"count", "number", "ratio", "s", "/s", "By", "By/s", "Cel", "W", "N.m", "A"}
DAY = {dashboard.name: timedelta(hours=24) for dashboard in DASHBOARDS}


@dataclass(frozen=True)
class Filled:
    url: str
    failed: str


def fill(url: str) -> Filled:
    migrate(url)
    log = MemoryLog()
    failed = fleet.publish(log)
    with Running(Projector(log, url, CODEC), log) as projector:
        projector.wait_reported()
    log.close()
    return Filled(url, failed)


@pytest.fixture(scope="module", params=["postgres", "timescale"])
def filled(request: pytest.FixtureRequest) -> Filled:
    """A database with a fleet's facts, put there by a real projector."""
    return fill(request.getfixturevalue("postgres_url" if request.param == "postgres" else "timescale_url"))


def by_name(readings: list[Reading]) -> dict[str, list[tuple[Any, ...]]]:
    return {f"{each.dashboard.name}/{answer.panel.query}": answer.rows for each in readings for answer in each.answers}


def judge_shape(reading: Reading) -> None:
    """Rows are what Grafana and the page expect of the panel's kind."""
    for answer in reading.answers:
        panel, rows = answer.panel, answer.rows
        where = f"{reading.dashboard.name}/{panel.query}"
        assert answer.problem == "", where
        assert not answer.cut, where
        if panel.kind == "time":
            # Grafana makes series of this form only when times ascend, and names them by the column metric.
            assert all(isinstance(time, datetime) and time.tzinfo for time, _, _ in rows), where
            assert [time for time, _, _ in rows] == sorted(time for time, _, _ in rows), where
            assert all(isinstance(name, str) and name for _, name, _ in rows), where
            assert all(isinstance(value, float) for _, _, value in rows), where
            assert len({(time, name) for time, name, _ in rows}) == len(rows), where
        for place, column in enumerate(panel.columns):
            found = [row[place] for row in rows if row[place] is not None]
            kind = datetime if column.unit == "moment" else int | float if column.unit in NUMBERS else str | int | bool
            assert all(isinstance(value, kind) for value in found), (where, column.name, found[:1])
        if panel.kind == "stat":
            assert len(rows) == 1, where
        if panel.kind == "matrix":
            assert len({row[:2] for row in rows}) == len(rows), where


@pytest.mark.parametrize("resolution", RESOLUTIONS)
def test_every_panel_answers_in_its_shape(filled: Filled, resolution: str) -> None:
    for reading in read_dashboards(filled.url, DASHBOARDS, DAY, {"episode": [filled.failed]}, resolution=resolution):
        judge_shape(reading)
        empty = [answer.panel.query for answer in reading.answers if not answer.rows]
        assert empty == [], reading.dashboard.name


def test_every_variable_offers_what_can_be_chosen(filled: Filled) -> None:
    now = datetime.now(tz=UTC)
    window = Window(now - timedelta(hours=24), now + timedelta(minutes=1))
    offered = {}
    with psycopg.connect(filled.url, autocommit=True) as connection:
        for variable in {each.name: each for dashboard in DASHBOARDS for each in dashboard.variables}.values():
            offered[variable.name] = [value for (value,) in connection.execute(expand(variable.sql, window, {}))]
    assert offered["policy"] == ["reach-bc", "reach-expert"]
    assert offered["task"] == ["metaworld/push-v3", "metaworld/reach-v3"]
    assert set(offered["run"]) == {"nightly-0", "nightly-1", "nightly-2", "run-1"}
    assert set(offered["host"]) >= set(fleet.HOSTS)
    assert offered["episode"][0] == filled.failed


def test_the_figures_are_true(filled: Filled) -> None:
    """What the panels add up to, counted from the verdicts themselves."""
    found = by_name(read_dashboards(filled.url, DASHBOARDS, DAY, {"episode": [filled.failed]}))
    with psycopg.connect(filled.url, autocommit=True) as connection:
        verdicts = connection.execute(
            "SELECT outcome, failure_type, policy || ' ' || policy_version FROM stepwell.verdicts"
        ).fetchall()
        steps = connection.execute("SELECT count(*) FROM stepwell.steps").fetchone()
    outcomes = [outcome for outcome, _, _ in verdicts]
    scored = [outcome for outcome in outcomes if outcome in {"success", "failure"}]
    assert found["fleet/now"][0][:4] == (2, 1, 1, len(outcomes))
    assert found["fleet/now"][0][4] == pytest.approx(scored.count("success") / len(scored))
    drawn = {name: sum(v for _, each, v in found["fleet/outcomes"] if each == name) for name in set(outcomes)}
    assert drawn == {name: outcomes.count(name) for name in set(outcomes)}
    types = [failure for outcome, failure, _ in verdicts if outcome != "success"]
    stacked = {name: sum(v for _, each, v in found["failures/types"] if each == name) for name in set(types)}
    assert stacked == {name: types.count(name) for name in set(types)}
    assert sum(row[2] for row in found["failures/by_scene"]) == len(types) == len(found["failures/newest"])
    for policy, rate, low, high, count, _ in found["policies/rates"]:
        mine = [outcome for outcome, _, name in verdicts if name == policy and outcome in {"success", "failure"}]
        assert (count, rate) == (len(mine), pytest.approx(mine.count("success") / len(mine)))
        assert low < rate < high
    # Over whole buckets, the rate is what was done in them.
    width = 3600
    assert sum(v * width for _, _, v in found["fleet/rate"]) == pytest.approx(steps[0] if steps else 0)
    assert [row[0] for row in found["episode/reward"]] == list(range(fleet.Fleet().steps))
    # Ten answers of 20 to 60 ms stand behind each point of a histogram.
    assert all(0.02 <= mean <= 0.06 for _, _, mean in found["machines/inference"])
    answered = {row[0]: row[3:] for row in found["episode/measured"]}["stepwell.agent.inference.duration"]
    assert answered == (10, pytest.approx(0.04, abs=0.02), 0.02, 0.06)
    # Cumulative: of each start the last point says it all; readings of a counter are not averaged.
    cumulative = {row[0]: row[3:] for row in found["episode/measured"] if row[0].startswith("policy.")}
    assert cumulative["policy.latency"] == (35, pytest.approx(4 / 35), 0.01, 0.5)
    assert cumulative["policy.busy"] == (4, None, 1.0, 3.0)
    assert {row[0] for row in found["failures/dead_letters"]} == {"violation", "unreadable"}


def test_what_is_chosen_narrows_every_panel_that_knows_it(filled: Filled) -> None:
    chosen = {"policy": ["reach-bc"], "task": ["metaworld/push-v3"], "host": ["lab-2"], "episode": [filled.failed]}
    found = by_name(read_dashboards(filled.url, DASHBOARDS, DAY, chosen))
    assert {row[0] for row in found["policies/by_scene"]} == {"reach-bc"}
    assert {row[1] for row in found["policies/by_scene"]} == {"metaworld/push-v3 table", "metaworld/push-v3 shelf"}
    assert {(row[3], row[4]) for row in found["failures/newest"]} == {("reach-bc", "metaworld/push-v3")}
    assert {row[1] for row in found["machines/cpu"]} == {"lab-2"}
    nothing = by_name(read_dashboards(filled.url, DASHBOARDS, DAY, {**chosen, "policy": ["it's nobody"]}))
    assert nothing["policies/by_scene"] == []
    assert nothing["fleet/running"] == []


def test_an_episode_that_nobody_chose_is_the_newest_failure(filled: Filled) -> None:
    (reading,) = read_dashboards(filled.url, [d for d in DASHBOARDS if d.name == "episode"], DAY, {})
    with psycopg.connect(filled.url, autocommit=True) as connection:
        newest = connection.execute(
            "SELECT episode_id FROM stepwell.verdicts WHERE outcome <> 'success' ORDER BY ended_at DESC LIMIT 1"
        ).fetchone()
    assert newest is not None
    assert reading.chosen["episode"] == [newest[0]]


def test_a_reader_sees_every_panel_and_changes_nothing(new_database: Callable[[], str]) -> None:
    """Grafana's user has the role stepwell_reader and no more."""
    filled = fill(new_database())
    roles.apply(filled.url)
    with psycopg.connect(filled.url, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS dashboard_reader")
        connection.execute("CREATE ROLE dashboard_reader LOGIN PASSWORD 'only-here'")
    roles.grant(filled.url, "reader", "dashboard_reader", roles.Limits(statement_s=30, idle_s=60))
    parts = urlsplit(filled.url)
    host = parts.netloc.rpartition("@")[2]
    reader = urlunsplit(parts._replace(netloc=f"dashboard_reader:{quote('only-here')}@{host}"))
    try:
        for reading in read_dashboards(reader, DASHBOARDS, DAY, {}):
            judge_shape(reading)
        assert not read_dashboards(reader, DASHBOARDS[:1], DAY, {})[0].filtered
        roles.set_filter(filled.url, RowFilter("dashboard_team", runs="nightly-1"))
        (narrow,) = read_dashboards(reader, DASHBOARDS[:1], DAY, {})
        assert "Row filters decide what stands here." in render([narrow], reader)
        (whole,) = read_dashboards(filled.url, DASHBOARDS[:1], DAY, {})
        assert "Row filters" not in render([whole], filled.url)
        refused = (psycopg.errors.InsufficientPrivilege, psycopg.errors.ReadOnlySqlTransaction)
        with psycopg.connect(reader, autocommit=True) as connection, pytest.raises(refused):
            connection.execute("UPDATE stepwell.settings SET value = 1")
    finally:
        roles.revoke(filled.url, "reader", "dashboard_reader")
        with psycopg.connect(filled.url, autocommit=True) as connection:
            connection.execute("DROP OWNED BY dashboard_reader")
            connection.execute("DROP ROLE dashboard_reader")
            connection.execute("DROP ROLE IF EXISTS dashboard_team")


@pytest.mark.parametrize("page", ["runbook.md", "dashboards.md"])
def test_every_statement_of_the_pages_runs(filled: Filled, page: str) -> None:
    statements = re.findall(r"```sql\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
    assert statements
    answered = 0
    with psycopg.connect(filled.url, autocommit=True) as connection:
        for statement in statements:
            answered += len(connection.execute(statement).fetchall()) > 0
    assert answered >= len(statements) / 2  # the rest look for what this fleet does not suffer from


# --- the page ---


def command(url: str, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "STEPWELL_HOME": str(home), "STEPWELL_DATABASE": url}
    called = [sys.executable, "-m", "stepwell", "dashboard", *arguments]
    return subprocess.run(called, cwd=home, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("filled", ["postgres"], indirect=True)
def test_the_command_writes_the_page(filled: Filled, tmp_path: Path) -> None:
    done = command(filled.url, tmp_path, "--since", "6h", "-o", "fleet.html", "--dashboard", "fleet")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "Wrote fleet.html (1 dashboard).\n"
    page = (tmp_path / "fleet.html").read_text(encoding="utf-8")
    assert "live-stuck" in page
    assert [path.name for path in tmp_path.iterdir()] == ["fleet.html"]
    printed = command(filled.url, tmp_path, "-o", "-", "--dashboard", "pipeline")
    assert printed.stdout.startswith("<!doctype html>")


@pytest.mark.parametrize("filled", ["postgres"], indirect=True)
def test_an_episode_may_be_named_by_the_beginning_of_its_id(filled: Filled, tmp_path: Path) -> None:
    dashboards = [each for each in DASHBOARDS if each.name == "episode"]
    (whole,) = read_dashboards(filled.url, dashboards, DAY, {"episode": ["live-st"]})
    assert whole.chosen["episode"] == ["live-stuck"]
    for begin, told in (("live-", "several episodes begin with 'live-': live-busy"), ("nobody", "no episode in the")):
        done = command(filled.url, tmp_path, "--dashboard", "episode", "--episode", begin)
        assert done.returncode != 0
        assert told in " ".join(done.stderr.split())
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("filled", ["postgres"], indirect=True)
def test_what_cannot_be_narrowed_is_told(filled: Filled, tmp_path: Path) -> None:
    done = command(filled.url, tmp_path, "--dashboard", "fleet", "--dashboard", "policies", "--run", "nightly-1")
    assert (done.returncode, done.stderr) == (0, "--run does not narrow policies: shown whole.\n")
    assert "Not narrowed by run." in (tmp_path / "stepwell-dashboard.html").read_text(encoding="utf-8")


def test_a_database_without_views_is_told_what_to_run(new_database: Callable[[], str], tmp_path: Path) -> None:
    done = command(new_database(), tmp_path)
    assert done.returncode == 1
    assert "lacks Stepwell's views. Run: stepwell db migrate" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_panel_that_cannot_be_read_leaves_the_others(new_database: Callable[[], str], tmp_path: Path) -> None:
    url = new_database()
    migrate(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ALTER VIEW stepwell.retrain_status RENAME TO retrain_status_away")
    done = command(url, tmp_path, "--dashboard", "failures", "--dashboard", "policies")
    assert done.returncode == 1
    assert "policies/requests could not be read" in done.stderr
    page = (tmp_path / "stepwell-dashboard.html").read_text(encoding="utf-8")
    assert page.count("Could not be read") == 2
    assert "Newest failures" in page


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program("chromium"), args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.mark.parametrize("filled", ["postgres"], indirect=True)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_shows_the_page_and_asks_for_nothing_else(
    filled: Filled, browser: Any, tmp_path: Path, scheme: str
) -> None:
    path = tmp_path / "page.html"
    readings = read_dashboards(filled.url, DASHBOARDS, {name: timedelta(hours=6) for name in DAY}, {})
    path.write_text(render(readings, filled.url), encoding="utf-8")
    context = browser.new_context(
        viewport={"width": 1400, "height": 900}, color_scheme=scheme, java_script_enabled=False
    )
    page = context.new_page()
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    assert said == []
    assert asked == [path.as_uri()]
    for reading in readings:
        for answer in reading.answers:
            figure = page.locator(f"#{reading.dashboard.name}-{answer.panel.query}")
            box = figure.bounding_box()
            assert box is not None
            assert box["width"] > 250, answer.panel.query
            assert figure.locator("h3").inner_text().startswith(answer.panel.title)
            if answer.rows and answer.panel.kind in {"time", "trend", "interval"}:
                drawn = figure.locator(".chart svg").bounding_box()
                assert drawn is not None
                assert drawn["width"] > 200, answer.panel.query
                assert drawn["x"] + drawn["width"] <= box["x"] + box["width"] + 1, answer.panel.query
    # Nothing sticks out to the right, and the page is as light or dark as the reader wants it.
    assert page.locator("body").bounding_box()["width"] <= 1400
    pixel = page.screenshot(clip={"x": 2, "y": 300, "width": 1, "height": 1})
    assert brightness(pixel) < 60 if scheme == "dark" else brightness(pixel) > 200
    # Nor is a column of the widest tables cut off on a laptop's screen: the last one says what went wrong.
    page.set_viewport_size({"width": 1300, "height": 900})
    for name in ("failures-newest", "pipeline-lag"):
        table, room = (page.locator(f"#{name} {part}").bounding_box() for part in ("table", ".scroll"))
        assert table is not None
        assert room is not None
        assert table["width"] <= room["width"], name
    narrow = browser.new_context(viewport={"width": 420, "height": 900}, java_script_enabled=False).new_page()
    narrow.goto(path.as_uri())
    assert narrow.locator("#fleet-now").bounding_box()["width"] < 420
    context.close()


def brightness(png: bytes) -> float:
    """Of a picture of one pixel (0 to 255)."""
    import struct
    import zlib

    data = b""
    place = 8
    while place < len(png):
        size, name = struct.unpack(">I4s", png[place : place + 8])
        data += png[place + 8 : place + 8 + size] if name == b"IDAT" else b""
        place += 12 + size
    raw = zlib.decompress(data)
    return sum(raw[1:4]) / 3


# --- Grafana's and Prometheus's own judgement ---


@pytest.fixture(scope="module")
def dashboards() -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in (COMPOSE / "grafana" / "dashboards").glob("*.json")}


def test_grafanas_types_take_every_dashboard(dashboards: dict[str, dict[str, Any]]) -> None:
    assert len(dashboards) == len(DASHBOARDS)
    assert grafana_schema.check(dashboards) == []


def test_grafanas_types_refuse_what_grafana_does_not_know(dashboards: dict[str, dict[str, Any]]) -> None:
    damages: dict[str, Callable[[dict[str, Any]], None]] = {
        "'\"titel\"' does not exist": lambda d: d.update(titel="Fleet"),
        "'\"curve\"' is not assignable": lambda d: d["panels"][1]["fieldConfig"]["defaults"]["custom"].update(
            drawStyle="curve"
        ),
        "'\"loud\"' is not assignable": lambda d: d["panels"][0]["options"].update(colorMode="loud"),
        "'VariableRefresh | undefined'": lambda d: d["templating"]["list"][0].update(refresh="often"),
        "'never'": lambda d: d["panels"][0].update(type="piechart3d"),
    }
    damaged = {f"damaged_{number}": copy.deepcopy(dashboards["fleet"]) for number in range(len(damages))}
    for dashboard, damage in zip(damaged.values(), damages.values(), strict=True):
        damage(dashboard)
    problems = grafana_schema.check(damaged)
    for told in damages:
        assert any(told in problem for problem in problems), (told, problems)


def test_promtool_takes_every_query_of_the_dashboards(tmp_path: Path) -> None:
    queries = [query for dashboard in DASHBOARDS for panel in dashboard.panels for query in panel.prometheus]
    assert queries
    recorded = [
        {"record": f"panel:{number}", "expr": re.sub(r"\$__rate_interval", "1m", query.expression)}
        for number, query in enumerate(queries)
    ]
    file = tmp_path / "panels.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": recorded}]}))
    done = subprocess.run(
        [program("promtool"), "check", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(queries)} rules found" in done.stdout


@pytest.mark.parametrize(("action", "file"), [("check", "stepwell.yml"), ("test", "stepwell.test.yml")])
def test_promtool_takes_the_alerts_and_their_tests(action: str, file: str) -> None:
    path = COMPOSE / "prometheus" / "rules" / file
    done = subprocess.run(
        [program("promtool"), action, "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout
