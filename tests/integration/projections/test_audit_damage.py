"""Every column of every table, damaged one at a time: the audit names each."""

import math
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from stepwell.engine.ports import MessageLog
from stepwell.projections.audit.rows import Difference, audit_tables
from stepwell.projections.schema.migrate import migrate
from tests.integration.projections import facts
from tests.integration.projections.test_audit import refusable

Query = Callable[..., list[tuple[Any, ...]]]

# Another value of each type, whatever stands there.
OTHER = {
    "text": "coalesce({0}, '') || 'x'", "integer": "CASE {0} WHEN 77 THEN 78 ELSE 77 END",
    "bigint": "CASE {0} WHEN 77 THEN 78 ELSE 77 END", "double precision": "CASE {0} WHEN 77 THEN 78 ELSE 77 END",
    "boolean": "NOT coalesce({0}, false)", "timestamp with time zone": "coalesce({0}, '2020-01-01') + interval '1 us'",
    "jsonb": """'{{"x": 1}}'""", "bytea": "'\\x7777'", "uuid": "gen_random_uuid()", "text[]": "'{{x}}'",
    "integer[]": "'{{77}}'", "double precision[]": "'{{77}}'",
}  # fmt: skip
TABLES = (
    "runs", "episodes", "episode_attempts", "steps", "actions", "telemetry_series", "telemetry_points", "spans",
    "verdicts", "dead_letters", "failure_patterns", "retrain_requests", "retrain_closings", "retrain_answers",
    "retrain_acknowledgements", "retrain_mutes", "rule_sets", "expected_verdicts", "worker_status", "worker_partitions",
)  # fmt: skip
OF_NO_RECORD = ("sink_offsets", "consumer_positions")
# Made of other tables' rows: looked at by what those say.
DERIVED = (
    "verdict_changes", "step_gaps",
    *(f"{family}_{level}s" for family in ("outcome", "step", "telemetry") for level in ("minute", "hour", "day")),
)  # fmt: skip
GENERATION = "stepwell_g1"
# What the log does not tell: the database's own clock, and its words for a refusal.
NOT_COMPARED = {
    ("dead_letters telling", "recorded_at"), ("dead_letters refusing", "recorded_at"),
    ("dead_letters refusing", "detail"),
    # Where the newest report tells of none, those of an older one stay.
    ("worker_status", "last_error"), ("worker_status", "last_error_at"), ("worker_status", "last_progress_at"),
    ("worker_partitions", "progressed_at"),
}  # fmt: skip


@pytest.fixture(scope="module")
def migrated_url(postgres_url: str) -> str:
    """PostgreSQL alone: the audit compares by plain SQL."""
    migrate(postgres_url)
    return postgres_url


@pytest.fixture
def audit(log: MessageLog, database: str, drain: Callable[..., None]) -> Callable[[], list[Difference]]:
    """Rows in every table, and an audit of them."""
    facts.publish(log, facts.episode("e-1", 3))
    facts.publish(log, [
        facts.step("e-1", 3, reward=math.nan, state_digest=b"d", success=None), refusable(), facts.snapshot("e-1"),
        facts.verdict("e-1"), facts.pattern("t-1"), facts.retrain("t-1"), facts.withdrawn("t-1"),
        facts.answered("t-1", "done"), facts.telemetry("w-1", 1), facts.dead_letter(), facts.acknowledged("t-1"),
        facts.spans("w-1", 2), facts.worker("w-1", last_error="away", last_error_at=facts.now_us()),
        facts.muted("p", "in-a-row", until=facts.now_us()), facts.activated(), facts.expected("e-1"),
    ])  # fmt: skip
    drain()

    def run() -> list[Difference]:
        with psycopg.connect(database) as connection:
            return audit_tables(log, facts.CODEC, connection).differences

    assert run() == []
    return run


def test_the_tables_here_are_all_that_there_are(query: Query) -> None:
    there = query("SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'stepwell_g1'::regnamespace")
    assert {name for (name,) in there} == {*TABLES, *OF_NO_RECORD, *DERIVED}


def test_every_damaged_column_is_named(database: str, audit: Callable[[], list[Difference]]) -> None:
    """One column of each table at a time, each of a row's columns in turn."""
    with psycopg.connect(database, autocommit=True) as connection:
        rows = [Saved(connection, table, 0) for table in TABLES]
        seen = 0
        for number in range(max(len(row.changes) for row in rows)):
            damaged = [row for row in rows if number < len(row.changes) and row.damage(row.changes[number])]
            found = {difference.table: difference for difference in audit()}
            for row in damaged:
                row.restore()
                check(row, row.changes[number], found.pop(row.table, None))
                seen += 1
            assert found == {}
        assert seen > sum(len(row.columns) for row in rows)
    assert audit() == []


