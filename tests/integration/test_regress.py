"""``stepwell retrain regress`` with real episodes: a policy whose weights decide whether the pole stays up."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from stepwell.adapters.history import fold_episodes
from stepwell.adapters.logs import open_log
from stepwell.adapters.runs.summary import counting_verdict, requested_at
from stepwell.engine.publish import outgoing
from stepwell.events.codec import Codec
from tests.integration.projections.facts import retrain

DEADLINE_S = 120.0
TRIGGER = "tr-balance"
POLICY = """\
import json
import numpy as np

class Balancer:
    def __init__(self, weights):
        self.gain = json.load(open(weights))["gain"]

    def act(self, observation, step):
        force = self.gain * float(np.array([1.0, 20.0, 1.5, 4.0]) @ observation["observation"])
        return np.clip(np.array([force]), -3, 3)
"""
SPEC = """\
run: balance
seeds: [1, 2]
max_steps: 60
parallel: 2
scenes: [{name: balance, task: gymnasium/InvertedPendulum-v5, options: {success_steps: 50, reset_noise_scale: 0.1}}]
policies:
  - name: balancer
    kind: python
    checkpoint: weak
    options: {target: "policy.py:Balancer", arguments: {weights: "{checkpoint}.json"}, needs: [observation]}
"""


class Place:
    """A folder with a policy, its checkpoints, and a log of a first run that failed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.settings = {"STEPWELL_HOME": str(directory / "home")}
        (directory / "policy.py").write_text(POLICY)
        (directory / "spec.yaml").write_text(SPEC)
        for name, gain in {"weak": 0.0, "strong": 1.0, "stronger": 1.2}.items():
            (directory / f"{name}.json").write_text(json.dumps({"gain": gain}))

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        environment = {name: value for name, value in os.environ.items() if not name.startswith("STEPWELL_")}
        if parts := os.environ.get("STEPWELL_PARTS"):
            environment["STEPWELL_PARTS"] = parts
        return subprocess.Popen(
            [sys.executable, "-m", "stepwell", *arguments],
            env=environment | self.settings,
            cwd=self.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments: str, code: int = 0) -> str:
        """What a command prints."""
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == code, output
        return output

    def ask(self, trigger: str, example: str) -> None:
        """A request about the first run, as the detector would make it."""
        spec = {
            "format": "stepwell-regression/1", "trigger_id": trigger, "policy": "balancer", "policy_version": "1",
            "baseline_checkpoint": "weak", "failure_type": "terminated_early", "fresh_seeds_per_cell": 3,
            "cells": [{"task": "gymnasium/InvertedPendulum-v5", "scene": "balance", "perturbation": "none",
                       "example_episode": example, "seeds": [1, 2]}],
        }  # fmt: skip
        request = msgspec.structs.replace(
            retrain(trigger),
            rule="same_failure_in_a_row",
            policy="balancer",
            checkpoint="weak",
            failure_type="terminated_early",
            regression_spec_json=json.dumps(spec),
        )
        log = open_log(f"local:{self.directory / 'home' / 'log'}")
        producer = log.producer()
        producer.send([outgoing(Codec(), request)])
        producer.flush(30)
        producer.close()
        log.close()

    def episodes(self) -> list[tuple[str, str, str, int]]:
        """(run, checkpoint, outcome, seed), in the order of their requests."""
        log = open_log(f"local:{self.directory / 'home' / 'log'}")
        states = fold_episodes(log, Codec())
        log.close()
        found = []
        for state in sorted(states.values(), key=requested_at):
            verdict = counting_verdict(state)
            assert verdict is not None
            found.append((verdict.run_id, verdict.checkpoint or "", verdict.outcome, verdict.seed))
        return found


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    place.run("run", "spec.yaml", "--run-id", "first")
    (example,) = [
        json.loads(line)["episode"] for line in place.run("episodes", "--json", "--limit", "1").splitlines() if line
    ]
    place.ask(TRIGGER, example)
    return place


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """As above, but nothing was run."""
    place = Place(tmp_path_factory.mktemp("asked"))
    place.ask(TRIGGER, "ep-nowhere")
    return place


