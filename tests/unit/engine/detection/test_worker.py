"""The exactly-once loop and the detector's worker, on the log in memory."""

from collections.abc import Iterator
from typing import Any

import pytest

from stepwell.adapters.logs.memory import MemoryLog
from stepwell.engine.detection.partition import PolicyPartition
from stepwell.engine.detection.restore import GROUP, TOPICS, DetectorRestore
from stepwell.engine.loop import STALE_MEMBERSHIPS_MAX, BatchSizer, ExactlyOnceLoop
from stepwell.engine.ports import OutgoingRecord, TopicPartition
from stepwell.engine.publish import outgoing
from stepwell.events.ids import derived_event_id
from stepwell.events.model import DeadLetter, RetrainAnswered, RetrainRequested
from stepwell.events.topics import (
    DEAD_LETTERS,
    FAILURE_PATTERNS,
    POLICY_EVENTS,
    RETRAIN_REQUESTS,
    RETRAIN_RESULTS,
)
from stepwell.exceptions import FencedError, LogUnavailableError, PositionLostError, TransactionAbortedError
from tests.unit.engine.running import CODEC, FakeClock, Flaky, Notes, drain, read, send
from tests.unit.engine.verdicts import verdict

_loops: list[ExactlyOnceLoop] = []


@pytest.fixture
def log() -> Iterator[MemoryLog]:
    """A fresh log; whatever loops a test started on it are closed before it."""
    memory = MemoryLog()
    yield memory
    while _loops:
        _loops.pop().close()
    memory.close()


def answer(trigger_id: str, status: str = "done") -> RetrainAnswered:
    return RetrainAnswered(
        event_id=derived_event_id("answer", trigger_id, status), run_id="run-1", episode_id="", attempt=1,
        producer_id="trainer-1", producer_seq=0, occurred_at=1, trace_id="1" * 32, trigger_id=trigger_id,
        policy="expert", status=status, detail="",
    )  # fmt: skip


def detector(log: Any, worker_id: str = "detector-0", notes: Notes | None = None) -> ExactlyOnceLoop:
    loop = ExactlyOnceLoop(
        log, group=GROUP, worker_id=worker_id, topics=TOPICS, restore=DetectorRestore(log, CODEC, worker_id),
        clock=FakeClock(), report=notes or Notes(), poll_timeout_s=0.005,
    )  # fmt: skip
    _loops.append(loop)
    return loop


def ledgers(loop: ExactlyOnceLoop) -> dict[str, bytes]:
    return {
        policy: data
        for processor in loop.processors.values()
        if isinstance(processor, PolicyPartition)
        for policy, data in processor.ledger_bytes().items()
    }


def test_verdicts_become_requests_and_answers_close_them(log: MemoryLog) -> None:
    """From verdicts to a pattern, a request, an answer copied into policy-events, and a restored ledger."""
    send(log, *[verdict(f"e{i}") for i in range(5)])
    loop = detector(log)
    drain(loop)
    (request,) = read(log, RETRAIN_REQUESTS)
    assert isinstance(request, RetrainRequested)
    assert len(read(log, FAILURE_PATTERNS)) == 1
    send(log, answer(request.trigger_id))
    drain(loop)
    assert [event.TYPE for event in read(log, POLICY_EVENTS)].count("retrain::answered") == 1
    before = ledgers(loop)
    assert b"done" in before["expert"]
    loop.close()
    again = detector(log)
    drain(again)
    assert ledgers(again) == before
    assert len(read(log, RETRAIN_REQUESTS)) == 1
    again.close()


def test_what_cannot_be_used_becomes_a_dead_letter_and_the_next_record_counts(log: MemoryLog) -> None:
    """Torn bytes among verdicts and answers, and a verdict where answers belong."""
    good = outgoing(CODEC, verdict("e0"))
    assert good.value is not None
    torn = good._replace(value=good.value[:-1])
    send(log, torn, good, OutgoingRecord(RETRAIN_RESULTS, b"expert", b"junk!!", (("x", None),)))
    send(log, good._replace(topic=RETRAIN_RESULTS))
    loop = detector(log)
    drain(loop)
    letters = [letter for letter in read(log, DEAD_LETTERS) if isinstance(letter, DeadLetter)]
    assert sorted((letter.source_topic, letter.reason) for letter in letters) == [
        (POLICY_EVENTS, "truncated"),
        (RETRAIN_RESULTS, "magic"),
        (RETRAIN_RESULTS, "wrong-topic"),
    ]
    assert {letter.source_value for letter in letters} == {torn.value, b"junk!!", good.value}
    assert set(ledgers(loop)) == {"expert"}
    loop.close()


