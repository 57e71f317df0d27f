"""Labels that steps put into a verdict: the built-in ones, and those of the attempt's step rules.

Built-in labels are the rule set ``step-labels/1``; a change of meaning is a new version.

* ``nonfinite_action``, ``nonfinite_observation``, ``nonfinite_reward``: NaN or infinity in an applied fact.
* ``zero_steps``: the attempt ended before its first step was done.
"""

from typing import Final

from stepwell.engine.state import AttemptState
from stepwell.engine.steps.program import program_of

RULE_SET: Final = "step-labels/1"
BUILT_IN_LABELS: Final = ("nonfinite_action", "nonfinite_observation", "nonfinite_reward", "zero_steps")
"""Rules of a rule set must not be called so."""


def labels_of(attempt: AttemptState) -> dict[str, int]:
    """What the rules say of an ended attempt: labels, sorted, with the step at which each was first found.

    -1 for the built-in ones, which are of no one step.
    """
    found = program_of(attempt.rules).labels(attempt.step_memory, attempt.request) if attempt.rules else {}
    if attempt.nonfinite_actions:
        found["nonfinite_action"] = -1
    if attempt.nonfinite_observations:
        found["nonfinite_observation"] = -1
    if attempt.nonfinite_rewards:
        found["nonfinite_reward"] = -1
    if not attempt.steps and not (attempt.end and attempt.end.n_steps):
        found["zero_steps"] = -1
    return dict(sorted(found.items()))


def rule_set_of(attempt: AttemptState) -> str:
    """The rules behind an attempt's labels: ``step-labels/1``, and ``NAME/VERSION SHA8`` of its own if it has any."""
    return f"{RULE_SET} {program_of(attempt.rules).title}" if attempt.rules else RULE_SET


def assigned_type(attempt: AttemptState) -> str | None:
    """The failure type that the attempt's step rules give to a plain failure; None where none found one."""
    return program_of(attempt.rules).assigned(attempt.step_memory, attempt.request) if attempt.rules else None
