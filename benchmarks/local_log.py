"""The local log beside plain SQLite that inserts and selects the same rows.

    python -m benchmarks.local_log

Best of several interleaved runs, in records per second of wall time. Plain SQLite gets its rows ready made, in order,
and commits them in batches of the same size with the same durability; the log starts from `OutgoingRecord`s, chooses
partitions, packs headers and gives offsets.
"""

import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from stepwell.adapters.logs.local import LocalLog
from stepwell.adapters.logs.local_store import address_of
from stepwell.adapters.logs.partitioner import partition_for_key
from stepwell.engine.headers import pack_headers
from stepwell.engine.ports import OutgoingRecord, TopicPartition
from stepwell.events.topics import EPISODE_EVENTS, Topic

RECORDS, BATCH, PARTITIONS, RUNS = 100_000, 4_000, 4, 3
VALUE = bytes(range(127))
HEADERS = (
    ("ce_specversion", b"1.0"),
    ("ce_type", b"sim::step_done"),
    ("ce_id", b"0192f0c0-0000-7000-8000-000000000000"),
    ("ce_source", b"/stepwell/host"),
    ("stepwell_schema", bytes(16)),
)
KEYS = [b"episode-%024d" % number for number in range(50)]
SENT = [OutgoingRecord(EPISODE_EVENTS, KEYS[number % 50], VALUE, HEADERS) for number in range(RECORDS)]
SOURCES = {TopicPartition(EPISODE_EVENTS, number): 0 for number in range(PARTITIONS)}


def main() -> None:
    best = dict.fromkeys(CASES, (0.0, 0.0))
    for name, write, read in turns(RUNS):
        best[name] = (max(best[name][0], RECORDS / write), max(best[name][1], RECORDS / read))
    print(f"{RECORDS} records of {len(VALUE)} bytes and {len(HEADERS)} headers, batches of {BATCH}; records/s")
    raw_write, raw_read = best["plain SQLite"]
    for name, (write, read) in best.items():
        shares = f"({write / raw_write:4.0%})", f"({read / raw_read:4.0%})"
        print(f"  {name:<14} append {write:>10,.0f} {shares[0]}   read {read:>10,.0f} {shares[1]}")


def turns(count: int) -> Iterator[tuple[str, float, float]]:
    """Name, seconds to append and seconds to read of every case, in turn."""
    for _ in range(count):
        for name, case in CASES.items():
            with tempfile.TemporaryDirectory() as directory:
                write, read = case(Path(directory))
            yield name, write, read


def plain(directory: Path) -> tuple[float, float]:
    """Seconds to insert, and to select as rows."""
    connection = sqlite3.connect(directory / "plain.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(
        "CREATE TABLE records (address INTEGER PRIMARY KEY, timestamp INTEGER NOT NULL, key BLOB, value BLOB,"
        " headers BLOB) STRICT"
    )
    rows, ends = [], [0] * PARTITIONS
    headers = pack_headers(HEADERS)
    for record in SENT:
        partition = partition_for_key(record.key or b"", PARTITIONS)
        rows.append((address_of(partition, ends[partition]), 0, record.key, record.value, headers))
        ends[partition] += 1
    batches = [sorted(rows[start : start + BATCH]) for start in range(0, RECORDS, BATCH)]
    started = time.perf_counter()
    for batch in batches:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?)", batch)
        connection.execute("COMMIT")
    written = time.perf_counter()
    cursor = connection.execute("SELECT * FROM records")
    while cursor.fetchmany(BATCH):
        pass
    read = time.perf_counter()
    connection.close()
    return written - started, read - written


def producer(directory: Path) -> tuple[float, float]:
    """Seconds to append through the producer outside transactions, and to read as batches."""
    log = LocalLog(directory)
    client = log.producer()
    started = time.perf_counter()
    for start in range(0, RECORDS, BATCH):
        client.send(SENT[start : start + BATCH])
    client.flush(600)
    written = time.perf_counter() - started
    client.close()
    return written, read_all(log)


def transactions(directory: Path) -> tuple[float, float]:
    """Seconds to append in transactions that also commit a consumed position, and to read as batches."""
    log = LocalLog(directory)
    admin = log.admin()
    admin.create([Topic("input", "key", 1)])
    member = log.consumer("group")
    member.subscribe(["input"])
    member.poll(1, 0)
    client = log.transactional_producer("benchmark")
    started = time.perf_counter()
    for start in range(0, RECORDS, BATCH):
        client.begin()
        client.send(SENT[start : start + BATCH])
        client.send_offsets({TopicPartition("input", 0): start}, member.membership())
        client.commit()
    written = time.perf_counter() - started
    for opened in (client, member, admin):
        opened.close()
    return written, read_all(log)


def read_all(log: LocalLog) -> float:
    """Seconds to read everything from the start."""
    consumer = log.consumer()
    consumer.assign(SOURCES)
    started = time.perf_counter()
    count = 0
    while count < RECORDS:
        count += sum(map(len, consumer.poll(BATCH, 10)))
    seconds = time.perf_counter() - started
    consumer.close()
    return seconds


CASES: dict[str, Callable[[Path], tuple[float, float]]] = {
    "plain SQLite": plain,
    "producer": producer,
    "transactions": transactions,
}

if __name__ == "__main__":
    main()
