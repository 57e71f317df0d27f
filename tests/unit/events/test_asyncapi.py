"""`stepwell/schemas/asyncapi.yaml` says what is there: topics, keys, types, schema versions, and examples that decode.

Its form was checked against the JSON schema of AsyncAPI 3.0.0, which no Python package carries; what that would catch
later (a misspelt field, a reference to nothing) is checked here by itself.
"""

import io
import json
from collections.abc import Iterator
from importlib import resources
from typing import Any

import fastavro
import pytest
import yaml

from stepwell.events.catalogue import BY_CLASS
from stepwell.events.codec import Codec
from stepwell.events.model import RulesActivated
from stepwell.events.topics import BY_NAME, FAILURE_PATTERNS, POLICY_EVENTS, RETRAIN_REQUESTS, RETRAIN_RESULTS

FOLDER = resources.files("stepwell") / "schemas"
DOCUMENT: dict[str, Any] = yaml.safe_load((FOLDER / "asyncapi.yaml").read_text(encoding="utf-8"))
IDS: list[dict[str, Any]] = json.loads((FOLDER / "ids.json").read_text(encoding="utf-8"))["schemas"]
MESSAGES: dict[str, dict[str, Any]] = DOCUMENT["components"]["messages"]
PRODUCERS = {entry.type: entry.producer for entry in BY_CLASS.values()}

# The fields of AsyncAPI 3.0's objects, as far as they are used here.
FIELDS = {
    "document": {
        "asyncapi", "id", "info", "servers", "defaultContentType", "channels", "operations", "components",
    },
    "info": {"title", "version", "description", "termsOfService", "contact", "license", "tags", "externalDocs"},
    "server": {"host", "protocol", "protocolVersion", "pathname", "description", "title", "summary", "bindings"},
    "channel": {
        "address", "messages", "title", "summary", "description", "servers", "parameters", "tags", "bindings",
    },
    "channel binding": {
        "topic", "partitions", "replicas", "topicConfiguration", "bindingVersion",
    },
    "operation": {
        "action", "channel", "title", "summary", "description", "security", "tags", "bindings", "traits", "messages",
        "reply",
    },
    "reply": {"address", "channel", "messages"},
    "components": {"schemas", "messageTraits", "messages"},
    "trait": {"headers", "contentType", "name", "title", "summary", "description", "bindings", "examples"},
    "message": {
        "headers", "payload", "correlationId", "contentType", "name", "title", "summary", "description", "tags",
        "bindings", "examples", "traits", "x-stepwell-schemas",
    },
    "message binding": {"key", "schemaIdLocation", "schemaIdPayloadEncoding", "schemaLookupStrategy", "bindingVersion"},
    "example": {"headers", "payload", "name", "summary"},
    "payload": {"schemaFormat", "schema"},
}  # fmt: skip


