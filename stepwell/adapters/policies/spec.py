"""Which policy to run, as data, and the checks that need no policy."""

import ast
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from stepwell.adapters.simulators.catalogue import Options
from stepwell.adapters.simulators.spec import Problem, SimulatorSpec, check_options, observation_keys, unknown


class DefectSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that goes wrong on purpose; see `DEFECT_OPTIONS`."""

    kind: str
    options: dict[str, Any] = {}


class PolicySpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One policy.

    Attributes:
        name: what events and tables call it.
        kind: a key of `POLICY_KINDS`.
        options: options of that kind.
        defects: what goes wrong with it, innermost first.
        version: the policy's version, as events name it.
    """

    name: str
    kind: str
    options: dict[str, Any] = {}
    defects: tuple[DefectSpec, ...] = ()
    version: str = "1"


class PolicyKind(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a kind of policy before it runs.

    Attributes:
        tasks: full tasks or simulators (``metaworld/*``) that it can act in; empty for all.
        needs: observation keys that it reads.
        options: option -> (check, what is expected).
        required: options that must be given.
    """

    tasks: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    options: Options = {}
    required: tuple[str, ...] = ()


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _plain(value: Any) -> bool:
    """Whether it can travel to the policy's process."""
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _target(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    where, _, name = value.rpartition(":")
    return name.isidentifier() and (where.endswith(".py") or all(part.isidentifier() for part in where.split(".")))


def _numbers(value: Any) -> bool:
    return _number(value) or (isinstance(value, list | tuple) and len(value) > 0 and all(map(_number, value)))


_CHUNK = (lambda value: _whole(value) and 1 <= value <= 10_000, "a whole number of actions per answer, from 1")
_MAPPING = (
    lambda value: isinstance(value, Mapping) and all(map(_text, value)) and _plain(value),
    "a mapping of argument names to plain values (numbers, text, true or false, lists, mappings)",
)
_KEYS = (
    lambda value: isinstance(value, list | tuple) and all(map(_text, value)),
    "a list of observation keys",
)

POLICY_KINDS: dict[str, PolicyKind] = {
    "random": PolicyKind(options={"chunk": _CHUNK}),
    "constant": PolicyKind(options={"chunk": _CHUNK, "value": (_numbers, "a number, or a list of one per dimension")}),
    "pendulum_balancer": PolicyKind(tasks=("gymnasium/InvertedPendulum-v5",), needs=("observation",)),
    "metaworld_expert": PolicyKind(tasks=("metaworld/*",), needs=("observation",)),
    "lift_expert": PolicyKind(tasks=("robosuite/Lift",), needs=("robot0_eef_pos", "cube_pos")),
    "python": PolicyKind(
        options={
            "target": (_target, "module:Class or path/to/file.py:Class"),
            "arguments": _MAPPING,
            "path": (_text, "a folder to import from"),
            "needs": _KEYS,
            "interpreter": (_text, "the path of the Python that runs it"),
        },
        required=("target",),
    ),
}

_WHEN: Options = {
    "at_step": (_whole, "a whole number of steps from 0"),
    "probability": (lambda value: _number(value) and 0 <= value <= 1, "a number from 0 to 1"),
}

DEFECT_OPTIONS: dict[str, Options] = {
    "noise": {**_WHEN, "sigma": (lambda value: _number(value) and value >= 0, "a standard deviation from 0")},
    "drop_gripper": {**_WHEN, "value": (_number, "the command that arrives instead, a number")},
    "nan_action": _WHEN,
    "wrong_shape": _WHEN,
    "die": {**_WHEN, "how": (lambda value: value in ("raise", "exit", "crash", "kill"), "raise, exit, crash or kill")},
    "hang": _WHEN,
    "slow": {**_WHEN, "latency_s": (lambda value: _number(value) and 0 <= value <= 3600, "seconds from 0 to 3600")},
}
_DEFECT_REQUIRED = {"noise": ("sigma",), "slow": ("latency_s",)}


def validate_policy(policy: PolicySpec) -> list[Problem]:
    """What is wrong with a policy's spec; empty where it can be run."""
    kind = POLICY_KINDS.get(policy.kind)
    if kind is None:
        return [unknown(("kind",), "policy kind", policy.kind, tuple(POLICY_KINDS))]
    problems = check_options(("options",), policy.options, kind.options)
    problems += _missing(("options",), policy.options, kind.required, kind.options)
    problems += _check_files(policy.options) if policy.kind == "python" and not problems else []
    for number, defect in enumerate(policy.defects):
        where = ("defects", str(number))
        options = DEFECT_OPTIONS.get(defect.kind)
        if options is None:
            problems.append(unknown((*where, "kind"), "defect", defect.kind, tuple(DEFECT_OPTIONS)))
            continue
        problems += check_options((*where, "options"), defect.options, options)
        required = _DEFECT_REQUIRED.get(defect.kind, ())
        problems += _missing((*where, "options"), defect.options, required, options)
    return problems


def needs_of(policy: PolicySpec) -> tuple[str, ...]:
    """The observation keys that a valid policy says it reads."""
    return (*POLICY_KINDS[policy.kind].needs, *policy.options.get("needs", ()))


def problems_between(policy: PolicySpec, simulator: SimulatorSpec) -> list[Problem]:
    """Why a valid policy cannot act in a valid simulated task; empty where it can."""
    tasks = POLICY_KINDS[policy.kind].tasks
    if tasks and simulator.full_task not in tasks and f"{simulator.simulator}/*" not in tasks:
        message = f"policy '{policy.name}' ({policy.kind}) cannot act in {simulator.full_task}"
        return [Problem(("kind",), message, f"a task of {', '.join(tasks)}")]
    given = observation_keys(simulator)
    return [
        Problem(
            ("kind",),
            f"policy '{policy.name}' needs the observation '{key}', which the scene of {simulator.full_task} lacks",
            f"a scene that gives it (this one gives {', '.join(sorted(given))})",
        )
        for key in needs_of(policy)
        if key not in given
    ]


def _check_files(options: Mapping[str, Any]) -> list[Problem]:
    problems = []
    file, _, name = options["target"].rpartition(":")
    interpreter = options.get("interpreter")
    if file.endswith(".py") and not Path(file).is_file():
        problems.append(Problem(("options", "target"), f"there is no file {file}", "an existing Python file"))
    elif file.endswith(".py"):
        problems += _check_class(Path(file), name, other_python=interpreter is not None)
    if interpreter is not None and not Path(interpreter).is_file():
        problems.append(Problem(("options", "interpreter"), f"there is no file {interpreter}", "a Python interpreter"))
    return problems


def _check_class(file: Path, name: str, *, other_python: bool) -> list[Problem]:
    """Whether the file defines ``name``, told from its text: its code runs in the policy's process only."""
    where = ("options", "target")
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except OSError as error:
        return [Problem(where, f"{file} cannot be read: {error.strerror or error}", "a readable Python file")]
    except (SyntaxError, ValueError) as error:
        if other_python:
            return []  # it may know a syntax that ours does not
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        said = error.msg if isinstance(error, SyntaxError) else error
        return [Problem(where, f"{file}{line} is no valid Python: {said}", "a Python file that can be loaded")]
    defined = module_names(tree)
    if defined is None or name in defined:
        return []
    classes = tuple(node.name for node in tree.body if isinstance(node, ast.ClassDef))
    return [unknown(where, f"class in {file} named", name, classes)]


def module_names(tree: ast.Module) -> set[str] | None:
    """The names that a module has once it is loaded; None where its text does not tell."""
    found: set[str] = set()
    waiting: list[ast.AST] = [tree]
    while waiting:
        for node in ast.iter_child_nodes(waiting.pop()):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(node.name)  # what stands inside is no name of the module
                continue
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.alias):
                found.add(node.asname or node.name.partition(".")[0])
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _OPEN_ENDED:
                return None
            waiting.append(node)
    return None if found & {"*", "__getattr__"} else found


_OPEN_ENDED = ("exec", "globals", "setattr", "vars")
"""Functions by whose use a module can get names that its text does not show."""


def _missing(
    where: tuple[str, ...], given: Mapping[str, Any], required: tuple[str, ...], options: Options
) -> list[Problem]:
    return [Problem((*where, name), "is missing", options[name][1]) for name in required if name not in given]
