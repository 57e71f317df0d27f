"""What a retraining was worth: the regression run of a trigger, read from the log, before against after."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stepwell.adapters.history import fold_episodes
from stepwell.adapters.logs.reading import read_all
from stepwell.adapters.retrain_history import find_request
from stepwell.adapters.runs.recurrence import Recurrence, recurrence, rule_of
from stepwell.adapters.runs.regression import (
    CellPlan,
    Regression,
    plan_regression,
    read_known,
    read_regression_spec,
)
from stepwell.adapters.runs.summary import counting_verdict
from stepwell.engine.intervals import wilson
from stepwell.engine.paired import Pairs
from stepwell.engine.ports import MessageLog
from stepwell.events.codec import Codec
from stepwell.events.model import PatternDetected, RetrainRequested, VerdictIssued
from stepwell.events.topics import FAILURE_PATTERNS

Verdicts = Mapping[str, VerdictIssued | None]


@dataclass(slots=True)
class CellResult:
    """What came of one cell, or of all together.

    Attributes:
        name: scene, and perturbation where there is one.
        again: the seeds that failed before.
        again_scored, again_succeeded: of those with the new checkpoint.
        fresh: the fresh seeds.
        pairs: of those scored with both checkpoints.
        same_failure: fresh seeds with which the new checkpoint failed as the request says.
    """

    name: str
    again: int = 0
    again_scored: int = 0
    again_succeeded: int = 0
    fresh: int = 0
    pairs: Pairs = field(default_factory=Pairs)
    same_failure: int = 0

    @property
    def missing(self) -> int:
        """Seeds without a result: not run yet, or ended by no fault of the policy."""
        return self.again - self.again_scored + self.fresh - self.pairs.n

    def add(self, other: "CellResult") -> None:
        """Count another cell in."""
        self.again += other.again
        self.again_scored += other.again_scored
        self.again_succeeded += other.again_succeeded
        self.fresh += other.fresh
        self.pairs = self.pairs + other.pairs
        self.same_failure += other.same_failure


@dataclass(frozen=True, slots=True)
class BeforeAfter:
    """One regression run.

    Attributes:
        run_id: of the regression run.
        baseline_checkpoint, checkpoint: before and after.
        cells: one result for each cell that failed.
        total: of all those cells.
        others: one result for each cell that ran beside them, to see what was lost.
        others_total: of all those.
        unfinished: episodes that have not ended yet.
        recurrence: what the request's rule makes of the new checkpoint's fresh episodes.
        opened: triggers that the same failure type has opened for the new checkpoint, in evaluations, as of now.
    """

    trigger_id: str
    run_id: str
    policy: str
    policy_version: str
    failure_type: str
    baseline_checkpoint: str | None
    checkpoint: str
    cells: tuple[CellResult, ...]
    total: CellResult
    others: tuple[CellResult, ...]
    others_total: CellResult
    unfinished: int
    recurrence: Recurrence
    opened: tuple[str, ...]

    def as_plain(self) -> dict[str, Any]:
        """As plain data; rates with 95 % Wilson intervals, their difference with Newcombe's."""
        names = (
            "trigger_id",
            "run_id",
            "policy",
            "policy_version",
            "failure_type",
            "baseline_checkpoint",
            "checkpoint",
        )
        return {name: getattr(self, name) for name in names} | {
            "total": _plain(self.total),
            "cells": [_plain(cell) for cell in self.cells],
            "others_total": _plain(self.others_total),
            "others": [_plain(cell) for cell in self.others],
            "unfinished": self.unfinished,
            "recurrence": self.recurrence.as_plain(),
            "opened": list(self.opened),
        }


def before_and_after(log: MessageLog, codec: Codec, trigger: str) -> list[BeforeAfter]:
    """The regression runs of a trigger (its id, or the beginning of one), each checkpoint's in the order of its start.

    Raises:
        NotFoundError: there is no such request, or the log no longer has the definitions of a run.
        SpecError: the request's regression spec cannot be used.
    """
    request = find_request(log, codec, trigger).request
    if not request.regression_spec_json:
        return []
    known = read_known(log, codec, read_regression_spec(request))
    return [
        _result(log, codec, request, plan_regression(log, codec, request, checkpoint, known))
        for checkpoint in sorted(known.began, key=lambda name: (known.began[name], name))
    ]


