"""The first claim in the log wins; a host believes only what it has read back."""

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepwell.adapters.logs.memory import MemoryLog
from stepwell.adapters.runs.claims import ClaimReader, log_ends
from stepwell.adapters.runs.recorder import AttemptRecorder, HostIdentity
from stepwell.adapters.runs.writer import LogWriter
from stepwell.engine.ports import MessageLog, OutgoingRecord
from stepwell.events.model import EpisodeClaimed
from stepwell.events.topics import EPISODE_EVENTS
from stepwell.exceptions import LogError, LogUnavailableError
from tests.unit.runs.places import CODEC, ME, OTHER, impatient_log, planned

EPISODE = planned()[0]


@pytest.fixture
def log() -> Iterator[MessageLog]:
    log = MemoryLog()
    yield log
    log.close()


def claim(log: MessageLog, identity: HostIdentity, attempt: int = 1) -> None:
    writer = LogWriter(log, CODEC)
    AttemptRecorder(writer.put, EPISODE, attempt, identity, 1).claimed()
    writer.drain(30)
    writer.close()


def reader(log: MessageLog) -> ClaimReader:
    return ClaimReader(log, CODEC, [EPISODE.episode_id], log_ends(log))


def test_of_two_hosts_that_race_both_hear_the_same_winner(log: MessageLog) -> None:
    readers = [reader(log), reader(log)]
    start = threading.Barrier(2)

    def race(identity: HostIdentity) -> None:
        start.wait()
        claim(log, identity)

    racers = [threading.Thread(target=race, args=(identity,)) for identity in (ME, OTHER)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    answers = {each.wait_for(EPISODE.episode_id, 1, 30) for each in readers}
    assert len(answers) == 1
    assert answers < {ME.producer_id, OTHER.producer_id}
    for each in readers:
        each.close()


def test_each_attempt_is_claimed_on_its_own(log: MessageLog) -> None:
    following = reader(log)
    claim(log, OTHER, attempt=1)
    claim(log, ME, attempt=2)
    assert following.wait_for(EPISODE.episode_id, 2, 30) == ME.producer_id
    assert following.wait_for(EPISODE.episode_id, 1, 30) == OTHER.producer_id
    following.close()


def test_a_claim_between_the_look_at_the_log_and_the_reader_s_start_counts(log: MessageLog) -> None:
    start = log_ends(log)
    claim(log, OTHER)
    following = ClaimReader(log, CODEC, [EPISODE.episode_id], start)
    claim(log, ME)
    assert following.wait_for(EPISODE.episode_id, 1, 30) == OTHER.producer_id
    following.close()


def test_an_unreadable_claim_claims_nothing(log: MessageLog) -> None:
    following = reader(log)
    recorded: list[EpisodeClaimed] = []
    AttemptRecorder(recorded.append, EPISODE, 1, OTHER, 1).claimed()  # type: ignore[arg-type]
    value, headers = CODEC.encode(recorded[0])
    producer = log.producer()
    producer.send([OutgoingRecord(EPISODE_EVENTS, EPISODE.episode_id.encode(), value[:-3], headers)])
    producer.flush(30)
    producer.close()
    claim(log, ME)
    assert following.wait_for(EPISODE.episode_id, 1, 30) == ME.producer_id
    following.close()


def test_without_a_claim_the_wait_ends_in_time(log: MessageLog) -> None:
    following = reader(log)
    with pytest.raises(LogUnavailableError, match=r"could not be read back within 0\.1 s"):
        following.wait_for(EPISODE.episode_id, 1, 0.1)
    following.close()


def test_a_log_that_cannot_be_read_any_more_is_told_to_those_who_wait(tmp_path: Path) -> None:
    log = impatient_log(tmp_path)
    following = reader(log)
    with contextlib.closing(sqlite3.connect(tmp_path / "log.db", isolation_level=None, timeout=30)) as connection:
        connection.execute("ALTER TABLE slots RENAME TO gone")
    with pytest.raises(LogError, match="no such table"):
        following.wait_for(EPISODE.episode_id, 1, 30)
    following.close()
    log.close()
