"""A verification names what the engine's records say and a new fold does not, each kind of damage."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from stepwell.adapters.logs.memory import MemoryLog
from stepwell.adapters.verify import FoldReport, verify_folds
from stepwell.adapters.workers.markers import MemoryMarkers
from stepwell.engine.loop import ExactlyOnceLoop
from stepwell.engine.ports import OutgoingRecord
from stepwell.engine.publish import outgoing
from stepwell.engine.restore import GROUP, TOPICS, EngineRestore
from stepwell.engine.snapshot import dump, load
from stepwell.engine.timers import Timeouts
from stepwell.events.model import LogRecord, SnapshotTaken, VerdictIssued
from stepwell.events.topics import EPISODE_SNAPSHOTS, POLICY_EVENTS
from tests.unit.engine.episodes import Facts
from tests.unit.engine.running import CODEC, FakeClock, Notes, drain, read, send


def judge(log: MemoryLog) -> None:
    """Let an engine read all there is."""
    notes = Notes()
    restore = EngineRestore(
        log, codec=CODEC, markers=MemoryMarkers(), timeouts=Timeouts(), worker_id="engine-0", report=notes
    )
    loop = ExactlyOnceLoop(
        log, group=GROUP, worker_id="engine-0", topics=TOPICS, restore=restore, clock=FakeClock(), report=notes,
        poll_timeout_s=0.005,
    )  # fmt: skip
    drain(loop)
    loop.close()


@pytest.fixture
def log() -> Iterator[MemoryLog]:
    """One episode that was sealed, and one that goes on."""
    log = MemoryLog()
    send(log, *Facts("ep-done").whole(success=False))
    send(log, *Facts("ep-open").whole(success=True)[:-1])
    judge(log)
    yield log
    log.close()


def of_type(log: MemoryLog, topic: str, kind: type[Any]) -> list[Any]:
    return [record for record in read(log, topic) if isinstance(record, kind)]


def append(log: MemoryLog, record: LogRecord) -> None:
    partition = record.partition if isinstance(record, SnapshotTaken) else None
    send(log, outgoing(CODEC, record, partition))


def snapshot_of(log: MemoryLog, episode: str, kind: str = "snapshot") -> SnapshotTaken:
    found: list[SnapshotTaken] = of_type(log, EPISODE_SNAPSHOTS, SnapshotTaken)
    return [s for s in found if s.episode_id == episode and s.kind == kind][-1]


def only_difference(log: MemoryLog, *wanted: str) -> str:
    (difference,) = verify_folds(log, CODEC, wanted or None).differences
    return difference


def test_an_untouched_log_shows_no_difference(log: MemoryLog) -> None:
    assert verify_folds(log, CODEC) == FoldReport(
        events=22, episodes=2, attempts=2, verdicts=1, snapshots=1, seals=1, other_folds=0, unread=0, differences=[]
    )
    assert verify_folds(log, CODEC, ["ep-open"]).verdicts == 0


def test_what_no_engine_has_read_is_left_out_and_counted(log: MemoryLog) -> None:
    send(log, *Facts("ep-new").whole(success=True))
    report = verify_folds(log, CODEC)
    assert report.differences == []
    assert (report.unread, report.episodes) == (11, 2)


def test_a_forged_verdict_is_named_by_its_field(log: MemoryLog) -> None:
    (verdict,) = of_type(log, POLICY_EVENTS, VerdictIssued)
    append(log, msgspec.structs.replace(verdict, revision=9, producer_seq=9, outcome="success", failure_type=None))
    told = only_difference(log)
    assert told.startswith("ep-done/1: the verdict in the log has outcome 'success', the fold gives 'failure'")
    assert only_difference(log, "ep-done") == told
    assert verify_folds(log, CODEC, ["ep-open"]).differences == []


def test_an_older_revision_says_nothing(log: MemoryLog) -> None:
    (verdict,) = of_type(log, POLICY_EVENTS, VerdictIssued)
    append(log, msgspec.structs.replace(verdict, revision=0, outcome="success"))
    assert verify_folds(log, CODEC).differences == []


def test_a_verdict_for_an_attempt_that_goes_on_or_never_was(log: MemoryLog) -> None:
    (verdict,) = of_type(log, POLICY_EVENTS, VerdictIssued)
    append(log, msgspec.structs.replace(verdict, episode_id="ep-open"))
    assert only_difference(log) == ("ep-open/1: stepwell.policy-events holds a verdict (failure), the fold gives none")
    append(log, msgspec.structs.replace(verdict, episode_id="ep-forged"))
    assert (
        "ep-forged/1: stepwell.policy-events holds a verdict (failure), no event asks for it"
        in verify_folds(log, CODEC).differences
    )


def test_a_missing_verdict_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that said it had read the events and kept the verdict to itself."""
    log = MemoryLog()
    monkeypatch.setattr("stepwell.engine.partition.pending_verdict", lambda attempt: None)
    send(log, *Facts("ep-done").whole(success=True))
    judge(log)
    assert of_type(log, POLICY_EVENTS, VerdictIssued) == []
    assert only_difference(log) == ("ep-done/1: the fold gives a verdict (success), stepwell.policy-events holds none")
    log.close()


def test_a_damaged_snapshot_is_named_by_its_field(log: MemoryLog) -> None:
    snapshot = snapshot_of(log, "ep-open")
    attempt = load(snapshot.state)
    attempt.total_reward += 1
    append(log, msgspec.structs.replace(snapshot, state=dump(attempt)))
    assert f"ep-open/1: snapshot at offset {snapshot.last_offset} has total_reward" in only_difference(log)


def test_a_snapshot_that_cannot_be_read_is_named(log: MemoryLog) -> None:
    snapshot = snapshot_of(log, "ep-open")
    append(log, msgspec.structs.replace(snapshot, state=snapshot.state[:-3]))
    assert f"snapshot at offset {snapshot.last_offset} cannot be read: " in only_difference(log)


def test_a_snapshot_at_an_offset_that_is_not_its_own_is_named(log: MemoryLog) -> None:
    snapshot = snapshot_of(log, "ep-open")
    append(log, msgspec.structs.replace(snapshot, episode_id="ep-forged"))
    assert only_difference(log) == (
        f"ep-forged/1: a snapshot was made at offset {snapshot.last_offset}, where no event of this attempt stands"
    )


def test_a_snapshot_by_another_fold_is_not_compared(log: MemoryLog) -> None:
    append(log, msgspec.structs.replace(snapshot_of(log, "ep-open"), fold_hash="another", state=b""))
    report = verify_folds(log, CODEC)
    assert (report.differences, report.other_folds, report.snapshots) == ([], 1, 0)


def test_a_seal_that_says_something_else_is_named(log: MemoryLog) -> None:
    seal = snapshot_of(log, "ep-done", "sealed")
    append(log, msgspec.structs.replace(seal, outcome="success"))
    assert only_difference(log).startswith("ep-done/1: sealed as success revision 1, the fold gives failure revision 1")


def test_an_unreadable_event_is_left_to_the_dead_letters(log: MemoryLog) -> None:
    event = outgoing(CODEC, Facts("ep-new").whole(success=True)[0])
    send(log, OutgoingRecord(event.topic, event.key, b"\0broken", event.headers))
    send(log, OutgoingRecord(event.topic, b"another key", event.value, event.headers))
    judge(log)
    assert verify_folds(log, CODEC).differences == []
