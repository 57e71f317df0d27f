"""What the tables must hold, as SQL over the rows that an audit made again from the log.

Each query gives **candidates**: the rows that may stand for a key. Where the log alone decides, there is one. Records
of one key that stand in several partitions or topics have no order among them, so the first of each may stand.

An audit's staging table ``audit_<kind>`` has a kind's columns, the record's place (``audit_topic``,
``audit_partition``, ``audit_offset``), and ``audit_order``, which grows with the record's place.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from psycopg import sql

from stepwell.events.topics import (
    DEAD_LETTERS,
    EPISODE_EVENTS,
    EPISODE_SNAPSHOTS,
    FAILURE_PATTERNS,
    POLICY_EVENTS,
    RETRAIN_REQUESTS,
    RETRAIN_RESULTS,
    RULE_SETS,
    TELEMETRY,
)
from stepwell.projections.tables import KINDS

__all__ = ["Expected", "expectations", "staging_of"]

_ORIGIN = ("audit_topic", "audit_partition", "audit_offset", "audit_order")
"""The first columns of every query: where the row comes from."""

# One record alone makes the row, and the first of a key stands.
_FIRST_STANDS = {
    "episodes": EPISODE_EVENTS,
    "steps": EPISODE_EVENTS,
    "actions": EPISODE_EVENTS,
    "telemetry_series": TELEMETRY,
    "telemetry_points": TELEMETRY,
    "spans": TELEMETRY,
    "verdicts": POLICY_EVENTS,
    "expected_verdicts": POLICY_EVENTS,
    "failure_patterns": FAILURE_PATTERNS,
    "retrain_requests": RETRAIN_REQUESTS,
    "retrain_closings": RETRAIN_REQUESTS,
    "retrain_answers": RETRAIN_RESULTS,
    "retrain_acknowledgements": POLICY_EVENTS,
    "retrain_mutes": POLICY_EVENTS,
    "rule_sets": RULE_SETS,
    "dead_letters": DEAD_LETTERS,
}
# The newest report stands, but for columns that an older one may have told last.
_NEWEST_STANDS = {
    "worker_status": ("last_error", "last_error_at", "last_progress_at"),
    "worker_partitions": ("progressed_at",),
}
_ASKED = ("requested_at", "retry_reason", "from_checkpoint")
_CLAIMED = ("claimed_at", "host", "host_pid")
# What the table says of an attempt before its first snapshot.
_DEFAULTS = {"phase": "'REQUESTED'", "paused": "false", "next_step": "0", "revision": "0", "sealed": "false"}


@dataclass(frozen=True, slots=True)
class Expected:
    """What one table must hold.

    Attributes:
        table: in the schema ``stepwell``.
        columns: those that are compared.
        key: those that identify a row.
        candidates: query of the record's place and the columns; several rows of one key where any of them may stand.
        sources: topics that must reach back to their start before a row without a record is a difference.
    """

    table: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    candidates: sql.Composed
    sources: tuple[str, ...]


def staging_of(kind: str) -> str:
    """The audit's staging table of a kind."""
    return f"audit_{kind}"


def expectations(cut: Collection[str]) -> list[Expected]:
    """Every table. ``cut``: topics that no longer have their beginning, of which less can be known."""
    found = [_runs()] if EPISODE_EVENTS not in cut else []
    found += [_first(kind, topic) for kind, topic in _FIRST_STANDS.items()]
    found += [_newest(kind, kept) for kind, kept in _NEWEST_STANDS.items()]
    return [*found, _attempts(cut)]


def _first(name: str, topic: str) -> Expected:
    kind = KINDS[name]
    key = tuple(kind.columns[position] for position in kind.key)
    query = sql.SQL(
        "SELECT DISTINCT ON ({key}, audit_topic, audit_partition) {origin}, {columns} FROM {staging} "
        "ORDER BY {key}, audit_topic, audit_partition, audit_order"
    ).format(key=_list(key), origin=_list(_ORIGIN), columns=_list(kind.columns), staging=_staging(name))
    return Expected(kind.target, kind.columns, key, query, (topic,))


