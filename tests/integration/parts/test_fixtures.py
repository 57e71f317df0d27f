"""The shared real parts answer, and give every module a database of its own."""

from collections.abc import Callable

import psycopg
from confluent_kafka.admin import AdminClient


def test_kafka_answers(kafka_bootstrap: str) -> None:
    brokers = AdminClient({"bootstrap.servers": kafka_bootstrap}).list_topics(timeout=30).brokers
    assert len(brokers) == 1


def test_timescale_answers(timescale_url: str) -> None:
    with psycopg.connect(timescale_url) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS timescaledb")
        connection.execute("CREATE TABLE samples (at timestamptz NOT NULL, value float8)")
        made = connection.execute("SELECT hypertable_id FROM create_hypertable('samples', by_range('at'))").fetchone()
    assert made is not None


def test_databases_are_apart_and_real(postgres_url: str, new_database: Callable[[], str]) -> None:
    other = new_database()
    assert other != postgres_url
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE mark (x int)")
        version = connection.execute("SHOW server_version_num").fetchone()
    assert version is not None
    assert int(version[0]) >= 170000
    with psycopg.connect(other) as connection:
        assert connection.execute("SELECT to_regclass('mark')").fetchone() == (None,)
