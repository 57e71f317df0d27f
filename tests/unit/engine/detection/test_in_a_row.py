"""The rule, the ledger and the detector's fold."""

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.engine.detection import state as module
from stepwell.engine.detection.bearing import bearing
from stepwell.engine.detection.fold import Detector, policy_of
from stepwell.engine.detection.ledger import CLOSED_MAX
from stepwell.engine.detection.state import PolicyState, dump, load
from stepwell.engine.ruleset import BUILT_IN, WINDOW_MAX, InARowRule, RuleSet
from stepwell.events.model import (
    CommandIssued,
    Event,
    PatternDetected,
    RetrainAnswered,
    RetrainRequested,
    RetrainWithdrawn,
    VerdictIssued,
)
from tests.unit.engine.verdicts import verdict


class At(NamedTuple):
    partition: int
    offset: int
    timestamp: int


def answer(trigger_id: str, status: str) -> RetrainAnswered:
    return RetrainAnswered(
        event_id=b"\0" * 16, run_id="run-1", episode_id="", attempt=1, producer_id="t", producer_seq=0, occurred_at=1,
        trace_id="0" * 32, trigger_id=trigger_id, policy="expert", status=status, detail="",
    )  # fmt: skip


def fold(
    events: list[Event], state: PolicyState | None = None, start: int = 0, rule: RuleSet = BUILT_IN
) -> list[Event]:
    """Everything published; folds into ``state``."""
    detector = Detector(rule)
    state = state if state is not None else PolicyState("expert")
    state.rules = state.rules or detector.begin("expert").rules
    found = [detector.apply(state, event, At(2, i, 1_000_000 + i)) for i, event in enumerate(events, start)]
    return [out for outs in found for out in outs if isinstance(out, Event)]


def row_rule(length: int, cooldown: int = 10) -> RuleSet:
    rule = InARowRule(kind="in_a_row", name="row", length=length, cooldown_episodes=cooldown)
    return RuleSet(rule_set="test", verdicts=[rule])


def types(events: list[Event]) -> list[str]:
    return [event.TYPE for event in events]


OPENED = ["failure::pattern_detected", "retrain::requested"]


def test_exactly_n_in_a_row_publish_once_with_their_evidence() -> None:
    """N-1 say nothing, the Nth publishes pattern and request, further ones are merged."""
    state = PolicyState("expert")
    assert fold([verdict(f"e{i}") for i in range(4)], state) == []
    pattern, request = fold([verdict("e4", scene="dark")], state, 4)
    assert isinstance(pattern, PatternDetected)
    assert isinstance(request, RetrainRequested)
    assert [item.episode_id for item in request.evidence] == ["e0", "e1", "e2", "e3", "e4"]
    assert [item.offset for item in pattern.evidence] == [0, 1, 2, 3, 4]
    assert {item.partition for item in pattern.evidence} == {2}
    assert request.trigger_id == pattern.trigger_id
    assert request.failure_type == "task_not_completed"
    both = 1.5 / 2 + 4.5 / 5
    assert [(w.scene, w.weight) for w in request.sampling_weights] == [("dark", 0.75 / both), ("plain", 0.9 / both)]
    assert (pattern.producer_seq, request.producer_seq) == (0, 1)
    assert pattern.occurred_at == 1_000_004
    assert "same_failure_in_a_row version 1" in request.requested_by
    assert fold([verdict(f"f{i}") for i in range(20)], state, 5) == []
    assert state.ledger.triggers[request.trigger_id].merged == 20


@pytest.mark.parametrize(
    ("between", "fires"),
    [
        (verdict("x", "sim_exited"), True),
        (verdict("x", "host_lost"), True),
        (verdict("x", "aborted_by_operator"), True),
        (verdict("x", None, autonomous=False), True),
        (verdict("x", None, attempt=2), True),
        (verdict("x", None, version="2"), True),
        (verdict("x", None, checkpoint="abc"), True),
        (verdict("x", None), False),
        (verdict("x", "agent_exception"), False),
    ],
)
def test_what_breaks_a_row_and_what_is_skipped(between: VerdictIssued, fires: bool) -> None:
    """Only a success or another failure of the same policy, version and checkpoint breaks the row."""
    events = [*[verdict(f"e{i}") for i in range(4)], between, verdict("e4")]
    assert types(fold(list(events))) == (OPENED if fires else [])


def test_infrastructure_faults_never_open_a_trigger() -> None:
    """However many: they say nothing about the policy."""
    for failure_type in ("sim_exited", "host_lost", "aborted_by_operator", "never_heard_of"):
        assert fold([verdict(f"e{i}", failure_type) for i in range(30)]) == []


