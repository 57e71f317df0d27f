"""From the log into the tables: every kind of record, exactly once, whatever comes twice or does not fit."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
import structlog.testing

from stepwell.adapters.logs.memory import MemoryLog
from stepwell.engine.ports import MessageLog, RecordBatch, TopicPartition
from stepwell.engine.publish import outgoing
from stepwell.events.topics import EPISODE_EVENTS
from stepwell.exceptions import LogUnavailableError, SinkFencedError
from stepwell.projections.database import connect
from stepwell.projections.schema.generations import read_homes
from stepwell.projections.writing.projector import Projector
from stepwell.projections.writing.rows import Source, rows_of
from stepwell.projections.writing.writer import BatchWriter, Item
from tests.integration.projections import facts
from tests.integration.projections.conftest import Running
from tests.unit.engine.running import Flaky

Query = Callable[..., list[tuple[Any, ...]]]


def test_every_kind_of_record_reaches_its_table(log: MessageLog, drain: Callable[..., None], query: Query) -> None:
    facts.publish(log, facts.episode("e-1", steps=3))
    facts.publish(log, [facts.snapshot("e-1"), facts.verdict("e-1"), facts.pattern("t-1"), facts.retrain("t-1")])
    facts.publish(log, [facts.answered("t-1", "done"), facts.telemetry("w-1", 0), facts.dead_letter()])
    drain()

    assert query("SELECT run_id, requested_by FROM stepwell.runs") == [("run-1", "ada")]
    assert query("SELECT episode_id, policy, seed, max_steps FROM stepwell.episodes") == [
        ("e-1", "reach-expert", 7, 100)
    ]
    assert query("SELECT host, host_pid, phase, owes, next_step, sealed FROM stepwell.episode_attempts") == [
        ("lab-3", 4242, "AGENT_RUNNING", "sim", 2, False)
    ]
    assert query("SELECT step, producer_seq, reward, metrics FROM stepwell.steps ORDER BY step") == [
        (n, n + 1, 1.5, {"path_length_m": "nan"}) for n in range(3)
    ]
    assert query("SELECT first_step, shape, action[1], action[2]::text FROM stepwell.actions ORDER BY 1") == [
        (n, [1, 2], float(n), "NaN") for n in range(3)
    ]
    assert query("SELECT outcome, labels, lost, schema_fingerprints FROM stepwell.verdicts") == [
        ("success", ["slow"], [], ["a"])
    ]
    assert query("SELECT trigger_id, evidence->0->>'episode_id' FROM stepwell.failure_patterns") == [("t-1", "e")]
    assert query("SELECT status, new_checkpoint FROM stepwell.retrain_status") == [("done", "c2")]
    assert query("SELECT value, mean, unit, attributes FROM stepwell.telemetry ORDER BY 1") == [
        (0.5, 0.5, "1", {"cpu": "0"}), (3.0, 0.75, "s", {}),
    ]  # fmt: skip
    assert query("SELECT reason, source_value, source_headers FROM stepwell.protocol_violations NATURAL JOIN"
                 " stepwell.dead_letters") == [("foreign", b"\x00\xff", [{"name": "h", "value": "AA=="}])]  # fmt: skip


def test_what_comes_again_at_a_new_offset_is_one_row(log: MessageLog, drain: Callable[..., None], query: Query) -> None:
    first = facts.episode("e-1", steps=4)
    sample, verdict = facts.telemetry("w-1", 0), facts.verdict("e-1")
    facts.publish(log, [*first, *first[3:], sample, sample, verdict])  # within one batch
    drain()
    facts.publish(log, [*first, facts.step("e-1", 4), sample, verdict])  # and in a later one, with something new
    drain()
    assert query("SELECT count(*), count(DISTINCT event_id) FROM stepwell.steps") == [(5, 5)]
    assert query("SELECT count(*) FROM stepwell.actions") == [(4,)]
    assert query("SELECT count(*) FROM stepwell.telemetry") == [(2,)]
    assert query("SELECT count(*) FROM stepwell.verdicts") == [(1,)]
    assert query("SELECT count(*) FROM stepwell.dead_letters") == [(0,)]
    assert query("SELECT sum(records) FROM stepwell.sink_offsets WHERE topic = %s", EPISODE_EVENTS) == [
        (len(first) * 2 + len(first[3:]) + 1,)
    ]


def test_records_the_database_refuses_become_dead_letters(
    log: MessageLog, drain: Callable[..., None], query: Query
) -> None:
    good = facts.episode("e-1", steps=20)
    bad = [
        facts.requested("e-2", max_steps=2**31),
        facts.step("e-1", 3_000_000_000),
        facts.step("e-1", 77, occurred_at=5, origin="import"),  # 1970
        facts.step("e-1", 78, occurred_at=10_413_792_000_000_000, origin="import"),  # 2300
        facts.verdict("e-1", ended_at=-(2**62)),
    ]
    facts.publish(log, [*good[:10], bad[0], *good[10:20], *bad[1:4], *good[20:], bad[4]])
    # No clock of ours gives the year 75039, but bytes on the log can.
    wild = facts.step("e-1", 80, origin="import")
    value = facts.CODEC.encode(wild)[0].replace(facts.varint(wild.occurred_at), facts.varint(2**61))
    facts.send(log, [facts.unchecked(wild, value)])
    with structlog.testing.capture_logs() as said:
        drain()
        drain()
    letters = [entry for entry in said if entry["event"] == "records became dead letters"]
    assert len({(entry["topic"], entry["partition"]) for entry in letters}) == len(letters), "a line a batch"
    assert query("SELECT count(*) FROM stepwell.dead_letters") == [(sum(entry["count"] for entry in letters),)]
    reasons = query(
        "SELECT reason, kind, source_value FROM stepwell.dead_letters ORDER BY source_partition, source_offset"
    )
    assert sorted(reason for reason, _, _ in reasons) == [
        "check-violation", "check-violation", "datetime-field-overflow", "out-of-range", "out-of-range",
    ]  # fmt: skip
    assert {kind for _, kind, _ in reasons} == {"refused"}, "of what it cannot read, the engine tells"
    assert {bytes(value) for _, _, value in reasons} == {facts.CODEC.encode(event)[0] for event in bad}
    assert query("SELECT count(*) FROM stepwell.steps") == [(20,)]
    assert query("SELECT count(*) FROM stepwell.actions") == [(20,)]
    assert query("SELECT episode_id FROM stepwell.episodes") == [("e-1",)]  # all of a record's rows, or none


def test_unreadable_events_are_the_engine_s_to_tell_of(
    log: MessageLog, drain: Callable[..., None], query: Query
) -> None:
    good = facts.step("e-1", 1)
    value, _ = facts.CODEC.encode(good)
    facts.send(log, [facts.unchecked(good, value[:-3]), facts.unchecked(good, value + b"x")])
    facts.publish(log, [good, facts.step("e-1", 2, occurred_at=1)])  # 1970, live: outside of the window
    letter = facts.dead_letter(kind="unreadable", reason="truncated", source_partition=1, source_offset=0)
    facts.publish(log, [letter])
    drain()
    assert query("SELECT reason, reported_by FROM stepwell.dead_letters") == [("truncated", "engine-1")]
    assert query("SELECT step FROM stepwell.steps") == [(1,)]


def test_other_unreadable_records_are_set_aside_once(log: MessageLog, drain: Callable[..., None], query: Query) -> None:
    sample = facts.telemetry("w-1", 1)
    value, _ = facts.CODEC.encode(sample)
    facts.send(log, [facts.unchecked(sample, value[:-1]), facts.unchecked(sample, value + b"x")])
    facts.publish(log, [sample])
    drain()
    rows = query("SELECT kind, reason, source_value, reported_by FROM stepwell.dead_letters ORDER BY source_offset")
    assert rows == [
        ("unreadable", "truncated", value[:-1], "stepwell-projector"),
        ("unreadable", "trailing-bytes", value + b"x", "stepwell-projector"),
    ]
    assert query("SELECT count(*) FROM stepwell.telemetry") == [(2,)]


def test_hostile_dead_letters_are_kept_all_the_same(log: MessageLog, drain: Callable[..., None], query: Query) -> None:
    facts.publish(log, [facts.dead_letter(detail="a\0b", episode_id="\0", attempt=2**40, source_timestamp=2**62)])
    drain()
    assert query("SELECT kind, detail, episode_id, attempt, logged_at FROM stepwell.dead_letters") == [
        ("violation", "a\\x00b", "\\x00", None, datetime(2000, 1, 1, tzinfo=UTC))
    ]


def test_late_facts_go_into_the_past(log: MessageLog, drain: Callable[..., None], query: Query) -> None:
    day = 24 * 3600 * 1_000_000
    late = [facts.step("e-1", n, occurred_at=facts.now_us() - n * day) for n in range(0, 30, 3)]
    late.append(facts.step("e-1", 61, occurred_at=facts.now_us() - 61 * day))  # live, and two months late
    late.append(
        facts.step("e-1", 91, occurred_at=facts.now_us() - 91 * day)
    )  # beyond the window: the engine's to refuse
    old = facts.step("e-1", 400, occurred_at=facts.now_us() - 700 * day, origin="import")
    facts.publish(log, [*late, old])
    drain()
    facts.publish(log, late)
    drain()
    assert query("SELECT count(*) FROM stepwell.steps") == [(12,)]
    assert query("SELECT step FROM stepwell.steps WHERE occurred_at < now() - interval '60 days' ORDER BY 1") == [
        (61,), (400,),
    ]  # fmt: skip
    assert query("SELECT count(*) FROM stepwell.dead_letters") == [(0,)]


def test_a_status_never_goes_back(log: MessageLog, drain: Callable[..., None], query: Query) -> None:
    newer = facts.snapshot("e-1", last_offset=20, phase="FAILED", outcome="failure", revision=1, kind="sealed")
    facts.publish(log, [newer])
    drain()
    facts.publish(log, [facts.snapshot("e-1", last_offset=19), facts.requested("e-1"), facts.claimed("e-1")])
    facts.publish(log, [facts.claimed("e-1", host="lab-9", pid=1)])
    drain()
    assert query("SELECT phase, outcome, sealed, last_offset, host FROM stepwell.episode_attempts") == [
        ("FAILED", "failure", True, 20, "lab-3")
    ]


def test_of_two_projectors_on_one_partition_one_wins(database: str, query: Query) -> None:
    source = TopicPartition(EPISODE_EVENTS, 0)
    query(
        "INSERT INTO stepwell.sink_offsets (sink, topic, partition, next_offset, read_to, log_end) VALUES"
        " ('s', %s, 0, 100, 100, 100)", EPISODE_EVENTS,
    )  # fmt: skip
    event = facts.step("e-1", 0)
    value, headers = facts.CODEC.encode(event)
    at = facts.now_us()
    batch = RecordBatch(source, 100, 103, [101], [at], [b"e-1"], [value], [headers])
    items = [Item(0, rows_of(event, Source(EPISODE_EVENTS, 0, 101, at)))]
    with connect(database, application="one") as one, connect(database, application="two") as two:
        BatchWriter(one, "s", read_homes(one)).write(batch, items)
        zombie = BatchWriter(two, "s", read_homes(two))
        with pytest.raises(SinkFencedError, match=r"is not 100"):
            zombie.write(batch, items)
        successor = RecordBatch(source, 103, 105, [104], [at], [b"e-1"], [value], [headers])
        zombie.write(successor, [])
    assert query("SELECT next_offset, records FROM stepwell.sink_offsets") == [(105, 2)]
    assert query("SELECT count(*) FROM stepwell.steps") == [(1,)]


def test_a_projector_whose_position_was_moved_reads_it_again(
    log: MessageLog, running: Callable[..., Any], query: Query
) -> None:
    facts.publish(log, facts.episode("e-1", steps=5))
    with running() as projector:
        projector.wait_caught_up()
        # Somebody rebuilds a table: everything from the start again, while the projector runs.
        query("DELETE FROM stepwell.steps")
        query("UPDATE stepwell.sink_offsets SET next_offset = 0 WHERE topic = %s", EPISODE_EVENTS)
        facts.publish(log, [facts.step("e-1", 5)])
        projector.wait(lambda: query("SELECT count(*) FROM stepwell.steps") == [(6,)])
    assert query("SELECT count(*) FROM stepwell.actions") == [(5,)]


def test_an_event_under_a_wrong_key_makes_no_row_even_when_it_is_read_first(
    log: MessageLog, drain: Callable[..., None], query: Query
) -> None:
    genuine = facts.episode("e-1", steps=2)
    for key in (None, b"e-2", b"\xff"):
        for partition in range(4):
            for record in genuine:
                twin = outgoing(facts.CODEC, msgspec.structs.replace(record, producer_id="forged"), partition)
                facts.send(log, [twin._replace(key=key)])
    drain()
    assert query("SELECT count(*) FROM stepwell.steps") == [(0,)]
    facts.publish(log, genuine)
    drain()
    assert query("SELECT DISTINCT producer_id FROM stepwell.steps") == [("sim-1",)]
    assert query("SELECT count(*) FROM stepwell.steps") == [(2,)]


@pytest.mark.parametrize("call", ["watermarks", "seek", "position", "resume", "poll"])
def test_a_log_that_goes_away_anywhere_in_a_turn_is_waited_for(
    call: str, database: str, query: Query, capsys: pytest.CaptureFixture[str]
) -> None:
    memory = MemoryLog()
    flaky = Flaky(memory)
    facts.publish(memory, facts.episode("e-1", steps=3))
    flaky.failures[call] = [LogUnavailableError("no broker answers") for _ in range(3)]
    log: Any = flaky
    with Running(Projector(log, database, facts.CODEC), memory) as running:
        running.wait_caught_up()
        # Somebody moves the position: the partitions are placed anew, by seeking.
        query("DELETE FROM stepwell.steps")
        query("UPDATE stepwell.sink_offsets SET next_offset = 0 WHERE topic = %s", EPISODE_EVENTS)
        facts.publish(memory, [facts.step("e-1", 3)])
        running.wait(lambda: query("SELECT count(*) FROM stepwell.steps") == [(4,)] and not flaky.failures[call])
        running.wait_caught_up()
    assert capsys.readouterr().out.count("log is away, waiting") <= 3
    memory.close()
