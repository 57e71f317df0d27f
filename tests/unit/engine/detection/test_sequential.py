"""Rates and shifts, judged at every episode by e-processes."""

from fractions import Fraction
from math import comb

import pytest

from stepwell.engine.detection.state import NEVER
from tests.unit.engine.detection.stories import (
    OPENED,
    Story,
    answer,
    broken,
    expected,
    failed,
    kinds,
    rules,
    the_request,
    won,
)

RATE = {"kind": "rate", "name": "too_often", "limit": 0.35, "level": 0.01, "minimum": 3, "cooldown_episodes": 4}
SHIFT = {"kind": "shift", "name": "worse", "level": 0.01, "minimum": 5, "cooldown_episodes": 2}


def evidence(failures: int, successes: int, limit: Fraction) -> Fraction:
    """The e-process by its formula, in whole numbers: KT mixture over the best likelihood up to the limit."""
    mixture = Fraction(1)
    for count in (failures, successes):
        for k in range(1, count + 1):
            mixture *= Fraction(2 * k - 1, 2 * k)
    mixture /= comb(failures + successes, failures)
    best = min(Fraction(failures, failures + successes), limit)
    return mixture / (best**failures * (1 - best) ** successes)


def first_over(limit: Fraction, level: Fraction, minimum: int) -> int:
    """After so many failures in a row the rule fires."""
    return next(n for n in range(minimum, 100) if evidence(n, 0, limit) >= 1 / level)


def test_fires_at_exactly_the_episode_that_the_formula_says() -> None:
    n = first_over(Fraction(35, 100), Fraction(1, 100), 3)
    assert n == 6
    story = Story(rules(RATE))
    assert story.tell(*[failed(f"f{i}") for i in range(n - 1)]) == []
    out = story.tell(failed("last"))
    assert kinds(out) == OPENED
    request = the_request(out)
    assert len(request.evidence) == n
    assert request.detail.startswith("6 of 6 episodes failed; evidence ")


def test_n_minus_1_with_infrastructure_faults_between_does_not_fire() -> None:
    story = Story(rules(RATE))
    events = [event for i in range(5) for event in (failed(f"f{i}"), broken(f"b{i}"), failed(f"r{i}", attempt=2))]
    assert story.tell(*events) == []
    assert kinds(story.tell(failed("f5"))) == OPENED


def test_a_rate_within_the_limit_never_fires() -> None:
    """Three of ten, for a thousand episodes."""
    story = Story(rules(RATE))
    assert story.tell(*[failed(f"e{i}") if i % 10 < 3 else won(f"e{i}") for i in range(1000)]) == []


def test_the_minimum_is_waited_for() -> None:
    story = Story(rules(RATE | {"minimum": 9}))
    assert story.tell(*[failed(f"f{i}") for i in range(8)]) == []
    assert kinds(story.tell(failed("f8"))) == OPENED


def test_duplicates_and_amendments_feed_no_episode_twice() -> None:
    """The same failure in ten revisions is one failure."""
    story = Story(rules(RATE))
    for revision in range(10):
        assert story.tell(*[failed(f"f{i}", revision=revision) for i in range(5)] * 2) == []
    (stream,) = story.state.rules["too_often"].streams.values()
    assert (stream.tally.failures, stream.tally.episodes) == (5, 5)
    assert [item.evidence.revision for item in stream.recent] == [9] * 5


def test_amendments_replace_and_withdraw() -> None:
    """A failure that was none: at its opening the trigger is not over the line any more."""
    story = Story(rules(RATE))
    first = the_request(story.tell(*[failed(f"f{i}") for i in range(6)]))
    assert kinds(story.tell(won("f2", revision=1))) == ["withdrawn"]
    (stream,) = story.state.rules["too_often"].streams.values()
    assert (stream.tally.failures, stream.tally.episodes, stream.trigger) == (5, 6, "")
    assert story.tell(broken("f3", revision=1)) == []
    assert (stream.tally.failures, stream.tally.episodes) == (4, 5)
    out = story.tell(*[failed(f"g{i}") for i in range(6)])
    assert kinds(out) == OPENED
    assert the_request(out).trigger_id != first.trigger_id


