"""What is still to be done, and what came of a run, judged from folded histories."""

from collections.abc import Iterable

import pytest

from stepwell.adapters.runs.summary import counting_verdict, describe_rate, summarise
from stepwell.adapters.runs.todo import Todo, judge
from stepwell.engine.intervals import wilson
from stepwell.engine.state import EpisodeState
from stepwell.events.model import Event
from tests.unit.engine.stories import fold, sealed
from tests.unit.runs.places import planned
from tests.unit.runs.retried import histories, requested, told

EPISODE = planned()[0]
ME, OTHER = "host-1", "host-2"
"""Stories are told by host-1."""


def judged(facts: Iterable[Event], producer_id: str = ME, *, retry_errors: bool = False) -> Todo:
    state = fold(facts)
    return judge(EPISODE, {EPISODE.episode_id: state}, producer_id, retry_errors=retry_errors)


def test_an_episode_that_the_log_does_not_know_is_new() -> None:
    assert judge(EPISODE, {}, ME, retry_errors=False) == Todo(EPISODE, "new", 0, 0)


def test_one_that_was_asked_for_and_not_taken_is_requested() -> None:
    assert judged(requested().facts) == Todo(EPISODE, "requested", 1, 1)


def test_one_that_this_host_had_is_interrupted_and_another_s_is_elsewhere() -> None:
    facts = told()
    assert judged(facts) == Todo(EPISODE, "interrupted", 1, 2)
    assert judged(facts, OTHER).standing == "elsewhere"


@pytest.mark.parametrize(
    ("ending", "standing", "with_errors"),
    [
        ("success", "done", "done"),
        ("max_steps", "done", "done"),
        ("agent_exception", "done", "done"),
        ("sim_killed", "done", "again"),
        ("start_failed", "done", "again"),
        ("aborted", "again", "again"),
        ("host lost", "again", "again"),
        ("silent", "again", "again"),
    ],
)
@pytest.mark.parametrize("seal", [False, True])
def test_an_ended_one(ending: str, standing: str, with_errors: str, seal: bool) -> None:
    facts = told(1, ending) + ([sealed()] if seal else [])
    for host in (ME, OTHER):  # whoever ran it
        assert judged(facts, host).standing == standing
        assert judged(facts, host, retry_errors=True).standing == with_errors


def test_the_latest_attempt_decides() -> None:
    facts = [*told(1, "host lost"), sealed(), *requested(2).facts]
    assert judged(facts) == Todo(EPISODE, "requested", 2, 1)
    assert judged([*told(1, "sim_killed"), *told(2)]) == Todo(EPISODE, "interrupted", 2, 2)
    assert judged([*told(1, "aborted"), *told(2, "success")]).standing == "done"


def outcome(*attempts: list[Event]) -> tuple[str, int] | None:
    """Outcome and attempt of the verdict that counts."""
    verdict = counting_verdict(fold([fact for facts in attempts for fact in facts]))
    return None if verdict is None else (verdict.outcome, verdict.attempt)


def test_what_infrastructure_lost_may_be_made_good_a_policy_s_failure_never() -> None:
    assert outcome(told(1, "sim_killed"), told(2, "success")) == ("success", 2)
    assert outcome(told(1, "aborted"), told(2, "max_steps")) == ("failure", 2)
    assert outcome(told(1, "max_steps"), told(2, "success")) == ("failure", 1)
    assert outcome(told(1, "max_steps"), told(2, "sim_killed")) == ("failure", 1)
    assert outcome(told(1, "sim_killed"), told(2, "aborted")) == ("aborted", 2)


def test_while_an_attempt_is_open_an_unscored_one_before_it_is_no_answer() -> None:
    assert outcome(told(1, "sim_killed"), told(2)) is None
    assert outcome(told(1, "sim_killed"), requested(2).facts) is None
    assert outcome(told(1, "max_steps"), told(2)) == ("failure", 1)
    assert outcome(told(1)) is None


def episodes() -> list[EpisodeState]:
    return [fold(facts) for facts in histories()]


def test_every_planned_episode_is_counted_once() -> None:
    total = summarise(episodes()).total
    assert (total.planned, total.attempted, total.scored, total.succeeded) == (8, 7, 3, 2)
    assert (total.errored, total.aborted, total.missing) == (2, 1, 2)
    assert total.rate_of_scored == 2 / 3
    assert total.rate_with_errors == 2 / 5
    assert total.interval_of_scored == wilson(2, 3)
    assert total.interval_with_errors == wilson(2, 5)


def test_episodes_that_were_not_even_asked_for_are_missing_too() -> None:
    total = summarise(episodes(), planned=10).total
    assert (total.planned, total.missing) == (10, 4)


def test_groups_tell_causes_by_fault() -> None:
    (group,) = summarise(episodes()).groups
    assert (group.policy, group.scene, group.perturbation) == ("expert", "reach-v3", "none")
    assert group.tally.planned == 8
    assert group.causes == {
        ("policy", "task_not_completed"): 1,
        ("infrastructure", "sim_killed"): 1,
        ("simulator", "sim_exception"): 1,
        ("operator", "aborted_by_operator"): 1,
    }


def test_rates_without_trials_are_no_numbers() -> None:
    total = summarise([]).total
    assert (total.rate_of_scored, total.rate_with_errors) == (None, None)
    assert describe_rate(0, 0, total.interval_of_scored) == "–"
    assert describe_rate(7, 12, wilson(7, 12)) == "7 of 12, 58 % (32 to 81)"
