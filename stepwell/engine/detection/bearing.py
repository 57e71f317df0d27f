"""What one verdict says about its policy, and to each rule.

* A **success** or a **failure** speaks about the policy; only a failure whose fault is the policy's counts as one.
* An episode is *silent* where the simulator or the infrastructure broke (``error``), where a person stopped it
  (``aborted``) or helped (not autonomous). So infrastructure faults never feed a rule.
* Only first attempts speak; a retry is the same episode again.
* Only evaluations speak. A regression run picks the cells that failed before, and runs the old checkpoint beside the
  new one: fed to the rules, it would ask for retraining again and again, however good the mend.
* "One policy" means one policy as it was evaluated: name, version and checkpoint (`Key`). A retrained checkpoint starts
  with a clean sheet, and two checkpoints evaluated side by side don't disturb each other.
* A rule that counts some failure types or labels only takes every other failure for an episode that did not fail in
  that way.
"""

from collections.abc import Iterable
from typing import Literal, NamedTuple

import msgspec

from stepwell.engine.ruleset import Counted
from stepwell.events.model import EVALUATION, EvidenceEpisode, VerdictIssued

Bearing = Literal["counts", "breaks", "silent"]

WAITING = -1
"""Rank of a verdict that has not had its turn in the order of requests yet."""


class Key(NamedTuple):
    """Within one policy, what a rule is judged for: the policy as it was evaluated, and the parts named by ``per``."""

    policy_version: str
    checkpoint: str | None
    parts: tuple[tuple[str, str], ...] = ()

    def text(self, policy: str) -> str:
        """For people and for trigger ids, e.g. ``policy=reach-expert version=2 checkpoint=ab12 scene=dark``."""
        text = f"policy={policy} version={self.policy_version} checkpoint={self.checkpoint or 'none'}"
        return " ".join([text, *(f"{name}={value}" for name, value in self.parts)]) if self.parts else text


class Entry(msgspec.Struct):
    """The verdict of one episode, as of its last revision.

    Attributes:
        evidence: the episode, its cell, and where its verdict and its facts stand.
        policy_version, checkpoint: the policy as it was evaluated.
        bearing: what the verdict says, whatever a rule counts.
        failure_type: of a failure that counts; empty otherwise.
        labels: what the step rules found.
        run_id, trace_id: of the verdict.
        number: how many episodes of the policy were recorded before it (order of the log).
        rank: how many had their turn before it in the order of requests; `WAITING` before its own.
        taken: for each rule over rows, the trigger that took the episode in.
    """

    evidence: EvidenceEpisode
    policy_version: str
    checkpoint: str | None
    bearing: Bearing
    failure_type: str
    labels: tuple[str, ...]
    run_id: str
    trace_id: str
    number: int = 0
    rank: int = WAITING
    taken: dict[str, str] = msgspec.field(default_factory=dict)


def bearing(verdict: VerdictIssued) -> Bearing:
    """Whether a verdict ``counts`` as a failure of its policy, ``breaks`` a row of them, or is ``silent``."""
    if (
        verdict.attempt != 1
        or verdict.purpose != EVALUATION
        or not verdict.autonomous
        or verdict.outcome in ("error", "aborted")
    ):
        return "silent"
    if verdict.outcome == "success":
        return "breaks"
    # A failure whose fault lies elsewhere would contradict the taxonomy; if it ever came, it must not hurt the policy.
    return "counts" if verdict.fault == "policy" and verdict.failure_type else "silent"


def entry_of(verdict: VerdictIssued, partition: int, offset: int) -> Entry:
    """The entry of a verdict that stands at this place of ``stepwell.policy-events``."""
    says = bearing(verdict)
    provenance = verdict.provenance
    return Entry(
        evidence=EvidenceEpisode(
            episode_id=verdict.episode_id,
            attempt=verdict.attempt,
            revision=verdict.revision,
            partition=partition,
            offset=offset,
            scene=verdict.scene,
            perturbation=verdict.perturbation,
            seed=verdict.seed,
            n_steps=verdict.n_steps,
            task=verdict.task,
            events_partition=provenance.partition,
            first_offset=provenance.first_offset,
            last_offset=provenance.last_offset,
        ),
        policy_version=verdict.policy_version,
        checkpoint=verdict.checkpoint,
        bearing=says,
        failure_type=(verdict.failure_type or "") if says == "counts" else "",
        labels=verdict.labels,
        run_id=verdict.run_id,
        trace_id=verdict.trace_id,
    )


class Reading:
    """How one rule reads entries: for which key, and as what."""

    def __init__(self, per: Iterable[str], counts: Counted) -> None:
        self._per = tuple(per)
        self._types = frozenset(counts.failure_types) if counts.failure_types else None
        self._labels = frozenset(counts.labels) if counts.labels else None
        self._all = self._types is None and self._labels is None

    def key(self, entry: Entry) -> Key:
        """What the entry is judged under."""
        if not self._per:
            return Key(entry.policy_version, entry.checkpoint)
        evidence = entry.evidence
        return Key(entry.policy_version, entry.checkpoint, tuple((name, getattr(evidence, name)) for name in self._per))

    def says(self, entry: Entry) -> Bearing:
        """The entry's bearing on this rule."""
        if entry.bearing != "counts" or self._all:
            return entry.bearing
        if self._types is not None and entry.failure_type not in self._types:
            return "breaks"
        if self._labels is not None and self._labels.isdisjoint(entry.labels):
            return "breaks"
        return "counts"

    def failed(self, entry: Entry) -> bool | None:
        """Whether it failed in the way that the rule counts; None: it says nothing."""
        says = self.says(entry)
        return None if says == "silent" else says == "counts"

    @property
    def per_text(self) -> str:
        """What the rule keeps apart, in words."""
        names = ["policy", "version", "checkpoint", *self._per]
        return f"{', '.join(names[:-1])} and {names[-1]}"
