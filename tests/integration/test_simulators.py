"""The real simulators in their own processes and environments. What is not installed fails with its command."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stepwell.adapters.processes import (
    InvalidActionError,
    ProcessHungError,
    ProcessKilledError,
    ProcessRaisedError,
)
from stepwell.adapters.simulators import (
    Reset,
    SimulatorProcess,
    environment_digest,
    environment_python,
    observation_keys,
)
from stepwell.adapters.simulators.catalogue import GYMNASIUM_TASKS, METAWORLD_REGIONS, METAWORLD_TASKS, ROBOSUITE_TASKS
from stepwell.adapters.simulators.install import environments_directory, install
from tests.integration.episodes import floats, play, started, vector

TASKS = {
    "gymnasium/HalfCheetah-v5": {"action": 6, "step_s": 0.05, "limit": 1000, "success": False},
    "metaworld/pick-place-v3": {"action": 4, "step_s": 0.0125, "limit": 500, "success": True},
    "robosuite/Lift": {"action": 7, "step_s": 0.05, "limit": 1000, "success": True},
}


@pytest.fixture(scope="module", params=list(TASKS))
def simulator(request: pytest.FixtureRequest) -> Iterator[SimulatorProcess]:
    with closing(started(request.param)) as process:
        yield process


@pytest.fixture(scope="module")
def cheetah() -> Iterator[SimulatorProcess]:
    with closing(started("gymnasium/HalfCheetah-v5")) as process:
        yield process


def test_it_describes_itself_as_the_catalogue_does(simulator: SimulatorProcess) -> None:
    expected = TASKS[simulator.spec.full_task]
    description = simulator.description
    assert description is not None
    assert {array.name for array in description.observation} == observation_keys(simulator.spec)
    assert description.action.shape == (expected["action"],)
    assert (set(description.action.low), set(description.action.high)) == ({-1.0}, {1.0})
    assert description.step_duration_s == pytest.approx(expected["step_s"])
    assert (description.time_limit, description.gives_success) == (expected["limit"], expected["success"])
    assert description.versions["mujoco"] == "3.3.0"
    assert description.environment_digest == environment_digest(simulator.spec.simulator)


def test_same_seed_and_actions_give_the_same_states_whatever_ran_before(simulator: SimulatorProcess) -> None:
    play(simulator, 5, 3)  # something ran before
    here = play(simulator, 7, 20)
    again = play(simulator, 7, 20)
    other = play(simulator, 8, 20)
    with closing(started(simulator.spec.full_task)) as fresh:
        there = play(fresh, 7, 20)
    assert len(set(here.digests)) == 21
    assert here.digests == again.digests == there.digests
    assert here.observations == again.observations == there.observations
    assert [step.reward for step in here.steps] == [step.reward for step in there.steps]
    assert not set(here.digests) & set(other.digests)
    assert here.reset.observation != other.reset.observation


def test_a_step_tells_time_and_whether_it_succeeded(simulator: SimulatorProcess) -> None:
    expected = TASKS[simulator.spec.full_task]
    episode = play(simulator, 1, 2)
    assert episode.reset.sim_time == 0.0
    assert [step.sim_time for step in episode.steps] == pytest.approx([expected["step_s"], 2 * expected["step_s"]])
    assert [step.success for step in episode.steps] == [False if expected["success"] else None] * 2
    assert all(step.step_wall_s > 0 for step in episode.steps)
    assert all(len(digest) == 32 for digest in episode.digests)
    described = simulator.description
    assert described is not None
    shapes = [(array.name, array.dtype, array.shape) for array in described.observation]
    assert [[(t.name, t.dtype, t.shape) for t in seen] for seen in episode.observations] == [shapes] * 3


def test_a_nan_action_is_the_policys_fault_and_never_reaches_the_simulator(cheetah: SimulatorProcess) -> None:
    clean = play(cheetah, 3, 2)
    cheetah.reset(3)
    with pytest.raises(InvalidActionError, match=r"\[1\] is nan"):
        cheetah.step(vector(0, float("nan"), 0, 0, 0, 0))
    assert play(cheetah, 3, 2).digests == clean.digests


def test_the_time_limit_truncates_and_a_scene_defines_success() -> None:
    with closing(started("gymnasium/InvertedPendulum-v5", {"time_limit": 7, "success_steps": 3})) as simulator:
        episode = play(simulator, 0, 4, action=0.0)
        assert [step.success for step in episode.steps] == [False, False, True, True]
        assert [step.truncated for step in play(simulator, 0, 7, action=0.0).steps] == [False] * 6 + [True]
    with closing(started("metaworld/reach-v3", {"time_limit": 2})) as simulator:
        assert [step.truncated for step in play(simulator, 0, 2).steps] == [False, True]


def test_metaworld_draws_object_and_goal_from_the_scenes_regions() -> None:
    scene = {"object_region": {"x": [0.05, 0.1]}, "goal_region": {"x": [-0.1, -0.05], "y": [0.85, 0.9]}}
    with closing(started("metaworld/push-v3", scene)) as simulator:
        places = [_places(play(simulator, seed, 1).reset) for seed in range(8)]
        assert _places(play(simulator, 3, 1).reset) == places[3]
    assert all(0.05 <= puck[0] <= 0.1 and 0.6 <= puck[1] <= 0.7 for puck, _ in places)
    assert all(-0.1 <= goal[0] <= -0.05 and 0.85 <= goal[1] <= 0.9 for _, goal in places)
    assert len(set(places)) == 8


def test_a_region_as_wide_as_the_tasks_own_changes_nothing() -> None:
    whole = {"object_region": {"x": [-0.1, 0.1]}}
    with closing(started("metaworld/push-v3")) as plain, closing(started("metaworld/push-v3", whole)) as asked:
        first, second = play(plain, 5, 3), play(asked, 5, 3)
    assert first.digests == second.digests
    assert first.reset.observation == second.reset.observation


def _places(reset: Reset) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Where object and goal are, x and y."""
    (observation,) = reset.observation
    numbers = floats(observation)
    return tuple(numbers[4:6]), tuple(numbers[36:38])


