"""From a spec to the episodes it asks for, each with an id that follows from its place in the matrix."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stepwell.adapters.policies import PolicySpec
from stepwell.adapters.runs.definitions import definition_text
from stepwell.adapters.runs.spec import PerturbationEntry, PolicyEntry, RunSpec, SceneEntry, TimeoutEntry, applies
from stepwell.adapters.simulators import SimulatorSpec
from stepwell.events.ids import episode_id_for
from stepwell.events.model import EVALUATION


@dataclass(frozen=True, slots=True)
class PlannedEpisode:
    """One cell of the matrix, one repetition.

    Attributes:
        run_id, episode_id, cell, repetition: where it stands; ``episode_id`` follows from the others and the task.
        policy, simulator: what the two processes are started with.
        checkpoint: identifies the policy's weights, as the spec names them.
        scene, perturbation: names from the spec.
        seed: for scene and policy alike.
        max_steps: the step budget.
        timeouts: how long to wait for each component.
        definition: what its request says for whoever wants to run it again; see `Definition`.
        purpose: what it is run for; no part of its id.
    """

    run_id: str
    episode_id: str
    cell: str
    repetition: int
    policy: PolicySpec
    checkpoint: str | None
    simulator: SimulatorSpec
    scene: str
    perturbation: str
    seed: int
    max_steps: int
    timeouts: TimeoutEntry
    definition: str
    purpose: str = EVALUATION


def plan(spec: RunSpec, run_id: str) -> list[PlannedEpisode]:
    """Every episode of the run, ordered so that neighbours share their processes (scene, perturbation, then policy)."""
    return [
        episode
        for scene, perturbation, policy in _combinations(spec)
        for episode in plan_cell(
            run_id,
            policy,
            scene,
            perturbation,
            max_steps=scene.max_steps or spec.max_steps,
            timeouts=spec.timeouts,
            seeds=spec.seeds,
            repetitions=spec.repetitions,
        )
    ]


def plan_cell(
    run_id: str,
    policy: PolicyEntry,
    scene: SceneEntry,
    perturbation: PerturbationEntry,
    *,
    max_steps: int,
    timeouts: TimeoutEntry,
    seeds: Sequence[int],
    repetitions: int = 1,
    purpose: str = EVALUATION,
) -> list[PlannedEpisode]:
    """One policy in one scene under one perturbation, with every seed."""
    # The definitions are part of the cell: an edited spec under an old run id asks for other episodes, it does not
    # pass off old results as those of the new definition.
    digest = _digest(policy, scene, perturbation, max_steps)
    place = f"policy={policy.name}@{policy.version}|scene={scene.name}|perturbation={perturbation.name}"
    definition = definition_text(policy, scene, perturbation, max_steps, timeouts)
    started = policy.policy()
    simulator = SimulatorSpec.parse(scene.task, scene=scene.options, perturbation=perturbation.options)
    return [
        PlannedEpisode(
            run_id=run_id,
            episode_id=episode_id_for(run_id, scene.task, cell, repetition),
            cell=cell,
            repetition=repetition,
            policy=started,
            checkpoint=policy.checkpoint,
            simulator=simulator,
            scene=scene.name,
            perturbation=perturbation.name,
            seed=seed,
            max_steps=max_steps,
            timeouts=timeouts,
            definition=definition,
            purpose=purpose,
        )
        for seed in seeds
        for cell in [f"{place}|seed={seed}|definition={digest}"]
        for repetition in range(repetitions)
    ]


def _combinations(spec: RunSpec) -> Iterator[tuple[SceneEntry, PerturbationEntry, PolicyEntry]]:
    for scene in spec.scenes:
        for perturbation in spec.perturbations:
            if not applies(perturbation.scenes, scene.name):
                continue
            for policy in spec.policies:
                if applies(policy.scenes, scene.name):
                    yield scene, perturbation, policy


def _digest(policy: PolicyEntry, scene: SceneEntry, perturbation: PerturbationEntry, max_steps: int) -> str:
    definition = [
        policy.model_dump(exclude={"scenes"}),
        scene.model_dump(exclude={"max_steps"}),
        perturbation.model_dump(exclude={"scenes"}),
        max_steps,
    ]
    text = json.dumps(definition, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
