"""Which simulators and tasks there are, what they let you set, and what they let a policy see.

Plain data, so that a spec can be judged before anything is started or even installed. A test compares it with what the
real simulators say.
"""

from collections.abc import Callable, Mapping
from typing import Any

ROBOSUITE_REDUNDANT = ("_cos", "_sin", "_joint_acc", "_quat_site", "-state")
"""Endings of robosuite's observation keys that are left out by default: other keys determine them."""

GYMNASIUM_TASKS = tuple(
    f"{name}-v5"
    for name in (
        "Ant", "HalfCheetah", "Hopper", "Humanoid", "HumanoidStandup", "InvertedDoublePendulum", "InvertedPendulum",
        "Pusher", "Reacher", "Swimmer", "Walker2d",
    )
)  # fmt: skip

METAWORLD_TASKS = tuple(
    f"{name}-v3"
    for name in (
        "assembly", "basketball", "bin-picking", "box-close", "button-press-topdown", "button-press-topdown-wall",
        "button-press", "button-press-wall", "coffee-button", "coffee-pull", "coffee-push", "dial-turn", "disassemble",
        "door-close", "door-lock", "door-open", "door-unlock", "hand-insert", "drawer-close", "drawer-open",
        "faucet-open", "faucet-close", "hammer", "handle-press-side", "handle-press", "handle-pull-side",
        "handle-pull", "lever-pull", "pick-place-wall", "pick-out-of-hole", "pick-place", "plate-slide",
        "plate-slide-side", "plate-slide-back", "plate-slide-back-side", "peg-insert-side", "peg-unplug-side",
        "soccer", "stick-push", "stick-pull", "push", "push-wall", "push-back", "reach", "reach-wall", "shelf-place",
        "sweep-into", "sweep", "window-open", "window-close",
    )
)  # fmt: skip

_ARM = tuple(
    f"robot0_{name}"
    for name in (
        "joint_pos", "joint_pos_cos", "joint_pos_sin", "joint_vel", "joint_acc", "eef_pos", "eef_quat",
        "eef_quat_site", "gripper_qpos", "gripper_qvel", "proprio-state",
    )
)  # fmt: skip

ROBOSUITE_TASKS: dict[str, tuple[str, ...]] = {
    "Lift": (*_ARM, "cube_pos", "cube_quat", "gripper_to_cube_pos", "object-state"),
    "Stack": (
        *_ARM, "cubeA_pos", "cubeA_quat", "cubeB_pos", "cubeB_quat", "cubeA_to_cubeB", "gripper_to_cubeA",
        "gripper_to_cubeB", "object-state",
    ),
    "Door": (
        *_ARM, "door_pos", "handle_pos", "hinge_qpos", "door_to_eef_pos", "handle_to_eef_pos", "handle_qpos",
        "object-state",
    ),
    "PickPlaceCan": (
        *_ARM, "Can_to_robot0_eef_pos", "Can_to_robot0_eef_quat", "Can_pos", "Can_quat", "object-state",
    ),
    "NutAssemblySquare": (
        *_ARM, "SquareNut_to_robot0_eef_pos", "SquareNut_to_robot0_eef_quat", "SquareNut_pos", "SquareNut_quat",
        "object-state",
    ),
}  # fmt: skip
"""Task -> every observation key it has."""

PLACEMENT_TASKS = ("Lift", "Stack")
"""The robosuite tasks whose objects' places the scene's ``placement`` sets."""

Bounds = tuple[tuple[float, float], tuple[float, float], tuple[float, float]]
"""Lowest and highest x, y and z in metres, in Meta-World's own frame."""

METAWORLD_REGIONS: dict[str, dict[str, Bounds]] = {
    "reach-v3": {
        "object_region": ((-0.1, 0.1), (0.6, 0.7), (0.02, 0.02)),
        "goal_region": ((-0.1, 0.1), (0.8, 0.9), (0.05, 0.3)),
    },
    "push-v3": {
        "object_region": ((-0.1, 0.1), (0.6, 0.7), (0.02, 0.02)),
        "goal_region": ((-0.1, 0.1), (0.8, 0.9), (0.01, 0.02)),
    },
    "pick-place-v3": {
        "object_region": ((-0.1, 0.1), (0.6, 0.7), (0.02, 0.02)),
        "goal_region": ((-0.1, 0.1), (0.8, 0.9), (0.05, 0.3)),
    },
}
"""Task -> option -> where Meta-World draws the object's and the goal's place; a scene may ask for a part of it."""