# --- perturbations ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gravity_scale", "friction_scale", "mass_scale", "actuator_scale"])
def test_each_scale_changes_the_physics_and_only_that(cheetah: SimulatorProcess, name: str) -> None:
    plain = play(cheetah, 4, 30)
    with closing(started("gymnasium/HalfCheetah-v5", **{name: [0.5, 0.9]})) as simulator:
        perturbed = play(simulator, 4, 30)
        other = play(simulator, 5, 1)
        again = play(simulator, 4, 30)
    assert 0.5 <= perturbed.reset.factors[name] <= 0.9
    assert perturbed.reset.factors != other.reset.factors
    assert perturbed.digests == again.digests  # factors don't pile up in a model that is kept
    assert perturbed.reset.observation == plain.reset.observation  # the same start
    assert perturbed.last.observation != plain.last.observation
    assert not set(perturbed.digests) & set(plain.digests)


def test_without_actuators_actions_do_nothing() -> None:
    with closing(started("gymnasium/HalfCheetah-v5", actuator_scale=0)) as simulator:
        assert (
            play(simulator, 0, 10, action=1.0).last.observation == play(simulator, 0, 10, action=-1.0).last.observation
        )


def test_without_gravity_a_pole_does_not_fall() -> None:
    with closing(started("gymnasium/InvertedPendulum-v5", gravity_scale=0)) as simulator:
        assert not play(simulator, 0, 100, action=0.0).last.terminated
    with closing(started("gymnasium/InvertedPendulum-v5")) as simulator:
        assert play(simulator, 0, 100, action=0.0).last.terminated


def test_late_and_noisy_sensors_leave_the_physics_alone(cheetah: SimulatorProcess) -> None:
    plain = play(cheetah, 6, 6)
    with closing(started("gymnasium/HalfCheetah-v5", observation_delay=2)) as simulator:
        late = play(simulator, 6, 6)
    assert late.digests == plain.digests
    assert late.observations == [*[plain.observations[0]] * 2, *plain.observations[:5]]
    with closing(started("gymnasium/HalfCheetah-v5", observation_noise=0.01)) as simulator:
        noisy, again = play(simulator, 6, 6), play(simulator, 6, 6)
    assert noisy.digests == plain.digests
    assert noisy.observations == again.observations
    errors = [
        abs(seen - true)
        for a, b in zip(noisy.observations, plain.observations, strict=True)
        for seen, true in zip(floats(a[0]), floats(b[0]), strict=True)
    ]
    assert 0.004 < sum(errors) / len(errors) < 0.014  # the mean of |N(0, 0.01)| is 0.008


