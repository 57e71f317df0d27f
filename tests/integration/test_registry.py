"""A real registry (Apicurio) and Confluent's own serializers: what they write is read, what is written they read."""

import base64
import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, record_subject_name_strategy
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from stepwell.adapters.dead_letters import letters
from stepwell.adapters.logs import open_log
from stepwell.adapters.parts.registry import RegistryPart
from stepwell.adapters.registry import open_codec
from stepwell.adapters.registry.schemas import RegistrySchemas
from stepwell.engine.reading import read_range
from stepwell.events.codec import Codec
from stepwell.events.model import Event, VerdictIssued
from stepwell.events.schemas import packaged_schemas
from stepwell.events.topics import EPISODE_EVENTS, POLICY_EVENTS, TOPICS
from stepwell.exceptions import (
    ConfigurationError,
    SchemaRegistryError,
    SchemaRegistryUnavailableError,
    UnknownSchemaError,
)
from tests.unit.engine.episodes import Facts

PACKAGED = packaged_schemas()
SUBJECTS = {version.entry.avro_name for version in PACKAGED.versions}
STRANGER = {"type": "record", "name": "Stranger", "namespace": "elsewhere", "fields": [{"name": "x", "type": "long"}]}
CONTEXT = SerializationContext("t", MessageField.VALUE)


def stepwell(*words: str, env: dict[str, str], code: int = 0) -> str:
    """What a command says, once it has ended with this exit code."""
    done = subprocess.run(
        [sys.executable, "-m", "stepwell", *words], env=os.environ | env, capture_output=True, text=True, timeout=120,
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryPart]:
    """A registry with all schemas of ours, and somebody else's before them: so no id is the packaged one."""
    with RegistryPart(tmp_path_factory.mktemp("registry")) as part:
        with SchemaRegistryClient({"url": part.url}) as client:
            client.register_schema("elsewhere.Stranger", Schema(json.dumps(STRANGER), "AVRO"))
        env = {"STEPWELL_SCHEMA_REGISTRY": part.url, "STEPWELL_HOME": str(tmp_path_factory.mktemp("home"))}
        before = stepwell("schemas", "check", env=env, code=1)
        assert f"{len(PACKAGED.versions) + len(SUBJECTS)} thing(s) to put right" in before
        dry = stepwell("schemas", "register", "--dry-run", env=env)
        assert f"{len(PACKAGED.versions)} schema(s) would be registered, 0 were there" in dry
        assert f"{len(PACKAGED.versions)} schema(s) registered, 0 were" in stepwell("schemas", "register", env=env)
        yield part


@pytest.fixture
def client(registry: RegistryPart) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": registry.url}) as made:
        yield made


@pytest.fixture
def env(registry: RegistryPart, tmp_path: Path) -> dict[str, str]:
    return {"STEPWELL_SCHEMA_REGISTRY": registry.url, "STEPWELL_HOME": str(tmp_path)}


def events() -> list[Event]:
    return Facts("ep-1").whole()


def test_registering_again_changes_nothing(env: dict[str, str], client: SchemaRegistryClient) -> None:
    before = {subject: client.get_versions(subject) for subject in client.get_subjects()}
    again = stepwell("schemas", "register", env=env)
    assert again.splitlines()[-1].startswith(f"0 schema(s) registered, {len(PACKAGED.versions)} were there")
    assert {subject: client.get_versions(subject) for subject in client.get_subjects()} == before
    assert "each FULL_TRANSITIVE" in stepwell("schemas", "check", env=env)
    listed = [json.loads(line) for line in stepwell("schemas", "list", "--json", env=env).splitlines()]
    assert [row["packaged_id"] for row in listed] == [version.id for version in PACKAGED.versions]
    assert all(row["registry_id"] for row in listed)
    assert {row["registry_id"] for row in listed} != {row["packaged_id"] for row in listed}


def test_every_subject_is_named_after_its_record_and_guarded(client: SchemaRegistryClient) -> None:
    assert set(client.get_subjects()) == SUBJECTS | {"elsewhere.Stranger"}
    assert {client.get_compatibility(subject) for subject in SUBJECTS} == {"FULL_TRANSITIVE"}


def test_confluents_deserializer_reads_what_we_write(registry: RegistryPart, client: SchemaRegistryClient) -> None:
    codec = open_codec(registry.url, writing=True)
    read = AvroDeserializer(client)
    for event in events():
        value, headers = codec.encode(event)
        fields = read(value, CONTEXT)
        assert (fields["episode_id"], fields["producer_seq"]) == (event.episode_id, event.producer_seq)
        assert fields["event_id"] == event.event_id
        schema_id = int.from_bytes(value[1:5], "big")
        name = json.loads(client.get_schema(schema_id).schema_str or "")["name"]
        assert name == PACKAGED.current(event.TYPE).schema["name"]
        # Whoever has no registry reads it, too: the fingerprint decides, and the id of the packaged schema differs.
        assert Codec().decode(value, headers) == event
        assert schema_id != PACKAGED.current(event.TYPE).id


