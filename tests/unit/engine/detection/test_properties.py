"""Arbitrary histories: a restart anywhere changes nothing, counts are what a plain recount gives, steps are legal."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.engine.detection import partition as partition_module
from stepwell.engine.detection.bearing import Entry, Reading
from stepwell.engine.detection.in_order import InOrderJudge
from stepwell.engine.detection.ledger import Trigger
from stepwell.engine.detection.partition import PolicyPartition
from stepwell.engine.detection.policies import Place, Policies
from stepwell.engine.detection.restore import DetectorRestore
from stepwell.engine.detection.state import NEVER, PolicyState, dump, load
from stepwell.engine.ports import OutgoingRecord, RecordBatch, TopicPartition, Watermarks
from stepwell.engine.publish import outgoing, partition_copies
from stepwell.events.model import Event, PatternDetected, RetrainRequested
from stepwell.events.topics import POLICY_EVENTS, POLICY_SNAPSHOTS
from tests.unit.engine.detection.stories import (
    SECOND,
    START,
    acknowledged,
    activated,
    answer,
    expected,
    muted,
    rules,
    ticked,
    unmuted,
)
from tests.unit.engine.running import CODEC
from tests.unit.engine.verdicts import verdict

PROMISE = {"baseline_rate": 0.1, "average_run_length": 1000.0}
ROW = {"kind": "in_a_row", "name": "row", "length": 3, "cooldown_episodes": 2}
WINDOW = {
    "kind": "window_rate", "name": "window", "window": 4, "minimum": 3, "limit": 0.5, "promise": PROMISE,
    "cooldown_episodes": 1, "cooldown_s": 5.0, "expires_s": 40.0,
}  # fmt: skip
RATE = {"kind": "rate", "name": "rate", "limit": 0.4, "level": 0.5, "minimum": 2, "per": ["scene"], "expires_s": 60.0}
SHIFT = {"kind": "shift", "name": "shift", "level": 0.5, "minimum": 2, "cooldown_episodes": 1}
SETS = [
    rules(ROW, WINDOW, RATE, SHIFT, wait_s=10.0),
    rules(ROW | {"length": 2}, WINDOW, SHIFT | {"baseline": "a"}, wait_s=3.0),
    rules(RATE | {"counts": {"failure_types": ["agent_exception"]}}, ROW, wait_s=30.0),
]
POLICIES = ("expert", "novice")

NAMES = st.integers(0, 29).map(lambda i: f"e{i}")
VERDICTS = st.builds(
    verdict,
    NAMES,
    st.sampled_from([None, "task_not_completed", "task_not_completed", "agent_exception", "sim_exited"]),
    revision=st.sampled_from([0, 0, 1, 2, 3]),
    attempt=st.sampled_from([1, 1, 1, 1, 1, 2]),
    checkpoint=st.sampled_from(["a", "a", "a", "b"]),
    scene=st.sampled_from(["lit", "lit", "lit", "dark"]),
    policy=st.sampled_from(("expert", "expert", "expert", "novice")),
)
FAILURES = st.builds(verdict, NAMES, checkpoint=st.sampled_from(["a", "b", "b"]))
ITEMS = st.one_of(
    *[VERDICTS] * 6,
    *[FAILURES] * 4,
    st.builds(expected, NAMES, st.sampled_from(POLICIES)),
    st.tuples(st.just("answer"), st.integers(0, 3), st.sampled_from(["accepted", "done", "failed", "perhaps"])),
    st.tuples(st.just("acknowledge"), st.integers(0, 3), st.just("")),
    st.tuples(st.just("mute"), st.integers(0, 30), st.sampled_from(["", "row", "rate"])),
    st.builds(unmuted, st.sampled_from([None, "row", "rate"]), st.sampled_from(POLICIES)),
    st.tuples(st.just("tick"), st.integers(0, 30), st.just("")),
    st.tuples(st.just("activate"), st.sampled_from([0, 0, 0, 1, 2]), st.just("")),
)
HISTORIES = st.lists(ITEMS, min_size=20, max_size=120)


def events_of(items: list[Any]) -> list[tuple[Event, Place]]:
    """The history, with answers and acknowledgements of what was requested so far, all of one partition."""
    policies, now, told, requests = Policies(SETS[0].canonical()), START, [], []
    for offset, item in enumerate(items):
        now += SECOND
        event = item
        if isinstance(item, tuple):
            word, number, text = item
            if word in ("answer", "acknowledge"):
                if number >= len(requests):
                    continue
                trigger_id, policy = requests[number]
                make: Any = answer if word == "answer" else acknowledged
                event = make(trigger_id, text, policy) if text else make(trigger_id, policy=policy)
            elif word == "mute":
                event = muted(text or None, now + number * SECOND if number else None)
            elif word == "tick":
                now += number * SECOND
                event = ticked(now)
            else:
                event = activated(SETS[number])
        place = Place(0, offset, now)
        told.append((event, place))
        for out in policies.take(event, place):
            if isinstance(out, RetrainRequested):
                requests.append((out.trigger_id, out.policy))
    return told


def play(history: list[tuple[Event, Place]], cuts: frozenset[int] = frozenset()) -> tuple[dict[str, bytes], list[Any]]:
    """Fold; at each cut every state goes through bytes."""
    policies = Policies(SETS[0].canonical())
    out: list[Any] = []
    for i, (event, place) in enumerate(history):
        if i in cuts:
            before, policies = policies, Policies(policies.rules_json)
            for state in before.states.values():
                policies.adopt(load(dump(state)))
        out += policies.take(event, place)
    return policies.ledger_bytes(), out


# --- restarts ---------------------------------------------------------------------------------------------------------


class Log:
    """Just enough of a log to restore from: what was committed of two topics."""

    said_away = False

    def __init__(self, events: list[OutgoingRecord], times: list[int]) -> None:
        self.records = {POLICY_EVENTS: events, POLICY_SNAPSHOTS: list[OutgoingRecord]()}
        self.times = times

    def consumer(self) -> "Reader":
        return Reader(self)


class Reader:
    def __init__(self, log: Log) -> None:
        self.log = log
        self.at: tuple[TopicPartition, int] = (TopicPartition("", 0), 0)

    def watermarks(self, source: TopicPartition) -> Watermarks:
        return Watermarks(0, len(self.log.records[source.topic]))

    def assign(self, positions: dict[TopicPartition, int]) -> None:
        (self.at,) = positions.items()

    def position(self, source: TopicPartition) -> int:
        return self.at[1]

    def poll(self, max_records: int, timeout_s: float) -> list[RecordBatch]:
        source, start = self.at
        batch = batch_of(self.log, source, start, len(self.log.records[source.topic]))
        self.at = (source, batch.end)
        return [batch]

    def close(self) -> None:
        pass


def batch_of(log: Log, source: TopicPartition, start: int, end: int) -> RecordBatch:
    records = log.records[source.topic][start:end]
    offsets = list(range(start, start + len(records)))
    times = log.times[start:end] if source.topic == POLICY_EVENTS else [0] * len(records)
    return RecordBatch(
        source, start, start + len(records), offsets, times, [record.key for record in records],
        [record.value for record in records], [record.headers for record in records],
    )  # fmt: skip


def written(event: Event) -> OutgoingRecord:
    if event.TYPE in ("rules::activated", "detector::ticked"):
        return partition_copies(CODEC, event, POLICY_EVENTS, [0])[0]
    return outgoing(CODEC, event)


def work(
    log: Log, ends: list[int], lost: frozenset[int], graceful: frozenset[int]
) -> tuple[PolicyPartition, list[Any]]:
    """Process batches up to these ends. ``lost``: killed before that batch's commit; ``graceful``: stopped after it."""
    source = TopicPartition(POLICY_EVENTS, 0)
    restore: Any = DetectorRestore(log, CODEC, "d")  # type: ignore[arg-type]
    committed: int | None = None
    made = restore(source, committed, log.consumer())
    published = []
    for i, end in enumerate(ends):
        for attempt in range(2 if i in lost else 1):
            out = made.process(batch_of(log, source, made.position, end), end * SECOND)
            if i in lost and attempt == 0:
                made = restore(source, committed, log.consumer())
        if i in graceful:
            out += made.finish(end * SECOND)
        log.records[POLICY_SNAPSHOTS] += [record for record in out if record.topic == POLICY_SNAPSHOTS]
        published += [record.value for record in out if record.topic != POLICY_SNAPSHOTS]
        committed = end
        if i in graceful:
            made = restore(source, committed, log.consumer())
    return made, published


