"""Tables that were made before TimescaleDB was there become hypertables by a rebuild."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from stepwell.engine.ports import MessageLog
from stepwell.exceptions import RebuildError
from stepwell.projections.audit.rows import audit_tables
from stepwell.projections.rebuild.cancel import drop_old
from stepwell.projections.rebuild.rebuilder import Outcome
from stepwell.projections.schema import generations
from stepwell.projections.schema.files import HYPERTABLES, PLAIN
from stepwell.projections.schema.migrate import migrate, status
from tests.integration.projections import facts
from tests.integration.projections.rebuilds import HOME, some_of_everything

JOBS = "SELECT count(*) FROM timescaledb_information.jobs WHERE proc_name IN ('retire_chunks', 'policy_compression')"


@pytest.fixture(scope="module")
def migrated_url(timescale_url: str) -> str:
    """As a server without TimescaleDB would have it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(generations, "storage_of_server", lambda _: PLAIN)
        migrate(timescale_url)
    return timescale_url


def test_plain_tables_become_hypertables(
    log: MessageLog, database: str, drain: Callable[..., None], rebuild: Callable[..., Outcome],
    query: Callable[..., list[tuple[Any, ...]]],
) -> None:  # fmt: skip
    some_of_everything(log)
    drain()
    assert status(database).storage == PLAIN
    with pytest.raises(RebuildError, match="make all tables again, without --table"):
        rebuild("steps")
    outcome = rebuild()
    assert (outcome.ended, outcome.differing) == ("done", [])
    facts.publish(log, facts.episode("later", 3))
    drain()
    assert status(database).storage == HYPERTABLES
    assert query("SELECT sum(steps) FROM stepwell.step_days") == [(15,)]
    assert query(JOBS)[0][0] > 6, "the new tables have their policies"
    assert migrate(database) == []
    with psycopg.connect(database) as connection:
        assert audit_tables(log, facts.CODEC, connection).differences == []


def test_kept_hypertables_rest_until_they_are_dropped(
    log: MessageLog, database: str, drain: Callable[..., None], rebuild: Callable[..., Outcome],
    query: Callable[..., list[tuple[Any, ...]]],
) -> None:  # fmt: skip
    some_of_everything(log)
    drain()
    ((old,),) = query(HOME, "steps")
    outcome = rebuild(keep_old=True)
    assert (outcome.ended, outcome.differing, outcome.dropped) == ("done", [], ())
    scheduled = """SELECT DISTINCT coalesce(j.config ->> 'schema', a.view_schema, j.hypertable_schema), j.scheduled
        FROM timescaledb_information.jobs j LEFT JOIN timescaledb_information.continuous_aggregates a
        ON a.materialization_hypertable_name = j.hypertable_name WHERE j.config ->> 'schema' LIKE 'stepwell_g%'
        OR a.view_schema LIKE 'stepwell_g%' OR j.hypertable_schema LIKE 'stepwell_g%' ORDER BY 1"""
    assert query(scheduled) == [(old, False), (outcome.generation, True)]
    assert drop_old(lambda: database) == [old]
    assert query(scheduled) == [(outcome.generation, True)]
    chunks = query(
        "SELECT DISTINCT hypertable_schema FROM timescaledb_information.chunks WHERE hypertable_name = 'steps'"
    )
    assert chunks == [(outcome.generation,)]
