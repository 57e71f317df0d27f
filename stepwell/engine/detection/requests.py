"""What the detector publishes: patterns, requests, withdrawals and expiries. Pure.

Sampling weights of a request: with F the failed episodes that it names (evidence and hard negatives), and a cell being
scene and perturbation,

    w(cell) = |{e in F: cell(e) = cell}| / |F|.

They sum to 1; cells in alphabetical order.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from stepwell.engine.detection.bearing import Reading
from stepwell.engine.detection.ledger import Trigger
from stepwell.engine.detection.state import PolicyState
from stepwell.events.ids import derived_event_id
from stepwell.events.model import (
    EvidenceEpisode,
    PatternDetected,
    RetrainExpired,
    RetrainRequested,
    RetrainWithdrawn,
    SamplingWeight,
)

PRODUCER_ID = "detector"

HARD_NEGATIVES_MAX = 32
"""Most hard negatives of a request."""

WEIGHTS_FORMULA = (
    "w(cell) = failed episodes of this request (evidence and hard negatives) in the cell / all of them; "
    "cell = (scene, perturbation)"
)
REGRESSION_FORMAT = "stepwell-regression/1"
FRESH_SEEDS_PER_CELL = 10


def pattern_of(state: PolicyState, trigger: Trigger, promise: str) -> PatternDetected:
    """The pattern of a trigger that has just opened."""
    return PatternDetected(
        **_head("failure::pattern_detected", state, trigger, trigger.opened_at),
        **_about(trigger),
        promise=promise,
    )


def request_of(state: PolicyState, trigger: Trigger, hard: tuple[EvidenceEpisode, ...]) -> RetrainRequested:
    """The request of a trigger, as of now."""
    failed = (*trigger.evidence, *hard)
    return RetrainRequested(
        **_head("retrain::requested", state, trigger, state.now),
        **_about(trigger),
        sampling_weights=sampling_weights(failed),
        requested_by=f"{PRODUCER_ID} rule {trigger.rule} version {trigger.rule_version}",
        hard_negatives=hard,
        weights_formula=WEIGHTS_FORMULA,
        regression_spec_json=regression_spec(state.policy, trigger, failed),
    )


def withdrawn_of(state: PolicyState, trigger: Trigger) -> RetrainWithdrawn:
    """Says that a trigger has lost its evidence."""
    return RetrainWithdrawn(
        **_head("retrain::withdrawn", state, trigger, state.now),
        trigger_id=trigger.trigger_id,
        reason=trigger.detail,
    )


def expired_of(state: PolicyState, trigger: Trigger) -> RetrainExpired:
    """Says that nobody has closed a trigger in time."""
    return RetrainExpired(
        **_head("retrain::expired", state, trigger, state.now), trigger_id=trigger.trigger_id, reason=trigger.detail
    )


def hard_negatives(state: PolicyState, trigger: Trigger, reading: Reading) -> tuple[EvidenceEpisode, ...]:
    """Further failures of the trigger's kind in the window, beside its evidence, newest first."""
    named = {item.episode_id for item in trigger.evidence}
    one_type = trigger.sample is None
    out: list[EvidenceEpisode] = []
    for entry in state.latest():
        if reading.says(entry) != "counts" or reading.key(entry) != trigger.key:
            continue
        if entry.evidence.episode_id in named or (one_type and entry.failure_type != trigger.failure_type):
            continue
        out.append(entry.evidence)
        if len(out) == HARD_NEGATIVES_MAX:
            break
    return tuple(out)


def sampling_weights(failed: tuple[EvidenceEpisode, ...]) -> tuple[SamplingWeight, ...]:
    """Share of the failed episodes per (scene, perturbation); see the module's formula."""
    cells = Counter((item.scene, item.perturbation) for item in failed)
    return tuple(
        SamplingWeight(scene=scene, perturbation=perturbation, weight=count / len(failed))
        for (scene, perturbation), count in sorted(cells.items())
    )


def regression_spec(policy: str, trigger: Trigger, failed: Iterable[EvidenceEpisode]) -> str:
    """What to run with the new checkpoint afterwards, as JSON of the format `REGRESSION_FORMAT`.

    Each cell (task, scene, perturbation) has the seeds that failed and an episode whose request holds the definitions.
    """
    cells: dict[tuple[str, str, str], list[EvidenceEpisode]] = defaultdict(list)
    for item in failed:
        cells[item.task, item.scene, item.perturbation].append(item)
    body = {
        "format": REGRESSION_FORMAT,
        "trigger_id": trigger.trigger_id,
        "policy": policy,
        "policy_version": trigger.key.policy_version,
        "baseline_checkpoint": trigger.key.checkpoint,
        "failure_type": trigger.failure_type,
        "cells": [
            {
                "task": task,
                "scene": scene,
                "perturbation": perturbation,
                "example_episode": items[0].episode_id,
                "seeds": sorted({item.seed for item in items}),
            }
            for (task, scene, perturbation), items in sorted(cells.items())
        ],
        "fresh_seeds_per_cell": FRESH_SEEDS_PER_CELL,
    }
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _head(kind: str, state: PolicyState, trigger: Trigger, at: int) -> dict[str, Any]:
    """The head of an event about a trigger; each kind of event comes once for each trigger."""
    return {
        "event_id": derived_event_id(kind, trigger.trigger_id),
        "run_id": trigger.run_id,
        "episode_id": "",
        "attempt": 1,
        "producer_id": PRODUCER_ID,
        "producer_seq": state.published,
        "occurred_at": at,
        "trace_id": trigger.trace_id,
        "policy": state.policy,
    }


def _about(trigger: Trigger) -> dict[str, Any]:
    """What pattern and request say alike."""
    return {
        "trigger_id": trigger.trigger_id,
        "rule": trigger.rule,
        "rule_version": trigger.rule_version,
        "rule_key": trigger.rule_key,
        "policy_version": trigger.key.policy_version,
        "checkpoint": trigger.key.checkpoint,
        "failure_type": trigger.failure_type,
        "evidence": trigger.evidence,
        "detail": trigger.seen,
    }
