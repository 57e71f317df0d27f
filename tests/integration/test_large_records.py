"""Records as large as a real broker takes them: the engine sets them aside and goes on."""

import random
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepwell.adapters.logs import open_log
from stepwell.adapters.parts.kafka import KafkaPart
from stepwell.adapters.workers.markers import MemoryMarkers
from stepwell.engine.detection.restore import GROUP as DETECTOR_GROUP
from stepwell.engine.detection.restore import TOPICS as DETECTOR_TOPICS
from stepwell.engine.detection.restore import DetectorRestore
from stepwell.engine.loop import ExactlyOnceLoop, Restore
from stepwell.engine.ports import MessageLog, OutgoingRecord
from stepwell.engine.publish import outgoing
from stepwell.engine.restore import GROUP, TOPICS, EngineRestore
from stepwell.engine.timers import Timeouts
from stepwell.events.guards import MAX_STORED_BYTES, stored_bytes
from stepwell.events.model import DeadLetter, RetrainAnswered, VerdictIssued
from stepwell.events.topics import DEAD_LETTERS, EPISODE_EVENTS, POLICY_EVENTS, RETRAIN_RESULTS
from stepwell.events.topics import TOPICS as ALL_TOPICS
from tests.unit.engine.detection.test_worker import answer
from tests.unit.engine.episodes import Facts
from tests.unit.engine.running import CODEC, FakeClock, Notes, read, send

NOISE = random.Random(7)


@pytest.fixture(params=["local", "kafka"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MessageLog]:
    if request.param == "local":
        yield open_log(f"local:{tmp_path}/log")
        return
    with KafkaPart() as part:
        log = open_log(f"kafka://{part.start()}")
        log.admin().create(ALL_TOPICS)
        yield log


class Warnings(Notes):
    def info(self, event: str, **values: Any) -> None:
        del event, values


def work(log: MessageLog, group: str, topics: tuple[str, ...], restore: Restore, letters: int) -> list[str]:
    """Run a worker until so many dead letters are there; of what it warned."""
    notes = Warnings()
    loop = ExactlyOnceLoop(
        log, group=group, worker_id=f"w-{uuid.uuid4().hex[:6]}", topics=topics, restore=restore, clock=FakeClock(),
        report=notes,
    )  # fmt: skip
    try:
        for _ in range(600):
            loop.step()
            if len([record for record in read(log, DEAD_LETTERS) if isinstance(record, DeadLetter)]) >= letters:
                break
        for _ in range(5):
            loop.step()
    finally:
        loop.close()
    return [event for event in notes.said if event != "records became dead letters"]


def test_the_engine_sets_the_largest_records_aside_and_goes_on(log: MessageLog) -> None:
    frame = stored_bytes(None, None, (("h", b""),))
    large = [
        OutgoingRecord(EPISODE_EVENTS, NOISE.randbytes(600_000), b"garbage"),
        OutgoingRecord(EPISODE_EVENTS, NOISE.randbytes(9_900), NOISE.randbytes(985_000)),
        OutgoingRecord(EPISODE_EVENTS, b"k", b"v", (("h", NOISE.randbytes(100_000)),) * 10),
        OutgoingRecord(EPISODE_EVENTS, b"k", NOISE.randbytes(MAX_STORED_BYTES - frame - 1), (("h", b""),)),
        OutgoingRecord(EPISODE_EVENTS, NOISE.randbytes(MAX_STORED_BYTES - 7), b"garbage"),
    ]
    for record in large:
        send(log, record)
    send(log, *Facts("ep-1").whole())
    made = EngineRestore(log, codec=CODEC, markers=MemoryMarkers(), timeouts=Timeouts(), worker_id="e", report=Notes())
    assert work(log, GROUP, TOPICS, made, len(large)) == []
    letters = [record for record in read(log, DEAD_LETTERS) if isinstance(record, DeadLetter)]
    assert len(letters) == len(large)
    whole = {letter.source_value for letter in letters if "left at their place" not in letter.detail}
    assert whole == {large[0].value, large[1].value}
    assert len([record for record in read(log, POLICY_EVENTS) if isinstance(record, VerdictIssued)]) == 1


def test_an_answer_that_does_not_fit_under_its_policys_key_is_set_aside(log: MessageLog) -> None:
    """It is copied with its own headers, but under another key than it came with."""
    good = outgoing(CODEC, answer("t" * 40))
    room = MAX_STORED_BYTES - stored_bytes(None, good.value, (*good.headers, ("x", b"")))
    headers = (*good.headers, ("x", NOISE.randbytes(room)))
    send(log, good._replace(topic=RETRAIN_RESULTS, key=None, headers=headers), good._replace(topic=RETRAIN_RESULTS))
    assert work(log, DETECTOR_GROUP, DETECTOR_TOPICS, DetectorRestore(log, CODEC, "d"), 1) == []
    (letter,) = [record for record in read(log, DEAD_LETTERS) if isinstance(record, DeadLetter)]
    assert (letter.kind, letter.reason) == ("refused", "too-large")
    assert len([record for record in read(log, POLICY_EVENTS) if isinstance(record, RetrainAnswered)]) == 1
