"""The local log hands headers on as they are kept; whether they can be read is seen by who reads them."""

import sqlite3
from pathlib import Path

import pytest

from stepwell.adapters.logs.local import LocalLog
from stepwell.engine.ports import OutgoingRecord, RecordBatch, TopicPartition
from stepwell.events.topics import Topic
from stepwell.exceptions import LogError

HEADERS = [(("a", b"1"), ("a", b"2"), ("b", None)), (), (("c", b"3"),), (("d", b"4"),)]


@pytest.fixture
def log(tmp_path: Path) -> LocalLog:
    log = LocalLog(tmp_path, topics=[Topic("things", "key", 1)])
    producer = log.producer()
    producer.send([OutgoingRecord("things", b"k", b"v%d" % n, headers) for n, headers in enumerate(HEADERS)])
    producer.close()
    return log


def read(log: LocalLog) -> RecordBatch:
    consumer = log.consumer()
    consumer.assign({TopicPartition("things", 0): 0})
    (batch,) = consumer.poll(100, 5)
    consumer.close()
    return batch


def test_names_that_stand_twice_and_records_without_headers(log: LocalLog) -> None:
    batch = read(log)
    assert list(batch.headers) == HEADERS
    assert len(batch.headers) == len(batch)
    log.close()


def test_one_damaged_record_is_told_by_its_offset_and_the_others_are_read(log: LocalLog, tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "log.db")
    connection.execute("UPDATE records SET headers = x'9192a16c' WHERE value = ?", (b"v2",))
    connection.commit()
    connection.close()
    batch = read(log)
    assert batch.values == [b"v0", b"v1", b"v2", b"v3"]
    assert [batch.headers[0], batch.headers[1], batch.headers[3]] == [HEADERS[0], HEADERS[1], HEADERS[3]]
    with pytest.raises(LogError, match="things/0: the headers of the record at offset 2 are damaged"):
        list(batch.headers)
    log.close()
