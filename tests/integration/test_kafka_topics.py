"""Topics on a real node: made with the right settings, and every wrong setting named."""

import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from stepwell.adapters.logs.kafka_admin import KafkaAdmin
from stepwell.adapters.parts.kafka import KafkaPart
from stepwell.events.topics import EPISODE_EVENTS, EPISODE_SNAPSHOTS, TOPICS, Topic
from stepwell.exceptions import TopicError


@pytest.fixture
def admin(kafka_bootstrap: str) -> KafkaAdmin:
    return KafkaAdmin(kafka_bootstrap, {})


def _make(bootstrap: str, *topics: NewTopic) -> None:
    client = AdminClient({"bootstrap.servers": bootstrap})
    for future in client.create_topics(list(topics)).values():
        future.result(30)
    deadline = time.monotonic() + 30
    while not {topic.topic for topic in topics} <= set(client.list_topics(timeout=30).topics):
        assert time.monotonic() < deadline, "the node does not tell of its new topics"
        time.sleep(0.05)


def _name() -> str:
    return f"topic-{uuid.uuid4().hex[:10]}"


def test_what_create_makes_passes_check(admin: KafkaAdmin) -> None:
    wanted = [
        Topic(_name(), "key", 3),
        Topic(_name(), "key", 2, compacted=True),
        Topic(_name(), "key", 1, retention_ms=60_000, timestamps="producer"),
    ]
    assert sorted(admin.create(wanted)) == sorted(topic.name for topic in wanted)
    assert admin.check(wanted) == []
    assert admin.create(wanted) == []
    assert [admin.partitions(topic.name) for topic in wanted] == [3, 2, 1]


WRONG = [
    ({"cleanup.policy": "compact"}, False, "cleanup.policy is compact, wanted delete."),
    ({"cleanup.policy": "delete"}, True, "cleanup.policy is delete, wanted compact."),
    ({"cleanup.policy": "compact,delete"}, True, "cleanup.policy is compact,delete, wanted compact."),
    ({"retention.ms": "1000"}, False, "retention.ms is 1000, wanted -1 (for ever)."),
    ({"retention.bytes": "4096"}, False, "retention.bytes is 4096, wanted -1 (for ever)."),
    ({"message.timestamp.type": "CreateTime"}, False, "message.timestamp.type is CreateTime, wanted LogAppendTime."),
    ({"min.insync.replicas": "2"}, False, "min.insync.replicas is 2 with 1 copies: nothing can be appended."),
    (
        {"unclean.leader.election.enable": "true"},
        False,
        "unclean.leader.election.enable is true, wanted false (it loses records).",
    ),
]


@pytest.mark.parametrize(("setting", "compacted", "sentence"), WRONG, ids=str)
def test_each_wrong_setting_is_named_alone(
    admin: KafkaAdmin, kafka_bootstrap: str, setting: dict[str, str], compacted: bool, sentence: str
) -> None:
    name = _name()
    right = {"message.timestamp.type": "LogAppendTime", "retention.ms": "-1"}
    right["cleanup.policy"] = "compact" if compacted else "delete"
    _make(kafka_bootstrap, NewTopic(name, 2, 1, config=right | setting))
    assert admin.check([Topic(name, "key", 2, compacted=compacted)]) == [f"{name}: {sentence}"]


def test_partitions(admin: KafkaAdmin, kafka_bootstrap: str) -> None:
    name = _name()
    _make(
        kafka_bootstrap, NewTopic(name, 3, 1, config={"message.timestamp.type": "LogAppendTime", "retention.ms": "-1"})
    )
    assert admin.check([Topic(name, "key", 3)]) == []
    assert admin.check([Topic(name, "key", 2)]) == []
    assert [line.partition(", wanted")[0] for line in admin.check([Topic(name, "key", 4)])] == [
        f"{name}: partitions is 3"
    ]


def test_a_longer_retention_than_asked_for_is_nobodys_error(admin: KafkaAdmin) -> None:
    name = _name()
    admin.create([Topic(name, "key", 1, retention_ms=60_000)])
    assert admin.check([Topic(name, "key", 1, retention_ms=1_000)]) == []
    assert admin.check([Topic(name, "key", 1, retention_ms=90_000)]) == [
        f"{name}: retention.ms is 60000, wanted 90000 or more."
    ]


