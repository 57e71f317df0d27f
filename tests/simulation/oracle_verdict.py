"""The content of a verdict, worked out from the facts that an attempt applied. Part of the oracle; see `oracle`."""

import math
import struct
from typing import TYPE_CHECKING, Any

from tests.simulation.oracle import Fact, taxonomy
from tests.simulation.oracle_steps import assigned, found_labels, rule_set

if TYPE_CHECKING:
    from tests.simulation.oracle import Attempt

FLOATS = {"float16": "e", "float32": "f", "float64": "d"}


def content_of(attempt: "Attempt") -> dict[str, Any]:
    """Every field of the content; lists whose order means nothing are sorted."""
    request = first(attempt, "episode::requested", "episode::retry_requested")
    started = first(attempt, "agent::started")
    ready = first(attempt, "sim::ready")
    claim = first(attempt, "episode::claimed")
    end = attempt.end or attempt.timed_out
    assert end is not None
    steps = [fact.body for fact in attempt.applied if fact.type == "sim::step_done"]
    n_steps = attempt.next_step - attempt.first_step
    if attempt.end is not None and attempt.end.body["n_steps"] is not None:
        n_steps = attempt.end.body["n_steps"]
    begun = claim or ready
    started_at = None if begun is None else begun["occurred_at"]
    named = request or started or {}
    loaded = {} if started is None else started
    built_in, nonfinite_count = nonfinite(attempt)
    labels = found_labels(attempt) | dict.fromkeys(built_in | ({"zero_steps"} if n_steps == 0 else set()), -1)
    return {
        "run_id": attempt.run_id if request is None else request["run_id"],
        "policy": named.get("policy", ""),
        "policy_version": named.get("policy_version", ""),
        "checkpoint": named.get("checkpoint"),
        **{name: (request or {}).get(name, "") for name in ("task", "scene", "perturbation", "cell")},
        **{name: (request or {}).get(name, 0) for name in ("repetition",)},
        "purpose": (request or {}).get("purpose", "evaluation"),
        "seed": (request or ready or {}).get("seed", 0),
        "requested_at": None if request is None else request["occurred_at"],
        "started_at": started_at,
        "ended_at": end.body["occurred_at"],
        **outcome(attempt, end),
        "labels": sorted(labels),
        "label_steps": [labels[name] for name in sorted(labels)],
        "rule_set": rule_set(attempt),
        "autonomous": first(attempt, "episode::intervened") is None,
        "n_steps": n_steps,
        "total_reward": total(step["reward"] for step in steps),
        **successes(attempt, steps),
        "metrics": metrics(attempt, steps, ready, started_at, end.body["occurred_at"]),
        **certificate(attempt),
        "nonfinite_count": nonfinite_count,
        "schema_fingerprints": sorted(attempt.fingerprints),
        "reported_seed": None if ready is None else ready["seed"],
        "reported_checkpoint": loaded.get("checkpoint") or (request or {}).get("checkpoint"),
        **{
            name: "" if ready is None else ready[name]
            for name in ("simulator", "simulator_version", "adapter_version", "environment_digest")
        },
    }


def first(attempt: "Attempt", *types: str) -> dict[str, Any] | None:
    """The first applied fact of these types."""
    return next((fact.body for fact in attempt.applied if fact.type in types), None)


def total(numbers: Any) -> float:
    """One after the other, from 0.0."""
    result = 0.0
    for number in numbers:
        if number is not None:
            result += number
    return result


def outcome(attempt: "Attempt", end: Fact) -> dict[str, Any]:
    """Outcome, failure type, fault and message."""
    body = end.body
    failure_type, message = None, ""
    if end.type == "episode::failed":
        failure_type, message = body["failure_type"], body["message"]
    elif end.type == "episode::aborted":
        failure_type, message = "aborted_by_operator", body["reason"]
    elif end.type == "episode::timed_out":
        failure_type = "host_lost" if body["owed"] == "host" else "silent_timeout"
        message = body["owed"]
    elif body["success"] is not True:
        plain = "terminated_early" if body["reason"] == "terminated" else "task_not_completed"
        failure_type = assigned(attempt) or plain
    if failure_type is None:
        return {"outcome": "success", "failure_type": None, "fault": None, "message": message}
    result, fault = taxonomy(failure_type)
    return {"outcome": result, "failure_type": failure_type, "fault": fault, "message": message}


