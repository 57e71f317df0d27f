"""What to simulate: simulator, task, scene and perturbation, as data, and the checks that need no simulator."""

import difflib
import math
from collections.abc import Sequence
from typing import Any, Self

import msgspec

from stepwell.adapters.simulators import catalogue


class Problem(msgspec.Struct, frozen=True):
    """Something wrong in a spec.

    Attributes:
        path: where, as the keys that lead there, e.g. ``("scene", "time_limit")``.
        message: what is wrong.
        expected: what would be right.
    """

    path: tuple[str, ...]
    message: str
    expected: str

    def __str__(self) -> str:
        return f"{'.'.join(self.path)}: {self.message}; expected {self.expected}"


class SimulatorSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One simulated task.

    Attributes:
        simulator: ``gymnasium``, ``metaworld`` or ``robosuite``.
        task: the simulator's own name, e.g. ``reach-v3``.
        scene: options of the scene; see `catalogue.SCENE_OPTIONS`.
        perturbation: changed physics and sensors; see `catalogue.PERTURBATION_OPTIONS`.
    """

    simulator: str
    task: str
    scene: dict[str, Any] = {}
    perturbation: dict[str, Any] = {}

    @property
    def full_task(self) -> str:
        """Simulator and task as events name them, e.g. ``metaworld/reach-v3``."""
        return f"{self.simulator}/{self.task}"

    @classmethod
    def parse(
        cls, full_task: str, scene: dict[str, Any] | None = None, perturbation: dict[str, Any] | None = None
    ) -> Self:
        """From ``simulator/task``; text without a slash names no simulator, which validation then says."""
        simulator, _, task = full_task.rpartition("/")
        return cls(simulator=simulator, task=task, scene=scene or {}, perturbation=perturbation or {})


def validate_simulator(spec: SimulatorSpec) -> list[Problem]:
    """What is wrong with a spec; empty where it can be run. Starts nothing and needs no simulator installed."""
    options = catalogue.SCENE_OPTIONS.get(spec.simulator)
    if options is None:
        return [unknown(("task",), "simulator", spec.simulator, tuple(catalogue.SCENE_OPTIONS))]
    tasks = catalogue.tasks_of(spec.simulator)
    if spec.task not in tasks:
        return [unknown(("task",), f"{spec.simulator} task", spec.task, tasks)]
    problems = check_options(("scene",), spec.scene, options)
    problems += check_options(("perturbation",), spec.perturbation, catalogue.PERTURBATION_OPTIONS)
    if not problems:
        problems += _check_observations(spec)
        problems += _check_regions(spec)
    if spec.simulator == "robosuite" and "placement" in spec.scene and spec.task not in catalogue.PLACEMENT_TASKS:
        expected = f"a task of {', '.join(catalogue.PLACEMENT_TASKS)}"
        problems.append(Problem(("scene", "placement"), f"{spec.task} places its objects itself", expected))
    if "success_return" in spec.scene and "success_steps" in spec.scene:
        problems.append(Problem(("scene", "success_steps"), "success is defined twice", "only one of success_*"))
    return problems


def observation_keys(spec: SimulatorSpec) -> frozenset[str]:
    """The observation keys that a valid spec's scene gives."""
    chosen = spec.scene.get("observations")
    return frozenset(chosen or catalogue.default_observation_keys(spec.simulator, spec.task))


def check_options(where: tuple[str, ...], given: dict[str, Any], options: catalogue.Options) -> list[Problem]:
    """Unknown options and wrong values."""
    problems = []
    for name, value in given.items():
        known = options.get(str(name))
        if known is None:
            problems.append(unknown((*where, str(name)), "option", str(name), tuple(options)))
        elif not known[0](value):
            problems.append(Problem((*where, name), f"{value!r} does not fit", known[1]))
    return problems


def _check_observations(spec: SimulatorSpec) -> list[Problem]:
    possible = catalogue.all_observation_keys(spec.simulator, spec.task)
    return [
        unknown(("scene", "observations"), f"observation of {spec.full_task}", key, possible)
        for key in spec.scene.get("observations", ())
        if key not in possible
    ]


def _check_regions(spec: SimulatorSpec) -> list[Problem]:
    """Regions in tasks that have none, outside of what the task draws from, or that leave nothing to draw."""
    wanted = [option for option in ("object_region", "goal_region") if option in spec.scene]
    known = catalogue.METAWORLD_REGIONS.get(spec.task)
    if wanted and known is None:
        expected = f"a task of {', '.join(catalogue.METAWORLD_REGIONS)}"
        return [Problem(("scene", option), f"{spec.task} has no such region", expected) for option in wanted]
    problems = []
    for option in wanted:
        assert known is not None
        for axis, (low, high) in zip("xyz", known[option], strict=True):
            given = spec.scene[option].get(axis)
            if given is not None and not low <= given[0] <= given[1] <= high:
                found = f"{list(given)} reaches beyond what {spec.task} draws from"
                problems.append(Problem(("scene", option, axis), found, f"within [{low:g}, {high:g}]"))
    if wanted and not problems and _farthest(spec) <= catalogue.METAWORLD_APART_M:
        message = f"{spec.task} wants object and goal {catalogue.METAWORLD_APART_M:g} m apart on the table"
        problems.append(Problem(("scene", wanted[-1]), f"{message}, which these regions never give", "wider regions"))
    return problems


def _farthest(spec: SimulatorSpec) -> float:
    """The largest distance (m) in x and y that object and goal can be drawn at."""
    places = [catalogue.metaworld_region(spec.task, name, spec.scene) for name in ("object_region", "goal_region")]
    return math.hypot(
        *(max(one[1] - other[0], other[1] - one[0]) for one, other in zip(places[0][:2], places[1][:2], strict=True))
    )


LISTED_MAX = 10
"""Longest list of possible names in a message."""


def unknown(path: tuple[str, ...], what: str, given: str, possible: Sequence[str]) -> Problem:
    """A name that is none of the ``possible`` ones: says which one may be meant, and the first few there are."""
    lower = {name.lower(): name for name in possible}
    near = [lower[name] for name in difflib.get_close_matches(given.lower(), lower, n=3)]
    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    shown = [*near, *(name for name in possible if name not in near)][:LISTED_MAX]
    more = ", …" if len(shown) < len(possible) else ""
    return Problem(path, f"there is no {what} {given!r}{meant}", f"one of {', '.join(shown) or 'none'}{more}")
