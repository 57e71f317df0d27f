"""Corners of the loop, of reading and of dead letters that whole workers seldom meet."""

from typing import Any

import pytest

from stepwell.adapters.logs.memory import MemoryLog
from stepwell.adapters.workers.markers import MemoryMarkers
from stepwell.adapters.workers.vitals import WorkerVitals
from stepwell.engine import reading
from stepwell.engine.findings import Finding
from stepwell.engine.letters import letter_of
from stepwell.engine.loop import COMMIT_INTERVAL_US, ExactlyOnceLoop, Processor
from stepwell.engine.ports import OutgoingRecord, RecordBatch, TopicPartition
from stepwell.engine.reading import read_range
from stepwell.engine.restore import GROUP, TOPICS, EngineRestore
from stepwell.engine.timers import Timeouts
from stepwell.events.topics import EPISODE_EVENTS
from stepwell.exceptions import LogError, LogUnavailableError, PositionLostError
from tests.unit.engine.episodes import Facts
from tests.unit.engine.running import CODEC, FakeClock, Flaky, Notes, drain, send

SOURCE = TopicPartition(EPISODE_EVENTS, 0)


def engine(log: Any, notes: Notes) -> ExactlyOnceLoop:
    made = EngineRestore(log, codec=CODEC, markers=MemoryMarkers(), timeouts=Timeouts(), worker_id="e", report=notes)
    return ExactlyOnceLoop(
        log, group=GROUP, worker_id="e", topics=TOPICS, restore=made, clock=FakeClock(), report=notes,
        poll_timeout_s=0.005,
    )  # fmt: skip


def test_a_stop_while_the_log_refuses_is_said_and_loses_nothing() -> None:
    """Only the last snapshots are missing; the next worker folds again."""
    log, notes = MemoryLog(), Notes()
    flaky = Flaky(log)
    loop = engine(flaky, notes)
    drain(loop)
    send(log, *Facts("ep-1").begun()[:5])
    loop.step()
    send(log, *Facts("ep-1").begun()[5:])
    loop.step()
    flaky.failures["begin"] = [LogError("no")]
    loop.run(lambda: True)
    assert "stopped without a last snapshot" in notes.said
    again = engine(log, notes)
    drain(again)
    (state,) = [state for item in again.processors.values() for state in item.episodes.values()]  # type: ignore[attr-defined]
    assert state.attempts[1].next_step == 1
    again.close()
    log.close()


def test_a_loop_that_never_began_ends_quietly() -> None:
    """Told to stop before its first step."""
    log = MemoryLog()
    engine(log, Notes()).run(lambda: True)
    log.close()


def test_markers_behind_the_last_record_are_passed_and_committed() -> None:
    """On Kafka the position moves over transaction markers without a record; so must the group's."""
    log, notes = MemoryLog(), Notes()
    send(log, *Facts("ep-1").whole())
    loop = engine(log, notes)
    drain(loop)
    consumer: Any = loop._consumer
    source = next(source for source, item in loop.processors.items() if item.position)
    end = loop.processors[source].position
    real = consumer.position
    consumer.position = lambda of: real(of) + (2 if of == source else 0)
    drain(loop, 4)
    assert loop.processors[source].position == end + 2
    assert consumer.committed([source]) == {source: end + 2}
    loop.close()
    log.close()


class Stopped:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.us = 1_000_000_000_000_000

    def now_us(self) -> int:
        return self.us

    def wait(self, seconds: float) -> None:
        self.us += round(seconds * 1e6)


def stopped_engine(log: Any, clock: Stopped) -> ExactlyOnceLoop:
    """Settled, with no time passing while it works."""
    made = EngineRestore(log, codec=CODEC, markers=MemoryMarkers(), timeouts=Timeouts(), worker_id="e", report=Notes())
    loop = ExactlyOnceLoop(
        log, group=GROUP, worker_id="e", topics=TOPICS, restore=made, clock=clock, report=Notes(), poll_timeout_s=0.005,
    )  # fmt: skip
    while len(loop.processors) < 4:
        loop.step()
    return loop


def committed(loop: ExactlyOnceLoop) -> int:
    consumer: Any = loop._consumer
    return sum(position or 0 for position in consumer.committed(list(loop.processors)).values())


def test_what_brings_nothing_to_write_is_committed_together() -> None:
    """A step at a time: each is processed at once; one transaction a second carries the positions."""
    log, clock = MemoryLog(), Stopped()
    loop = stopped_engine(log, clock)
    facts = Facts("ep-1")
    send(log, *facts.begun())
    loop.step()
    loop.step()  # finds nothing more
    assert committed(loop) == loop.records == len(facts.begun())
    before = loop.transactions
    for step in range(1, 9):
        send(log, *facts.step(step))
        loop.step()
    assert loop.records == len(facts.begun()) + 16, "processed at once"
    assert loop.transactions == before, "and committed later"
    assert committed(loop) == len(facts.begun())
    clock.us += COMMIT_INTERVAL_US
    action, done = facts.step(9)
    send(log, action)
    loop.step()
    assert (loop.transactions, committed(loop)) == (before + 1, loop.records)
    send(log, done)
    loop.step()
    assert loop.transactions == before + 1
    loop.step()  # nothing follows: no reason to wait
    assert (loop.transactions, committed(loop)) == (before + 2, loop.records)
    loop.close()
    log.close()


