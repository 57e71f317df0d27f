"""What an attempt came to.

A verdict follows from the state alone. Its *content* is everything but its number, offsets and transport counters (how
often a record was delivered twice says nothing about the attempt); a revision is counted whenever the content changes.
"""

import hashlib
from typing import Final

import msgspec

from stepwell.engine.certificate import certificate_of, steps_of
from stepwell.engine.labels import assigned_type, labels_of, rule_set_of
from stepwell.engine.state import AttemptState
from stepwell.engine.version import FOLD_HASH
from stepwell.events.ids import derived_event_id
from stepwell.events.model import EVALUATION, Fault, Metric, Outcome, Provenance, VerdictExpected, VerdictIssued
from stepwell.events.taxonomy import OUTCOME_OF_FAULT, fault_of

ENGINE_ID: Final = "engine"
"""``producer_id`` of what the engine writes."""

_FAILURE_OF_REASON: Final = {"terminated": "terminated_early"}
_US_PER_S: Final = 1_000_000

_encode = msgspec.msgpack.Encoder().encode
_NO_ID: Final = bytes(16)


def outcome_of(attempt: AttemptState) -> tuple[Outcome, str | None, Fault | None]:
    """Outcome, failure type and whose fault, of an ended attempt.

    A plain failure (an end without success that nobody explains) has the type that a step rule assigns, where one does.
    """
    end = attempt.end
    assert end is not None
    if end.kind == "ended":
        if end.success:
            return "success", None, None
        failure_type = assigned_type(attempt) or _FAILURE_OF_REASON.get(end.reason, "task_not_completed")
    else:
        failure_type = end.failure_type or "silent_timeout"
    fault = fault_of(failure_type)
    return OUTCOME_OF_FAULT[fault], failure_type, fault


def verdict_of(attempt: AttemptState) -> VerdictIssued | None:
    """The verdict as of the attempt's current revision; None while it has not ended."""
    return _build(attempt) if attempt.end is not None else None


def pending_verdict(attempt: AttemptState) -> VerdictIssued | None:
    """The verdict where a revision has not been published yet, else None. See `mark_published`."""
    return _build(attempt) if attempt.revision > attempt.published else None


def mark_published(attempt: AttemptState) -> None:
    """The current revision is published with the batch that is being committed (or was, before a restart)."""
    attempt.published = attempt.revision


def announcement(attempt: AttemptState) -> VerdictExpected | None:
    """That a verdict is to be expected: of a first attempt that was asked for, where it is not published yet."""
    request = attempt.request
    if attempt.announced or attempt.attempt != 1 or request is None:
        return None
    return VerdictExpected(
        event_id=derived_event_id("expected", attempt.episode_id),
        run_id=request.run_id,
        episode_id=attempt.episode_id,
        attempt=1,
        producer_id=ENGINE_ID,
        producer_seq=0,
        occurred_at=request.occurred_at,
        trace_id=request.trace_id,
        policy=request.policy,
        policy_version=request.policy_version,
        checkpoint=request.checkpoint,
        task=request.task,
        scene=request.scene,
        perturbation=request.perturbation,
        requested_at=request.occurred_at,
        purpose=request.purpose,
    )


def mark_announced(attempt: AttemptState) -> None:
    """As `mark_published`, for the announcement."""
    attempt.announced = attempt.attempt == 1 and attempt.request is not None


def revise(attempt: AttemptState) -> None:
    """Count a revision where an ended attempt's content has changed since the last one."""
    content = hashlib.blake2b(content_of(_build(attempt)), digest_size=16).digest()
    if content != attempt.content:
        attempt.content = content
        attempt.revision += 1


def content_of(verdict: VerdictIssued) -> bytes:
    """The content of a verdict: equal bytes exactly where two verdicts say the same (floats to the bit)."""
    return _encode(
        msgspec.structs.replace(
            verdict,
            event_id=_NO_ID,
            producer_seq=0,
            revision=0,
            occurred_at=0,
            trace_id="",
            certificate=msgspec.structs.replace(verdict.certificate, duplicate_count=0),
            provenance=msgspec.structs.replace(verdict.provenance, partition=0, first_offset=0, last_offset=0),
        )
    )


def same_verdict(one: VerdictIssued, other: VerdictIssued) -> bool:
    """Whether two verdicts say the same."""
    return content_of(one) == content_of(other)


