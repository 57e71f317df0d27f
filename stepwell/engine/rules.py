"""Detector rules, as data: what a rule looks for, and what one verdict says to it.

The first rule: *the same failure type in N episodes in a row for one policy*. What counts, as a user would expect it:

* A **success** or **another failure type** breaks the row.
* An episode that says nothing about the policy is skipped, it neither counts nor breaks the row: the simulator or the
  infrastructure broke (``error``), a person stopped it (``aborted``) or helped (not autonomous).
* Only first attempts count; a retry is the same episode again.
* "One policy" means one policy as it was evaluated: name, version and checkpoint (`row_key`). A retrained checkpoint
  starts with a clean sheet, and two checkpoints evaluated side by side don't break each other's rows.
* "In a row" is the order in which the first revisions of the verdicts were recorded in ``stepwell.policy-events``.
"""

import hashlib
from typing import Literal, NamedTuple

import msgspec

from stepwell.events.model import VerdictIssued
from stepwell.exceptions import ConfigurationError

WINDOW_MAX = 512
"""Verdicts kept per policy; only these can be amended in place. At least four times the longest row."""

LENGTH_MAX = WINDOW_MAX // 4

Bearing = Literal["counts", "breaks", "silent"]


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule of the kind "the same failure type in ``length`` episodes in a row".

    Attributes:
        name, version: stand in every trigger and in its id; change ``version`` with any other field.
        length: how many episodes in a row (N), from 1 to `LENGTH_MAX`.
        cooldown: after a trigger was answered for good, so many further episodes of the same policy that count or break
            are taken as its aftermath and cannot open another trigger for the same failure type.
    """

    name: str = "same_failure_in_a_row"
    version: int = 1
    length: int = 5
    cooldown: int = 10

    def __post_init__(self) -> None:
        if not 1 <= self.length <= LENGTH_MAX:
            raise ConfigurationError(f"rule {self.name}: length must be from 1 to {LENGTH_MAX}, not {self.length}")
        if self.cooldown < 0:
            raise ConfigurationError(f"rule {self.name}: cooldown must not be negative, not {self.cooldown}")

    @property
    def promise(self) -> str:
        """What the rule promises, in words."""
        return (
            f"{self.length} first attempts in a row, for one policy, version and checkpoint, ended in the same failure "
            "type whose fault is the policy's; errors, aborted and helped episodes were skipped"
        )


SAME_FAILURE_IN_A_ROW = Rule()


class RowKey(NamedTuple):
    """Within one policy: the policy as it was evaluated."""

    policy_version: str
    checkpoint: str | None

    def text(self, policy: str) -> str:
        """For people and for trigger ids, e.g. ``policy=reach-expert version=2 checkpoint=ab12``."""
        return f"policy={policy} version={self.policy_version} checkpoint={self.checkpoint or 'none'}"


def row_key(verdict: VerdictIssued) -> RowKey:
    """Which row of its policy a verdict belongs to."""
    return RowKey(verdict.policy_version, verdict.checkpoint)


def bearing(verdict: VerdictIssued) -> Bearing:
    """What a verdict does to its row: it ``counts`` as a failure, ``breaks`` the row, or is ``silent``."""
    if verdict.attempt != 1 or not verdict.autonomous or verdict.outcome in ("error", "aborted"):
        return "silent"
    if verdict.outcome == "success":
        return "breaks"
    # A failure whose fault lies elsewhere would contradict the taxonomy; if it ever came, it must not hurt the policy.
    return "counts" if verdict.fault == "policy" and verdict.failure_type else "silent"


def rules_hash(rule: Rule, code_version: int) -> str:
    """Hex digest of a rule and of the code that judges by it."""
    return hashlib.sha256(msgspec.json.encode((rule, WINDOW_MAX, code_version))).hexdigest()
