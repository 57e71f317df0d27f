"""The task spec: a declared matrix of policies × scenes × seeds × perturbations, read from YAML and checked whole.

Nothing is started before everything has been checked: unknown keys, wrong types, unknown names, a policy that cannot do
a scene's task or needs an observation that the scene does not give. Each problem names file, line and what was
expected.
"""

import contextlib
import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stepwell.adapters.policies import DefectSpec, PolicySpec, problems_between, validate_policy
from stepwell.adapters.runs.checkpoints import checkpoint_problem, filled, has_place
from stepwell.adapters.simulators import Problem as SpecProblem
from stepwell.adapters.simulators import SimulatorSpec, validate_simulator
from stepwell.adapters.yaml_lines import Document, Path_, Problem, load

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
MAX_EPISODES = 1_000_000
ENTRY_BYTES_MAX = 20_000
"""Of a policy, scene or perturbation as JSON."""

Name = Annotated[str, Field(pattern=NAME_PATTERN, max_length=100)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
StepBudget = Annotated[int, Field(ge=1, le=10_000_000)]
Seconds = Annotated[float, Field(gt=0, le=7 * 24 * 3600, allow_inf_nan=False)]
EntryT = TypeVar("EntryT", bound=BaseModel)


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class DefectEntry(_Strict):
    """A fault put into a policy on purpose."""

    kind: str
    options: dict[str, Any] = {}


class PolicyEntry(_Strict):
    """One policy under test."""

    name: Name
    kind: str
    version: str = "1"
    checkpoint: str | None = Field(None, description="takes the place of {checkpoint} in the options")
    options: dict[str, Any] = {}
    defects: list[DefectEntry] = []
    scenes: list[Name] | None = Field(None, description="the scenes it is tried in; all where left out")

    def policy(self) -> PolicySpec:
        """What the policy's process is started with."""
        defects = tuple(DefectSpec(kind=defect.kind, options=defect.options) for defect in self.defects)
        options = self.options if self.checkpoint is None else filled(self.options, self.checkpoint)
        return PolicySpec(name=self.name, kind=self.kind, options=options, defects=defects, version=self.version)

    @property
    def takes_checkpoint(self) -> bool:
        """Whether another checkpoint's name makes it run other weights."""
        return has_place(self.options)


class SceneEntry(_Strict):
    """One task in one setting."""

    name: Name
    task: str = Field(description="simulator/task, e.g. metaworld/reach-v3")
    options: dict[str, Any] = {}
    max_steps: StepBudget | None = Field(None, description="overrides the spec's step budget")


class PerturbationEntry(_Strict):
    """A change to the simulated world that policies should bear."""

    name: Name
    options: dict[str, Any] = {}
    scenes: list[Name] | None = Field(None, description="the scenes it is applied to; all where left out")


class TimeoutEntry(_Strict):
    """How long to wait for each component, in seconds of wall time."""

    start_s: Seconds = 120.0
    reset_s: Seconds = 60.0
    step_s: Seconds = 30.0
    act_s: Seconds = 30.0


class RunSpec(_Strict):
    """A whole run."""

    run: Name = Field(description="names the run; part of every run id made from this spec")
    policies: Annotated[list[PolicyEntry], Field(min_length=1)]
    scenes: Annotated[list[SceneEntry], Field(min_length=1)]
    seeds: Annotated[list[Seed], Field(min_length=1)]
    perturbations: Annotated[list[PerturbationEntry], Field(min_length=1)] = [PerturbationEntry(name="none")]
    repetitions: Annotated[int, Field(ge=1, le=10_000)] = 1
    max_steps: StepBudget = 500
    parallel: Annotated[int, Field(ge=1, le=256)] = 1
    timeouts: TimeoutEntry = TimeoutEntry()


def load_spec(path: Path) -> RunSpec:
    """Read and check a spec.

    Raises:
        SpecError: lists every problem, each with file and line; nothing was started.
    """
    return check_spec(load(path))


def check_spec(document: Document) -> RunSpec:
    """As `load_spec`, for a document that has been read."""
    problems = document.problems(RunSpec)
    parts = _Parts.of(document.data)
    problems += [*_double_names(parts), *_unknown_scenes(parts), *_too_large(parts), *_entry_problems(parts)]
    if not problems:
        spec = document.validate(RunSpec)
        problems = _emptiness(spec)
        if not problems:
            return spec
    raise document.errors(problems)


@dataclass(frozen=True, slots=True)
class _Parts:
    """The entries of a document that can be understood by themselves, by their index, whatever is wrong elsewhere.

    So that a person is told everything at once.
    """

    policies: dict[int, PolicyEntry]
    scenes: dict[int, SceneEntry]
    perturbations: dict[int, PerturbationEntry]
    seeds: list[Any]
    max_steps: int | None
    """None where it cannot be told."""
    names: dict[str, list[Any]]
    """List -> what each of its entries is named, as far as it has a name."""

    @classmethod
    def of(cls, data: Any) -> Self:
        top = data if isinstance(data, dict) else {}
        lists = {
            key: top[key] if isinstance(top.get(key), list) else [] for key in ("policies", "scenes", "perturbations")
        }
        max_steps = top.get("max_steps", RunSpec.model_fields["max_steps"].default)
        seeds = top.get("seeds")
        return cls(
            _understood(PolicyEntry, lists["policies"]),
            _understood(SceneEntry, lists["scenes"]),
            _understood(PerturbationEntry, lists["perturbations"]),
            seeds if isinstance(seeds, list) else [],
            max_steps if type(max_steps) is int else None,
            {key: [e.get("name") if isinstance(e, dict) else None for e in entries] for key, entries in lists.items()},
        )


def _understood(model: type[EntryT], entries: list[Any]) -> dict[int, EntryT]:
    found = {}
    for i, entry in enumerate(entries):
        with contextlib.suppress(ValidationError):
            found[i] = model.model_validate(entry)
    return found


def _double_names(parts: _Parts) -> list[Problem]:
    found: list[Problem] = []
    for key, names in parts.names.items():
        for i, name in enumerate(names):
            if isinstance(name, str) and name in names[:i]:
                found.append(((key, i, "name"), f"the name {name!r} stands twice; expected each name once"))
    return found + [
        (("seeds", i), f"the seed {seed} stands twice; repetitions run a seed again")
        for i, seed in enumerate(parts.seeds)
        if type(seed) is int and any(type(each) is int and each == seed for each in parts.seeds[:i])
    ]


def _unknown_scenes(parts: _Parts) -> list[Problem]:
    known = [name for name in parts.names["scenes"] if isinstance(name, str)]
    if not known:
        return []  # what is wrong with the scenes is told already
    lists: dict[str, dict[int, list[str] | None]] = {
        "policies": {i: policy.scenes for i, policy in parts.policies.items()},
        "perturbations": {i: perturbation.scenes for i, perturbation in parts.perturbations.items()},
    }
    found: list[Problem] = []
    for key, wanted in lists.items():
        for i, names in wanted.items():
            for k, name in enumerate(names or ()):
                if name not in known:
                    meant = difflib.get_close_matches(name, known, n=1)
                    hint = f"; did you mean {meant[0]}?" if meant else ""
                    message = f"no scene is named {name!r}{hint}; expected one of: {', '.join(known)}"
                    found.append(((key, i, "scenes", k), message))
    return found


def _too_large(parts: _Parts) -> list[Problem]:
    """Entries that could not travel with each request of their episodes."""
    lists: dict[str, Mapping[int, BaseModel]] = {
        "policies": parts.policies, "scenes": parts.scenes, "perturbations": parts.perturbations,
    }  # fmt: skip
    return [
        ((key, i), f"its definition has {size} bytes; expected at most {ENTRY_BYTES_MAX}: it goes with every request")
        for key, entries in lists.items()
        for i, entry in entries.items()
        if (size := len(canonical(entry.model_dump()).encode())) > ENTRY_BYTES_MAX
    ]


def canonical(value: Any) -> str:
    """As JSON: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)


def _entry_problems(parts: _Parts) -> list[Problem]:
    """Each policy, scene and perturbation by itself, then each pair that the matrix brings together."""
    found: list[Problem] = []
    sound: dict[int, PolicyEntry] = {}
    for i, policy in parts.policies.items():
        if policy.takes_checkpoint and (problem := checkpoint_problem(policy.checkpoint)):
            found.append((("policies", i, "checkpoint"), problem))
            continue
        problems = validate_policy(policy.policy())
        found += [(("policies", i, *_keys(p.path)), _told(p)) for p in problems]
        if not problems:
            sound[i] = policy
    for k, scene in parts.scenes.items():
        simulator = SimulatorSpec.parse(scene.task, scene=scene.options)
        scene_problems = [(_scene_path(k, p.path), _told(p)) for p in validate_simulator(simulator)]
        found += scene_problems or _success_out_of_reach(k, scene, parts.max_steps)
        if not scene_problems:
            found += _pair_problems(scene, simulator, sound, parts.perturbations)
    return found


def _pair_problems(
    scene: SceneEntry,
    simulator: SimulatorSpec,
    policies: dict[int, PolicyEntry],
    perturbations: dict[int, PerturbationEntry],
) -> list[Problem]:
    """What of a sound scene does not go with the policies and perturbations that it is combined with."""
    found: list[Problem] = []
    for i, policy in policies.items():
        if applies(policy.scenes, scene.name):
            found += [
                (("policies", i, *_keys(p.path)), f"{_told(p)} (scene {scene.name!r})")
                for p in problems_between(policy.policy(), simulator)
            ]
    for j, perturbation in perturbations.items():
        if applies(perturbation.scenes, scene.name):
            perturbed = SimulatorSpec.parse(scene.task, scene=scene.options, perturbation=perturbation.options)
            found += [
                (("perturbations", j, "options", *_keys(p.path[1:])), f"{_told(p)} (scene {scene.name!r})")
                for p in validate_simulator(perturbed)
            ]
    return found


def _success_out_of_reach(index: int, scene: SceneEntry, max_steps: int | None) -> list[Problem]:
    """Scenes in which no policy could ever succeed: the episode would end before."""
    options = scene.options
    found = _without_success(index, scene)
    wanted = options.get("success_steps")
    limits = {"max_steps": scene.max_steps or max_steps, "time_limit": options.get("time_limit")}
    for name, limit in limits.items():
        if wanted is not None and limit is not None and wanted > limit:
            message = (
                f"{wanted} steps are never reached, {name} ends the episode after {limit}; expected at most {limit}"
            )
            found.append((("scenes", index, "options", "success_steps"), message))
    return found


def _without_success(index: int, scene: SceneEntry) -> list[Problem]:
    """Tasks of gymnasium know rewards only: without a criterion every episode would count as failed."""
    if scene.task.startswith("gymnasium/") and not {"success_return", "success_steps"} & scene.options.keys():
        message = f"{scene.task} has no success of its own; expected success_return or success_steps in the options"
        return [(("scenes", index, "options"), message)]
    return []


def _scene_path(index: int, path: tuple[str, ...]) -> Path_:
    """Where a problem of a `SimulatorSpec` stands in the spec file."""
    rest: Path_ = ("options", *_keys(path[1:])) if path[:1] == ("scene",) else ("task",)
    return ("scenes", index, *rest)


def _keys(path: tuple[str, ...]) -> Path_:
    """A `Problem`'s path with list indices as numbers."""
    return tuple(int(part) if part.isdigit() else part for part in path)


def _told(problem: SpecProblem) -> str:
    return f"{problem.message}; expected {problem.expected}"


def _emptiness(spec: RunSpec) -> list[Problem]:
    cells = sum(
        1
        for policy in spec.policies
        for scene in spec.scenes
        for perturbation in spec.perturbations
        if applies(policy.scenes, scene.name) and applies(perturbation.scenes, scene.name)
    )
    episodes = cells * len(spec.seeds) * spec.repetitions
    if episodes == 0:
        return [((), "the matrix is empty: no policy and perturbation share a scene")]
    if episodes > MAX_EPISODES:
        return [((), f"the matrix has {episodes} episodes; at most {MAX_EPISODES} are allowed in one run")]
    return []


def applies(scenes: list[str] | None, scene: str) -> bool:
    """Whether a policy or perturbation with this list of scenes takes part in the scene."""
    return scenes is None or scene in scenes


def write_json_schema(path: Path) -> None:
    """Write the JSON Schema that editors use to check a spec while it is written."""
    path.write_text(json.dumps(RunSpec.model_json_schema(), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_json_schema(Path(__file__).parents[2] / "schemas" / "run-spec.schema.json")
