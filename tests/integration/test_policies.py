"""Real policies in processes apart from the simulators': experts succeed, and every defect fails in its own way."""

import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stepwell.adapters.policies import Chunk, DefectSpec, PolicyProcess, PolicySpec
from stepwell.adapters.processes import (
    InvalidActionError,
    ProcessExitedError,
    ProcessFailedError,
    ProcessHungError,
    ProcessKilledError,
    ProcessRaisedError,
    StartFailedError,
)
from stepwell.adapters.simulators import SimulatorProcess, SimulatorSpec
from stepwell.exceptions import SpecError
from tests.integration.episodes import act_out, floats, started

PENDULUM = "gymnasium/InvertedPendulum-v5"


def agent(simulator: SimulatorProcess, kind: str, *defects: DefectSpec, **options: Any) -> PolicyProcess:
    """A policy for the simulator, started."""
    spec = PolicySpec(name=kind, kind=kind, options=options, defects=defects)
    process = PolicyProcess(spec, simulator.spec)
    process.start()
    return process


def defect(kind: str, **options: Any) -> DefectSpec:
    return DefectSpec(kind=kind, options=options)


@pytest.fixture(scope="module")
def pendulum() -> Iterator[SimulatorProcess]:
    with closing(started(PENDULUM, {"success_steps": 60})) as process:
        yield process


@pytest.fixture(scope="module")
def lift() -> Iterator[SimulatorProcess]:
    with closing(started("robosuite/Lift")) as process:
        yield process


def chunk_of(simulator: SimulatorProcess, policy: PolicyProcess, seed: int) -> Chunk:
    assert simulator.description is not None
    policy.reset(simulator.spec.full_task, seed, simulator.description)
    return policy.act(simulator.reset(seed).observation, 0)


# --- policies that can do it --------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["reach-v3", "pick-place-v3", "door-open-v3"])
def test_meta_worlds_experts_succeed(task: str) -> None:
    with closing(started(f"metaworld/{task}")) as simulator, closing(agent(simulator, "metaworld_expert")) as expert:
        episode = act_out(simulator, expert, 1, 200)
    assert episode.last.success
    assert len(episode.steps) > 10


def test_the_lift_expert_succeeds_and_fails_without_its_gripper(lift: SimulatorProcess) -> None:
    with closing(agent(lift, "lift_expert")) as expert:
        assert [act_out(lift, expert, seed, 90).last.success for seed in (0, 1)] == [True] * 2
    with closing(agent(lift, "lift_expert", defect("drop_gripper"))) as handless:
        episode = act_out(lift, handless, 0, 70)  # it took 63 with a gripper
    assert (episode.last.success, len(episode.steps)) == (False, 70)


def test_the_balancer_balances_and_a_drunken_one_falls(pendulum: SimulatorProcess) -> None:
    with closing(agent(pendulum, "pendulum_balancer")) as balancer:
        episodes = [act_out(pendulum, balancer, seed, 60) for seed in range(3)]
    assert [(episode.last.success, len(episode.steps)) for episode in episodes] == [(True, 60)] * 3
    with closing(agent(pendulum, "pendulum_balancer", defect("noise", sigma=3.0))) as drunken:
        first, again = (act_out(pendulum, drunken, 0, 60) for _ in range(2))
    assert first.last.terminated
    assert not first.last.success
    assert first.digests == again.digests  # the noise, too, comes from the seed


def test_random_policies_are_seeded_and_can_send_chunks(pendulum: SimulatorProcess) -> None:
    with closing(agent(pendulum, "random", chunk=5)) as one, closing(agent(pendulum, "random", chunk=5)) as two:
        first, same, other = (chunk_of(pendulum, policy, seed) for policy, seed in ((one, 3), (two, 3), (one, 4)))
    assert (first.n_steps, first.action.shape) == (5, (5, 1))
    assert first.action == same.action != other.action
    assert len(set(floats(first.action))) == 5
    assert all(-3 <= value <= 3 for value in floats(first.action))
    assert first.inference_s >= 0


def test_a_constant_policy(pendulum: SimulatorProcess) -> None:
    with closing(agent(pendulum, "constant", value=0.25)) as policy:
        assert floats(chunk_of(pendulum, policy, 0).action) == (0.25,)