METAWORLD_APART_M = 0.15
"""Meta-World draws object and goal of these tasks again until they are so far apart on the table."""

Check = Callable[[Any], bool]


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9


def _whole(low: int, high: int) -> Check:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _range(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and all(map(_number, value)) and value[0] <= value[1]


def _factor(value: Any) -> bool:
    if _range(value):
        return bool(value[0] >= 0 and value[1] <= 100)
    return _number(value) and 0 <= value <= 100


def _placement(value: Any) -> bool:
    return isinstance(value, Mapping) and set(value) <= {"x", "y", "rotation"} and all(map(_range, value.values()))


def _region(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and len(value) > 0
        and set(value) <= {"x", "y", "z"}
        and all(map(_range, value.values()))
    )


def _names(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) > 0 and all(isinstance(name, str) for name in value)


_STEPS = (_whole(1, 10**6), "a whole number of steps from 1")
_FLAG = (lambda value: isinstance(value, bool), "true or false")

Options = Mapping[str, tuple[Check, str]]
"""Option -> (check, what is expected in words)."""

SCENE_OPTIONS: dict[str, Options] = {
    "gymnasium": {
        "time_limit": _STEPS,
        "success_return": (_number, "a number: the summed reward that counts as success"),
        "success_steps": (_whole(1, 10**6), "a whole number: so many steps without termination count as success"),
        "reset_noise_scale": (lambda value: _number(value) and value >= 0, "a number from 0"),
        "frame_skip": (_whole(1, 1000), "a whole number from 1 to 1000"),
    },
    "metaworld": {
        "time_limit": (_whole(1, 500), "a whole number of steps from 1 to 500"),
        "goal_observable": _FLAG,
        "object_region": (_region, "x, y and z (m, any of them), each [low, high]"),
        "goal_region": (_region, "x, y and z (m, any of them), each [low, high]"),
    },
    "robosuite": {
        "time_limit": _STEPS,
        "control_freq": (_whole(1, 500), "a whole number of steps per second from 1 to 500"),
        "reward_shaping": _FLAG,
        "observations": (_names, "a list of observation keys"),
        "placement": (_placement, "x, y (m) and rotation (rad), each [low, high]"),
    },
}

PERTURBATION_OPTIONS: Options = {
    "gravity_scale": (_factor, "a factor from 0 to 100, or [low, high] to draw it per episode"),
    "friction_scale": (_factor, "a factor from 0 to 100, or [low, high] to draw it per episode"),
    "mass_scale": (
        lambda value: _factor(value) and (value if _number(value) else value[0]) > 0,
        "a factor above 0 up to 100, or [low, high] to draw it per episode",
    ),
    "actuator_scale": (_factor, "a factor from 0 to 100, or [low, high] to draw it per episode"),
    "observation_noise": (lambda value: _number(value) and value >= 0, "a standard deviation from 0"),
    "observation_delay": (_whole(0, 1000), "a whole number of steps from 0 to 1000"),
}


def tasks_of(simulator: str) -> tuple[str, ...]:
    """The tasks of a simulator that is known."""
    return {
        "gymnasium": GYMNASIUM_TASKS,
        "metaworld": METAWORLD_TASKS,
        "robosuite": tuple(ROBOSUITE_TASKS),
    }[simulator]


def all_observation_keys(simulator: str, task: str) -> tuple[str, ...]:
    """Every key that the task can give."""
    return ROBOSUITE_TASKS[task] if simulator == "robosuite" else ("observation",)


def default_observation_keys(simulator: str, task: str) -> tuple[str, ...]:
    """The keys that the task gives where the scene names none."""
    keys = all_observation_keys(simulator, task)
    if simulator == "robosuite":
        return tuple(key for key in keys if not key.endswith(ROBOSUITE_REDUNDANT))
    return keys


def metaworld_region(task: str, option: str, scene: Mapping[str, Any]) -> Bounds:
    """Where a valid scene lets the object (``object_region``) or the goal (``goal_region``) of a task be drawn."""
    given = scene.get(option, {})
    x, y, z = (
        tuple(map(float, given.get(axis, bounds)))
        for axis, bounds in zip("xyz", METAWORLD_REGIONS[task][option], strict=True)
    )
    return ((x[0], x[1]), (y[0], y[1]), (z[0], z[1]))
