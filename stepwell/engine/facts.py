"""The fields of each event that the fold reads: what is kept of a fact that waits, and of those that are remembered.

The names are those of `stepwell.events.model`, so that the fold takes a fact and the event it came from alike.
"""

from collections.abc import Callable

import msgspec

from stepwell.engine.nonfinite import has_nonfinite
from stepwell.events import model
from stepwell.events.model import Metric, Tensor

MESSAGE_LIMIT = 2000
"""Characters kept of a failure's message."""


class RequestFact(msgspec.Struct, array_like=True, frozen=True, tag="request"):
    """``episode::requested`` or ``episode::retry_requested``."""

    producer_seq: int
    retry: bool
    occurred_at: int
    run_id: str
    trace_id: str
    task: str
    policy: str
    policy_version: str
    checkpoint: str | None
    scene: str
    perturbation: str
    seed: int
    repetition: int
    cell: str
    max_steps: int
    purpose: str


class ClaimFact(msgspec.Struct, array_like=True, frozen=True, tag="claim"):
    """``episode::claimed``."""

    producer_seq: int
    occurred_at: int


class ReadyFact(msgspec.Struct, array_like=True, frozen=True, tag="ready"):
    """``sim::ready``."""

    producer_seq: int
    occurred_at: int
    sim_time: float | None
    first_step: int
    simulator: str
    simulator_version: str
    adapter_version: str
    environment_digest: str
    seed: int
    step_duration_s: float | None
    nonfinite: bool
    observation: tuple[Tensor, ...] = ()
    """What step rules read of it; only of an attempt that has some."""


class StartFact(msgspec.Struct, array_like=True, frozen=True, tag="start"):
    """``agent::started``."""

    producer_seq: int
    occurred_at: int
    policy: str
    policy_version: str
    checkpoint: str | None


class ActionFact(msgspec.Struct, array_like=True, frozen=True, tag="action"):
    """``agent::action_sent``."""

    producer_seq: int
    first_step: int
    n_steps: int
    inference_s: float | None
    nonfinite: bool
    occurred_at: int = 0
    observed_step: int | None = None
    action: Tensor | None = None
    """These three only where the attempt has step rules that read them."""


class StepFact(msgspec.Struct, array_like=True, frozen=True, tag="step"):
    """``sim::step_done``."""

    producer_seq: int
    sim_time: float | None
    step: int | None
    action_seq: int
    reward: float | None
    success: bool | None
    step_wall_s: float | None
    nonfinite: bool
    occurred_at: int = 0
    observation: tuple[Tensor, ...] = ()
    metrics: tuple[Metric, ...] = ()
    """These three only where the attempt has step rules: what they read."""


class EndFact(msgspec.Struct, array_like=True, frozen=True, tag="end"):
    """``episode::ended``, ``failed`` or ``aborted``, or a time-out that ends the attempt (``kind`` ``timed_out``)."""

    producer_seq: int
    occurred_at: int
    kind: str
    n_steps: int | None
    last_sim_seq: int | None
    last_agent_seq: int | None
    success: bool | None
    reason: str
    failure_type: str | None
    message: str


class FlipFact(msgspec.Struct, array_like=True, frozen=True, tag="flip"):
    """``episode::paused`` or ``episode::resumed``."""

    producer_seq: int
    pause: bool


class MarkFact(msgspec.Struct, array_like=True, frozen=True, tag="mark"):
    """``episode::checkpoint_saved`` (``uri`` given) or ``episode::intervened``."""

    producer_seq: int
    step: int | None
    uri: str | None


Fact = RequestFact | ClaimFact | ReadyFact | StartFact | ActionFact | StepFact | EndFact | FlipFact | MarkFact


def _request(event: model.Request) -> RequestFact:
    return RequestFact(
        producer_seq=event.producer_seq,
        retry=isinstance(event, model.RetryRequested),
        occurred_at=event.occurred_at,
        run_id=event.run_id,
        trace_id=event.trace_id,
        task=event.task,
        policy=event.policy,
        policy_version=event.policy_version,
        checkpoint=event.checkpoint,
        scene=event.scene,
        perturbation=event.perturbation,
        seed=event.seed,
        repetition=event.repetition,
        cell=event.cell,
        max_steps=event.max_steps,
        purpose=event.purpose,
    )


