"""Specs of simulators and policies are judged before anything runs; each problem says where, what and what instead."""

import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stepwell.adapters.policies import (
    DefectSpec,
    PolicyProcess,
    PolicySpec,
    needs_of,
    problems_between,
    validate_policy,
)
from stepwell.adapters.policies.spec import DEFECT_OPTIONS, POLICY_KINDS
from stepwell.adapters.processes import InvalidActionError
from stepwell.adapters.simulators import (
    ActionSpec,
    SimulatorProcess,
    SimulatorSpec,
    environment_digest,
    environment_python,
    observation_keys,
    validate_simulator,
)
from stepwell.adapters.simulators.catalogue import SCENE_OPTIONS, tasks_of
from stepwell.adapters.simulators.client import action_row
from stepwell.adapters.simulators.install import LOCKS, NAMES
from stepwell.adapters.simulators.spec import LISTED_MAX
from stepwell.events.model import Tensor
from stepwell.exceptions import ConfigurationError, MissingPartError, SpecError

LIFT = SimulatorSpec.parse("robosuite/Lift")
REACH = SimulatorSpec.parse("metaworld/reach-v3")


def policy(kind: str, *defects: DefectSpec, **options: Any) -> PolicySpec:
    return PolicySpec(name="p", kind=kind, options=options, defects=defects)


def test_every_task_is_valid_as_it_stands() -> None:
    specs = [SimulatorSpec(simulator=name, task=task) for name in SCENE_OPTIONS for task in tasks_of(name)]
    assert len(specs) == 11 + 50 + 5
    assert not [problem for spec in specs for problem in validate_simulator(spec)]
    assert all(observation_keys(spec) for spec in specs)
    assert SimulatorSpec.parse("metaworld/reach-v3").full_task == "metaworld/reach-v3"


@pytest.mark.parametrize(
    ("full_task", "scene", "perturbation", "path", "words"),
    [
        ("reach-v3", {}, {}, ("task",), "no simulator ''"),
        ("mujoco/reach-v3", {}, {}, ("task",), "no simulator 'mujoco'"),
        ("metaworld/reach-v2", {}, {}, ("task",), "no metaworld task 'reach-v2'"),
        ("metaworld/reach-v3", {"time_limit": 501}, {}, ("scene", "time_limit"), "501 does not fit"),
        ("metaworld/reach-v3", {"time_limit": True}, {}, ("scene", "time_limit"), "True does not fit"),
        ("metaworld/reach-v3", {"placement": {}}, {}, ("scene", "placement"), "no option 'placement'"),
        ("gymnasium/Ant-v5", {"success_return": "9"}, {}, ("scene", "success_return"), "'9' does not fit"),
        ("gymnasium/Ant-v5", {"success_return": float("nan")}, {}, ("scene", "success_return"), "nan does not fit"),
        (
            "gymnasium/Ant-v5",
            {"success_return": 1, "success_steps": 2},
            {},
            ("scene", "success_steps"),
            "defined twice",
        ),
        ("gymnasium/Ant-v5", {}, {"gravity_scale": -1}, ("perturbation", "gravity_scale"), "-1 does not fit"),
        ("gymnasium/Ant-v5", {}, {"mass_scale": 0}, ("perturbation", "mass_scale"), "0 does not fit"),
        ("gymnasium/Ant-v5", {}, {"friction_scale": [2, 1]}, ("perturbation", "friction_scale"), "does not fit"),
        ("gymnasium/Ant-v5", {}, {"wind": 1}, ("perturbation", "wind"), "no option 'wind'"),
        ("gymnasium/Ant-v5", {}, {"observation_delay": 1.5}, ("perturbation", "observation_delay"), "does not fit"),
        ("robosuite/Lift", {"observations": []}, {}, ("scene", "observations"), "does not fit"),
        ("robosuite/Lift", {"observations": ["cube"]}, {}, ("scene", "observations"), "'cube'"),
        ("robosuite/Lift", {"placement": {"z": [0, 1]}}, {}, ("scene", "placement"), "does not fit"),
        ("robosuite/Door", {"placement": {"x": [0, 1]}}, {}, ("scene", "placement"), "places its objects itself"),
        ("metaworld/push-v3", {"goal_region": {}}, {}, ("scene", "goal_region"), "does not fit"),
        ("metaworld/push-v3", {"goal_region": {"u": [0, 0]}}, {}, ("scene", "goal_region"), "does not fit"),
        ("metaworld/push-v3", {"object_region": {"x": [0.1, 0]}}, {}, ("scene", "object_region"), "does not fit"),
        (
            "metaworld/push-v3",
            {"object_region": {"x": [0, 0.2]}},
            {},
            ("scene", "object_region", "x"),
            "reaches beyond",
        ),
        ("metaworld/push-v3", {"goal_region": {"z": [0.3, 0.3]}}, {}, ("scene", "goal_region", "z"), "reaches beyond"),
        ("metaworld/hammer-v3", {"goal_region": {"x": [0, 0]}}, {}, ("scene", "goal_region"), "has no such region"),
        (
            "metaworld/push-v3",
            {"object_region": {"x": [0, 0], "y": [0.7, 0.7]}, "goal_region": {"x": [0, 0.1], "y": [0.8, 0.8]}},
            {},
            ("scene", "goal_region"),
            "which these regions never give",
        ),
    ],
)
def test_wrong_simulator_specs(
    full_task: str, scene: dict[str, Any], perturbation: dict[str, Any], path: tuple[str, ...], words: str
) -> None:
    spec = SimulatorSpec.parse(full_task, scene, perturbation)
    (problem,) = validate_simulator(spec)
    assert problem.path == path
    assert words in problem.message
    assert problem.expected in str(problem)
    with pytest.raises(SpecError):
        SimulatorProcess(spec)


