"""What step rules cost: the same fold of the same events, with rules and without, in turn.

    python -m benchmarks.step_rules [--runs N]

Steps as a manipulation policy gives them: 7 numbers acted, 39 observed, a reward and a metric. Events are decoded
before the clock starts; the clock is CPU time of one thread. A *step event* is one ``sim::step_done``; each comes with
an ``agent::action_sent``, whose time is in the figures, too. Every run is checked: labels, steps, verdicts.
"""

import argparse
import gc
import random
import statistics
import struct
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from benchmarks.measure import figures
from benchmarks.workload import EVENTS_BESIDE_STEPS, Workload
from stepwell.engine.fold import apply
from stepwell.engine.ruleset import RuleSet
from stepwell.engine.state import AttemptState, EpisodeState, Position
from stepwell.engine.verdict import verdict_of
from stepwell.events.model import Event, Metric, StepDone, Tensor

ACTION, OBSERVATION, STEPS = 7, 39, 500
RULES = RuleSet.model_validate({
    "rule_set": "benchmark",
    "steps": [
        {
            "kind": "limit", "name": "force", "signal": "observation.proprio[32:39]", "above": 50.0, "steps": 3,
            "within": 5,
        },
        {"kind": "nonfinite", "name": "nan_action", "signal": "action"},
        {"kind": "saturated", "name": "bounds", "signal": "action", "low": -9.0, "high": 9.0, "steps": 20},
        {"kind": "frozen", "name": "frozen", "signal": "action", "steps": 20},
        {"kind": "oscillating", "name": "shaky", "signal": "action", "amplitude": 5.0, "reversals": 16},
        {"kind": "stagnation", "name": "stuck", "signal": "metric.distance", "direction": "falling", "steps": 400},
        {"kind": "stale", "name": "stale", "signal": "observation.proprio", "steps": 10},
        {
            "kind": "sequence", "name": "no_lift", "first": {"signal": "observation.proprio[3]", "above": 2.5},
            "then": {"signal": "observation.proprio[4]", "above": 0.0}, "within_steps": 40,
        },
    ],
})  # fmt: skip
"""One of each kind. None finds its label, so all of them look at every step."""

CASES: dict[str, str] = {
    "without rules": "",
    **{f"only {rule.kind}": RULES.model_copy(update={"steps": [rule]}).steps_canonical() for rule in RULES.steps},
    "all 8 rules": RULES.steps_canonical(),
}


def workload(episodes: int) -> list[Event]:
    """Interleaved episodes whose steps carry what the rules read."""
    load = Workload("step-rules", episodes, steps=STEPS, observation=OBSERVATION, action=ACTION)
    chance = random.Random(1)
    return [_with_metric(event, chance) for event in load.facts()]


def _with_metric(event: Event, chance: random.Random) -> Event:
    if not isinstance(event, StepDone):
        return event
    assert event.step is not None
    numbers = [chance.gauss(0, 1) for _ in range(OBSERVATION)]
    proprio = Tensor(
        name="proprio", dtype="float64", shape=(OBSERVATION,), data=struct.pack(f"<{OBSERVATION}d", *numbers)
    )
    distance = Metric(name="distance", value=1.0 - event.step / STEPS)
    return msgspec.structs.replace(event, observation=(proprio,), metrics=(distance,))


def fold_all(facts: Sequence[Event], rules: str) -> tuple[float, dict[str, EpisodeState]]:
    """CPU seconds of folding everything, and what it came to."""
    states: dict[str, EpisodeState] = {}
    positions = [Position(0, at, 1_000_000 + at, "f", at + 1, rules) for at in range(len(facts))]
    gc.collect()
    gc.disable()
    begun = time.thread_time()
    for event, position in zip(facts, positions, strict=True):
        state = states.get(event.episode_id)
        if state is None:
            state = states[event.episode_id] = EpisodeState(event.episode_id)
        apply(state, event, position)
    took = time.thread_time() - begun
    gc.enable()
    return took, states


def check(states: dict[str, EpisodeState], rules: str) -> None:
    """A wrong result ends the benchmark."""
    for state in states.values():
        attempt = state.attempts[1]
        assert isinstance(attempt, AttemptState)
        verdict = verdict_of(attempt)
        assert verdict is not None
        assert verdict.n_steps == STEPS
        assert verdict.labels == (), verdict.labels
        assert attempt.rules == rules
        assert (attempt.step_memory is not None) == bool(rules)


def step_rule_runs(episodes: int, turns: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every case in turn, several times: step events per second, and the share of the fold without rules beside it."""
    facts = workload(episodes)
    assert len(facts) == episodes * (EVENTS_BESIDE_STEPS + 2 * STEPS)
    for _ in range(turns):
        plain = 0.0
        for name, rules in CASES.items():
            took, states = fold_all(facts, rules)
            check(states, rules)
            plain = plain or took
            run: dict[str, Any] = figures(episodes * STEPS, took, took)
            yield f"step rules: {name}", run | {"times_without": took / plain}


def main() -> None:
    """Print the median of each case."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.step_rules", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--runs", type=int, default=7, help="how often each case runs")
    parser.add_argument("--episodes", type=int, default=20, help="episodes of 500 steps in each run")
    chosen = parser.parse_args()
    kept: dict[str, list[dict[str, Any]]] = {}
    for name, run in step_rule_runs(chosen.episodes, chosen.runs):
        kept.setdefault(name, []).append(run)
    for name, runs in kept.items():
        rates, ratios = ([run[figure] for run in runs] for figure in ("per_s", "times_without"))
        print(
            f"{name:<32}{statistics.median(rates):>10,.0f} step events/s ({min(rates):,.0f} to {max(rates):,.0f}), "
            f"{statistics.median(ratios):.2f} x the time without"
        )


if __name__ == "__main__":
    main()
