"""What the log itself says of its workers: for when the tables cannot tell."""

from collections.abc import Iterator

import msgspec
import pytest

from stepwell.adapters.logs.memory import MemoryLog
from stepwell.adapters.workers.survey import survey_log
from stepwell.engine.ports import OutgoingRecord, TopicPartition
from stepwell.engine.publish import outgoing
from stepwell.events.codec import Codec
from stepwell.events.model import TelemetrySampled, WorkerReported
from stepwell.events.topics import EPISODE_EVENTS, POLICY_EVENTS, TELEMETRY
from tests.unit.events.records import sample

CODEC = Codec()
GROUPS = {"one": [EPISODE_EVENTS], "two": [EPISODE_EVENTS, POLICY_EVENTS]}


@pytest.fixture
def log() -> Iterator[MemoryLog]:
    log = MemoryLog()
    yield log
    log.close()


def send(log: MemoryLog, *records: OutgoingRecord) -> None:
    producer = log.producer()
    producer.send(records)
    producer.flush(10)
    producer.close()


def commit(log: MemoryLog, group: str, positions: dict[TopicPartition, int]) -> None:
    consumer = log.consumer(group)
    consumer.subscribe([EPISODE_EVENTS])
    while not consumer.poll(1, 1):
        pass
    consumer.commit(positions)
    consumer.close()


def test_each_group_by_partition_with_the_age_of_the_oldest_that_waits(log: MemoryLog) -> None:
    """Two groups at different places of one partition; one has never worked; a partition without records."""
    source = TopicPartition(EPISODE_EVENTS, 1)
    for _ in range(5):
        send(log, OutgoingRecord(EPISODE_EVENTS, b"key", b"value", (), 1))
    reader = log.consumer()
    reader.assign({source: 0})
    logged_at: list[int] = []
    while len(logged_at) < 5:
        logged_at += [at for batch in reader.poll(10, 1) for at in batch.timestamps]
    reader.close()
    commit(log, "one", {source: 3})
    survey = survey_log(log, CODEC, GROUPS)
    found = {(each.consumer, each.topic, each.partition): each for each in survey.partitions}
    assert len(found) == 4 + 8
    one, two = found["one", EPISODE_EVENTS, 1], found["two", EPISODE_EVENTS, 1]
    assert (one.position, one.log_end, one.behind_events, one.oldest_logged_at) == (3, 5, 2, logged_at[3])
    assert (two.position, two.log_end, two.behind_events, two.oldest_logged_at) == (None, 5, 5, logged_at[0])
    assert found["two", POLICY_EVENTS, 0].behind_events == 0
    assert found["two", POLICY_EVENTS, 0].oldest_logged_at is None
    commit(log, "one", {source: 5})
    again = {(each.consumer, each.partition): each for each in survey_log(log, CODEC, GROUPS).partitions}
    assert (again["one", 1].behind_events, again["one", 1].oldest_logged_at) == (0, None)


def test_the_last_words_of_each_worker(log: MemoryLog) -> None:
    """Among samples, and among what nobody can read."""
    report = sample(WorkerReported)
    for worker, seq in (("b", 0), ("a", 0), ("b", 1)):
        send(log, outgoing(CODEC, msgspec.structs.replace(report, worker_id=worker, report_seq=seq)))
    send(log, outgoing(CODEC, sample(TelemetrySampled)))
    send(log, OutgoingRecord(TELEMETRY, b"b", b"garbage", (("ce_type", b"worker::reported"),)))
    found = survey_log(log, CODEC, GROUPS).reports
    assert [(each.worker_id, each.report_seq) for each in found] == [("a", 0), ("b", 1)]