def test_every_damaged_column_of_a_refusal_is_named(database: str, audit: Callable[[], list[Difference]]) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        row = Saved(connection, "dead_letters", 1)
        for change in row.changes:
            if row.damage(change):
                found = {difference.table: difference for difference in audit()}
                row.restore()
                check(row, change, found.pop("dead_letters", None), found.pop("steps", None))
                assert found == {}
    assert audit() == []


def check(
    row: "Saved", change: tuple[str, str], difference: Difference | None, beside: Difference | None = None
) -> None:
    name, other = change
    if (f"{row.table} {row.letter}".strip(), name) in NOT_COMPARED:
        assert difference is None
        return
    assert difference is not None, (row.table, name, other)
    if (row.letter, name) in (("refusing", "reason"), ("refusing", "logged_at")):
        assert (difference.what, beside) == ("missing", None)
        return
    if row.letter == "refusing" and name in row.keys:
        # Nothing tells of a refusal any more: the record's own row is missing, and the letter tells of another record.
        assert (difference.what, beside and beside.what) == (
            "stands in the table, but no record asks for it",
            "missing",
        )
        return
    assert beside is None
    assert difference.where.startswith("stepwell.")
    assert difference.what == "missing" if name in row.keys else f"{name} is " in difference.what, (row.table, change)


def test_a_row_beside_the_genuine_one_is_named(database: str, audit: Callable[[], list[Difference]]) -> None:
    """Under a key that differs in one column; each column of the key in turn."""
    with psycopg.connect(database, autocommit=True) as connection:
        rows = [Saved(connection, table, 0) for table in TABLES]
        for number in range(max(len(row.keys) for row in rows)):
            chosen = [row for row in rows if number < len(row.keys)]
            for row in chosen:
                row.damage((row.keys[number], OTHER[row.columns[row.keys[number]]].format(row.keys[number])))
                row.insert()
            found = {difference.table: difference.what for difference in audit()}
            for row in chosen:
                row.remove()
            assert found == {row.table: "stands in the table, but no record asks for it" for row in chosen}
    assert audit() == []


class Saved:
    """One row of a table, put by so that it can be damaged and restored."""

    def __init__(self, connection: psycopg.Connection[Any], table: str, place: int) -> None:
        self.table, self.place = table, place
        self._run = connection.execute
        self._changed = ""
        self.letter = ("telling", "refusing")[place] if table == "dead_letters" else ""
        self._name = f"saved_{table}_{place}"
        order = "kind DESC" if table == "dead_letters" else "ctid"  # violation, refused
        self._run(
            f"CREATE TEMP TABLE {self._name} AS SELECT * FROM {GENERATION}.{table}"
            f" ORDER BY {order} OFFSET {place} LIMIT 1"
        )
        described = self._run(
            "SELECT attname, format_type(atttypid, atttypmod), attnotnull, attnum = ANY(indkey) FROM pg_attribute"
            " JOIN pg_index ON indrelid = attrelid AND indisprimary"
            " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped", (f"{GENERATION}.{table}",),
        ).fetchall()  # fmt: skip
        self.columns = {name: type_ for name, type_, _, _ in described}
        self.keys = [name for name, _, _, key in described if key]
        self.changes = [(name, OTHER[type_].format(name)) for name, type_, _, _ in described]
        self.changes += [(name, "NULL") for name, _, needed, _ in described if not needed]

    def damage(self, change: tuple[str, str]) -> bool:
        """Whether it makes a difference: NULL may stand there already."""
        name, other = change
        wanted = other.replace(name, f"t.{name}")
        found = self._run(
            f"UPDATE {GENERATION}.{self.table} AS t SET {name} = ({wanted}) FROM {self._name} AS s"
            f" WHERE to_jsonb(t) = to_jsonb(s) AND t.{name} IS DISTINCT FROM ({wanted}) RETURNING t.ctid::text"
        ).fetchall()
        assert len(found) <= 1
        self._changed = found[0][0] if found else ""
        return bool(found)

    def remove(self) -> None:
        self._run(f"DELETE FROM {GENERATION}.{self.table} WHERE ctid = '{self._changed}'")

    def insert(self) -> None:
        self._run(f"INSERT INTO {GENERATION}.{self.table} SELECT * FROM {self._name}")

    def restore(self) -> None:
        self.remove()
        self.insert()
