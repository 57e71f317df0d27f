"""The training service in Java, built by Maven: it knows the published schemas and nothing else of Stepwell."""

import json
import shutil
import subprocess
import uuid
from pathlib import Path

import msgspec
import pytest

from stepwell.adapters.inbox.watch import RequestWatch
from stepwell.adapters.logs.kafka import KafkaLog
from stepwell.adapters.logs.partitioner import partition_for_key
from stepwell.adapters.logs.reading import read_batches
from stepwell.adapters.retrain_history import read_requests
from stepwell.engine.publish import outgoing
from stepwell.events.codec import Codec
from stepwell.events.ids import event_id_text
from stepwell.events.model import RetrainAnswered
from stepwell.events.topics import RETRAIN_RESULTS, TOPICS
from tests.integration.projections.facts import retrain, withdrawn
from tests.unit.adapters.subscriptions import append, send

REPOSITORY = Path(__file__).resolve().parents[2]
PROJECT = REPOSITORY / "examples" / "training_service_java"
SCHEMAS = REPOSITORY / "stepwell" / "schemas"
MAIN = "stepwell.example.TrainingService"
BUILD_TIMEOUT_S = 240
RUN_TIMEOUT_S = 90
CODEC = Codec()


@pytest.fixture(scope="module")
def class_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The built service. Without the network where Maven has everything already, as after `make parts`."""
    directory = tmp_path_factory.mktemp("java")
    shutil.copytree(PROJECT / "src", directory / "src")
    shutil.copy(PROJECT / "pom.xml", directory)
    said = ""
    for mode in (["-o"], []):
        if shutil.which("mvn") is None:
            said = "there is no mvn"
            break
        done = subprocess.run(
            ["mvn", "-q", "-B", *mode, "package"],
            cwd=directory, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
            timeout=BUILD_TIMEOUT_S,
        )  # fmt: skip
        if done.returncode == 0:
            return f"{directory}/target/classes:{directory}/target/libs/*"
        said = (done.stdout + done.stderr)[-3000:]
    pytest.fail(f"Maven could not build {PROJECT}: {said}\nBring what it needs with: make parts", pytrace=False)


def run_service(class_path: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", class_path, MAIN, *arguments],
        capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=RUN_TIMEOUT_S, check=False,
    )  # fmt: skip


def test_a_service_in_java_reads_a_request_and_its_answer_closes_the_trigger(
    class_path: str, kafka_bootstrap: str
) -> None:
    log = KafkaLog(kafka_bootstrap)
    log.admin().create(TOPICS)
    name = uuid.uuid4().hex[:8]
    policy, trigger = f"grüße-{name}", f"tr-{name}"  # beyond ASCII: key and murmur2 go by UTF-8
    asked = msgspec.structs.replace(retrain(trigger), policy=policy, detail="5 of 5 failed", weights_formula="w = 1")
    broken = outgoing(CODEC, asked)
    send(
        log,
        broken._replace(value=(broken.value or b"")[:-3]),
        broken._replace(value=None),
        broken._replace(headers=tuple(pair for pair in broken.headers if pair[0] != "stepwell-schema")),
    )
    append(log, msgspec.structs.replace(withdrawn(f"{trigger}-x"), policy=policy), partition=None)
    append(log, asked, asked, partition=None)  # published twice: worked on once

    arguments = ["--bootstrap", kafka_bootstrap, "--schemas", str(SCHEMAS), "--group", f"java-{name}"]
    done = run_service(class_path, *arguments, "--policy", policy, "--limit", "1")
    assert done.returncode == 0, done.stderr
    refused = [line for line in done.stderr.splitlines() if "passed over" in line]
    assert len(refused) >= 3, "torn, without a value, without a fingerprint; other tests may have left more"

    (line,) = done.stdout.splitlines()
    shown = json.loads(line)
    assert shown["event_id"] == event_id_text(asked.event_id)
    for field in ("trigger_id", "policy", "rule_version", "checkpoint", "detail", "weights_formula", "occurred_at"):
        assert shown[field] == getattr(asked, field)
    assert shown["evidence"] == [msgspec.to_builtins(each) for each in asked.evidence]
    assert shown["sampling_weights"] == [{"scene": "table", "perturbation": "none", "weight": 1.0}]

    (entry,) = [entry for entry in read_requests(log, CODEC) if entry.trigger_id == trigger]
    assert entry.state == "done"
    accepted, closing = entry.answers
    assert (accepted.status, closing.status) == ("accepted", "done")
    assert closing.new_checkpoint == f"{policy}-{trigger[-4:]}"
    assert (closing.producer_id, closing.trace_id) == (f"java-{name}", asked.trace_id)
    watch = RequestWatch(log, CODEC)
    watch.refresh()
    assert watch.closed(trigger, policy) == "answered done"
    check_records(log, closing)
    log.close()


def check_records(log: KafkaLog, answer: RetrainAnswered) -> None:
    """Byte for byte what Stepwell itself would have written: partition, key, value, headers."""
    expected = outgoing(CODEC, answer)
    found = [
        (batch.source.partition, key, value, dict(headers))
        for batch in read_batches(log, RETRAIN_RESULTS)
        for key, value, headers in zip(batch.keys, batch.values, batch.headers, strict=True)
        if value == expected.value
    ]
    assert expected.key is not None
    ((partition, key, _, headers),) = found
    assert (partition, key) == (partition_for_key(expected.key, 4), expected.key)
    assert headers == dict(expected.headers)


def test_a_service_in_java_refuses_schemas_that_are_not_what_their_ids_say(class_path: str, tmp_path: Path) -> None:
    schemas = tmp_path / "schemas"
    shutil.copytree(SCHEMAS, schemas)
    file = schemas / "retrain.answered.avsc"
    file.write_text(file.read_text().replace('"status"', '"state"'))
    done = run_service(class_path, "--bootstrap", "127.0.0.1:1", "--schemas", str(schemas))
    assert done.returncode != 0
    assert "retrain.answered.avsc has the fingerprint" in done.stderr
