"""Schema on read: new keys become columns without a migration; none fails a query, or mixes two meanings."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from stepwell.engine.ports import MessageLog
from stepwell.events import model
from stepwell.exceptions import ConfigurationError, MigrationError, NotFoundError
from stepwell.projections.on_read import fields
from stepwell.projections.on_read.fields import Field
from stepwell.projections.schema.files import packaged
from stepwell.projections.schema.migrate import migrate
from stepwell.projections.schema.public_views import make_views
from tests.integration.projections import facts

Query = Callable[..., list[tuple[object, ...]]]
Put = Callable[..., None]


@pytest.fixture(autouse=True)
def nothing_remembered(database: str) -> None:
    """The catalogue and the views outlive the rows; each test begins without."""
    fields.drop(database)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("DELETE FROM stepwell.fields")
        connection.execute("DELETE FROM stepwell.metric_views")


@pytest.fixture
def put(database: str) -> Put:
    """Puts one episode with these metrics, one a step, straight into the tables: as any JSON may stand there."""

    def run(
        episode: str, *metrics: object, task: str = "sim/task", at: datetime | None = None, definition: str = "{}"
    ) -> None:
        at = at or datetime.now(tz=UTC)
        with psycopg.connect(database, autocommit=True) as connection, connection.transaction():
            connection.execute("SELECT set_config('search_path', 'stepwell_g1', true)")
            connection.execute(
                "INSERT INTO episodes VALUES (%s, 'run-1', %s, 'p', '1', NULL, 'table', 'none', 1, 0, '', 9, 'ada', %s,"
                " '', %s, 'evaluation', 0, 0)",
                (episode, task, at, definition),
            )
            for number, metric in enumerate(metrics):
                connection.execute(
                    "INSERT INTO steps VALUES (%s, %s, %s, 1, %s, 'sim-1', %s, gen_random_uuid(), 0, 0, 0, false,"
                    " false, false, 0, %s, NULL, 0, %s)",
                    (at, at, episode, number, number, None if metric is None else json.dumps(metric), number),
                )

    return run


def columns(database: str, view: str) -> dict[str, Field]:
    return {field.column: field for field in fields.read_fields(database) if field.view == view}


def test_what_the_log_tells_becomes_columns(
    database: str, log: MessageLog, drain: Callable[..., None], query: Query
) -> None:
    metrics = (model.Metric(name="path_length_m", value=1.5), model.Metric(name="grip.force_N", value=math.nan))
    definition = '{"scene": {"name": "table", "options": {"light": "dim", "height_m": 0.7}}, "policy": {"name": "p"}}'
    facts.publish(
        log,
        [
            facts.requested("e-1", definition_json=definition), facts.step("e-1", 0, metrics=metrics),
            facts.verdict("e-1", metrics=(model.Metric(name="path_length_m", value=4.5),)),
            facts.telemetry("worker-1", 1),
        ],
    )  # fmt: skip
    drain()
    coming = fields.look(database)
    assert fields.read_fields(database) == []
    assert fields.apply(database) == coming
    assert fields.look(database) == fields.apply(database) == []
    assert query("SELECT step, path_length_m, grip_force_n, rest FROM stepwell_views.step_metrics") == [
        (0, 1.5, pytest.approx(math.nan, nan_ok=True), None)
    ]
    assert query("SELECT policy, outcome, path_length_m FROM stepwell_views.verdict_metrics") == [
        ("reach-expert", "success", 4.5)
    ]
    assert query(
        "SELECT scene_options_light, scene_options_height_m, policy_name FROM stepwell_views.episode_definitions"
    ) == [("dim", 0.7, "p")]
    ((view, metric, unit),) = query("SELECT view, metric, unit FROM stepwell.metric_views WHERE metric ~ 'cpu'")
    assert (view, metric, unit) == ("metric_system_cpu_utilization", "system.cpu.utilization", "1")
    assert query(f"SELECT DISTINCT worker_id, value, cpu FROM stepwell_views.{view}") == [("worker-1", 0.5, "0")]
    assert ("step_metrics", "grip_force_n", ["grip.force_N"], "number") in query(
        "SELECT view, column_name, path, kind FROM stepwell_views.fields"
    )


def test_a_key_whose_values_change_their_kind_has_a_column_for_each(database: str, put: Put, query: Query) -> None:
    put(
        "e-1",
        {"mode": 1},
        {"mode": 2},
        {"mode": "fast"},
        {"mode": True},
        {"mode": [1, 2]},
        {"mode": {"a": 1}},
        {"mode": None},
    )
    fields.apply(database)
    assert list(columns(database, "step_metrics")) == ["mode", "mode_json", "mode_text", "mode_boolean"]
    asked = "SELECT step, mode, mode_text, mode_boolean, mode_json, rest FROM stepwell_views.step_metrics ORDER BY step"
    assert query(asked) == [
        (0, 1.0, None, None, None, None), (1, 2.0, None, None, None, None), (2, None, "fast", None, None, None),
        (3, None, None, True, None, None), (4, None, None, None, [1, 2], None), (5, None, None, None, {"a": 1}, None),
        (6, None, None, None, None, None),
    ]  # fmt: skip


def test_what_no_column_shows_yet_stands_in_rest(database: str, put: Put, query: Query) -> None:
    put("e-1", {"a": 1})
    fields.apply(database)
    put("e-2", {"a": "now a text", "b": 2}, {"a": 3})
    asked = "SELECT episode_id, step, a, rest FROM stepwell_views.step_metrics ORDER BY 1, 2"
    assert query(asked) == [
        ("e-1", 0, 1.0, None), ("e-2", 0, None, {"a": "now a text", "b": 2}), ("e-2", 1, 3.0, None),
    ]  # fmt: skip
    assert fields.look(database) == ["step_metrics.a_text", "step_metrics.b"]
    query("CREATE SCHEMA IF NOT EXISTS others")
    query("CREATE VIEW others.built_on_it AS SELECT a FROM stepwell_views.step_metrics")
    fields.apply(database)  # in place: what is built on it stays
    assert query("SELECT a FROM others.built_on_it ORDER BY 1") == [(1.0,), (3.0,), (None,)]
    asked = "SELECT a, a_text, b, rest FROM stepwell_views.step_metrics WHERE episode_id = 'e-2' ORDER BY step"
    assert query(asked) == [
        (None, "now a text", 2.0, None), (3.0, None, None, None),
    ]  # fmt: skip
    with pytest.raises(MigrationError, match=r"built on a generated view.*built_on_it"):
        fields.drop(database)
    query("DROP SCHEMA others CASCADE")


def test_a_key_that_vanished_keeps_its_column_and_says_since_when(database: str, put: Put, query: Query) -> None:
    then = datetime.now(tz=UTC) - timedelta(days=30)
    put("e-1", {"old_name": 1}, at=then)
    fields.apply(database)
    query("DELETE FROM stepwell_g1.steps")
    put("e-2", {"new_name": 2})
    fields.apply(database)
    known = columns(database, "step_metrics")
    assert abs(known["old_name"].last_seen - then) < timedelta(seconds=1)
    assert known["new_name"].first_seen > then + timedelta(days=29)
    assert query("SELECT old_name, new_name FROM stepwell_views.step_metrics") == [(None, 2.0)]


def test_names_are_safe_and_never_clash(database: str, put: Put, query: Query) -> None:
    keys = ["a.b", "a_b", "A-B", "step", "rest", "1st", "", '"; DROP TABLE x; --', "ключ", "x" * 80, "x" * 81, "%s {}"]
    put("e-1", {key: number for number, key in enumerate(keys)})
    fields.apply(database)
    known = columns(database, "step_metrics")
    assert sorted(field.path[0] for field in known.values()) == sorted(keys)
    assert {"a_b", "a_b_2", "a_b_3", "step_2", "rest_2", "k_1st", "key", "key_2", "drop_table_x", "s"} <= set(known)
    for name, field in known.items():
        assert query(f'SELECT "{name}" FROM stepwell_views.step_metrics') == [(float(keys.index(field.path[0])),)]
    assert all(len(name) <= 63 for name in known)


HOSTILE: tuple[object, ...] = (
    [], "text", 3, None, {}, {"n": 10**400}, {"n": -(10**400)}, {"n": ""}, {"n": {}}, {"n": None}, {"n": [[[1]]]},
    {"n": "NaN"}, {"n": "-inf"},
)  # fmt: skip


def test_no_document_fails_a_query(database: str, put: Put, query: Query) -> None:
    put("e-0", {"n": 1.0})
    fields.apply(database)
    put("e-1", *HOSTILE)
    asked = "SELECT n, rest FROM stepwell_views.step_metrics WHERE episode_id = 'e-1' ORDER BY step"
    for rest_of_others in (True, False):
        rows = query(asked)
        for document, (number, rest) in zip(HOSTILE, rows, strict=True):
            value = document.get("n") if isinstance(document, dict) else None
            if value in ("NaN", "-inf"):
                assert isinstance(number, float)
                assert not math.isfinite(number)
                assert rest is None
            else:
                assert number is None
                assert rest == ({"n": value} if value is not None and rest_of_others else None)
        fields.apply(database)
    assert list(columns(database, "step_metrics")) == ["n", "n_json", "n_text"]


def test_a_look_is_bounded_and_a_look_at_everything_is_not(
    database: str, put: Put, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fields, "_EACH", 2)
    long_ago = datetime.now(tz=UTC) - timedelta(days=300)
    put("rare", {"rare": 1}, at=long_ago)
    put("other", {"of_another_task": 1}, task="sim/other", at=long_ago)
    for number in range(3):
        put(f"e-{number}", {"common": 1})
    assert fields.apply(database) == ["step_metrics.common", "step_metrics.of_another_task"]
    assert query("SELECT rest FROM stepwell_views.step_metrics WHERE episode_id = 'rare'") == [({"rare": 1},)]
    assert fields.apply(database, everything=True) == ["step_metrics.rare"]
    assert query("SELECT rare, rest FROM stepwell_views.step_metrics WHERE episode_id = 'rare'") == [(1.0, None)]


def test_a_metric_whose_unit_changed_gives_two_views(
    database: str, log: MessageLog, drain: Callable[..., None], query: Query
) -> None:
    sent = facts.telemetry("worker-1", 1)
    for number, unit in enumerate(("N", "lbf")):
        gauge = model.Series(metric="grip.force", unit=unit)
        more: dict[str, Any] = {"series": (gauge,), "point_series": (0,), "point_start_at": sent.point_start_at[:1]}
        more |= {"point_at": sent.point_at[:1], "point_value": (2.5,), "distributions": (), "sample_seq": number}
        facts.publish(log, [facts.again(sent, **more)])
    drain()
    fields.apply(database)
    views = query("SELECT view, unit FROM stepwell.metric_views ORDER BY view")
    assert views == [("metric_grip_force", "N"), ("metric_grip_force_lbf_gauge", "lbf")]
    for view, _ in views:
        assert query(f"SELECT worker_id, value FROM stepwell_views.{view}") == [("worker-1", 2.5)]
    assert query("SELECT count(*) FROM stepwell.telemetry WHERE metric = 'grip.force'") == [(2,)]


def test_a_meaning_that_no_program_can_see_is_split_by_hand(database: str, put: Put, query: Query) -> None:
    then = datetime(2026, 5, 1, tzinfo=UTC)
    put("e-1", {"force": 1.0}, at=then - timedelta(days=1))
    put("e-2", {"force": 1000.0}, at=then)
    fields.apply(database)
    fields.describe(database, "step_metrics", "force", "Grip force in N.")
    assert fields.split(database, "step_metrics", "force", then) == "force_2"
    assert query("SELECT force, force_2, rest FROM stepwell_views.step_metrics ORDER BY occurred_at") == [
        (1.0, None, None), (None, 1000.0, None),
    ]  # fmt: skip
    assert fields.apply(database) == []
    (comment,) = query("SELECT col_description('stepwell_views.step_metrics'::regclass, 6)")[0]
    assert comment == 'Key ["force"], number. Grip force in N. Until 2026-05-01 00:00:00+00.'
    with pytest.raises(NotFoundError, match="in use"):
        fields.split(database, "step_metrics", "force", then)
    with pytest.raises(ConfigurationError, match="began at"):
        fields.split(database, "step_metrics", "force_2", then - timedelta(days=1))
    with pytest.raises(NotFoundError):
        fields.describe(database, "step_metrics", "nothing", "?")


def test_the_views_survive_a_migration_that_must_drop_what_they_are_built_on(
    database: str, put: Put, query: Query
) -> None:
    put("e-1", {"a": 1})
    fields.apply(database)
    query("DROP VIEW IF EXISTS stepwell.step_log CASCADE")
    # A column in another place: no view can be replaced in place by that.
    first = "SELECT DISTINCT ON (episode_id, attempt) "
    told = [replace(file, sql=file.sql.replace(f"{first}*", f"{first}1 AS first, *")) for file in packaged().views]
    assert told != list(packaged().views)
    with psycopg.connect(database, autocommit=True) as connection, connection.transaction(force_rollback=True):
        assert make_views(connection, told)
        assert connection.execute("SELECT a FROM stepwell_views.step_metrics").fetchall() == [(1.0,)]
    query("CREATE SCHEMA IF NOT EXISTS others")
    query("CREATE VIEW others.built_on_it AS SELECT a FROM stepwell_views.step_metrics")
    with (
        psycopg.connect(database, autocommit=True) as connection,
        pytest.raises(MigrationError, match=r"something else is built on it.*built_on_it"),
        connection.transaction(),
    ):
        make_views(connection, told)
    query("DROP SCHEMA others CASCADE")
    query("DELETE FROM stepwell.made_views")
    migrate(database)
    assert query("SELECT a FROM stepwell_views.step_metrics") == [(1.0,)]


def test_dropped_views_come_back_with_the_same_columns(database: str, put: Put, query: Query) -> None:
    put("e-1", {"b": 1, "a": 2})
    fields.apply(database)
    before = query("SELECT * FROM stepwell_views.step_metrics")
    assert fields.drop(database)
    assert not fields.drop(database)
    assert not any(field.made for field in fields.read_fields(database))
    query("DELETE FROM stepwell_g1.steps")
    assert fields.apply(database) == []
    put("e-2", {"b": 1, "a": 2})
    assert [row[4:] for row in query("SELECT * FROM stepwell_views.step_metrics")] == [row[4:] for row in before]
