"""Regression runs: what failed is tried again with a new checkpoint, and fresh seeds with the old one and the new.

A retrain request names the cells and seeds that failed (its regression spec). The definitions of policy, scene and
perturbation are those of the example episodes' own requests, so everything comes from the log.

The seeds that failed were picked because they failed, and may have been trained on. What a mend is worth is told by the
fresh ones alone, on which both checkpoints run. They run in some of the policy's other cells as well, those in which
the old checkpoint did best: a retraining can spoil what was good.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stepwell.adapters.history import fold_episodes
from stepwell.adapters.runs.checkpoints import PLACE, checkpoint_problem
from stepwell.adapters.runs.definitions import Definition, read_definition, read_episode_requests
from stepwell.adapters.runs.plan import PlannedEpisode, plan_cell
from stepwell.adapters.runs.spec import PolicyEntry, Seed, check_spec
from stepwell.adapters.runs.summary import counting_verdict
from stepwell.adapters.yaml_lines import Document
from stepwell.engine.ports import MessageLog
from stepwell.events.codec import Codec
from stepwell.events.model import EVALUATION, REGRESSION, EpisodeRequested, RetrainRequested
from stepwell.exceptions import NotFoundError, SpecError

FRESH_FROM = 2**31
"""Fresh seeds lie from here on. Seeds of runs and of training data are small numbers in practice, so whoever keeps
those below is sure that no fresh seed was trained on."""

SLUG_CHARS_MAX = 60

OTHER_CELLS_MAX = 4
"""So many cells run beside those that failed."""

Place = tuple[str, str, str]
"""Task, scene and perturbation of a cell."""


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class RegressionCell(_Strict):
    """One setting that failed, the seeds it failed with, and an episode whose request holds the definitions."""

    task: str
    scene: str
    perturbation: str
    example_episode: str
    seeds: list[Seed]

    @property
    def place(self) -> Place:
        """Which cell it is."""
        return self.task, self.scene, self.perturbation

    @property
    def name(self) -> str:
        """For people: scene, and perturbation where there is one."""
        return self.scene if self.perturbation == "none" else f"{self.scene} + {self.perturbation}"


class RegressionSpec(_Strict):
    """What a request wants to be run afterwards; its JSON is explained in docs/training-services.md."""

    format: Literal["stepwell-regression/1"]
    trigger_id: str
    policy: str
    policy_version: str
    baseline_checkpoint: str | None
    failure_type: str
    cells: Annotated[list[RegressionCell], Field(min_length=1)]
    fresh_seeds_per_cell: Annotated[int, Field(ge=0, le=10_000)]


@dataclass(frozen=True, slots=True)
class FreshPair:
    """One fresh seed with the old checkpoint and the new one.

    Attributes:
        before, after: the two episodes.
        earlier: an episode of another run that has the same cell, seed and definition as ``before`` and was scored; it
            need not be run again then.
    """

    before: PlannedEpisode
    after: PlannedEpisode
    earlier: str | None

    @property
    def before_id(self) -> str:
        """The episode that tells how the old checkpoint did."""
        return self.earlier or self.before.episode_id


@dataclass(frozen=True, slots=True)
class CellPlan:
    """A cell's episodes: ``again`` are the new checkpoint's on the seeds that failed; none in other cells."""

    cell: RegressionCell
    definition: Definition
    again: tuple[PlannedEpisode, ...]
    fresh: tuple[FreshPair, ...]


@dataclass(frozen=True, slots=True)
class Regression:
    """One regression run.

    Attributes:
        run_id: of the run.
        spec: what the request wants to be run.
        checkpoint: the new one.
        cells: those that failed.
        others: those that run beside them; see `OTHER_CELLS_MAX`.
    """

    run_id: str
    spec: RegressionSpec
    checkpoint: str
    cells: tuple[CellPlan, ...]
    others: tuple[CellPlan, ...]

    @property
    def episodes(self) -> list[PlannedEpisode]:
        """What has to be run."""
        return list(self._episodes())

    def _episodes(self) -> Iterator[PlannedEpisode]:
        for cell in (*self.cells, *self.others):
            yield from cell.again
            yield from (pair.after for pair in cell.fresh)
            yield from (pair.before for pair in cell.fresh if pair.earlier is None)

    def check(self) -> None:
        """As `stepwell run` checks a spec.

        Raises:
            SpecError: lists every problem; e.g. a policy's file is not on this machine.
        """
        for plan in (*self.cells, *self.others):
            for checkpoint in (self.checkpoint, self.spec.baseline_checkpoint):
                _check(plan.definition, checkpoint, f"regression of {self.spec.trigger_id}")


def read_regression_spec(request: RetrainRequested) -> RegressionSpec:
    """What the request wants to be run.

    Raises:
        SpecError: it names nothing, or nothing of this format.
    """
    if not request.regression_spec_json:
        raise SpecError(f"request {request.trigger_id} has no regression spec; whoever made it asked for no such run")
    try:
        return RegressionSpec.model_validate(json.loads(request.regression_spec_json))
    except ValidationError as error:
        found = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:3])
    except (ValueError, RecursionError) as error:
        found = f"no JSON: {error}"
    raise SpecError(f"request {request.trigger_id}: its regression spec cannot be used: {found}")


def regression_run_id(trigger_id: str, checkpoint: str) -> str:
    """``regress-TRIGGER-CHECKPOINT``; a checkpoint's name that is no part of a run id is shortened to one."""
    slug = re.sub(r"[^A-Za-z0-9._-]", "-", checkpoint)
    if slug != checkpoint or len(slug) > SLUG_CHARS_MAX:
        slug = f"{slug[:SLUG_CHARS_MAX]}-{hashlib.sha256(checkpoint.encode()).hexdigest()[:8]}"
    return f"regress-{trigger_id}-{slug}"


