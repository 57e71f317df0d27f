"""A real Prometheus scrapes a worker's own figures: every panel's query answers, and the rules see what they watch."""

import json
import re
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stepwell.adapters.dashboards.catalogue import DASHBOARDS
from stepwell.adapters.dev.prometheus import configuration
from stepwell.adapters.parts import OwnProcess, free_port
from stepwell.adapters.parts.debian import program
from stepwell.adapters.workers.health import HealthServer
from stepwell.adapters.workers.metrics import WorkerMetrics
from stepwell.adapters.workers.vitals import WorkerVitals, now_us
from stepwell.engine.ports import TopicPartition
from stepwell.projections.progress.log_watch import Look
from tests.integration.projections.facts import CODEC

RULES = Path(__file__).resolve().parents[2] / "compose" / "prometheus" / "rules" / "stepwell.yml"
SOURCE = TopicPartition("stepwell.episode-events", 0)


@dataclass
class Scraped:
    url: str
    vitals: WorkerVitals
    server: HealthServer
    position: int = 0

    def ask(self, path: str, **parameters: str) -> Any:
        with urllib.request.urlopen(f"{self.url}{path}?{urllib.parse.urlencode(parameters)}", timeout=5) as answer:
            return json.load(answer)["data"]

    def wait(self, ready: Any, timeout_s: float = 30.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not ready():
            assert time.monotonic() < deadline, f"not within {timeout_s} s"
            self.position += 5
            self.vitals.turned({SOURCE: self.position})
            self.vitals.saw(Look(now_us(), {SOURCE: self.position + 10}))
            time.sleep(0.2)


@pytest.fixture
def scraped(tmp_path: Path) -> Iterator[Scraped]:
    """A worker that is 10 records behind, and a Prometheus that scrapes it every second."""
    vitals = WorkerVitals("stepwell-engine-0", "engine", "stepwell-engine", CODEC)
    server = HealthServer(("127.0.0.1", 0), vitals, WorkerMetrics(vitals, "0.1.0", "lab-1"), 30.0)
    server.start()
    target = "{}:{}".format(*server.address)
    config, rules = tmp_path / "prometheus.yml", tmp_path / "rules.yml"
    rules.write_text(RULES.read_text(encoding="utf-8").replace("interval: 15s", "interval: 1s"), encoding="utf-8")
    config.write_text(configuration([target], [str(rules)], every_s=1), encoding="utf-8")
    port = free_port()
    process = OwnProcess(
        [program("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}",
         f"--web.listen-address=127.0.0.1:{port}"],
        tmp_path / "prometheus.log",
    )  # fmt: skip
    found = Scraped(f"http://127.0.0.1:{port}", vitals, server)

    def ready() -> bool:
        try:
            return urllib.request.urlopen(f"{found.url}/-/ready", timeout=2).status == 200
        except OSError:
            return False

    process.wait_ready(ready, 60, "Prometheus")
    try:
        yield found
    finally:
        process.stop()
        server.close()


def test_panels_and_rules_see_a_worker_as_it_is(scraped: Scraped) -> None:
    vitals = scraped.vitals

    def work() -> bool:
        vitals.took(SOURCE, 5, now_us())
        vitals.set_aside("violation", 1)
        vitals.count("stepwell_otlp_points_total", "metrics", 100)
        vitals.count("stepwell_otlp_rejected_total", "time", 1)
        scraped_often = scraped.ask("/api/v1/query", query="count_over_time(up[1m])")["result"]
        return bool(scraped_often) and float(scraped_often[0]["value"][1]) >= 4

    scraped.wait(work)
    queries = [query for dashboard in DASHBOARDS for panel in dashboard.panels for query in panel.prometheus]
    for query in queries:
        expression = re.sub(r"\$__rate_interval", "1m", query.expression)
        result = scraped.ask("/api/v1/query", query=expression)["result"]
        assert result, expression
        labels = set(re.findall(r"{{(\w+)}}", query.legend))
        assert labels <= set(result[0]["metric"]), (query.legend, result[0]["metric"])
        assert all(float(each["value"][1]) >= 0 for each in result)
    (lag,) = scraped.ask("/api/v1/query", query="stepwell_lag_events")["result"]
    assert lag["value"][1] == "10"
    rules = [rule for group in scraped.ask("/api/v1/rules")["groups"] for rule in group["rules"]]
    assert len(rules) == RULES.read_text(encoding="utf-8").count("- alert:")
    assert {rule["health"] for rule in rules} <= {"ok", "unknown"}

    def raised() -> set[str]:
        return {alert["labels"]["alertname"] for alert in scraped.ask("/api/v1/alerts")["alerts"]}

    # One dead letter is enough; a worker that has gone is seen at the next scrape; the others have no cause.
    scraped.wait(lambda: "StepwellDeadLetters" in raised(), 40)
    scraped.server.close()
    scraped.wait(lambda: "StepwellWorkerDown" in raised(), 40)
    assert raised() <= {"StepwellDeadLetters", "StepwellWorkerDown", "StepwellWorkerMissing", "StepwellReceiverMissing"}
