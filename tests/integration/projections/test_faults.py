"""Killed, cut off, fenced: the tables end up as if nothing had happened."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from stepwell.adapters.logs import open_log
from stepwell.adapters.parts.embedded_postgres import EmbeddedPostgres
from stepwell.engine.ports import MessageLog, TopicPartition
from stepwell.exceptions import DatabaseUnavailableError
from stepwell.projections.schema.migrate import migrate
from stepwell.projections.writing.projector import Projector
from tests.integration.projections import facts
from tests.integration.projections.conftest import Running

STEPS = 60
EPISODES = ("e-1", "e-2", "e-3", "e-4", "e-5")

# Runs a projector that kills itself, as kill -9 does, at the n-th time it comes to a place.
SUICIDAL = """
import os, signal, sys, threading
from stepwell.adapters.logs import open_log
from stepwell.events.codec import Codec
from stepwell.projections.writing import writer
from stepwell.projections.writing.projector import Projector

place, countdown, log, url = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]

def deadly(function):
    def call(self, *arguments, **options):
        global countdown
        result = function(self, *arguments, **options)
        countdown -= 1
        if countdown <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return call

if place == "position moved":       # within the transaction, before the rows
    writer.BatchWriter._advance = deadly(writer.BatchWriter._advance)
elif place == "rows written":       # within the transaction, before its commit
    writer.BatchWriter._write = deadly(writer.BatchWriter._write)
elif place == "committed":          # in the database, not on the log
    writer.BatchWriter.write = deadly(writer.BatchWriter.write)
elif place == "advice":             # before the position is committed on the log
    Projector._tell = deadly(Projector._tell)
Projector(open_log(log), url, Codec(), batch_records=7).run(threading.Event())
"""


def expected_counts() -> dict[str, int]:
    return {"steps": STEPS * len(EPISODES), "actions": STEPS * len(EPISODES), "episodes": len(EPISODES)}


def counts(url: str) -> dict[str, int]:
    with psycopg.connect(url) as connection:
        return {
            table: connection.execute(f"SELECT count(*) FROM stepwell.{table}").fetchone()[0]  # type: ignore[index]
            for table in expected_counts()
        }


@pytest.fixture
def local_log(tmp_path: Path) -> Iterator[tuple[str, MessageLog]]:
    url = f"local:{tmp_path / 'log'}"
    log = open_log(url)
    for name in EPISODES:
        facts.publish(log, facts.episode(name, STEPS))
    yield url, log
    log.close()


@pytest.fixture
def fresh_url(new_database: Callable[[], str]) -> str:
    url = new_database()
    migrate(url)
    return url


def test_killed_at_any_place_nothing_is_lost_or_doubled(local_log: tuple[str, MessageLog], fresh_url: str) -> None:
    log_url, log = local_log
    places = ("position moved", "rows written", "committed", "advice")
    for number, place in enumerate(places * 2):
        command = [sys.executable, "-c", SUICIDAL, place, str(1 + number * 3), log_url, fresh_url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr
    with Running(Projector(log, fresh_url, facts.CODEC), log) as projector:
        projector.wait_caught_up()
    assert counts(fresh_url) == expected_counts()
    with psycopg.connect(fresh_url) as connection:
        doubled = connection.execute("SELECT sum(records) FROM stepwell.sink_offsets").fetchone()
    assert doubled == (len(EPISODES) * (2 * STEPS + 2),)  # each record was counted in exactly one transaction


def test_postgres_is_killed_in_the_middle_and_comes_back(tmp_path: Path, log: MessageLog) -> None:
    server = EmbeddedPostgres(tmp_path / "database", fast=True)
    url = server.start()
    try:
        migrate(url)
        facts.publish(log, facts.episode("e-1", STEPS))
        with Running(Projector(log, url, facts.CODEC, batch_records=10), log) as projector:
            projector.wait(lambda: projector.projector.batches_written > 2)
            for name in EPISODES[1:]:
                server.kill9()
                facts.publish(log, facts.episode(name, STEPS))
                assert server.start() == url
            projector.wait_caught_up()
        assert counts(url) == expected_counts()
    finally:
        server.stop(force=True)


def test_an_embedded_server_that_was_killed_is_started_again_by_the_projector_and_a_stopped_one_is_not(
    tmp_path: Path,
) -> None:
    server = EmbeddedPostgres(tmp_path / "database", fast=True)
    log = open_log(f"local:{tmp_path / 'log'}")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STEPWELL_")}
    environment["STEPWELL_HOME"] = str(tmp_path)
    migrate(url := server.start())
    facts.publish(log, facts.episode("e-1", 3))
    command = [sys.executable, "-m", "stepwell", "projector", "--no-telemetry"]
    with (tmp_path / "said").open("w") as said:
        projector = subprocess.Popen(command, env=environment, stderr=said)
    try:
        for episodes in (1, 2, 3):
            wait_until(lambda count=episodes: reached(server, count), projector)  # type: ignore[misc]
            server.kill9()
            facts.publish(log, facts.episode(f"e-{episodes + 1}", 3))
        wait_until(lambda: reached(server, 4), projector)
        assert server.url() == url
        server.stop(force=True)
        wait_until(lambda: (tmp_path / "said").read_text().count("database is away") == 4, projector)
        assert not server.running
    finally:
        projector.terminate()
        projector.wait(60)
        server.stop(force=True)
        log.close()
    assert projector.returncode == 0


def reached(server: EmbeddedPostgres, episodes: int) -> bool:
    """Whether the server runs and has so many episodes. It is not this process that starts it."""
    try:
        with psycopg.connect(server.url()) as connection:
            return connection.execute("SELECT count(*) FROM stepwell.episodes").fetchone() == (episodes,)
    except (DatabaseUnavailableError, psycopg.OperationalError, OSError):
        return False


def wait_until(ready: Callable[[], bool], process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 90
    while not ready():
        assert process.poll() is None, "the projector ended"
        assert time.monotonic() < deadline, "not within 90 s"
        time.sleep(0.1)


class SilentProxy:
    """Passes bytes to a server and back, until told to be silent: then it takes everything and answers nothing."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.silent = threading.Event()
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            server = socket.create_connection(self._target)
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                if not self.silent.is_set():
                    sink.sendall(data)
        except OSError:
            pass
        finally:
            source.close()
            sink.close()

    def close(self) -> None:
        self._listener.close()


