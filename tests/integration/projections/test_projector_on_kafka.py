"""The projector on real Kafka: transactions leave markers, offsets have holes, the lag is zero all the same."""

import secrets
from collections.abc import Callable

import psycopg
import pytest

from stepwell.adapters.logs import open_log
from stepwell.engine.publish import all_outgoing
from stepwell.events.topics import TOPICS
from stepwell.projections.migrate import migrate
from stepwell.projections.projector import Projector
from tests.integration.projections import facts
from tests.integration.projections.conftest import Running

STEPS = 40


@pytest.fixture
def url(new_database: Callable[[], str]) -> str:
    made = new_database()
    migrate(made)
    return made


def test_transactions_aborts_and_restarts(kafka_bootstrap: str, url: str) -> None:
    log = open_log(f"kafka://{kafka_bootstrap}")
    log.admin().create(TOPICS)
    group = f"projector-{secrets.token_hex(4)}"
    run = f"run-{secrets.token_hex(4)}"  # the node is shared: other tests' records are on these topics too
    producer = log.transactional_producer(f"facts-{secrets.token_hex(4)}")
    for number in range(6):
        records = [facts.again(fact, run_id=run) for fact in facts.episode(f"{run}-{number}", STEPS)]
        producer.begin()
        producer.send(all_outgoing(facts.CODEC, records))
        if number % 2:
            producer.abort()
        else:
            producer.commit()
    producer.close()
    for slot in (0, 0, 1):
        with Running(Projector(log, url, facts.CODEC, group=group, slot=slot, batch_records=50), log) as projector:
            projector.wait(lambda: count(url, f"{run}-%") == (3 * STEPS, 3 * STEPS), timeout_s=90)
            projector.wait(lambda: not behind(url, group), timeout_s=90)
    log.close()


def count(url: str, pattern: str) -> tuple[int, int]:
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "SELECT (SELECT count(*) FROM stepwell.steps WHERE episode_id LIKE %(p)s),"
            " (SELECT count(*) FROM stepwell.actions WHERE episode_id LIKE %(p)s)",
            {"p": pattern},
        ).fetchone()
    assert row is not None
    return row[0], row[1]


def behind(url: str, group: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(
            "SELECT * FROM stepwell.pipeline_lag WHERE consumer = %s AND state <> 'caught up'", (group,)
        ).fetchall()