def fresh_seeds(trigger_id: str, cell: RegressionCell, count: int, taken: Collection[int]) -> list[int]:
    """``count`` different seeds from `FRESH_FROM` on, none of them ``taken``; they follow from trigger and cell."""
    place = f"{trigger_id}|{cell.task}|{cell.scene}|{cell.perturbation}"
    seeds: dict[int, None] = {}
    number = 0
    while len(seeds) < count:
        digest = hashlib.sha256(f"{place}|{number}".encode()).digest()
        seed = FRESH_FROM + int.from_bytes(digest[:4], "big") % FRESH_FROM
        number += 1
        if seed not in taken:
            seeds[seed] = None
    return list(seeds)


@dataclass(frozen=True, slots=True)
class Known:
    """What the log has about a spec's episodes, read once.

    Attributes:
        examples: the requests of the example episodes, by their ids.
        old: requests of the old checkpoint's episodes on fresh seeds, in whichever run.
        began: new checkpoint -> when the first episode of its regression run was asked for (µs since 1970 UTC).
        evaluated: cell that the spec does not name -> the old checkpoint's episodes in evaluations there.
        newest: the same cells -> the request of the last of those episodes.
        others: regression run -> cell that the spec does not name -> the request of one of its episodes there.
    """

    examples: dict[str, EpisodeRequested]
    old: list[EpisodeRequested]
    began: dict[str, int]
    evaluated: dict[Place, list[str]]
    newest: dict[Place, EpisodeRequested]
    others: dict[str, dict[Place, EpisodeRequested]]

    def note_elsewhere(self, event: EpisodeRequested, place: Place, *, old: bool) -> None:
        """A request of the policy in a cell that the spec does not name, of the old checkpoint or another."""
        if event.purpose == REGRESSION:
            self.others.setdefault(event.run_id, {}).setdefault(place, event)
        elif old and event.purpose == EVALUATION:
            self.evaluated.setdefault(place, []).append(event.episode_id)
            self.newest[place] = max(self.newest.get(place, event), event, key=_when_asked)


def read_known(log: MessageLog, codec: Codec, spec: RegressionSpec) -> Known:
    """Look a spec's episodes up.

    Raises:
        LogError: the log cannot be read.
    """
    known = Known({}, [], {}, {}, {}, {})
    examples = {cell.example_episode for cell in spec.cells}
    named = {cell.place for cell in spec.cells}
    for event in read_episode_requests(log, codec):
        if event.episode_id in examples:
            known.examples.setdefault(event.episode_id, event)
        if (event.policy, event.policy_version) != (spec.policy, spec.policy_version):
            continue
        checkpoint = event.checkpoint
        place = (event.task, event.scene, event.perturbation)
        if place not in named:
            known.note_elsewhere(event, place, old=checkpoint == spec.baseline_checkpoint)
        if checkpoint == spec.baseline_checkpoint:
            if event.seed >= FRESH_FROM:
                known.old.append(event)
        elif checkpoint is not None and event.run_id == regression_run_id(spec.trigger_id, checkpoint):
            known.began[checkpoint] = min(known.began.get(checkpoint, event.occurred_at), event.occurred_at)
    return known