def test_merged_evidence_carries_a_new_trigger_when_the_opening_is_lost() -> None:
    """What came after the opening speaks for itself: withdrawn, and requested anew at once."""
    story = Story(rules(RATE))
    story.tell(*[failed(f"f{i}") for i in range(20)])
    out = story.tell(won("f0", revision=1))
    assert kinds(out) == ["withdrawn", *OPENED]
    assert len(the_request(out).evidence) == 19


def test_the_e_process_restarts_only_behind_answer_and_cool_down() -> None:
    """Accepted, it goes on; answered, four episodes are aftermath, and then it counts from nothing."""
    story = Story(rules(RATE))
    request = the_request(story.tell(*[failed(f"f{i}") for i in range(6)]))
    (stream,) = story.state.rules["too_often"].streams.values()
    assert story.tell(answer(request.trigger_id, "accepted"), failed("f6")) == []
    assert stream.tally.episodes == 7
    assert story.tell(answer(request.trigger_id, "failed")) == []
    assert stream.since == NEVER
    assert story.tell(*[failed(f"g{i}") for i in range(4 + 5)]) == []
    (trigger,) = story.state.ledger.triggers.values()
    assert trigger.merged == 1 + 4
    assert kinds(story.tell(failed("g9"))) == OPENED


def test_a_cool_down_in_seconds_lasts_as_well() -> None:
    story = Story(rules(RATE | {"cooldown_episodes": 0, "cooldown_s": 100.0}))
    request = the_request(story.tell(*[failed(f"f{i}") for i in range(6)]))
    assert story.tell(answer(request.trigger_id), *[failed(f"g{i}") for i in range(50)]) == []
    assert story.tell(failed("h0"), pause_s=60.0) == []
    assert kinds(story.tell(*[failed(f"h{i}") for i in range(1, 6)])) == OPENED


def test_two_versions_and_checkpoints_are_two_streams() -> None:
    story = Story(rules(RATE))
    events = [event for i in range(5) for event in (failed(f"a{i}", checkpoint="a"), failed(f"b{i}", checkpoint="b"))]
    assert story.tell(*events, *[failed(f"c{i}", version="2", checkpoint="a") for i in range(5)]) == []
    assert kinds(story.tell(failed("a5", checkpoint="a"), failed("b5", checkpoint="b"))) == OPENED * 2


# --- shifts -----------------------------------------------------------------------------------------------------------


def runs(checkpoint: str, pattern: str, name: str = "") -> list[object]:
    """Episodes of a checkpoint: ``f`` failed, ``s`` succeeded."""
    make = {"f": failed, "s": won}
    return [make[letter](f"{name or checkpoint}{i}", checkpoint=checkpoint) for i, letter in enumerate(pattern)]


def test_a_fall_of_the_success_rate_is_found() -> None:
    story = Story(rules(SHIFT))
    assert story.tell(*runs("old", "s" * 20)) == []  # type: ignore[arg-type]
    out = story.tell(*runs("new", "f" * 20))  # type: ignore[arg-type]
    assert kinds(out) == OPENED
    request = the_request(out)
    assert (request.checkpoint, request.rule_key) == (
        "new",
        "policy=expert version=1 checkpoint=new baseline-version=1 baseline=old",
    )
    assert "0 of 20 of the checkpoint before" in request.detail
    assert {item.episode_id[:3] for item in request.evidence} == {"new"}


@pytest.mark.parametrize(
    ("old", "new"),
    [("s" * 100, "s" * 100), ("f" * 50, "s" * 50), ("fs" * 100, "fs" * 100), ("f" * 40, "f" * 40), ("s" * 30, "ffff")],
    ids=["both good", "better", "the same", "both bad", "below the minimum"],
)
def test_no_fall_is_none(old: str, new: str) -> None:
    story = Story(rules(SHIFT))
    assert story.tell(*runs("old", old), *runs("new", new)) == []  # type: ignore[arg-type]