def _build(attempt: AttemptState) -> VerdictIssued:
    end = attempt.end
    assert end is not None
    request, start, ready = attempt.request, attempt.start_fact, attempt.ready_fact
    asked = request or start
    started_at = attempt.claimed_at
    if started_at is None and ready is not None:
        started_at = ready.occurred_at
    outcome, failure_type, fault = outcome_of(attempt)
    labels = labels_of(attempt)
    success_at_end = attempt.success_last
    success_once = attempt.success_once
    if end.kind == "ended" and end.success is not None:
        success_at_end = end.success if success_at_end is None else success_at_end
        success_once = bool(success_once) or end.success
    return VerdictIssued(
        event_id=derived_event_id("verdict", attempt.episode_id, attempt.attempt, attempt.revision),
        run_id=attempt.run_id,
        episode_id=attempt.episode_id,
        attempt=attempt.attempt,
        producer_id=ENGINE_ID,
        producer_seq=attempt.revision,
        occurred_at=attempt.changed_at,
        trace_id=attempt.trace_id,
        revision=attempt.revision,
        policy=asked.policy if asked else "",
        policy_version=asked.policy_version if asked else "",
        checkpoint=asked.checkpoint if asked else None,
        task=request.task if request else "",
        scene=request.scene if request else "",
        perturbation=request.perturbation if request else "",
        seed=request.seed if request else (ready.seed if ready else 0),
        repetition=request.repetition if request else 0,
        cell=request.cell if request else "",
        purpose=request.purpose if request else EVALUATION,
        requested_at=request.occurred_at if request else None,
        started_at=started_at,
        ended_at=end.occurred_at,
        outcome=outcome,
        failure_type=failure_type,
        fault=fault,
        message=end.message,
        labels=tuple(labels),
        label_steps=tuple(labels.values()),
        autonomous=not attempt.interventions,
        n_steps=steps_of(attempt),
        total_reward=attempt.total_reward,
        success_at_end=success_at_end,
        success_once=success_once,
        metrics=_metrics(attempt, started_at, end.occurred_at),
        certificate=certificate_of(attempt),
        provenance=_provenance(attempt),
    )


def _provenance(attempt: AttemptState) -> Provenance:
    ready, request, start = attempt.ready_fact, attempt.request, attempt.start_fact
    checkpoint = start.checkpoint if start else None
    return Provenance(
        partition=attempt.partition,
        first_offset=attempt.first_offset,
        last_offset=attempt.last_offset,
        fold_hash=FOLD_HASH,
        rule_set=rule_set_of(attempt),
        schema_fingerprints=tuple(sorted(attempt.fingerprints)),
        seed=ready.seed if ready else None,
        checkpoint=checkpoint if checkpoint is not None or request is None else request.checkpoint,
        simulator=ready.simulator if ready else "",
        simulator_version=ready.simulator_version if ready else "",
        adapter_version=ready.adapter_version if ready else "",
        environment_digest=ready.environment_digest if ready else "",
    )


def _metrics(attempt: AttemptState, started_at: int | None, ended_at: int) -> tuple[Metric, ...]:
    """What the events give beside steps and reward; a metric without data is left out. Sorted by name.

    ``actions_sent``, ``actions_unexecuted`` (count; no step named them), ``inference_s_mean`` (s, per action),
    ``reward_max`` (finite rewards), ``sim_duration_s`` (simulated s since ready), ``step_wall_s_mean`` (s, per step),
    ``wall_duration_s`` (s, from claim, or from ready, to the end, by the producers' clocks).
    """
    found: dict[str, float] = {
        "actions_sent": float(attempt.actions_applied),
        "actions_unexecuted": float(attempt.actions_applied - attempt.actions_executed),
    }
    if attempt.inference_count:
        found["inference_s_mean"] = attempt.inference_total_s / attempt.inference_count
    if attempt.max_reward is not None:
        found["reward_max"] = attempt.max_reward
    ready = attempt.ready_fact
    if ready is not None:
        if attempt.last_sim_time is not None:
            found["sim_duration_s"] = attempt.last_sim_time - (ready.sim_time or 0.0)
        elif ready.step_duration_s is not None:
            found["sim_duration_s"] = ready.step_duration_s * (attempt.next_step - attempt.first_step)
    if attempt.step_wall_count:
        found["step_wall_s_mean"] = attempt.step_wall_total_s / attempt.step_wall_count
    if started_at is not None:
        found["wall_duration_s"] = (ended_at - started_at) / _US_PER_S
    return tuple(Metric(name=name, value=value) for name, value in sorted(found.items()))