@pytest.mark.parametrize(
    ("spec", "path", "words"),
    [
        (policy("pi0"), ("kind",), "no policy kind 'pi0'"),
        (policy("random", chunk=0), ("options", "chunk"), "0 does not fit"),
        (policy("random", sigma=1), ("options", "sigma"), "no option 'sigma'"),
        (policy("constant", value="up"), ("options", "value"), "'up' does not fit"),
        (policy("python"), ("options", "target"), "is missing"),
        (policy("python", target="no colon"), ("options", "target"), "does not fit"),
        (policy("python", target="nowhere.py:Policy"), ("options", "target"), "no file nowhere.py"),
        (policy("python", target="a.b:C", interpreter="/no/python"), ("options", "interpreter"), "no file"),
        (policy("python", target="a.b:C", arguments={"x": object()}), ("options", "arguments"), "does not fit"),
        (policy("random", DefectSpec(kind="rust")), ("defects", "0", "kind"), "no defect 'rust'"),
        (policy("random", DefectSpec(kind="noise")), ("defects", "0", "options", "sigma"), "is missing"),
        (
            policy("random", DefectSpec(kind="hang", options={"probability": 2})),
            ("defects", "0", "options", "probability"),
            "2 does not fit",
        ),
        (
            policy("random", DefectSpec(kind="hang"), DefectSpec(kind="die", options={"how": "sadly"})),
            ("defects", "1", "options", "how"),
            "'sadly' does not fit",
        ),
    ],
)
def test_wrong_policy_specs(spec: PolicySpec, path: tuple[str, ...], words: str) -> None:
    (problem,) = validate_policy(spec)
    assert problem.path == path
    assert words in problem.message
    with pytest.raises(SpecError):
        PolicyProcess(spec, REACH)


def test_good_policies_pass() -> None:
    required = {"noise": {"sigma": 0.1}, "slow": {"latency_s": 0.1}}
    defects = tuple(DefectSpec(kind=kind, options=required.get(kind, {})) for kind in DEFECT_OPTIONS)
    for kind in POLICY_KINDS:
        options = {"target": "package.module:Policy"} if kind == "python" else {}
        assert validate_policy(policy(kind, *defects, **options)) == []


def test_a_policy_that_needs_what_the_scene_lacks_is_refused() -> None:
    blind = SimulatorSpec.parse("robosuite/Lift", {"observations": ["robot0_eef_pos"]})
    (problem,) = problems_between(policy("lift_expert"), blind)
    assert "needs the observation 'cube_pos'" in problem.message
    assert problems_between(policy("lift_expert"), LIFT) == []
    with pytest.raises(SpecError, match="cube_pos"):
        PolicyProcess(policy("lift_expert"), blind)


def test_a_users_policy_can_say_what_it_needs() -> None:
    mine = policy("python", target="package.module:Policy", needs=["agentview_image"])
    assert needs_of(mine) == ("agentview_image",)
    (problem,) = problems_between(mine, LIFT)
    assert "agentview_image" in problem.message


def test_a_policy_in_a_foreign_task_is_refused() -> None:
    (problem,) = problems_between(policy("lift_expert"), REACH)
    assert "cannot act in metaworld/reach-v3" in problem.message
    assert problems_between(policy("metaworld_expert"), REACH) == []
    assert problems_between(policy("random"), REACH) == []


# --- actions ------------------------------------------------------------------------------------------------------

WANTED = ActionSpec(dtype="float32", shape=(2,), low=(-1.0, -1.0), high=(1.0, 1.0))


def tensor(*values: float, shape: tuple[int, ...], dtype: str = "float64") -> Tensor:
    letter = {"float64": "d", "float32": "f", "int64": "q"}[dtype]
    data = struct.pack(f"<{len(values)}{letter}", *values)
    return Tensor(name="action", dtype=dtype, shape=shape, data=data)


def test_a_row_of_a_chunk_is_taken() -> None:
    chunk = tensor(1.0, 2.0, 3.0, 4.0, shape=(2, 2))
    assert struct.unpack("<2d", action_row(chunk, 1, WANTED).data) == (3.0, 4.0)
    single = tensor(1.0, 2.0, shape=(2,), dtype="float32")
    assert struct.unpack("<2f", action_row(single, None, WANTED).data) == (1.0, 2.0)


