"""Topics and groups of a Kafka cluster: made, looked at and checked, by its admin interface."""

import concurrent.futures
import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
)
from confluent_kafka import TopicPartition as DriverPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.admin._topic import TopicDescription
from confluent_kafka.cimpl import NewTopic

from stepwell.adapters.logs.kafka_client import Availability, Outage, base_options, make_client, patiently
from stepwell.adapters.logs.kafka_consumer import KafkaConsumer
from stepwell.adapters.logs.kafka_errors import kafka_error, to_log_error
from stepwell.engine.ports import TopicPartition, Watermarks
from stepwell.events.topics import EPISODE_EVENTS, EPISODE_SNAPSHOTS, Topic
from stepwell.exceptions import LogUnavailableError, TopicError

__all__ = ["KafkaAdmin", "topic_settings"]

ANSWER_TIMEOUT_S = 15.0
"""How long an answer is waited for before `LogUnavailableError` (s): somebody sits in front of it."""

_ABSENT = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)


def topic_settings(topic: Topic, replication: int) -> dict[str, str]:
    """Kafka's settings of a topic. With three replicas two must acknowledge, so one broker may be away."""
    settings = {
        "cleanup.policy": "compact" if topic.compacted else "delete",
        "message.timestamp.type": "LogAppendTime" if topic.timestamps == "log" else "CreateTime",
        "min.insync.replicas": str(_min_in_sync(replication)),
    }
    if topic.compacted:
        # The active segment is never compacted, and a restart reads the whole topic: keep segments small.
        settings |= {
            "segment.bytes": str(32 * 1024 * 1024),
            "segment.ms": str(10 * 60 * 1000),
            "min.cleanable.dirty.ratio": "0.2",
        }
    else:
        settings |= {"retention.ms": str(topic.retention_ms), "retention.bytes": "-1"}
    return settings


def _min_in_sync(replication: int) -> int:
    return 2 if replication >= 3 else 1


