"""Real episodes through the local log: every failure gets its owner; interrupted runs go on where they stopped."""

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from stepwell.adapters.history import fold_episodes
from stepwell.adapters.logs import open_log
from stepwell.adapters.runs.speed import STEP_DURATION
from stepwell.adapters.runs.summary import counting_verdict, summarise
from stepwell.engine.reading import read_range
from stepwell.engine.state import AttemptState, EpisodeState
from stepwell.engine.verdict import verdict_of
from stepwell.events.codec import Codec
from stepwell.events.model import TelemetrySampled
from stepwell.events.topics import TELEMETRY

DEADLINE_S = 120.0


def start(spec: Path, home: Path, *arguments: str) -> "subprocess.Popen[str]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STEPWELL_")}
    parts = os.environ.get("STEPWELL_PARTS")
    environment |= {"STEPWELL_HOME": str(home)} | ({"STEPWELL_PARTS": parts} if parts else {})
    return subprocess.Popen(
        [sys.executable, "-m", "stepwell", "run", str(spec), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: "subprocess.Popen[str]") -> str:
    output, _ = process.communicate(timeout=DEADLINE_S)
    return output


def folded(home: Path) -> list[EpisodeState]:
    log = open_log(f"local:{home / 'log'}")
    try:
        return list(fold_episodes(log, Codec()).values())
    finally:
        log.close()


def timed_steps(home: Path) -> dict[str | None, int]:
    """How many steps the telemetry of each episode counts."""
    log, codec, counted = open_log(f"local:{home / 'log'}"), Codec(), Counter[str | None]()
    admin = log.admin()
    for source, marks in admin.watermarks(TELEMETRY).items():
        for batch in read_range(log, source, marks.low, marks.high):
            for value, headers in zip(batch.values, batch.headers, strict=True):
                record = codec.decode(value, headers)
                assert isinstance(record, TelemetrySampled)
                for spread in record.distributions:
                    if record.series[record.point_series[spread.point]].metric == STEP_DURATION:
                        counted[record.episode_id] += spread.count
    admin.close()
    log.close()
    return dict(counted)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.1)


BROKEN = """\
run: broken
seeds: [1]
max_steps: 60
parallel: 2
timeouts: {start_s: 90, reset_s: 60, step_s: 20, act_s: 2}
scenes:
  - {name: balance, task: gymnasium/InvertedPendulum-v5, options: {success_steps: 40}}
policies:
  - {name: good, kind: pendulum_balancer}
  - {name: falls, kind: constant, options: {value: 3.0}}
  - {name: nan, kind: pendulum_balancer, defects: [{kind: nan_action, options: {at_step: 7}}]}
  - {name: shape, kind: pendulum_balancer, defects: [{kind: wrong_shape, options: {at_step: 7}}]}
  - {name: raises, kind: pendulum_balancer, defects: [{kind: die, options: {at_step: 7, how: raise}}]}
  - {name: exits, kind: pendulum_balancer, defects: [{kind: die, options: {at_step: 7, how: exit}}]}
  - {name: killed, kind: pendulum_balancer, defects: [{kind: die, options: {at_step: 7, how: kill}}]}
  - {name: hangs, kind: pendulum_balancer, defects: [{kind: hang, options: {at_step: 7}}]}
  - {name: unloadable, kind: python, options: {target: "FILE:Mine", arguments: {weights: lost.pt}}}
  - {name: mistaken, kind: python, options: {target: "FILE:Mine"}}
"""
MINE = """\
class Mine:
    def __init__(self, weights=None):
        if weights:
            raise FileNotFoundError(weights)

    def act(self, observation, step):
        raise ValueError(f"no plan for step {step}")
"""

EXPECTED = {
    "good": ("success", None, None),
    "falls": ("failure", "terminated_early", "policy"),
    "nan": ("failure", "invalid_action", "policy"),
    "shape": ("failure", "invalid_action", "policy"),
    "raises": ("failure", "agent_exception", "policy"),
    "exits": ("failure", "agent_exited", "policy"),
    "killed": ("error", "agent_killed", "infrastructure"),
    "hangs": ("failure", "agent_timeout", "policy"),
    "unloadable": ("error", "start_failed", "infrastructure"),
    "mistaken": ("failure", "agent_exception", "policy"),
}


