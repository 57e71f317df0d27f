"""The engine's worker on the log in memory: what it writes, how it comes back, what it refuses."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from stepwell.adapters.logs.memory import MemoryLog
from stepwell.adapters.workers.markers import MemoryMarkers
from stepwell.engine import cover
from stepwell.engine import restore as restore_module
from stepwell.engine.cover import UNCOVERED_MAX_RECORDS
from stepwell.engine.loop import BatchSizer, ExactlyOnceLoop
from stepwell.engine.partition import EpisodePartition
from stepwell.engine.ports import OutgoingRecord, TopicPartition
from stepwell.engine.publish import outgoing
from stepwell.engine.restore import GROUP, TOPICS, EngineRestore
from stepwell.engine.snapshot import canonical
from stepwell.engine.timers import Timeouts
from stepwell.events.model import (
    DeadLetter,
    EpisodeSealed,
    EpisodeStalled,
    EpisodeTimedOut,
    Event,
    PositionSaved,
    SnapshotTaken,
    VerdictIssued,
)
from stepwell.events.topics import DEAD_LETTERS, EPISODE_EVENTS, EPISODE_SNAPSHOTS, POLICY_EVENTS
from stepwell.exceptions import FencedError, LogError, LogUnavailableError, PositionLostError, TransactionAbortedError
from tests.unit.engine.episodes import Facts
from tests.unit.engine.running import CODEC, FakeClock, Flaky, Notes, drain, read, send

_loops: list[ExactlyOnceLoop] = []


@pytest.fixture
def log() -> Iterator[MemoryLog]:
    memory = MemoryLog()
    yield memory
    while _loops:
        _loops.pop().close()
    memory.close()


def engine(
    log: Any,
    worker_id: str = "engine-0",
    *,
    notes: Notes | None = None,
    clock: FakeClock | None = None,
    sizer: BatchSizer | None = None,
) -> ExactlyOnceLoop:
    notes = notes or Notes()
    made = EngineRestore(
        log, codec=CODEC, markers=MemoryMarkers(), timeouts=Timeouts(), worker_id=worker_id, report=notes
    )
    loop = ExactlyOnceLoop(
        log, group=GROUP, worker_id=worker_id, topics=TOPICS, restore=made, clock=clock or FakeClock(), report=notes,
        sizer=sizer, poll_timeout_s=0.005,
    )  # fmt: skip
    _loops.append(loop)
    return loop


def verdicts(log: MemoryLog) -> list[VerdictIssued]:
    return [record for record in read(log, POLICY_EVENTS) if isinstance(record, VerdictIssued)]


def letters(log: MemoryLog) -> list[DeadLetter]:
    return [record for record in read(log, DEAD_LETTERS) if isinstance(record, DeadLetter)]


def snapshots(log: MemoryLog) -> list[SnapshotTaken]:
    return [record for record in read(log, EPISODE_SNAPSHOTS) if isinstance(record, SnapshotTaken)]


def partitions(loop: ExactlyOnceLoop) -> list[EpisodePartition]:
    return [item for item in loop.processors.values() if isinstance(item, EpisodePartition)]


def states(loop: ExactlyOnceLoop) -> dict[str, bytes]:
    """Canonical state of every episode in memory."""
    return {
        state.episode_id: canonical(state) for partition in partitions(loop) for state in partition.episodes.values()
    }


def of_type(log: MemoryLog, kind: type[Event]) -> list[Any]:
    return [event for event in read(log, EPISODE_EVENTS) if isinstance(event, kind)]


def test_a_whole_episode_gives_one_verdict_a_seal_and_a_marker(log: MemoryLog) -> None:
    """Nothing of a sealed episode stays in memory, and the rewind offset is the end."""
    send(log, *Facts("ep-1").whole(success=True))
    loop = engine(log)
    drain(loop)
    (verdict,) = verdicts(log)
    assert (verdict.outcome, verdict.n_steps, verdict.certificate.status) == ("success", 3, "complete")
    (seal,) = of_type(log, EpisodeSealed)
    assert seal.reason == "complete"
    assert [snapshot.kind for snapshot in snapshots(log)] == ["sealed"]
    assert states(loop) == {}
    positions = [record for record in read(log, EPISODE_SNAPSHOTS) if isinstance(record, PositionSaved)]
    assert positions[-1].rewind_offset == positions[-1].committed_offset == 12
    assert letters(log) == []


def test_snapshots_follow_phases_and_seconds(log: MemoryLog) -> None:
    """One at each change of phase; else one a second."""
    facts, clock = Facts("ep-1"), FakeClock()
    loop = engine(log, clock=clock)
    drain(loop)
    for events in ([facts.requested()], [facts.claimed(), facts.ready()], [facts.started()], [facts.paused()]):
        send(log, *events)
        loop.step()
    phases = [(snapshot.phase, snapshot.paused) for snapshot in snapshots(log)]
    assert phases == [("INIT", False), ("SIM_READY", False), ("AGENT_RUNNING", False), ("AGENT_RUNNING", True)]
    send(log, *facts.step(0))
    clock.move(2)
    drain(loop)
    assert len(snapshots(log)) == 5
    assert [partition.covers.uncovered() for partition in partitions(loop)] == [[], [], [], []]


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_restart_at_any_record_gives_the_same_state_and_says_nothing_twice(log: MemoryLog, cut: int) -> None:
    """A worker that was cut off (no graceful stop) after any record, and one that never was."""
    events = [*Facts("ep-1").whole(announced=False), *Facts("ep-2").begun(2), *Facts("ep-3").whole()]
    send(log, *events[:cut])
    first = engine(log, sizer=BatchSizer(smallest=3, largest=3))
    drain(first)
    first.close()
    send(log, *events[cut:])
    second = engine(log)
    drain(second)
    with_cut, said = states(second), [(v.episode_id, v.revision) for v in verdicts(log)]
    assert sorted(said) == [("ep-1", 1), ("ep-3", 1)]
    other = MemoryLog()
    send(other, *events)
    plain = engine(other)
    drain(plain)
    assert states(plain) == with_cut
    assert set(with_cut) == {"ep-1", "ep-2"}
    assert letters(log) == []
    plain.close()
    other.close()


def test_a_graceful_stop_leaves_nothing_to_fold_again(log: MemoryLog) -> None:
    """`run` writes the last snapshots; the next worker begins at the end."""
    facts = Facts("ep-1")
    send(log, *facts.begun()[:5], *facts.step(1))
    loop = engine(log)
    turns = iter([False] * 8 + [True])
    loop.run(lambda: next(turns))
    saved = [record for record in read(log, EPISODE_SNAPSHOTS) if isinstance(record, PositionSaved)][-1]
    assert saved.rewind_offset == saved.committed_offset == 7
    again = engine(log)
    drain(again)
    assert set(states(again)) == {"ep-1"}


def test_snapshots_of_another_fold_are_folded_again_and_the_verdict_gets_a_revision(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new version of the fold: the state comes from the first record, and what it says now is published."""
    send(log, *Facts("ep-1").whole(announced=False), *Facts("ep-2").begun())
    first = engine(log)
    drain(first)
    before = states(first)
    first.close()

    def refuse(record: SnapshotTaken) -> Any:
        if record.kind == "snapshot":
            raise restore_module.SnapshotRefusedError("another fold")
        return real(record)

    real = restore_module.restore
    monkeypatch.setattr(restore_module, "restore", refuse)
    monkeypatch.setattr(restore_module, "FOLD_HASH", "new")
    notes = Notes()
    second = engine(log, notes=notes)
    drain(second, 6)
    assert states(second) == before
    assert [verdict.revision for verdict in verdicts(log)] == [1, 2]
    assert len({verdict.event_id for verdict in verdicts(log)}) == 2
    assert "snapshots of another fold version were folded again" in notes.said