def test_a_database_that_falls_silent_is_given_up_and_found_again(fresh_url: str, log: MessageLog) -> None:
    parts = urlsplit(fresh_url)
    assert parts.hostname is not None
    assert parts.port is not None
    proxy = SilentProxy((parts.hostname, parts.port))
    through = urlunsplit(parts._replace(netloc=f"{parts.username}:{parts.password}@127.0.0.1:{proxy.port}"))
    try:
        facts.publish(log, facts.episode("e-1", STEPS))
        with Running(Projector(log, through, facts.CODEC, statement_timeout_s=0.5), log) as projector:
            projector.wait_caught_up()
            proxy.silent.set()
            facts.publish(log, facts.episode("e-2", STEPS))
            seen = proxy.connections
            projector.wait(lambda: proxy.connections > seen)  # it dropped the silent connection and tries anew
            proxy.silent.clear()
            for name in EPISODES[2:]:
                facts.publish(log, facts.episode(name, STEPS))
            projector.wait_caught_up()
        assert counts(fresh_url) == expected_counts()
    finally:
        proxy.close()


def test_two_projectors_share_the_partitions(fresh_url: str, log: MessageLog) -> None:
    one, two = (Running(Projector(log, fresh_url, facts.CODEC, slot=n, batch_records=5), log) for n in range(2))
    with one:
        facts.publish(log, facts.episode("e-1", STEPS))
        with two:
            for name in EPISODES[1:]:
                facts.publish(log, facts.episode(name, STEPS))
            one.wait(lambda: bool(two.projector.positions))
        one.wait(lambda: counts(fresh_url) == expected_counts())
    assert two.error is None


def test_stopping_finishes_the_batch(fresh_url: str, log: MessageLog) -> None:
    facts.publish(log, facts.episode("e-1", STEPS))
    with Running(Projector(log, fresh_url, facts.CODEC, batch_records=3), log) as projector:
        projector.wait(lambda: projector.projector.batches_written > 1)
    assert projector.error is None
    with psycopg.connect(fresh_url) as connection:
        positions: Any = connection.execute(
            "SELECT topic, partition, next_offset FROM stepwell.sink_offsets WHERE next_offset > 0"
        ).fetchall()
    consumer = log.consumer("stepwell-projector")
    for topic, partition, next_offset in positions:
        source = TopicPartition(topic, partition)
        assert consumer.committed([source])[source] == next_offset
    consumer.close()


def test_embedded_server_survives_kill9_and_foreign_pids(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / "with space", fast=True)
    url = server.start()
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE kept (a int)")
        connection.execute("INSERT INTO kept VALUES (1)")
    server.kill9()
    pid_file = tmp_path / "with space" / "data" / "postmaster.pid"
    lines = pid_file.read_text().splitlines()
    # Meanwhile another program got the dead server's number: this very test.
    pid_file.write_text("\n".join([str(os.getpid()), *lines[1:]]) + "\n")
    other = EmbeddedPostgres(tmp_path / "with space", fast=True)
    try:
        assert not other.running
        assert other.start() == url  # same port, same password
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT a FROM kept").fetchall() == [(1,)]
        assert server.start() == url
        assert not other.stop(), "another user is left"
        assert server.stop()
        assert not server.running
        mode = (tmp_path / "with space" / "password").stat().st_mode & 0o777
        assert mode == 0o600
    finally:
        server.stop(force=True)
