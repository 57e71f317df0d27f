"""What TimescaleDB is set to: shown against the configuration, applied, and applied again without effect."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stepwell.exceptions import ConfigurationError
from stepwell.projections.database import Connection, connect
from stepwell.projections.schema.files import packaged
from stepwell.projections.schema.generations import make_generation
from stepwell.projections.schema.migrate import migrate
from stepwell.projections.upkeep import tune
from stepwell.projections.upkeep.tuning import AGGREGATES, HYPERTABLES, Tuning
from stepwell.settings import load_settings

G1 = "stepwell_g1"


@pytest.fixture(scope="module")
def migrated(timescale_url: str) -> str:
    migrate(timescale_url)
    return timescale_url


@pytest.fixture
def connection(migrated: str) -> Iterator[Connection]:
    with connect(migrated, application="test") as opened:
        yield opened


@pytest.fixture
def stepwell(migrated: str, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("STEPWELL_")}
        here = {"STEPWELL_HOME": str(tmp_path), "STEPWELL_DATABASE": migrated, "COLUMNS": "200", "NO_COLOR": "1"}
        return subprocess.run(
            [sys.executable, "-m", "stepwell", *arguments], env=clean | here, capture_output=True, text=True,
            check=False, timeout=120,
        )  # fmt: skip

    return run


def test_applying_sets_everything_and_applying_again_nothing(connection: Connection) -> None:
    tuning = Tuning()
    before = [setting for setting in tune.show(connection, tuning) if not setting.right]
    assert {setting.relation for setting in before} == {each.name for each in (*HYPERTABLES, *AGGREGATES)}
    assert tune.apply(connection, G1, tuning) == before
    assert [setting for setting in tune.show(connection, tuning) if not setting.right] == []
    assert tune.apply(connection, G1, tuning) == []
    # The database's own words, for some of them.
    chunks = connection.execute(
        "SELECT a.view_name, extract(day FROM d.time_interval)::integer FROM timescaledb_information.dimensions d"
        " JOIN timescaledb_information.continuous_aggregates a"
        " ON a.materialization_hypertable_name = d.hypertable_name WHERE a.view_schema = %s", (G1,),
    ).fetchall()  # fmt: skip
    assert dict(chunks) == {each.name: {"minute": 10, "hour": 30, "day": 365}[each.level] for each in AGGREGATES}
    assert connection.execute(
        "SELECT config FROM timescaledb_information.jobs"
        " WHERE proc_name = 'retire_chunks' AND config ->> 'relation' = 'steps'"
    ).fetchone() == (
        {
            "schema": G1,
            "relation": "steps",
            "ingested": "logged_at",
            "keep": f"{180 * 86400} seconds",
            "feeds": "step_minutes",
        },
    )
    assert connection.execute(
        "SELECT count(*) FROM timescaledb_information.jobs WHERE proc_name = 'policy_refresh_continuous_aggregate'"
    ).fetchone() == (len(AGGREGATES),)


def test_another_configuration_changes_what_differs_and_only_that(connection: Connection) -> None:
    tune.apply(connection, G1, Tuning())
    shorter = Tuning(chunk_days=0.5, retention_steps_days=0, retention_minutes_days=100)
    changed = {(each.relation, each.name): (each.found, each.wanted) for each in tune.apply(connection, G1, shorter)}
    assert changed == {
        **{(name, "chunk length"): ("1 d", "12 h") for name in ("steps", "actions", "telemetry_points", "spans")},
        **{(name, "kept for"): ("180 d", None) for name in ("steps", "actions")},
        **{(f"{family}_minutes", "kept for"): ("400 d", "100 d") for family in ("step", "telemetry")},
    }
    assert all(setting.right for setting in tune.show(connection, shorter))
    refreshed = tune.apply(connection, G1, Tuning(refresh_window_days=20, compress_after_days=30))
    assert all(
        setting.right for setting in tune.show(connection, Tuning(refresh_window_days=20, compress_after_days=30))
    )
    assert ("step_days", "refreshed") in {(each.relation, each.name) for each in refreshed}


def test_what_somebody_switched_off_is_seen_and_put_back(connection: Connection) -> None:
    tune.apply(connection, G1, Tuning())
    connection.execute(
        "SELECT alter_job(job_id, scheduled => false) FROM timescaledb_information.jobs"
        " WHERE proc_name = 'policy_refresh_continuous_aggregate' AND hypertable_schema = %s LIMIT 1", (G1,),
    )  # fmt: skip
    connection.execute(f"SELECT remove_compression_policy('{G1}.steps')")
    connection.execute(f"ALTER MATERIALIZED VIEW {G1}.outcome_days SET (timescaledb.materialized_only = true)")
    wrong = {(each.relation, each.name, each.found) for each in tune.show(connection, Tuning()) if not each.right}
    assert ("steps", "compressed after", None) in wrong
    assert ("outcome_days", "real time", "off") in wrong
    assert [found for _, name, found in wrong if name == "refreshed"] == [
        "from 70 d to 1 min ago, every 1 min, 10080 buckets at a time, switched off"
    ]
    tune.apply(connection, G1, Tuning())
    assert all(setting.right for setting in tune.show(connection, Tuning()))


def test_a_generation_that_is_being_built_is_tuned_by_itself(connection: Connection) -> None:
    tune.apply(connection, G1, Tuning())
    with connection.transaction(force_rollback=True):
        homes = make_generation(connection, packaged().tables, made_from="log")
        (schema,) = homes.schemas
        assert {setting.schema for setting in tune.show(connection, Tuning()) if not setting.right} == {schema}
        assert tune.apply(connection, schema, Tuning())
        assert all(setting.right for setting in tune.show(connection, Tuning()))


def test_the_command_shows_applies_and_does_what_is_due(
    stepwell: Callable[..., subprocess.CompletedProcess[str]], connection: Connection
) -> None:
    tune.apply(connection, G1, Tuning(retention_telemetry_days=200))
    shown = stepwell("db", "tune", "--show", "--json")
    assert shown.returncode == 1
    wrong = [setting for setting in json.loads(shown.stdout) if not setting["right"]]
    assert {(each["relation"], each["found"], each["wanted"]) for each in wrong} == {
        ("telemetry_points", "200 d", "90 d"), ("spans", "200 d", "90 d"),
    }  # fmt: skip
    told = stepwell("db", "tune")
    assert told.returncode == 1
    assert [line.split()[1] for line in told.stdout.splitlines() if G1 in line] == [
        "telemetry_points",
        "spans",
    ]
    every = stepwell("db", "tune", "--show", "--all").stdout
    assert every.count("differs") == 2
    assert every.count(G1) == len(json.loads(shown.stdout))
    assert "2 settings were changed" in stepwell("db", "tune", "--apply").stdout
    again = stepwell("db", "tune")
    assert (again.returncode, "as configured" in again.stdout) == (0, True)
    due = stepwell("db", "upkeep", "--json")
    assert due.returncode == 0, due.stderr
    done = [json.loads(line) for line in due.stdout.splitlines()]
    lines = [(each["relation"], each["what"]) for each in done]
    assert (
        lines.index(("step_minutes", "refreshed"))
        < lines.index(("step_hours", "refreshed"))
        < lines.index(("steps", "compressed"))
    )
    assert {"relation": "steps", "what": "retired", "count": 0, "unit": "chunks"} in done
    (brief,) = stepwell("db", "upkeep").stdout.splitlines()
    assert f"retired {sum(what == 'retired' for _, what in lines)}" in brief


def test_plain_tables_have_nothing_to_set(postgres_url: str) -> None:
    migrate(postgres_url)
    with connect(postgres_url, application="test") as opened:
        assert tune.show(opened, Tuning()) == []
        assert tune.apply_all(opened, Tuning()) == []


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("retention_steps_days", 70, r"must be 0 \(for ever\) or at least 71: refresh_window_days \(70\)"),
        ("retention_minutes_days", 5, r"retention_minutes_days \(5\)"),
        ("retention_hours_days", 1, r"retention_hours_days \(1\)"),
        ("retention_telemetry_days", 70.5, r"at least 71"),
        ("retention_dead_letters_days", 7, r"more than compress_after_days \(7\)"),
        ("compress_after_days", 100, r"retention_telemetry_days \(90\).* at least 101: compress_after_days \(100\)"),
    ],
)  # fmt: skip
def test_what_would_be_taken_away_too_early_is_refused(
    name: str, value: float, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Tuning(**{name: value})
    monkeypatch.setenv("STEPWELL_HOME", str(tmp_path))
    monkeypatch.setenv(f"STEPWELL_{name.upper()}", str(value))
    with pytest.raises(ConfigurationError, match=said):
        load_settings()