def test_a_failure_with_a_foreign_fault_is_silent() -> None:
    """A verdict that contradicts the taxonomy must not hurt the policy."""
    import msgspec

    odd = msgspec.structs.replace(verdict("e"), fault="infrastructure")
    assert bearing(odd) == "silent"


def test_repeats_and_old_revisions_change_nothing() -> None:
    """The same verdict again, or an older revision after a newer one."""
    state = PolicyState("expert")
    fold([verdict("e0", revision=3)], state)
    before = dump(state)
    fold([verdict("e0", revision=3), verdict("e0", None, revision=2)], state, 1)
    assert state.ignored == 2
    same = load(before)
    state.ignored, state.now, state.last_offset = 0, same.now, same.last_offset  # that time has passed is noted
    assert dump(state) == before
    assert fold([verdict("e0", revision=3)] * 10) == []


def test_an_amended_verdict_takes_the_old_ones_place() -> None:
    """A success in the middle that turns out a failure completes the row where it stands."""
    events: list[Event] = [verdict("e0"), verdict("e1"), verdict("e2", None), verdict("e3"), verdict("e4")]
    state = PolicyState("expert")
    assert fold(events, state) == []
    out = fold([verdict("e2", revision=1)], state, 5)
    assert types(out) == OPENED
    assert isinstance(out[1], RetrainRequested)
    assert [item.episode_id for item in out[1].evidence] == ["e0", "e1", "e2", "e3", "e4"]
    assert [item.offset for item in out[1].evidence] == [0, 1, 5, 3, 4]


def test_lost_evidence_withdraws_and_may_open_another() -> None:
    """The amended verdict breaks the row; what remains may count again, in a new trigger."""
    state = PolicyState("expert")
    request = fold([verdict(f"e{i}") for i in range(5)], state)[1]
    assert isinstance(request, RetrainRequested)
    out = fold([verdict("e1", None, revision=1)], state, 5)
    assert types(out) == ["retrain::withdrawn"]
    assert isinstance(out[0], RetrainWithdrawn)
    assert out[0].trigger_id == request.trigger_id
    assert "e1" in out[0].reason
    assert state.ledger.triggers[request.trigger_id].status == "withdrawn"
    again = fold([verdict("e5"), verdict("e6")], state, 6)
    assert types(again) == OPENED
    assert isinstance(again[1], RetrainRequested)
    assert again[1].trigger_id != request.trigger_id
    assert [item.episode_id for item in again[1].evidence] == ["e2", "e3", "e4", "e5", "e6"]


def test_a_longer_row_keeps_its_trigger() -> None:
    """Losing one episode at the edge leaves N in a row, so the trigger stands."""
    state = PolicyState("expert")
    fold([verdict(f"e{i}") for i in range(6)], state)
    assert fold([verdict("e0", None, revision=1)], state, 6) == []
    assert [t.status for t in state.ledger.triggers.values()] == ["open"]
    assert [t.lost for t in state.ledger.triggers.values()] == [["e0"]]
    assert fold([verdict("e0", revision=2)], state, 7) == []
    assert [t.lost for t in state.ledger.triggers.values()] == [[]]


def test_the_same_evidence_again_is_another_trigger() -> None:
    """A breaker that comes and goes: the second opening has its own id, or subscribers would drop it."""
    state = PolicyState("expert")
    events: list[Event] = [
        verdict("e0"),
        verdict("e1"),
        verdict("x", "sim_exited"),
        *[verdict(f"e{i}") for i in (2, 3, 4)],
    ]
    first = fold(events, state)
    assert types(fold([verdict("x", None, revision=1)], state, 6)) == ["retrain::withdrawn"]
    second = fold([verdict("x", "sim_exited", revision=2)], state, 7)
    assert types(second) == OPENED
    assert isinstance(first[1], RetrainRequested)
    assert isinstance(second[1], RetrainRequested)
    assert second[1].evidence == first[1].evidence
    assert second[1].trigger_id != first[1].trigger_id
    assert second[1].event_id != first[1].event_id


