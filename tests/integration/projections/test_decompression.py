"""What comes late for compressed chunks is written, however many rows must be decompressed for it."""

from collections.abc import Callable, Iterator

import psycopg
import pytest

from stepwell.engine.ports import MessageLog
from stepwell.projections.database import connect
from stepwell.projections.upkeep import tune
from stepwell.projections.upkeep.tuning import Tuning
from stepwell.projections.writing.projector import Projector
from tests.integration.projections import facts
from tests.integration.projections.conftest import Running

LIMIT = "timescaledb.max_tuples_decompressed_per_dml_transaction"
STEPS = 40

Query = Callable[..., list[tuple[object, ...]]]


@pytest.fixture
def low_limit(database: str) -> Iterator[None]:
    """As if a batch had more to decompress than the server allows: 10 rows instead of 100,000."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"SET {LIMIT} = 10".encode())  # of the one session that this server has for everybody
        try:
            yield
        finally:
            connection.execute(f"RESET {LIMIT}".encode())


def compress(url: str, query: Query) -> None:
    with connect(url, application="test") as connection:
        tune.apply_all(connection, Tuning())
    query("SELECT compress_chunk(c) FROM show_chunks('stepwell_g1.steps') c")
    compressed = "SELECT count(*) FROM timescaledb_information.chunks WHERE is_compressed AND hypertable_name = 'steps'"
    assert query(compressed) != [(0,)]


@pytest.mark.parametrize("migrated_url", ["timescale"], indirect=True)
@pytest.mark.usefixtures("low_limit")
def test_a_claim_that_comes_after_its_steps_were_compressed(log: MessageLog, database: str, query: Query) -> None:
    """Who told of steps whose policy and host nobody knew yet: they are touched, all of them."""
    request, claim, *steps = facts.episode("e-late", STEPS)[: STEPS + 2]
    facts.publish(log, steps)
    with Running(Projector(log, database, facts.CODEC), log) as projector:
        projector.wait_caught_up()
    compress(database, query)
    with pytest.raises(psycopg.errors.ConfigurationLimitExceeded):
        query("UPDATE stepwell_g1.steps SET logged_at = logged_at")
    facts.publish(log, [request, claim])
    with Running(Projector(log, database, facts.CODEC), log) as projector:
        projector.wait_caught_up()
    assert query("SELECT count(*) FROM stepwell.episodes WHERE episode_id = 'e-late'") == [(1,)]
    assert query("SELECT count(*) FROM stepwell_g1.step_gaps") == [(0,)]
    assert query(f"SHOW {LIMIT}") == [("10",)], "only the projector's own transactions go over the limit"