def test_what_confluents_serializer_writes_is_read(registry: RegistryPart, client: SchemaRegistryClient) -> None:
    """No header at all: the registry's id tells the schema. Records with packaged ids are read beside."""
    codec = open_codec(registry.url, writing=False)
    read = AvroDeserializer(client)
    for event in events():
        version = PACKAGED.current(event.TYPE)
        write = serializer(client, version.schema)
        value = write(read(codec.encode(event)[0], CONTEXT), CONTEXT)
        assert codec.decode(value, ()) == event
        assert codec.fingerprint_of(value, ()) == version.fingerprint
        assert codec.decode(*Codec().encode(event)) == event
        with pytest.raises(UnknownSchemaError, match="no schema registry is set"):
            Codec().decode(value, ())


def serializer(client: SchemaRegistryClient, schema: dict[str, Any]) -> AvroSerializer:
    """Confluent's own, as a careful team sets it up: it registers nothing."""
    options = {"auto.register.schemas": False, "subject.name.strategy": record_subject_name_strategy}
    return AvroSerializer(client, json.dumps(schema), conf=options)


def test_a_schema_of_somebody_else_is_no_event(registry: RegistryPart, client: SchemaRegistryClient) -> None:
    codec = open_codec(registry.url, writing=False)
    (stranger,) = (client.get_version("elsewhere.Stranger", 1).schema_id,)
    for schema_id, why in ((stranger, "behind it is elsewhere.Stranger"), (999_999, "does not know it")):
        assert schema_id is not None
        for _ in range(2):
            with pytest.raises(UnknownSchemaError, match=why) as caught:
                codec.decode(b"\0" + schema_id.to_bytes(4, "big") + b"\2", ())
            assert caught.value.reason == "unknown-schema-id"


def test_a_registry_that_is_away_is_waited_for_and_keeps_its_ids(
    registry: RegistryPart, client: SchemaRegistryClient
) -> None:
    """Killed: what needs it fails as the log does, which can be tried again; nothing becomes a dead letter."""
    event = events()[0]
    value, headers = open_codec(registry.url, writing=True).encode(event)
    reader = open_codec(registry.url, writing=False)
    registry.kill9()
    with pytest.raises(SchemaRegistryUnavailableError, match="cannot be reached"):
        reader.decode(value, ())
    assert reader.decode(value, headers) == event
    with pytest.raises(SchemaRegistryUnavailableError):
        open_codec(registry.url, writing=True)
    registry.start()
    assert reader.decode(value, ()) == event
    assert open_codec(registry.url, writing=True).encode(event)[0] == value


def test_a_worker_names_the_command_where_schemas_are_missing(tmp_path: Path) -> None:
    with RegistryPart() as empty:
        env = {
            "STEPWELL_SCHEMA_REGISTRY": empty.url, "STEPWELL_HOME": str(tmp_path),
            "STEPWELL_LOG": f"local:{tmp_path / 'log'}",
        }  # fmt: skip
        stepwell("topics", "create", env=env)
        said = stepwell("engine", "--no-telemetry", env=env, code=1)
        assert "stepwell schemas register" in said
        assert "episode::" in said
        with SchemaRegistryClient({"url": empty.url}) as client:
            assert client.get_subjects() == []
            refused_with_reasons(client, env)


def refused_with_reasons(client: SchemaRegistryClient, env: dict[str, str]) -> None:
    """Somebody was there first, with a schema of their own under the name of one of ours."""
    theirs = json.loads(json.dumps(PACKAGED.current("sim::step_done").schema))
    theirs["fields"] = [field for field in theirs["fields"] if field["name"] != "terminated"]
    theirs["fields"].append({"name": "site", "type": "string"})
    client.register_schema("stepwell.sim.StepDone", Schema(json.dumps(theirs), "AVRO"))
    said = stepwell("schemas", "register", env=env, code=1)
    assert "refuses version 1 of sim::step_done" in said
    assert "field terminated is added without a default" in said
    assert "field site is removed, and had no default" in said
    assert "none of Stepwell's" in said
    dry = stepwell("schemas", "register", "--dry-run", env=env)
    assert "field site is removed" in dry
    assert "field site is removed" in stepwell("schemas", "check", env=env, code=1)


def test_a_url_without_the_api_says_where_it_may_be(registry: RegistryPart) -> None:
    wrong = registry.url.removesuffix("/apis/ccompat/v7")
    with pytest.raises(ConfigurationError, match="/apis/ccompat/v7"):
        RegistrySchemas(wrong).require_all()