def test_silence_stalls_then_times_out_then_seals(log: MemoryLog) -> None:
    """Each fact once, with the token of the moment; the verdict names who fell silent."""
    send(log, *Facts("ep-1").begun(), Facts("queued").requested())
    clock = FakeClock()
    loop = engine(log, clock=clock)
    drain(loop)
    for seconds in (31, 20, 300, 70):
        clock.move(seconds)
        drain(loop, 6)
    (stalled,) = of_type(log, EpisodeStalled)
    (timed_out,) = of_type(log, EpisodeTimedOut)
    (sealed,) = of_type(log, EpisodeSealed)
    assert (stalled.owed, stalled.owed_seq, stalled.flips) == ("agent", 2, 0)
    assert stalled.idle_s >= 30
    assert (timed_out.owed, timed_out.owed_seq) == ("agent", 2)
    assert sealed.reason == "grace"
    (verdict,) = verdicts(log)
    assert (verdict.episode_id, verdict.outcome, verdict.failure_type) == ("ep-1", "error", "silent_timeout")
    assert set(states(loop)) == {"queued"}


def test_a_report_of_silence_does_not_end_the_silence(log: MemoryLog) -> None:
    """The snapshot after `stalled` covers it, and still says when the attempt last took in a fact of a producer."""
    send(log, *Facts("ep-1").begun())
    loop = engine(log, clock=(clock := FakeClock()))
    drain(loop)
    before = snapshots(log)[-1]
    clock.move(31)
    drain(loop, 6)
    loop._finish()
    (stalled,) = of_type(log, EpisodeStalled)
    after = snapshots(log)[-1]
    assert after.last_offset > before.last_offset, "it covers the report"
    assert after.last_event_at == before.last_event_at
    assert stalled.idle_s >= 30


