"""Whole batches by columns into real databases: the tables are those that the records give one by one."""

import itertools
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import pytest

from stepwell.adapters.logs.memory import MemoryLog
from stepwell.adapters.logs.partitioner import partition_for_key
from stepwell.engine.ports import MessageLog, RecordBatch, TopicPartition
from stepwell.engine.publish import outgoing
from stepwell.events import model
from stepwell.events.model import LogRecord
from stepwell.events.topics import EPISODE_EVENTS
from stepwell.projections.database import connect
from stepwell.projections.schema.generations import read_homes
from stepwell.projections.schema.migrate import migrate
from stepwell.projections.writing.batch_reader import BatchReader
from stepwell.projections.writing.projector import GROUP, Projector
from stepwell.projections.writing.writer import BatchWriter, Item
from tests.integration.projections import facts
from tests.integration.projections.conftest import Running

Query = Callable[..., list[tuple[object, ...]]]
NEVER = 10**9
TABLES = ("steps", "actions", "episodes", "episode_attempts", "dead_letters", "step_latency_by_minute")
CHUNK = re.compile(r"_hyper_\d+_\d+_chunk")
IMPORTED_AT = 1_700_000_000_000_000


def episode(name: str, steps: int) -> list[LogRecord]:
    """An episode with observations, metrics, and waits of many lengths."""
    observation = model.Tensor(name="qpos", dtype="float32", shape=(2,), data=bytes(range(8)))
    return [
        facts.again(
            fact, observation=(observation,) * (number % 3), step_wall_s=(number % 7) * 0.001 if number % 5 else None
        )
        if isinstance(fact, model.StepDone) else fact
        for number, fact in enumerate(facts.episode(name, steps))
    ]  # fmt: skip


def odd_ones(name: str) -> list[LogRecord]:
    """Records among others that are left to the way one by one, and some that the database refuses."""
    camera = model.Tensor(name="action", dtype="float32", shape=(1, 9), data=b"", uri="s3://b/k", sha256=bytes(32))
    twice = facts.step(name, 500)
    return [
        twice, facts.again(twice, reward=8.0),
        facts.step(name, 501, metrics=(model.Metric(name="a\0", value=1.0),)),
        facts.step(name, 3_000_000_000), facts.step(name, 502, occurred_at=5, origin="import"),
        facts.step(name, 503, occurred_at=IMPORTED_AT, origin="import", producer_id="über"),
        facts.step(name, 504, occurred_at=IMPORTED_AT), facts.action(name, 505, action=camera),
        facts.action(name, 2**31), facts.step("中文", 1),
    ]  # fmt: skip


def dumped(query: Query) -> dict[str, list[str]]:
    """Every column of every row; when it was written, and into which chunk, is left out."""
    found = {}
    for table in TABLES:
        rows = query(f"SELECT to_jsonb(t) - 'recorded_at' FROM stepwell.{table} t")
        found[table] = sorted(CHUNK.sub("chunk", str(row)) for row in rows)
    return found


def empty(query: Query) -> None:
    for (table,) in query(
        "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname ~ '^stepwell_g'"
    ):
        query(f"TRUNCATE {table}")


def test_both_ways_give_the_same_tables(database: str, query: Query) -> None:
    early, late = episode("e-1", 150), episode("e-2", 150)
    log = MemoryLog()
    # What comes twice: within a batch, and later again beside something new.
    for part in (
        [*early, *odd_ones("e-1"), *early[40:80]],
        [*late[:200], *early[100:120], *odd_ones("e-2"), *late],
    ):
        facts.publish(log, part)
        forged = outgoing(facts.CODEC, facts.step("e-1", 900), 0)
        facts.send(log, [forged._replace(key=b"another"), facts.unchecked(early[-1], b"\0\0\0\0\7torn")])
    found = []
    # How the batches are cut must not show either.
    for columns_from, batch_records in itertools.product((1, NEVER), (NEVER, 97)):
        empty(query)
        options = {"columns_from": columns_from, "batch_records": batch_records}
        with Running(Projector(log, database, facts.CODEC, **options), log) as running:
            running.wait_caught_up()
        found.append(dumped(query))
    log.close()
    assert len(found[0]["steps"]) == 2 * (150 + 3) + 2
    assert len(found[0]["actions"]) == 2 * (150 + 1)
    assert len(found[0]["dead_letters"]) == 6
    assert found[0]["step_latency_by_minute"]
    for table in TABLES:
        for other in found[1:]:
            assert other[table] == found[0][table], table


