"""The stack's database steps, on real PostgreSQL: users made by its script, roles granted by its one-shots, no more."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
import yaml

from stepwell.adapters.logs import open_log
from stepwell.adapters.parts.embedded_postgres import EmbeddedPostgres, binaries
from stepwell.engine.publish import outgoing
from stepwell.events.codec import Codec
from stepwell.events.topics import TOPICS
from tests.unit.engine.episodes import Facts

COMPOSE = Path(__file__).resolve().parents[2] / "compose"
SERVICES = yaml.safe_load((COMPOSE / "compose.yaml").read_text(encoding="utf-8"))["services"]
STEPS = ("migrate", "tune", "roles", "grant-projector", "grant-grafana")
WAIT_S = 60.0


class Database:
    """A server as the stack's, and the secrets that go with it."""

    def __init__(self, url: str, secrets: Path) -> None:
        self.parts = urlsplit(url)
        self.secrets = secrets

    def url(self, user: str) -> str:
        return f"postgresql://{user}@127.0.0.1:{self.parts.port}/stepwell"

    def settings(self, service: str) -> dict[str, str]:
        """The environment of a service, with this server and these secrets in the place of the stack's."""
        given = SERVICES[service]["environment"]
        return {
            "STEPWELL_DATABASE": given["STEPWELL_DATABASE"].replace("timescaledb:5432", f"127.0.0.1:{self.parts.port}"),
            "STEPWELL_DATABASE_PASSWORD_FILE": given["STEPWELL_DATABASE_PASSWORD_FILE"].replace(
                "/run/secrets", str(self.secrets)
            ),
        }

    def connect(self, user: str, secret: str) -> "psycopg.Connection[tuple[object, ...]]":
        password = (self.secrets / secret).read_text().strip()
        return psycopg.connect(self.url(user), password=password, autocommit=True)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    secrets = tmp_path_factory.mktemp("compose") / "secrets"
    subprocess.run(["sh", COMPOSE / "make_secrets.sh", secrets], check=True)
    server = EmbeddedPostgres(tmp_path_factory.mktemp("postgres"), fast=True)
    try:
        made = Database(server.start(), secrets)
        with psycopg.connect(server.url(), autocommit=True) as connection:
            password = (secrets / "database_password").read_text().strip()
            connection.execute(f"ALTER ROLE stepwell PASSWORD '{password}'".encode())
        script = {
            "PATH": f"{binaries()}:{os.environ['PATH']}", "SECRETS": str(secrets), "POSTGRES_USER": "stepwell",
            "POSTGRES_DB": "stepwell", "PGHOST": "127.0.0.1", "PGPORT": str(made.parts.port), "PGPASSWORD": password,
        }  # fmt: skip
        subprocess.run(["sh", COMPOSE / "timescaledb" / "users.sh"], env=script, check=True)
        for step in STEPS:
            run_step(made, step)
        yield made
    finally:
        server.stop(force=True)


def run_step(database: Database, step: str) -> str:
    command = [sys.executable, "-m", "stepwell", *SERVICES[step]["command"]]
    done = subprocess.run(
        command, env=os.environ | database.settings(step), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (step, done.stdout + done.stderr)
    return done.stdout + done.stderr


def test_every_step_can_be_repeated_as_an_upgrade_does(database: Database) -> None:
    for step in STEPS:
        run_step(database, step)


def test_the_projector_writes_and_grafana_reads_and_neither_can_do_more(database: Database, tmp_path: Path) -> None:
    log = open_log(f"local:{tmp_path / 'log'}")
    log.admin().create(TOPICS)
    producer = log.producer()
    producer.send([outgoing(Codec(), event) for event in Facts("ep-compose").whole()])
    producer.flush(10)
    producer.close()
    log.close()
    env = os.environ | database.settings("projector")
    env |= {"STEPWELL_LOG": f"local:{tmp_path / 'log'}", "STEPWELL_HOME": str(tmp_path)}
    said = tmp_path / "projector.log"
    with said.open("w") as output:
        worker = subprocess.Popen(
            [sys.executable, "-m", "stepwell", "projector", "--no-telemetry"], env=env, stdout=output, stderr=output,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        with database.connect("grafana", "database_reader_password") as reader:
            deadline = time.monotonic() + WAIT_S
            question = b"SELECT count(*) FROM stepwell.episodes WHERE episode_id = 'ep-compose'"
            while reader.execute(question).fetchone() != (1,):
                assert worker.poll() is None, said.read_text()
                assert time.monotonic() < deadline, said.read_text()
                time.sleep(0.2)
            reader.execute(b"SET default_transaction_read_only = off")  # a habit, which anybody may drop; grants hold
            for forbidden in (
                b"SELECT * FROM stepwell_g1.steps",
                b"DELETE FROM stepwell.episodes",
                b"CREATE TABLE stepwell.mine ()",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    reader.execute(forbidden)
    finally:
        worker.terminate()
        worker.wait(60)
    with database.connect("projector", "database_writer_password") as writer:
        for forbidden in (b"DROP TABLE stepwell_g1.steps", b"CREATE TABLE stepwell_g1.mine ()", b"CREATE ROLE other"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                writer.execute(forbidden)


def test_a_reader_over_its_limit_is_ended_by_the_service_for_that_and_more_than_once(database: Database) -> None:
    *command, every = SERVICES["cancel-overdue"]["command"]
    assert float(every) <= 60
    env = os.environ | database.settings("cancel-overdue") | {"STEPWELL_READER_STATEMENT_TIMEOUT_S": "1"}
    keeper = subprocess.Popen(
        [sys.executable, "-m", "stepwell", *command, "1"], env=env, stdout=subprocess.PIPE, text=True,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        for _ in range(2):
            with database.connect("grafana", "database_reader_password") as reader:
                reader.execute(b"SET statement_timeout = 0")
                with pytest.raises(psycopg.errors.QueryCanceled, match="user request"):
                    reader.execute(b"SELECT pg_sleep(60)")
            assert keeper.stdout is not None
            assert keeper.stdout.readline().split()[:2] == ["cancelled", "grafana"]
        assert keeper.poll() is None
    finally:
        keeper.terminate()
        keeper.communicate(timeout=30)
