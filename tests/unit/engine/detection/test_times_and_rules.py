"""Mutes, expiries and acknowledgements; rule sets that take effect; rules that raise."""

from typing import Any

import pytest

from stepwell.engine.detection import in_a_row, ledger
from stepwell.engine.detection.mutes import MUTES_MAX
from stepwell.engine.detection.policies import Place, Policies
from stepwell.engine.detection.turn import Parked, Refused
from stepwell.engine.doubt import StateDoubtError, Suspects
from stepwell.events.model import Event, RetrainExpired, RulesActivated
from stepwell.exceptions import DecodeError
from tests.unit.engine.detection.stories import (
    HEAD,
    OPENED,
    SECOND,
    START,
    Story,
    acknowledged,
    activated,
    answer,
    expected,
    failed,
    kinds,
    muted,
    rules,
    the_request,
    unmuted,
    won,
)

ROW = {"kind": "in_a_row", "name": "row", "length": 3, "cooldown_episodes": 2}
RATE = {"kind": "rate", "name": "rate", "limit": 0.35, "level": 0.01, "minimum": 3, "cooldown_episodes": 2}


def fail(name: str, count: int, **more: Any) -> list[Event]:
    return [failed(f"{name}{i}", **more) for i in range(count)]


# --- mutes ------------------------------------------------------------------------------------------------------------


def test_while_muted_the_pattern_is_published_and_the_request_follows_at_the_end() -> None:
    story = Story(rules(ROW))
    story.tell(muted(until=START + 100 * SECOND))
    assert kinds(story.tell(*fail("f", 5))) == ["pattern"]
    assert story.statuses() == ["muted"]
    assert story.tick(10.0) == []
    request = the_request(story.tick(100.0))
    assert [item.episode_id for item in request.evidence] == ["f0", "f1", "f2"]
    assert [item.episode_id for item in request.hard_negatives] == ["f4", "f3"]
    assert story.statuses() == ["open"]
    assert story.state.mutes == {}


def test_a_mute_that_was_ended_by_hand() -> None:
    story = Story(rules(ROW, RATE))
    story.tell(muted("row"), muted("other"))
    assert kinds(story.tell(*fail("f", 6))) == ["pattern", *OPENED]  # the other rule is heard
    assert story.tell(unmuted("other"), unmuted()) == []
    assert kinds(story.tell(unmuted("row"))) == ["request"]
    assert story.state.ignored == 1  # there was no mute of everything


def test_what_lost_its_evidence_while_muted_is_not_requested() -> None:
    story = Story(rules(ROW))
    story.tell(muted(), *fail("f", 3))
    assert kinds(story.tell(won("f1", revision=1))) == ["withdrawn"]
    assert story.tell(unmuted()) == []
    assert story.statuses() == ["withdrawn"]


def test_mutes_overlap_are_renewed_and_bounded() -> None:
    story = Story(rules(ROW))
    story.tell(muted(until=START + 50 * SECOND), muted(until=START + 500 * SECOND), muted("row"), *fail("f", 3))
    assert story.tick(100.0) == []
    assert story.tick(500.0) == []  # its own mute is still there
    assert kinds(story.tell(unmuted("row"))) == ["request"]
    story.tell(muted(until=1))
    assert story.state.ignored == 1


def test_one_mute_too_many_is_refused_and_the_dead_letters_say_so() -> None:
    made = Policies(rules(ROW).canonical())
    for i in range(MUTES_MAX):
        assert made.take(muted(f"r{i}"), Place(0, i, START)) == []
    (refused,) = made.take(muted("row"), Place(0, MUTES_MAX, START))
    assert isinstance(refused, Refused)
    assert (refused.reason, "4096 mutes run already" in refused.detail) == ("mutes", True)
    assert made.take(muted("r7", until=START + SECOND), Place(0, MUTES_MAX + 1, START)) == []
    assert len(made.states["expert"].mutes) == MUTES_MAX


@pytest.mark.parametrize("rule", [None, "row"])
def test_a_mute_that_is_over_already_ends_the_one_that_runs(rule: str | None) -> None:
    """The last word counts."""
    story = Story(rules(ROW))
    story.tell(muted(rule), *fail("f", 3))
    other = "row" if rule is None else None
    assert story.tell(muted(other, until=story.now)) == []
    assert kinds(story.tell(muted(rule, until=story.now))) == ["request"]
    assert (story.state.mutes, story.state.ignored) == ({}, 1)


def test_a_muted_trigger_can_be_answered_and_does_not_expire() -> None:
    story = Story(rules(ROW | {"expires_s": 10.0}))
    story.tell(muted(), *fail("f", 3))
    assert story.tick(1000.0) == []
    (trigger_id,) = story.state.ledger.triggers
    assert story.tell(answer(trigger_id, "rejected"), unmuted()) == []
    assert story.statuses() == ["rejected"]


