"""Failure types and whose fault each one is.

A crash is never the policy's failure unless the policy's own code crashed; a policy's fault is never excused as
infrastructure. Every failure type belongs to exactly one fault; docs/failure-types.md explains each to users.
"""

from stepwell.events.model import Fault, Outcome

FAILURE_TYPES: dict[str, tuple[Fault, str]] = {
    "task_not_completed": ("policy", "the step budget ran out before the task stood achieved"),
    "terminated_early": ("policy", "the simulator ended the episode without success, e.g. the robot fell"),
    "invalid_action": ("policy", "the policy sent NaN, infinity or an action of the wrong shape or type"),
    "action_frozen": ("policy", "a step rule found that the policy sent the same action again and again"),
    "action_oscillating": ("policy", "a step rule found that the policy's actions went to and fro"),
    "action_saturated": ("policy", "a step rule found the policy's actions at their bounds"),
    "no_progress": ("policy", "a step rule found that the task came no nearer to its goal"),
    "limit_exceeded": ("policy", "a step rule found a limit exceeded, e.g. of torque, contact force or jerk"),
    "sequence_missed": ("policy", "a step rule found that a stage of the task did not follow in time"),
    "agent_exception": ("policy", "the policy's code raised an exception"),
    "agent_exited": ("policy", "the policy's process ended by itself"),
    "agent_timeout": ("policy", "the policy did not answer in time though its process lives"),
    "sim_exception": ("simulator", "the simulator's code raised an exception"),
    "sim_exited": ("simulator", "the simulator's process ended by itself"),
    "sim_timeout": ("simulator", "the simulator did not answer in time though its process lives"),
    "sim_diverged": ("simulator", "the simulation became numerically unstable after finite actions"),
    "stale_observation": ("simulator", "a step rule found that an observation hung while the steps went on"),
    "agent_killed": ("infrastructure", "the policy's process was killed from outside"),
    "sim_killed": ("infrastructure", "the simulator's process was killed from outside"),
    "start_failed": ("infrastructure", "a component could not be started"),
    "host_lost": ("infrastructure", "the host that ran the episode vanished"),
    "silent_timeout": ("infrastructure", "the log fell silent and no component reported why"),
    "control_too_slow": ("infrastructure", "a step rule found the loop from observation to action slower than allowed"),
    "aborted_by_operator": ("operator", "a person stopped the attempt"),
}
"""Failure type -> (whose fault, what it means)."""

OUTCOME_OF_FAULT: dict[Fault, Outcome] = {
    "policy": "failure",
    "simulator": "error",
    "infrastructure": "error",
    "operator": "aborted",
}
"""Only ``success`` and ``failure`` are scored; ``error`` and ``aborted`` say nothing about the policy."""


def fault_of(failure_type: str) -> Fault:
    """Whose fault a failure type is; an unknown one counts as infrastructure's, so that it never hurts a policy."""
    known = FAILURE_TYPES.get(failure_type)
    return known[0] if known else "infrastructure"
