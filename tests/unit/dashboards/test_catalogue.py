"""The dashboards hang together: each query is used, each variable known, each link leads somewhere."""

import re

import pytest

from stepwell.adapters.dashboards.catalogue import DASHBOARDS
from stepwell.adapters.dashboards.model import WIDTH_MAX, Dashboard
from stepwell.projections.queries import load

each_dashboard = pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.name)


def test_the_six_are_there() -> None:
    assert [dashboard.name for dashboard in DASHBOARDS] == [
        "fleet", "policies", "failures", "episode", "pipeline", "machines",
    ]  # fmt: skip


@each_dashboard
def test_every_panel_has_a_query_and_every_query_a_panel(dashboard: Dashboard) -> None:
    used = [panel.query for panel in dashboard.panels]
    assert len(used) == len(set(used))
    assert set(used) == set(load(dashboard.name, "stepwell.adapters.dashboards"))


def test_every_query_of_variables_is_used() -> None:
    used = {variable.query for dashboard in DASHBOARDS for variable in dashboard.variables}
    assert used == set(load("variables", "stepwell.adapters.dashboards"))


@each_dashboard
def test_variables_are_declared_and_used(dashboard: Dashboard) -> None:
    named = set(re.findall(r"\$\{(\w+):", " ".join(dashboard.sql(panel) for panel in dashboard.panels)))
    assert named - {"resolution"} == {variable.name for variable in dashboard.variables}


@each_dashboard
def test_queries_read_public_views_by_their_full_names(dashboard: Dashboard) -> None:
    for panel in dashboard.panels:
        sql = dashboard.sql(panel)
        read = re.findall(r"\b(?:FROM|JOIN)\s+([a-z_.$]+)", re.sub(r"--.*|extract\(epoch FROM", "", sql))
        assert read or "SELECT" in sql
        assert all(name.startswith("stepwell.") for name in read if name), (panel.query, read)
        assert "stepwell_g" not in sql


@each_dashboard
def test_panels_are_laid_out_and_described(dashboard: Dashboard) -> None:
    for panel in dashboard.panels:
        assert 1 <= panel.width <= WIDTH_MAX
        assert panel.about.endswith(".")
        assert bool(panel.columns) == (panel.kind != "time"), panel.query
        assert not panel.prometheus or panel.kind in {"time", "table"}


def test_links_lead_to_a_dashboard_that_has_the_variable() -> None:
    variables = {dashboard.name: {each.name for each in dashboard.variables} for dashboard in DASHBOARDS}
    links = [
        (column.leads_where, column.leads_to)
        for dashboard in DASHBOARDS
        for panel in dashboard.panels
        for column in panel.columns
        if column.leads_where or column.leads_to
    ]
    assert ("episode", "episode") in links
    assert all(variable in variables[where] for where, variable in links)