def test_answers_close_and_cool_down() -> None:
    """Accepted keeps it open; done closes it, and the aftermath opens nothing for as long as the rule says."""
    state = PolicyState("expert")
    rule = row_rule(2, 3)
    request = fold([verdict("e0"), verdict("e1")], state, rule=rule)[1]
    assert isinstance(request, RetrainRequested)
    fold([answer(request.trigger_id, "accepted")], state, 2, rule)
    trigger = state.ledger.triggers[request.trigger_id]
    assert (trigger.status, trigger.standing) == ("accepted", True)
    assert fold([verdict("e2"), verdict("e3"), verdict("e4")], state, 3, rule) == []
    fold([answer(request.trigger_id, "done"), answer(request.trigger_id, "failed")], state, 6, rule)
    assert trigger.status == "done"
    assert state.ignored == 1
    assert fold([verdict("e5"), verdict("i", "sim_exited"), verdict("e6"), verdict("e7")], state, 8, rule) == []
    assert trigger.cooldown_left == 0
    assert fold([verdict("e8")], state, 12, rule) == []
    again = fold([verdict("e9")], state, 13, rule)
    assert types(again) == OPENED
    assert isinstance(again[1], RetrainRequested)
    assert [item.episode_id for item in again[1].evidence] == ["e8", "e9"]


def test_an_accepted_trigger_is_withdrawn_a_closed_one_is_not() -> None:
    """A service at work is told; one that is done is not."""
    rule = row_rule(2)
    for status, expected in (("accepted", ["retrain::withdrawn"]), ("done", [])):
        state = PolicyState("expert")
        request = fold([verdict("e0"), verdict("e1")], state, rule=rule)[1]
        assert isinstance(request, RetrainRequested)
        fold([answer(request.trigger_id, status)], state, 2, rule)
        assert types(fold([verdict("e0", None, revision=1)], state, 3, rule)) == expected


def test_answers_to_nobody_and_unknown_words_are_ignored() -> None:
    """They change nothing but a count."""
    state = PolicyState("expert")
    request = fold([verdict(f"e{i}") for i in range(5)], state)[1]
    assert isinstance(request, RetrainRequested)
    fold([answer("tr-none", "done"), answer(request.trigger_id, "perhaps")], state, 5)
    assert state.ignored == 2
    assert state.ledger.triggers[request.trigger_id].status == "open"


def test_two_failure_types_are_two_triggers() -> None:
    """Each row is judged for its own failure type."""
    out = fold([verdict(f"a{i}") for i in range(5)] + [verdict(f"b{i}", "agent_exception") for i in range(5)])  # type: ignore[operator]
    assert types(out) == OPENED * 2
    assert {event.failure_type for event in out if isinstance(event, RetrainRequested)} == {
        "task_not_completed",
        "agent_exception",
    }


def test_an_amendment_may_move_an_episode_to_another_version() -> None:
    """The request came late: the verdict leaves the one row and joins the other; both are judged again."""
    rule = row_rule(2)
    state = PolicyState("expert")
    fold([verdict("e0", version="2"), verdict("x", None, version="1"), verdict("e1", version="1")], state, rule=rule)
    out = fold([verdict("x", None, version="2", revision=1), verdict("e1", version="2", revision=1)], state, 3, rule)
    assert out == []
    assert types(fold([verdict("x", None, version="1", revision=2)], state, 5, rule)) == OPENED


def test_the_window_is_bounded_and_late_amendments_still_count_for_triggers() -> None:
    """What left the window is known by its revision; an open trigger still knows its own evidence."""
    state = PolicyState("expert")
    request = fold([verdict(f"e{i}") for i in range(5)], state)[1]
    fold([verdict(f"s{i}", None) for i in range(WINDOW_MAX + module.FORGOTTEN_MAX)], state, 5)
    assert len(state.window) == WINDOW_MAX
    assert len(state.forgotten) == module.FORGOTTEN_MAX
    state = PolicyState("expert")
    request = fold([verdict(f"e{i}") for i in range(5)], state)[1]
    fold([verdict(f"s{i}", None) for i in range(WINDOW_MAX)], state, 5)
    assert isinstance(request, RetrainRequested)
    assert fold([verdict("e0", revision=1)], state, 600) == []
    out = fold([verdict("e0", None, revision=2)], state, 601)
    assert types(out) == ["retrain::withdrawn"]
    assert state.forgotten["e0"] == 2
    assert fold([verdict("e0", None, revision=2)], state, 602) == []
    assert state.ignored == 1


def test_closed_triggers_are_bounded() -> None:
    """The oldest closed ones go."""
    rule = row_rule(1, 0)
    state = PolicyState("expert")
    for i in range(CLOSED_MAX + 10):
        out = fold([verdict(f"e{i}")], state, 2 * i, rule)
        assert isinstance(out[1], RetrainRequested)
        fold([answer(out[1].trigger_id, "done")], state, 2 * i + 1, rule)
    assert len(state.ledger.triggers) == CLOSED_MAX


