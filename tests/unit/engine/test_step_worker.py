"""Step rules in the engine's worker: who is judged by what across restarts, and what detectors are told of."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from stepwell.adapters.history import fold_episodes, read_episode_events
from stepwell.adapters.logs.memory import MemoryLog
from stepwell.adapters.rules.activate import activate
from stepwell.adapters.verify import verify_folds
from stepwell.engine import restore as restore_module
from stepwell.engine.loop import BatchSizer
from stepwell.engine.ports import OutgoingRecord
from stepwell.engine.replay import fold_history
from stepwell.engine.ruleset import RuleSet
from stepwell.engine.state import AttemptState
from stepwell.engine.steps import kernels
from stepwell.engine.steps.in_force import RulesInForce, rules_at
from stepwell.engine.steps.program import program_of
from stepwell.engine.verdict import verdict_of
from stepwell.events.ids import derived_event_id
from stepwell.events.model import (
    Event,
    PositionSaved,
    RulesActivated,
    SnapshotTaken,
    VerdictExpected,
    VerdictIssued,
)
from stepwell.events.topics import EPISODE_EVENTS, EPISODE_SNAPSHOTS, POLICY_EVENTS
from stepwell.exceptions import LogUnavailableError, TransactionAbortedError
from tests.unit.engine.episodes import Facts
from tests.unit.engine.running import CODEC, Flaky, Notes, drain, read, send
from tests.unit.engine.test_engine_worker import _loops, engine, letters, states, verdicts

PARTITIONS = range(4)


@pytest.fixture
def log() -> Iterator[MemoryLog]:
    memory = MemoryLog()
    yield memory
    while _loops:
        _loops.pop().close()
    memory.close()


def rule_set(name: str, version: int = 1, label: str = "", steps: int = 1) -> RuleSet:
    """Finds ``label`` in the first ``steps`` steps of every attempt."""
    rule = {"kind": "limit", "name": label or name, "signal": "reward", "below": 9.0, "steps": steps}
    return RuleSet.model_validate({"rule_set": name, "version": version, "steps": [rule]})


def put(log: MemoryLog, rules: RuleSet) -> None:
    assert activate(log, CODEC, rules, "ops").changed


def labels(log: MemoryLog) -> dict[str, tuple[str, ...]]:
    return {verdict.episode_id: verdict.labels for verdict in verdicts(log)}


def expected(log: MemoryLog) -> list[VerdictExpected]:
    return [record for record in read(log, POLICY_EVENTS) if isinstance(record, VerdictExpected)]


def positions(log: MemoryLog) -> list[PositionSaved]:
    return [record for record in read(log, EPISODE_SNAPSHOTS) if isinstance(record, PositionSaved)]


# --- whom a set judges --------------------------------------------------------------------------------------------


def test_attempts_that_were_open_before_keep_their_rules(log: MemoryLog) -> None:
    before, between, after = (Facts(f"ep-{name}") for name in ("before", "between", "after"))
    send(log, *before.begun(1))
    put(log, rule_set("first"))
    send(log, *between.begun(1))
    put(log, rule_set("second"))
    send(log, *after.begun(1), before.ended(1), between.ended(1), after.ended(1))
    drain(engine(log))
    assert labels(log) == {"ep-before": (), "ep-between": ("first",), "ep-after": ("second",)}
    assert letters(log) == []


def test_a_retry_that_begins_behind_an_activation_is_judged_by_it(log: MemoryLog) -> None:
    facts = Facts("ep-1")
    send(log, *facts.begun(1), facts.failed("agent_exited"))
    put(log, rule_set("later"))
    send(log, *Facts("ep-1", attempt=2).whole(1))
    drain(engine(log))
    assert {v.attempt: v.labels for v in verdicts(log)} == {1: (), 2: ("later",)}


@pytest.mark.parametrize("cut", range(1, 24))
def test_a_restart_at_any_record_finds_the_same(log: MemoryLog, cut: int) -> None:
    """An activation in the middle, a kill after any record: before it, behind it, in each order with snapshots."""
    first, second = Facts("ep-1"), Facts("ep-2")
    records: list[Any] = [
        *first.begun(3), rule_set("one", steps=2), *second.begun(1), *first.step(3), *second.step(1),
        rule_set("two", label="two"), second.ended(2, announced=False), *Facts("ep-3").begun(2),
        first.ended(4, announced=False),
    ]  # fmt: skip
    deliver(log, records[:cut])
    killed = engine(log, sizer=BatchSizer(smallest=3, largest=3))
    drain(killed)
    killed.close()
    deliver(log, records[cut:])
    again = engine(log, sizer=BatchSizer(smallest=2, largest=2))
    drain(again)
    other = MemoryLog()
    deliver(other, records)
    plain = engine(other)
    drain(plain)
    assert states(again) == states(plain)
    assert {k: (v, n) for k, v, n in said(log)} == {k: (v, n) for k, v, n in said(other)}
    assert len(said(log)) == len({verdict.event_id for verdict in verdicts(log)}) == 2
    assert sorted(event.episode_id for event in expected(log)) == ["ep-1", "ep-2", "ep-3"]
    assert labels(other) == {"ep-1": (), "ep-2": ("one",)}
    report = verify_folds(log, CODEC)
    assert report.differences == []
    assert report.verdicts == 2
    plain.close()
    other.close()


def deliver(log: MemoryLog, records: list[Any]) -> None:
    for record in records:
        if isinstance(record, RuleSet):
            put(log, record)
        else:
            send(log, record)


def said(log: MemoryLog) -> list[tuple[str, tuple[str, ...], str]]:
    return [(v.episode_id, v.labels, v.provenance.rule_set) for v in verdicts(log)]


def test_rules_of_before_the_rewind_offset_come_from_the_saved_position(log: MemoryLog) -> None:
    """Everything is covered by snapshots and sealed; one that comes back knows the set all the same."""
    put(log, rule_set("kept"))
    send(log, *Facts("ep-1").whole(1))
    first = engine(log)
    drain(first)
    assert positions(log)[-1].rewind_offset == positions(log)[-1].committed_offset
    assert sum("kept" in position.rules_json for position in positions(log)) >= len(PARTITIONS)
    first.close()
    send(log, *Facts("ep-2").whole(1))
    drain(engine(log))
    assert labels(log) == {"ep-1": ("kept",), "ep-2": ("kept",)}


def test_a_graceful_stop_right_behind_an_activation(log: MemoryLog) -> None:
    put(log, rule_set("kept"))
    loop = engine(log)
    turns = iter([False] * 8 + [True])
    loop.run(lambda: next(turns))
    send(log, *Facts("ep-1").whole(1))
    drain(engine(log))
    assert labels(log) == {"ep-1": ("kept",)}


def test_rules_that_no_open_attempt_began_under_are_forgotten(log: MemoryLog) -> None:
    loop = engine(log)
    for version in range(1, 5):
        put(log, rule_set("set", version, label=f"v_{version}"))
        facts = Facts(f"ep-{version}")
        send(log, *(facts.whole(1) if version != 2 else facts.begun(1)))
        drain(loop)
    last = {saved.partition: saved.rules_json for saved in positions(log)}
    (holding,) = [partition for partition, text in last.items() if "v_2" in text]
    # The attempt of version 2 is open: another version of the fold would begin at its first record.
    assert [f"v_{n}" in last[holding] for n in range(1, 5)] == [False, True, False, True]
    assert {text.count("rule_set") for partition, text in last.items() if partition != holding} == {1}


def test_another_version_of_the_fold_judges_open_attempts_by_the_rules_of_their_first_record(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its snapshots are of no use, so it begins below the rewind offset, where other rules were in force."""
    put(log, rule_set("old"))
    facts = Facts("ep-1")
    send(log, *facts.begun(1))
    first = engine(log)
    drain(first)
    put(log, rule_set("new"))
    drain(first)
    before = states(first)
    assert before
    first.close()

    def refuse(record: SnapshotTaken) -> Any:
        if record.kind == "snapshot":
            raise restore_module.SnapshotRefusedError("another fold")
        return real(record)

    real = restore_module.restore
    monkeypatch.setattr(restore_module, "restore", refuse)
    second = engine(log)
    send(log, facts.ended(1), *Facts("ep-2").whole(1))
    drain(second)
    assert labels(log) == {"ep-1": ("old",), "ep-2": ("new",)}


