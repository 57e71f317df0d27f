"""Verdicts for tests of what reads them."""

from stepwell.events.ids import derived_event_id
from stepwell.events.model import Certificate, Outcome, Provenance, VerdictIssued
from stepwell.events.taxonomy import OUTCOME_OF_FAULT, fault_of

CERTIFICATE = Certificate(
    status="complete", notes=(), lost=(), late=(), lost_count=0, late_count=0, duplicate_count=0, violation_count=0,
    nonfinite_count=0,
)  # fmt: skip
PROVENANCE = Provenance(
    partition=0, first_offset=0, last_offset=9, fold_hash="00", rule_set="none", schema_fingerprints=(), seed=1,
    checkpoint=None, simulator="s", simulator_version="1", adapter_version="1", environment_digest="",
)  # fmt: skip


def verdict(
    episode: str,
    failure_type: str | None = "task_not_completed",
    *,
    revision: int = 0,
    attempt: int = 1,
    version: str = "1",
    checkpoint: str | None = None,
    scene: str = "plain",
    autonomous: bool = True,
    policy: str = "expert",
) -> VerdictIssued:
    fault = fault_of(failure_type) if failure_type else None
    outcome: Outcome = OUTCOME_OF_FAULT[fault] if fault else "success"
    return VerdictIssued(
        event_id=derived_event_id("verdict", episode, attempt, revision), run_id="run-1", episode_id=episode,
        attempt=attempt, producer_id="engine", producer_seq=revision, occurred_at=1, trace_id="1" * 32,
        revision=revision, policy=policy, policy_version=version, checkpoint=checkpoint, task="t", scene=scene,
        perturbation="none", seed=1, repetition=0, cell="c", ended_at=1, outcome=outcome, failure_type=failure_type,
        fault=fault, message="", labels=(), autonomous=autonomous, n_steps=3, total_reward=0.0, metrics=(),
        certificate=CERTIFICATE, provenance=PROVENANCE,
    )  # fmt: skip
