"""What people are shown of mutes is what the detector does: one history, read by both."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.adapters import retrain_mutes
from stepwell.adapters.retrain_mutes import Mute, read_mutes
from stepwell.engine.detection import mutes as mutes_module
from stepwell.engine.detection.policies import Place, Policies
from stepwell.engine.ports import RecordBatch, TopicPartition
from stepwell.events.model import Event
from stepwell.events.topics import POLICY_EVENTS
from tests.unit.engine.detection.stories import SECOND, START, muted, ticked, unmuted
from tests.unit.engine.running import CODEC

History = list[tuple[Event, int]]
RULES = st.sampled_from([None, "row", "rate", "often"])
POLICIES = st.sampled_from(["expert", "novice"])
SAID = st.one_of(
    st.tuples(st.just("mute"), RULES, st.integers(-3, 12) | st.none(), POLICIES),
    st.tuples(st.just("unmute"), RULES, st.none(), POLICIES),
    st.tuples(st.just("tick"), st.none(), st.integers(0, 5), POLICIES),
)


def history_of(said: list[tuple[str, str | None, int | None, str]]) -> History:
    """A second apart."""
    told: History = []
    for i, (word, rule, after, policy) in enumerate(said):
        now = START + i * SECOND
        until = None if after is None else now + after * SECOND
        event: Event = muted(rule, until, policy) if word == "mute" else unmuted(rule, policy)
        told.append((ticked(until or now) if word == "tick" else event, now))
    return told


def shown(history: History) -> list[Mute]:
    encoded = [CODEC.encode(event) for event, _ in history]
    batch = RecordBatch(
        TopicPartition(POLICY_EVENTS, 0), 0, len(history), list(range(len(history))), [at for _, at in history],
        [None] * len(history), [value for value, _ in encoded], [headers for _, headers in encoded],
    )  # fmt: skip

    def batches(log: Any, topic: str) -> Iterator[RecordBatch]:
        assert topic == POLICY_EVENTS
        yield batch

    log: Any = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retrain_mutes, "read_batches", batches)
        return read_mutes(log, CODEC)


def held(history: History, now: int) -> dict[tuple[str, str | None], int | None]:
    """What the detector holds back at ``now``."""
    made = Policies()
    for offset, (event, at) in enumerate(history):
        made.take(event, Place(0, offset, at))
    made.take(ticked(now), Place(0, len(history), now))
    return {
        (policy, rule or None): until or None
        for policy, state in made.states.items()
        for rule, until in state.mutes.items()
    }


@settings(max_examples=300, deadline=None)
@given(st.lists(SAID, max_size=25), st.sampled_from([2, 4096]))
def test_the_list_and_the_detector_agree(said: list[Any], most: int) -> None:
    history = history_of(said)
    now = START + (len(said) + 5) * SECOND
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mutes_module, "MUTES_MAX", most)
        listed = {
            (each.event.policy, each.event.rule): each.event.until for each in shown(history) if each.in_force(now)
        }
        assert listed == held(history, now)


def test_who_ended_it_is_shown() -> None:
    (mute,) = shown([(muted(), START), (muted(until=START), START + 1), (unmuted(), START + 2)])
    assert (mute.event.until, mute.ended_by) == (None, "ann")
    (mute,) = shown([(muted(until=START), START + 1)])
    assert (mute.ended_by, mute.in_force(START + 1)) == ("", False)
    (mute,) = shown([(muted(until=START + 5), START), (unmuted(), START + 9)])
    assert mute.ended_by == ""


def test_a_refused_mute_is_shown_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutes_module, "MUTES_MAX", 1)
    first, second = shown([(muted("a"), START), (muted("b"), START + 1)])
    assert (first.in_force(START), second.in_force(START), second.ended_by) == (True, False, retrain_mutes.REFUSED)