@pytest.mark.parametrize(
    ("action", "row", "words"),
    [
        (tensor(float("nan"), 0.0, shape=(2,)), None, r"not finite: \[0\] is nan"),
        (tensor(0.0, 0.0, 0.0, float("-inf"), shape=(2, 2)), 1, r"\[1\] is -inf"),
        (tensor(float("inf"), 0.0, shape=(2,), dtype="float32"), None, "inf"),
        (tensor(0.0, 0.0, 0.0, shape=(3,)), None, r"shape \(3,\)"),
        (tensor(0.0, 0.0, shape=(1, 2)), 1, "shape"),
        (tensor(0.0, 0.0, shape=(2,)), 0, "shape"),
        (tensor(0, 0, shape=(2,), dtype="int64"), None, "dtype int64"),
        (Tensor(name="action", dtype="float64", shape=(2,), data=bytes(8)), None, "bytes"),
    ],
)
def test_what_no_simulator_should_be_given(action: Tensor, row: int | None, words: str) -> None:
    with pytest.raises(InvalidActionError, match=words) as raised:
        action_row(action, row, WANTED)
    assert (raised.value.failure_type, raised.value.component) == ("invalid_action", "agent")


# --- environments -------------------------------------------------------------------------------------------------


def test_every_set_has_a_lock_with_hashes_for_all() -> None:
    for name in NAMES:
        lines = (LOCKS / name / "requirements.txt").read_text().splitlines()
        pins = [line for line in lines if "==" in line and not line.startswith((" ", "#"))]
        assert any(line.startswith(f"{name}==") for line in pins)
        assert all(line.endswith("\\") for line in pins)
        assert not [line for line in lines if "://" in line]
        assert len(environment_digest(name)) == 64
    assert set(NAMES) == set(SCENE_OPTIONS)


def test_the_rooms_link_shows_the_locks() -> None:
    repository = Path(__file__).resolve().parents[3]
    assert (repository / "simulators").resolve() == LOCKS.resolve()


def test_a_missing_environment_names_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_PARTS", str(tmp_path))
    with pytest.raises(MissingPartError, match=r"python -m stepwell.adapters.simulators.install metaworld"):
        environment_python("metaworld")
    stale = tmp_path / "simulators" / "metaworld"
    stale.mkdir(parents=True)
    (stale / "stepwell-lock.sha256").write_text("0" * 64)
    with pytest.raises(MissingPartError, match="another lock"):
        environment_python("metaworld")
    with pytest.raises(ConfigurationError, match="no simulator set 'isaac'"):
        environment_python("isaac")


def test_an_unknown_name_is_told_with_the_nearest_ones_first_and_not_with_all() -> None:
    (problem,) = validate_simulator(SimulatorSpec.parse("metaworld/Reach-v2"))
    assert problem.message.startswith("there is no metaworld task 'Reach-v2'; did you mean reach-v3")
    assert problem.expected.startswith("one of reach-v3, ")
    assert problem.expected.count(",") == LISTED_MAX
    assert problem.expected.endswith(", …")
    (problem,) = validate_policy(PolicySpec(name="p", kind="metaworld_exprt"))
    assert problem.message == "there is no policy kind 'metaworld_exprt'; did you mean metaworld_expert?"
    assert "…" not in problem.expected
    (problem,) = validate_simulator(SimulatorSpec.parse("isaac/cartpole"))
    assert "did you mean" not in problem.message
    assert problem.expected == "one of gymnasium, metaworld, robosuite"


POLICY_FILE = """\
import math as helper
from collections import Counter
if helper:
    class Conditional: pass
class Mine:
    class Inner: pass
    def act(self, observation, step): return 0
def made(): return Mine()
Alias = Mine
raise SystemExit("checking runs nothing of it")
"""


@pytest.mark.parametrize("name", ["Mine", "made", "Alias", "Conditional", "Counter"])
def test_a_policys_class_is_found_without_running_its_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "my_policy.py").write_text(POLICY_FILE)
    assert validate_policy(policy("python", target=f"{tmp_path}/my_policy.py:{name}")) == []


def test_a_class_that_is_not_in_the_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "my_policy.py"
    file.write_text(POLICY_FILE)
    (problem,) = validate_policy(policy("python", target=f"{file}:Mien"))
    assert (problem.path, problem.expected) == (("options", "target"), "one of Mine")
    assert problem.message == f"there is no class in {file} named 'Mien'; did you mean Mine?"
    (problem,) = validate_policy(policy("python", target=f"{file}:Inner"))
    assert "named 'Inner'" in problem.message
    file.write_text("from elsewhere import *\n")
    assert validate_policy(policy("python", target=f"{file}:Mien")) == []
    file.write_text("class Mine:\n    def act(self observation): pass\n")
    (problem,) = validate_policy(policy("python", target=f"{file}:Mine"))
    assert f"{file}:2 is no valid Python" in problem.message
    assert validate_policy(policy("python", target=f"{file}:Mine", interpreter=sys.executable)) == []


def test_the_installer_runs_as_a_module_without_a_warning() -> None:
    command = [sys.executable, "-W", "error", "-m", "stepwell.adapters.simulators.install", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: python -m stepwell.adapters.simulators.install")
    assert done.stderr == ""
