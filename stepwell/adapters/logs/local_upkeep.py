"""Retention and compaction of the local log: done by whoever appends, now and then, in small write transactions."""

import time
from collections.abc import Iterator

import structlog

from stepwell.adapters.logs.local_store import Store, address_of, now_us
from stepwell.exceptions import LogError

INTERVAL_S = 60.0
TOMBSTONE_KEPT_MS = 24 * 3600 * 1000
"""How long a tombstone outlives compaction, so that slow readers see the deletion."""

_log = structlog.get_logger(__name__)
_CHUNK = 5_000
_DIRTY_MIN = 1_000
_APPENDS_BETWEEN_LOOKS = 2_000


class Upkeep:
    """Runs `maintain` for the appenders of a log: at most once each `INTERVAL_S` over all processes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._appended = 0
        self._looked_at = time.monotonic()

    def run_when_due(self, appended: int) -> None:
        """Called after an append of so many records. What fails is left for the next time; it stops no appender."""
        self._appended += appended
        if self._appended < _APPENDS_BETWEEN_LOOKS and time.monotonic() - self._looked_at < INTERVAL_S:
            return
        self._appended = 0
        self._looked_at = time.monotonic()
        try:
            if self._claim():
                maintain(self._store)
        except LogError as error:
            _log.warning("log_upkeep_postponed", reason=str(error))

    def _claim(self) -> bool:
        due = now_us() - int(INTERVAL_S * 1_000_000)
        with self._store.read() as connection:
            row = connection.execute("SELECT last_us FROM upkeep WHERE task = 'maintain'").fetchone()
        if row is not None and due < row[0] <= now_us():
            return False
        with self._store.write() as connection:
            claimed = connection.execute(
                "INSERT INTO upkeep (task, last_us) VALUES ('maintain', :now)"
                " ON CONFLICT (task) DO UPDATE SET last_us = :now WHERE last_us <= :due OR last_us > :now",
                {"now": now_us(), "due": due},
            )
            return claimed.rowcount == 1


def maintain(store: Store) -> int:
    """Drop what retention and compaction no longer keep; the number of records dropped.

    Safe at any time beside readers and appenders: each write transaction is short, and what it drops is dropped for
    good reason whatever happens meanwhile.
    """
    with store.read() as connection:
        topics = connection.execute("SELECT topic, compacted, retention_ms FROM topics").fetchall()
    dropped = 0
    for topic, compacted, retention_ms in topics:
        with store.read() as connection:
            slots = [slot for (slot,) in connection.execute("SELECT slot FROM slots WHERE topic = ?", (topic,))]
        for slot in slots:
            if compacted:
                dropped += compact(store, slot, only_when_worth_it=True)
            elif retention_ms >= 0:
                dropped += _drop_old(store, slot, now_us() - retention_ms * 1000)
    return dropped


def _drop_old(store: Store, slot: int, before_us: int) -> int:
    with store.read() as connection:
        low, high = connection.execute("SELECT low, high FROM slots WHERE slot = ?", (slot,)).fetchone()
        first = connection.execute(
            "SELECT address FROM records WHERE address >= ? AND address < ? AND timestamp >= ?"
            " ORDER BY address LIMIT 1",
            (address_of(slot, low), address_of(slot, high), before_us),
        ).fetchone()
    return delete_before(store, slot, high if first is None else first[0] - address_of(slot, 0))


def delete_before(store: Store, slot: int, offset: int) -> int:
    """Drop the records of a slot below an offset, and let the slot start there; the number of records dropped."""
    dropped = 0
    while True:
        with store.write() as connection:
            low, high = connection.execute("SELECT low, high FROM slots WHERE slot = ?", (slot,)).fetchone()
            target = min(offset, high)
            if target <= low:
                return dropped
            # The low watermark moves with each chunk: a reader sees either the records or that they are gone.
            step = connection.execute(
                "SELECT address FROM records WHERE address >= ? AND address < ? ORDER BY address LIMIT 1 OFFSET ?",
                (address_of(slot, low), address_of(slot, target), _CHUNK),
            ).fetchone()
            cut = target if step is None else step[0] - address_of(slot, 0)
            gone = connection.execute(
                "DELETE FROM records WHERE address >= ? AND address < ?", (address_of(slot, low), address_of(slot, cut))
            )
            connection.execute("UPDATE slots SET low = ? WHERE slot = ?", (cut, slot))
            dropped += gone.rowcount


def compact(store: Store, slot: int, *, only_when_worth_it: bool = False) -> int:
    """Keep the last record of each key, and no tombstone older than `TOMBSTONE_KEPT_MS`; the number dropped.

    Offsets stay as they are and none is given twice, for a slot's ``high`` is kept apart from its records.

    Args:
        store: the log.
        slot: the partition.
        only_when_worth_it: do nothing while fewer records came since the last time than were kept then.
    """
    with store.read() as connection:
        low, high, compacted_to = connection.execute(
            "SELECT low, high, compacted_to FROM slots WHERE slot = ?", (slot,)
        ).fetchone()
        if only_when_worth_it:
            (clean,) = connection.execute(
                "SELECT count(*) FROM records WHERE address >= ? AND address < ?",
                (address_of(slot, low), address_of(slot, compacted_to)),
            ).fetchone()
            if high - compacted_to < max(_DIRTY_MIN, clean):
                return 0
        superseded = connection.execute(
            "SELECT address FROM (SELECT address, timestamp, value IS NULL AS tombstone,"
            " max(address) OVER (PARTITION BY key) AS last FROM records WHERE address >= ? AND address < ?)"
            " WHERE address < last OR (tombstone AND timestamp < ?)",
            (address_of(slot, low), address_of(slot, high), now_us() - TOMBSTONE_KEPT_MS * 1000),
        ).fetchall()
    # Older records go before newer ones, so that an interruption never lets a deleted key's old value show again.
    superseded.sort()
    for chunk in _chunks(superseded):
        with store.write() as connection:
            connection.executemany("DELETE FROM records WHERE address = ?", chunk)
    with store.write() as connection:
        connection.execute("UPDATE slots SET compacted_to = max(compacted_to, ?) WHERE slot = ?", (high, slot))
    return len(superseded)


def _chunks(rows: list[tuple[int]]) -> Iterator[list[tuple[int]]]:
    for start in range(0, len(rows), _CHUNK):
        yield rows[start : start + _CHUNK]
