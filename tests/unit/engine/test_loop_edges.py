"""Corners of the loop, of reading and of dead letters that whole workers seldom meet."""

from typing import Any

import pytest

from stepwell.adapters.logs.memory import MemoryLog
from stepwell.adapters.workers.markers import MemoryMarkers
from stepwell.engine import reading
from stepwell.engine.findings import Finding
from stepwell.engine.letters import letter_of
from stepwell.engine.loop import ExactlyOnceLoop, Processor
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


class Bare(Processor):
    def process(self, batch: RecordBatch, now_us: int) -> list[OutgoingRecord]:
        return []


def test_a_bare_processor_does_nothing_by_itself() -> None:
    """Only `process` has to be written."""
    bare = Bare()
    assert bare.tick(0) == bare.finish(0) == []


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