def test_a_fact_that_lands_meanwhile_wins_over_a_timeout(log: MemoryLog) -> None:
    """The token no longer fits, so the attempt lives on."""
    facts = Facts("ep-1")
    send(log, *facts.begun())
    stale = engine(log, clock=(clock := FakeClock()))
    drain(stale)
    owed = EpisodeTimedOut(
        event_id=b"\1" * 16, run_id="run-1", episode_id="ep-1", attempt=1, producer_id="engine-9", producer_seq=0,
        occurred_at=clock.now_us(), trace_id="1" * 32, owed="agent", owed_seq=1, flips=0, idle_s=301.0,
    )  # fmt: skip
    send(log, owed)
    drain(stale)
    assert verdicts(log) == []
    assert set(states(stale)) == {"ep-1"}


def test_a_long_pause_is_no_silence(log: MemoryLog) -> None:
    """A person paused it: neither stalled nor timed out after minutes, but not kept for ever."""
    facts = Facts("ep-1")
    send(log, *facts.begun(), facts.paused())
    clock = FakeClock()
    loop = engine(log, clock=clock)
    drain(loop)
    clock.move(3600)
    drain(loop, 4)
    assert of_type(log, EpisodeTimedOut) == of_type(log, EpisodeStalled) == []
    clock.move(24 * 3600)
    drain(loop, 4)
    assert [event.owed for event in of_type(log, EpisodeTimedOut)] == ["host"]


def test_a_retry_runs_after_its_first_attempt_was_sealed_and_left_memory(log: MemoryLog) -> None:
    """Attempt 2 finds attempt 1 among the markers; asking twice does nothing."""
    send(log, *Facts("ep-1").whole())
    loop = engine(log)
    drain(loop)
    assert states(loop) == {}
    again = Facts("ep-1", attempt=2)
    send(log, *again.whole(success=True), Facts("ep-1").requested())
    drain(loop)
    assert [(v.attempt, v.outcome) for v in verdicts(log)] == [(1, "failure"), (2, "success")]
    assert [s.attempt for s in snapshots(log) if s.kind == "sealed"] == [1, 2]
    assert letters(log) == []


def test_late_facts_amend_the_verdict_until_the_seal_and_are_dead_letters_after_it(log: MemoryLog) -> None:
    """A batch publishes only the last revision; after the seal the record is kept with its raw bytes."""
    facts = Facts("ep-1")
    events = facts.whole(announced=False)
    step = events.pop(7)
    send(log, *events)
    clock = FakeClock()
    loop = engine(log, clock=clock)
    drain(loop)
    assert len(verdicts(log)) <= 1
    clock.move(61)
    drain(loop, 6)
    assert of_type(log, EpisodeSealed)
    said = len(verdicts(log))
    assert said >= 1
    send(log, step)
    drain(loop)
    (letter,) = letters(log)
    assert (letter.kind, letter.reason, letter.episode_id) == ("after_seal", "after_seal", "ep-1")
    assert letter.source_value == outgoing(CODEC, step).value
    assert letter.event_type == step.TYPE
    assert len(verdicts(log)) == said


