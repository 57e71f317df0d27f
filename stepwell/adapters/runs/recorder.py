"""Writes the facts of one attempt: knows the head, counts each producer's sequence, reads the clock."""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from stepwell.adapters.ids import new_event_id
from stepwell.adapters.policies import Chunk, PolicyDescription
from stepwell.adapters.processes import InvalidActionError, ProcessFailedError
from stepwell.adapters.processes.errors import NAMES, Component
from stepwell.adapters.runs.plan import PlannedEpisode
from stepwell.adapters.runs.speed import AttemptSpeed
from stepwell.adapters.simulators import Reset, SimulatorDescription, StepResult
from stepwell.events import model
from stepwell.exceptions import EncodeError

EventT = TypeVar("EventT", bound=model.Event)


@dataclass(frozen=True, slots=True)
class HostIdentity:
    """Who runs the episodes.

    Attributes:
        producer_id: the host's incarnation, kept with the run so that a restarted run goes on as the same host.
        host: the machine's name.
        pid: of the process that runs now.
        user: who asked for the run.
    """

    producer_id: str
    host: str
    pid: int
    user: str


class AttemptRecorder:
    """The facts of one attempt, from request to end.

    What simulator or policy gave and no event can hold (a NaN step time, an empty chunk, far too much of something) is
    that component's failure: `ProcessFailedError`. A fact that was refused takes no sequence.

    Attributes:
        n_steps: steps recorded as done.
    """

    def __init__(
        self,
        publish: Callable[[model.LogRecord], None],
        episode: PlannedEpisode,
        attempt: int,
        identity: HostIdentity,
        host_seq: int = 0,
        speed: AttemptSpeed | None = None,
    ) -> None:
        """``host_seq``: the host's next sequence, for an attempt of which some facts already stand in the log.
        ``speed``: is told of each step and action.
        """
        incarnation = secrets.token_hex(6)
        self._publish = publish
        self._episode = episode
        self._attempt = attempt
        self._identity = identity
        self._speed = speed
        self._trace_id = secrets.token_hex(16)
        self._producer_ids = {
            "sim": f"sim-{incarnation}",
            "agent": f"agent-{incarnation}",
            "host": identity.producer_id,
        }
        self._next_seq = {"sim": 0, "agent": 0, "host": host_seq}
        self._last_action_seq = -1
        self._sim_time: float | None = None
        self.n_steps = 0

    @property
    def trace_id(self) -> str:
        """W3C trace id of the attempt."""
        return self._trace_id

    # --- host ---

    def requested(self) -> None:
        """The episode was asked for."""
        self._write(model.EpisodeRequested, **self._request())

    def retry_requested(self, reason: str) -> None:
        """A further attempt was asked for."""
        self._write(model.RetryRequested, **self._request(), reason=reason)

    def claimed(self) -> None:
        """This host takes the attempt."""
        self._write(model.EpisodeClaimed, host=self._identity.host, pid=self._identity.pid)

    def ended(self, reason: str, success: bool | None) -> None:
        """The episode came to an end that its rules foresee."""
        self._write(model.EpisodeEnded, **self._tail(), success=success, reason=reason)

    def failed(self, failure_type: str, component: str, message: str, exit_code: int | None = None) -> None:
        """A component broke."""
        self._write(
            model.EpisodeFailed,
            **self._tail(),
            failure_type=failure_type,
            component=component,
            message=message,
            exit_code=exit_code,
        )

    def lost(self, message: str) -> None:
        """An earlier process of this host died during the attempt; how far it came is not known."""
        self._write(
            model.EpisodeFailed,
            n_steps=None,
            last_sim_seq=None,
            last_agent_seq=None,
            failure_type="host_lost",
            component="host",
            message=message,
        )

    def aborted(self, reason: str) -> None:
        """A person stopped the attempt."""
        self._write(model.EpisodeAborted, **self._tail(), reason=reason, aborted_by=self._identity.user)

    # --- simulator ---

    def ready(self, description: SimulatorDescription, reset: Reset) -> None:
        """The simulator is reset."""
        self._sim_time = reset.sim_time
        self._write(
            model.SimReady,
            first_step=0,
            simulator=description.simulator,
            simulator_version=description.simulator_version,
            adapter_version=description.adapter_version,
            environment_digest=description.environment_digest,
            seed=self._episode.seed,
            step_duration_s=description.step_duration_s,
            observation=reset.observation,
            state_digest=reset.state_digest,
        )

    def step_done(self, step: int, result: StepResult) -> None:
        """Step ``step`` was done with the action recorded last."""
        self._sim_time = result.sim_time
        self._write(
            model.StepDone,
            step=step,
            action_seq=self._last_action_seq,
            reward=result.reward,
            success=result.success,
            terminated=result.terminated,
            truncated=result.truncated,
            observation=result.observation,
            metrics=result.metrics,
            state_digest=result.state_digest,
            step_wall_s=result.step_wall_s,
        )
        self.n_steps = step + 1
        if self._speed is not None:
            self._speed.stepped(result.step_wall_s)

    # --- agent ---

    def agent_started(self, description: PolicyDescription) -> None:
        """The policy is loaded."""
        self._write(
            model.AgentStarted,
            policy=description.name,
            policy_version=description.version,
            checkpoint=description.checkpoint or self._episode.checkpoint,
        )

    def action_sent(self, first_step: int, chunk: Chunk) -> None:
        """The policy chose a chunk of actions from observation ``first_step``."""
        seq = self._next_seq["agent"]
        self._write(
            model.ActionSent,
            step=first_step,
            first_step=first_step,
            n_steps=chunk.n_steps,
            action=chunk.action,
            observed_step=first_step,
            inference_s=chunk.inference_s,
        )
        self._last_action_seq = seq
        if self._speed is not None:
            self._speed.inferred(chunk.inference_s)

    # --- the head ---

    def _request(self) -> dict[str, Any]:
        episode = self._episode
        return {
            "task": episode.simulator.full_task,
            "policy": episode.policy.name,
            "policy_version": episode.policy.version,
            "checkpoint": episode.checkpoint,
            "scene": episode.scene,
            "perturbation": episode.perturbation,
            "seed": episode.seed,
            "repetition": episode.repetition,
            "cell": episode.cell,
            "max_steps": episode.max_steps,
            "requested_by": self._identity.user,
            "definition_json": episode.definition,
            "purpose": episode.purpose,
        }

    def _tail(self) -> dict[str, int]:
        return {
            "n_steps": self.n_steps,
            "last_sim_seq": self._next_seq["sim"] - 1,
            "last_agent_seq": self._next_seq["agent"] - 1,
        }

    def _write(self, kind: type[EventT], *, step: int | None = None, **fields: Any) -> None:
        producer = kind.PRODUCER
        seq = self._next_seq[producer]
        event = kind(
            event_id=new_event_id(),
            run_id=self._episode.run_id,
            episode_id=self._episode.episode_id,
            attempt=self._attempt,
            producer_id=self._producer_ids[producer],
            producer_seq=seq,
            occurred_at=time.time_ns() // 1000,
            trace_id=self._trace_id,
            sim_time=self._sim_time if producer != "host" else None,
            step=step,
            **fields,
        )
        try:
            self._publish(event)
        except EncodeError as error:
            raise _unfit(event, error) from error
        self._next_seq[producer] = seq + 1


def _unfit(event: model.Event, error: EncodeError) -> Exception:
    """Whose failure it is that a fact cannot be written."""
    if isinstance(event, model.ActionSent):
        return InvalidActionError(f"The policy's action cannot be recorded: {error}")
    if event.PRODUCER == "host":
        return error
    component: Component = "sim" if event.PRODUCER == "sim" else "agent"
    return ProcessFailedError(
        f"What the {NAMES[component]} gave cannot be recorded as {event.TYPE}: {error}",
        component=component,
        failure_type=f"{component}_exception",
    )