def plan_regression(
    log: MessageLog, codec: Codec, request: RetrainRequested, checkpoint: str, known: Known | None = None
) -> Regression:
    """The regression run of a request with a new checkpoint, as the log has its definitions.

    ``known``: what `read_known` found just now, where it was called before.

    Raises:
        SpecError: the spec or a definition cannot be used, or the policy does not take a checkpoint's name.
        NotFoundError: an example episode, or its definition, is not in the log.
    """
    spec = read_regression_spec(request)
    if checkpoint == spec.baseline_checkpoint:
        raise SpecError(f"{checkpoint} is the checkpoint that request {spec.trigger_id} is about; name the new one")
    known = known or read_known(log, codec, spec)
    definitions = _definitions(known, spec)
    run_id = regression_run_id(spec.trigger_id, checkpoint)
    cells = []
    for cell in spec.cells:
        definition = definitions[cell.example_episode]
        _check_that_it_fits(spec, cell, definition, checkpoint)
        cells.append(_cell_plan(spec, run_id, cell, definition, checkpoint))
    others = [
        _cell_plan(spec, run_id, cell, definition, checkpoint)
        for cell, definition in _other_cells(log, codec, known, spec, checkpoint)
    ]
    plans = _with_earlier(log, codec, known, run_id, [*cells, *others])
    return Regression(run_id, spec, checkpoint, plans[: len(cells)], plans[len(cells) :])


def _cell_plan(
    spec: RegressionSpec, run_id: str, cell: RegressionCell, definition: Definition, checkpoint: str
) -> CellPlan:
    taken = {seed for named in spec.cells for seed in named.seeds}
    fresh = fresh_seeds(spec.trigger_id, cell, spec.fresh_seeds_per_cell, taken)
    again = _planned(run_id, definition, checkpoint, cell.seeds)
    after = _planned(run_id, definition, checkpoint, fresh)
    before = _planned(run_id, definition, spec.baseline_checkpoint, fresh)
    pairs = tuple(FreshPair(old, new, None) for old, new in zip(before, after, strict=True))
    return CellPlan(cell, definition, tuple(again), pairs)


def _other_cells(
    log: MessageLog, codec: Codec, known: Known, spec: RegressionSpec, checkpoint: str
) -> list[tuple[RegressionCell, Definition]]:
    """Cells that the spec does not name, by name; of those that cannot be run again the next best take the place.

    A run keeps those that it began with (all its episodes are asked for before the first one runs), whatever has been
    evaluated since. Before, they are the ones where the old checkpoint's evaluations have the highest success rates;
    of equal rates those with more episodes, then by name.
    """
    if not spec.fresh_seeds_per_cell:
        return []
    if checkpoint in known.began:
        asked = known.others.get(regression_run_id(spec.trigger_id, checkpoint), {})
        ranked = sorted(asked)
    else:
        asked = known.newest
        ranked = _best(log, codec, known)
    found: dict[Place, tuple[RegressionCell, Definition]] = {}
    for place in ranked:
        request = asked[place]
        task, scene, perturbation = place
        cell = RegressionCell(
            task=task, scene=scene, perturbation=perturbation, example_episode=request.episode_id, seeds=[]
        )
        try:
            definition = read_definition(request.definition_json)
            definition = definition.model_copy(update={"policy": _policy_with(definition, spec.baseline_checkpoint)})
            _check_that_it_fits(spec, cell, definition, checkpoint)
        except SpecError:
            continue
        found[place] = (cell, definition)
        if len(found) == OTHER_CELLS_MAX:
            break
    return [found[place] for place in sorted(found)]


def _best(log: MessageLog, codec: Codec, known: Known) -> list[Place]:
    """The evaluated cells in which the old checkpoint has succeeded, best first."""
    place_of = {episode_id: place for place, ids in known.evaluated.items() for episode_id in ids}
    if not place_of:
        return []
    scored: Counter[Place] = Counter()
    succeeded: Counter[Place] = Counter()
    for episode_id, state in fold_episodes(log, codec, place_of).items():
        verdict = counting_verdict(state)
        if verdict is not None and verdict.outcome in ("success", "failure"):
            scored[place_of[episode_id]] += 1
            succeeded[place_of[episode_id]] += verdict.outcome == "success"
    good = [place for place in scored if succeeded[place]]
    return sorted(good, key=lambda place: (-succeeded[place] / scored[place], -scored[place], place))


def _when_asked(event: EpisodeRequested) -> tuple[int, str]:
    return event.occurred_at, event.episode_id


