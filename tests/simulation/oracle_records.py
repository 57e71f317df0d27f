"""Records as the oracle reads them: fastavro and the packaged schemas, none of our own codec.

A record counts as readable where its frame and fingerprint name one schema, fastavro decodes it, and encoding what it
decoded gives the same bytes again (which finds trailing bytes, padded numbers, wild indexes and booleans); then its
head is judged, as docs/events.md says.
"""

import io
import json
import math
from importlib import resources
from typing import Any, NamedTuple

import fastavro

from tests.simulation.oracle import Fact

MAX_EVENT_BYTES = 786_432
PAST_US, FUTURE_US = 30 * 86_400 * 1_000_000, 600 * 1_000_000
IDS = ("run_id", "episode_id", "producer_id")
PRODUCERS = {"sim", "agent", "host", "engine"}


class Raw(NamedTuple):
    """One record of the log, untouched. ``timestamp``: the log's (µs)."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Schema(NamedTuple):
    """One schema version."""

    type: str
    fingerprint: bytes
    parsed: Any
    version: int


def _without_logical_types(node: Any) -> Any:
    if isinstance(node, dict):
        return {name: _without_logical_types(value) for name, value in node.items() if name != "logicalType"}
    return [_without_logical_types(item) for item in node] if isinstance(node, list) else node


def _schemas() -> dict[int, Schema]:
    root = resources.files("stepwell.schemas")
    found = {}
    for line in json.loads((root / "ids.json").read_text(encoding="utf-8"))["schemas"]:
        file = root
        for part in line["file"].split("/"):
            file = file / part
        written = _without_logical_types(json.loads(file.read_text(encoding="utf-8")))
        parsed = fastavro.parse_schema(written, named_schemas={})
        found[line["id"]] = Schema(line["type"], line["fingerprint"].encode(), parsed, line["version"])
    return found


SCHEMAS = _schemas()


def decode(raw: Raw) -> tuple[Schema, dict[str, Any]] | None:
    """Schema and fields; None where nobody can read it."""
    value = raw.value
    if value is None or len(value) < 5 or value[0] != 0:
        return None
    schema = SCHEMAS.get(int.from_bytes(value[1:5], "big"))
    headers = dict(raw.headers)
    if schema is None or headers.get("stepwell-schema") != schema.fingerprint:
        return None
    if headers.get("ce_type", schema.type.encode()) != schema.type.encode():
        return None
    source = io.BytesIO(value[5:])
    try:
        fields = fastavro.schemaless_reader(source, schema.parsed, None)
        again = io.BytesIO()
        fastavro.schemaless_writer(again, schema.parsed, fields)
    except Exception:  # noqa: BLE001 - whatever a decoder raises, the record is unreadable
        return None
    if again.getvalue() != value[5:] or not isinstance(fields, dict):
        return None
    if schema.type == "episode::failed" and schema.version == 1:
        fields["component"] = ""
    return schema, fields


def fact_of(raw: Raw) -> Fact | None:
    """The fact in a record of the topic of episode events; None where it must be a dead letter (unreadable)."""
    found = decode(raw)
    if found is None or raw.key is None or len(raw.value or b"") > MAX_EVENT_BYTES:
        return None
    schema, body = found
    if body.get("producer") not in PRODUCERS | {"trainer", "operator"} or not _sane(raw, body):
        return None
    content = (raw.value or b"")[5:]
    fingerprint = schema.fingerprint.decode()
    return Fact(schema.type, body["producer"], body["producer_seq"], content, body, raw.offset, fingerprint)


def activated_steps(raw: Raw) -> str | None:
    """The step rules that a record puts into force for its partition, as JSON (empty: none); None: no such record."""
    found = decode(raw)
    if found is None or found[0].type != "rules::activated" or raw.key != f"rules/{raw.partition}".encode():
        return None
    rules = json.loads(found[1]["rules_json"])
    if not rules["steps"]:
        return ""
    steps = {name: rules[name] for name in ("rule_set", "version", "steps")}
    return json.dumps(steps, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _sane(raw: Raw, body: dict[str, Any]) -> bool:
    """The head, as far as the workloads here spoil it."""
    late_us = raw.timestamp - body["occurred_at"]
    sim_time = body["sim_time"]
    return (
        body["attempt"] >= 1
        and body["producer_seq"] >= 0
        and (body["step"] is None or body["step"] >= 0)
        and (sim_time is None or math.isfinite(sim_time))
        and all(0 < len(body[name]) <= 200 and body[name].isprintable() for name in IDS)
        and (body["origin"] == "import" or -FUTURE_US <= late_us <= PAST_US)
    )
