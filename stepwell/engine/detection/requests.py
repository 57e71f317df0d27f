"""What the detector publishes: patterns, requests, withdrawals and expiries. Pure.

Sampling weights of a request: a cell is scene and perturbation. With f failures among n episodes of a cell,

    r(cell) = (f + 1/2) / (n + 1),    w(cell) = r(cell) / sum of r over all cells with f > 0.

r is the cell's failure rate as its mean under Jeffreys' prior, Beta(1/2, 1/2), so that one failure in one episode is
no certainty (R. Krichevsky, V. Trofimov, The performance of universal encoding, IEEE Trans. Inf. Theory 27, 1981).
Counted are the episodes of the rule's key: by rules in the order of requests all since their stream began, or those in
the rule's window; by rules over rows those in the detector's window. The weights sum to 1; cells in alphabetical order.

Which failures are named: where there is no room for all, of every cell the newest in turn.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from stepwell.engine.detection.bearing import Entry, Reading
from stepwell.engine.detection.ledger import Trigger
from stepwell.engine.detection.state import Cell, PolicyState, Tally, cell_of
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
    "w(cell) = r(cell) / sum of r over the failing cells; r = (f + 1/2) / (n + 1), with f failures among the n "
    "episodes of the cell that the rule has counted; cell = (scene, perturbation)"
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


def request_of(
    state: PolicyState, trigger: Trigger, hard: tuple[EvidenceEpisode, ...], cells: dict[Cell, Tally]
) -> RetrainRequested:
    """The request of a trigger, as of now. ``cells``: failures and episodes of its sample."""
    failed = (*trigger.evidence, *hard)
    return RetrainRequested(
        **_head("retrain::requested", state, trigger, state.now),
        **_about(trigger),
        sampling_weights=sampling_weights(cells, failed),
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
    """Further failures of the trigger's kind in the window, beside its evidence, newest first.

    Where they are too many, of every cell the newest in turn, those first that the evidence lacks.
    """
    named = {item.episode_id for item in trigger.evidence}
    there = {cell_of(item) for item in trigger.evidence}
    found = [
        entry.evidence
        for entry in state.latest()
        if entry.evidence.episode_id not in named and _is_of(trigger, reading, entry)
    ]
    turns: Counter[Cell] = Counter()
    order: list[tuple[int, bool, int]] = []
    for index, item in enumerate(found):
        cell = cell_of(item)
        order.append((turns[cell], cell in there, index))
        turns[cell] += 1
    chosen = sorted(index for *_, index in sorted(order)[:HARD_NEGATIVES_MAX])
    return tuple(found[index] for index in chosen)


def cells_of_window(state: PolicyState, trigger: Trigger, reading: Reading) -> dict[Cell, Tally]:
    """Failures of the trigger's kind and episodes by cell, of the trigger's key, in the detector's window."""
    cells: dict[Cell, Tally] = {}
    for entry in state.entries():
        if reading.says(entry) != "silent" and reading.key(entry) == trigger.key:
            cells.setdefault(cell_of(entry.evidence), Tally()).add(_is_of(trigger, reading, entry))
    return cells


def _is_of(trigger: Trigger, reading: Reading, entry: Entry) -> bool:
    """Whether it is a failure of the trigger's kind: of a row, of the same type."""
    if reading.says(entry) != "counts" or reading.key(entry) != trigger.key:
        return False
    return trigger.sample is not None or entry.failure_type == trigger.failure_type


def sampling_weights(cells: Mapping[Cell, Tally], failed: Iterable[EvidenceEpisode] = ()) -> tuple[SamplingWeight, ...]:
    """Shares of the failing cells in proportion to their failure rates; see the module's formula.

    Args:
        cells: failures and episodes.
        failed: episodes that the request names; where none of their cell were counted they count by themselves.
    """
    named = Counter(cell_of(item) for item in failed)
    counted = {cell: Tally(count, count) for cell, count in named.items()}
    counted |= {cell: tally for cell, tally in cells.items() if tally.failures > 0}
    rates = {cell: (counted[cell].failures + 0.5) / (counted[cell].episodes + 1) for cell in sorted(counted)}
    total = sum(rates.values())
    return tuple(
        SamplingWeight(scene=scene, perturbation=perturbation, weight=rate / total)
        for (scene, perturbation), rate in rates.items()
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
