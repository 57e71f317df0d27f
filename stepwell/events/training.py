"""The way from failures to training: rules put in force, patterns seen, requests made, and what became of them.

The detector publishes, training services answer, people acknowledge and mute. Part of `stepwell.events.model`, from
which everything here can be had.
"""

from stepwell.events.head import Event
from stepwell.events.values import EvidenceEpisode, SamplingWeight


class RulesActivated(Event, frozen=True, kw_only=True):
    """A rule set takes effect for whatever stands behind this record in its partition. One in every partition of
    ``stepwell.episode-events`` (step rules) and ``stepwell.policy-events`` (the others), and one in
    ``stepwell.rule-sets``, all in one transaction.
    """

    TYPE = "rules::activated"
    PRODUCER = "operator"

    rule_set: str
    version: int
    rules_json: str
    """The whole set in canonical form; `stepwell.engine.ruleset` reads it."""
    sha256: bytes
    """Of ``rules_json``."""
    activated_by: str


class DetectorTicked(Event, frozen=True, kw_only=True):
    """Time has passed for a partition of ``stepwell.policy-events``: what waited until ``now`` is due.

    Written by the detector, only where something waits.
    """

    TYPE = "detector::ticked"
    PRODUCER = "engine"

    now: int
    """µs since 1970 UTC, by the detector's clock."""


class PatternDetected(Event, frozen=True, kw_only=True):
    """A rule saw its pattern. ``trigger_id`` is derived from rule, version, key and the opening evidence."""

    TYPE = "failure::pattern_detected"
    PRODUCER = "engine"

    trigger_id: str
    rule: str
    rule_version: int
    rule_key: str
    """What the rule was judged for, e.g. ``policy=reach-expert``."""
    policy: str
    policy_version: str
    checkpoint: str | None = None
    failure_type: str
    evidence: tuple[EvidenceEpisode, ...]
    promise: str
    """What the rule promises, in words."""
    detail: str = ""
    """What was seen, in words and numbers, e.g. ``14 of 20 failed; limit 0.3``."""


class RetrainRequested(Event, frozen=True, kw_only=True):
    """Please retrain: policy, pattern, evidence and a proposal. One effect per ``trigger_id``."""

    TYPE = "retrain::requested"
    PRODUCER = "engine"

    trigger_id: str
    rule: str
    rule_version: int
    rule_key: str
    policy: str
    policy_version: str
    checkpoint: str | None = None
    failure_type: str
    evidence: tuple[EvidenceEpisode, ...]
    sampling_weights: tuple[SamplingWeight, ...]
    requested_by: str
    detail: str = ""
    """As in `PatternDetected`."""
    hard_negatives: tuple[EvidenceEpisode, ...] = ()
    """Further failed episodes of the same kind, beside the evidence: worth training on, newest first."""
    weights_formula: str = ""
    """How ``sampling_weights`` were worked out."""
    regression_spec_json: str = ""
    """What to run with the new checkpoint afterwards: cells, seeds and what to compare with; docs/training-services.md
    has its form."""


class RetrainWithdrawn(Event, frozen=True, kw_only=True):
    """Verdicts were amended and the trigger lost its evidence."""

    TYPE = "retrain::withdrawn"
    PRODUCER = "engine"

    trigger_id: str
    policy: str
    reason: str


class RetrainAnswered(Event, frozen=True, kw_only=True):
    """A training service answers a request."""

    TYPE = "retrain::answered"
    PRODUCER = "trainer"

    trigger_id: str
    policy: str
    status: str
    """``accepted``, ``done``, ``failed`` or ``rejected``."""
    new_checkpoint: str | None = None
    detail: str


class RetrainExpired(Event, frozen=True, kw_only=True):
    """Nobody closed the request in the time that its rule gives; further evidence opens another."""

    TYPE = "retrain::expired"
    PRODUCER = "engine"

    trigger_id: str
    policy: str
    reason: str


class RetrainAcknowledged(Event, frozen=True, kw_only=True):
    """A person has seen a request. It stays open; whoever looks at the ledger sees that someone is at it."""

    TYPE = "retrain::acknowledged"
    PRODUCER = "operator"

    trigger_id: str
    policy: str
    detail: str
    acknowledged_by: str


class RetrainMuted(Event, frozen=True, kw_only=True):
    """No requests for this policy for a while (of one rule, or of all). Patterns are still published."""

    TYPE = "retrain::muted"
    PRODUCER = "operator"

    policy: str
    rule: str | None = None
    """None: every rule."""
    until: int | None = None
    """µs since 1970 UTC; None: until unmuted."""
    reason: str
    muted_by: str


class RetrainUnmuted(Event, frozen=True, kw_only=True):
    """A mute ends before its time; ``rule`` as in the mute."""

    TYPE = "retrain::unmuted"
    PRODUCER = "operator"

    policy: str
    rule: str | None = None
    unmuted_by: str