# --- defects ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "kind", "failure_type", "exit_code"),
    [
        (defect("nan_action", at_step=3), InvalidActionError, "invalid_action", None),
        (defect("wrong_shape", at_step=3), InvalidActionError, "invalid_action", None),
        (defect("die", at_step=3), ProcessRaisedError, "agent_exception", None),
        (defect("die", at_step=3, how="exit"), ProcessExitedError, "agent_exited", 3),
        (defect("die", at_step=3, how="crash"), ProcessExitedError, "agent_exited", -11),
        (defect("die", at_step=3, how="kill"), ProcessKilledError, "agent_killed", -9),
        (defect("hang", at_step=3), ProcessHungError, "agent_timeout", None),
    ],
    ids=lambda value: f"{value.kind}-{value.options.get('how', '')}" if isinstance(value, DefectSpec) else None,
)
def test_every_defect_fails_in_its_own_way_at_its_step(
    pendulum: SimulatorProcess,
    spec: DefectSpec,
    kind: type[ProcessFailedError],
    failure_type: str,
    exit_code: int | None,
) -> None:
    with closing(agent(pendulum, "pendulum_balancer", spec)) as policy:
        pid = policy.pid
        assert len(act_out(pendulum, policy, 0, 3).steps) == 3
        with pytest.raises(ProcessFailedError) as raised:
            act_out(pendulum, policy, 0, 4, timeout_s=2)
    assert type(raised.value) is kind
    assert (raised.value.component, raised.value.failure_type) == ("agent", failure_type)
    assert raised.value.exit_code == exit_code
    assert not Path(f"/proc/{pid}").exists()


def test_a_slow_policy_answers_late_but_answers(pendulum: SimulatorProcess) -> None:
    with closing(agent(pendulum, "constant", defect("slow", latency_s=0.05))) as policy:
        assert chunk_of(pendulum, policy, 0).inference_s >= 0.05


def test_a_defect_strikes_the_same_seeds_every_time(pendulum: SimulatorProcess) -> None:
    def struck() -> list[bool]:
        with closing(agent(pendulum, "constant", defect("drop_gripper", probability=0.5, value=2.0))) as policy:
            return [floats(chunk_of(pendulum, policy, seed).action) == (2.0,) for seed in range(24)]

    first = struck()
    assert first == struck()
    assert 6 <= sum(first) <= 18


# --- users' own ---------------------------------------------------------------------------------------------------

MINE = """
import numpy as np

class Mine:
    needs = ["observation"]

    def __init__(self, gain=1.0, broken=False):
        if broken:
            raise FileNotFoundError("no checkpoint at weights.pt")
        self.gain = gain
        self.checkpoint = "weights-7"

    def reset(self, task, seed, action_space):
        print("resetting for", task, "with", action_space.size, "dimensions")

    def act(self, observation, step):
        return np.full((2, 1), self.gain * (step + 1))

class Text:
    def act(self, observation, step):
        return "forward"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my_policy.py"
    path.write_text(textwrap.dedent(MINE))
    return path


@pytest.mark.parametrize("own_interpreter", [False, True])
def test_a_users_policy_from_a_file(pendulum: SimulatorProcess, file: Path, own_interpreter: bool) -> None:
    options = {"interpreter": sys.executable} if own_interpreter else {}
    spec = PolicySpec(
        name="mine", kind="python", options={"target": f"{file}:Mine", "arguments": {"gain": 0.5}, **options}
    )
    with PolicyProcess(spec, pendulum.spec) as policy:
        description = policy.start()
        chunk = chunk_of(pendulum, policy, 0)
    assert (description.name, description.checkpoint, description.needs) == ("mine", "weights-7", ("observation",))
    assert (chunk.n_steps, floats(chunk.action)) == (2, (0.5, 0.5))
    assert "resetting for gymnasium/InvertedPendulum-v5 with 1 dimensions" in policy.output


def test_a_users_policy_from_a_module(pendulum: SimulatorProcess, file: Path) -> None:
    with closing(agent(pendulum, "python", target="my_policy:Mine", path=str(file.parent))) as policy:
        assert chunk_of(pendulum, policy, 0).n_steps == 2


def test_a_users_policy_that_cannot_load_has_not_started(pendulum: SimulatorProcess, file: Path) -> None:
    """Nothing was asked of it yet, so nothing speaks against it: infrastructure's fault, which feeds no retraining."""
    arguments = {"target": f"{file}:Mine", "arguments": {"broken": True}}
    broken = PolicyProcess(PolicySpec(name="mine", kind="python", options=arguments), pendulum.spec)
    with pytest.raises(StartFailedError, match=r"could not be loaded. .*no checkpoint at weights.pt") as raised:
        broken.start()
    assert raised.value.failure_type == "start_failed"
    assert f'File "{file}", line 9, in __init__' in str(raised.value.remote_traceback)
    assert broken.pid is None  # a failed start leaves no process behind
    with pytest.raises(SpecError, match="named 'Missing'"):
        PolicyProcess(PolicySpec(name="mine", kind="python", options={"target": f"{file}:Missing"}), pendulum.spec)


def test_an_answer_that_is_no_action_is_the_policys_exception(pendulum: SimulatorProcess, file: Path) -> None:
    with closing(agent(pendulum, "python", target=f"{file}:Text")) as policy:
        with pytest.raises(ProcessRaisedError) as raised:
            chunk_of(pendulum, policy, 0)
        assert raised.value.failure_type == "agent_exception"


def test_a_policy_needs_no_simulator_to_run_beside() -> None:
    spec = PolicySpec(name="random", kind="random")
    with PolicyProcess(spec, SimulatorSpec.parse(PENDULUM)) as policy:
        assert policy.start().needs == ()
        assert policy.pid is not None
