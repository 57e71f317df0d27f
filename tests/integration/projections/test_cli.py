"""``stepwell db`` and ``stepwell status`` as a user runs them, on the embedded database."""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from stepwell.adapters.logs.memory import MemoryLog
from stepwell.adapters.parts.embedded_postgres import EmbeddedPostgres
from stepwell.projections.writing.projector import Projector
from tests.integration.projections import facts
from tests.integration.projections.conftest import Running

Stepwell = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    EmbeddedPostgres(tmp_path / "database").stop(force=True)


@pytest.fixture
def stepwell(home: Path) -> Stepwell:
    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("STEPWELL_")}
        return subprocess.run(
            [sys.executable, "-m", "stepwell", *arguments],
            env=clean | {"STEPWELL_HOME": str(home), "COLUMNS": "200", "NO_COLOR": "1"} | environment,
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip

    return run


def test_a_log_that_is_away_is_named_and_told_by_the_exit_code(stepwell: Stepwell) -> None:
    assert stepwell("db", "migrate").returncode == 0
    nothing_yet = stepwell("status")
    assert nothing_yet.returncode == 0, nothing_yet.stderr
    assert "no log at" in nothing_yet.stdout
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody answers, and nobody else can take it
        url = f"kafka://127.0.0.1:{taken.getsockname()[1]}"
        away = stepwell("status", STEPWELL_LOG=url)
    assert away.returncode == 1
    assert f"Asked of the log itself: The log {url} is not available: Kafka:" in away.stdout


def test_from_an_empty_machine_to_the_three_answers(home: Path, stepwell: Stepwell) -> None:
    assert stepwell("db", "status").returncode == 1
    refused = stepwell("status")
    assert refused.returncode == 1
    assert "Run: stepwell db migrate" in refused.stderr
    assert "The schema is up to date" in stepwell("db", "migrate").stdout
    assert json.loads(stepwell("db", "status", "--json").stdout)["current"] is True
    assert not EmbeddedPostgres(home / "database").running  # nobody uses it, so nothing is left running

    url = stepwell("db", "url").stdout.strip()
    log = MemoryLog()
    long_ago = facts.now_us() - 90_000_000
    facts.publish(log, [
        facts.requested("e-[31m1"), facts.claimed("e-[31m1", occurred_at=long_ago),
        facts.snapshot("e-[31m1", since_at=long_ago, last_event_at=long_ago, owes="agent"),
        facts.telemetry("stepwell-engine-0", 1), facts.dead_letter(),
        facts.retrain("t-1"), facts.retrain("t-2"), facts.acknowledged("t-2"), facts.retrain("t-3"),
        facts.answered("t-3", "done"), facts.pattern("m-1"),
        facts.dead_letter(kind="rule_failed", reason="still", detail="division by zero"),
        facts.telemetry("stepwell-engine-1", 1, long_ago),
        facts.worker("stepwell-engine-0"),
    ])  # fmt: skip
    with Running(Projector(log, url, facts.CODEC), log) as projector:
        projector.wait_reported()
        shown = stepwell("status").stdout
        assert "As of" not in shown
    log.close()
    assert "Running now: 1" in shown
    assert "Stuck: 1" in shown
    assert "e-[31m1/1" in shown  # markup in a name is only a name
    assert re.search(r"How far behind: not at all, as of [0-9.]+ s ago \(", shown)
    assert "Requests: 1 open, 1 acknowledged, 1 muted; rules that failed and were parked: still (1 time)." in shown
    assert re.search(r"Dead letters: 2, newest [0-9.]+ s ago\.", shown)
    assert "Workers that report: stepwell-engine-0 on lab-3." in shown
    with psycopg.connect(url) as connection:  # another activation
        connection.execute(
            "INSERT INTO stepwell.rule_sets SELECT gen_random_uuid(), 'lab', 2, '{}', '',"
            " now(), now() + interval '1 h', 'ada', 0, 0"
        )
    assert "rules that failed and were parked: none." in stepwell("status").stdout
    answer = json.loads(stepwell("status", "--json").stdout)
    assert [row["stuck_on"] for row in answer["stuck"]] == ["agent"]
    assert {row["consumer"] for row in answer["lag"]} == {"stepwell-projector"}
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE stepwell.sink_offsets SET seen_at = seen_at - interval '1 h'")
        connection.execute("UPDATE stepwell.sink_offsets SET complete_until = complete_until - interval '1 h'")
    stale = stepwell("status").stdout
    assert re.match(r"As of .* UTC \(1 h 00 min ago\): the projector has not reported for 1 h 00 min\.", stale)
    assert "Running, as of then: 1" in stale
    assert "as of then: nothing." in stale  # nothing was stuck an hour ago
    assert "Workers: not known, since no projector reports; last heard of: stepwell-engine-0 (" in stale
    assert "Asked of the log itself: no log at" in stale
    assert json.loads(stepwell("status", "--json").stdout)["freshness"]["state"] == "silent"
    with psycopg.connect(url) as connection:  # other commands came and went, the server was asked to stay
        connection.execute("SELECT 1")
    assert stepwell("db", "stop").stdout == "Stopped.\n"
    assert not EmbeddedPostgres(home / "database").running


def test_a_server_of_its_own_is_not_stopped(stepwell: Stepwell) -> None:
    done = stepwell("db", "stop", STEPWELL_DATABASE="postgresql://u:secret@127.0.0.1:1/x")
    assert done.returncode == 2
    assert "does not stop it" in done.stderr
    away = stepwell("status", STEPWELL_DATABASE="postgresql://u:secret@127.0.0.1:1/x")
    assert away.returncode == 1
    assert "not available" in away.stderr
    assert "secret" not in away.stderr
