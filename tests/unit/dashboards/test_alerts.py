"""Alert rules: each has its section in the runbook and its tests, and asks for figures that workers give."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from stepwell.adapters.dashboards.catalogue import DASHBOARDS
from stepwell.adapters.workers.metrics import COUNTERS, WorkerMetrics
from stepwell.adapters.workers.vitals import WorkerVitals
from stepwell.engine.ports import TopicPartition
from tests.integration.projections.facts import CODEC

ROOT = Path(__file__).resolve().parents[3]
RULES = ROOT / "compose" / "prometheus" / "rules"
FROM_OTHERS = {"up", "process_start_time_seconds"}
"""Prometheus's own, and those of every process that its client library watches."""


def rules() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load((RULES / "stepwell.yml").read_text(encoding="utf-8"))["groups"]
    listed = [rule for group in groups for rule in group["rules"]]
    named = {rule["alert"]: rule for rule in listed}
    assert len(named) == len(listed)
    return named


def cases() -> list[dict[str, Any]]:
    return [
        {**case, "fires": bool(case["exp_alerts"])}
        for test in yaml.safe_load((RULES / "stepwell.test.yml").read_text(encoding="utf-8"))["tests"]
        for case in test.get("alert_rule_test", [])
    ]


def sections() -> dict[str, str]:
    text = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.parametrize("name", rules())
def test_an_alert_is_tested_to_fire_and_to_be_silent(name: str) -> None:
    assert {case["fires"] for case in cases() if case["alertname"] == name} == {True, False}


@pytest.mark.parametrize("name", rules())
def test_an_alert_has_its_section_in_the_runbook(name: str) -> None:
    rule = rules()[name]
    assert rule["annotations"]["runbook_url"] == f"docs/runbook.md#{name.lower()}"
    assert rule["labels"]["severity"] in {"warning", "critical"}
    section = sections()[name]
    for heading in ("Means", "Look", "Do"):
        assert re.search(rf"^\*\*{heading}\.\*\* ", section, re.MULTILINE), heading
    assert re.search(r"```(sql|sh)\n", section), "a command or a query to look with"


def test_the_runbook_has_no_section_of_an_alert_that_is_no_more() -> None:
    assert {name for name in sections() if name.startswith("Stepwell")} == set(rules())


def test_figures_that_are_asked_for_are_given() -> None:
    vitals = WorkerVitals("stepwell-engine-0", "engine", "stepwell-engine", CODEC)
    vitals.turned({TopicPartition("stepwell.episode-events", 0): 1})
    given = {metric.name for metric in WorkerMetrics(vitals, "0", "lab-1").collect()} | set(COUNTERS) | FROM_OTHERS
    given.add("stepwell_log_look_age_seconds")  # once it has looked
    asked = [rule["expr"] for rule in rules().values()]
    asked += [query.expression for dashboard in DASHBOARDS for panel in dashboard.panels for query in panel.prometheus]
    names = {name for expression in asked for name in re.findall(r"\b(?:stepwell|process)_\w+|\bup\b", expression)}
    assert names
    assert names <= given, names - given