# --- expiry and acknowledgement ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [[], ["accepted"], ["acknowledged"]])
def test_what_nobody_closes_expires_and_further_evidence_opens_another(before: list[str]) -> None:
    story = Story(rules(ROW | {"expires_s": 60.0}, RATE | {"expires_s": 60.0}))
    first = the_request(story.tell(*fail("f", 3)))
    for word in before:
        story.tell(acknowledged(first.trigger_id) if word == "acknowledged" else answer(first.trigger_id, word))
    second = the_request(story.tell(*fail("g", 3)))
    assert (first.rule, second.rule) == ("row", "rate")
    out = story.tick(100.0)
    assert kinds(out) == ["expired", "expired"]
    assert isinstance(out[0], RetrainExpired)
    assert (out[0].trigger_id, out[0].reason) == (first.trigger_id, "nobody closed it in 60 s")
    assert story.tell(answer(first.trigger_id), acknowledged(first.trigger_id)) == []
    assert story.state.ignored == 2
    again = story.tell(*fail("h", 3))  # the rate at its next failure, the row after three
    assert [event.rule for event in again if hasattr(event, "rule")] == ["rate", "rate", "row", "row"]
    assert story.statuses() == ["expired", "expired", "open", "open"]


def test_an_answer_in_time_keeps_it_from_expiring() -> None:
    story = Story(rules(ROW | {"expires_s": 60.0}))
    request = the_request(story.tell(*fail("f", 3)))
    story.tell(answer(request.trigger_id))
    assert story.tick(1000.0) == []
    assert story.statuses() == ["done"]


def test_acknowledged_stays_open() -> None:
    """For a person to see, and nothing more: it can be accepted, answered and withdrawn."""
    story = Story(rules(ROW))
    request = the_request(story.tell(*fail("f", 3)))
    story.tell(acknowledged(request.trigger_id), acknowledged("tr-none"))
    (trigger,) = story.state.ledger.standing()
    assert (trigger.status, trigger.acknowledged_by, story.state.ignored) == ("acknowledged", "ann", 1)
    story.tell(answer(request.trigger_id, "accepted"), acknowledged(request.trigger_id))
    assert trigger.status == "accepted"
    assert kinds(story.tell(won("f1", revision=1))) == ["withdrawn"]


def test_standing_triggers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more lets the oldest expire, and says so."""
    from stepwell.engine.detection import turn

    monkeypatch.setattr(turn, "STANDING_MAX", 4)
    story = Story(rules(ROW | {"length": 1, "per": ["scene"]}))
    out = story.tell(*[failed(f"f{i}", scene=f"s{i}") for i in range(6)])
    assert kinds(out) == OPENED * 4 + ["expired", *OPENED] * 2
    assert story.statuses() == ["expired"] * 2 + ["open"] * 4


def test_a_key_whose_trigger_had_to_go_may_open_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """At its next failure, as after any expiry."""
    from stepwell.engine.detection import turn

    monkeypatch.setattr(turn, "STANDING_MAX", 1)
    story = Story(rules(RATE | {"per": ["scene"], "limit": 0.1}))
    assert kinds(story.tell(*fail("a", 3, scene="a"), *fail("b", 3, scene="b"))) == [*OPENED, "expired", *OPENED]
    assert kinds(story.tell(*[failed("c", scene="a")])) == ["expired", *OPENED]


# --- rule sets --------------------------------------------------------------------------------------------------------


def test_a_set_takes_effect_behind_its_event() -> None:
    """What was recorded before it feeds no new rule; amendments of that don't either."""
    story = Story()
    assert story.tell(*fail("f", 4), activated(rules(ROW, RATE)), *fail("g", 2)) == []
    assert kinds(story.tell(failed("g2"))) == OPENED
    assert story.tell(failed("f0", revision=1), won("f1", revision=1), *fail("h", 2)) == []
    assert kinds(story.tell(failed("h2"))) == OPENED  # the rate: six since the set took effect


def test_rules_that_stay_the_same_go_on() -> None:
    story = Story(rules(ROW, RATE))
    story.tell(*fail("f", 2), activated(rules(ROW, RATE | {"level": 0.02}, name="other")))
    assert kinds(story.tell(failed("f2"))) == OPENED  # the third in a row
    assert story.tell(*fail("g", 2)) == []  # the changed rule has counted three
    assert kinds(story.tell(*fail("h", 3))) == OPENED


def test_triggers_of_rules_that_are_gone_are_answered_and_never_touched_again() -> None:
    story = Story(rules(ROW | {"expires_s": 500.0}))
    request = the_request(story.tell(*fail("f", 3)))
    story.tell(activated(rules(RATE)), *fail("g", 2))
    (trigger,) = story.state.ledger.standing()
    assert (trigger.orphaned, trigger.merged) == (True, 0)
    assert story.tell(won("f1", revision=1)) == []
    story.tell(activated(rules(ROW | {"expires_s": 500.0})))  # the very rule again: it starts anew, beside it
    assert kinds(story.tell(*fail("h", 3))) == OPENED
    assert kinds(story.tick(1000.0)) == ["expired", "expired"]
    story.tell(answer(request.trigger_id))
    assert story.statuses() == ["expired", "expired"]


