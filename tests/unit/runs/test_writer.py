"""The writer waits out an absent log, keeps the order, holds writers back, and lets nobody hang."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from stepwell.adapters.logs.memory import MemoryLog
from stepwell.adapters.runs.recorder import AttemptRecorder
from stepwell.adapters.runs.writer import LogWriter
from stepwell.engine.ports import MessageLog
from stepwell.events.model import EpisodePaused, Event
from stepwell.exceptions import LogError, LogUnavailableError
from tests.unit.runs.places import CODEC, ME, Running, away, impatient_log, planned, spoil, told, wait_for

EPISODE = planned()[0]


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.adapters.logs.local_store.BUSY_TIMEOUT_S", 0.1)
    monkeypatch.setattr("stepwell.adapters.runs.writer.RETRY_PAUSE_S", 0.02)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[MessageLog]:
    log = impatient_log(tmp_path)
    yield log
    log.close()


def facts(writer: LogWriter, count: int, first: int = 0) -> None:
    """``count`` facts of one host, in order."""
    recorder = AttemptRecorder(writer.put, EPISODE, 1, ME, first)
    for number in range(first, first + count):
        recorder._write(EpisodePaused, reason=str(number))


def seqs(log: MessageLog) -> list[int]:
    return [event.producer_seq for event in told(log, EPISODE)]


def test_what_was_drained_stands_in_the_log_in_order(log: MessageLog) -> None:
    writer = LogWriter(log, CODEC)
    facts(writer, 2500)
    writer.drain(30)
    assert seqs(log) == list(range(2500))
    writer.close()


def test_a_log_that_is_away_and_back_loses_nothing_and_is_told_of_once(log: MessageLog, tmp_path: Path) -> None:
    with capture_logs() as said:
        writer = LogWriter(log, CODEC)
        facts(writer, 10)
        writer.drain(30)
        with away(tmp_path):
            facts(writer, 10, first=10)
            wait_for(lambda: any(line["event"] == "log_away" for line in said), "the writer notices")
            facts(writer, 10, first=20)
            with pytest.raises(LogUnavailableError, match="has not taken the last 20 facts"):
                writer.drain(0.5)
        writer.drain(30)
        writer.close()
    assert list(dict.fromkeys(seqs(log))) == list(range(30))
    assert [line["event"] for line in said if line["event"] in ("log_away", "log_back")] == ["log_away", "log_back"]


def test_a_flush_that_only_takes_long_doubles_nothing(
    log: MessageLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepwell.adapters.runs.writer.FLUSH_TIMEOUT_S", 0.05)
    monkeypatch.setattr("stepwell.adapters.logs.local_store.BUSY_TIMEOUT_S", 30.0)
    patient = impatient_log(tmp_path)
    writer = LogWriter(patient, CODEC)
    with capture_logs() as said, away(tmp_path):
        facts(writer, 5)
        wait_for(lambda: any(line["event"] == "log_away" for line in said), "the first flush has timed out")
    writer.drain(30)
    writer.close()
    assert seqs(log) == list(range(5))
    patient.close()


def test_a_log_that_refuses_for_good_is_told_to_everybody(log: MessageLog, tmp_path: Path) -> None:
    writer = LogWriter(log, CODEC, capacity=5)
    facts(writer, 1)
    writer.drain(30)
    spoil(tmp_path)
    blocked = Running(lambda: facts(writer, 1000, first=1))
    with pytest.raises(LogError, match="spoilt"):
        blocked.result()
    for call in (lambda: writer.drain(30), writer.check, lambda: facts(writer, 1)):
        with pytest.raises(LogError, match="spoilt"):
            call()
    writer.close()
    assert seqs(log) == [0]


def test_a_full_queue_holds_writers_back(log: MessageLog, tmp_path: Path) -> None:
    writer = LogWriter(log, CODEC, capacity=5)
    queued: list[Event] = []

    def put() -> None:
        recorder = AttemptRecorder(lambda event: (writer.put(event), queued.append(event)), EPISODE, 1, ME)  # type: ignore[arg-type, func-returns-value]
        for number in range(12):
            recorder._write(EpisodePaused, reason=str(number))

    with away(tmp_path):
        putting = Running(put)
        wait_for(lambda: len(queued) == 5, "the queue is full")
        putting.join(0.3)
        assert len(queued) == 5
    putting.result()
    writer.drain(30)
    assert list(dict.fromkeys(seqs(log))) == list(range(12))
    writer.close()


def test_the_queue_is_bounded_in_bytes_and_still_takes_one_large_record(log: MessageLog, tmp_path: Path) -> None:
    writer = LogWriter(log, CODEC, capacity_bytes=1000)
    recorder = AttemptRecorder(writer.put, EPISODE, 1, ME)
    with away(tmp_path):
        recorder._write(EpisodePaused, reason="x" * 5000)
        second = Running(lambda: recorder._write(EpisodePaused, reason="y"))
        second.join(0.3)
        assert second.is_alive()
    second.result()
    writer.drain(30)
    assert list(dict.fromkeys(seqs(log))) == [0, 1]
    writer.close()


def test_closing_gives_up_on_a_log_that_stays_away_and_says_so(log: MessageLog, tmp_path: Path) -> None:
    writer = LogWriter(log, CODEC)
    with capture_logs() as said, away(tmp_path):
        facts(writer, 3)
        writer.close(timeout_s=0.3)
    assert [line["records"] for line in said if line["event"] == "facts_given_up"] == [3]
    with pytest.raises(LogError, match="closed"):
        facts(writer, 1)


def test_a_log_that_is_closed_under_it_is_an_error_not_a_hang() -> None:
    log = MemoryLog()
    writer = LogWriter(log, CODEC)
    log.close()
    with contextlib.suppress(LogError):  # it may have noticed already
        facts(writer, 1)
    with pytest.raises(LogError):
        writer.drain(30)
    writer.close()
