"""What a member is told when taking over partitions fails half-way. No broker is asked."""

from typing import Any

import pytest
from confluent_kafka import TopicPartition as DriverPartition

from stepwell.adapters.logs.kafka_consumer import KafkaConsumer
from stepwell.engine.ports import TopicPartition
from stepwell.exceptions import LogUnavailableError


class Driver:
    """Notes what it is told to read."""

    def __init__(self) -> None:
        self.reads: list[list[DriverPartition]] = []

    def assign(self, partitions: list[DriverPartition]) -> None:
        self.reads.append(partitions)


def test_partitions_whose_positions_cannot_be_had_are_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the caller would work on partitions that it does not own, and end with "not assigned to this consumer"."""
    consumer = KafkaConsumer("127.0.0.1:1", "group", None, {})
    owned: set[TopicPartition] = set()

    def away(_sources: Any) -> dict[TopicPartition, int]:
        raise LogUnavailableError("the coordinator does not answer")

    monkeypatch.setattr(consumer, "_starting_positions", away)
    consumer._topics = ["events"]
    consumer._on_assign = owned.update
    consumer._on_revoke = owned.difference_update
    driver: Any = Driver()
    consumer._assigned(driver, [DriverPartition("events", 0), DriverPartition("events", 1)])
    assert owned == set()
    assert driver.reads == [[]]
    with pytest.raises(LogUnavailableError):
        consumer.poll(1, 0)
    consumer.close()
