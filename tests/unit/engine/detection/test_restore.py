"""Snapshots, ticks and the takeover of partitions, on the log in memory."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from stepwell.adapters.logs.memory import MemoryLog
from stepwell.engine.detection import partition as partition_module
from stepwell.engine.detection import restore as restore_module
from stepwell.engine.detection.in_a_row import InARowJudge
from stepwell.engine.detection.partition import PolicyPartition, pack, unpack
from stepwell.engine.detection.restore import GROUP, TOPICS, DetectorRestore
from stepwell.engine.detection.state import dump
from stepwell.engine.loop import ExactlyOnceLoop
from stepwell.engine.ports import OutgoingRecord, RecordBatch, TopicPartition
from stepwell.engine.publish import outgoing, partition_copies
from stepwell.events.model import (
    DeadLetter,
    DetectorTicked,
    PolicySnapshot,
    PositionSaved,
    RetrainExpired,
    RetrainRequested,
)
from stepwell.events.topics import (
    DEAD_LETTERS,
    POLICY_EVENTS,
    POLICY_SNAPSHOTS,
    RETRAIN_REQUESTS,
)
from stepwell.exceptions import EncodeError, LogError, PositionLostError
from tests.unit.engine.detection.stories import activated, answer, expected, failed, muted, rules, won
from tests.unit.engine.running import CODEC, FakeClock, Notes, drain, read, send

ROW = {"kind": "in_a_row", "name": "row", "length": 3, "expires_s": 300.0}
WINDOW = {
    "kind": "window_rate", "name": "window", "window": 4, "minimum": 3, "limit": 0.5,
    "promise": {"baseline_rate": 0.1, "average_run_length": 10.0},
}  # fmt: skip


@pytest.fixture
def log() -> Iterator[MemoryLog]:
    memory = MemoryLog()
    yield memory
    memory.close()


class Worker:
    """A detector on the log."""

    def __init__(self, log: MemoryLog, clock: FakeClock | None = None) -> None:
        self.clock = clock or FakeClock()
        self.notes = Notes()
        self.loop = ExactlyOnceLoop(
            log, group=GROUP, worker_id="d", topics=TOPICS, restore=DetectorRestore(log, CODEC, "d"),
            clock=self.clock, report=self.notes, poll_timeout_s=0.005,
        )  # fmt: skip

    def partitions(self) -> list[PolicyPartition]:
        return [made for made in self.loop.processors.values() if isinstance(made, PolicyPartition)]

    def ledgers(self) -> dict[str, bytes]:
        return {policy: data for made in self.partitions() for policy, data in made.ledger_bytes().items()}

    def stop(self) -> None:
        """A graceful stop."""
        steps = iter([False, True])
        self.loop.run(lambda: next(steps))

    def kill(self) -> None:
        """What a restart under the same name sees of a kill."""
        self.loop.close()


def activate(log: MemoryLog, *verdicts: dict[str, Any], wait_s: float = 60.0) -> None:
    event = activated(rules(*verdicts, wait_s=wait_s))
    send(log, *partition_copies(CODEC, event, POLICY_EVENTS, range(4)))


def counted(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Offsets of policy-events that restores read from now on."""
    seen: list[int] = []
    real = restore_module.read_range

    def read_range(of: Any, source: TopicPartition, start: int, end: int) -> Iterator[RecordBatch]:
        for batch in real(of, source, start, end):
            if source.topic == POLICY_EVENTS:
                seen.extend(batch.offsets)
            yield batch

    monkeypatch.setattr(restore_module, "read_range", read_range)
    return seen


def tell(log: MemoryLog, count: int = 30) -> None:
    for policy in ("expert", "novice", "third"):
        events = [(failed if i % 7 < 4 else won)(f"{policy}{i}", policy=policy) for i in range(count)]
        send(log, *events)


