"""Labels that steps put into a verdict: the built-in ones, and those of the attempt's step rules.

Built-in labels are the rule set ``step-labels/1``; a change of meaning is a new version.

* ``nonfinite_action``, ``nonfinite_observation``, ``nonfinite_reward``: NaN or infinity in an applied fact.
* ``zero_steps``: the attempt ended before its first step was done.
"""

from collections.abc import Iterable
from struct import iter_unpack
from typing import TYPE_CHECKING, Final

from stepwell.engine.steps.program import program_of
from stepwell.events.model import Tensor

if TYPE_CHECKING:
    from stepwell.engine.state import AttemptState

RULE_SET: Final = "step-labels/1"
BUILT_IN_LABELS: Final = ("nonfinite_action", "nonfinite_observation", "nonfinite_reward", "zero_steps")
"""Rules of a rule set must not be called so."""

_FORMATS: Final = {"float64": ("<d", 8), "float32": ("<f", 4), "float16": ("<e", 2)}


def has_nonfinite(tensors: Iterable[Tensor]) -> bool:
    """Whether any element is NaN or infinite. Integers never are; bytes that fit no whole element are not read."""
    for tensor in tensors:
        dtype = tensor.dtype
        if dtype == "float64":
            top = tensor.data[7::8]
        elif dtype == "float32":
            top = tensor.data[3::4]
        elif dtype == "float16":
            top = tensor.data[1::2]
        else:
            continue
        # An exponent of all ones needs 0x7f or 0xff in the top byte (0x7c to 0x7f, 0xfc to 0xff in a float16), which
        # finite numbers of a usual size never have; so the elements themselves are looked at only then.
        if (b"\x7f" in top or b"\xff" in top or dtype == "float16") and _any_nonfinite(tensor.data, *_FORMATS[dtype]):
            return True
    return False


def _any_nonfinite(data: bytes, code: str, size: int) -> bool:
    whole = memoryview(data)[: len(data) // size * size]
    return any(value - value != 0.0 for (value,) in iter_unpack(code, whole))


def labels_of(attempt: "AttemptState") -> dict[str, int]:
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


def rule_set_of(attempt: "AttemptState") -> str:
    """The rules behind an attempt's labels: ``step-labels/1``, and ``NAME/VERSION SHA8`` of its own if it has any."""
    return f"{RULE_SET} {program_of(attempt.rules).title}" if attempt.rules else RULE_SET


def assigned_type(attempt: "AttemptState") -> str | None:
    """The failure type that the attempt's step rules give to a plain failure; None where none found one."""
    return program_of(attempt.rules).assigned(attempt.step_memory, attempt.request) if attempt.rules else None
