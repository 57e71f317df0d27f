"""The training service: takes retrain requests, demonstrates what they ask for, trains, answers with a new checkpoint.

    python examples/closed_loop/trainer.py HOME

Started by run.py. A training service of your own would look like `main`.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from cloning import Wanted, demonstrate, load_demonstrations, save, train

import stepwell
from stepwell.adapters.runs.spec import load_spec
from stepwell.adapters.simulators import SimulatorSpec

NEW_DEMONSTRATIONS = 20
"""So many are added by a retraining."""
FRESH = 5_000_000
"""Seeds of further demonstrations lie so far above those of the first training; see `first_seed`."""


def main() -> None:
    """Answer requests until interrupted."""
    home = Path(sys.argv[1])
    with stepwell.subscribe("trainer") as subscription:
        for delivery in subscription:
            request = delivery.event
            if not isinstance(request, stepwell.RetrainRequested):
                continue
            if request.checkpoint != first_checkpoint(request.policy):
                subscription.answer(request, "rejected", detail="this example retrains each policy once")
                continue
            subscription.answer(request, "accepted")
            checkpoint = retrain(home, request)
            subscription.answer(request, "done", new_checkpoint=checkpoint)
            print(f"{request.policy}: answered {request.trigger_id} with {checkpoint}", flush=True)


def retrain(home: Path, request: stepwell.RetrainRequested) -> str:
    """Train on the old demonstrations and on new ones, made as the request proposes; the new checkpoint's name."""
    checkpoint = f"{request.policy}-b-{request.trigger_id[3:9]}"
    checkpoints = home / "checkpoints"
    if (checkpoints / f"{checkpoint}.npz").exists():
        return checkpoint  # at least once: this request was worked on before
    repeat = int(request.policy.rpartition("-")[2])
    wanted = proposed(request, NEW_DEMONSTRATIONS, first_seed(repeat) + FRESH)
    scenes = scenes_of(home / "evaluate.yaml")
    demonstrations = load_demonstrations(home / "demonstrations" / f"{request.policy}.npz")
    demonstrations += demonstrate(wanted, scenes)
    about = {"trigger_id": request.trigger_id, "new_demonstrations": [each._asdict() for each in wanted]}
    save(checkpoints, checkpoint, train(demonstrations, repeat), about)
    return checkpoint


def proposed(request: stepwell.RetrainRequested, total: int, fresh_from: int) -> list[Wanted]:
    """What to demonstrate: in each scene its proposed share of ``total``, the hard negatives' seeds first.

    Where fewer episodes failed in a scene than its share is, seeds from ``fresh_from`` on make up for them.
    """
    failed = (*request.evidence, *request.hard_negatives)
    wanted = []
    for weight in request.sampling_weights:
        share = round(total * weight.weight)
        seeds = list(dict.fromkeys(each.seed for each in failed if each.scene == weight.scene))[:share]
        seeds += range(fresh_from, fresh_from + share - len(seeds))
        wanted += [Wanted(weight.scene, seed) for seed in seeds]
    return wanted


def scenes_of(spec: Path) -> dict[str, SimulatorSpec]:
    """The scenes of the task spec, by name."""
    return {scene.name: SimulatorSpec.parse(scene.task, scene=scene.options) for scene in load_spec(spec).scenes}


def first_checkpoint(policy: str) -> str:
    """The name of the checkpoint that a policy starts with."""
    return f"{policy}-a"


def first_seed(repeat: int) -> int:
    """Seeds of a repeat's demonstrations lie from here on: ten million for each, none an evaluation's."""
    return 1_000_000_000 + 10_000_000 * repeat


def first_demonstrations(repeat: int, scenes: Sequence[str], number: int) -> list[Wanted]:
    """What the first checkpoint learns from: ``number`` demonstrations, all of these scenes alike."""
    return [Wanted(scenes[i % len(scenes)], first_seed(repeat) + i) for i in range(number)]


def describe(home: Path, checkpoint: str) -> str:
    """What was added for a checkpoint, in words."""
    about = json.loads((home / "checkpoints" / f"{checkpoint}.json").read_text())
    counts: dict[str, int] = {}
    for each in about["new_demonstrations"]:
        counts[each["scene"]] = counts.get(each["scene"], 0) + 1
    return ", ".join(f"{scene} {number}" for scene, number in counts.items())


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
