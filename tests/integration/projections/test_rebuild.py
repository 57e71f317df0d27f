"""The tables are made again beside those in use, compared, and handed over, while everybody goes on."""

import threading
from collections.abc import Callable
from typing import Any, Self

import psycopg
import pytest

from stepwell.engine.ports import MessageLog
from stepwell.events.topics import DEAD_LETTERS, EPISODE_EVENTS, POLICY_EVENTS, TELEMETRY
from stepwell.projections.rebuild.families import FAMILIES, POSITIONS
from stepwell.projections.rebuild.rebuilder import Outcome
from tests.integration.projections import facts
from tests.integration.projections.conftest import Running
from tests.integration.projections.rebuilds import HOME, Query, caught_up, some_of_everything


class Load:
    """Writes episodes all the time, and reads the views all the time: they never fail and never show less."""

    LOOK = """SELECT (SELECT count(*) FROM stepwell.steps), (SELECT count(*) FROM stepwell.verdicts),
    (SELECT count(*) FROM stepwell.episode_results)"""

    def __init__(self, log: MessageLog, url: str, pause_s: float) -> None:
        self._log = log
        self._url = url
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=each) for each in (self._write, self._read)]
        self.error: BaseException | None = None
        self.episodes = self.looks = 0

    def _write(self) -> None:
        while not self._stop.wait(self._pause_s):
            name = f"load-{self.episodes}"
            facts.publish(self._log, [*facts.episode(name, 10), facts.verdict(name)])
            self.episodes += 1

    def _read(self) -> None:
        least: tuple[int, ...] = (0, 0, 0)
        try:
            with psycopg.connect(self._url, autocommit=True, prepare_threshold=None) as connection:
                while not self._stop.wait(self._pause_s / 4):
                    seen = connection.execute(self.LOOK).fetchone()
                    assert seen is not None
                    assert all(now >= before for now, before in zip(seen, least, strict=True)), (least, seen)
                    least = seen
                    self.looks += 1
        except BaseException as error:  # noqa: BLE001 - raised again at the end
            self.error = error

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("tables", [(), ("steps",)], ids=["all", "steps"])
def test_under_load_nothing_is_lost_or_doubled_and_no_query_fails(
    tables: tuple[str, ...], log: MessageLog, database: str, query: Query, running: Callable[..., Running],
    rebuild: Callable[..., Outcome], no_difference: Callable[[], None], request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    # One backend serves all clients of the WebAssembly build, in turn.
    pause = 0.4 if "timescale" in request.node.callspec.id else 0.1
    some_of_everything(log)
    before = query(HOME, "steps")[0][0]
    with running(slot=0) as one, running(slot=1):
        one.wait(lambda: caught_up(log, query))
        with Load(log, database, pause) as load:
            outcome = rebuild(*tables)
            one.wait(lambda: query("SELECT count(*) FROM stepwell.steps")[0][0] > 0)
        total = 12 + 10 * load.episodes
        one.wait(lambda: query("SELECT count(*) FROM stepwell.steps") == [(total,)])
        one.wait(lambda: caught_up(log, query))
    assert (outcome.ended, outcome.differing) == ("done", [])
    assert load.episodes > 1
    assert load.looks > 3
    no_difference()
    ends = log.admin().watermarks(EPISODE_EVENTS)
    records = query("SELECT sum(records) FROM stepwell.sink_offsets WHERE topic = %s", EPISODE_EVENTS)
    assert records == [(sum(mark.high for mark in ends.values()),)], "each record was counted in one transaction"
    after = query(HOME, "steps")[0][0]
    assert (after == before) == bool(tables), "some tables change places; a whole generation takes over"
    assert query("SELECT count(DISTINCT nspname) FROM pg_namespace WHERE nspname ~ '^stepwell_g[0-9]+'") == [(1,)]
    assert query("SELECT count(*), count(DISTINCT schema) FROM stepwell.homes") == [(len(query(RELATIONS, after)), 1)]


RELATIONS = """SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
WHERE nspname = %s AND relkind IN ('r', 'p', 'v')"""


def test_every_relation_belongs_to_a_family(query: Query) -> None:
    ((schema,),) = query(HOME, "sink_offsets")
    there = {name for (name,) in query(RELATIONS, schema)}
    known = [relation for family in FAMILIES for relation in family.relations] + list(POSITIONS)
    assert sorted(known) == sorted(set(known))
    assert there == set(known)


@pytest.fixture
def cut(log: MessageLog) -> Callable[..., None]:
    """Lets a topic forget what came before now."""

    def run(*topics: str) -> None:
        store: Any = log
        marks = [(mark.high, *source) for topic in topics for source, mark in log.admin().watermarks(topic).items()]
        with store._store().write() as connection:
            for mark in marks:
                connection.execute("UPDATE slots SET low = ? WHERE topic = ? AND partition = ?", mark)

    return run


def test_what_the_log_no_longer_tells_is_taken_over_and_counted(
    log: MessageLog, query: Query, drain: Callable[..., None], rebuild: Callable[..., Outcome],
    cut: Callable[..., None],
) -> None:  # fmt: skip
    some_of_everything(log)
    drain()
    cut(EPISODE_EVENTS, TELEMETRY, DEAD_LETTERS, POLICY_EVENTS)
    facts.publish(log, [*facts.episode("later", 3), facts.step("e-1", 4), facts.telemetry("w-1", 2)])
    facts.publish(log, [facts.verdict("e-1", revision=3), facts.claimed("e-2", host="lab-9"), facts.verdict("later")])
    drain()
    everything = {table: rows_of(query, table) for table in TOLD}
    # Broken off by a difference and gone on with: what was taken over the first time still counts.
    query("UPDATE stepwell.actions SET inference_s = 9 WHERE episode_id = 'later'")
    assert rebuild().ended == "differs"
    query("UPDATE stepwell.actions SET inference_s = 0.25 WHERE episode_id = 'later'")
    outcome = rebuild()
    assert (outcome.ended, [str(each) for each in outcome.differing]) == ("done", [])
    assert {table: rows_of(query, table) for table in TOLD} == everything
    carried = {table: count for table, count in outcome.carried.items() if count}
    assert (
        carried.items() >= {"steps": 12, "episodes": 3, "verdicts": 2, "telemetry_points": 2, "dead_letters": 2}.items()
    )
    drain()
    assert query("SELECT carried -> 'steps' FROM stepwell.rebuilds WHERE generation = %s", outcome.generation) == [
        (12,)
    ]


@pytest.mark.parametrize("migrated_url", ["postgres"], indirect=True)
def test_sums_that_say_too_much_are_not_taken_over(
    log: MessageLog, query: Query, drain: Callable[..., None], rebuild: Callable[..., Outcome],
    cut: Callable[..., None],
) -> None:  # fmt: skip
    some_of_everything(log)
    unclaimed = [facts.step("e-late", 0), facts.step("e-late", 1)]
    facts.publish(log, unclaimed)
    drain()
    cut(EPISODE_EVENTS, TELEMETRY)
    facts.publish(log, [facts.step("e-1", 4), facts.telemetry("w-1", 2)])
    # A claim of steps that were carried over: their sums are moved in the new tables, too.
    facts.publish(log, [facts.requested("e-late"), facts.claimed("e-late", host="lab-9")])
    drain()
    right = {table: rows_of(query, table) for table in ("step_minutes", "step_days", "telemetry_hours")}
    ((schema,),) = query(HOME, "steps")
    query(f"UPDATE {schema}.telemetry_hours SET points = points * 2")
    query(f"UPDATE {schema}.step_days SET steps = steps + 1 WHERE steps > 0")
    query(
        f"INSERT INTO {schema}.telemetry_hours (bucket, series_id, source_partition, points, logged_at)"
        f" SELECT bucket, series_id + 1000, source_partition, points, logged_at FROM {schema}.telemetry_hours"
    )
    outcome = rebuild()
    assert (outcome.ended, {each.table for each in outcome.differing}) == ("differs", {"telemetry_hours", "step_days"})
    assert rebuild(accept_differences=True).ended == "done"
    assert {table: rows_of(query, table) for table in right} == right


TOLD = (
    "steps", "episode_attempts", "runs", "verdict_changes", "telemetry_points", "dead_letters", "outcome_days",
    "step_minutes", "telemetry_hours", "worker_status",
)  # fmt: skip


def rows_of(query: Query, table: str) -> list[tuple[Any, ...]]:
    return sorted(query(f"SELECT to_jsonb(t)::text FROM stepwell.{table} AS t"))


WEEK_US = 7 * 86_400_000_000


def test_what_retention_took_stays_away_and_the_sums_over_it_stay(
    log: MessageLog, query: Query, drain: Callable[..., None], rebuild: Callable[..., Outcome],
    cut: Callable[..., None], request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    old = facts.now_us() - 400 * 86_400_000_000
    told = [facts.again(fact, occurred_at=old, origin="import") for fact in facts.episode("e-old", 5)]
    facts.publish(log, told)
    facts.publish(log, [facts.telemetry("w-1", seq, at=at) for seq, at in enumerate((old, facts.now_us() - WEEK_US))])
    facts.publish(log, facts.episode("e-new", 2))
    drain()
    for table, column in (("steps", "occurred_at"), ("telemetry_points", "sampled_at")):
        retire(query, table, column, hypertables="timescale" in request.node.callspec.id)
    cut(TELEMETRY)
    sums = {table: rows_of(query, table) for table in ("step_days", "telemetry_days", "telemetry_minutes")}
    assert all(sums.values())
    outcome = rebuild()
    assert (outcome.ended, [str(each) for each in outcome.differing]) == ("done", [])
    assert query("SELECT count(*) FROM stepwell.steps") == [(2,)]
    assert query("SELECT count(*) FROM stepwell.telemetry_points") == [(2,)]
    assert {table: rows_of(query, table) for table in sums} == sums


def retire(query: Query, table: str, time_column: str, *, hypertables: bool) -> None:
    """What retention does, of rows that happened so long ago."""
    ((schema,),) = query(HOME, table)
    end = "date_trunc('day', now() - interval '300 days', 'UTC') + interval '1 day'"
    if hypertables:
        source = {"steps": "step", "telemetry_points": "telemetry"}[table]
        for unit in ("minutes", "hours", "days"):
            query(f"CALL refresh_continuous_aggregate('{schema}.{source}_{unit}', NULL, NULL)")
        query(f"SELECT drop_chunks('{schema}.{table}'::regclass, older_than => {end})")
    else:
        query(f"DELETE FROM {schema}.{table} WHERE {time_column} < {end}")
    query(
        f"""INSERT INTO stepwell.retirements (schema, relation, range_start, range_end, logged_before)
        VALUES ('{schema}', '{table}', '2000-01-01', {end}, now())"""
    )
