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


def test_clients_of_timescale_keep_what_they_prepared(timescale_url: str) -> None:
    """One backend serves all; psycopg says DEALLOCATE ALL after a DROP and a ROLLBACK."""
    with (
        psycopg.connect(timescale_url, autocommit=True, prepare_threshold=0) as one,
        psycopg.connect(timescale_url, autocommit=True, prepare_threshold=0) as other,
    ):
        for _ in range(2):
            assert one.execute("SELECT 1").fetchall() == [(1,)]
            assert other.execute("SELECT 2").fetchall() == [(2,)]
            other.execute("CREATE TABLE passing ()")
            other.execute("DROP TABLE passing")
            with other.transaction(force_rollback=True):
                other.execute("SELECT 2")


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
