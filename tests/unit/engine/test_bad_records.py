"""Hostile and broken records, from the log through the engine into the dead-letter topic, on the local log."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepwell.adapters.dead_letters import find, letters, retry_record
from stepwell.adapters.logs.local import LocalLog
from stepwell.adapters.workers.markers import MemoryMarkers
from stepwell.engine.loop import ExactlyOnceLoop
from stepwell.engine.ports import OutgoingRecord
from stepwell.engine.publish import outgoing
from stepwell.engine.restore import GROUP, TOPICS, EngineRestore
from stepwell.engine.timers import Timeouts
from stepwell.events.model import DeadLetter, VerdictIssued
from stepwell.events.topics import DEAD_LETTERS, POLICY_EVENTS
from tests.unit.engine.episodes import Facts
from tests.unit.engine.running import CODEC, FakeClock, Notes, drain, read, send


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LocalLog]:
    local = LocalLog(str(tmp_path / "log"))
    yield local
    local.close()


def work(log: LocalLog) -> list[DeadLetter]:
    """Run the engine until nothing is left; the dead letters."""
    made = EngineRestore(log, codec=CODEC, markers=MemoryMarkers(), timeouts=Timeouts(), worker_id="e", report=Notes())
    loop = ExactlyOnceLoop(
        log, group=GROUP, worker_id="e", topics=TOPICS, restore=made, clock=FakeClock(), report=Notes(),
        poll_timeout_s=0.005,
    )  # fmt: skip
    try:
        drain(loop, 20)
    finally:
        loop.close()
    return [record for record in read(log, DEAD_LETTERS) if isinstance(record, DeadLetter)]


def with_bad(log: LocalLog, values: list[bytes], headers: Any = None) -> list[DeadLetter]:
    """A whole episode with these values, framed as its first step, in the middle of it."""
    events = Facts("ep-1").whole()
    good = outgoing(CODEC, events[5])
    bad = [
        OutgoingRecord(good.topic, good.key, value, good.headers if headers is None else headers) for value in values
    ]
    send(log, *events[:5], *bad, *events[5:])
    found = work(log)
    verdicts = [record for record in read(log, POLICY_EVENTS) if isinstance(record, VerdictIssued)]
    assert [(verdict.n_steps, verdict.certificate.status) for verdict in verdicts] == [(3, "complete")]
    return found


def step_value() -> bytes:
    value = outgoing(CODEC, Facts("ep-1").whole()[5]).value
    assert value is not None
    return value


def test_a_record_cut_at_every_byte(log: LocalLog) -> None:
    """Each one letter with its own bytes; the episode around them is complete."""
    value = step_value()
    cut = [value[:size] for size in range(len(value))]
    found = with_bad(log, cut)
    assert Counter(letter.source_value for letter in found) == Counter(cut)
    assert {letter.reason for letter in found} <= {"truncated", "array-count"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda value: value + b"\0", "trailing-bytes"),
        (lambda value: value[5:], "magic"),
        (lambda value: b"\1\0\0\0\7" + value[5:], "magic"),
        (lambda value: value[:5] + b"\x20" * 16 + b"\xff" * 40, None),
        (lambda value: value[:5] + bytes(16) + b"\x80\xa8\xd6\xb9\x07" * 3, None),
    ],
    ids=["trailing", "no header", "other magic", "long varint", "huge length"],
)
def test_frames_and_numbers_that_lie(log: LocalLog, change: Any, reason: str | None) -> None:
    """Trailing bytes, a missing header, another format, endless varints, absurd lengths."""
    (letter,) = with_bad(log, [change(step_value())])
    assert letter.kind == "unreadable"
    assert reason in {None, letter.reason}


def test_another_schemas_fingerprint(log: LocalLog) -> None:
    """A schema that nobody here knows."""
    (letter,) = with_bad(log, [step_value()], (("stepwell-schema", b"0" * 16),))
    assert letter.reason == "unknown-fingerprint"


def test_an_id_that_comes_from_elsewhere_costs_nothing(log: LocalLog) -> None:
    """The fingerprint says which schema it is: ids of packaged schemas and of registries collide."""
    events = Facts("ep-1").whole()
    good = outgoing(CODEC, events[5])
    assert good.value is not None
    send(log, *events[:5], good._replace(value=b"\0\0\0\0\6" + good.value[5:]), *events[6:])
    assert work(log) == []


@pytest.mark.parametrize("byte", [0x00, 0x01, 0x07, 0x7F, 0x80, 0xFF])
def test_any_byte_replaced_by_a_hostile_one(log: LocalLog, byte: int) -> None:
    """Wherever it stands (union and boolean indexes among them): refused, judged, or the same record again."""
    value = step_value()
    changed = [value[:i] + bytes([byte]) + value[i + 1 :] for i in range(5, len(value))]
    found = with_bad_tolerant(log, changed)
    assert {letter.kind for letter in found} <= {"unreadable", "violation"}
    assert len(found) > len(changed) / 4


def with_bad_tolerant(log: LocalLog, values: list[bytes]) -> list[DeadLetter]:
    """As `with_bad`, after the genuine record, which therefore stands."""
    events = Facts("ep-1").whole()
    good = outgoing(CODEC, events[5])
    send(
        log, *events[:6], *[OutgoingRecord(good.topic, good.key, value, good.headers) for value in values], *events[6:]
    )
    found = work(log)
    assert len([record for record in read(log, POLICY_EVENTS) if isinstance(record, VerdictIssued)]) >= 1
    return found


def test_an_event_that_is_invalid_now_is_recorded_and_nothing_moves(log: LocalLog) -> None:
    """A second sim::ready, a step out of turn."""
    facts = Facts("ep-1")
    begun = facts.begun(1)
    again = facts.ready()
    send(log, *begun, again, *facts.step(1), facts.ended(2))
    (letter,) = work(log)
    assert (letter.kind, letter.reason, letter.event_type) == ("violation", "illegal", "sim::ready")
    (verdict,) = [record for record in read(log, POLICY_EVENTS) if isinstance(record, VerdictIssued)]
    assert (verdict.n_steps, verdict.certificate.violation_count) == (2, 1)


def test_a_record_that_became_readable_can_be_retried(log: LocalLog) -> None:
    """Its header was lost on the way; with it the record goes back to its topic, marked, and counts."""
    events = Facts("ep-1").whole()
    good = outgoing(CODEC, events[5])
    send(log, *events[:5], good._replace(headers=()), *events[6:])
    (letter,) = work(log)
    assert letter.reason == "no-fingerprint"
    (stored,) = letters(log, CODEC)
    assert find(log, CODEC, stored.id) == stored
    import msgspec

    from stepwell.adapters.dead_letters import RETRIED_HEADER, StoredLetter, retry
    from stepwell.events.model import HeaderField

    fields = tuple(HeaderField(name=name, value=value) for name, value in good.headers)
    mended = StoredLetter(stored.id, stored.recorded_at, msgspec.structs.replace(stored.letter, source_headers=fields))
    record = retry(log, CODEC, mended)
    assert (RETRIED_HEADER, stored.id.encode()) in record.headers
    assert retry_record(CODEC, mended).value == good.value
    assert len(work(log)) == 1
    verdicts = [record for record in read(log, POLICY_EVENTS) if isinstance(record, VerdictIssued)]
    assert (verdicts[-1].n_steps, verdicts[-1].certificate.status) == (3, "complete")