def test_violations_are_dead_letters_with_the_record_they_are_about(log: MemoryLog) -> None:
    """Also when the record had to wait and came in an earlier batch."""
    facts = Facts("ep-1")
    events = facts.whole(steps=2)
    foreign = msgspec.structs.replace(events[4], producer_id="agent-2")
    second_end = msgspec.structs.replace(events[-1], producer_seq=3, event_id=b"\2" * 16)
    held_back = events[2]  # sim::ready comes last, so that all others wait for it
    send(log, *events[:2], *events[3:4], foreign, second_end)
    loop = engine(log)
    drain(loop)
    send(log, held_back, *events[4:])
    drain(loop, 5)
    found = {(letter.reason, letter.source_value) for letter in letters(log)}
    assert found == {
        ("second_end", outgoing(CODEC, second_end).value),
        ("foreign", outgoing(CODEC, foreign).value),
    }
    assert all(letter.kind == "violation" for letter in letters(log))
    assert [verdict.episode_id for verdict in verdicts(log)] == ["ep-1"]


def test_dead_letters_and_restored_partitions_are_said_in_one_line_each(log: MemoryLog) -> None:
    send(log, *(OutgoingRecord(EPISODE_EVENTS, b"ep-1", bytes([n]), (), 0) for n in range(50)))
    loop = engine(log, notes=(notes := Notes()))
    drain(loop)
    assert len(letters(log)) == 50
    assert len(partitions(loop)) > 1
    assert notes.said == ["partitions restored", "records became dead letters"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"value": None}, "no-value"),
        ({"value": b""}, "truncated"),
        ({"value": b"\1rest"}, "magic"),
        ({"headers": ()}, "no-fingerprint"),
        ({"key": None}, "no-key"),
        ({"key": b"\xff\xfe"}, "bad-key"),
    ],
)
def test_an_unreadable_record_is_kept_whole_and_the_next_one_is_processed(
    log: MemoryLog, change: dict[str, Any], reason: str
) -> None:
    """Whatever is wrong with it: raw bytes, position and reason in the letter, no trace in the state."""
    events = Facts("ep-1").whole()
    bad = outgoing(CODEC, events[0])._replace(partition=0, **change)
    send(log, bad, *events)
    loop = engine(log)
    drain(loop)
    (letter,) = letters(log)
    assert (letter.kind, letter.reason, letter.source_offset, letter.source_partition) == ("unreadable", reason, 0, 0)
    assert (letter.source_value, letter.source_key) == (bad.value, bad.key)
    assert [(field.name, field.value) for field in letter.source_headers] == list(bad.headers)
    assert len(verdicts(log)) == 1


def test_a_nonsense_time_is_refused_and_a_wrong_key_is_a_violation(log: MemoryLog) -> None:
    """The year 2999 against the broker's time; a fact under another episode's key."""
    facts = Facts("ep-1")
    first = facts.requested()
    future = msgspec.structs.replace(first, occurred_at=32_500_000_000_000_000)
    send(log, future, outgoing(CODEC, first)._replace(key=b"ep-2"))
    loop = engine(log)
    drain(loop)
    assert sorted((letter.kind, letter.reason) for letter in letters(log)) == [
        ("unreadable", "timestamp"),
        ("violation", "wrong_episode"),
    ]
    assert states(loop) == {}


def test_a_letter_too_large_for_the_topic_leaves_the_bytes_at_their_place(log: MemoryLog) -> None:
    """The broker took a record that no dead letter can hold: it is named, and the worker goes on."""
    send(log, OutgoingRecord(EPISODE_EVENTS, b"ep-1", b"\1" * 1_020_000), *Facts("ep-2").whole())
    loop = engine(log)
    drain(loop)
    (letter,) = letters(log)
    assert letter.source_value is None
    assert "1020000 bytes were left at their place" in letter.detail
    assert len(verdicts(log)) == 1


