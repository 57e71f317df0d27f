"""The local log's file: what it refuses to open, and what it does when the disk or the lock is not there."""

import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from stepwell.adapters.logs import local_store
from stepwell.adapters.logs.local import LocalLog
from stepwell.adapters.logs.local_store import LAYOUT_VERSION, open_store
from stepwell.engine.ports import OutgoingRecord, TopicPartition
from stepwell.events.topics import TOPICS, Topic
from stepwell.exceptions import ConfigurationError, LogError, LogUnavailableError, StepwellError

TOPIC = Topic("things", "key", 2)


def _log(directory: Path) -> LocalLog:
    return LocalLog(directory, topics=[TOPIC])


def _count(log: LocalLog) -> int:
    admin = log.admin()
    try:
        return sum(marks.high for marks in admin.watermarks("things").values())
    finally:
        admin.close()


def test_a_newer_layout_is_refused_and_left_alone(tmp_path: Path) -> None:
    _log(tmp_path)
    connection = sqlite3.connect(tmp_path / "log.db")
    connection.execute(f"PRAGMA user_version = {LAYOUT_VERSION + 1}")
    connection.close()
    with pytest.raises(LogError, match=f"layout {LAYOUT_VERSION + 1}.*newer"):
        _log(tmp_path)


def test_a_database_of_something_else_is_refused(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "log.db")
    connection.execute("CREATE TABLE mine (x)")
    connection.close()
    with pytest.raises(LogError, match="something else"):
        _log(tmp_path)


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "log.db").write_bytes(b"this is not a database" * 500)
    with pytest.raises(LogError, match="no SQLite database"):
        _log(tmp_path)


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_store, "_NETWORK_FILE_SYSTEMS", _kind_of_file_system(tmp_path))
    with pytest.raises(ConfigurationError, match="network file system"):
        _log(tmp_path)


def _kind_of_file_system(path: Path) -> frozenset[str]:
    kind = subprocess.run(
        ["stat", "--file-system", "--format=%T", str(path)], check=True, capture_output=True, text=True
    ).stdout.strip()
    # `stat` names the ext family by one name, the kernel by three.
    return frozenset({kind, "ext4", "ext3", "ext2", "overlay", "tmpfs", "xfs", "btrfs"})


def test_many_processes_may_make_the_same_log_at_once(tmp_path: Path) -> None:
    script = "import sys; from stepwell.adapters.logs import open_log; open_log('local:' + sys.argv[1])"
    children = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path)]) for _ in range(6)]
    assert [child.wait() for child in children] == [0] * 6
    admin = LocalLog(tmp_path).admin()
    assert admin.check(TOPICS) == []
    admin.close()


def test_a_log_without_a_later_topic_gets_it_when_opened(tmp_path: Path) -> None:
    _log(tmp_path)
    admin = LocalLog(tmp_path, topics=[TOPIC, Topic("later", "key", 3)]).admin()
    assert admin.partitions("later") == 3
    admin.close()


