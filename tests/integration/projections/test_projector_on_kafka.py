"""The projector on real Kafka: transactions leave markers, offsets have holes, the lag is zero all the same."""

import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psycopg
import pytest

from stepwell.adapters.logs import open_log
from stepwell.adapters.logs.kafka import KafkaLog
from stepwell.adapters.parts.embedded_postgres import EmbeddedPostgres
from stepwell.engine.ports import Consumer, TopicPartition
from stepwell.engine.publish import all_outgoing
from stepwell.events.topics import TOPICS
from stepwell.projections.schema.migrate import migrate
from stepwell.projections.writing.projector import Projector
from tests.integration.projections import facts
from tests.integration.projections.conftest import Running

STEPS = 40
SILENT_MS = 6_000
"""The least that Kafka lets a group have."""


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


def test_a_database_that_is_away_for_longer_than_a_member_may_be_silent(
    kafka_bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Away for longer than a member may go without a poll: here 9 s at 6 s, which in earnest are 5 minutes."""
    log = KafkaLog(kafka_bootstrap, {"session.timeout.ms": SILENT_MS, "max.poll.interval.ms": SILENT_MS})
    log.admin().create(TOPICS)
    run = f"run-{secrets.token_hex(4)}"
    assigned: list[int] = []
    remember = Projector._assigned

    def count_assigned(self: Projector, consumer: Consumer, new: list[TopicPartition]) -> Mapping[TopicPartition, int]:
        assigned.append(len(new))
        return remember(self, consumer, new)

    monkeypatch.setattr(Projector, "_assigned", count_assigned)
    server = EmbeddedPostgres(tmp_path / "database", fast=True)
    try:
        migrate(url := server.start())
        group = f"projector-{secrets.token_hex(4)}"
        facts.publish(log, facts.episode(f"{run}-1", STEPS))
        with Running(Projector(log, url, facts.CODEC, group=group), log) as projector:
            projector.wait(lambda: count(url, f"{run}-%") == (STEPS, STEPS), timeout_s=90)
            server.stop(force=True)
            facts.publish(log, facts.episode(f"{run}-2", STEPS))
            time.sleep(1.5 * SILENT_MS / 1000)
            assert projector.error is None
            server.start()
            projector.wait(lambda: count(url, f"{run}-%") == (2 * STEPS, 2 * STEPS), timeout_s=60)
    finally:
        server.stop(force=True)
        log.close()
    assert len(assigned) == 1, "its partitions were never taken away"


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
