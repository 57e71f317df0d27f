"""Ids that follow from content; topics and keys."""

import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.adapters import ids as adapter
from stepwell.events import model, topics
from stepwell.events.ids import (
    derived_event_id,
    episode_id_for,
    event_id_from_text,
    event_id_text,
    is_uuid7,
    trigger_id_for,
)
from stepwell.events.routing import key_of, partition_key, topic_of
from stepwell.exceptions import EncodeError
from tests.unit.events.records import CLASSES, sample


def test_ids_never_change() -> None:
    """Recorded logs hold these: another algorithm would give old episodes and triggers new names."""
    evidence = [sample(model.EvidenceEpisode)]
    assert episode_id_for("run-1", "metaworld/reach-v3", "policy=expert", 0) == EPISODE
    assert derived_event_id("verdict", "ep-1", 1, 0).hex() == DERIVED
    assert trigger_id_for("streak", 1, "policy=expert", evidence) == TRIGGER


EPISODE = "ep-hwnxasxnwe3jatzjmyhe"
DERIVED = "877021f4933e8efa82c3f4b7c3ef39d6"
TRIGGER = "tr-xpyvlig5ol7iaigjw2qxyprhhf"


parts = st.lists(st.one_of(st.text(max_size=4), st.integers(), st.binary(max_size=4)), max_size=4)


@given(parts, parts)
@settings(deadline=None)
def test_other_parts_give_another_id(left: list[str | int | bytes], right: list[str | int | bytes]) -> None:
    typed = [(type(part), part) for part in left], [(type(part), part) for part in right]
    assert (derived_event_id(*left) == derived_event_id(*right)) == (typed[0] == typed[1])


def test_derived_ids_are_uuids_of_version_8() -> None:
    for number in range(50):
        made = uuid.UUID(bytes=derived_event_id("x", number))
        assert made.version == 8
        assert made.variant == uuid.RFC_4122
        assert not is_uuid7(made.bytes)


def test_evidence_is_part_of_a_trigger() -> None:
    one = sample(model.EvidenceEpisode)
    same = msgspec.structs.replace(one, scene="renamed")
    other = [msgspec.structs.replace(one, **{name: getattr(one, name) + 1}) for name in ("attempt", "revision")]
    assert trigger_id_for("r", 1, "k", [one]) == trigger_id_for("r", 1, "k", [same])
    made = [trigger_id_for("r", 1, "k", evidence) for evidence in ([], [one], [one, one], *([item] for item in other))]
    assert len(set(made)) == len(made)


def test_text_form() -> None:
    raw = adapter.new_event_id()
    assert event_id_text(raw) == str(uuid.UUID(bytes=raw))
    assert event_id_from_text(event_id_text(raw)) == raw
    with pytest.raises(ValueError, match="16 bytes"):
        event_id_text(b"short")
    with pytest.raises(ValueError, match="hexadecimal"):
        event_id_from_text("no id")


# --- new ids ------------------------------------------------------------------------------------------------------


def test_new_ids_rise_and_tell_the_time() -> None:
    before = time.time_ns() // 1_000_000
    made = [adapter.new_event_id() for _ in range(5000)]
    assert made == sorted(set(made))
    assert all(map(is_uuid7, made))
    assert before <= int.from_bytes(made[0][:6], "big") <= int.from_bytes(made[-1][:6], "big")
    assert int.from_bytes(made[-1][:6], "big") <= time.time_ns() // 1_000_000
    assert not is_uuid7(made[0][:15])


def test_new_ids_rise_when_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    maker = adapter.EventIds()
    first = maker.new()
    monkeypatch.setattr(adapter.time, "time_ns", lambda: 1_000_000)
    assert first < maker.new() < maker.new()


def test_a_full_counter_moves_to_the_next_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter.time, "time_ns", lambda: 5_000_000)
    maker = adapter.EventIds()
    maker.new()
    maker._counter = (1 << 74) - 1
    last = maker.new()
    assert int.from_bytes(last[:6], "big") == 6
    assert is_uuid7(last)
    assert maker.new() > last