def test_a_forked_process_is_told_to_open_the_log_again(tmp_path: Path) -> None:
    script = """
import os, sys
from stepwell.adapters.logs import open_log
from stepwell.exceptions import LogError
admin = open_log("local:" + sys.argv[1]).admin()
child = os.fork()
if child == 0:
    try:
        admin.watermarks("stepwell.telemetry")
    except LogError as error:
        os._exit(0 if "fork" in str(error) else 1)
    os._exit(2)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False).returncode == 0


def test_a_write_lock_held_for_too_long_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = _log(tmp_path)
    monkeypatch.setattr(local_store, "BUSY_TIMEOUT_S", 0.2)
    producer = log.producer()
    holder = open_store(tmp_path)
    with holder.write():
        producer.send([OutgoingRecord("things", b"k", b"v")])
        with pytest.raises(LogUnavailableError, match="write lock"):
            producer.flush(30)
    assert _count(log) == 0
    producer.send([OutgoingRecord("things", b"k", b"v")])
    producer.flush(30)
    assert _count(log) == 1
    producer.close()
    holder.close()


def test_what_queued_behind_a_refused_record_is_refused_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = _log(tmp_path)
    monkeypatch.setattr(local_store, "BUSY_TIMEOUT_S", 1.0)
    producer = log.producer()
    holder = open_store(tmp_path)
    with holder.write():
        producer.send([OutgoingRecord("things", b"k", b"first")])
        while not producer._writing:
            time.sleep(0.001)
        producer.send([OutgoingRecord("things", b"k", b"behind it")])
        while producer._reason is None:
            time.sleep(0.001)
    with pytest.raises(LogUnavailableError, match="an earlier record was refused"):
        producer.send([OutgoingRecord("things", b"k", b"too early")])
    with pytest.raises(LogUnavailableError, match="2 records were refused"):
        producer.flush(30)
    producer.flush(30)
    assert _count(log) == 0
    producer.send([OutgoingRecord("things", b"k", b"again")])
    producer.flush(30)
    assert _count(log) == 1
    producer.close()
    holder.close()


def test_a_closed_client_says_so(tmp_path: Path) -> None:
    admin = _log(tmp_path).admin()
    admin.close()
    with pytest.raises(LogError, match="closed"):
        admin.watermarks("things")


def test_every_sqlite_error_becomes_one_of_ours() -> None:
    names = [name for name in dir(sqlite3) if name.startswith("SQLITE_")]
    codes = [getattr(sqlite3, name) for name in names if isinstance(getattr(sqlite3, name), int)]
    assert len(codes) > 50
    for code in codes:
        error = sqlite3.OperationalError("why")
        error.sqlite_errorcode = code  # type: ignore[misc]
        ours = local_store.explain(error, "local log x")
        assert isinstance(ours, LogError)
        assert "local log x" in str(ours)
        assert "why" in str(ours)
    assert local_store.explain(sqlite3.ProgrammingError("why"), "x").retriable is False


def test_threads_may_share_a_producer(tmp_path: Path) -> None:
    log = _log(tmp_path)
    producer = log.producer()

    def work(name: bytes) -> None:
        for number in range(100):
            producer.send([OutgoingRecord("things", name, b"%d" % number)])

    threads = [threading.Thread(target=work, args=(b"%d" % number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    producer.flush(30)
    producer.close()
    consumer = log.consumer()
    consumer.assign({TopicPartition("things", 0): 0, TopicPartition("things", 1): 0})
    came: dict[bytes | None, list[int]] = {}
    while sum(map(len, came.values())) < 400:
        for batch in consumer.poll(1000, 10):
            for key, value in zip(batch.keys, batch.values, strict=True):
                came.setdefault(key, []).append(int(value or b""))
    consumer.close()
    assert all(values == list(range(100)) for values in came.values())


# Fills the disk, sees that it is told, and looks at what is left.
FILL = """
import resource, sqlite3, sys
from stepwell.adapters.logs.local import LocalLog
from stepwell.engine.ports import OutgoingRecord
from stepwell.events.topics import Topic
from stepwell.exceptions import LogUnavailableError
directory, limit = sys.argv[1], int(sys.argv[2])
log = LocalLog(directory, topics=[Topic("things", "key", 2)])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
producer = log.transactional_producer("filler")
committed = 0
try:
    while True:
        producer.begin()
        producer.send([OutgoingRecord("things", b"k%d" % n, bytes(10_000)) for n in range(20)])
        producer.commit()
        committed += 20
except LogUnavailableError as error:
    message = str(error)
again = log.producer()
again.send([OutgoingRecord("things", b"x", bytes(500_000)) for _ in range(4)])
try:
    again.flush(30)
    sys.exit("a full disk took two more megabytes")
except LogUnavailableError:
    again.close()
admin = log.admin()
high = sum(marks.high for marks in admin.watermarks("things").values())
connection = sqlite3.connect(directory + "/log.db")
intact, = connection.execute("PRAGMA integrity_check").fetchone()
rows, = connection.execute("SELECT count(*) FROM records").fetchone()
print(committed, high, rows, intact, message, sep="|")
"""
TMPFS = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=6m tmpfs "$0" && exec "$@"']


def _may_mount() -> bool:
    tried = subprocess.run([*TMPFS, "/mnt", "true"], check=False, capture_output=True)
    return tried.returncode == 0


# A file that may not grow is a disk that refuses; where the machine lets us, there is a really full one, too.
DISKS = {"limited": "the disk refused", **({"full": "the disk is full"} if _may_mount() else {})}


@pytest.mark.parametrize(("disk", "told"), DISKS.items())
def test_a_disk_without_room_is_told_and_leaves_nothing_half_written(tmp_path: Path, disk: str, told: str) -> None:
    before = [*TMPFS, str(tmp_path)] if disk == "full" else []
    limit = "0" if disk == "full" else "6000000"
    done = subprocess.run(
        [*before, sys.executable, "-c", FILL, str(tmp_path), limit], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    committed, high, rows, intact, message = done.stdout.strip().split("|")
    assert int(committed) > 0
    assert committed == high == rows
    assert intact == "ok"
    assert told in message


def test_a_log_goes_on_when_there_is_room_again(tmp_path: Path) -> None:
    log = _log(tmp_path)
    producer = log.producer()
    pages = producer._store._connection.execute("PRAGMA page_count").fetchone()[0]
    producer._store._connection.execute(f"PRAGMA max_page_count = {pages}")
    producer.send([OutgoingRecord("things", b"k", bytes(1_000_000))])
    with pytest.raises(LogUnavailableError, match="the disk is full"):
        producer.flush(30)
    assert _count(log) == 0
    producer._store._connection.execute(f"PRAGMA max_page_count = {pages * 1000}")
    producer.send([OutgoingRecord("things", b"k", bytes(1_000_000))])
    producer.flush(30)
    producer.close()
    assert _count(log) == 1


def test_errors_are_stepwells_own(tmp_path: Path) -> None:
    producer = _log(tmp_path).producer()
    with pytest.raises(StepwellError, match="key must be bytes"):
        producer.send([OutgoingRecord("things", "text", b"v")])  # type: ignore[arg-type]
    with pytest.raises(StepwellError, match="value must be bytes"):
        producer.send([OutgoingRecord("things", b"k", "text")])  # type: ignore[arg-type]
    producer.flush(30)
    producer.close()