def test_a_graceful_stop_leaves_nothing_to_fold_again(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    activate(log, ROW, WINDOW)
    tell(log)
    first = Worker(log)
    drain(first.loop)
    before = first.ledgers()
    first.stop()
    snapshots = [record for record in read(log, POLICY_SNAPSHOTS) if isinstance(record, PolicySnapshot)]
    assert {record.policy for record in snapshots} == {"expert", "novice", "third"}
    assert all(unpack(record.state).policy == record.policy for record in snapshots)
    seen = counted(log, monkeypatch)
    second = Worker(log)
    drain(second.loop)
    assert second.ledgers() == before
    assert seen == []
    assert all(made.policies.detector.rule_set.rule_set == "tested" for made in second.partitions())
    second.kill()


def test_killed_it_folds_from_the_rewind_offset(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots every ten records, one a batch; then a kill, and nothing is said twice."""
    monkeypatch.setattr(partition_module, "SNAPSHOT_RECORDS", 10)
    activate(log, ROW, WINDOW)
    worker = Worker(log)
    for _ in range(3):
        tell(log, 10)
        drain(worker.loop, 1)
    for i in range(12):
        send(log, failed(f"late{i}"))
        drain(worker.loop, 1)
    before, said = worker.ledgers(), len(read(log, RETRAIN_REQUESTS))
    worker.kill()
    seen = counted(log, monkeypatch)
    again = Worker(log)
    drain(again.loop)
    assert again.ledgers() == before
    assert len(read(log, RETRAIN_REQUESTS)) == said
    assert 0 < len(seen) < 40
    assert any(isinstance(record, PositionSaved) and record.rules_json for record in read(log, POLICY_SNAPSHOTS))
    again.kill()


def test_another_version_folds_from_the_start(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was published stays published; the ledger is the same."""
    activate(log, ROW)
    tell(log)
    first = Worker(log)
    drain(first.loop)
    before, said = first.ledgers(), len(read(log, RETRAIN_REQUESTS))
    first.stop()
    monkeypatch.setattr(restore_module, "DETECTOR_HASH", "another")
    seen = counted(log, monkeypatch)
    second = Worker(log)
    drain(second.loop)
    assert second.ledgers() == before
    assert len(seen) == 3 * 30 + 4
    assert len(read(log, RETRAIN_REQUESTS)) == said
    second.kill()


def test_a_snapshot_that_cannot_be_read_is_a_reason_to_fold_from_the_start(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell(log)
    first = Worker(log)
    drain(first.loop)
    before = first.ledgers()
    first.stop()
    send(log, *[OutgoingRecord(POLICY_SNAPSHOTS, b"policy/x", b"junk", (), number) for number in range(4)])
    seen = counted(log, monkeypatch)
    second = Worker(log)
    drain(second.loop)
    assert second.ledgers() == before
    assert len(seen) == 90
    second.kill()


def test_positions_that_contradict_snapshots_are_not_guessed_at(log: MemoryLog) -> None:
    """The group set back by hand; and a group that Kafka has forgotten."""
    tell(log)
    first = Worker(log)
    drain(first.loop)
    position = {made._source: made.position for made in first.partitions() if made.ledger_bytes()}
    first.stop()
    restore = DetectorRestore(log, CODEC, "d")
    for source, at in position.items():
        consumer = log.consumer(GROUP)
        with pytest.raises(LogError, match=f"stands at {at - 1}, but its snapshots were written at {at}"):
            restore(source, at - 1, _Stuck(consumer, at - 1))
        forgotten = restore(source, None, consumer)
        assert forgotten.position == at
        consumer.close()


class _Stuck:
    """A consumer whose group stands where it was set."""

    def __init__(self, consumer: Any, at: int) -> None:
        self._consumer, self._at = consumer, at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def committed(self, sources: Any) -> dict[TopicPartition, int]:
        return dict.fromkeys(sources, self._at)


def test_records_below_the_rewind_offset_may_go(log: MemoryLog) -> None:
    """Retention may take what snapshots cover, and nothing else."""
    tell(log)
    first = Worker(log)
    drain(first.loop)
    before = first.ledgers()
    made = next(made for made in first.partitions() if made.ledger_bytes())
    source, position = made._source, made.position
    first.stop()

    class Trimmed:
        def __init__(self, low: int) -> None:
            self.low = low

        def watermarks(self, of: TopicPartition) -> Any:
            marks = log.consumer().watermarks(of)
            return marks._replace(low=self.low) if of.topic == POLICY_EVENTS else marks

    restore = DetectorRestore(log, CODEC, "d")
    again = restore(source, position, Trimmed(position))  # type: ignore[arg-type]
    assert isinstance(again, PolicyPartition)
    assert all(before[policy] == data for policy, data in again.ledger_bytes().items())
    with pytest.raises(PositionLostError, match="has to be folded from"):
        restore(source, position, Trimmed(position + 1))  # type: ignore[arg-type]


# --- ticks ------------------------------------------------------------------------------------------------------------


def test_time_alone_brings_expiries_and_passed_turns_through_the_log(log: MemoryLog) -> None:
    """A tick is written where something waits, once, in its own partition; its consequences follow from the log."""
    activate(log, ROW, WINDOW, wait_s=100.0)
    send(log, expected("slow"), *[expected(f"q{i}") for i in range(3)], *[failed(f"q{i}") for i in range(3)])
    worker = Worker(log)
    drain(worker.loop)
    assert [event.rule for event in read(log, RETRAIN_REQUESTS)] == ["row"]  # type: ignore[union-attr]
    assert _ticks(log) == 0
    worker.clock.move(150.0)
    drain(worker.loop, 4)
    assert [event.rule for event in read(log, RETRAIN_REQUESTS)] == ["row", "window"]  # type: ignore[union-attr]
    worker.clock.move(300.0)
    drain(worker.loop, 4)
    assert sum(isinstance(event, RetrainExpired) for event in read(log, RETRAIN_REQUESTS)) == 1
    assert _ticks(log) == 2
    before = worker.ledgers()
    worker.kill()
    again = Worker(log, worker.clock)
    drain(again.loop, 6)
    assert again.ledgers() == before
    assert _ticks(log) == 2
    again.kill()


def test_a_mute_that_ends_while_the_detector_was_down_is_noticed_when_it_is_back(log: MemoryLog) -> None:
    clock = FakeClock()
    activate(log, ROW)
    send(log, muted(until=clock.now_us() + 60_000_000), *[failed(f"f{i}") for i in range(3)])
    worker = Worker(log, clock)
    drain(worker.loop)
    assert read(log, RETRAIN_REQUESTS) == []
    worker.stop()
    clock.move(100.0)
    again = Worker(log, clock)
    drain(again.loop, 4)
    (request,) = read(log, RETRAIN_REQUESTS)
    assert isinstance(request, RetrainRequested)
    send(log, answer(request.trigger_id))
    drain(again.loop, 4)
    assert b"done" in again.ledgers()["expert"]
    again.kill()


def _ticks(log: MemoryLog) -> int:
    return sum(isinstance(event, DetectorTicked) for event in read(log, POLICY_EVENTS))


# --- what cannot be used ----------------------------------------------------------------------------------------------


def test_rules_that_cannot_be_read_are_a_dead_letter_and_the_old_ones_stay(log: MemoryLog) -> None:
    import hashlib

    text = rules(ROW).canonical().replace('"length":3', '"length":0')
    bad = msgspec.structs.replace(activated(rules(ROW)), rules_json=text, sha256=hashlib.sha256(text.encode()).digest())
    send(log, *partition_copies(CODEC, bad, POLICY_EVENTS, range(4)), *[failed(f"f{i}") for i in range(5)])
    worker = Worker(log)
    drain(worker.loop)
    letters = [letter for letter in read(log, DEAD_LETTERS) if isinstance(letter, DeadLetter)]
    assert {(letter.kind, letter.reason) for letter in letters} == {("unreadable", "rules")}
    assert len(letters) == 4
    (request,) = read(log, RETRAIN_REQUESTS)
    assert request.rule == "same_failure_in_a_row"  # type: ignore[union-attr]
    worker.kill()


def test_a_rule_that_raises_costs_that_rule_and_a_dead_letter(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, however often the detector is restarted; the record counts for the other rules."""
    real = InARowJudge.recorded

    def recorded(self: Any, turn: Any, own: Any, entry: Any) -> None:
        real(self, turn, own, entry)
        if entry.evidence.episode_id == "f2":
            raise ZeroDivisionError("a defect")

    monkeypatch.setattr(InARowJudge, "recorded", recorded)
    activate(log, ROW, WINDOW)
    send(log, *[failed(f"f{i}") for i in range(6)])
    worker = Worker(log)
    drain(worker.loop)
    assert worker.notes.said.count("state is in doubt, restoring") == 1
    before = worker.ledgers()
    worker.kill()
    again = Worker(log)
    drain(again.loop)
    assert again.ledgers() == before
    (letter,) = [letter for letter in read(log, DEAD_LETTERS) if isinstance(letter, DeadLetter)]
    assert (letter.kind, letter.event_type, letter.source_value) == (
        "rule_failed",
        "verdict::issued",
        outgoing(CODEC, failed("f2")).value,
    )
    assert "rule row raised ZeroDivisionError: a defect" in letter.detail
    (request,) = read(log, RETRAIN_REQUESTS)
    assert request.rule == "window"  # type: ignore[union-attr]
    assert [item.episode_id for item in request.evidence] == ["f0", "f1", "f2"]  # type: ignore[union-attr]
    again.kill()


def test_a_snapshot_that_is_too_large_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy stays uncovered, so a restart folds it from there."""
    source = TopicPartition(POLICY_EVENTS, 0)
    made = PolicyPartition(source, 0, CODEC, "d")
    records = [outgoing(CODEC, failed(f"f{i}")) for i in range(3)]
    batch = RecordBatch(
        source, 0, 3, [0, 1, 2], [1, 2, 3], [item.key for item in records], [item.value for item in records],
        [item.headers for item in records],
    )  # fmt: skip
    made.process(batch, 0)
    monkeypatch.setattr(partition_module, "pack", lambda state: bytes(2_000_000))
    (saved,) = [CODEC.decode(item.value, item.headers) for item in made.finish(0)]
    assert isinstance(saved, PositionSaved)
    assert saved.rewind_offset == 0
    monkeypatch.undo()
    (snapshot, saved) = [CODEC.decode(item.value, item.headers) for item in made.finish(0)]
    assert isinstance(snapshot, PolicySnapshot)
    assert isinstance(saved, PositionSaved)
    assert (snapshot.last_offset, saved.rewind_offset) == (2, 3)
    state = made.policies.states["expert"]
    assert dump(unpack(pack(state))) == dump(state)


def test_a_snapshot_that_no_log_takes_does_not_stop_the_worker(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is left out and tried again later; a restart folds that policy again, to the same bytes."""

    def too_large(encoder: Any, record: Any, partition: int | None = None) -> OutgoingRecord:
        if isinstance(record, PolicySnapshot) and record.policy == "expert":
            raise EncodeError("too large", reason="too-large")
        return outgoing(encoder, record, partition)

    activate(log, ROW)
    send(log, *[outgoing(CODEC, failed(f"e{i}", policy=policy)) for i in range(3) for policy in ("expert", "other")])
    monkeypatch.setattr(partition_module, "outgoing", too_large)
    worker = Worker(log)
    drain(worker.loop)
    before = worker.ledgers()
    worker.stop()
    assert {record.policy for record in read(log, POLICY_SNAPSHOTS) if isinstance(record, PolicySnapshot)} == {"other"}
    again = Worker(log)
    drain(again.loop)
    assert again.ledgers() == before
    again.kill()