@pytest.mark.parametrize("full_task", ["metaworld/pick-place-v3", "robosuite/Lift"])
def test_manipulation_tasks_are_perturbed_too(full_task: str) -> None:
    scene = {"placement": {"x": [0.1, 0.1], "y": [-0.1, -0.1]}} if full_task == "robosuite/Lift" else {}
    with closing(started(full_task, scene, gravity_scale=0.2, mass_scale=2, friction_scale=0.1)) as simulator:
        first, again = play(simulator, 2, 5), play(simulator, 2, 5)
    assert first.digests == again.digests
    assert first.reset.factors == {"gravity_scale": 0.2, "friction_scale": 0.1, "mass_scale": 2.0}
    if full_task == "robosuite/Lift":
        (cube,) = [tensor for tensor in first.reset.observation if tensor.name == "cube_pos"]
        assert floats(cube)[:2] == pytest.approx((0.1, -0.1))


# --- failures -----------------------------------------------------------------------------------------------------


def test_a_simulation_that_diverges_is_the_simulators_fault() -> None:
    with (
        closing(started("gymnasium/HalfCheetah-v5", gravity_scale=100, actuator_scale=100)) as simulator,
        pytest.raises(ProcessRaisedError, match="unstable: MuJoCo warns of BADQACC") as raised,
    ):
        play(simulator, 0, 300)
    assert (raised.value.failure_type, raised.value.component) == ("sim_diverged", "sim")


def test_a_killed_and_a_stopped_simulator() -> None:
    with closing(started("gymnasium/InvertedPendulum-v5")) as simulator:
        assert simulator.pid is not None
        os.kill(simulator.pid, signal.SIGKILL)
        with pytest.raises(ProcessKilledError) as killed:
            simulator.reset(0)
        assert (killed.value.failure_type, killed.value.exit_code) == ("sim_killed", -signal.SIGKILL)
    with closing(started("gymnasium/InvertedPendulum-v5")) as simulator:
        pid = simulator.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(ProcessHungError) as hung:
            simulator.reset(0, timeout_s=0.5)
        assert hung.value.failure_type == "sim_timeout"
        assert not Path(f"/proc/{pid}").exists()


# --- what the catalogue says --------------------------------------------------------------------------------------


def ask(name: str, code: str) -> list[str]:
    """Lines that a simulator's own environment prints, beginning with '> '."""
    environ = {**os.environ, "MUJOCO_GL": "disabled"}
    done = subprocess.run(
        [environment_python(name), "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    return [line[2:] for line in done.stdout.splitlines() if line.startswith("> ")]


def test_the_catalogue_lists_the_tasks_that_there_are() -> None:
    metaworld = ask("metaworld", "import metaworld\nfor n in metaworld.ALL_V3_ENVIRONMENTS: print('>', n)")
    assert sorted(metaworld) == sorted(METAWORLD_TASKS)
    code = (
        "import gymnasium\nfor n, s in gymnasium.registry.items():\n  if 'mujoco' in str(s.entry_point): print('>', n)"
    )
    assert sorted(name for name in ask("gymnasium", code) if name.endswith("-v5")) == sorted(GYMNASIUM_TASKS)


def test_the_catalogue_knows_what_metaworld_draws_from() -> None:
    code = f"""
from metaworld.env_dict import ALL_V3_ENVIRONMENTS as tasks
for task in {list(METAWORLD_REGIONS)}:
    space = tasks[task]()._random_reset_space
    print(">", task, *space.low, *space.high)
"""
    drawn = {}
    for task, *numbers in (line.split() for line in ask("metaworld", code)):
        low, high = [float(n) for n in numbers[:6]], [float(n) for n in numbers[6:]]
        bounds = list(zip(low, high, strict=True))
        drawn[task] = {"object_region": tuple(bounds[:3]), "goal_region": tuple(bounds[3:])}
    assert drawn == METAWORLD_REGIONS


def test_the_catalogue_lists_robosuites_observations() -> None:
    code = f"""
import robosuite
for task in {list(ROBOSUITE_TASKS)}:
    env = robosuite.make(task, robots="Panda", has_renderer=False, has_offscreen_renderer=False, use_camera_obs=False)
    print(">", task, *env._get_observations(force_update=True))
"""
    lines = [line.split() for line in ask("robosuite", code)]
    assert {task: sorted(keys) for task, *keys in lines} == {
        task: sorted(keys) for task, keys in ROBOSUITE_TASKS.items()
    }


def test_installing_works_and_twice_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_PARTS", str(tmp_path))
    said: list[str] = []
    install(["gymnasium"], said.append)
    python = environment_python("gymnasium")
    assert python.is_relative_to(tmp_path)
    made = (environments_directory() / "gymnasium" / "stepwell-lock.sha256").stat().st_mtime_ns
    install(["gymnasium"], said.append)
    assert (environments_directory() / "gymnasium" / "stepwell-lock.sha256").stat().st_mtime_ns == made
    assert said[-1].startswith("gymnasium: installed already")