def batch_of(log: MessageLog) -> RecordBatch:
    """All that stands in the first partition with something in it."""
    consumer = log.consumer()
    consumer.assign({TopicPartition(EPISODE_EVENTS, number): 0 for number in range(4)})
    (batch,) = consumer.poll(NEVER, 1)
    consumer.close()
    return batch


def place(query: Query, batch: RecordBatch, position: int) -> None:
    query(
        "INSERT INTO stepwell.sink_offsets (sink, topic, partition, next_offset, read_to, log_end)"
        " VALUES ('s', %s, %s, %s, %s, %s)", *batch.source, position, position, position,
    )  # fmt: skip


def never() -> Sequence[Item]:
    raise AssertionError("the batch was made record by record")


def test_rows_that_are_there_already_cost_no_way_one_by_one(database: str, query: Query, log: MessageLog) -> None:
    facts.publish(log, facts.episode("e-1", 30)[2:])
    batch = batch_of(log)
    place(query, batch, 0)
    rows = BatchReader(facts.CODEC, "s", columns_from=1).read(batch)
    assert (len(rows.items), [len(each) for each in rows.columns]) == (0, [30, 30])
    with connect(database, application="columns") as connection:
        writer = BatchWriter(connection, "s", read_homes(connection))
        written = writer.write(batch, rows.items, rows.columns, never)
        assert (written.rows, written.slow, written.refused) == (60, False, [])
        query("UPDATE stepwell.sink_offsets SET next_offset = 0")
        query("DELETE FROM stepwell.steps WHERE step % 3 = 0")
        again = writer.write(batch, rows.items, rows.columns, never)
        assert (again.rows, again.slow, again.refused) == (60, True, [])
    assert query("SELECT count(*), count(DISTINCT step) FROM stepwell.steps") == [(30, 30)]
    assert query("SELECT count(*) FROM stepwell.actions") == [(30,)]


def test_what_the_database_refuses_among_columns_is_found(database: str, query: Query, log: MessageLog) -> None:
    plain = facts.episode("e-1", 30)[2:]
    facts.publish(log, [*plain[:20], facts.step("e-1", 600, occurred_at=5, origin="import"), *plain[20:]])
    batch = batch_of(log)
    place(query, batch, 0)
    reader = BatchReader(facts.CODEC, "s", columns_from=1)
    rows = reader.read(batch)
    assert sum(map(len, rows.columns)) == 61
    with connect(database, application="columns") as connection:
        writer = BatchWriter(connection, "s", read_homes(connection))
        written = writer.write(batch, rows.items, rows.columns, lambda: reader.read_one_by_one(batch))
    assert (written.slow, written.refused) == (True, [(20, "check-violation")])
    assert query("SELECT count(*) FROM stepwell.steps") == [(30,)]
    assert query("SELECT reason, source_offset FROM stepwell.dead_letters") == [("check-violation", batch.offsets[20])]