def test_every_kind_of_failure_gets_its_owner(tmp_path: Path) -> None:
    spec = tmp_path / "broken.yaml"
    (tmp_path / "mine.py").write_text(MINE)
    spec.write_text(BROKEN.replace("FILE", str(tmp_path / "mine.py")))
    output = finish(start(spec, tmp_path / "home", "--run-id", "b1"))
    states = folded(tmp_path / "home")
    verdicts = [counting_verdict(state) for state in states]
    found = {v.policy: (v.outcome, v.failure_type, v.fault) for v in verdicts if v is not None}
    assert found == EXPECTED, output
    # What was published of the speed counts every step, also of attempts that broke.
    assert timed_steps(tmp_path / "home") == {v.episode_id: v.n_steps for v in verdicts if v is not None and v.n_steps}
    assert all(v is not None and v.certificate.status == "complete" for v in verdicts)
    steps = {v.policy: v.n_steps for v in verdicts if v is not None}
    assert {name: steps[name] for name in ("good", "nan", "exits", "hangs")} == {
        "good": 40, "nan": 7, "exits": 7, "hangs": 7,
    }  # fmt: skip
    tally = summarise(states).total
    assert (tally.planned, tally.attempted, tally.errored, tally.scored) == (10, 10, 2, 8)
    assert "planned 10 · attempted 10 · errored 2 · scored 8" in output
    assert re.search(r"ep-\w{8}  nan in balance, seed 1: failure: invalid_action \(7 steps\)", output)
    told = re.findall(r"^failed: (ep-\w+): \w+ \(stepwell show \1\)$", output, re.MULTILINE)
    assert len(told) == 3
    assert "… and 6 more: stepwell episodes --run b1" in output
    messages = {v.policy: v.message or "" for v in verdicts if v is not None}
    assert "lost.pt at mine.py:4 in __init__" in messages["unloadable"]
    assert messages["mistaken"].startswith(
        "The policy raised ValueError in 'act': no plan for step 0 at mine.py:7 in act"
    )
    assert f'File "{tmp_path}/mine.py", line 7, in act\n    raise ValueError' in messages["mistaken"]


SLOW = """\
run: slow
seeds: [1, 2, 3]
max_steps: 60
parallel: 1
scenes:
  - {name: balance, task: gymnasium/InvertedPendulum-v5, options: {success_steps: 30}}
policies:
  - {name: slow, kind: pendulum_balancer, defects: [{kind: slow, options: {latency_s: 0.05}}]}
"""


@pytest.fixture
def slow_spec(tmp_path: Path) -> Path:
    spec = tmp_path / "slow.yaml"
    spec.write_text(SLOW)
    return spec


def steps_seen(home: Path) -> int:
    if not (home / "log").exists():
        return 0
    return sum(a.steps for state in folded(home) for a in state.attempts.values() if isinstance(a, AttemptState))


def attempts_of(home: Path) -> list[list[tuple[str | None, str | None]]]:
    """For each episode, for each attempt: outcome and failure type."""
    rows = []
    for state in folded(home):
        verdicts = [verdict_of(a) for _, a in sorted(state.attempts.items()) if isinstance(a, AttemptState)]
        rows.append([(v.outcome, v.failure_type) if v else (None, None) for v in verdicts])
    return rows


def test_a_killed_run_leaves_no_process_and_goes_on_where_it_stopped(tmp_path: Path, slow_spec: Path) -> None:
    home = tmp_path / "home"
    process = start(slow_spec, home, "--run-id", "s1")
    wait_until(lambda: steps_seen(home) >= 35, "the second episode runs")
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 2
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
    output = finish(start(slow_spec, home, "--run-id", "s1"))
    assert re.search(r"3 episodes \(1 already done, 1 interrupted earlier\)", output), output
    assert sorted(attempts_of(home), key=len) == [
        [("success", None)],
        [("success", None)],
        [("error", "host_lost"), ("success", None)],
    ]
    assert "planned 3 · attempted 3 · errored 0 · scored 3" in output


def test_ctrl_c_ends_cleanly_and_the_rest_runs_later(tmp_path: Path, slow_spec: Path) -> None:
    home = tmp_path / "home"
    process = start(slow_spec, home, "--run-id", "s1")
    wait_until(lambda: steps_seen(home) >= 5, "the first episode runs")
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    output = finish(process)
    assert process.returncode == 130, output
    assert "stepwell run" in output
    assert "--run-id s1" in output
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    first = attempts_of(home)
    assert len(first) == 3
    assert [("aborted", "aborted_by_operator")] in first
    output = finish(start(slow_spec, home, "--run-id", "s1"))
    assert sum(rows[-1] == ("success", None) for rows in attempts_of(home)) == 3
    assert "scored 3" in output