def test_a_verdict_too_large_to_write_is_seen_and_stops_nobody(log: MemoryLog) -> None:
    """Texts at the limit in several facts add up; the other episodes get their verdicts."""
    facts = Facts("big")
    events = facts.whole()
    events[0] = msgspec.structs.replace(events[0], cell="c" * 700_000)
    events[2] = msgspec.structs.replace(events[2], simulator="s" * 700_000)
    send(log, *events, *Facts("ep-2").whole())
    loop = engine(log)
    drain(loop, 5)
    assert [verdict.episode_id for verdict in verdicts(log)] == ["ep-2"]
    (letter,) = letters(log)
    assert (letter.kind, letter.reason, letter.episode_id) == ("refused", "too-large", "big")
    assert Counter(snapshot.kind for snapshot in snapshots(log)) == {"sealed": 2}


def test_an_attempt_too_large_for_a_snapshot_is_folded_again_from_its_first_record(log: MemoryLog) -> None:
    """It stays uncovered, so a restart knows it all the same."""
    facts = Facts("big")
    events = facts.begun()
    events[0] = msgspec.structs.replace(events[0], cell="c" * 700_000)
    events[2] = msgspec.structs.replace(events[2], simulator="s" * 700_000)
    send(log, *events)
    first = engine(log)
    drain(first, 5)
    before = states(first)
    assert snapshots(log) == []
    first.close()
    second = engine(log)
    drain(second)
    assert states(second) == before