def test_of_two_with_one_key_the_first_in_the_log_stands(database: str, query: Query, log: MessageLog) -> None:
    # The first of them goes one by one, because a name in it comes twice.
    twice = (model.Metric(name="a", value=1.0), model.Metric(name="a", value=2.0))
    first, second = facts.step("e-1", 1, metrics=twice), facts.step("e-1", 1)
    second = facts.again(second, occurred_at=first.occurred_at, reward=9.0)
    facts.publish(log, [first, second, facts.step("e-1", 2)])
    batch = batch_of(log)
    place(query, batch, 0)
    reader = BatchReader(facts.CODEC, "s", columns_from=1)
    rows = reader.read(batch)
    assert ([item.index for item in rows.items], [len(each) for each in rows.columns]) == ([0], [2])
    with connect(database, application="columns") as connection:
        writer = BatchWriter(connection, "s", read_homes(connection))
        written = writer.write(batch, rows.items, rows.columns, lambda: reader.read_one_by_one(batch))
    assert (written.slow, written.refused) == (True, [])
    assert query("SELECT step, reward FROM stepwell.steps ORDER BY step") == [(1, 1.5), (2, 1.5)]


@pytest.fixture
def postgres(new_database: Callable[[], str]) -> str:
    url = new_database()
    migrate(url)
    return url


@pytest.mark.parametrize("broken", [False, True], ids=["slow", "broken"])
def test_no_more_than_two_batches_are_on_their_way(postgres: str, log: MessageLog, *, broken: bool) -> None:
    # One in each partition, so that one poll gives four batches.
    names = ("e-1", "e-2", "e-6", "e-11")
    assert len({partition_for_key(name.encode(), 4) for name in names}) == 4
    facts.publish(log, itertools.chain.from_iterable(facts.episode(name, 150) for name in names))
    projector = Projector(log, postgres, facts.CODEC)
    made: list[int] = []
    read = projector._reader.read

    def noted(batch: RecordBatch) -> Any:
        made.append(len(batch))
        return read(batch)

    projector._reader.read = noted  # type: ignore[method-assign]
    with psycopg.connect(postgres) as other:
        schema = other.execute("SELECT schema FROM stepwell.homes WHERE relation = 'steps'").fetchone()
        assert schema is not None
        other.execute(f"LOCK TABLE {schema[0]}.steps")
        with Running(projector, log) as running:
            running.wait(lambda: len(made) == 3)
            time.sleep(0.3)
            assert (made, projector.records_written) == ([302] * 3, 0)  # two on their way, one ready, no fourth
            if broken:
                ended = other.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE %s",
                    (f"{GROUP}-%",),
                ).fetchall()
                assert ended == [(True,)]
                time.sleep(0.3)
            other.rollback()
            running.wait_caught_up()
            assert (len(made) > 4) == broken  # what was on its way with the connection is read again
    with psycopg.connect(postgres) as connection:
        assert connection.execute("SELECT count(*) FROM stepwell.steps").fetchone() == (600,)
        assert connection.execute("SELECT sum(records) FROM stepwell.sink_offsets").fetchone() == (1_208,)
    assert projector.records_written == 1_208


def test_partitions_change_hands_under_load(postgres: str, log: MessageLog) -> None:
    names = [f"e-{number}" for number in range(12)]
    facts.publish(log, itertools.chain.from_iterable(facts.episode(name, 120) for name in names[:6]))
    one, two = (Projector(log, postgres, facts.CODEC, slot=slot, batch_records=400) for slot in ("one", "two"))
    with Running(two, log) as second:
        with Running(one, log) as first:
            first.wait(lambda: one.records_written + two.records_written > 400)
            facts.publish(log, itertools.chain.from_iterable(facts.episode(name, 120) for name in names[6:]))
            first.wait(lambda: one.records_written > 0 and two.records_written > 0)
        second.wait(lambda: one.records_written + two.records_written >= 12 * 242)
    with psycopg.connect(postgres) as connection:
        for table in ("steps", "actions"):
            rows = connection.execute(f"SELECT count(*), count(DISTINCT event_id) FROM stepwell.{table}").fetchone()
            assert rows == (12 * 120, 12 * 120)
        assert connection.execute("SELECT sum(records) FROM stepwell.sink_offsets").fetchone() == (12 * 242,)
        assert connection.execute("SELECT count(*) FROM stepwell.dead_letters").fetchone() == (0,)
