"""Would a request's rule fire again for the new checkpoint? Judged on the fresh episodes of a regression run.

The detector does not count regression runs (they try again what failed, by choice), so the question is asked here: the
rule that made the request is put to the new checkpoint's fresh episodes, in the order in which they were asked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from stepwell.adapters.rules.in_force import activations
from stepwell.engine.detection.bearing import bearing
from stepwell.engine.detection.promises import judge
from stepwell.engine.intervals import wilson
from stepwell.engine.ports import MessageLog
from stepwell.engine.ruleset import BUILT_IN, InARowRule, ShiftRule, VerdictRule
from stepwell.events.codec import Codec
from stepwell.events.model import EVALUATION, RetrainRequested, VerdictIssued
from stepwell.exceptions import ConfigurationError, TopicError

Finding = Literal["fires", "silent", "too_few", "unknown"]


@dataclass(frozen=True, slots=True)
class Recurrence:
    """What the request's rule makes of the new checkpoint's fresh episodes.

    Attributes:
        rule, rule_version: the rule that made the request.
        finding: ``fires``, ``silent`` (it would not), ``too_few`` (fewer episodes than it needs, so that its silence
            says nothing) or ``unknown`` (the log has no such rule).
        episodes: fresh episodes of the new checkpoint that the rule would judge: scored, and of the key that the
            request is about. For a rule that compares two checkpoints, of the one that has fewer.
        failures: those that the rule counts.
        minimum: episodes without which it cannot fire; None where the rule is unknown.
        same_failure: how many failed with the request's failure type, of ``scored``.
        scored: fresh episodes of the new checkpoint that ended in success or failure, whatever their cell.
    """

    rule: str
    rule_version: int
    finding: Finding
    episodes: int
    failures: int
    minimum: int | None
    same_failure: int
    scored: int

    @property
    def in_words(self) -> str:
        """The finding, to follow the name of the rule."""
        match self.finding:
            case "fires":
                return f"the rule would have fired again ({self.failures} of {self.episodes} failed)"
            case "silent":
                return f"the rule would not have fired ({self.failures} of {self.episodes} failed)"
            case "too_few":
                return f"too few episodes to tell ({self.episodes} of minimum {self.minimum})"
            case "unknown":
                return "the log no longer has this rule, so whether it would fire is not known"

    def as_plain(self) -> dict[str, Any]:
        """As plain data; the failure type's rate with its 95 % Wilson interval."""
        names = ("rule", "rule_version", "finding", "episodes", "failures", "minimum", "same_failure", "scored")
        return {name: getattr(self, name) for name in names} | {
            "same_failure_interval": wilson(self.same_failure, self.scored)
        }


def rule_of(log: MessageLog, codec: Codec, request: RetrainRequested) -> VerdictRule | None:
    """The rule that made a request; None where the log has none of its name and version.

    A name and a version always mean the same rule, whichever set it stands in: activation refuses anything else.
    """
    sets = [BUILT_IN]
    try:
        known = activations(log, codec)
    except TopicError:
        known = []  # an older log: nothing was ever activated
    for each in known:
        try:
            sets.append(each.rules())
        except ConfigurationError:
            continue
    wanted = (request.rule, request.rule_version)
    rules = (rule for rule_set in reversed(sets) for rule in rule_set.verdicts)
    return next((rule for rule in rules if (rule.name, rule.version) == wanted), None)


def recurrence(
    rule: VerdictRule | None,
    request: RetrainRequested,
    before: Sequence[VerdictIssued],
    after: Sequence[VerdictIssued],
) -> Recurrence:
    """Put the rule to fresh episodes in the order in which they were asked for.

    Args:
        rule: the request's.
        request: tells the failure type and the key.
        before: scored episodes of the old checkpoint; only a rule that compares two checkpoints looks at them.
        after: scored episodes of the new one.
    """
    same = sum(verdict.outcome == "failure" and verdict.failure_type == request.failure_type for verdict in after)
    if rule is None or (rule.per and not request.evidence):
        return Recurrence(request.rule, request.rule_version, "unknown", 0, 0, None, same, len(after))
    old = _stream(rule, request, before) if isinstance(rule, ShiftRule) else []
    new = _stream(rule, request, after)
    fires = judge(rule)
    fired = [fires(failed, is_new) for is_new, stream in ((False, old), (True, new)) for failed in stream]
    episodes = min(len(old), len(new)) if isinstance(rule, ShiftRule) else len(new)
    minimum = rule.length if isinstance(rule, InARowRule) else rule.minimum
    finding: Finding = "fires" if any(fired) else "silent" if episodes >= minimum else "too_few"
    return Recurrence(request.rule, request.rule_version, finding, episodes, sum(new), minimum, same, len(after))


def _stream(rule: VerdictRule, request: RetrainRequested, verdicts: Sequence[VerdictIssued]) -> list[bool]:
    """Whether each episode of the request's key failed in the way that the rule counts."""
    stream = []
    for verdict in verdicts:
        if any(getattr(verdict, part) != getattr(request.evidence[0], part) for part in rule.per):
            continue
        # As it would count in an evaluation: a retry after a broken simulator stands for the first attempt.
        says = bearing(msgspec.structs.replace(verdict, purpose=EVALUATION, attempt=1))
        if says != "silent":
            stream.append(says == "counts" and _is_counted(rule, request, verdict))
    return stream


def _is_counted(rule: VerdictRule, request: RetrainRequested, failure: VerdictIssued) -> bool:
    """Whether a failure of the policy is of a kind that the rule counts; a row is one of failures of one type."""
    types, labels = rule.counts.failure_types, rule.counts.labels
    return (
        (types is None or failure.failure_type in types)
        and (labels is None or not set(labels).isdisjoint(failure.labels))
        and (not isinstance(rule, InARowRule) or failure.failure_type == request.failure_type)
    )
