"""Runs one attempt: simulator and policy in their own processes, every fact recorded as it happens."""

import contextlib
import threading
from dataclasses import dataclass

from stepwell.adapters.policies import PolicyDescription, PolicyProcess
from stepwell.adapters.processes import ProcessFailedError
from stepwell.adapters.runs.cause import cause_of
from stepwell.adapters.runs.plan import PlannedEpisode
from stepwell.adapters.runs.recorder import AttemptRecorder
from stepwell.adapters.simulators import Reset, SimulatorDescription, SimulatorProcess, SimulatorSpec
from stepwell.events.taxonomy import OUTCOME_OF_FAULT, fault_of
from stepwell.exceptions import StepwellError


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """How an attempt ended, as the host sees it (the verdict is the engine's).

    Attributes:
        ending: ``success``, ``max_steps``, ``terminated``, ``truncated``, ``aborted`` or a failure type.
        n_steps: steps done.
    """

    ending: str
    n_steps: int

    def told(self) -> str:
        """The outcome, and the failure type where there is one, in the words of the verdict."""
        if self.ending == "success":
            return "success"
        failure_type = _FAILURE_TYPE_OF.get(self.ending, self.ending)
        return f"{OUTCOME_OF_FAULT[fault_of(failure_type)]}: {failure_type}"


_FAILURE_TYPE_OF = {
    "max_steps": "task_not_completed",
    "truncated": "task_not_completed",
    "terminated": "terminated_early",
    "aborted": "aborted_by_operator",
}
"""The host's endings that are no failure types themselves -> what the engine makes of them."""


class WarmPair:
    """One simulator process and one policy process, kept for the next attempt that needs the same.

    A start costs seconds, an episode often less. After any failure both are thrown away: their state is unknown.
    """

    def __init__(self) -> None:
        self._simulator: SimulatorProcess | None = None
        self._simulator_spec: SimulatorSpec | None = None
        self._description: SimulatorDescription | None = None
        self._policy: PolicyProcess | None = None
        self._policy_key: object = None
        self._policy_description: PolicyDescription | None = None

    def simulator(self, episode: PlannedEpisode) -> tuple[SimulatorProcess, SimulatorDescription]:
        """The running simulator for this episode; started where needed."""
        if self._simulator is None or self._simulator_spec != episode.simulator:
            self._close_simulator()
            self._simulator = SimulatorProcess(episode.simulator)
            self._simulator_spec = episode.simulator
            self._description = self._simulator.start(timeout_s=episode.timeouts.start_s)
        assert self._description is not None
        return self._simulator, self._description

    def policy(self, episode: PlannedEpisode) -> tuple[PolicyProcess, PolicyDescription]:
        """The running policy for this episode; started where needed."""
        key = (episode.policy, episode.simulator)
        if self._policy is None or self._policy_key != key:
            self._close_policy()
            self._policy = PolicyProcess(episode.policy, simulator=episode.simulator)
            self._policy_key = key
            self._policy_description = self._policy.start(timeout_s=episode.timeouts.start_s)
        assert self._policy_description is not None
        return self._policy, self._policy_description

    def close(self) -> None:
        """End both processes and all that they started."""
        self._close_simulator()
        self._close_policy()

    def _close_simulator(self) -> None:
        simulator, self._simulator, self._simulator_spec = self._simulator, None, None
        if simulator is not None:
            simulator.close()

    def _close_policy(self) -> None:
        policy, self._policy, self._policy_key = self._policy, None, None
        if policy is not None:
            policy.close()


def run_attempt(
    episode: PlannedEpisode, recorder: AttemptRecorder, pair: WarmPair, stop: threading.Event
) -> AttemptResult:
    """Run one claimed attempt to its end and record it.

    A component that breaks ends the attempt as a recorded failure, not as an exception. ``stop`` ends it between two
    steps as aborted. What goes wrong on our side is raised; where the log still takes it, the attempt is told to be
    lost, so that nobody waits for it.
    """
    try:
        ending = _run(episode, recorder, pair, stop)
    except ProcessFailedError as failure:
        pair.close()
        recorder.failed(failure.failure_type, failure.component, cause_of(failure), failure.exit_code)
        ending = failure.failure_type
    except Exception as error:
        pair.close()
        with contextlib.suppress(StepwellError):
            recorder.failed("host_lost", "host", f"the host could not go on: {error}")
        raise
    return AttemptResult(ending, recorder.n_steps)


def _run(episode: PlannedEpisode, recorder: AttemptRecorder, pair: WarmPair, stop: threading.Event) -> str:
    timeouts = episode.timeouts
    simulator, description = pair.simulator(episode)
    reset = simulator.reset(episode.seed, timeout_s=timeouts.reset_s)
    recorder.ready(description, reset)
    if stop.is_set():  # a policy can take minutes to load
        return _aborted(recorder)
    policy, policy_description = pair.policy(episode)
    policy.reset(
        task=episode.simulator.full_task, seed=episode.seed, description=description, timeout_s=timeouts.reset_s
    )
    recorder.agent_started(policy_description)
    return _steps(episode, recorder, simulator, policy, reset, stop)


def _steps(
    episode: PlannedEpisode,
    recorder: AttemptRecorder,
    simulator: SimulatorProcess,
    policy: PolicyProcess,
    reset: Reset,
    stop: threading.Event,
) -> str:
    observation = reset.observation
    step = 0
    while True:
        chunk = policy.act(observation, step=step, timeout_s=episode.timeouts.act_s)
        recorder.action_sent(step, chunk)
        for row in range(chunk.n_steps):
            if stop.is_set():
                return _aborted(recorder)
            result = simulator.step(chunk.action, row=row, timeout_s=episode.timeouts.step_s)
            recorder.step_done(step, result)
            observation = result.observation
            step += 1
            reason = (
                "success" if result.success
                else "terminated" if result.terminated
                else "truncated" if result.truncated
                else "max_steps" if step >= episode.max_steps
                else None
            )  # fmt: skip
            if reason is not None:
                recorder.ended(reason, result.success)
                return reason


def _aborted(recorder: AttemptRecorder) -> str:
    recorder.aborted("the run was interrupted")
    return "aborted"