def test_step_rules_can_be_put_out_of_force(log: MemoryLog) -> None:
    put(log, rule_set("first"))
    put(log, RuleSet.model_validate({"rule_set": "first", "version": 2}))
    send(log, *Facts("ep-1").whole(1))
    drain(engine(log))
    (verdict,) = verdicts(log)
    assert (verdict.labels, verdict.provenance.rule_set) == ((), "step-labels/1")


# --- records that are no activation -------------------------------------------------------------------------------


def activation(rules_json: str) -> RulesActivated:
    return RulesActivated(
        event_id=derived_event_id("test", rules_json), run_id="", episode_id="", attempt=1, producer_id="ops",
        producer_seq=0, occurred_at=Facts("x").head("host")["occurred_at"], trace_id="1" * 32, rule_set="odd",
        version=1,
        rules_json=rules_json, sha256=hashlib.sha256(rules_json.encode()).digest(), activated_by="ops",
    )  # fmt: skip


def under(key: bytes, event: Event, partition: int) -> OutgoingRecord:
    value, headers = CODEC.encode(event)
    return OutgoingRecord(EPISODE_EVENTS, key, value, headers, partition)


@pytest.mark.parametrize("rules_json", ["", "[]", "{", '{"rule_set":"odd","version":1,"steps":[{"kind":"psychic"}]}'])
def test_a_set_that_cannot_be_read_leaves_the_one_in_force(log: MemoryLog, rules_json: str) -> None:
    put(log, rule_set("good"))
    send(log, *(under(f"rules/{number}".encode(), activation(rules_json), number) for number in PARTITIONS))
    send(log, *Facts("ep-1").whole(1))
    drain(engine(log))
    assert labels(log) == {"ep-1": ("good",)}
    assert [(letter.kind, letter.reason) for letter in letters(log)] == [("unreadable", "rules")] * 4
    assert "stay" in letters(log)[0].detail
    assert fold_episodes(log, CODEC).keys() == {"ep-1"}
    assert verify_folds(log, CODEC).differences == []


