"""Kafka in asyncio: safe defaults, one partitioner, explicit commits, positions that are never reset."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable

import pytest

from stepwell.adapters.logs.aio import Record, Tail, consumer_options, open_producer, producer_options, tail
from stepwell.adapters.logs.kafka import KafkaLog
from stepwell.adapters.logs.partitioner import partition_for_key
from stepwell.engine.ports import OutgoingRecord, TopicPartition
from stepwell.events.topics import Topic
from stepwell.exceptions import LogError, LogUnavailableError, PositionLostError, TopicError

PARTITIONS = 4


@pytest.fixture
def log(kafka_bootstrap: str) -> KafkaLog:
    return KafkaLog(kafka_bootstrap)


@pytest.fixture
def topic(log: KafkaLog) -> str:
    name = f"aio-{uuid.uuid4().hex[:10]}"
    log.admin().create([Topic(name, "key", PARTITIONS)])
    return name


def _run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await work()

    asyncio.run(bounded())


def _append(log: KafkaLog, topic: str, values: list[bytes]) -> None:
    producer = log.producer()
    producer.send(OutgoingRecord(topic, value, value, (("h", b"x"),)) for value in values)
    producer.flush(30)
    producer.close()


async def _take(records: Tail, count: int) -> list[Record]:
    return [await anext(records) for _ in range(count)]


def test_both_clients_and_the_local_log_put_a_key_into_the_same_partition(log: KafkaLog, topic: str) -> None:
    keys = [uuid.uuid4().hex[: 1 + number % 32].encode() for number in range(1_000)]

    async def send() -> None:
        async with open_producer(log.bootstrap) as producer:
            sent = [await producer.send(topic, key, key) for key in keys]
            by_aiokafka = [(await future).partition for future in sent]
        _append(log, topic, keys)  # by librdkafka
        by_librdkafka: dict[bytes | None, set[int]] = {}
        async with tail(log.bootstrap, [topic]) as records:
            for record in await _take(records, 2 * len(keys)):
                by_librdkafka.setdefault(record.key, set()).add(record.source.partition)
        assert by_aiokafka == [partition_for_key(key, PARTITIONS) for key in keys]
        assert all(by_librdkafka[key] == {at} for key, at in zip(keys, by_aiokafka, strict=True))

    _run(send)


def test_a_group_goes_on_from_its_commit(log: KafkaLog, topic: str) -> None:
    values = [b"%d" % number for number in range(40)]
    _append(log, topic, values)

    async def read() -> None:
        async with tail(log.bootstrap, [topic], "group-" + topic) as records:
            first = await _take(records, 25)
            await records.commit()
            uncommitted = await _take(records, 5)
        async with tail(log.bootstrap, [topic], "group-" + topic) as records:
            rest = await _take(records, 15)
        assert {record.value for record in first + rest} == set(values)
        assert {record.value for record in uncommitted} <= {record.value for record in rest}
        assert first[0].headers == (("h", b"x"),)

    _run(read)


def test_uncommitted_records_are_not_shown(log: KafkaLog, topic: str) -> None:
    producer = log.transactional_producer("aio-" + topic)
    producer.begin()
    producer.send([OutgoingRecord(topic, b"k", b"thrown away")])
    producer.abort()
    producer.begin()
    producer.send([OutgoingRecord(topic, b"k", b"kept")])
    producer.commit()
    producer.close()

    async def read() -> None:
        async with tail(log.bootstrap, [topic]) as records:
            assert (await anext(records)).value == b"kept"

    _run(read)


def test_a_live_tail_starts_at_the_end(log: KafkaLog, topic: str) -> None:
    _append(log, topic, [b"old"])

    async def read() -> None:
        async with tail(log.bootstrap, [topic], start="end") as records:
            await asyncio.to_thread(_append, log, topic, [b"new"])
            assert (await anext(records)).value == b"new"

    _run(read)


def test_a_position_that_is_gone_is_said(log: KafkaLog, topic: str) -> None:
    source = TopicPartition(topic, 0)
    producer = log.producer()
    producer.send(OutgoingRecord(topic, b"k", b"v", (), 0) for _ in range(5))
    producer.flush(30)
    producer.close()
    log.admin().delete_records({source: 3})

    async def read() -> None:
        async with tail(log.bootstrap, [topic], start={source: 1}) as records:
            for _ in range(2):
                with pytest.raises(PositionLostError, match=f"position 1 of {topic}/0 .the log holds 3 to 5"):
                    await anext(records)

    _run(read)


def test_what_cannot_work_is_said(log: KafkaLog, topic: str) -> None:
    async def wrong() -> None:
        with pytest.raises(TopicError, match="no topic nowhere"):
            async with tail(log.bootstrap, ["nowhere"]):
                pass
        with pytest.raises(LogUnavailableError):
            async with tail("127.0.0.1:9", [topic]):
                pass
        with pytest.raises(LogUnavailableError):
            async with open_producer("127.0.0.1:9"):
                pass
        async with tail(log.bootstrap, [topic]) as records:
            with pytest.raises(LogError, match="without a group"):
                await records.commit()

    _run(wrong)


def test_the_defaults_are_the_safe_ones() -> None:
    consumer = consumer_options("b", "g")
    assert consumer["enable_auto_commit"] is False
    assert consumer["auto_offset_reset"] == "none"
    assert consumer["isolation_level"] == "read_committed"
    producer = producer_options("b")
    assert producer["acks"] == "all"
    assert producer["enable_idempotence"] is True