def test_the_first_checkpoint_has_nothing_to_be_compared_with() -> None:
    story = Story(rules(SHIFT))
    assert story.tell(*runs("old", "s" * 20), *runs("old", "f" * 50, "later")) == []  # type: ignore[arg-type]


def test_side_by_side_the_later_one_is_compared() -> None:
    """The baseline's episodes count whenever they come, here after those of the new one."""
    story = Story(rules(SHIFT))
    assert story.tell(won("old0", checkpoint="old"), *runs("new", "f" * 12)) == []  # type: ignore[arg-type]
    assert kinds(story.tell(*runs("old", "s" * 20, "more"))) == OPENED  # type: ignore[arg-type]


def test_a_named_baseline_is_used_even_where_it_comes_late() -> None:
    story = Story(rules(SHIFT | {"baseline": "gold"}))
    assert story.tell(*runs("old", "s" * 20), *runs("new", "f" * 20)) == []  # type: ignore[arg-type]
    out = story.tell(*runs("gold", "s" * 20))  # type: ignore[arg-type]
    assert kinds(out) == OPENED
    assert the_request(out).rule_key.endswith("checkpoint=new baseline-version=1 baseline=gold")
    streams = {key.checkpoint: stream for key, stream in story.state.rules["worse"].streams.items()}
    assert (streams["new"].old.episodes, streams["old"].old.episodes, streams["gold"].base) == (20, 20, None)


def test_amendments_of_either_side_are_replaced() -> None:
    """Old successes that were failures take the fall away; both sides of the sample are kept up to date."""
    story = Story(rules(SHIFT))
    story.tell(*runs("old", "s" * 10), *runs("new", "f" * 6))  # type: ignore[arg-type]
    (trigger,) = story.state.ledger.standing()
    assert trigger.sample is not None
    out = []
    for i in range(10):
        out += story.tell(failed(f"old{i}", checkpoint="old", revision=1))
    assert kinds(out) == ["withdrawn", *OPENED, "withdrawn"]  # the sixth failure carried it a little longer
    assert trigger.sample.old_failures > 0
    assert trigger.sample.old_episodes == 10
    assert story.state.ledger.standing() == []
    streams = {key.checkpoint: stream for key, stream in story.state.rules["worse"].streams.items()}
    assert (streams["new"].old.failures, streams["new"].old.episodes) == (10, 10)
    assert (streams["old"].total.failures, streams["old"].tally.failures) == (10, 10)


def test_after_an_answer_both_sides_start_anew() -> None:
    """The lucky episodes of the old checkpoint are not used twice; the next checkpoint has this one's history."""
    story = Story(rules(SHIFT))
    request = the_request(story.tell(*runs("old", "s" * 20), *runs("new", "f" * 7)))  # type: ignore[arg-type]
    assert story.tell(answer(request.trigger_id, "rejected"), *runs("new", "f" * 30, "again")) == []  # type: ignore[arg-type]
    streams = {key.checkpoint: stream for key, stream in story.state.rules["worse"].streams.items()}
    assert (streams["new"].tally.episodes, streams["new"].old.episodes) == (28, 0)
    assert story.tell(failed("old3", checkpoint="old", revision=1)) == []  # of before: it is in no count of now
    assert (streams["new"].old.failures, streams["new"].old.episodes) == (0, 0)
    story.tell(*runs("next", "s"))  # type: ignore[arg-type]
    streams = {key.checkpoint: stream for key, stream in story.state.rules["worse"].streams.items()}
    assert (streams["next"].old.failures, streams["next"].old.episodes) == (37, 37)


def test_shifts_go_by_the_order_of_requests() -> None:
    """Quick failures of the new checkpoint wait for its slower successes."""
    story = Story(rules(SHIFT))
    names = [f"n{i}" for i in range(20)]
    slow = [won(name, checkpoint="new") for name in names[:10]]
    quick = [failed(name, checkpoint="new") for name in names[10:]]
    story.tell(*runs("old", "s" * 10), *[expected(name) for name in names])  # type: ignore[arg-type]
    assert story.tell(*quick[:5], *slow, pause_s=0.1) == []