def test_an_activation_under_another_key_activates_nothing(log: MemoryLog) -> None:
    good = activation(rule_set("sneaky").canonical())
    send(log, *(under(key, good, n) for n in PARTITIONS for key in (b"ep-1", b"rules/9", b"rules")))
    send(log, *(under(f"rules/{n}".encode(), Facts("ep-9").claimed(), n) for n in PARTITIONS))
    send(log, *Facts("ep-1").whole(1))
    drain(engine(log))
    assert labels(log) == {"ep-1": ()}
    assert Counter(letter.reason for letter in letters(log)) == {"unexpected_type": 12, "wrong_episode": 4}


# --- a rule that raises -------------------------------------------------------------------------------------------


def test_a_rule_that_raises_is_a_dead_letter_with_the_event(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    def see(*_: object) -> bool:
        raise ZeroDivisionError("seen")

    monkeypatch.setattr(kernels.LimitKernel, "see", see)
    program_of.cache_clear()
    put(log, rule_set("raises"))
    facts = Facts("ep-1")
    send(log, *facts.whole(2))
    drain(engine(log))
    program_of.cache_clear()
    (letter,) = letters(log)
    assert (letter.kind, letter.reason, letter.episode_id, letter.event_type) == (
        "rule_failed", "raises", "ep-1", "sim::step_done",
    )  # fmt: skip
    assert "ZeroDivisionError: seen" in letter.detail
    assert letter.source_value is not None
    assert CODEC.decode(letter.source_value, tuple((h.name, h.value) for h in letter.source_headers))
    (verdict,) = verdicts(log)
    assert (verdict.labels, verdict.n_steps) == ((), 2)


# --- history, replay ----------------------------------------------------------------------------------------------


def test_a_history_is_folded_by_the_rules_that_judged_it(log: MemoryLog) -> None:
    before, after = Facts("ep-before"), Facts("ep-after")
    send(log, *before.begun(1))
    put(log, rule_set("first"))
    send(log, *after.whole(2), before.ended(1))
    drain(engine(log))
    folded = fold_episodes(log, CODEC)
    for name, wanted in (("ep-before", ()), ("ep-after", ("first",))):
        history = list(read_episode_events(log, CODEC, [name]))
        assert {event.episode_id for event, _ in history} == {name}
        (said,) = fold_history(history).verdicts.values()
        attempt = folded[name].attempts[1]
        assert isinstance(attempt, AttemptState)
        assert said == verdict_of(attempt)
        assert said.labels == wanted
    assert labels(log) == {"ep-before": (), "ep-after": ("first",)}


# --- verdicts to be expected --------------------------------------------------------------------------------------


def test_a_first_attempt_that_was_asked_for_is_announced_before_its_verdict(log: MemoryLog) -> None:
    facts = Facts("ep-1")
    send(log, *facts.whole(1), facts.requested(), *Facts("ep-1", attempt=2).whole(1))
    drain(engine(log))
    about = [e for e in read(log, POLICY_EVENTS) if isinstance(e, VerdictExpected | VerdictIssued)]
    assert isinstance(about[0], VerdictExpected)
    (announced,) = expected(log)
    asked = facts.episode_id
    assert (announced.episode_id, announced.attempt, announced.producer_seq, announced.policy) == (
        asked,
        1,
        0,
        "expert",
    )
    assert announced.requested_at == verdicts(log)[0].requested_at
    assert announced.event_id == derived_event_id("expected", "ep-1")


def test_announcement_and_verdict_say_what_the_episode_is_run_for(log: MemoryLog) -> None:
    for episode, purpose in (("ep-1", "evaluation"), ("ep-2", "regression")):
        asked, *others = Facts(episode).whole(1)
        send(log, msgspec.structs.replace(asked, purpose=purpose), *others)
    drain(engine(log))
    wanted = {"ep-1": "evaluation", "ep-2": "regression"}
    assert {event.episode_id: event.purpose for event in expected(log)} == wanted
    assert {verdict.episode_id: verdict.purpose for verdict in verdicts(log)} == wanted


def test_an_attempt_that_nobody_asked_for_is_not_announced_until_the_request_comes(log: MemoryLog) -> None:
    facts = Facts("ep-1")
    asked, *others = facts.begun(1)
    loop = engine(log)
    send(log, *others)
    drain(loop)
    assert expected(log) == []
    send(log, asked)
    drain(loop)
    assert len(expected(log)) == 1


@pytest.mark.parametrize(
    "failures",
    [
        {"commit": [TransactionAbortedError("rolled back")]},
        {"commit": [LogUnavailableError("away")]},
        {"commit after": [LogUnavailableError("committed, but nobody heard")]},
        {"send": [LogUnavailableError("away")]},
    ],
)
def test_it_is_announced_once_whatever_fails_in_between(log: MemoryLog, failures: dict[str, list[Exception]]) -> None:
    flaky = Flaky(log)
    loop = engine(flaky, notes=Notes())
    drain(loop)
    flaky.failures = failures
    send(log, *Facts("ep-1").begun(1))
    drain(loop, 6)
    send(log, *Facts("ep-1").whole(1)[4:])
    drain(loop, 6)
    assert [event.episode_id for event in expected(log)] == ["ep-1"]


def test_a_sealed_episode_is_not_announced_again(log: MemoryLog) -> None:
    facts = Facts("ep-1")
    send(log, *facts.whole(1))
    loop = engine(log)
    drain(loop)
    loop.close()
    send(log, msgspec.structs.replace(Facts("ep-1").requested(), event_id=bytes(16)))
    drain(engine(log))
    assert len(expected(log)) == 1


# --- what a partition remembers of activations --------------------------------------------------------------------


def test_rules_in_force_are_saved_and_taken_up_where_a_restart_begins() -> None:
    rules = RulesInForce()
    assert (rules.now, rules.saved(0, [])) == ("", "")
    rules.activate(10, "ten")
    rules.activate(20, "twenty")
    rules.activate(30, "thirty")
    assert rules.now == "thirty"
    # An attempt of before any rules is open, one of under "ten" as well, and everything up to 25 is covered.
    saved = rules.saved(25, [(15, "ten"), (5, "")])
    for start, begins, now in ((25, 25, "twenty"), (15, 5, ""), (5, 5, "")):
        offset, restored = rules_at(saved, start)
        assert (offset, restored.now) == (begins, now)
    # The next owner sees the activation at 30 again, and says the same.
    _, restored = rules_at(saved, 25)
    restored.activate(30, "thirty")
    assert restored.saved(25, [(15, "ten"), (5, "")]) == saved
    assert restored.saved(31, [(15, "ten")]) == rules.saved(31, [(15, "ten")])
    assert rules_at(restored.saved(31, []), 31)[1].now == "thirty"
    assert rules_at(restored.saved(31, [(31, "thirty")]), 31)[1].now == "thirty"


def test_what_is_saved_of_rules_does_not_grow_with_activations() -> None:
    rules = RulesInForce()
    for offset in range(0, 1000, 2):
        rules.activate(offset, f"set {offset}" * 100)
        assert len(rules.saved(offset, [(1, "set 0" * 100)])) < 3000


def test_after_the_last_rules_nothing_is_saved() -> None:
    rules = RulesInForce()
    rules.activate(10, "ten")
    rules.activate(20, "")
    assert rules.saved(15, []) != ""
    assert rules.saved(25, [(12, "ten")]) != ""
    assert rules.saved(25, [(22, "")]) == ""
    rules.activate(30, "thirty")
    assert rules_at(rules.saved(40, [(22, "")]), 22)[1].now == ""