def test_a_missing_topic(admin: KafkaAdmin) -> None:
    name = _name()
    assert admin.check([Topic(name, "key", 1)]) == [
        f"{name}: the topic is missing; make it with 'stepwell topics create'."
    ]
    with pytest.raises(TopicError, match=name):
        admin.partitions(name)
    with pytest.raises(TopicError, match=name):
        admin.watermarks(name)


def test_more_copies_than_brokers_are_refused(admin: KafkaAdmin) -> None:
    with pytest.raises(TopicError, match="INVALID_REPLICATION_FACTOR"):
        admin.create([Topic(_name(), "key", 1)], replication=3)


def _stepwell(log: str, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("STEPWELL_")}
    return subprocess.run(
        [sys.executable, "-m", "stepwell", "topics", *arguments],
        env=clean | {"STEPWELL_LOG": log, "STEPWELL_HOME": str(home), "COLUMNS": "200", "NO_COLOR": "1"},
        cwd=home, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_command_on_kafka(kafka_bootstrap: str, tmp_path: Path) -> None:
    log = f"kafka://{kafka_bootstrap}"
    made = _stepwell(log, tmp_path, "create", "--replication", "1")
    assert made.returncode == 0, made.stderr
    assert f"of {len(TOPICS)} topics made on {log}." in made.stdout
    right = _stepwell(log, tmp_path, "check")
    assert (right.returncode, right.stdout) == (0, f"All {len(TOPICS)} topics on {log} are set up as they must be.\n")
    listed = _stepwell(log, tmp_path, "list")
    assert listed.returncode == 0, listed.stderr
    assert all(topic.name in listed.stdout for topic in TOPICS)


def test_the_command_says_what_is_wrong_and_exits_with_one(
    admin: KafkaAdmin, kafka_bootstrap: str, tmp_path: Path
) -> None:
    admin.create(TOPICS)
    _alter(kafka_bootstrap, EPISODE_EVENTS, "retention.ms", "1000")
    try:
        done = _stepwell(f"kafka://{kafka_bootstrap}", tmp_path, "check")
    finally:
        _alter(kafka_bootstrap, EPISODE_EVENTS, "retention.ms", "-1")
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        f"{EPISODE_EVENTS}: retention.ms is 1000, wanted -1 (for ever).",
        f"1 thing(s) to put right on kafka://{kafka_bootstrap}.",
    ]


def _alter(bootstrap: str, topic: str, name: str, value: str) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    change = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    client = AdminClient({"bootstrap.servers": bootstrap})
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
    for future in client.incremental_alter_configs([resource]).values():
        future.result(30)


def test_the_command_on_a_local_log(tmp_path: Path) -> None:
    log = f"local:{tmp_path / 'log'}"
    assert _stepwell(log, tmp_path, "create").returncode == 0
    assert _stepwell(log, tmp_path, "check").returncode == 0
    listed = _stepwell(log, tmp_path, "list")
    assert listed.returncode == 0, listed.stderr
    assert EPISODE_SNAPSHOTS in listed.stdout
    refused = _stepwell(log, tmp_path, "create", "--replication", "3")
    assert refused.returncode == 2
    assert "--replication is for Kafka" in refused.stderr


def test_the_command_without_a_broker_says_so(tmp_path: Path) -> None:
    done = _stepwell("kafka://127.0.0.1:9", tmp_path, "check")
    assert done.returncode == 1
    assert done.stderr.startswith("stepwell: The log kafka://127.0.0.1:9 is not available: Kafka")
    assert "Traceback" not in done.stderr


ASK = """
import sys
from stepwell.adapters.logs.kafka_admin import KafkaAdmin
from stepwell.events.topics import Topic
admin = KafkaAdmin(sys.argv[1], {})
admin.create([Topic("asked", "key", 2)])
for number in range(30):
    positions = admin.group_positions(f"group-{number}", "asked")
    assert list(positions.values()) == [None, None], positions
admin.close()
admin.close()
"""


def test_asking_for_positions_of_unknown_groups_survives_a_coordinator_that_is_not_ready() -> None:
    """On a fresh node the coordinator moves during the first questions; the driver's own call ends the process then."""
    for _ in range(2):
        with KafkaPart() as node:
            done = subprocess.run(
                [sys.executable, "-c", ASK, node.bootstrap], capture_output=True, text=True, timeout=120, check=False
            )
        assert done.returncode == 0, done.stderr
