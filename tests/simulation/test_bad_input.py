"""Bad records through the whole pipeline, on both logs: set aside whole, with place and reason; the next counts."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psycopg
import pytest

from stepwell.adapters.logs import open_log
from stepwell.adapters.parts.kafka import KafkaPart
from stepwell.engine.ports import OutgoingRecord
from stepwell.engine.publish import outgoing
from stepwell.events.codec import Codec
from stepwell.events.model import DeadLetter, Event, HeaderField, StepDone
from stepwell.projections.audit.rows import audit_tables
from tests.simulation.bad_records import bad_records
from tests.simulation.comparison import compare_with_oracle
from tests.simulation.pipeline import Pipeline, pipeline
from tests.unit.engine.stories import Story

CODEC = Codec()


@pytest.fixture(params=["local", "kafka"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "local":
        yield f"local:{tmp_path}/log"
        return
    part = KafkaPart()
    try:
        yield f"kafka://{part.start()}"
    finally:
        part.stop()


def now(facts: list[Event], name: str) -> list[Event]:
    """The facts of a story as those of another episode, now."""
    start = time.time_ns() // 1000
    return [
        msgspec.structs.replace(fact, episode_id=name, occurred_at=start + fact.occurred_at % 1_000_000)
        for fact in facts
    ]


def stepwell(pipe: Pipeline, *arguments: str, code: int = 0) -> str:
    """What a command prints."""
    done = subprocess.run(
        [sys.executable, "-m", "stepwell", "dead-letters", *arguments],
        env={**os.environ, "STEPWELL_LOG": pipe.url, "STEPWELL_HOME": str(pipe.directory / "home")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_every_kind_of_bad_record(url: str, tmp_path: Path, new_database: Callable[[], str]) -> None:
    story = Story().begin().run(3)
    story.ready()  # case 39: the simulator is ready already
    story.run(2, 3)
    story.fail("agent_exited")
    facts = now(story.facts, "ep-bad")
    facts[-1] = msgspec.structs.replace(facts[-1], message="died \0 here")  # case 32: no database takes this as it is
    genuine = next(fact for fact in facts if isinstance(fact, StepDone))
    bad = list(bad_records(genuine))
    keyless = outgoing(CODEC, facts[3])._replace(key=None)
    records: list[OutgoingRecord] = []
    for number, fact in enumerate(facts):  # a bad one after every fact, so that each is followed by a good one
        records.append(outgoing(CODEC, fact))
        records += [entry.record for entry in bad[number * 2 : number * 2 + 2]]
    assert len(bad) <= 2 * (len(facts) - 1)
    with pipeline(url, new_database(), tmp_path) as pipe:
        pipe.feed([keyless, *records])
        counted = compare_with_oracle(pipe, pipe.settle())
        assert counted["dead letters"] == len(bad) + 2  # and the one without a key, and the second sim::ready
        with psycopg.connect(pipe.database, autocommit=True) as connection:
            rows = connection.execute(
                "SELECT kind, reason, source_key, source_value, episode_id FROM stepwell.dead_letters"
            ).fetchall()
            assert connection.execute("SELECT message FROM stepwell.verdicts").fetchall() == [("died \\x00 here",)]
            assert audit_tables(open_log(pipe.url), CODEC, connection).differences == []
        assert {letter[1] for letter in rows if letter[0] == "violation"} == {"illegal"}
        for entry in bad:
            found = [letter[1] for letter in rows if letter[3] == entry.record.value and letter[0] == "unreadable"]
            assert not entry.reason or entry.reason in found, (entry.name, found)
        look_at_them(pipe, len(bad) + 2)


def look_at_them(pipe: Pipeline, count: int) -> None:
    """``stepwell dead-letters list | show | retry``."""
    letters = [json.loads(line) for line in stepwell(pipe, "list", "--json").splitlines() if line.startswith("{")]
    assert len(letters) == count
    assert f"{count} of {count} dead letters" in stepwell(pipe, "list")
    trailing = next(letter for letter in letters if letter["reason"] == "trailing-bytes")
    shown = json.loads(stepwell(pipe, "show", trailing["id"], "--json"))
    assert shown == trailing
    assert trailing["source_value"].endswith("0000")
    assert "trailing-bytes" in stepwell(pipe, "show", trailing["id"])
    assert "still cannot be read (trailing-bytes)" in stepwell(pipe, "retry", trailing["id"], code=1)
    illegal = next(letter for letter in letters if letter["kind"] == "violation")
    assert "breaks the protocol" in stepwell(pipe, "retry", illegal["id"], code=1)


def test_what_became_readable_is_retried_and_counts(url: str, tmp_path: Path, new_database: Callable[[], str]) -> None:
    """An engine of an older version did not know a schema and set a fact aside; this one knows it."""
    story = Story().begin().run(2)
    story.end()
    facts = now(story.facts, "ep-later")
    missing, others = facts[5], [*facts[:5], *facts[6:]]
    record = outgoing(CODEC, missing)
    letter = DeadLetter(
        kind="unreadable",
        reason="unknown-schema-id",
        detail="schema id 7 is unknown here",
        source_topic=record.topic,
        source_partition=0,
        source_offset=0,
        source_timestamp=time.time_ns() // 1000,
        source_key=record.key,
        source_value=record.value,
        source_headers=tuple(HeaderField(name=name, value=value) for name, value in record.headers),
        reported_by="stepwell-engine-0",
    )
    with pipeline(url, new_database(), tmp_path) as pipe:
        pipe.feed([outgoing(CODEC, letter)])
        (line,) = [line for line in stepwell(pipe, "list", "--json").splitlines() if line.startswith("{")]
        assert "appended to stepwell.episode-events again" in stepwell(pipe, "retry", json.loads(line)["id"])
        pipe.feed([outgoing(CODEC, fact) for fact in others])  # it waits for these, as they would wait for it
        world = pipe.settle()
        attempt = world.attempts["ep-later", 1]
        verdict = attempt.revisions[-1]
        assert (verdict["n_steps"], verdict["completeness_notes"], len(attempt.applied)) == (2, [], len(facts))
        with psycopg.connect(pipe.database) as connection:
            row = connection.execute("SELECT completeness, n_steps FROM stepwell.latest_verdicts").fetchone()
        assert row == ("complete", 2)