@pytest.mark.parametrize(
    "failures",
    [
        {"commit": [TransactionAbortedError()]},
        {"commit": [LogUnavailableError()]},
        {"commit after": [LogUnavailableError()]},
        {"poll": [LogUnavailableError(), LogUnavailableError()]},
        {"start": [LogUnavailableError()]},
        {"send_offsets": [FencedError(), FencedError()]},
        {"begin": [LogUnavailableError()]},
        {"committed": [LogUnavailableError()]},
    ],
    ids=lambda failures: next(iter(failures)),
)
def test_every_failure_in_between_leaves_the_same_outputs(log: MemoryLog, failures: dict[str, list[Exception]]) -> None:
    """Whether the transaction was rolled back, committed without our knowing, or never began: one effect."""
    send(log, *[verdict(f"e{i}") for i in range(5)])
    flaky = Flaky(log)
    flaky.failures = failures
    notes = Notes()
    loop = detector(flaky, notes=notes)
    drain(loop, 8)
    assert not any(failures.values())
    assert len(read(log, RETRAIN_REQUESTS)) == 1
    assert set(ledgers(loop)) == {"expert"}
    if notes.said.count("log is away, waiting"):
        assert notes.said.count("log is away, waiting") == notes.said.count("log is back") == 1
    loop.close()


def test_a_log_that_stays_away_is_said_once_and_waited_for_ever_longer(log: MemoryLog) -> None:
    """The waits grow to a limit."""
    flaky = Flaky(log)
    flaky.failures = {"start": [LogUnavailableError() for _ in range(8)]}
    notes, clock = Notes(), FakeClock()
    loop = ExactlyOnceLoop(
        flaky, group=GROUP, worker_id="d", topics=TOPICS, restore=DetectorRestore(log, CODEC, "d"), clock=clock,
        report=notes,
    )  # fmt: skip
    drain(loop, 10)
    assert clock.waited == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    assert notes.said.count("log is away, waiting") == 1
    loop.close()


def test_a_membership_that_stays_stale_ends_the_loop(log: MemoryLog) -> None:
    """Not for ever: after some tries in a row the worker stops and says so."""
    send(log, verdict("e0"))
    flaky = Flaky(log)
    flaky.failures = {"send_offsets": [FencedError() for _ in range(STALE_MEMBERSHIPS_MAX)]}
    loop = detector(flaky)
    with pytest.raises(FencedError):
        drain(loop, 50)
    loop.close()
    assert read(log, RETRAIN_REQUESTS) == []


def test_two_workers_with_one_slot_the_later_one_wins(log: MemoryLog) -> None:
    """The first is refused whatever it tries to write afterwards."""
    send(log, *[verdict(f"e{i}") for i in range(4)])
    first = detector(log)
    drain(first)
    second = detector(log)
    drain(second)
    send(log, verdict("e4"))
    with pytest.raises(FencedError):
        drain(first, 20)
    drain(second)
    assert len(read(log, RETRAIN_REQUESTS)) == 1
    first.close()
    second.close()


def test_partitions_move_between_workers_and_nothing_is_doubled() -> None:
    """A second worker comes, takes its share, leaves; the first goes on alone."""
    log = MemoryLog(session_timeout_s=1.0)
    first, second = detector(log, "detector-0"), detector(log, "detector-1")
    drain(first)
    assert len(first.processors) == 8
    for i in range(9):
        send(log, *[verdict(f"{policy}-{i}", policy=policy) for policy in "abcdefgh"])
        if i < 6:
            second.step()
        if i == 6:
            second.close()
        first.step()
    drain(first, 400)
    requests = [event for event in read(log, RETRAIN_REQUESTS) if isinstance(event, RetrainRequested)]
    assert sorted(event.policy for event in requests) == list("abcdefgh")
    first.close()
    log.close()


def test_a_ledger_whose_beginning_is_gone_is_not_rebuilt_from_the_rest(log: MemoryLog) -> None:
    """Loud stop with the partition's name and what to do."""

    class Trimmed:
        def watermarks(self, source: TopicPartition) -> Any:
            return log.consumer().watermarks(source)._replace(low=3)

    restore = DetectorRestore(log, CODEC, "d")
    with pytest.raises(PositionLostError, match=r"policy-events/1 starts at offset 3.*retention"):
        restore(TopicPartition(POLICY_EVENTS, 1), 7, Trimmed())  # type: ignore[arg-type]
    fresh = restore(TopicPartition(POLICY_EVENTS, 1), None, Trimmed())  # type: ignore[arg-type]
    assert fresh.position == 3


def test_run_stops_when_told(log: MemoryLog) -> None:
    """`run` works until the flag is set, then lets go of everything."""
    send(log, verdict("e0"))
    loop = detector(log)
    steps = iter([False] * 6 + [True])
    loop.run(lambda: next(steps))
    assert loop.records == 1
    assert loop.transactions >= 1
    assert loop.processors == {}


def test_batches_grow_when_behind_and_shrink_when_live() -> None:
    """Doubling while polls are full, halving while they are mostly empty."""
    sizer = BatchSizer(smallest=100, largest=350)
    sizes = []
    for records in (100, 200, 350, 350, 200, 10, 10, 10):
        sizer.saw(records)
        sizes.append(sizer.size)
    assert sizes == [200, 350, 350, 350, 350, 175, 100, 100]
