"""The training service in Java, built by Maven: it knows the published schemas and nothing else of Stepwell."""

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
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
from stepwell.events.model import RetrainAnswered, RetrainRequested, VerdictIssued
from stepwell.events.topics import RETRAIN_RESULTS, TOPICS
from tests.integration.projections.facts import publish, retrain, verdict, withdrawn
from tests.integration.subscriptions import append, send

REPOSITORY = Path(__file__).resolve().parents[2]
PROJECT = REPOSITORY / "examples" / "training_service_java"
SCHEMAS = REPOSITORY / "stepwell" / "schemas"
MAIN = "stepwell.example.TrainingService"
BUILD_TIMEOUT_S = 240
RUN_TIMEOUT_S = 90
CODEC = Codec()


@pytest.fixture(scope="module")
def detector(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator["subprocess.Popen[bytes]"]:
    """A real one, in a process of its own; it comes up while Maven builds."""
    log = KafkaLog(kafka_bootstrap)
    log.admin().create(TOPICS)
    log.close()
    settings = {"STEPWELL_LOG": f"kafka://{kafka_bootstrap}", "STEPWELL_HOME": str(tmp_path_factory.mktemp("home"))}
    process = subprocess.Popen(
        [sys.executable, "-m", "stepwell", "detector", "--no-telemetry", "--slot", uuid.uuid4().hex[:8]],
        env=os.environ | settings, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    yield process
    process.terminate()
    process.wait(60)


@pytest.fixture(scope="module")
def class_path(detector: "subprocess.Popen[bytes]", tmp_path_factory: pytest.TempPathFactory) -> str:
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


def failures(policy: str, numbers: range) -> list[VerdictIssued]:
    return [
        verdict(
            f"ep-{policy}-{n}",
            policy=policy,
            outcome="failure",
            failure_type="task_not_completed",
            fault="policy",
            seed=n,
        )
        for n in numbers
    ]


def wait_for_request(watch: RequestWatch, policy: str) -> RetrainRequested:
    """The policy's open request, once there is one."""
    deadline = time.monotonic() + RUN_TIMEOUT_S
    while True:
        watch.refresh()
        for found in watch.open_requests():
            if found.policy == policy:
                request = CODEC.decode(found.value, found.headers)
                assert isinstance(request, RetrainRequested)
                return request
        assert time.monotonic() < deadline, "no request"
        time.sleep(0.2)


def test_a_service_in_java_reads_a_request_and_its_answer_closes_the_trigger(
    class_path: str, kafka_bootstrap: str, detector: "subprocess.Popen[bytes]"
) -> None:
    log = KafkaLog(kafka_bootstrap)
    log.admin().create(TOPICS)
    name = uuid.uuid4().hex[:8]
    watch = RequestWatch(log, CODEC, with_open=True)
    policy = f"grüße-{name}"  # beyond ASCII: key and murmur2 go by UTF-8
    publish(log, failures(policy, range(5)))
    asked = wait_for_request(watch, policy)
    leave_what_must_be_passed_over(log, asked)

    arguments = ["--bootstrap", kafka_bootstrap, "--schemas", str(SCHEMAS), "--group", f"java-{name}"]
    done = run_service(class_path, *arguments, "--policy", policy, "--limit", "1")
    assert done.returncode == 0, done.stderr

    watch.refresh()
    assert watch.closed(asked.trigger_id, policy) == "answered done"
    # The rule's cool-down takes in ten more; an open trigger would take in all. So another one says: it was closed.
    publish(log, failures(policy, range(5, 20)))
    again = wait_for_request(watch, policy)
    assert detector.poll() is None, "the detector ended"
    first, second = [entry for entry in read_requests(log, CODEC) if entry.request.policy == policy]
    assert second.trigger_id == again.trigger_id
    assert (first.trigger_id, first.state, second.state) == (asked.trigger_id, "done", "open")
    check_what_was_shown(done.stdout, asked)
    accepted, closing = first.answers
    assert (accepted.status, closing.status) == ("accepted", "done")
    assert closing.new_checkpoint == f"{policy}-{asked.trigger_id[-4:]}"
    assert (closing.producer_id, closing.trace_id) == (f"java-{name}", asked.trace_id)
    check_records(log, closing)
    log.close()


def leave_what_must_be_passed_over(log: KafkaLog, asked: RetrainRequested) -> None:
    """Torn, without a value, without a fingerprint; a withdrawal of something else; and the request once more."""
    whole = outgoing(CODEC, asked)
    send(
        log,
        whole._replace(value=(whole.value or b"")[:-3]),
        whole._replace(value=None),
        whole._replace(headers=tuple(pair for pair in whole.headers if pair[0] != "stepwell-schema")),
    )
    append(log, msgspec.structs.replace(withdrawn("tr-other"), policy=asked.policy), asked, partition=None)


def check_what_was_shown(output: str, asked: RetrainRequested) -> None:
    (line,) = output.splitlines()
    shown = json.loads(line)
    assert shown["event_id"] == event_id_text(asked.event_id)
    for field in ("trigger_id", "policy", "rule_version", "checkpoint", "detail", "weights_formula", "occurred_at"):
        assert shown[field] == getattr(asked, field)
    assert len(shown["evidence"]) == 5
    assert shown["evidence"] == [msgspec.to_builtins(each) for each in asked.evidence]
    assert shown["sampling_weights"] == [msgspec.to_builtins(each) for each in asked.sampling_weights]
    assert json.loads(shown["regression_spec_json"])["trigger_id"] == asked.trigger_id


def test_a_service_in_java_refuses_what_is_no_record(class_path: str, kafka_bootstrap: str) -> None:
    log = KafkaLog(kafka_bootstrap)
    log.admin().create(TOPICS)
    name = uuid.uuid4().hex[:8]
    asked = msgspec.structs.replace(retrain(f"tr-{name}"), policy=f"p-{name}")
    leave_what_must_be_passed_over(log, asked)
    arguments = ["--bootstrap", kafka_bootstrap, "--schemas", str(SCHEMAS), "--group", f"java-{name}"]
    done = run_service(class_path, *arguments, "--policy", asked.policy, "--limit", "1")
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if "passed over" in line]
    for why in ("cannot be decoded", "no frame", "the schema null is not in ids.json"):
        assert any(why in line for line in told), done.stderr
    assert json.loads(done.stdout)["trigger_id"] == asked.trigger_id
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