def test_the_rewind_offset_never_lags_by_more_than_so_many_records(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While behind there are no snapshots by the second; the limit by records still holds."""
    assert UNCOVERED_MAX_RECORDS == 10_000
    monkeypatch.setattr(cover, "UNCOVERED_MAX_RECORDS", 500)
    send(log, *Facts("old").begun(0))
    send(log, *[outgoing(CODEC, Facts("filler").requested())._replace(key=b"old")] * 700)
    loop = engine(log, sizer=BatchSizer(smallest=50, largest=50))
    drain(loop, 4)
    saved = [record for record in read(log, EPISODE_SNAPSHOTS) if isinstance(record, PositionSaved)]
    assert max(record.committed_offset - record.rewind_offset for record in saved) in range(300, 550)


def test_positions_and_snapshots_that_contradict_each_other_stop_the_worker(log: MemoryLog) -> None:
    """Somebody set the group back by hand: it says what to do."""
    send(log, *Facts("ep-1").whole())
    first = engine(log)
    drain(first)
    first.close()
    source = next(p for p, marks in log.admin().watermarks(EPISODE_EVENTS).items() if marks.high)
    consumer = log.consumer(GROUP)
    consumer.assign({source: 0})
    made = EngineRestore(log, codec=CODEC, markers=MemoryMarkers(), timeouts=Timeouts(), worker_id="e", report=Notes())

    class Says:
        """A consumer whose group stands elsewhere than it does."""

        def __init__(self, at: int | None) -> None:
            self.at = at

        def committed(self, sources: list[TopicPartition]) -> dict[TopicPartition, int | None]:
            return dict.fromkeys(sources, self.at)

        def __getattr__(self, name: str) -> Any:
            return getattr(consumer, name)

    with pytest.raises(LogError, match=r"stands at 3, but its snapshots were written at 12.*by hand"):
        made(source, 3, Says(3))  # type: ignore[arg-type]
    assert made(source, None, Says(None)).position == 12  # type: ignore[arg-type]
    empty = next(p for p, marks in log.admin().watermarks(EPISODE_EVENTS).items() if not marks.high)
    with pytest.raises(LogError, match="holds no saved position"):
        made(empty, 5, Says(5))  # type: ignore[arg-type]
    consumer.close()


class Ends:
    """A consumer that sees another range of the events than there is."""

    def __init__(self, consumer: Any, low: int = 0, high: int = 10**9) -> None:
        self._consumer, self._low, self._high = consumer, low, high

    def watermarks(self, source: TopicPartition) -> Any:
        marks = self._consumer.watermarks(source)
        if source.topic != EPISODE_EVENTS:
            return marks
        return marks._replace(low=max(marks.low, self._low), high=min(marks.high, self._high))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)


def test_a_needed_record_below_the_logs_start_stops_the_worker_and_names_the_episodes(log: MemoryLog) -> None:
    """Never a silent reset; the same for a log that was cut at its end."""
    facts = Facts("ep-open")
    send(log, *facts.begun())
    first = engine(log)
    drain(first)
    send(log, *facts.step(1))
    first.step()
    first.close()
    source = next(p for p, marks in log.admin().watermarks(EPISODE_EVENTS).items() if marks.high)
    consumer = log.consumer(GROUP)
    made = EngineRestore(log, codec=CODEC, markers=MemoryMarkers(), timeouts=Timeouts(), worker_id="e", report=Notes())
    committed = consumer.committed([source])[source]
    with pytest.raises(PositionLostError, match=r"the log starts at 9\. Attempts that were open: ep-open/1"):
        made(source, committed, Ends(consumer, low=9))  # type: ignore[arg-type]
    with pytest.raises(PositionLostError, match="the log ends at 2: it was cut"):
        made(source, committed, Ends(consumer, high=2))  # type: ignore[arg-type]
    consumer.close()


def test_a_damaged_snapshot_is_said_and_skipped(log: MemoryLog) -> None:
    """Its attempt is folded again from what the rewind offset still covers."""
    send(log, *Facts("ep-1").whole())
    notes = Notes()
    send(
        log,
        OutgoingRecord(EPISODE_SNAPSHOTS, b"x/1", b"torn", (), 0),
        OutgoingRecord(EPISODE_SNAPSHOTS, b"y/1", None, (), 0),
    )
    loop = engine(log, notes=notes)
    drain(loop)
    assert notes.said.count("unreadable snapshot skipped") == 1
    assert len(verdicts(log)) == 1


@pytest.mark.parametrize(
    "failures",
    [
        {"commit": [TransactionAbortedError()]},
        {"commit after": [LogUnavailableError()]},
        {"send_offsets": [FencedError()]},
        {"poll": [LogUnavailableError()]},
    ],
    ids=lambda failures: next(iter(failures)),
)
def test_failures_in_between_lose_and_double_nothing(log: MemoryLog, failures: dict[str, list[Exception]]) -> None:
    """State is dropped and restored; each verdict once, no dead letters."""
    for i in range(6):
        send(log, *Facts(f"ep-{i}").whole(announced=i % 2 == 0))
    flaky = Flaky(log)
    loop = engine(flaky, sizer=BatchSizer(smallest=7, largest=7))
    for _ in range(3):
        loop.step()
    flaky.failures.update(failures)
    drain(loop, 6)
    assert sorted(verdict.episode_id for verdict in verdicts(log)) == [f"ep-{i}" for i in range(6)]
    assert letters(log) == []
    assert set(states(loop)) == {"ep-1", "ep-3", "ep-5"}


def test_two_engines_on_one_slot_the_older_ones_writes_are_refused(log: MemoryLog) -> None:
    """And what the log holds is what one engine alone would have written."""
    send(log, *Facts("ep-0").whole())
    first = engine(log)
    drain(first)
    second = engine(log)
    drain(second)
    send(log, *Facts("ep-1").whole())
    with pytest.raises(FencedError):
        drain(first, 20)
    drain(second)
    assert [verdict.episode_id for verdict in verdicts(log)] == ["ep-0", "ep-1"]


def test_engines_share_partitions_and_take_over_from_each_other() -> None:
    """A second slot joins and leaves again in the middle of episodes: the verdicts stay the same, each once."""
    log = MemoryLog(session_timeout_s=1.0)
    facts = [Facts(f"ep-{i}") for i in range(12)]
    events = [f.whole(steps=4) for f in facts]
    first = engine(log, "engine-0")
    second = None
    for row in range(len(events[0])):
        send(log, *[episode[row] for episode in events])
        if row == 4:
            second = engine(log, "engine-1")
        first.step()
        if second is not None:
            second.step()
        if row == 9 and second is not None:
            second.close()
            second = None
    drain(first, 400)
    assert Counter(verdict.episode_id for verdict in verdicts(log)) == {f"ep-{i}": 1 for i in range(12)}
    assert letters(log) == []
    assert states(first) == {}
    first.close()
    log.close()
