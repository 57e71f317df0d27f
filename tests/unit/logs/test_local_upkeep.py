"""Retention and compaction keep what they promise, and give no offset twice."""

import time
from pathlib import Path

import pytest

from stepwell.adapters.logs import local_upkeep
from stepwell.adapters.logs.local import LocalLog
from stepwell.engine.ports import OutgoingRecord, TopicPartition, Watermarks
from stepwell.events.topics import Topic
from stepwell.exceptions import LogError

COMPACTED = Topic("compacted", "key", 1, compacted=True)
SHORT = Topic("short", "key", 1, retention_ms=200)
FOREVER = Topic("forever", "key", 1)


@pytest.fixture
def log(tmp_path: Path) -> LocalLog:
    return LocalLog(tmp_path, topics=[COMPACTED, SHORT, FOREVER])


def _send(log: LocalLog, topic: str, *pairs: tuple[bytes | None, bytes | None]) -> None:
    producer = log.producer()
    producer.send([OutgoingRecord(topic, key, value) for key, value in pairs])
    producer.flush(30)
    producer.close()


def _read(log: LocalLog, topic: str, start: int = 0) -> list[tuple[int, bytes | None, bytes | None]]:
    consumer = log.consumer()
    source = TopicPartition(topic, 0)
    consumer.assign({source: start})
    found = []
    while batches := consumer.poll(3, 0):
        for batch in batches:
            found += zip(batch.offsets, batch.keys, batch.values, strict=True)
    assert consumer.position(source) == consumer.watermarks(source).high
    consumer.close()
    return found


def test_compaction_keeps_the_last_record_of_each_key(log: LocalLog) -> None:
    _send(log, "compacted", *[(b"k%d" % (n % 3), b"%d" % n) for n in range(10)])
    admin = log.admin()
    assert admin.compact("compacted") == 7
    assert _read(log, "compacted") == [(7, b"k1", b"7"), (8, b"k2", b"8"), (9, b"k0", b"9")]
    assert admin.compact("compacted") == 0
    assert admin.watermarks("compacted")[TopicPartition("compacted", 0)] == Watermarks(0, 10)
    admin.close()


def test_batches_join_up_over_the_holes_of_compaction(log: LocalLog) -> None:
    _send(log, "compacted", *[(b"same", b"%d" % n) for n in range(10)], (b"other", b"x"), (b"same", b"y"))
    admin = log.admin()
    consumer = log.consumer()
    source = TopicPartition("compacted", 0)
    consumer.assign({source: 0})
    first = consumer.poll(4, 1)[0]
    assert (first.start, first.end) == (0, 4)
    admin.compact("compacted")
    second = consumer.poll(1, 1)[0]
    assert (second.start, second.offsets, second.end) == (4, [10], 11)
    admin.close()
    consumer.close()


def test_a_hole_at_the_end_is_passed_and_still_joins_up(log: LocalLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_upkeep, "TOMBSTONE_KEPT_MS", -1000)
    _send(log, "compacted", (b"a", b"1"), (b"b", b"1"), (b"b", None))
    admin = log.admin()
    assert admin.compact("compacted") == 2
    consumer = log.consumer()
    source = TopicPartition("compacted", 0)
    consumer.assign({source: 0})
    assert consumer.poll(1, 1)[0].end == 1
    assert consumer.poll(1, 0) == []
    assert consumer.position(source) == 3
    _send(log, "compacted", (b"c", b"1"))
    batch = consumer.poll(1, 1)[0]
    assert (batch.start, batch.offsets, batch.end) == (1, [3], 4)
    admin.close()
    consumer.close()


def test_a_tombstone_outlives_compaction_for_a_day(log: LocalLog, monkeypatch: pytest.MonkeyPatch) -> None:
    _send(log, "compacted", (b"a", b"1"), (b"a", None))
    admin = log.admin()
    assert admin.compact("compacted") == 1
    assert _read(log, "compacted") == [(1, b"a", None)]
    monkeypatch.setattr(local_upkeep, "TOMBSTONE_KEPT_MS", -1000)
    assert admin.compact("compacted") == 1
    assert _read(log, "compacted") == []
    _send(log, "compacted", (b"a", b"2"))
    assert _read(log, "compacted") == [(2, b"a", b"2")], "an offset was given twice"
    admin.close()


def test_a_compacted_topic_needs_keys(log: LocalLog) -> None:
    producer = log.producer()
    with pytest.raises(LogError, match="key must be bytes"):
        producer.send([OutgoingRecord("compacted", None, b"v")])
    producer.close()


def test_compaction_waits_until_it_is_worth_it(log: LocalLog) -> None:
    admin = log.admin()
    _send(log, "compacted", *[(b"k", b"%d" % n) for n in range(900)])
    assert admin.maintain() == 0
    _send(log, "compacted", *[(b"k", b"%d" % n) for n in range(200)])
    assert admin.maintain() == 1099
    _send(log, "compacted", *[(b"k", b"%d" % n) for n in range(200)])
    assert admin.maintain() == 0
    admin.close()


def test_retention_drops_what_is_old_and_moves_the_start(log: LocalLog) -> None:
    _send(log, "short", *[(b"k", b"old %d" % n) for n in range(5)])
    _send(log, "forever", (b"k", b"kept"))
    time.sleep(0.3)
    _send(log, "short", (b"k", b"new"))
    admin = log.admin()
    assert admin.maintain() == 5
    assert admin.watermarks("short")[TopicPartition("short", 0)] == Watermarks(5, 6)
    assert _read(log, "short", 5) == [(5, b"k", b"new")]
    assert [value for _, _, value in _read(log, "forever")] == [b"kept"]
    time.sleep(0.3)
    assert admin.maintain() == 1
    assert admin.watermarks("short")[TopicPartition("short", 0)] == Watermarks(6, 6)
    _send(log, "short", (b"k", b"next"))
    assert _read(log, "short", 6) == [(6, b"k", b"next")]
    admin.close()


def test_large_deletions_go_in_chunks(log: LocalLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_upkeep, "_CHUNK", 7)
    _send(log, "forever", *[(b"k", b"%d" % n) for n in range(50)])
    admin = log.admin()
    source = TopicPartition("forever", 0)
    assert admin.delete_records({source: 33}) == 33
    assert admin.watermarks("forever")[source] == Watermarks(33, 50)
    assert admin.delete_records({source: 1000}) == 17
    assert admin.watermarks("forever")[source] == Watermarks(50, 50)
    admin.close()


def test_appenders_do_the_upkeep_by_themselves(log: LocalLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_upkeep, "INTERVAL_S", 0.0)
    monkeypatch.setattr(local_upkeep, "_APPENDS_BETWEEN_LOOKS", 1)
    _send(log, "short", (b"k", b"old"))
    time.sleep(0.3)
    producer = log.transactional_producer("appender")
    producer.begin()
    producer.send([OutgoingRecord("short", b"k", b"new")])
    producer.commit()
    producer.close()
    admin = log.admin()
    assert admin.watermarks("short")[TopicPartition("short", 0)] == Watermarks(1, 2)
    admin.close()


def test_only_one_appender_a_minute_does_the_upkeep(log: LocalLog) -> None:
    for attempt in range(3):
        producer = log.producer()
        keeper = local_upkeep.Upkeep(producer._store)
        assert keeper._claim() is (attempt == 0)
        producer.close()
