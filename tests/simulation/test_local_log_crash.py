"""kill -9 at arbitrary points: what was acknowledged is there, what was not is there whole or not at all."""

import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

from stepwell.adapters.logs.local import LocalLog
from stepwell.adapters.logs.local_admin import LocalAdmin
from stepwell.engine.ports import OutgoingRecord, TopicPartition
from stepwell.events.topics import Topic

SEED = 20
ROUNDS = 12
INPUTS = 60_000
TOPICS = [Topic("input", "key", 1), Topic("one", "key", 1), Topic("two", "key", 1), Topic("plain", "key", 1)]

# Copies the input to two topics, exactly once, and appends to a fourth outside transactions; tells what is durable.
WORKER = """
import sys
from stepwell.adapters.logs.local import LocalLog
from stepwell.engine.ports import OutgoingRecord
log = LocalLog(sys.argv[1], topics=[])
consumer = log.consumer("copiers", "copier")
consumer.subscribe(["input"])
producer, plain = log.transactional_producer("copier"), log.producer()
start = int(sys.argv[2])
while True:
    for batch in consumer.poll(7, 1):
        producer.begin()
        for topic in ("one", "two"):
            producer.send(OutgoingRecord(topic, key, value) for key, value in zip(batch.keys, batch.values))
        producer.send_offsets({batch.source: batch.end}, consumer.membership())
        producer.commit()
        plain.send([OutgoingRecord("plain", b"k", b"%d" % number) for number in range(start, start + 5)])
        plain.flush(30)
        start += 5
        print(batch.end, start, flush=True)
"""


def _values(log: LocalLog, topic: str) -> list[int]:
    consumer = log.consumer()
    consumer.assign({TopicPartition(topic, 0): 0})
    values: list[int] = []
    while batches := consumer.poll(10_000, 0):
        values += [int(value or b"") for batch in batches for value in batch.values]
    consumer.close()
    return values


def _run_and_kill(directory: Path, start: int, alive_s: float) -> tuple[int, int]:
    """Start a worker, kill it after so long; the last position and the last plain number that it called durable."""
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(directory), str(start)], stdout=subprocess.PIPE, text=True
    )
    assert worker.stdout is not None
    told = worker.stdout.readline()
    time.sleep(alive_s)
    worker.send_signal(signal.SIGKILL)
    rest = worker.communicate()[0]
    assert worker.returncode == -signal.SIGKILL
    lines = [line for line in (told + rest).splitlines(keepends=True) if line.endswith("\n")]
    position, number = lines[-1].split()
    return int(position), int(number)


def test_killed_writers_lose_nothing_acknowledged_and_leave_nothing_half_done(tmp_path: Path) -> None:
    log = LocalLog(tmp_path, topics=TOPICS)
    producer = log.producer()
    producer.send([OutgoingRecord("input", b"%d" % (number % 9), b"%d" % number) for number in range(INPUTS)])
    producer.flush(60)
    producer.close()
    admin: LocalAdmin = log.admin()
    source = TopicPartition("input", 0)
    dice = random.Random(SEED)
    start = 0
    for _ in range(ROUNDS):
        position, number = _run_and_kill(tmp_path, start, dice.random() * 0.25)
        committed = admin.group_positions("copiers", "input")[source]
        assert committed is not None
        assert committed >= position, "an acknowledged transaction is gone"
        assert _values(log, "one") == list(range(committed))
        assert _values(log, "two") == list(range(committed))
        plain = _values(log, "plain")
        assert plain == list(range(len(plain)))
        assert len(plain) in (number, number + 5), "an acknowledged record is gone, or a call was cut in two"
        start = len(plain)
    assert 0 < committed < INPUTS, "the workers must have been killed at work"
    admin.close()
    connection = sqlite3.connect(tmp_path / "log.db")
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_a_stopped_process_that_wakes_up_commits_nothing(tmp_path: Path) -> None:
    """SIGSTOP through its time-out, a successor at work, SIGCONT: the sleeper's transaction is refused."""
    script = """
import sys
from stepwell.adapters.logs.local import LocalLog
from stepwell.engine.ports import OutgoingRecord
from stepwell.exceptions import FencedError
log = LocalLog(sys.argv[1], topics=[], session_timeout_s=0.5)
consumer = log.consumer("group")
consumer.subscribe(["input"])
producer = log.transactional_producer("sleeper")
(batch,) = consumer.poll(10, 30)
producer.begin()
producer.send([OutgoingRecord("one", b"k", b"1")])
producer.send_offsets({batch.source: batch.end}, consumer.membership())
print("ready", flush=True)
sys.stdin.readline()
try:
    producer.commit()
except FencedError:
    print("fenced", flush=True)
"""
    log = LocalLog(tmp_path, topics=TOPICS, session_timeout_s=0.5)
    feeder = log.producer()
    feeder.send([OutgoingRecord("input", b"k", b"%d" % number) for number in range(10)])
    feeder.flush(30)
    feeder.close()
    sleeper = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert sleeper.stdout is not None
        assert sleeper.stdout.readline() == "ready\n"
        sleeper.send_signal(signal.SIGSTOP)
        successor = log.consumer("group")
        successor.subscribe(["input"])
        deadline = time.monotonic() + 30
        while not (batches := successor.poll(100, 0.1)):
            assert time.monotonic() < deadline
        producer = log.transactional_producer("successor")
        producer.begin()
        producer.send([OutgoingRecord("one", b"k", b"0")])
        producer.send_offsets({batch.source: batch.end for batch in batches}, successor.membership())
        producer.commit()
        sleeper.send_signal(signal.SIGCONT)
        assert sleeper.communicate("go on\n", timeout=30)[0] == "fenced\n"
    finally:
        sleeper.kill()
        sleeper.wait()
    assert _values(log, "one") == [0]
    producer.close()
    successor.close()
