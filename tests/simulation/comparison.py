"""The log's outputs and every row of the tables against the oracle."""

import math
import struct
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from stepwell.events.topics import DEAD_LETTERS, EPISODE_EVENTS, FAILURE_PATTERNS, POLICY_EVENTS, RETRAIN_REQUESTS
from tests.simulation.judging import differences
from tests.simulation.oracle_records import Raw, decode
from tests.simulation.oracle_tables import World, triggers
from tests.simulation.oracle_verdict import first
from tests.simulation.pipeline import Pipeline, header_rows

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EXPANDED = ("lost", "late")


def compare_with_oracle(pipe: Pipeline, world: World) -> dict[str, int]:
    """Everything that the workers wrote, on the log and in the tables; what was compared, counted."""
    everything = pipe.read(POLICY_EVENTS)
    policy_events = of_type("verdict::issued", everything)
    verdicts = check_verdicts(policy_events, world)
    expected = check_expected(of_type("verdict::expected", everything), world)
    letters = check_letters(pipe.read(DEAD_LETTERS), world)
    opened = triggers(policy_events)
    check_triggers(pipe, opened)
    with psycopg.connect(pipe.database) as connection:
        tables = Tables(connection)
        refused = check_verdict_rows(tables, policy_events, world)
        check_letter_rows(tables, world, refused)
        check_fact_rows(tables, world)
        check_attempt_rows(tables, world)
        assert set(tables.keyed("failure_patterns", "trigger_id")) == set(opened)
        assert set(tables.keyed("retrain_requests", "trigger_id")) == set(opened)
    return {
        "facts": len(world.raw), "attempts": len(world.attempts), "verdicts": verdicts, "dead letters": letters,
        "expected": expected, "triggers": len(opened), "refused rows": len(refused),
        "labels found by rules": sum(len(of_rules(attempt)) for attempt in world.attempts.values()),
    }  # fmt: skip


def of_type(name: str, records: list[Raw]) -> list[Raw]:
    """The records of one type."""
    return [raw for raw in records if (decoded := decode(raw)) is not None and decoded[0].type == name]


def of_rules(attempt: Any) -> list[int]:
    """The steps of labels that rules found."""
    return [step for step in (attempt.revisions[-1]["label_steps"] if attempt.revisions else []) if step >= 0]


class Tables:
    """Rows as dictionaries."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def rows(self, table: str) -> list[dict[str, Any]]:
        cursor = self._connection.execute(f"SELECT * FROM stepwell.{table}")
        assert cursor.description is not None
        names = [column.name for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def keyed(self, table: str, *key: str) -> dict[Any, dict[str, Any]]:
        rows = self.rows(table)
        found = {tuple(row[name] for name in key) if len(key) > 1 else row[key[0]]: row for row in rows}
        assert len(found) == len(rows)
        return found


# --- on the log ---


def content_on_log(body: dict[str, Any]) -> dict[str, Any]:
    """A decoded verdict in the oracle's form."""
    certificate, provenance = body["certificate"], body["provenance"]
    found = {name: value for name, value in body.items() if name not in ("certificate", "provenance", "metrics")}
    return found | {
        "metrics": {metric["name"]: metric["value"] for metric in body["metrics"]},
        "completeness": certificate["status"],
        "completeness_notes": sorted(certificate["notes"]),
        **{name: members(certificate[name]) for name in EXPANDED},
        **{name: certificate[name] for name in ("lost_count", "late_count", "violation_count", "nonfinite_count")},
        "schema_fingerprints": provenance["schema_fingerprints"],
        "reported_seed": provenance["seed"],
        "reported_checkpoint": provenance["checkpoint"],
        "rule_set": provenance["rule_set"],
        **{
            name: provenance[name]
            for name in ("simulator", "simulator_version", "adapter_version", "environment_digest")
        },
    }


