"""The rules that are in force while detection is measured: several of each kind, on steps and on verdicts."""

from typing import Any

from stepwell.engine.ruleset import RuleSet

PROPRIO = "observation.observation"
"""What `benchmarks.workload` calls its observation."""

_STEPS: list[dict[str, Any]] = [
    {"kind": "limit", "name": "force", "signal": f"{PROPRIO}[10:17]", "above": 50.0, "steps": 3, "within": 5},
    {"kind": "limit", "name": "jerk", "signal": "action_jerk", "above": 100.0, "steps": 2, "within": 10},
    {"kind": "limit", "name": "slow", "signal": "latency_s", "above": 60.0, "steps": 3, "within": 5},
    {"kind": "nonfinite", "name": "nan_action", "signal": "action"},
    {"kind": "nonfinite", "name": "nan_observed", "signal": PROPRIO},
    {"kind": "saturated", "name": "bounds", "signal": "action", "low": -9.0, "high": 9.0, "steps": 5},
    {"kind": "saturated", "name": "gripper", "signal": "action[5]", "low": -9.0, "high": 9.0, "steps": 10},
    {"kind": "frozen", "name": "frozen", "signal": "action", "steps": 10},
    {"kind": "frozen", "name": "arm_frozen", "signal": "action[0:3]", "steps": 15},
    {"kind": "oscillating", "name": "shaky", "signal": "action", "amplitude": 9.0, "reversals": 8},
    {"kind": "oscillating", "name": "shaky_state", "signal": PROPRIO, "amplitude": 9.0, "reversals": 8},
    {"kind": "stagnation", "name": "no_reward", "signal": "reward", "direction": "rising", "steps": 500},
    {"kind": "stagnation", "name": "stuck", "signal": f"{PROPRIO}[3]", "direction": "falling", "steps": 500},
    {"kind": "stale", "name": "stale", "signal": PROPRIO, "steps": 5},
    {"kind": "stale", "name": "stale_joint", "signal": f"{PROPRIO}[0:7]", "steps": 5},
    {
        "kind": "sequence", "name": "no_lift", "within_steps": 400,
        "first": {"signal": f"{PROPRIO}[3]", "above": 2.0}, "then": {"signal": f"{PROPRIO}[4]", "above": 9.0},
    },
    {
        "kind": "sequence", "name": "no_place", "within_sim_s": 60.0,
        "first": {"signal": f"{PROPRIO}[5]", "above": 2.0}, "then": {"signal": f"{PROPRIO}[6]", "above": 9.0},
    },
]  # fmt: skip
"""None finds its label in random steps, so all of them look at every step."""

_VERDICTS: list[dict[str, Any]] = [
    {"kind": "in_a_row", "name": "two_in_a_row", "length": 2},
    {"kind": "in_a_row", "name": "three_per_scene", "length": 3, "per": ["scene"]},
    {"kind": "in_a_row", "name": "five_in_a_row", "length": 5},
    {"kind": "window_rate", "name": "most_of_four", "window": 4, "minimum": 4, "limit": 0.8},
    {"kind": "window_rate", "name": "third_of_task", "window": 30, "minimum": 20, "limit": 0.34, "per": ["task"]},
    {"kind": "window_rate", "name": "third_of_hundred", "window": 100, "minimum": 50, "limit": 0.34},
    {"kind": "rate", "name": "above_5_percent", "limit": 0.05, "level": 0.05, "minimum": 2},
    {"kind": "rate", "name": "perturbed", "limit": 0.3, "level": 0.01, "per": ["perturbation"]},
    {"kind": "rate", "name": "above_half", "limit": 0.5, "level": 0.001},
    {"kind": "shift", "name": "worse", "level": 0.01},
    {"kind": "shift", "name": "worse_on_scene", "level": 0.001, "per": ["scene"]},
]  # fmt: skip

_PROMISE = {"baseline_rate": 0.01, "average_run_length": 50.0}

LIVE_RULES = RuleSet.model_validate({
    "rule_set": "benchmark_live",
    "steps": _STEPS,
    "verdicts": [rule | ({"promise": _PROMISE} if rule["kind"] == "window_rate" else {}) for rule in _VERDICTS],
})  # fmt: skip

FIRES_AT = {2: ("two_in_a_row", "above_5_percent"), 3: ("three_per_scene",), 4: ("most_of_four",)}
"""A policy that fails from its first episode on: which rules ask for retraining with which failure."""


def many_rules(count: int) -> RuleSet:
    """So many verdict rules, of all kinds in turn, no two alike."""
    rules = []
    for number in range(count):
        turn, more = number % 4, number // 4
        rule: dict[str, Any] = [
            {"kind": "in_a_row", "length": 5 + more},
            {"kind": "window_rate", "window": 50 + more, "minimum": 30, "limit": 0.4, "promise": _PROMISE},
            {"kind": "rate", "limit": 0.4 + more / 1000},
            {"kind": "shift", "level": 0.01 / (1 + more)},
        ][turn]  # fmt: skip
        rules.append(rule | {"name": f"rule_{number}"})
    return RuleSet.model_validate({"rule_set": f"benchmark_{count}", "verdicts": rules})