def test_credentials_come_from_a_file_and_are_never_shown(registry: RegistryPart, tmp_path: Path) -> None:
    """Behind a proxy that asks for them, as one stands before most registries."""
    with behind_a_password(registry.port, "ci:geheim-9") as url:
        secret = tmp_path / "credentials"
        env = {"STEPWELL_SCHEMA_REGISTRY": url, "STEPWELL_HOME": str(tmp_path)}
        said = stepwell("schemas", "check", env=env, code=1)
        assert "refuses the credentials (status 401)" in said
        env["STEPWELL_SCHEMA_REGISTRY_CREDENTIALS_FILE"] = str(secret)
        assert "cannot be read" in stepwell("schemas", "check", env=env, code=2)
        secret.write_text("ci\n")
        assert "one line, user:password" in stepwell("schemas", "check", env=env, code=2)
        secret.write_text("ci:geheim-9\n")
        assert "are registered" in stepwell("schemas", "check", env=env)
        assert "geheim" not in stepwell("config", env=env)
        with pytest.raises(SchemaRegistryError, match="refuses the credentials"):
            open_codec(url, "ci:wrong", writing=True)


class behind_a_password:  # noqa: N801 (reads as a sentence)
    """A proxy on 127.0.0.1 that passes on what comes with the right user and password."""

    def __init__(self, port: int, credentials: str) -> None:
        wanted = "Basic " + base64.b64encode(credentials.encode()).decode()

        class Handler(BaseHTTPRequestHandler):
            def pass_on(self) -> None:
                if self.headers.get("Authorization") != wanted:
                    self.send_response(401)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) or None
                kind = {"Content-Type": self.headers.get("Content-Type") or "application/json"}
                request = urllib.request.Request(
                    f"http://127.0.0.1:{port}{self.path}", data=body, headers=kind, method=self.command
                )
                try:
                    with urllib.request.urlopen(request, timeout=10) as answer:
                        status, content = answer.status, answer.read()
                except urllib.error.HTTPError as error:
                    with error:
                        status, content = error.code, error.read()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PUT = pass_on  # noqa: N815 (http.server's own names)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> str:
        self._thread.start()
        return f"http://127.0.0.1:{self._server.server_address[1]}/apis/ccompat/v7"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def test_an_episode_written_by_confluents_client_gets_its_verdict(
    registry: RegistryPart, client: SchemaRegistryClient, env: dict[str, str]
) -> None:
    """The whole way over Kafka: their producer and serializer, our engine, their deserializer."""
    from stepwell.adapters.parts.kafka import KafkaPart

    node = KafkaPart()
    env["STEPWELL_LOG"] = f"kafka://{node.start()}"
    try:
        log = open_log(env["STEPWELL_LOG"])
        log.admin().create(TOPICS)
        producer = Producer({"bootstrap.servers": node.bootstrap, "partitioner": "murmur2_random", "acks": "all"})
        read = AvroDeserializer(client)
        plain = open_codec(registry.url, writing=True)
        for event in Facts("ep-confluent").whole():
            write = serializer(client, PACKAGED.current(event.TYPE).schema)
            value = write(read(plain.encode(event)[0], CONTEXT), CONTEXT)
            assert value is not None
            producer.produce(EPISODE_EVENTS, key=event.episode_id.encode(), value=value)
        assert producer.flush(30) == 0
        del producer
        said = Path(env["STEPWELL_HOME"], "engine.log")
        with said.open("w") as output:
            worker = subprocess.Popen(
                [sys.executable, "-m", "stepwell", "engine", "--no-telemetry"], env=os.environ | env,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        try:
            value = first_verdict(log, said)
        finally:
            worker.terminate()
            worker.wait(60)
        assert read(value, CONTEXT)["episode_id"] == "ep-confluent"
        assert int.from_bytes(value[1:5], "big") == RegistrySchemas(registry.url).current("verdict::issued").id
        assert [letter.detail for letter in letters(log, plain)] == []
        log.close()
    finally:
        node.stop()


def first_verdict(log: Any, said: Path) -> bytes:
    """The value of the first verdict in the log, once there is one."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for source, marks in log.admin().watermarks(POLICY_EVENTS).items():
            for batch in read_range(log, source, marks.low, marks.high):
                for value, headers in zip(batch.values, batch.headers, strict=True):
                    if dict(headers).get("ce_type") == VerdictIssued.TYPE.encode():
                        assert value is not None
                        return bytes(value)
        time.sleep(0.2)
    raise AssertionError(f"no verdict came within 120 s; the engine said:\n{said.read_text()}")
