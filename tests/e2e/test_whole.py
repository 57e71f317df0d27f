"""The whole, as its users see it: a run, the workers, the tables, a pattern, a subscriber, a replay, a verification."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from stepwell.adapters.logs import open_log
from stepwell.adapters.parts.kafka import KafkaPart
from stepwell.adapters.subscriber import Subscription, Wanted
from stepwell.events.codec import Codec

DEADLINE_S = 180.0
SPEC = """\
run: whole
seeds: [1, 2, 3, 4, 5, 6]
max_steps: 60
parallel: 2
scenes:
  - {name: balance, task: gymnasium/InvertedPendulum-v5, options: {success_steps: 30}}
policies:
  - {name: good, kind: pendulum_balancer}
  - {name: nan, kind: pendulum_balancer, defects: [{kind: nan_action, options: {at_step: 3}}]}
"""


@dataclass
class Place:
    """Where everything lies."""

    settings: dict[str, str]
    directory: Path

    def run(self, *arguments: str, code: int = 0) -> str:
        """Run ``stepwell``; what it prints."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("STEPWELL_")}
        if parts := os.environ.get("STEPWELL_PARTS"):
            environment["STEPWELL_PARTS"] = parts
        done = subprocess.run(
            [sys.executable, "-m", "stepwell", *arguments],
            env=environment | self.settings,
            cwd=self.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == code, done.stdout
        return done.stdout

    def rows(self, *arguments: str) -> list[dict[str, object]]:
        """The lines of JSON that a command prints."""
        return [json.loads(line) for line in self.run(*arguments).splitlines() if line.startswith("{")]


@pytest.fixture(scope="module")
def own_kafka() -> Iterator[str]:
    """A node of its own: the commands use the topics' real names."""
    node = KafkaPart()
    try:
        yield node.start()
    finally:
        node.stop()


@pytest.fixture(scope="module", params=["local", "kafka"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A run of twelve episodes, judged and projected; on the embedded default, and on Kafka with TimescaleDB."""
    directory = tmp_path_factory.mktemp(request.param)
    settings = {"STEPWELL_HOME": str(directory / "home")}
    if request.param == "kafka":
        settings["STEPWELL_LOG"] = f"kafka://{request.getfixturevalue('own_kafka')}"
        settings["STEPWELL_DATABASE"] = request.getfixturevalue("timescale_url")
    place = Place(settings, directory)
    (directory / "spec.yaml").write_text(SPEC)
    place.run("topics", "create")
    place.run("run", "spec.yaml", "--run-id", "w1")
    place.run("work", "--until-idle", "--no-telemetry")
    try:
        yield place
    finally:
        if request.param == "local":
            place.run("db", "stop")


def database_url(place: Place) -> str:
    return place.run("db", "url").splitlines()[-1]


def test_episodes_lists_what_each_came_to(place: Place) -> None:
    rows = place.rows("episodes", "--json")
    assert len(rows) == 12
    assert {(row["policy"], row["outcome"], row["failure_type"]) for row in rows} == {
        ("good", "success", None),
        ("nan", "failure", "invalid_action"),
    }
    assert len(place.rows("episodes", "--json", "--outcome", "failure", "--limit", "4")) == 4
    assert "expected one of success" in place.run("episodes", "--outcome", "failed", code=2)


def test_show_and_replay_agree_with_the_verdict_on_record(place: Place) -> None:
    episode = str(place.rows("episodes", "--json", "--policy", "nan")[0]["episode"])
    shown = place.run("show", episode)
    assert "failure: invalid_action, policy's fault (revision 1)" in shown
    assert "evidence complete: 0 lost, 0 late, 0 doubled, 0 violations" in shown
    replayed = place.run("replay", episode)
    assert "same verdict as on record" in " ".join(replayed.split())
    assert replayed.count("sim::step_done") == 3
    steps = place.rows("replay", episode, "--json")
    assert [step["type"] for step in steps[:3]] == ["episode::requested", "episode::claimed", "sim::ready"]
    assert all(step["replay"]["fate"] in ("applied", "noted") for step in steps)  # type: ignore[index]


def test_wrong_ids_get_a_clear_answer(place: Place) -> None:
    assert "no episode in the log begins with 'nope'" in place.run("show", "nope", code=1)
    assert "12 episodes begin with 'ep-'" in place.run("replay", "ep-", code=1)
    assert "verify wants either episodes or --all" in place.run("verify", code=2)


def test_the_tables_answer_the_questions_of_operations(place: Place) -> None:
    with psycopg.connect(database_url(place)) as connection:
        assert connection.execute("SELECT count(*) FROM stepwell.running_now").fetchone() == (0,)
        assert connection.execute("SELECT count(*) FROM stepwell.stuck_episodes").fetchone() == (0,)
        behind = connection.execute(
            "SELECT sum(behind_events) FROM stepwell.pipeline_lag WHERE topic <> 'stepwell.telemetry'"
        ).fetchone()
        assert behind == (0,)
        counts = connection.execute(
            "SELECT planned, attempted, errored, scored, succeeded FROM stepwell.run_summary WHERE run_id = 'w1'"
        ).fetchone()
        assert counts == (12, 12, 0, 12, 6)


def test_a_trainer_that_dies_over_a_request_gets_it_again(place: Place) -> None:
    log = open_log(place.settings.get("STEPWELL_LOG", f"local:{place.directory / 'home' / 'log'}"))
    seen = []
    inbox = place.directory / "dies.db"
    for handle in (False, True):
        wanted = Wanted(policies=frozenset({"nan"}))
        with Subscription(log, Codec(), "e2e-dies", inbox=inbox, wanted=wanted) as subscription:
            delivery = subscription.receive(DEADLINE_S)
            assert delivery is not None
            seen.append((delivery.event.trigger_id, delivery.source, delivery.offset))
            if handle:
                subscription.handled()
    assert seen[0] == seen[1]
    with Subscription(log, Codec(), "e2e-dies", inbox=inbox) as subscription:
        assert subscription.receive(5.0) is None
    log.close()


def test_the_pattern_reaches_a_subscriber_which_answers(place: Place) -> None:
    (request,) = place.rows("retrain", "list", "--json")
    assert (request["type"], request["policy"], request["failure_type"]) == (
        "retrain::requested",
        "nan",
        "invalid_action",
    )
    evidence = request["evidence"]
    assert isinstance(evidence, list)
    assert len(evidence) == 5
    handler = f"{sys.executable} -c \"import json,sys; print('checkpoint:', json.load(sys.stdin)['policy'] + '-2')\""
    heard = place.run("retrain", "listen", "--limit", "1", "--group", "e2e", "--run", handler)
    assert f"{request['trigger_id']}  nan  done" in heard
    place.run("work", "--until-idle", "--no-telemetry")
    with psycopg.connect(database_url(place)) as connection:
        answered = connection.execute("SELECT status, new_checkpoint FROM stepwell.retrain_status").fetchall()
    assert answered == [("done", "nan-2")]


ONE = """WHERE (source_partition, source_offset) = (
    SELECT source_partition, max(source_offset) FROM stepwell.steps GROUP BY 1 ORDER BY 1 LIMIT 1)"""
DAMAGES = {
    "changed step": (
        f"UPDATE stepwell.steps SET reward = reward + 1 {ONE}",
        f"UPDATE stepwell.steps SET reward = reward - 1 {ONE}",
        "reward is",
    ),
    "changed verdict": (
        "UPDATE stepwell.verdicts SET outcome = 'success' WHERE policy = 'nan'",
        "UPDATE stepwell.verdicts SET outcome = 'failure' WHERE policy = 'nan'",
        "outcome is 'success'",
    ),
    "lost step": (
        f"CREATE TABLE public.kept AS SELECT * FROM stepwell.steps {ONE}; DELETE FROM stepwell.steps {ONE}",
        "INSERT INTO stepwell.steps SELECT * FROM public.kept; DROP TABLE public.kept",
        "missing",
    ),
    "forged episode": (
        """CREATE TABLE public.kept AS SELECT * FROM stepwell.episodes LIMIT 1;
        UPDATE public.kept SET episode_id = 'ep-forged'; INSERT INTO stepwell.episodes SELECT * FROM public.kept""",
        "DELETE FROM stepwell.episodes WHERE episode_id = 'ep-forged'; DROP TABLE public.kept",
        "no record asks for it",
    ),
}
"""What is done to the tables, what undoes it, and how the difference is named."""


def test_a_damaged_row_is_named(place: Place) -> None:
    assert "no difference" in place.run("verify", "--all")
    for name, (damage, mend, told) in DAMAGES.items():
        with psycopg.connect(database_url(place), autocommit=True) as connection:
            connection.execute(damage.encode())
            try:
                output = place.run("verify", "--all", code=1)
            finally:
                connection.execute(mend.encode())
        assert "first difference: table " in output, name
        assert told in output, name
    assert "no difference" in place.run("verify", "--all")