def test_it_runs_once_and_tells_before_from_after(place: Place) -> None:
    checked = place.run("retrain", "regress", "tr-b", "--checkpoint", "strong", "--check")
    assert "regress-tr-balance-strong: fine; 2 seeds that failed, with strong; 3 fresh seeds" in checked
    assert len(place.episodes()) == 2

    told = place.run("retrain", "regress", TRIGGER, "--checkpoint", "strong", "--parallel", "2")
    regressed = [row for row in place.episodes() if row[0] == "regress-tr-balance-strong"]
    assert [(checkpoint, outcome) for _, checkpoint, outcome, _ in regressed] == (
        [("strong", "success")] * 5 + [("weak", "failure")] * 3
    )
    assert [seed for _, _, _, seed in regressed[:2]] == [1, 2]
    assert {seed for _, _, _, seed in regressed[2:5]} == {seed for _, _, _, seed in regressed[5:]}
    assert "0 of 3, 0 % (0 to 56)" in told
    assert "3 of 3, 100 % (44 to 100)" in told
    assert "3 gained, 0 lost" in told
    assert "terminated_early with strong: 0 of 3, 0 % (0 to 56) of the fresh episodes" in told
    assert "rule same_failure_in_a_row version 1 on them: too few episodes to tell (3 of minimum 5)" in told

    again = place.run("retrain", "regress", TRIGGER, "--checkpoint", "strong")
    assert "8 already done" in again
    assert len(place.episodes()) == 10

    place.run("retrain", "regress", TRIGGER, "--checkpoint", "stronger")
    assert len(place.episodes()) == 15  # the old checkpoint's three are known


def test_following_runs_what_is_answered_each_once(place: Place) -> None:
    place.ask("tr-nothing", "ep-nowhere")
    following = place.start("retrain", "regress", "--follow", "--limit", "1")
    assert following.stdout is not None
    place.run("retrain", "answer", "tr-nothing", "done", "--checkpoint", "strong")
    place.run("retrain", "answer", TRIGGER, "accepted")
    # Of two that are answered before it looks, the one that can be run may come first, and is enough.
    output = following.stdout.readline()
    while "cannot be run" not in output:
        output += following.stdout.readline()
    place.run("retrain", "answer", TRIGGER, "done", "--checkpoint", "strong")
    output += following.communicate(timeout=DEADLINE_S)[0]
    assert following.returncode == 0, output
    assert "regression of tr-nothing with strong cannot be run: " in output
    assert "ep-nowhere is no longer in the log" in output
    assert "3 gained, 0 lost" in output
    assert len(place.episodes()) == 10

    later = place.start("retrain", "regress", "--follow")
    assert later.stdout is not None
    seen: list[str] = []
    while not any("regression of tr-balance with strong: run before" in line for line in seen):
        seen.append(later.stdout.readline())
        assert seen[-1], "".join(seen)
    later.send_signal(signal.SIGINT)
    later.communicate(timeout=DEADLINE_S)
    assert later.returncode == 0
    assert len(place.episodes()) == 10
    assert "8 already done" in place.run("retrain", "regress", TRIGGER)  # the checkpoint is that of the answer


def test_a_run_in_which_nothing_was_scored_is_no_good_news(place: Place) -> None:
    (place.directory / "torn.json").write_text("{")
    told = place.run("retrain", "regress", TRIGGER, "--checkpoint", "torn", code=1)
    assert "nothing could be scored; see: stepwell episodes --run regress-tr-balance-torn" in told


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 2, "give TRIGGER, with --checkpoint NAME where it is not answered yet, or --follow alone"),
        (("--follow", "--checkpoint", "x"), 2, "give TRIGGER, with --checkpoint NAME where it is not answered yet"),
        ((TRIGGER,), 2, "request tr-balance is not answered with a new checkpoint; give --checkpoint NAME"),
        ((TRIGGER, "--checkpoint", "x", "--limit", "1"), 2, "--policy and --limit go with --follow"),
        (("--follow", "--check"), 2, "--check goes with TRIGGER"),
        (("tr-none", "--checkpoint", "x"), 1, "no request in the log begins with 'tr-none'"),
        ((TRIGGER, "--checkpoint", "weak"), 2, "weak is the checkpoint that request tr-balance is about"),
    ],
)
def test_wrong_usage_is_refused(asked: Place, arguments: tuple[str, ...], code: int, words: str) -> None:
    assert words in " ".join(asked.run("retrain", "regress", *arguments, code=code).split())
