"""The order of requests and its bounds; what a request says."""

import json

import pytest

from stepwell.engine.detection import admission
from stepwell.engine.detection.requests import HARD_NEGATIVES_MAX
from stepwell.engine.detection.state import QUEUE_MAX, PolicyState, dump
from stepwell.engine.ruleset import WINDOW_MAX
from tests.unit.engine.detection.stories import Story, broken, expected, failed, rules, the_request, won

RATE = {"kind": "rate", "name": "rate", "limit": 0.35, "level": 0.01, "minimum": 3}
ROW = {"kind": "in_a_row", "name": "row", "length": 3}


def ranks(state: PolicyState) -> dict[str, int]:
    return {episode: entry.rank for episode, entry in state.window.items()}


def test_everybody_has_their_turn_in_the_order_of_requests() -> None:
    story = Story(rules(RATE))
    story.tell(*[expected(f"e{i}") for i in range(4)], won("e2"), won("e1"))
    assert ranks(story.state) == {"e2": -1, "e1": -1}
    story.tell(won("stranger"), broken("e0"))
    assert ranks(story.state) == {"stranger": 0, "e0": 1, "e1": 2, "e2": 3}
    assert (list(story.state.queue), story.state.held) == (["e3"], {})


def test_a_verdict_that_waits_is_amended_where_it_waits() -> None:
    """Its last revision counts when its turn comes, and its waiting time goes on."""
    story = Story(rules(RATE, wait_s=10.0))
    story.tell(expected("e0"), expected("e1"), failed("e1"), won("e1", revision=1), pause_s=4.0)
    assert ranks(story.state) == {"e1": -1}
    story.tick(6.0)
    (stream,) = story.state.rules["rate"].streams.values()
    assert (stream.tally.failures, stream.tally.episodes) == (0, 1)


def test_no_wait_means_the_order_of_finishing() -> None:
    story = Story(rules(RATE, wait_s=0.0))
    story.tell(expected("e0"), expected("e1"), won("e1"), won("e0"))
    assert ranks(story.state) == {"e1": 0, "e0": 1}


def test_a_queue_that_runs_over_lets_its_head_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "QUEUE_MAX", 3)
    story = Story(rules(RATE))
    story.tell(*[expected(f"e{i}") for i in range(3)], won("e1"), expected("e3"), expected("e4"))
    assert ranks(story.state) == {"e1": 0}
    assert list(story.state.queue) == ["e2", "e3", "e4"]
    story.tell(won("e0"))
    assert ranks(story.state)["e0"] == 1
    assert QUEUE_MAX == 4096


def test_who_would_leave_the_window_has_their_turn_first() -> None:
    """512 verdicts behind it end the wait; then all those that are there follow as far as they may."""
    story = Story(rules(RATE, wait_s=1e6))
    story.tell(*[expected(f"e{i}") for i in range(WINDOW_MAX + 2)])
    story.tell(*[won(f"e{i}") for i in range(1, WINDOW_MAX + 1)])
    assert set(ranks(story.state).values()) == {-1}
    story.tell(won(f"e{WINDOW_MAX + 1}"))
    assert story.state.admitted == WINDOW_MAX + 1
    assert "e1" in story.state.forgotten
    assert (len(story.state.queue), len(story.state.held)) == (0, 0)


def test_state_stays_small_however_long_the_history() -> None:
    """5,000 episodes of a policy, half asked for and never finished."""
    story = Story(rules(RATE, ROW))
    for i in range(5_000):
        story.tell(expected(f"never{i}"), expected(f"e{i}"), won(f"e{i}"))
    state = story.state
    assert (len(state.window), len(state.forgotten)) == (WINDOW_MAX, 2048)
    assert len(state.queue) <= QUEUE_MAX
    assert len(dump(state)) < 800_000


def test_a_request_says_what_to_train_on_and_what_to_run_afterwards() -> None:
    """Hard negatives of the same kind, newest first; weights over both; cells with their failed seeds."""
    story = Story(rules(ROW))
    story.tell(
        failed("old", scene="dark", seed=9), won("s1"), failed("other", "agent_timeout"), won("s2"),
        failed("a", seed=1), failed("b", seed=2, scene="dark"),
    )  # fmt: skip
    request = the_request(story.tell(failed("c", seed=1, perturbation="gain", task="u")))
    assert [item.episode_id for item in request.evidence] == ["a", "b", "c"]
    assert [item.episode_id for item in request.hard_negatives] == ["old"]
    assert (request.evidence[0].task, request.evidence[0].first_offset, request.evidence[0].last_offset) == ("t", 0, 9)
    # dark: 2 of 2 failed; plain with gain: 1 of 1; plain: 1 of 4, for the two successes and another failure count too.
    rates = [2.5 / 3, 1.5 / 2, 1.5 / 5]
    assert [(w.scene, w.perturbation, w.weight) for w in request.sampling_weights] == [
        ("dark", "none", rates[0] / sum(rates)), ("plain", "gain", rates[1] / sum(rates)),
        ("plain", "none", rates[2] / sum(rates)),
    ]  # fmt: skip
    assert "(f + 1/2) / (n + 1)" in request.weights_formula
    spec = json.loads(request.regression_spec_json)
    cell = {"example_episode": "a", "perturbation": "none", "scene": "plain", "seeds": [1], "task": "t"}
    assert spec == {
        "format": "stepwell-regression/1", "trigger_id": request.trigger_id, "policy": "expert", "policy_version": "1",
        "baseline_checkpoint": None, "failure_type": "task_not_completed", "fresh_seeds_per_cell": 10,
        "cells": [
            cell | {"scene": "dark", "example_episode": "b", "seeds": [2, 9]},
            cell,
            cell | {"task": "u", "perturbation": "gain", "example_episode": "c"},
        ],
    }  # fmt: skip


def test_hard_negatives_are_bounded() -> None:
    story = Story(rules(RATE))
    story.tell(*[event for i in range(150) for event in (failed(f"f{i}"), won(f"a{i}"), won(f"b{i}"))])
    request = the_request(story.tell(*[failed(f"g{i}") for i in range(250)]))
    assert len(request.hard_negatives) == HARD_NEGATIVES_MAX
    named = {item.episode_id for item in (*request.evidence, *request.hard_negatives)}
    assert len(named) == len(request.evidence) + HARD_NEGATIVES_MAX
    assert abs(sum(share.weight for share in request.sampling_weights) - 1.0) < 1e-12