def members(ranges: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """Every sequence of the ranges."""
    return sorted((part["producer"], seq) for part in ranges for seq in range(part["first"], part["last"] + 1))


def check_verdicts(policy_events: list[Raw], world: World) -> int:
    """Each published revision says what the oracle says of it; the last is there; none came twice."""
    published: dict[tuple[str, int], list[int]] = defaultdict(list)
    for raw in policy_events:
        decoded = decode(raw)
        assert decoded is not None
        body = decoded[1]
        name = (body["episode_id"], body["attempt"])
        published[name].append(body["revision"])
        wanted = world.attempts[name].revisions[body["revision"] - 1]
        found = content_on_log(body)
        wrong = differences(wanted, {field: found[field] for field in wanted})
        assert not wrong, f"{name} revision {body['revision']} (oracle, published): {wrong}"
    for name, attempt in world.attempts.items():
        if attempt.revisions:
            assert sorted(published[name])[-1:] == [len(attempt.revisions)], f"{name}: {published[name]}"
        assert len(set(published[name])) == len(published[name]), f"{name} came twice: {published[name]}"
    return len(policy_events)


def check_expected(expected: list[Raw], world: World) -> int:
    """Every first attempt whose request was applied is announced once, to its policy, before its verdict."""
    found: Counter[tuple[str, bytes | None, int]] = Counter()
    for raw in expected:
        decoded = decode(raw)
        assert decoded is not None
        found[decoded[1]["episode_id"], raw.key, decoded[1]["requested_at"]] += 1
    wanted: Counter[tuple[str, bytes | None, int]] = Counter()
    for (episode, number), attempt in world.attempts.items():
        request = first(attempt, "episode::requested") if number == 1 else None
        if request is not None:
            wanted[episode, request["policy"].encode(), request["occurred_at"]] += 1
    assert found == wanted, f"missing {wanted - found}, too many {found - wanted}"
    return len(expected)


def check_letters(dead: list[Raw], world: World) -> int:
    """On the topic: exactly the letters that the oracle expects, each once, with the raw bytes."""
    found: Counter[tuple[int, int, str, str]] = Counter()
    for raw in dead:
        decoded = decode(raw)
        assert decoded is not None
        body = decoded[1]
        assert body["source_topic"] == EPISODE_EVENTS
        source = world.raw[body["source_partition"], body["source_offset"]]
        assert (body["source_key"], body["source_value"]) == (source.key, source.value)
        assert tuple((field["name"], field["value"]) for field in body["source_headers"]) == source.headers
        reason = "" if body["kind"] == "unreadable" else body["reason"]
        found[body["source_partition"], body["source_offset"], body["kind"], reason] += 1
    expected: Counter[tuple[int, int, str, str]] = Counter()
    expected.update((*place, "unreadable", "") for place in world.unreadable)
    for (partition, _), episode in world.episodes.items():
        expected.update((partition, *letter) for letter in episode.letters)
    assert found == expected, f"missing {expected - found}, too many {found - expected}"
    return len(dead)


def check_triggers(pipe: Pipeline, opened: dict[str, dict[str, Any]]) -> None:
    """One pattern and one request a trigger, with the evidence that the oracle finds."""
    for topic in (FAILURE_PATTERNS, RETRAIN_REQUESTS):
        bodies = [decoded[1] for decoded in map(decode, pipe.read(topic)) if decoded is not None]
        ids = Counter(body["trigger_id"] for body in bodies)
        assert ids == Counter(dict.fromkeys(opened, 1)), f"{topic}: {ids}, expected {sorted(opened)}"
        for body in bodies:
            evidence = [(entry["episode_id"], entry["partition"], entry["offset"]) for entry in body["evidence"]]
            wanted = opened[body["trigger_id"]]
            assert (body["policy"], body["failure_type"], evidence) == tuple(wanted.values())


# --- in the tables ---


def check_verdict_rows(tables: Tables, policy_events: list[Raw], world: World) -> set[tuple[str, int, int]]:
    """Each published verdict is a row, field by field, a NUL in a text written out. Places refused: none."""
    rows = tables.keyed("verdicts", "episode_id", "attempt", "revision")
    refused: set[tuple[str, int, int]] = set()
    wanted_rows = set()
    for raw in policy_events:
        decoded = decode(raw)
        assert decoded is not None
        body = decoded[1]
        key = (body["episode_id"], body["attempt"], body["revision"])
        wanted_rows.add(key)
        expected = world.attempts[key[:2]].revisions[key[2] - 1]
        expected = expected | {"message": expected["message"].replace("\0", "\\x00")}
        found = dict(rows[key])
        for name in EXPANDED:
            found[name] = members(found[name])
        for name in ("requested_at", "started_at", "ended_at"):
            found[name] = micros(found[name])
        found["metrics"] = {name: float(value) for name, value in found["metrics"].items()}
        found["completeness_notes"] = sorted(found["completeness_notes"])
        wrong = differences(expected, {name: found[name] for name in expected})
        assert not wrong, f"verdict {key} (oracle, table): {wrong}"
    assert set(rows) == wanted_rows
    return refused


def check_letter_rows(tables: Tables, world: World, refused: set[tuple[str, int, int]]) -> None:
    """Every dead letter is a row with the raw bytes; nothing else is."""
    expected: dict[tuple[Any, ...], set[str]] = defaultdict(set)
    for partition, offset, kind, reason in world.letters:
        expected[EPISODE_EVENTS, partition, offset, kind].add(reason)
    for place in refused:
        expected[(*place, "refused")].add("")
    rows = tables.keyed("dead_letters", "source_topic", "source_partition", "source_offset", "kind")
    assert set(rows) == set(expected)
    for key, row in rows.items():
        assert row["reason"] in expected[key] or expected[key] == {""}, (key, row["reason"], expected[key])
        if key[0] == EPISODE_EVENTS:
            raw = world.raw[key[1], key[2]]
            assert (row["source_key"], row["source_value"]) == (raw.key, raw.value)
            assert row["source_headers"] == header_rows(raw)


def check_fact_rows(tables: Tables, world: World) -> None:
    """Steps, actions, episodes and runs: every fact once, where it first stood."""
    head = ("episode_id", "attempt", "producer_seq", "producer_id", "occurred_at")
    place = ("source_partition", "source_offset")
    for table, wanted, columns in (
        ("steps", world.steps, ("step", "action_seq", "reward", "success", *place)),
        ("actions", world.actions, ("first_step", "n_steps", "inference_s", *place)),
    ):
        found = {(*key[:4], micros(key[4])): row for key, row in tables.keyed(table, *head).items()}
        assert set(found) == set(wanted), f"{table}: {len(found)} rows, expected {len(wanted)}"
        for key, row in found.items():
            assert bits(row[name] for name in columns) == bits(wanted[key]), f"{table} {key}"
    episodes = tables.keyed("episodes", "episode_id")
    assert set(episodes) == set(world.episode_rows)
    for name, row in episodes.items():
        body = world.episode_rows[name]
        same = ("run_id", "task", "policy", "scene", "seed", "repetition", "cell", "max_steps", "requested_by")
        assert [row[field] for field in same] == [body[field] for field in same]
        assert (row["source_partition"], row["source_offset"]) == body["place"]
        assert micros(row["requested_at"]) == body["occurred_at"]
    runs = tables.keyed("runs", "run_id").items()
    assert {name: (row["requested_by"], micros(row["first_requested_at"])) for name, row in runs} == world.runs


def check_attempt_rows(tables: Tables, world: World) -> None:
    """Run status: phase, outcome, revision and range of every attempt."""
    rows = tables.keyed("episode_attempts", "episode_id", "attempt")
    assert set(rows) >= {name for name, attempt in world.attempts.items() if attempt.sealed}
    assert set(rows) <= set(world.attempts)
    for name, row in rows.items():
        attempt = world.attempts[name]
        asked = world.requested.get(name, (None, None, None))
        claimed = world.claimed.get(name, (None, None, None))
        assert (micros(row["requested_at"]), row["retry_reason"], row["from_checkpoint"]) == asked, name
        assert (micros(row["claimed_at"]), row["host"], row["host_pid"]) == claimed, name
        if not attempt.sealed:
            continue
        expected = {
            "phase": attempt.phase(),
            "outcome": attempt.revisions[-1]["outcome"],
            "revision": len(attempt.revisions),
            "sealed": True,
            "owes": None,
            "next_step": attempt.next_step,
            "first_offset": attempt.first_offset,
            "last_offset": attempt.last_offset,
        }
        wrong = differences(expected, {column: row[column] for column in expected})
        assert not wrong, f"status of {name} (oracle, table): {wrong}"


def micros(when: datetime | None) -> int | None:
    """Microseconds since 1970."""
    return None if when is None else (when - EPOCH) // timedelta(microseconds=1)


def bits(values: Any) -> list[Any]:
    """Values with floats to the bit, so that NaN equals NaN."""
    return [
        struct.pack("<d", value) if isinstance(value, float) and not math.isnan(value) else str(value)
        for value in values
    ]
