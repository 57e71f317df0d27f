"""A rebuild that is killed anywhere goes on where it was, and nothing is lost or doubled."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from stepwell.adapters.logs import open_log
from stepwell.adapters.parts.embedded_postgres import EmbeddedPostgres
from stepwell.projections.audit.rows import audit_tables
from stepwell.projections.rebuild.rebuilder import Rebuilder
from stepwell.projections.schema.migrate import migrate
from stepwell.projections.writing.projector import Projector
from tests.integration.projections import facts
from tests.integration.projections.conftest import Running

# Rebuilds, and kills itself as kill -9 does at the n-th time it has come past a place.
SUICIDAL = """
import os, signal, sys
from stepwell.adapters.logs import open_log
from stepwell.events.codec import Codec
from stepwell.projections.schema import generations
from stepwell.projections.writing import writer
from stepwell.projections.rebuild import fill, rebuilder

place, countdown, log, url, *tables = sys.argv[1:]
countdown = int(countdown)
rebuilder._NEAR_RECORDS = fill._BATCH_RECORDS = 20
module, name = {
    "begun": (rebuilder, "begin_or_resume"), "batch": (writer.BatchWriter, "write"),
    "in a batch": (writer.BatchWriter, "_put"), "carried": (rebuilder, "carry_before"),
    "compared": (rebuilder, "note_compared"), "before the commit": (rebuilder, "put_in_force"),
    "handed over": (rebuilder.Rebuilder, "_hand_over_once"), "dropped": (rebuilder, "drop_retired"),
}[place]
function = getattr(module, name)

def deadly(*arguments, **options):
    global countdown
    result = function(*arguments, **options)
    countdown -= 1
    if countdown <= 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return result

setattr(module, name, deadly)
rebuilder.Rebuilder(open_log(log), lambda: url, Codec(), tables=tables or None).run()
"""
# Place, and the how many-th time.
ALL = [
    ("begun", 1), ("batch", 2), ("in a batch", 2), ("carried", 1), ("compared", 1), ("before the commit", 1),
    ("handed over", 1), ("dropped", 1),
]  # fmt: skip
SOME = [("batch", 1), ("before the commit", 1), ("handed over", 1)]


@pytest.mark.parametrize(("tables", "places"), [((), ALL), (("steps",), SOME)], ids=["all", "steps"])
def test_killed_at_any_place_it_goes_on(
    tables: tuple[str, ...], places: list[tuple[str, int]], new_database: Callable[[], str], tmp_path: Path
) -> None:
    url, log_url = new_database(), f"local:{tmp_path / 'log'}"
    migrate(url)
    log = open_log(log_url)
    for number in range(3):
        facts.publish(log, facts.episode(f"e-{number}", 20))
    facts.publish(log, [facts.verdict("e-1"), facts.telemetry("w-1", 1), facts.dead_letter()])
    with Running(Projector(log, url, facts.CODEC), log) as projector:
        projector.wait_caught_up()
        for number, (place, count) in enumerate(places):
            command = [sys.executable, "-c", SUICIDAL, place, str(count), log_url, url, *tables]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            assert done.returncode == -signal.SIGKILL, (place, done.stderr)
            facts.publish(log, facts.episode(f"later-{number}", 2))
        outcome = Rebuilder(log, lambda: url, facts.CODEC).run()
        assert outcome.ended == "done"
        projector.wait_caught_up()
    with psycopg.connect(url) as connection:
        assert audit_tables(log, facts.CODEC, connection).differences == []
        steps = connection.execute("SELECT count(*) FROM stepwell.steps").fetchone()
        schemas = connection.execute("SELECT nspname FROM pg_namespace WHERE nspname ~ '^stepwell_g'").fetchall()
    assert steps == (60 + 2 * len(places),)
    assert len(schemas) == 1
    log.close()


def test_the_server_dies_under_a_rebuild_and_it_waits_and_goes_on(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / "database", fast=True)
    log = open_log(f"local:{tmp_path / 'log'}")
    said: list[str] = []

    def say(words: str) -> None:
        """Kills the server at each new step, and once more as it is waited for."""
        if words.split(maxsplit=1)[0] not in {each.split()[0] for each in said}:
            server.kill9()
        said.append(words)

    try:
        migrate(url := server.start())
        facts.publish(log, facts.episode("e-1", 20))
        with Running(Projector(log, url, facts.CODEC, locate=server.revive), log) as projector:
            projector.wait_caught_up()
            outcome = Rebuilder(log, server.revive, facts.CODEC, say=say).run()
            facts.publish(log, facts.episode("e-2", 20))
            projector.wait_caught_up()
        with psycopg.connect(server.revive(), autocommit=True) as connection:
            assert audit_tables(log, facts.CODEC, connection).differences == []
            schemas = connection.execute("SELECT nspname FROM pg_namespace WHERE nspname ~ '^stepwell_g'").fetchall()
        assert (outcome.ended, schemas) == ("done", [(outcome.generation,)])
        assert sum(words.startswith("Waiting: The database") for words in said) >= 3
    finally:
        server.stop(force=True)
        log.close()