def objects() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every object with its kind and name."""
    yield "document", "", DOCUMENT
    yield "info", "info", DOCUMENT["info"]
    yield "components", "components", DOCUMENT["components"]
    yield from (("server", name, each) for name, each in DOCUMENT["servers"].items())
    for name, each in DOCUMENT["channels"].items():
        yield "channel", name, each
        yield "channel binding", name, each["bindings"]["kafka"]
    for name, each in DOCUMENT["operations"].items():
        yield "operation", name, each
        yield from (("reply", name, each[field]) for field in ("reply",) if field in each)
    for name, each in DOCUMENT["components"]["messageTraits"].items():
        yield "trait", name, each
        yield "message binding", name, each["bindings"]["kafka"]
    for name, each in MESSAGES.items():
        yield "message", name, each
        yield "payload", name, each["payload"]
        yield from (("example", name, example) for example in each.get("examples", ()))


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if set(node) == {"$ref"}:
            yield node["$ref"]
        else:
            for each in node.values():
                yield from references(each)
    elif isinstance(node, list):
        for each in node:
            yield from references(each)


def resolved(reference: str) -> Any:
    if not reference.startswith("#/"):
        return json.loads((FOLDER / reference.removeprefix("./")).read_text(encoding="utf-8"))
    node: Any = DOCUMENT
    for part in reference[2:].split("/"):
        node = node[part]
    return resolved(node["$ref"]) if isinstance(node, dict) and set(node) == {"$ref"} else node


def test_it_is_asyncapi_3() -> None:
    assert DOCUMENT["asyncapi"] == "3.0.0"


def test_every_field_is_one_of_the_specification() -> None:
    unknown = [
        f"{kind} {name}: {field}" for kind, name, each in objects() for field in each if field not in FIELDS[kind]
    ]
    assert not unknown


def test_every_reference_leads_somewhere() -> None:
    every = list(references(DOCUMENT))
    assert len(every) > 50
    for reference in every:
        assert resolved(reference) is not None


def test_every_message_is_in_a_channel_and_every_trait_is_used() -> None:
    used = set(references(DOCUMENT))
    assert {f"#/components/messages/{name}" for name in MESSAGES} <= used
    for room in ("schemas", "messageTraits"):
        assert {f"#/components/{room}/{name}" for name in DOCUMENT["components"][room]} <= used


def test_the_channels_are_topics_as_the_catalogue_sets_them_up() -> None:
    channels = DOCUMENT["channels"].values()
    assert {channel["address"] for channel in channels} == {
        RETRAIN_REQUESTS, RETRAIN_RESULTS, FAILURE_PATTERNS, POLICY_EVENTS,
    }  # fmt: skip
    for channel in channels:
        topic, binding = BY_NAME[channel["address"]], channel["bindings"]["kafka"]
        assert binding["topic"] == topic.name
        assert binding["partitions"] == topic.partitions
        assert binding["topicConfiguration"] == {"cleanup.policy": ["delete"], "retention.ms": topic.retention_ms}
        assert not topic.compacted
        assert topic.key == "policy"


def test_each_channel_has_the_types_of_its_topic() -> None:
    for channel in DOCUMENT["channels"].values():
        at_home = {entry.type for entry in BY_CLASS.values() if entry.topic == channel["address"]}
        visiting = {RulesActivated.TYPE} if channel["address"] == POLICY_EVENTS else set()  # a copy in each partition
        assert {resolved(each["$ref"])["name"] for each in channel["messages"].values()} == at_home | visiting


def test_each_operation_uses_its_channels_messages_and_sends_what_a_trainer_may() -> None:
    for operation in DOCUMENT["operations"].values():
        for each in (operation, operation.get("reply", operation)):
            channel = resolved(each["channel"]["$ref"])
            own = [resolved(message["$ref"]) for message in channel["messages"].values()]
            assert all(resolved(message["$ref"]) in own for message in each["messages"])
        sent = [resolved(message["$ref"])["name"] for message in operation["messages"]]
        by_trainers = [PRODUCERS[name] == "trainer" for name in sent]
        assert all(by_trainers) if operation["action"] == "send" else not any(by_trainers)


@pytest.mark.parametrize("name", MESSAGES)
def test_each_message_names_its_schema_in_every_version(name: str) -> None:
    message = MESSAGES[name]
    released = [
        {field: line[field] for field in ("id", "version", "fingerprint", "file")}
        for line in reversed(IDS)
        if line["type"] == message["name"]
    ]
    assert message["x-stepwell-schemas"] == released
    assert message["payload"]["schema"] == {"$ref": f"./{released[0]['file']}"}
    assert message["payload"]["schemaFormat"].startswith("application/vnd.apache.avro+json")
    own = message["headers"]["properties"]
    assert own["ce_type"]["const"] == message["name"]
    if PRODUCERS[message["name"]] == "trainer":  # what readers of this page write
        assert own["stepwell-schema"]["const"] == released[0]["fingerprint"]


def test_the_examples_decode_and_are_written_the_same() -> None:
    examples = [(message, example) for message in MESSAGES.values() for example in message.get("examples", ())]
    assert {message["name"] for message, _ in examples} >= {
        "retrain::requested", "retrain::withdrawn", "retrain::expired", "retrain::answered",
        "failure::pattern_detected",
    }  # fmt: skip
    for message, example in examples:
        schema = fastavro.parse_schema(resolved(message["payload"]["schema"]["$ref"]))
        (fields,) = fastavro.json_reader(io.StringIO(json.dumps(example["payload"])), schema)
        body = io.BytesIO()
        fastavro.schemaless_writer(body, schema, fields)
        value = b"\0" + message["x-stepwell-schemas"][0]["id"].to_bytes(4, "big") + body.getvalue()
        headers = tuple((key, text.encode()) for key, text in example["headers"].items())
        record = Codec().decode(value, headers)
        again, own_headers = Codec().encode(record)
        assert again == value
        assert dict(own_headers) == dict(headers)