def test_threads_share_the_order() -> None:
    made: list[list[bytes]] = [[] for _ in range(4)]

    def work(mine: list[bytes]) -> None:
        mine.extend(adapter.new_event_id() for _ in range(1000))

    threads = [threading.Thread(target=work, args=(mine,)) for mine in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({event_id for mine in made for event_id in mine}) == 4000
    assert all(mine == sorted(mine) for mine in made)


FORK = """
import os
from stepwell.adapters.ids import new_event_id
new_event_id()
read, write = os.pipe()
child = os.fork()
if child == 0:
    os.write(write, b"".join(new_event_id() for _ in range(100)))
    os._exit(0)
mine = {new_event_id() for _ in range(100)}
os.waitpid(child, 0)
theirs = os.read(read, 1600)
assert len(theirs) == 1600
assert not mine & {theirs[at : at + 16] for at in range(0, 1600, 16)}
"""


def test_a_forked_child_makes_its_own() -> None:
    # In a process of its own: forking a process that may have threads is what Python warns of.
    subprocess.run([sys.executable, "-c", FORK], check=True, timeout=60)


# --- routing ------------------------------------------------------------------------------------------------------

by_policy = lambda record: record.policy.encode()  # noqa: E731
by_episode = lambda record: record.episode_id.encode()  # noqa: E731
ROUTES: dict[type, tuple[str, Callable[..., bytes]]] = {
    model.VerdictIssued: (topics.POLICY_EVENTS, by_policy),
    model.PatternDetected: (topics.FAILURE_PATTERNS, by_policy),
    model.RetrainRequested: (topics.RETRAIN_REQUESTS, by_policy),
    model.RetrainWithdrawn: (topics.RETRAIN_REQUESTS, by_policy),
    model.RetrainAnswered: (topics.RETRAIN_RESULTS, by_policy),
    model.RetrainExpired: (topics.RETRAIN_REQUESTS, by_policy),
    model.RetrainAcknowledged: (topics.POLICY_EVENTS, by_policy),
    model.RetrainMuted: (topics.POLICY_EVENTS, by_policy),
    model.RetrainUnmuted: (topics.POLICY_EVENTS, by_policy),
    model.VerdictExpected: (topics.POLICY_EVENTS, by_policy),
    model.DetectorTicked: (topics.POLICY_EVENTS, lambda _: b"tick"),
    model.RulesActivated: (topics.RULE_SETS, lambda _: b"rules"),
    model.PolicySnapshot: (topics.POLICY_SNAPSHOTS, lambda record: f"policy/{record.policy}".encode()),
    model.CommandIssued: (topics.EPISODE_COMMANDS, by_episode),
    model.DeadLetter: (topics.DEAD_LETTERS, lambda record: record.source_key),
    model.SnapshotTaken: (topics.EPISODE_SNAPSHOTS, lambda r: f"{r.episode_id}/{r.attempt}".encode()),
    model.PositionSaved: (topics.EPISODE_SNAPSHOTS, lambda r: f"checkpoint/{r.partition}".encode()),
    model.TelemetrySampled: (topics.TELEMETRY, by_episode),
    model.WorkerReported: (topics.TELEMETRY, lambda record: record.worker_id.encode()),
    model.SpansEnded: (topics.TELEMETRY, by_episode),
}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.TYPE)
def test_topic_and_key(cls: type) -> None:
    topic, key = ROUTES.get(cls, (topics.EPISODE_EVENTS, by_episode))
    record = sample(cls)
    assert topic_of(record) == topic
    assert key_of(record) == key(record)


def test_keys_where_something_is_missing() -> None:
    for cls in (model.TelemetrySampled, model.SpansEnded):
        assert key_of(sample(cls, full=False)) == sample(cls).worker_id.encode()
    assert key_of(sample(model.DeadLetter, full=False)) == b""


def test_a_position_goes_beside_the_snapshots_of_its_topic() -> None:
    position = msgspec.structs.replace(sample(model.PositionSaved), topic=topics.POLICY_EVENTS)
    assert topic_of(position) == topics.POLICY_SNAPSHOTS
    assert topic_of(msgspec.structs.replace(position, topic=topics.EPISODE_EVENTS)) == topics.EPISODE_SNAPSHOTS


def test_what_concerns_a_partition_says_which() -> None:
    assert partition_key(sample(model.RulesActivated), 2) == b"rules/2"
    assert partition_key(sample(model.DetectorTicked), 0) == b"tick/0"
    with pytest.raises(KeyError):
        partition_key(sample(model.VerdictIssued), 0)


def test_strangers_have_no_topic() -> None:
    with pytest.raises(EncodeError, match="Metric"):
        topic_of(model.Metric(name="a", value=1.0))  # type: ignore[arg-type]