@pytest.fixture(scope="module", autouse=True)
def _often() -> Iterator[None]:
    """Snapshots every few records, one at a time, so that some policies are ahead of others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partition_module, "SNAPSHOT_RECORDS", 4)
        patch.setattr(partition_module, "SNAPSHOTS_AT_ONCE", 1)
        yield


@settings(max_examples=150, deadline=None)
@given(HISTORIES, st.sets(st.integers(1, 119)), st.frozensets(st.integers(0, 20)), st.frozensets(st.integers(0, 20)))
def test_killed_anywhere_and_restored_from_snapshots_it_is_the_same_ledger(
    items: list[Any], ends: set[int], lost: frozenset[int], graceful: frozenset[int]
) -> None:
    """Byte for byte, and everything published once, in the same order."""
    history = events_of([activation(), *items])
    records, times = [written(event) for event, _ in history], [place.timestamp for _, place in history]
    stops = [*sorted(end for end in ends if end < len(records)), len(records)]
    whole, said = work(Log(records, times), [len(records)], frozenset(), frozenset())
    cut, said_again = work(Log(records, times), stops, lost, graceful)
    assert cut.ledger_bytes() == whole.ledger_bytes()
    assert said_again == said
    log = Log(records, times)
    fresh: Any = DetectorRestore(log, CODEC, "d")(TopicPartition(POLICY_EVENTS, 0), len(records), log.consumer())  # type: ignore[arg-type]
    assert fresh.ledger_bytes() == whole.ledger_bytes()


def activation() -> tuple[str, int, str]:
    return ("activate", 0, "")


@settings(max_examples=150, deadline=None)
@given(HISTORIES, st.frozensets(st.integers(0, 119)))
def test_states_that_go_through_bytes_anywhere_say_the_same(items: list[Any], cuts: frozenset[int]) -> None:
    history = events_of(items)
    assert play(history, cuts) == play(history)


# --- what is published ------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(HISTORIES)
def test_every_trigger_goes_through_legal_states_and_nothing_is_said_twice(items: list[Any]) -> None:
    """Pattern first, then at most one request, then at most one of withdrawn and expired; ids are unique."""
    _, out = play(events_of(items))
    said: dict[str, list[str]] = {}
    for event in out:
        said.setdefault(event.trigger_id, []).append(event.TYPE.partition("::")[2])
    legal = [["pattern_detected", *request, *end] for request in ([], ["requested"]) for end in ([], ["withdrawn"])]
    legal += [["pattern_detected", *request, "expired"] for request in ([], ["requested"])]
    assert all(words in legal for words in said.values()), said
    assert len({event.event_id for event in out}) == len(out)
    for policy in POLICIES:
        numbers = [event.producer_seq for event in out if event.policy == policy]
        assert numbers == list(range(len(numbers)))


@settings(max_examples=150, deadline=None)
@given(st.lists(VERDICTS, min_size=10, max_size=60))
def test_repeats_change_nothing(events: list[Any]) -> None:
    """At-least-once delivery of verdicts."""
    at = [(event, Place(0, i, START + i)) for i, event in enumerate(events)]
    doubled = [(event, Place(0, i, START + i // 2)) for i, event in enumerate(e for e in events for _ in range(2))]

    def names(history: list[tuple[Event, Place]]) -> list[tuple[str, tuple[str, ...]]]:
        return [
            (event.TYPE, tuple(item.episode_id for item in getattr(event, "evidence", ())))
            for event in play(history)[1]
        ]

    assert names(doubled) == names(at)


# --- a plain recount --------------------------------------------------------------------------------------------------


def recount(state: PolicyState, reading: Reading, key: Any, first: int, last: int) -> tuple[int, int]:
    """Failures and episodes of a key by their ranks, counted plainly."""
    entries: list[Entry] = [e for e in state.window.values() if first <= e.rank <= last and reading.key(e) == key]
    said = Counter(reading.says(entry) for entry in entries)
    return said["counts"], said["counts"] + said["breaks"]


def check_sample(state: PolicyState, judge: InOrderJudge, trigger: Trigger) -> None:
    sample = trigger.sample
    assert sample is not None
    found = recount(state, judge.reading, trigger.key, sample.first, sample.last)
    assert (sample.failures, sample.episodes) == found
    if sample.base is not None:
        found = recount(state, judge.reading, sample.base, sample.base_first, sample.last)
        assert (sample.old_failures, sample.old_episodes) == found
    assert judge.over(sample), "a trigger stands only while its opening holds"


@settings(max_examples=300, deadline=None)
@given(HISTORIES)
def test_streams_and_samples_are_what_a_plain_recount_gives(items: list[Any]) -> None:
    """After every record: whatever was amended, moved or answered, no episode is counted twice or forgotten."""
    policies = Policies(SETS[0].canonical())
    for event, place in events_of(items):
        policies.take(event, place)
        for state in policies.states.values():
            for judge in policies.detector.judges.values():
                if not isinstance(judge, InOrderJudge):
                    continue
                for key, stream in state.rules[judge.rule.name].streams.items():
                    found = recount(state, judge.reading, key, stream.since, NEVER)
                    assert (stream.tally.failures, stream.tally.episodes) == found
                    if stream.base is not None:
                        found = recount(state, judge.reading, stream.base, stream.base_since, NEVER)
                        assert (stream.old.failures, stream.old.episodes) == found
                    assert [item.rank for item in stream.recent] == sorted(item.rank for item in stream.recent)
                    named = {item.rank for item in stream.recent if item.rank >= stream.since}
                    assert len(named) == stream.tally.failures
                for trigger in state.ledger.standing():
                    if trigger.rule == judge.rule.name and not trigger.orphaned:
                        check_sample(state, judge, trigger)


@settings(max_examples=150, deadline=None)
@given(HISTORIES)
def test_over_the_line_there_is_a_trigger(items: list[Any]) -> None:
    """Nothing that fires is missed: it stands, cools down, or has expired without another failure since."""
    policies = Policies(SETS[0].canonical())
    for event, place in events_of(items):
        policies.take(event, place)
    for state in policies.states.values():
        for judge in policies.detector.judges.values():
            if isinstance(judge, InOrderJudge):
                for stream in state.rules[judge.rule.name].streams.values():
                    over = stream.since != NEVER and judge.over(judge.sample_of(stream, state.admitted - 1))
                    assert not over or stream.trigger or stream.barred


def test_a_tick_that_nobody_waits_for_changes_no_bytes() -> None:
    policies = Policies(SETS[0].canonical())
    policies.take(verdict("e0"), Place(0, 0, START))
    before = policies.ledger_bytes()
    assert policies.take(ticked(START + 10**12), Place(0, 1, START)) == []
    assert policies.ledger_bytes() == before


def test_two_partitions_fold_apart() -> None:
    """A policy's ledger is that of its own partition; both see the activation."""
    made = [Policies(), Policies()]
    out = []
    for number, (policies, policy) in enumerate(zip(made, POLICIES, strict=True)):
        policies.take(activated(SETS[0]), Place(number, 0, START))
        for i in range(3):
            found = policies.take(verdict(f"e{i}", policy=policy), Place(number, 1 + i, START + i))
            out += [event for event in found if isinstance(event, PatternDetected)]
    assert {(event.policy, event.evidence[0].partition) for event in out} == {("expert", 0), ("novice", 1)}
    assert len({event.trigger_id for event in out}) == len(out)
