"""A request says what has to be known to run its cell again, and no secrets; a checkpoint's name takes its place."""

import json
from pathlib import Path
from typing import Any

import pytest

from stepwell.adapters.runs.checkpoints import checkpoint_problem, filled, has_place
from stepwell.adapters.runs.definitions import read_definition
from stepwell.adapters.runs.plan import PlannedEpisode, plan, plan_cell
from stepwell.adapters.runs.recorder import AttemptRecorder
from stepwell.adapters.runs.spec import ENTRY_BYTES_MAX, check_spec
from stepwell.adapters.yaml_lines import parse
from stepwell.events.model import LogRecord, Request
from stepwell.exceptions import SpecError
from tests.unit.runs.places import CODEC, ME, planned

SPEC = """\
run: unit
seeds: [1, 2]
max_steps: 20
timeouts: {act_s: 2}
scenes:
  - {name: reach, task: metaworld/reach-v3, options: {time_limit: 30}, max_steps: 25}
perturbations:
  - {name: noisy, options: {observation_noise: 0.01}}
policies:
  - name: mine
    kind: python
    checkpoint: step-1
    options: OPTIONS
"""
OPTIONS = {"target": "my.module:Mine", "arguments": {"weights": "w/{checkpoint}.npz", "layers": [64, "{checkpoint}"]}}


def text_of(options: dict[str, Any]) -> bytes:
    return SPEC.replace("OPTIONS", json.dumps(options)).encode()


def episodes_of(options: dict[str, Any]) -> list[PlannedEpisode]:
    return plan(check_spec(parse(text_of(options), "s.yaml")), "run-1")


def test_a_definition_plans_the_same_episodes_again() -> None:
    episodes = episodes_of(OPTIONS)
    definition = read_definition(episodes[0].definition)
    again = plan_cell(
        "run-1",
        definition.policy,
        definition.scene,
        definition.perturbation,
        max_steps=definition.max_steps,
        timeouts=definition.timeouts,
        seeds=[1, 2],
    )
    assert again == episodes
    assert (definition.max_steps, definition.timeouts.act_s, definition.directory) == (25, 2.0, str(Path.cwd()))


def test_the_checkpoint_takes_its_place_where_the_policy_runs_not_in_its_definition() -> None:
    (first, _) = episodes_of(OPTIONS)
    assert first.policy.options["arguments"] == {"weights": "w/step-1.npz", "layers": [64, "step-1"]}
    definition = read_definition(first.definition)
    assert definition.policy.options == OPTIONS
    other = definition.policy.model_copy(update={"checkpoint": "step-2"})
    assert other.policy().options["arguments"]["weights"] == "w/step-2.npz"


@pytest.mark.parametrize(("checkpoint", "words"), [("~", "no checkpoint is named"), ("../../etc/x", "part that is")])
def test_a_checkpoint_that_cannot_take_the_place_is_refused(checkpoint: str, words: str) -> None:
    text = text_of(OPTIONS).replace(b"checkpoint: step-1", f"checkpoint: {checkpoint}".encode())
    with pytest.raises(SpecError, match=rf"^s.yaml:12: policies\[0\].checkpoint: .*{words}"):
        check_spec(parse(text, "s.yaml"))


@pytest.mark.parametrize("name", ["", "a b", "/abs", "a/../b", "-x", "a\n", "x" * 201])
def test_names_that_are_no_names(name: str) -> None:
    assert checkpoint_problem(name) is not None


@pytest.mark.parametrize("name", ["step-7", "run/4/step.7", "s3://bucket/a", "v1+lora@2026", "a..b"])
def test_names_that_are_names(name: str) -> None:
    assert checkpoint_problem(name) is None


def test_places_are_found_however_deep() -> None:
    assert has_place([{"a": ["x{checkpoint}"]}])
    assert not has_place({"{checkpoint}": 1, "b": "{check}"})
    assert filled({"n": 1, "t": "{checkpoint}/{checkpoint}"}, "c") == {"n": 1, "t": "c/c"}


def test_what_looks_like_a_secret_is_hidden_and_told() -> None:
    arguments = {
        "api_key": "hunter2", "token_file": "k.txt", "max_tokens": 9, "urls": ["https://ada:hunter2@host/w"],
    }  # fmt: skip
    (first, _) = episodes_of({"target": "my.module:Mine", "arguments": arguments})
    assert "hunter2" not in first.definition
    definition = read_definition(first.definition)
    assert definition.hidden == ["policy.options.arguments.api_key", "policy.options.arguments.urls[0]"]
    assert definition.policy.options["arguments"] == {
        "api_key": "***", "token_file": "k.txt", "max_tokens": 9, "urls": ["***"],
    }  # fmt: skip
    assert first.policy.options["arguments"] == arguments


def test_an_entry_too_large_for_a_request_is_refused() -> None:
    options = {"target": "my.module:Mine", "arguments": {"x": "y" * ENTRY_BYTES_MAX}}
    with pytest.raises(SpecError, match=r"s.yaml:10: policies\[0\]: its definition has \d+ bytes; expected at most"):
        check_spec(parse(text_of(options), "s.yaml"))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "stepwell-definition/2"}', "[" * 100_000])
def test_what_is_no_definition_is_said_to_be_none(text: str) -> None:
    with pytest.raises(SpecError, match="no definition"):
        read_definition(text)


def test_requests_and_retries_carry_it() -> None:
    facts: list[LogRecord] = []
    (episode, *_) = planned()
    AttemptRecorder(facts.append, episode, 1, ME).requested()
    AttemptRecorder(facts.append, episode, 2, ME).retry_requested("lost")
    for fact in facts:
        assert isinstance(fact, Request)
        assert fact.definition_json == episode.definition
        assert CODEC.decode(*CODEC.encode(fact)) == fact
    assert read_definition(episode.definition).policy.name == episode.policy.name