def _definitions(known: Known, spec: RegressionSpec) -> dict[str, Definition]:
    definitions = {}
    for episode_id in sorted({cell.example_episode for cell in spec.cells}):
        request = known.examples.get(episode_id)
        if request is None:
            raise NotFoundError(
                f"request {spec.trigger_id}: its example episode {episode_id} is no longer in the log, so what to run"
                " is not known"
            )
        if not request.definition_json:
            raise NotFoundError(
                f"request {spec.trigger_id}: episode {episode_id} was asked for without definitions (by an older"
                " Stepwell, or another host), so what to run is not known; run a spec of your own with the new"
                " checkpoint"
            )
        try:
            definitions[episode_id] = read_definition(request.definition_json)
        except SpecError as error:
            raise SpecError(f"episode {episode_id}: {error}") from None
    return definitions


def _check_that_it_fits(spec: RegressionSpec, cell: RegressionCell, definition: Definition, checkpoint: str) -> None:
    episode, policy = cell.example_episode, definition.policy
    told = (spec.policy, spec.policy_version, spec.baseline_checkpoint, cell.task, cell.scene, cell.perturbation)
    found = (
        policy.name, policy.version, policy.checkpoint,
        definition.scene.task, definition.scene.name, definition.perturbation.name,
    )  # fmt: skip
    if told != found:
        raise SpecError(f"request {spec.trigger_id} speaks of {told}, its example episode {episode} is of {found}")
    if definition.hidden:
        raise SpecError(
            f"episode {episode}: what looked like secrets was left out of its definition:"
            f" {', '.join(definition.hidden)}; give the policy the name of a file or of a variable instead, such as"
            " api_key_file or token_env"
        )
    if not policy.takes_checkpoint:
        raise SpecError(
            f"policy {policy.name}: nothing in its options says {PLACE}, so the new checkpoint would run with the old"
            f" weights; write {PLACE} where the weights are named in the task spec"
        )
    for name in (checkpoint, policy.checkpoint):
        if problem := checkpoint_problem(name):
            raise SpecError(f"policy {policy.name}: checkpoint: {problem}")


def _planned(run_id: str, definition: Definition, checkpoint: str | None, seeds: Sequence[int]) -> list[PlannedEpisode]:
    return plan_cell(
        run_id,
        _policy_with(definition, checkpoint),
        definition.scene,
        definition.perturbation,
        max_steps=definition.max_steps,
        timeouts=definition.timeouts,
        seeds=seeds,
        purpose=REGRESSION,
    )


def _policy_with(definition: Definition, checkpoint: str | None) -> PolicyEntry:
    return definition.policy.model_copy(update={"checkpoint": checkpoint})


def _with_earlier(
    log: MessageLog, codec: Codec, known: Known, run_id: str, cells: Sequence[CellPlan]
) -> tuple[CellPlan, ...]:
    """The plans with the old checkpoint's episodes that other runs have: after a first retraining, say."""
    wanted = {_identity(pair.before) for plan in cells for pair in plan.fresh}
    found = {
        event.episode_id: (event.task, event.cell)
        for event in known.old
        if event.run_id != run_id and (event.task, event.cell) in wanted
    }
    earlier: dict[tuple[str, str], str] = {}
    if found:
        for episode_id, state in sorted(fold_episodes(log, codec, found).items()):
            verdict = counting_verdict(state)
            if verdict is not None and verdict.outcome in ("success", "failure"):
                earlier.setdefault(found[episode_id], episode_id)
    return tuple(_with_earlier_of(plan, earlier) for plan in cells)


def _with_earlier_of(plan: CellPlan, earlier: Mapping[tuple[str, str], str]) -> CellPlan:
    fresh = (FreshPair(pair.before, pair.after, earlier.get(_identity(pair.before))) for pair in plan.fresh)
    return CellPlan(plan.cell, plan.definition, plan.again, tuple(fresh))


def _identity(episode: PlannedEpisode) -> tuple[str, str]:
    """What makes two episodes of different runs the same: task and cell, in which the definitions' digest stands."""
    return episode.simulator.full_task, episode.cell


def _check(definition: Definition, checkpoint: str | None, source: str) -> None:
    data = {
        "run": "regression",
        "seeds": [0],
        "policies": [_policy_with(definition, checkpoint).model_dump(exclude={"scenes"})],
        "scenes": [definition.scene.model_dump()],
        "perturbations": [definition.perturbation.model_dump(exclude={"scenes"})],
        "max_steps": definition.max_steps,
    }
    try:
        check_spec(Document(source, data, {}))
    except SpecError as error:
        here = Path.cwd()
        hint = "" if definition.directory == str(here) else f"\n(its run was started in {definition.directory})"
        raise SpecError(f"{error}{hint}") from None