def test_what_was_not_committed_is_processed_again_and_stands_at_the_end() -> None:
    """By the next owner after a crash; and a graceful stop commits it."""
    log, clock = MemoryLog(), Stopped()
    loop = stopped_engine(log, clock)
    facts = Facts("ep-1")
    send(log, *facts.begun())
    loop.step()
    loop.step()
    send(log, *facts.step(1))
    loop.step()
    assert committed(loop) < loop.records
    successor = stopped_engine(log, clock)  # as after kill -9: the first one is fenced, and says nothing more
    drain(successor)
    (state,) = [state for item in successor.processors.values() for state in item.episodes.values()]  # type: ignore[attr-defined]
    assert state.attempts[1].next_step == 2
    send(log, *facts.step(2))
    successor.step()
    stops = iter([True])
    successor.run(lambda: next(stops))
    last = stopped_engine(log, clock)
    assert committed(last) == len(facts.begun()) + 4
    last.close()
    loop.close()
    log.close()


def test_a_loop_tells_what_it_does_and_what_it_waits_for() -> None:
    """Also where it was when it waits; and what it has done is counted once it is committed."""
    log, notes = MemoryLog(), Notes()
    flaky = Flaky(log)
    vitals = WorkerVitals("e", "engine", GROUP, CODEC)
    made = EngineRestore(
        flaky, codec=CODEC, markers=MemoryMarkers(), timeouts=Timeouts(), worker_id="e", report=notes, vitals=vitals
    )  # type: ignore[arg-type]
    loop = ExactlyOnceLoop(
        flaky, group=GROUP, worker_id="e", topics=TOPICS, restore=made, clock=FakeClock(), report=notes,
        poll_timeout_s=0.005, vitals=vitals,
    )  # type: ignore[arg-type]  # fmt: skip
    assert vitals.condition().state == "starting"
    flaky.failures["begin"] = [LogUnavailableError("nobody answers")]
    send(log, *Facts("ep-1").begun())
    while not vitals.condition().waits:
        loop.step()
    condition = vitals.condition()
    assert (condition.state, condition.waits_for) == ("waiting", "log: nobody answers")
    assert condition.doing == "committing to the log"
    assert ("stepwell_records_total", EPISODE_EVENTS) not in condition.counters, "nothing is committed"
    drain(loop)
    condition = vitals.condition()
    assert (condition.state, condition.waits, condition.last_error) == ("running", {}, "nobody answers")
    assert condition.counters["stepwell_records_total", EPISODE_EVENTS] == len(Facts("ep-1").begun())
    assert sum(each.position for each in condition.partitions) == len(Facts("ep-1").begun())
    assert len(condition.partitions) == 4
    told = {each.source: each.complete_until for each in condition.partitions}
    for source, marks in log.admin().watermarks(EPISODE_EVENTS).items():
        newest = [batch.timestamps[-1] for batch in read_range(log, source, marks.low, marks.high)]
        assert told[source] == (newest[-1] if newest else None), "the last record says how far it is, without a look"
    loop.close()
    log.close()


class Bare(Processor):
    def process(self, batch: RecordBatch, now_us: int) -> list[OutgoingRecord]:
        return []


def test_a_bare_processor_does_nothing_by_itself() -> None:
    """Only `process` has to be written."""
    bare = Bare()
    assert bare.tick(0) == bare.finish(0) == bare.committing() == []


class SilentLog:
    """A log whose consumer never gives anything, and says so at once."""

    def consumer(self) -> "SilentLog":
        return self

    def assign(self, positions: dict[TopicPartition, int]) -> None:
        self.at = dict(positions)

    def position(self, source: TopicPartition) -> int:
        return self.at[source]

    def poll(self, max_records: int, timeout_s: float) -> list[RecordBatch]:
        return []

    def close(self) -> None:
        pass


def test_a_stretch_that_never_comes_counts_as_a_log_that_is_away() -> None:
    """Instead of waiting for ever; an empty stretch is read at once."""
    with pytest.raises(LogUnavailableError, match="nothing came between 3 and 9"):
        list(read_range(SilentLog(), SOURCE, 3, 9))  # type: ignore[arg-type]
    assert list(read_range(SilentLog(), SOURCE, 9, 9)) == []  # type: ignore[arg-type]
    assert reading.SILENT_POLLS_MAX > 1


def batch(*offsets: int) -> RecordBatch:
    n = len(offsets)
    return RecordBatch(
        SOURCE, offsets[0], offsets[-1] + 1, list(offsets), [1] * n, [b"k"] * n, [b"%d" % o for o in offsets], [()] * n
    )


@pytest.mark.parametrize(
    ("offset", "older", "found"),
    [
        (5, None, 5),
        (3, None, 3),
        (1, batch(1), 1),
        (1, batch(2), 5),
        (1, None, 5),
        (-1, None, 5),
    ],
    ids=["itself", "same batch", "older", "compacted", "gone", "none"],
)
def test_a_letter_holds_the_record_that_it_is_about(offset: int, older: RecordBatch | None, found: int) -> None:
    """Where that is gone, the record at which it was noticed stands for it."""
    finding = Finding("violation", "illegal", "words", "ep", 1, "", "sim", 0, 0, 0, offset, 1)
    letter = letter_of(finding, batch(3, 5), 1, lambda _offset: older, "e")
    assert (letter.source_offset, letter.source_value) == (found, b"%d" % found)
    assert letter.event_type is None


def test_an_older_record_is_fetched_from_the_log_while_it_is_there() -> None:
    """Below the log's start there is nothing to fetch."""
    log = MemoryLog()
    send(log, *Facts("ep-1").begun())
    source = next(source for source, marks in log.admin().watermarks(EPISODE_EVENTS).items() if marks.high)
    made = EngineRestore(log, codec=CODEC, markers=MemoryMarkers(), timeouts=Timeouts(), worker_id="e", report=Notes())
    fetched = made._fetch(source, 2)
    assert fetched is not None
    assert fetched.offsets == [2]
    with pytest.raises(PositionLostError):
        list(read_range(log, source, 100, 101))
    assert made._fetch(source, 100) is None
    log.close()