def test_events_of_no_policy_are_not_read() -> None:
    """A command says nothing to a detector."""
    command = CommandIssued(
        event_id=b"\0" * 16, run_id="r", episode_id="e", attempt=1, producer_id="o", producer_seq=0, occurred_at=1,
        trace_id="0" * 32, command_id="c", kind="abort", arguments_json="{}", issued_by="someone",
    )  # fmt: skip
    assert policy_of(command) == ""
    assert policy_of(verdict("e")) == policy_of(answer("t", "done")) == "expert"
    assert Detector().apply(Detector().begin("expert"), command, At(0, 0, 0)) == []


EVENTS = st.lists(
    st.one_of(
        st.builds(
            verdict,
            st.integers(0, 12).map(lambda i: f"e{i}"),
            st.sampled_from([None, "task_not_completed", "task_not_completed", "agent_exception", "sim_exited"]),
            revision=st.integers(0, 3),
            attempt=st.sampled_from([1, 1, 1, 2]),
            version=st.sampled_from(["1", "1", "2"]),
        ),
        st.tuples(st.integers(0, 3), st.sampled_from(["accepted", "done", "rejected"])),
    ),
    max_size=60,
)
RULE, RULE_LENGTH = row_rule(3, 2), 3


def play(events: list[object], cuts: set[int]) -> tuple[bytes, list[Event]]:
    """Fold, answering the i-th request so far where the history says so; dump and load at each cut."""
    state, out, requests = Detector(RULE).begin("expert"), [], []
    for i, item in enumerate(events):
        if i in cuts:
            state = load(dump(state))
        event = item
        if isinstance(item, tuple):
            if item[0] >= len(requests):
                continue
            event = answer(requests[item[0]], item[1])
        assert isinstance(event, Event)
        new = [out for out in Detector(RULE).apply(state, event, At(0, i, i)) if isinstance(out, Event)]
        requests += [item.trigger_id for item in new if isinstance(item, RetrainRequested)]
        out += new
    return dump(state), out


@settings(max_examples=100, deadline=None)
@given(EVENTS, st.sets(st.integers(0, 59)))
def test_a_restart_anywhere_changes_nothing(events: list[object], cuts: set[int]) -> None:
    """Same bytes, same events, no id twice, and every standing trigger has its row."""
    whole_state, whole_out = play(events, set())
    assert play(events, cuts) == (whole_state, whole_out)
    ids = [event.event_id for event in whole_out]
    assert len(ids) == len(set(ids))
    assert [event.producer_seq for event in whole_out] == list(range(len(whole_out)))


@settings(max_examples=100, deadline=None)
@given(EVENTS)
def test_repeating_every_event_changes_no_output(events: list[object]) -> None:
    """At-least-once delivery of verdicts and answers gives the same requests."""
    doubled = [event for event in events for _ in range(2)]
    names = [(event.TYPE, getattr(event, "trigger_id", "")) for event in play(events, set())[1]]
    assert [(event.TYPE, getattr(event, "trigger_id", "")) for event in play(doubled, set())[1]] == names


@settings(max_examples=100, deadline=None)
@given(EVENTS)
def test_standing_triggers_rest_on_a_row_that_a_plain_reading_finds(events: list[object]) -> None:
    """Against a plain reading of the history: a trigger stands exactly while its policy has a row with its episodes."""
    state_bytes, out = play(events, set())
    state = load(state_bytes)
    latest: dict[str, VerdictIssued] = {}
    for event in events:
        if isinstance(event, VerdictIssued) and event.attempt == 1:
            old = latest.get(event.episode_id)
            if old is None or event.revision > old.revision:
                latest[event.episode_id] = event
    longest: dict[tuple[str, str], int] = {}
    for version in ("1", "2"):
        row = [v for v in latest.values() if v.policy_version == version and bearing(v) != "silent"]
        length = 0
        for i, v in enumerate(row):
            length = length + 1 if i and row[i - 1].failure_type == v.failure_type else 1
            if v.failure_type:
                key = (version, v.failure_type)
                longest[key] = max(longest.get(key, 0), length)
    for trigger in state.ledger.standing():
        assert longest.get((trigger.key.policy_version, trigger.failure_type), 0) >= RULE_LENGTH
    requested = [event.trigger_id for event in out if isinstance(event, RetrainRequested)]
    if not any(isinstance(event, tuple) for event in events):
        open_now = {(t.key.policy_version, t.failure_type) for t in state.ledger.standing()}
        assert open_now == {key for key, length in longest.items() if length >= RULE_LENGTH}
    assert len(requested) == len(set(requested))
