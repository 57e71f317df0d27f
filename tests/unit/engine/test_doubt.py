"""A defect in the fold or in a rule costs the record that it chokes on, and nothing else."""

from collections.abc import Iterator
from typing import Any

import pytest

from stepwell.adapters.logs.memory import MemoryLog
from stepwell.adapters.workers.markers import MemoryMarkers
from stepwell.engine import partition as partition_module
from stepwell.engine.detection.fold import Detector
from stepwell.engine.detection.restore import GROUP as DETECTOR_GROUP
from stepwell.engine.detection.restore import TOPICS as DETECTOR_TOPICS
from stepwell.engine.detection.restore import DetectorRestore
from stepwell.engine.doubt import SUSPECTS_MAX
from stepwell.engine.loop import ExactlyOnceLoop
from stepwell.engine.publish import outgoing
from stepwell.engine.restore import GROUP, TOPICS, EngineRestore
from stepwell.engine.timers import Timeouts
from stepwell.events.codec import Codec
from stepwell.events.model import DeadLetter, Event, RetrainRequested, StepDone, VerdictIssued
from stepwell.events.topics import DEAD_LETTERS, POLICY_EVENTS, RETRAIN_REQUESTS
from stepwell.exceptions import DecodeError
from tests.unit.engine.episodes import Facts
from tests.unit.engine.running import CODEC, FakeClock, Notes, drain, read, send
from tests.unit.engine.verdicts import verdict


@pytest.fixture
def log() -> Iterator[MemoryLog]:
    memory = MemoryLog()
    yield memory
    memory.close()


def engine(log: MemoryLog, notes: Notes) -> ExactlyOnceLoop:
    made = EngineRestore(log, codec=CODEC, markers=MemoryMarkers(), timeouts=Timeouts(), worker_id="e", report=notes)
    return ExactlyOnceLoop(
        log, group=GROUP, worker_id="e", topics=TOPICS, restore=made, clock=FakeClock(), report=notes,
        poll_timeout_s=0.005,
    )  # fmt: skip


def letters(log: MemoryLog) -> list[DeadLetter]:
    return [record for record in read(log, DEAD_LETTERS) if isinstance(record, DeadLetter)]


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Event ids for which the fold raises, after it has changed the state."""
    ids: list[bytes] = []
    real = partition_module.apply

    def apply(state: Any, event: Event, position: Any) -> Any:
        found = real(state, event, position)
        if event.event_id in ids:
            raise KeyError("a defect")
        return found

    monkeypatch.setattr(partition_module, "apply", apply)
    return ids


def test_a_record_that_the_fold_raises_for_is_set_aside_and_counts_for_nothing(
    log: MemoryLog, poisoned: list[bytes]
) -> None:
    episodes = [Facts(f"ep-{number}").whole() for number in range(3)]
    strange = [event for event in episodes[1] if isinstance(event, StepDone)][-1]
    position = episodes[1].index(strange)
    poisoned.append(strange.event_id)
    send(log, *episodes[0], *episodes[1][: position + 1], *episodes[2], *episodes[1][position + 1 :])
    notes = Notes()
    loop = engine(log, notes)
    drain(loop)
    assert notes.said.count("state is in doubt, restoring") == 1
    (letter,) = letters(log)
    assert (letter.kind, letter.reason, letter.source_value) == (
        "unreadable",
        "unexpected",
        outgoing(CODEC, strange).value,
    )
    assert "KeyError: 'a defect'" in letter.detail
    verdicts = {v.episode_id: v for v in read(log, POLICY_EVENTS) if isinstance(v, VerdictIssued)}
    assert {name: v.certificate.status for name, v in verdicts.items()} == {"ep-0": "complete", "ep-2": "complete"}
    states = {key: state for p in loop.processors.values() for key, state in p.episodes.items()}  # type: ignore[attr-defined]
    loop.close()
    # Killed and started again, the same state comes of it, and nothing is said twice.
    again = engine(log, Notes())
    drain(again)
    restored = {key: state for p in again.processors.values() for key, state in p.episodes.items()}  # type: ignore[attr-defined]
    assert restored == states
    assert len(letters(log)) == 1
    # A copy of the fact that can be folded completes the episode.
    poisoned.clear()
    send(log, episodes[1][position])
    drain(again)
    again.close()
    assert len([v for v in read(log, POLICY_EVENTS) if isinstance(v, VerdictIssued)]) == 3


def test_a_defect_that_concerns_everything_costs_few_restores(log: MemoryLog, poisoned: list[bytes]) -> None:
    episodes = [Facts(f"ep-{number}").whole() for number in range(3 * SUSPECTS_MAX)]
    poisoned += [episode[3].event_id for episode in episodes]
    send(log, *[event for episode in episodes for event in episode])
    notes = Notes()
    loop = engine(log, notes)
    drain(loop, 40)
    loop.close()
    assert len(letters(log)) == len(episodes)
    # Every partition is processed in one go, so a restore may come for each suspect and never for more.
    assert notes.said.count("state is in doubt, restoring") <= SUSPECTS_MAX


def test_a_verdict_that_a_rule_raises_for_is_set_aside(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Detector.apply

    def apply(self: Detector, state: Any, event: Event, position: Any) -> Any:
        found = real(self, state, event, position)
        if isinstance(event, VerdictIssued) and event.episode_id == "ep-bad":
            raise ZeroDivisionError("a defect")
        return found

    monkeypatch.setattr(Detector, "apply", apply)
    send(log, verdict("ep-1"), verdict("ep-bad"), *[verdict(f"ep-{number}") for number in range(2, 6)])

    def work() -> tuple[Notes, int]:
        notes = Notes()
        loop = ExactlyOnceLoop(
            log, group=DETECTOR_GROUP, worker_id="d", topics=DETECTOR_TOPICS,
            restore=DetectorRestore(log, CODEC, "d"), clock=FakeClock(), report=notes, poll_timeout_s=0.005,
        )  # fmt: skip
        drain(loop)
        loop.close()
        return notes, len([record for record in read(log, RETRAIN_REQUESTS) if isinstance(record, RetrainRequested)])

    notes, requests = work()
    assert (notes.said.count("state is in doubt, restoring"), requests) == (1, 1)
    (letter,) = letters(log)
    assert (letter.kind, letter.reason) == ("unreadable", "unexpected")
    (request,) = [record for record in read(log, RETRAIN_REQUESTS) if isinstance(record, RetrainRequested)]
    assert [one.episode_id for one in request.evidence] == [f"ep-{number}" for number in range(1, 6)]
    assert work()[1] == 1
    assert len(letters(log)) == 1


def test_a_defect_in_reading_is_a_reason_to_set_the_record_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    from stepwell.events import codec as module

    record = outgoing(CODEC, Facts("ep-1").whole()[0])

    def broken(*_: Any) -> None:
        raise KeyError("missing")

    monkeypatch.setattr(module, "check_record", broken)
    with pytest.raises(DecodeError, match="KeyError: 'missing'") as caught:
        Codec().decode(record.value, record.headers)
    assert caught.value.reason == "unexpected"
    monkeypatch.setattr(module, "compile_reader", broken)
    with pytest.raises(DecodeError) as caught:
        Codec().decode(record.value, record.headers)
    assert caught.value.reason == "unexpected"
