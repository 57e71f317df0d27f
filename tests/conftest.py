"""The real parts that tests share: Apache Kafka, TimescaleDB, PostgreSQL.

A part that is not there fails the test with the command that brings it; nothing is skipped.
"""

import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

from stepwell.exceptions import MissingPartError

REPOSITORY = Path(__file__).resolve().parents[1]

# Tests see none of the developer's own settings; the place of the installed parts is kept.
for _name in [name for name in os.environ if name.startswith("STEPWELL_") and name != "STEPWELL_PARTS"]:
    del os.environ[_name]


def _start(part: str, start: Callable[[], str]) -> str:
    try:
        return start()
    except MissingPartError as error:
        pytest.fail(
            f"{part} is needed here and is not installed: {error}\nBring all parts with: make parts", pytrace=False
        )


@pytest.fixture(scope="session")
def kafka_bootstrap() -> Iterator[str]:
    """``host:port`` of one real Kafka node for the whole run. Name topics, groups and transactions uniquely."""
    from stepwell.adapters.parts.kafka import KafkaPart

    node = KafkaPart()
    try:
        yield _start("Apache Kafka", node.start)
    finally:
        node.stop()


@pytest.fixture(scope="module")
def timescale_url() -> Iterator[str]:
    """URL of an empty TimescaleDB, one server per test module. One client at a time can hold a transaction open."""
    from stepwell.adapters.parts.timescale import TimescalePart

    server = TimescalePart()
    try:
        yield _start("TimescaleDB", server.start)
    finally:
        server.stop()


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of the maintenance database of one real PostgreSQL for the whole run. Take `postgres_url` to work in."""
    from stepwell.adapters.parts.embedded_postgres import EmbeddedPostgres

    server = EmbeddedPostgres(tmp_path_factory.mktemp("postgres"), fast=True)
    try:
        yield _start("PostgreSQL", server.start)
    finally:
        server.stop(force=True)


@pytest.fixture(scope="module")
def new_database(postgres_server: str) -> Iterator[Callable[[], str]]:
    """Makes an empty PostgreSQL database at each call and gives its URL; dropped when the module's tests are done."""
    import psycopg

    made: list[str] = []

    def make() -> str:
        name = f"test_{secrets.token_hex(6)}"
        with psycopg.connect(postgres_server, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        made.append(name)
        return urlunsplit(urlsplit(postgres_server)._replace(path=f"/{name}"))

    yield make
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        for name in made:
            connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@pytest.fixture(scope="module")
def postgres_url(new_database: Callable[[], str]) -> str:
    """URL of an empty PostgreSQL database, one per test module."""
    return new_database()


@pytest.fixture(scope="session")
def soak_seeds() -> int:
    """How many seeds the soak run asks for (``make soak SEEDS=...``); 0 in an ordinary run, which takes its own few."""
    return int(os.environ.get("SOAK_SEEDS", "0"))