def _claim(event: model.EpisodeClaimed) -> ClaimFact:
    return ClaimFact(event.producer_seq, event.occurred_at)


def _ready(event: model.SimReady) -> ReadyFact:
    return ReadyFact(
        producer_seq=event.producer_seq,
        occurred_at=event.occurred_at,
        sim_time=event.sim_time,
        first_step=event.first_step,
        simulator=event.simulator,
        simulator_version=event.simulator_version,
        adapter_version=event.adapter_version,
        environment_digest=event.environment_digest,
        seed=event.seed,
        step_duration_s=event.step_duration_s,
        nonfinite=has_nonfinite(event.observation),
    )


def _start(event: model.AgentStarted) -> StartFact:
    return StartFact(event.producer_seq, event.occurred_at, event.policy, event.policy_version, event.checkpoint)


def _action(event: model.ActionSent) -> ActionFact:
    nonfinite = has_nonfinite((event.action,))
    return ActionFact(event.producer_seq, event.first_step, event.n_steps, event.inference_s, nonfinite)


def _step(event: model.StepDone) -> StepFact:
    return StepFact(
        producer_seq=event.producer_seq,
        sim_time=event.sim_time,
        step=event.step,
        action_seq=event.action_seq,
        reward=event.reward,
        success=event.success,
        step_wall_s=event.step_wall_s,
        nonfinite=has_nonfinite(event.observation),
    )


def _ended(event: model.EpisodeEnded) -> EndFact:
    return EndFact(
        producer_seq=event.producer_seq,
        occurred_at=event.occurred_at,
        kind="ended",
        n_steps=event.n_steps,
        last_sim_seq=event.last_sim_seq,
        last_agent_seq=event.last_agent_seq,
        success=event.success,
        reason=event.reason,
        failure_type=None,
        message="",
    )


def _failed(event: model.EpisodeFailed) -> EndFact:
    return EndFact(
        producer_seq=event.producer_seq,
        occurred_at=event.occurred_at,
        kind="failed",
        n_steps=event.n_steps,
        last_sim_seq=event.last_sim_seq,
        last_agent_seq=event.last_agent_seq,
        success=None,
        reason=event.component,
        failure_type=event.failure_type,
        message=event.message[:MESSAGE_LIMIT],
    )


def _aborted(event: model.EpisodeAborted) -> EndFact:
    return EndFact(
        producer_seq=event.producer_seq,
        occurred_at=event.occurred_at,
        kind="aborted",
        n_steps=event.n_steps,
        last_sim_seq=event.last_sim_seq,
        last_agent_seq=event.last_agent_seq,
        success=None,
        reason=event.aborted_by,
        failure_type="aborted_by_operator",
        message=event.reason[:MESSAGE_LIMIT],
    )


def _flip(event: model.EpisodePaused | model.EpisodeResumed) -> FlipFact:
    return FlipFact(event.producer_seq, isinstance(event, model.EpisodePaused))


def _mark(event: model.CheckpointSaved | model.EpisodeIntervened) -> MarkFact:
    uri = event.uri if isinstance(event, model.CheckpointSaved) else None
    return MarkFact(event.producer_seq, event.step, uri)


FACT_OF: dict[type[model.Event], Callable[..., Fact]] = {
    model.EpisodeRequested: _request,
    model.RetryRequested: _request,
    model.EpisodeClaimed: _claim,
    model.SimReady: _ready,
    model.AgentStarted: _start,
    model.ActionSent: _action,
    model.StepDone: _step,
    model.EpisodeEnded: _ended,
    model.EpisodeFailed: _failed,
    model.EpisodeAborted: _aborted,
    model.EpisodePaused: _flip,
    model.EpisodeResumed: _flip,
    model.CheckpointSaved: _mark,
    model.EpisodeIntervened: _mark,
}
"""How each sequenced event becomes a fact."""