def _newest(name: str, kept: Collection[str]) -> Expected:
    """The newest report; ``kept`` may be of an older one, and are not compared."""
    kind = KINDS[name]
    key = tuple(kind.columns[position] for position in kind.key)
    columns = tuple(column for column in kind.columns if column not in kept)
    query = sql.SQL(
        "SELECT DISTINCT ON ({key}) {origin}, {columns} FROM {staging} "
        "ORDER BY {key}, logged_at DESC, source_offset DESC"
    ).format(key=_list(key), origin=_list(_ORIGIN), columns=_list(columns), staging=_staging(name))
    return Expected(kind.target, columns, key, query, (TELEMETRY,))


def _runs() -> Expected:
    """The earliest request; of two at one time the one whose author comes first, byte by byte."""
    kind = KINDS["runs"]
    query = sql.SQL(
        "SELECT DISTINCT ON (run_id) {origin}, {columns} FROM {staging} "
        'ORDER BY run_id, first_requested_at, requested_by COLLATE "C", audit_order'
    ).format(origin=_list(_ORIGIN), columns=_list(kind.columns), staging=_staging("runs"))
    return Expected("runs", kind.columns, ("run_id",), query, (EPISODE_EVENTS,))


def _attempts(cut: Collection[str]) -> Expected:
    """The first request, the first claim, and the snapshot that covers most (the later one of two that cover the same).

    Where a topic's beginning is gone, what only it could tell is taken as it stands.
    """
    status = KINDS["attempt_status"].columns[3:]
    facts = "t.{0}" if EPISODE_EVENTS in cut else "{1}.{0}"
    unknown = "t.{0}" if EPISODE_SNAPSHOTS in cut else "{1}"
    values = [
        *(facts.format(name, "asked") + f" AS {name}" for name in _ASKED),
        *(facts.format(name, "claimed") + f" AS {name}" for name in _CLAIMED),
        *(
            f"CASE WHEN status.episode_id IS NOT NULL THEN status.{name} "
            f"ELSE {unknown.format(name, _DEFAULTS.get(name, 'NULL'))} END AS {name}"
            for name in status
        ),
    ]
    query = sql.SQL(_ATTEMPTS).format(  # the columns are our own names
        facts=_staging("attempt_facts"),
        statuses=_staging("attempt_status"),
        values=sql.SQL(", ").join(map(sql.SQL, values)),
    )
    columns = ("episode_id", "attempt", "run_id", *_ASKED, *_CLAIMED, *status)
    return Expected("episode_attempts", columns, ("episode_id", "attempt"), query, (EPISODE_EVENTS, EPISODE_SNAPSHOTS))


_ATTEMPTS = """
WITH told AS (
    SELECT DISTINCT ON (episode_id, attempt, audit_topic, audit_partition) *
    FROM (
        SELECT audit_topic, audit_partition, audit_offset, audit_order, episode_id, attempt, run_id FROM {facts}
        UNION ALL
        SELECT audit_topic, audit_partition, audit_offset, audit_order, episode_id, attempt, run_id FROM {statuses}
    ) AS records
    ORDER BY episode_id, attempt, audit_topic, audit_partition, audit_order
), asked AS (
    SELECT DISTINCT ON (episode_id, attempt, audit_partition) * FROM {facts} WHERE requested_at IS NOT NULL
    ORDER BY episode_id, attempt, audit_partition, audit_order
), claimed AS (
    SELECT DISTINCT ON (episode_id, attempt, audit_partition) * FROM {facts} WHERE claimed_at IS NOT NULL
    ORDER BY episode_id, attempt, audit_partition, audit_order
), status AS (
    SELECT DISTINCT ON (episode_id, attempt, audit_partition) * FROM {statuses}
    ORDER BY episode_id, attempt, audit_partition, last_offset DESC, audit_order DESC
)
SELECT told.audit_topic, told.audit_partition, told.audit_offset, told.audit_order,
       episode_id, attempt, told.run_id, {values}
FROM told
LEFT JOIN asked USING (episode_id, attempt)
LEFT JOIN claimed USING (episode_id, attempt)
LEFT JOIN status USING (episode_id, attempt)
LEFT JOIN stepwell.episode_attempts AS t USING (episode_id, attempt)
"""


def _staging(kind: str) -> sql.Identifier:
    return sql.Identifier(staging_of(kind))


def _list(names: Iterable[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))
