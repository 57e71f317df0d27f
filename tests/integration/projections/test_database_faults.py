"""The database is away for long, cut off within a COMMIT, full, or in a deadlock: nothing is lost or doubled."""

import os
import random
import socket
import string
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import SplitResult, urlsplit, urlunsplit

import psycopg
import pytest

from stepwell.adapters.logs.memory import MemoryLog
from stepwell.adapters.parts.embedded_postgres import EmbeddedPostgres
from stepwell.engine.ports import MessageLog
from stepwell.projections.audit.rows import audit_tables
from stepwell.projections.schema.migrate import migrate
from stepwell.projections.writing.projector import Projector
from tests.integration.projections import facts
from tests.integration.projections.conftest import Running

STEPS = 30


@pytest.fixture
def fresh_url(new_database: Callable[[], str]) -> str:
    url = new_database()
    migrate(url)
    return url


def assert_as_the_log_says(log: MessageLog, url: str, episodes: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        assert connection.execute("SELECT count(*) FROM stepwell.steps").fetchone() == (STEPS * episodes,)
        assert audit_tables(log, facts.CODEC, connection).differences == []
        records = connection.execute("SELECT sum(records) FROM stepwell.sink_offsets").fetchone()
    assert records == (episodes * (2 * STEPS + 2),), "each record was counted in exactly one transaction"


def test_a_database_that_is_away_for_long_costs_no_membership(tmp_path: Path) -> None:
    """Away for many times as long as a silent member is given: 15 minutes at Kafka's 5, here 4 s at 1."""
    server = EmbeddedPostgres(tmp_path / "database", fast=True)
    log = MemoryLog(session_timeout_s=1.0, poll_interval_max_s=1.0)
    try:
        migrate(url := server.start())
        facts.publish(log, facts.episode("e-1", STEPS))
        projector = Projector(log, url, facts.CODEC)
        assigned = []
        remember = projector._assigned
        projector._assigned = lambda consumer, new: assigned.append(new) or remember(consumer, new)  # type: ignore[method-assign,func-returns-value]
        with Running(projector, log) as running:
            running.wait_caught_up()
            server.stop(force=True)
            facts.publish(log, facts.episode("e-2", STEPS))
            time.sleep(4)
            assert running.error is None
            server.start()
            running.wait_caught_up()
        assert len(assigned) == 1, "its partitions were never taken away"
        assert_as_the_log_says(log, url, 2)
    finally:
        server.stop(force=True)
        log.close()


class CommitCutter:
    """Passes bytes to a server and back; cuts off at every third COMMIT, before it or before its answer."""

    def __init__(self, target: SplitResult) -> None:
        assert target.hostname is not None
        assert target.port is not None
        self._target = (target.hostname, target.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.commits = self.cuts = 0
        self.off = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        server = socket.create_connection(self._target)
        mute = threading.Event()
        threading.Thread(target=self._answer, args=(server, client, mute), daemon=True).start()
        try:
            while data := client.recv(65536):
                if b"COMMIT" in data and self._is_cut():
                    if self.cuts % 2:
                        mute.set()
                        server.sendall(data)
                        time.sleep(0.1)  # it commits, and nobody hears of it
                    break
                server.sendall(data)
        except OSError:
            pass
        finally:
            for end in (server, client):
                # Closing alone wakes nobody who reads.
                end.shutdown(socket.SHUT_RDWR) if end.fileno() >= 0 else None
                end.close()

    def _is_cut(self) -> bool:
        self.commits += 1
        if self.off or self.commits % 3:
            return False
        self.cuts += 1
        return True

    def _answer(self, server: socket.socket, client: socket.socket, mute: threading.Event) -> None:
        try:
            while data := server.recv(65536):
                if not mute.is_set():
                    client.sendall(data)
        except OSError:
            pass

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def cutter(fresh_url: str) -> Iterator[CommitCutter]:
    proxy = CommitCutter(urlsplit(fresh_url))
    yield proxy
    proxy.close()


def test_a_commit_whose_outcome_nobody_knows_is_done_once(
    cutter: CommitCutter, fresh_url: str, log: MessageLog
) -> None:
    parts = urlsplit(fresh_url)
    through = urlunsplit(parts._replace(netloc=f"{parts.username}:{parts.password}@127.0.0.1:{cutter.port}"))
    for number in range(4):
        facts.publish(log, facts.episode(f"e-{number}", STEPS))
    with Running(Projector(log, through, facts.CODEC, batch_records=20), log) as projector:
        projector.wait(lambda: cutter.cuts >= 6)
        cutter.off = True
        projector.wait_caught_up()
    assert_as_the_log_says(log, fresh_url, 4)


def test_a_deadlock_is_the_projector_s_to_lose_and_it_tries_again(fresh_url: str, log: MessageLog) -> None:
    facts.publish(log, facts.episode("e-1", STEPS))
    with psycopg.connect(fresh_url) as other, Running(Projector(log, fresh_url, facts.CODEC), log) as projector:
        projector.wait_caught_up()
        other.execute("SET deadlock_timeout = '60s'")  # so that it is the other side that looks for it
        other.execute("SELECT 1 FROM stepwell_g1.episodes WHERE episode_id = 'e-1' FOR UPDATE")
        other.execute("LOCK TABLE stepwell_g1.runs IN EXCLUSIVE MODE")
        facts.publish(log, facts.episode("e-2", STEPS))
        projector.wait(lambda: waits_for_a_lock(fresh_url))
        other.execute("SELECT 1 FROM stepwell_g1.sink_offsets FOR UPDATE")
        other.rollback()
        projector.wait_caught_up()
    assert_as_the_log_says(log, fresh_url, 2)


@pytest.mark.parametrize(
    ("state", "said"),
    [("42704", "chunk not found"), ("TS003", 'table "_hyper_1_2_chunk" is not a chunk'),
     ("XX000", "could not open relation with OID 17187")],
)  # fmt: skip
def test_a_chunk_that_is_dropped_under_a_batch_makes_the_projector_try_again(
    state: str, said: str, fresh_url: str, log: MessageLog
) -> None:
    """What TimescaleDB says then, said by a trigger: the first time, and never again."""
    with psycopg.connect(fresh_url, autocommit=True) as connection:
        connection.execute(f"""
            CREATE SEQUENCE public.tries;
            CREATE FUNCTION public.no_chunk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                IF nextval('public.tries') = 1 THEN RAISE EXCEPTION '%', '{said}' USING ERRCODE = '{state}'; END IF;
                RETURN NULL;
            END $$;
            CREATE TRIGGER no_chunk AFTER INSERT ON stepwell_g1.steps
            FOR EACH STATEMENT EXECUTE FUNCTION public.no_chunk()
        """)
    facts.publish(log, facts.episode("e-1", STEPS))
    with Running(Projector(log, fresh_url, facts.CODEC), log) as projector:
        projector.wait_caught_up()
    with psycopg.connect(fresh_url) as connection:
        assert connection.execute("SELECT last_value FROM public.tries").fetchone() > (1,)
    assert_as_the_log_says(log, fresh_url, 1)


def waits_for_a_lock(url: str) -> bool:
    with psycopg.connect(url) as connection:
        waiting = connection.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()
    return waiting != (0,)


# In a user and mount namespace of its own, with a small disk that only it sees.
ON_A_SMALL_DISK = """
import errno, os, subprocess, sys, threading, time
from pathlib import Path
import psycopg
from stepwell.adapters.logs.memory import MemoryLog
from stepwell.adapters.parts.embedded_postgres import EmbeddedPostgres
from stepwell.projections.audit.rows import audit_tables
from stepwell.projections.schema.migrate import migrate
from stepwell.projections.writing.projector import Projector
from tests.integration.projections import facts
from tests.integration.projections.conftest import Running

disk = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=192m", "tmpfs", str(disk)], check=True)
server = EmbeddedPostgres(disk / "database", fast=True)
log = MemoryLog()
migrate(server.start())
facts.publish(log, facts.episode("e-0", 30))
try:
    with Running(Projector(log, server.url(), facts.CODEC, locate=server.revive), log) as projector:
        projector.wait_caught_up()
        ballast = disk / "ballast"
        with ballast.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(65536)):
                    pass
            except OSError as error:
                assert error.errno == errno.ENOSPC
        number = 0
        while projector.projector._away_since is None:
            number += 1
            facts.publish(log, facts.episode(f"e-{number}", 30))
            projector.wait(lambda: projector.projector._away_since is not None or not behind(projector, log))
            assert number < 2000, "the disk never filled up"
        time.sleep(1)
        assert projector.error is None
        ballast.unlink()
        projector.wait_caught_up()
    with psycopg.connect(server.revive(), autocommit=True) as connection:
        steps = connection.execute("SELECT count(*) FROM stepwell.steps").fetchone()[0]
        assert audit_tables(log, facts.CODEC, connection).differences == []
    print("steps", steps, "of", 30 * (number + 1))
finally:
    server.stop(force=True)
"""
BEHIND = """
def behind(projector, log):
    ends = {s: m.high for topic in facts_topics for s, m in log.admin().watermarks(topic).items()}
    return any(projector.projector.positions.get(source, -1) < end for source, end in ends.items())
from stepwell.projections.writing.rows import PROJECTED_TOPICS as facts_topics
"""


def test_a_full_disk_is_waited_out(tmp_path: Path) -> None:
    command = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-c", BEHIND + ON_A_SMALL_DISK]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    done = subprocess.run(
        [*command, str(tmp_path)], capture_output=True, text=True, timeout=200, check=False, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "database is away" in done.stdout + done.stderr
    said = done.stdout.strip().splitlines()[-1].split()
    assert said[0] == "steps"
    assert said[1] == said[3]
    assert int(said[1]) > 30


def test_what_is_too_long_for_an_index_is_set_aside_and_the_batch_goes_on(fresh_url: str, log: MessageLog) -> None:
    """No index entry may be longer than a third of a page, compressed. Of texts without a limit, letters have some."""
    endless = "".join(random.Random(7).choices(string.ascii_letters + string.digits, k=20_000))
    facts.publish(log, [
        facts.dead_letter(), facts.dead_letter(episode_id=endless), facts.dead_letter(reason=endless),
        facts.dead_letter(source_topic=endless), facts.dead_letter(source_offset=4), *facts.episode("e-1", STEPS),
    ])  # fmt: skip
    with Running(Projector(log, fresh_url, facts.CODEC), log) as projector:
        projector.wait_caught_up()
    counts = "SELECT kind, reason, count(*) FROM stepwell.dead_letters GROUP BY kind, reason ORDER BY kind"
    with psycopg.connect(fresh_url, autocommit=True) as connection:
        found = connection.execute(counts).fetchall()
        assert connection.execute("SELECT count(*) FROM stepwell.steps").fetchone() == (STEPS,)
        assert audit_tables(log, facts.CODEC, connection).differences == []
    assert found == [("refused", "program-limit-exceeded", 3), ("violation", "foreign", 2)]
