"""A rebuild from real Kafka: transactions leave markers, and the two sides come to the same positions all the same."""

import secrets
import threading
from collections.abc import Callable

import psycopg

from stepwell.adapters.logs import open_log
from stepwell.engine.ports import MessageLog
from stepwell.engine.publish import all_outgoing
from stepwell.events.topics import TOPICS
from stepwell.projections.rebuild.rebuilder import Rebuilder
from stepwell.projections.schema.migrate import migrate
from stepwell.projections.writing.projector import GROUP, Projector
from tests.integration.projections import facts
from tests.integration.projections.conftest import Running

STEPS = 20


def write(log: MessageLog, run: str, stop: threading.Event, written: list[str]) -> None:
    """Episodes in transactions, every third of which is aborted, until told to stop."""
    producer = log.transactional_producer(f"facts-{run}")
    number = 0
    while not stop.wait(0.1):
        name, number = f"{run}-{number}", number + 1
        producer.begin()
        producer.send(all_outgoing(facts.CODEC, facts.episode(name, STEPS)))
        if number % 3:
            producer.commit()
            written.append(name)
        else:
            producer.abort()
    producer.close()


def test_handed_over_under_load_with_transactions(kafka_bootstrap: str, new_database: Callable[[], str]) -> None:
    url, run = new_database(), f"run-{secrets.token_hex(4)}"
    migrate(url)
    log = open_log(f"kafka://{kafka_bootstrap}")
    log.admin().create(TOPICS)
    stop, written = threading.Event(), list[str]()
    thread = threading.Thread(target=write, args=(log, run, stop, written))
    thread.start()
    try:
        with Running(Projector(log, url, facts.CODEC, group=f"projector-{run}", sink=GROUP), log) as projector:
            projector.wait(lambda: steps(url, run) > 0, timeout_s=90)
            outcome = Rebuilder(log, lambda: url, facts.CODEC).run()
            seen = len(written)
            projector.wait(lambda: len(written) > seen, timeout_s=30)
            stop.set()
            thread.join()
            projector.wait(lambda: steps(url, run) == STEPS * len(written), timeout_s=90)
    finally:
        stop.set()
        thread.join()
        log.close()
    assert (outcome.ended, outcome.differing) == ("done", [])
    assert next(each.old for each in outcome.comparisons if each.table == "steps") > 0


def steps(url: str, run: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "SELECT count(*) FROM stepwell.steps WHERE episode_id LIKE %s", (f"{run}-%",)
        ).fetchone()
    assert row is not None
    return int(row[0])