class KafkaAdmin:
    """See `stepwell.engine.ports.Admin`."""

    def __init__(self, bootstrap: str, options: Mapping[str, Any], outage: Outage | None = None) -> None:
        self._availability = Availability("admin", outage)
        self._bootstrap = bootstrap
        self._options = dict(options)
        self._readers: dict[str, KafkaConsumer] = {}
        self._driver = make_client(AdminClient, base_options(bootstrap, options, self._availability.on_error))

    def partitions(self, topic: str) -> int:
        """See `stepwell.engine.ports.Admin.partitions`."""
        return len(self._describe_one(topic).partitions)

    def brokers(self) -> int:
        """How many brokers the cluster has now."""
        try:
            return len(self._driver.list_topics(timeout=ANSWER_TIMEOUT_S).brokers)
        except KafkaException as error:
            raise to_log_error(error, f"asking {self._bootstrap} for its brokers") from error

    def create(self, topics: Sequence[Topic], replication: int | None = None) -> list[str]:
        """See `stepwell.engine.ports.Admin.create`.

        Args:
            topics: those that must exist afterwards; existing ones are left as they are (see `check`).
            replication: copies of each partition; None: three, or as many as there are brokers where that is fewer.
        """
        existing = self._describe(topic.name for topic in topics)
        missing = [topic for topic in topics if existing[topic.name] is None]
        if not missing:
            return []
        copies = replication or min(3, max(1, self.brokers()))
        new = [NewTopic(t.name, t.partitions, copies, config=topic_settings(t, copies)) for t in missing]
        created = []
        for name, future in self._driver.create_topics(new, operation_timeout=ANSWER_TIMEOUT_S).items():
            try:
                self._answer(future, f"making the topic {name}")
                created.append(name)
            except TopicError as error:
                if not _already_exists(error):  # somebody else was quicker: just as good
                    raise
        self._wait_for_leaders(created)
        return created

    def check(self, topics: Sequence[Topic]) -> list[str]:
        """See `stepwell.engine.ports.Admin.check`."""
        found = self._describe(topic.name for topic in topics)
        settings = self._settings([name for name, description in found.items() if description is not None])
        wrong: list[str] = []
        for topic in topics:
            description = found[topic.name]
            if description is None:
                wrong.append(f"{topic.name}: the topic is missing; make it with 'stepwell topics create'.")
            else:
                wrong += _wrong_layout(topic, description, self.brokers())
                wrong += _wrong_settings(topic, description, settings[topic.name])
        return wrong + _unequal(found)

    def watermarks(self, topic: str) -> dict[TopicPartition, Watermarks]:
        """See `stepwell.engine.ports.Admin.watermarks`."""
        sources = [TopicPartition(topic, number) for number in range(self.partitions(topic))]
        low = patiently(lambda: self._offsets(sources, OffsetSpec.earliest()), ANSWER_TIMEOUT_S)  # type: ignore[no-untyped-call]
        high = patiently(lambda: self._offsets(sources, OffsetSpec.latest()), ANSWER_TIMEOUT_S)  # type: ignore[no-untyped-call]
        return {source: Watermarks(low[source], high[source]) for source in sources}

    def group_positions(self, group: str, topic: str) -> dict[TopicPartition, int | None]:
        """See `stepwell.engine.ports.Admin.group_positions`. Waits out an open transaction.

        Asked by a consumer that never joins. The admin client has a call for it, which ends the process by SIGSEGV
        while the coordinator is moving: librdkafka's handler of a failed OffsetFetch wants a group handle, and an admin
        client has none (seen with 2.16.0, in rd_kafka_cgrp_op under rd_kafka_handle_OffsetFetch).
        """
        sources = [TopicPartition(topic, number) for number in range(self.partitions(topic))]
        reader = self._readers.get(group)
        if reader is None:
            reader = self._readers[group] = KafkaConsumer(self._bootstrap, group, None, self._options)
        return patiently(lambda: reader.committed(sources), ANSWER_TIMEOUT_S)

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        """Drop the records below these positions for good, as retention does."""
        wanted = [DriverPartition(source.topic, source.partition, at) for source, at in before.items()]
        futures = self._driver.delete_records(
            wanted, request_timeout=ANSWER_TIMEOUT_S, operation_timeout=ANSWER_TIMEOUT_S
        )
        for partition, future in futures.items():
            self._answer(future, f"deleting records of {partition.topic}/{partition.partition}")

    def close(self) -> None:
        """See `stepwell.engine.ports.Admin.close`."""
        readers, self._readers = self._readers, {}
        for reader in readers.values():
            reader.close()
        # Ended here, by the thread that used it: the cycle collector may run in the driver's own thread, which must not
        # end the client that it belongs to.
        with contextlib.suppress(KafkaException, RuntimeError):
            self._driver.__exit__(None, None, None)

    # -- asking ---------------------------------------------------------------------------------------------------

    def _offsets(self, sources: list[TopicPartition], which: OffsetSpec) -> dict[TopicPartition, int]:
        futures = self._driver.list_offsets(
            {DriverPartition(*source): which for source in sources},
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=ANSWER_TIMEOUT_S,
        )
        return {
            TopicPartition(p.topic, p.partition): self._answer(f, f"asking for the range of {p.topic}").offset
            for p, f in futures.items()
        }

    def _describe_one(self, topic: str) -> TopicDescription:
        description = self._describe([topic])[topic]
        if description is None:
            raise TopicError(f"There is no topic {topic} on {self._bootstrap}; make it with 'stepwell topics create'.")
        return description

    def _describe(self, names: Iterable[str]) -> dict[str, TopicDescription | None]:
        """Each topic's layout; None where there is no such topic. Never makes one, whatever the broker's settings."""
        found: dict[str, TopicDescription | None] = {}
        futures = self._driver.describe_topics(TopicCollection(list(names)), request_timeout=ANSWER_TIMEOUT_S)
        for name, future in futures.items():
            try:
                found[name] = future.result(ANSWER_TIMEOUT_S + 5)
            except KafkaException as error:
                if kafka_error(error).code() not in _ABSENT:
                    raise to_log_error(error, f"looking at the topic {name}") from error
                found[name] = None
            except concurrent.futures.TimeoutError as error:
                raise _no_answer(f"looking at the topic {name}") from error
        self._availability.on_success()
        return found

    def _settings(self, names: list[str]) -> dict[str, dict[str, str]]:
        if not names:
            return {}
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        futures = self._driver.describe_configs(resources, request_timeout=ANSWER_TIMEOUT_S)
        return {
            resource.name: {
                key: str(entry.value)
                for key, entry in self._answer(future, f"reading the settings of {resource.name}").items()
            }
            for resource, future in futures.items()
        }

    def _wait_for_leaders(self, names: list[str]) -> None:
        """A new topic is known before its partitions have leaders; a first consumer should not trip over that."""
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while names:
            found = self._describe(names)
            names = [n for n, d in found.items() if d is None or any(p.leader is None for p in d.partitions)]
            if names and time.monotonic() > deadline:
                raise LogUnavailableError(f"Kafka has no leader yet for {', '.join(names)}; the topics are made.")
            if names:
                time.sleep(0.05)

    def _answer(self, future: "concurrent.futures.Future[Any]", doing: str) -> Any:
        try:
            return future.result(ANSWER_TIMEOUT_S + 5)
        except KafkaException as error:
            raise to_log_error(error, doing) from error
        except concurrent.futures.TimeoutError as error:
            raise _no_answer(doing) from error