def test_a_set_that_cannot_be_read_leaves_the_one_before_in_force() -> None:
    story = Story(rules(ROW))
    text = rules(ROW).canonical().replace("in_a_row", "in_a_column")
    bad = RulesActivated(**HEAD, rule_set="x", version=1, rules_json=text, sha256=b"", activated_by="ann")
    with pytest.raises(DecodeError, match=r"verdicts\.0") as caught:
        story.policies.take(bad, Place(0, 0, START))
    assert caught.value.reason == "rules"
    assert kinds(story.tell(*fail("f", 3))) == OPENED


def test_promises_and_keys_name_what_is_kept_apart() -> None:
    story = Story(rules(ROW | {"per": ["scene", "task"]}))
    pattern, request = story.tell(*fail("f", 3, scene="dark"))
    assert request.rule_key.endswith("scene=dark task=t")  # type: ignore[attr-defined]
    assert "for one policy, version, checkpoint, scene and task" in pattern.promise  # type: ignore[attr-defined]


# --- rules that raise -------------------------------------------------------------------------------------------------


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule over rows raises at episode ``bad``, after it has changed something."""
    real = in_a_row.InARowJudge.recorded

    def recorded(self: Any, turn: Any, own: Any, entry: Any) -> None:
        real(self, turn, own, entry)
        if entry.evidence.episode_id == "bad":
            raise ZeroDivisionError("a defect")

    monkeypatch.setattr(in_a_row.InARowJudge, "recorded", recorded)


@pytest.mark.usefixtures("poisoned")
def test_a_rule_that_raises_is_parked_for_its_policy_and_the_others_go_on() -> None:
    """Until rules are activated again; then it starts anew. The record itself counts for everybody else."""
    told = [*fail("f", 2), failed("bad"), *fail("g", 3)]
    suspects: Suspects[str] = Suspects()
    first = Policies(rules(ROW, RATE).canonical(), suspects)
    assert [first.take(event, Place(0, i, START + i)) for i, event in enumerate(told[:2])] == [[], []]
    with pytest.raises(StateDoubtError, match="offset 2: ZeroDivisionError"):
        first.take(told[2], Place(0, 2, START + 2))
    again = Policies(rules(ROW, RATE).canonical(), suspects)
    found = [item for i, event in enumerate(told) for item in again.take(event, Place(0, i, START + i))]
    assert [item for item in found if isinstance(item, Parked)] == [
        ("row", "rule row raised ZeroDivisionError: a defect")
    ]
    assert kinds([item for item in found if isinstance(item, Event)]) == OPENED
    state = again.states["expert"]
    assert state.parked == {"row": 2}
    assert state.ledger.standing()[0].rule == "rate"
    others = [again.take(event, Place(0, 10 + i, START)) for i, event in enumerate(fail("x", 3, policy="other"))]
    assert kinds([item for out in others for item in out]) == OPENED  # type: ignore[arg-type]
    again.take(activated(rules(ROW)), Place(0, 20, START))
    assert state.parked == {}
    out = [item for i, event in enumerate(fail("h", 3)) for item in again.take(event, Place(0, 21 + i, START))]
    assert kinds(out) == OPENED  # type: ignore[arg-type]


# --- the ledger's bounds ----------------------------------------------------------------------------------------------


def test_closed_triggers_keep_no_evidence() -> None:
    story = Story(rules(ROW | {"cooldown_episodes": 0}))
    request = the_request(story.tell(*fail("f", 3)))
    story.tell(answer(request.trigger_id))
    (trigger,) = story.state.ledger.triggers.values()
    assert (trigger.evidence, story.state.ledger.live_ids) == ((), [])
    assert ledger.CLOSED_MAX == 256


def test_an_episode_asked_for_twice_has_one_place() -> None:
    story = Story(rules(RATE))
    story.tell(expected("a"), expected("a"), won("b"), expected("b"))
    assert list(story.state.queue) == ["a"]
    assert story.state.ignored == 2


# --- what a muted trigger keeps when its rule changes -----------------------------------------------------------------


@pytest.mark.parametrize("kind", ["row", "rate"])
def test_a_muted_trigger_keeps_expiry_and_hard_negatives_when_its_rule_changes(kind: str) -> None:
    """Raising a rule's version while it is muted: the request comes as it would have, and expires."""
    rule = {"row": ROW, "rate": RATE}[kind] | {"per": ["scene"], "expires_s": 10.0, "counts": {"labels": ["x"]}}
    story = Story(rules(rule))
    story.tell(muted(), *fail("old", 2, labels=("x",)), won("w"), *fail("f", 9, labels=("x",)), *fail("y", 2))
    (trigger,) = story.state.ledger.standing()
    evidence = {item.episode_id for item in trigger.evidence}
    story.tell(*fail("other", 2, labels=("x",), scene="dark"), activated(rules(rule | {"version": 2})))
    request = the_request(story.tell(unmuted()))
    wanted = {"old0", "old1", *(f"f{i}" for i in range(9))} - evidence
    assert {item.episode_id for item in request.hard_negatives} == wanted != set()
    assert [share.scene for share in request.sampling_weights] == ["plain"]
    assert request.rule_version == 1
    (expired,) = story.tick(11.0)
    assert isinstance(expired, RetrainExpired)
    assert expired.reason == "nobody closed it in 10 s"