def test_two_processes_cannot_run_the_same_run_on_one_machine(tmp_path: Path, slow_spec: Path) -> None:
    home = tmp_path / "home"
    process = start(slow_spec, home, "--run-id", "s1")
    try:
        wait_until(lambda: steps_seen(home) >= 1, "the first episode runs")
        second = start(slow_spec, home, "--run-id", "s1")
        assert "run 's1' is being run by another process on this machine" in finish(second)
        assert second.returncode == 2
    finally:
        process.send_signal(signal.SIGINT)
        finish(process)


def test_a_wrong_spec_starts_nothing(tmp_path: Path) -> None:
    spec = tmp_path / "wrong.yaml"
    spec.write_text(SLOW.replace("seeds:", "seed:"))
    process = start(spec, tmp_path / "home")
    output = finish(process)
    assert process.returncode == 2
    assert f"{spec}:2: seed: unknown key" in output
    assert not (tmp_path / "home" / "log").exists()


STUBBORN = """\
run: stubborn
seeds: [1]
max_steps: 60
timeouts: {{start_s: 90, reset_s: 60, step_s: 60, act_s: 300}}
scenes:
  - {{name: balance, task: gymnasium/InvertedPendulum-v5, options: {{success_steps: 3}}}}
policies:
  - {{name: stubborn, kind: python, options: {{target: "{file}:Stubborn", arguments: {{hang_at: {hang_at}}}}}}}
"""
STUBBORN_POLICY = """\
import atexit, signal, threading, time
import numpy as np

class Stubborn:
    def __init__(self, hang_at):
        self.hang_at = hang_at
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        atexit.register(time.sleep, 600)
        threading.Thread(target=time.sleep, args=(600,)).start()  # the interpreter would wait for it, too

    def act(self, observation, step):
        if step == self.hang_at:
            time.sleep(600)
        return np.zeros(1)
"""


def stubborn(directory: Path, hang_at: int) -> Path:
    (directory / "stubborn.py").write_text(STUBBORN_POLICY)
    spec = directory / "stubborn.yaml"
    spec.write_text(STUBBORN.format(file=directory / "stubborn.py", hang_at=hang_at))
    return spec


def still_there(processes: list[psutil.Process]) -> list[psutil.Process]:
    _, alive = psutil.wait_procs(processes, timeout=10)
    return alive


def test_a_policy_that_will_not_end_is_ended_with_the_run(tmp_path: Path) -> None:
    home = tmp_path / "home"
    process = start(stubborn(tmp_path, hang_at=-1), home)
    wait_until(lambda: steps_seen(home) >= 1, "the episode runs")
    children = psutil.Process(process.pid).children(recursive=True)
    output = finish(process)
    assert process.returncode == 0, output
    assert "scored 1" in output
    assert attempts_of(home) == [[("success", None)]]
    assert not still_there(children)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_at_once_and_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    home = tmp_path / "home"
    process = start(stubborn(tmp_path, hang_at=2), home, "--run-id", "s1")
    wait_until(lambda: steps_seen(home) >= 2, "the policy hangs")
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) == 2
    process.send_signal(number)
    with pytest.raises(subprocess.TimeoutExpired):  # it waits for the answer of the policy
        process.wait(2)
    process.send_signal(number)
    output = finish(process)
    assert process.returncode == 130, output
    assert "once more to end at once" in output
    assert "Traceback" not in output
    assert not still_there(children)
    assert attempts_of(home) == [[(None, None)]], "nobody can tell now how the attempt ended"


def test_sigterm_ends_like_ctrl_c(tmp_path: Path, slow_spec: Path) -> None:
    home = tmp_path / "home"
    process = start(slow_spec, home)
    wait_until(lambda: steps_seen(home) >= 5, "the first episode runs")
    process.terminate()
    output = finish(process)
    assert process.returncode == 130, output
    assert [("aborted", "aborted_by_operator")] in attempts_of(home)
    assert "aborted 1 · missing 2" in output