def successes(attempt: "Attempt", steps: list[dict[str, Any]]) -> dict[str, bool | None]:
    """Whether the task stood achieved at any time, and at the end."""
    told = [step["success"] for step in steps if step["success"] is not None]
    announced = attempt.end.body.get("success") if attempt.end is not None else None
    once = any(told) if told else None
    if announced is True:
        once = True
    elif announced is False and once is None:
        once = False
    return {"success_once": once, "success_at_end": told[-1] if told else announced}


def metrics(
    attempt: "Attempt",
    steps: list[dict[str, Any]],
    ready: dict[str, Any] | None,
    started_at: int | None,
    ended_at: int,
) -> dict[str, float]:
    """The named numbers; what there is no data for is left out."""
    actions = [fact for fact in attempt.applied if fact.type == "agent::action_sent"]
    found: dict[str, float] = {
        "actions_sent": float(len(actions)),
        "actions_unexecuted": float(sum(fact.seq not in attempt.executed for fact in actions)),
    }
    for name, values in (
        ("inference_s_mean", [fact.body["inference_s"] for fact in actions]),
        ("step_wall_s_mean", [step["step_wall_s"] for step in steps]),
    ):
        finite = [value for value in values if value is not None and math.isfinite(value)]
        if finite:
            found[name] = total(finite) / len(finite)
    rewards = [step["reward"] for step in steps if step["reward"] is not None and math.isfinite(step["reward"])]
    if rewards:
        found["reward_max"] = max(rewards)
    times = [] if ready is None else [ready["sim_time"]]
    times = [time for time in [*times, *(step["sim_time"] for step in steps)] if time is not None]
    if ready is not None and times:
        found["sim_duration_s"] = times[-1] - (ready["sim_time"] or 0.0)
    elif ready is not None and ready["step_duration_s"] is not None:
        found["sim_duration_s"] = ready["step_duration_s"] * (attempt.next_step - attempt.first_step)
    if started_at is not None:
        found["wall_duration_s"] = (ended_at - started_at) / 1e6
    return found


def nonfinite(attempt: "Attempt") -> tuple[set[str], int]:
    """Labels, and how many applied events hold a NaN or an infinity."""
    labels: set[str] = set()
    count = 0
    for fact in attempt.applied:
        found = set()
        if fact.type == "agent::action_sent" and not_finite([fact.body["action"]]):
            found.add("nonfinite_action")
        if fact.type in ("sim::ready", "sim::step_done") and not_finite(fact.body["observation"]):
            found.add("nonfinite_observation")
        if fact.type == "sim::step_done" and not math.isfinite(fact.body["reward"] or 0.0):
            found.add("nonfinite_reward")
        labels |= found
        count += bool(found)
    return labels, count


def not_finite(tensors: Any) -> bool:
    """Whether a tensor in the log holds a NaN or an infinity."""
    for tensor in tensors:
        code = FLOATS.get(tensor["dtype"])
        if code is not None:
            size = struct.calcsize(code)
            if any(not math.isfinite(x) for (x,) in struct.iter_unpack(f"<{code}", tensor["data"])) and size:
                return True
    return False


def certificate(attempt: "Attempt") -> dict[str, Any]:
    """How complete the evidence is. Lost and late are sets of (producer, sequence)."""
    lost = {(name, seq) for name, stream in attempt.streams.items() for seq in stream.lost}
    late = {(name, seq) for name, stream in attempt.streams.items() for seq in stream.late}
    end = attempt.end.body if attempt.end is not None else None
    notes = set()
    if lost:
        notes.add("lost")
    if late:
        notes.add("late")
    if first(attempt, "episode::requested", "episode::retry_requested") is None:
        notes.add("no request")
    if attempt.overflow:
        notes.add("overflow")
    if end is None or end["last_sim_seq"] is None or end["last_agent_seq"] is None:
        notes.add("tail unknown")
    if any(stream.held for stream in attempt.streams.values()):
        notes.add("waiting")
    told = None if end is None else end["n_steps"]
    if told is not None and not lost and not late and told != attempt.next_step - attempt.first_step:
        notes.add("step count differs")
    return {
        "completeness": "incomplete" if notes else "complete",
        "completeness_notes": sorted(notes),
        "lost": sorted(lost),
        "late": sorted(late),
        "lost_count": len(lost),
        "late_count": len(late),
        "violation_count": attempt.violations,
    }