def _no_answer(doing: str) -> LogUnavailableError:
    return LogUnavailableError(f"Kafka: {doing}: no answer within {ANSWER_TIMEOUT_S:.0f} s.")


def _already_exists(error: TopicError) -> bool:
    cause = error.__cause__
    return isinstance(cause, KafkaException) and kafka_error(cause).code() == KafkaError.TOPIC_ALREADY_EXISTS


def _wrong_layout(topic: Topic, description: TopicDescription, brokers: int) -> list[str]:
    wrong = []
    partitions = description.partitions
    if len(partitions) < topic.partitions:
        wrong.append(
            f"{topic.name}: partitions is {len(partitions)}, wanted {topic.partitions} or more (they cannot be added "
            "once records are in it, keys would move: make the topic anew)."
        )
    copies = min((len(partition.replicas) for partition in partitions), default=0)
    wanted = min(3, brokers)
    if copies < wanted:
        wrong.append(f"{topic.name}: replication is {copies}, wanted {wanted} on a cluster of {brokers} brokers.")
    return wrong


def _wrong_settings(topic: Topic, description: TopicDescription, found: Mapping[str, str]) -> list[str]:
    copies = min((len(partition.replicas) for partition in description.partitions), default=0)
    wanted = topic_settings(topic, copies)
    wrong = [
        f"{topic.name}: {name} is {found.get(name)}, wanted {wanted[name]}."
        for name in ("cleanup.policy", "message.timestamp.type")
        if found.get(name) != wanted[name]
    ]
    if not topic.compacted:
        wrong += _too_short(topic.name, "retention.ms", found, wanted)
        wrong += _too_short(topic.name, "retention.bytes", found, wanted)
    in_sync = int(found.get("min.insync.replicas", "1"))
    if in_sync < _min_in_sync(copies):
        wrong.append(
            f"{topic.name}: min.insync.replicas is {in_sync}, wanted {_min_in_sync(copies)} with {copies} copies "
            "(an acknowledged record could be lost with one broker)."
        )
    elif in_sync > copies:
        wrong.append(f"{topic.name}: min.insync.replicas is {in_sync} with {copies} copies: nothing can be appended.")
    if found.get("unclean.leader.election.enable", "false") == "true":
        wrong.append(f"{topic.name}: unclean.leader.election.enable is true, wanted false (it loses records).")
    return wrong


def _too_short(name: str, setting: str, found: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    """Keeping records for longer than asked for is nobody's error; for a shorter time is."""
    have, want = int(found.get(setting, "-1")), int(wanted[setting])
    if have == -1 or (want != -1 and have >= want):
        return []
    return [f"{name}: {setting} is {have}, wanted {want}{' (for ever)' if want == -1 else ' or more'}."]


def _unequal(found: Mapping[str, TopicDescription | None]) -> list[str]:
    """Snapshots of partition p are folded from partition p of the events, so both topics have as many."""
    events, snapshots = found.get(EPISODE_EVENTS), found.get(EPISODE_SNAPSHOTS)
    if events is None or snapshots is None or len(events.partitions) == len(snapshots.partitions):
        return []
    sentence = f"partitions is {len(snapshots.partitions)}, wanted {len(events.partitions)} as {EPISODE_EVENTS} has."
    return [f"{EPISODE_SNAPSHOTS}: {sentence}"]
