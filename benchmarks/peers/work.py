"""The work that the Python peers do, with no framework in it and nothing of Stepwell: decode, fold, outcome.

Decodes with fastavro, without guards; follows the state by a table; counts each producer's sequence; adds up steps and
rewards.
"""

import io
import json
import os
import time
from pathlib import Path
from typing import Any

import fastavro

EVENTS, OUTCOMES, SNAPSHOTS = "stepwell.episode-events", "bench.outcomes", "bench.snapshots"

NEXT = {
    ("new", "sim::ready"): "ready",
    ("ready", "agent::action_sent"): "acting",
    ("stepped", "agent::action_sent"): "acting",
    ("acting", "agent::action_sent"): "acting",
    ("acting", "sim::step_done"): "stepped",
    ("stepped", "episode::ended"): "done",
    ("acting", "episode::ended"): "done",
    ("ready", "episode::ended"): "done",
}
BESIDE = {"episode::requested", "episode::claimed", "agent::started"}


class Decoder:
    """From a record's value to its type and fields."""

    def __init__(self, schemas: str) -> None:
        self._by_id = {
            int(number): (entry["type"], fastavro.parse_schema(entry["schema"]))
            for number, entry in json.loads(Path(schemas).read_text()).items()
        }

    def __call__(self, value: bytes) -> tuple[str, Any]:
        kind, schema = self._by_id[int.from_bytes(value[1:5], "big")]
        body = io.BytesIO(value)
        body.seek(5)
        return kind, fastavro.schemaless_reader(body, schema, None)


def fresh() -> dict[str, Any]:
    return {"state": "new", "steps": 0, "reward": 0.0, "sim": 0, "agent": 0, "host": 0, "repeats": 0, "gaps": 0}


def fold(state: dict[str, Any], kind: str, event: dict[str, Any]) -> bool:
    """Change the state in place; True when the episode has just ended."""
    producer, seq = event["producer"], event["producer_seq"]
    if seq < state[producer]:
        state["repeats"] += 1
        return False
    state["gaps"] += seq - state[producer]
    state[producer] = seq + 1
    if kind in BESIDE:
        return False
    state["state"] = NEXT.get((state["state"], kind), "wrong")
    if kind == "sim::step_done":
        state["steps"] += 1
        state["reward"] += event["reward"] or 0.0
    return kind == "episode::ended"


def outcome(state: dict[str, Any], event: dict[str, Any]) -> dict[str, Any]:
    good = state["state"] == "done" and event["success"]
    return {"episode_id": event["episode_id"], "outcome": "success" if good else "failure", **state}


_told = False


def first() -> None:
    """Call when the first record is there; starts the clock."""
    global _told  # noqa: PLW0603
    if not _told:
        _told = True
        os.write(1, b'{"first": %f}\n' % time.time())
