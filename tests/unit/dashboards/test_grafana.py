"""Grafana's files: as the panels are defined, and fitting each other."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from compose.grafana import make
from stepwell.adapters.dashboards.catalogue import DASHBOARDS
from stepwell.adapters.parts import grafana_schema

ROOT = Path(__file__).resolve().parents[3]
GRAFANA = ROOT / "compose" / "grafana"


def written() -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (GRAFANA / "dashboards").glob("*.json")}


def test_the_files_are_what_the_panels_say(tmp_path: Path) -> None:
    make.write(tmp_path)
    made = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    kept = {path.name: path.read_text(encoding="utf-8") for path in (GRAFANA / "dashboards").iterdir()}
    assert kept == made, "run: python compose/grafana/make.py"


def test_writing_takes_away_what_is_no_more(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text("{}")
    make.write(tmp_path)
    assert {path.stem for path in tmp_path.iterdir()} == {dashboard.name for dashboard in DASHBOARDS}


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.name)
def test_panels_lie_beside_each_other(dashboard: Any) -> None:
    places = [panel["gridPos"] for panel in written()[dashboard.name]["panels"]]
    assert len(places) == len(dashboard.panels)
    taken = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) <= 23


def test_what_panels_ask_is_a_data_source_that_is_provisioned() -> None:
    provisioned = yaml.safe_load((GRAFANA / "provisioning" / "datasources" / "stepwell.yaml").read_text())
    known = {(each["type"], each["uid"]) for each in provisioned["datasources"]}
    for dashboard in written().values():
        asked = [panel["datasource"] for panel in dashboard["panels"]]
        asked += [target["datasource"] for panel in dashboard["panels"] for target in panel["targets"]]
        asked += [each["datasource"] for each in dashboard["templating"].get("list", []) if each["type"] == "query"]
        assert {(each["type"], each["uid"]) for each in asked} <= known
    passwords = [str(each.get("secureJsonData", {}).get("password", "$__file{")) for each in provisioned["datasources"]]
    assert all(password.startswith("$__file{") for password in passwords), "secrets stand in files"


def test_everything_chosen_reaches_the_sql_as_the_page_has_it() -> None:
    """``All`` is the quoted star that the SQL compares with; other values are quoted by ``sqlstring``."""
    for dashboard in written().values():
        for variable in dashboard["templating"].get("list", []):
            assert variable.get("allValue", "'*'") == "'*'"
            assert ("allValue" in variable) == variable["includeAll"] == variable["multi"]


def test_links_lead_to_a_dashboard_by_its_uid() -> None:
    uids = {dashboard["uid"] for dashboard in written().values()}
    links = [
        link["url"]
        for dashboard in written().values()
        for panel in dashboard["panels"]
        for override in panel["fieldConfig"]["overrides"]
        for each in override["properties"] if each["id"] == "links"
        for link in each["value"]
    ]  # fmt: skip
    assert "/d/stepwell-episode?var-episode=${__value.raw:percentencode}&${__url_time_range}" in links
    assert {link.split("?")[0].removeprefix("/d/") for link in links} <= uids


def test_grafana_is_the_one_whose_types_are_checked_and_gets_what_it_needs() -> None:
    stack = yaml.safe_load((GRAFANA.parent / "compose.yaml").read_text(encoding="utf-8"))
    grafana = stack["services"]["grafana"]
    assert grafana["image"] == f"grafana/grafana:{grafana_schema.VERSION}"
    locked = json.loads((ROOT / "stepwell/adapters/parts/grafana_types/package-lock.json").read_text(encoding="utf-8"))
    assert locked["packages"]["node_modules/@grafana/schema"]["version"] == grafana_schema.VERSION
    provisioned = yaml.safe_load((GRAFANA / "provisioning" / "datasources" / "stepwell.yaml").read_text())[
        "datasources"
    ]
    hosts = {urlsplit(each["url"] if "//" in each["url"] else f"//{each['url']}").hostname for each in provisioned}
    assert hosts <= set(stack["services"])
    (password,) = [each["secureJsonData"]["password"] for each in provisioned if "secureJsonData" in each]
    assert password.removeprefix("$__file{/run/secrets/").removesuffix("}") in grafana["secrets"]
    granted = [service["command"] for service in stack["services"].values() if "--grant" in service.get("command", [])]
    assert ["db", "roles", "--grant", "reader", provisioned[0]["user"]] in granted
    mounted = {volume.split(":")[1] for volume in grafana["volumes"]}
    assert {"/etc/grafana/provisioning", "/var/lib/grafana/dashboards"} <= mounted


def test_dashboards_are_found_where_they_are_mounted() -> None:
    (provider,) = yaml.safe_load((GRAFANA / "provisioning" / "dashboards" / "stepwell.yaml").read_text())["providers"]
    assert provider["options"]["path"] == "/var/lib/grafana/dashboards"
    assert provider["allowUiUpdates"] is False