def _result(log: MessageLog, codec: Codec, request: RetrainRequested, regression: Regression) -> BeforeAfter:
    spec = regression.spec
    pairs = [pair for plan in (*regression.cells, *regression.others) for pair in plan.fresh]
    wanted = {episode.episode_id for episode in regression.episodes} | {pair.before_id for pair in pairs}
    folded = fold_episodes(log, codec, wanted)
    verdicts = {episode_id: counting_verdict(state) for episode_id, state in folded.items()}
    cells, others = (
        tuple(_cell_result(plan, verdicts, spec.failure_type) for plan in plans)
        for plans in (regression.cells, regression.others)
    )
    before = _scored(verdicts, (pair.before_id for pair in pairs))
    after = _scored(verdicts, (pair.after.episode_id for pair in pairs))
    patterns = (event for event in read_all(log, codec, FAILURE_PATTERNS) if isinstance(event, PatternDetected))
    opened = {
        event.trigger_id: None
        for event in patterns
        if (event.policy, event.policy_version, event.checkpoint, event.failure_type)
        == (spec.policy, spec.policy_version, regression.checkpoint, spec.failure_type)
    }
    return BeforeAfter(
        trigger_id=spec.trigger_id,
        run_id=regression.run_id,
        policy=spec.policy,
        policy_version=spec.policy_version,
        failure_type=spec.failure_type,
        baseline_checkpoint=spec.baseline_checkpoint,
        checkpoint=regression.checkpoint,
        cells=cells,
        total=_sum(cells),
        others=others,
        others_total=_sum(others),
        unfinished=sum(verdicts.get(episode_id) is None for episode_id in wanted),
        recurrence=recurrence(rule_of(log, codec, request), request, before, after),
        opened=tuple(opened),
    )


def _sum(cells: Iterable[CellResult]) -> CellResult:
    total = CellResult("all")
    for cell in cells:
        total.add(cell)
    return total


def _scored(verdicts: Verdicts, episodes: Iterable[str]) -> list[VerdictIssued]:
    """The verdicts that say success or failure, in the order of the episodes."""
    found = (verdicts.get(episode_id) for episode_id in episodes)
    return [verdict for verdict in found if verdict is not None and verdict.outcome in ("success", "failure")]


def _cell_result(plan: CellPlan, verdicts: Verdicts, failure_type: str) -> CellResult:
    again = [_success(verdicts, episode.episode_id) for episode in plan.again]
    pairs = [(_success(verdicts, pair.before_id), _success(verdicts, pair.after.episode_id)) for pair in plan.fresh]
    return CellResult(
        name=plan.cell.name,
        again=len(again),
        again_scored=sum(each is not None for each in again),
        again_succeeded=sum(each is True for each in again),
        fresh=len(pairs),
        pairs=Pairs(
            both=_count(pairs, (True, True)),
            lost=_count(pairs, (True, False)),
            gained=_count(pairs, (False, True)),
            neither=_count(pairs, (False, False)),
        ),
        same_failure=sum(_failed_as(verdicts.get(pair.after.episode_id), failure_type) for pair in plan.fresh),
    )


def _success(verdicts: Verdicts, episode_id: str) -> bool | None:
    """Whether the episode succeeded; None where it was not scored."""
    verdict = verdicts.get(episode_id)
    if verdict is None or verdict.outcome not in ("success", "failure"):
        return None
    return verdict.outcome == "success"


def _failed_as(verdict: VerdictIssued | None, failure_type: str) -> bool:
    return verdict is not None and verdict.outcome == "failure" and verdict.failure_type == failure_type


def _count(pairs: Iterable[tuple[bool | None, bool | None]], wanted: tuple[bool, bool]) -> int:
    return sum(pair == wanted for pair in pairs)


def _plain(cell: CellResult) -> dict[str, Any]:
    pairs = cell.pairs
    return {
        "name": cell.name,
        "failed_before": {"seeds": cell.again, "scored": cell.again_scored, "succeeded": cell.again_succeeded},
        "fresh": {
            "seeds": cell.fresh,
            "pairs": pairs.n,
            "before": _rate(pairs.before, pairs.n),
            "after": _rate(pairs.after, pairs.n),
            "both": pairs.both,
            "lost": pairs.lost,
            "gained": pairs.gained,
            "neither": pairs.neither,
            "difference": pairs.difference,
            "difference_interval": pairs.interval(),
            "mcnemar_p": pairs.p_value(),
        },
        "same_failure": cell.same_failure,
        "missing": cell.missing,
    }


def _rate(succeeded: int, n: int) -> dict[str, Any]:
    return {"succeeded": succeeded, "rate": succeeded / n if n else None, "interval": wilson(succeeded, n)}
