"""The facts, as immutable typed values.

Every event about an episode carries one head (`Event`, in `head`); what else it says stands in its class. Events on the
way to training stand in `training`, values inside events in `values`, records without a head in `records`, `telemetry`
and `worker_reports`; all of them can be had from here.
The classes mirror the Avro records in ``schemas/`` field by field (a test keeps them equal), so a decoded
record becomes an event without renaming anything.

Two rules of thumb for readers:

* times are integers, microseconds since 1970-01-01 UTC (``*_at``); durations are floats in seconds (``*_s``);
* a name that ends in ``_seq`` is a producer's own count (from 0, per episode, attempt and producer).
"""

from stepwell.events.head import EVALUATION, REGRESSION, Event, Fault, Origin, Outcome, Producer
from stepwell.events.records import (
    DeadLetter,
    HeaderField,
    PolicySnapshot,
    PositionSaved,
    SnapshotTaken,
)
from stepwell.events.telemetry import (
    Attribute,
    Distribution,
    Series,
    Span,
    SpanEvent,
    SpanLink,
    SpansEnded,
    TelemetryPoint,
    TelemetrySampled,
)
from stepwell.events.training import (
    DetectorTicked,
    PatternDetected,
    RetrainAcknowledged,
    RetrainAnswered,
    RetrainExpired,
    RetrainMuted,
    RetrainRequested,
    RetrainUnmuted,
    RetrainWithdrawn,
    RulesActivated,
)
from stepwell.events.values import (
    Certificate,
    EvidenceEpisode,
    Headers,
    Metric,
    Provenance,
    SamplingWeight,
    SequenceRange,
    Tensor,
    Value,
)
from stepwell.events.worker_reports import PartitionProgress, TopicProgress, WorkerReported

__all__ = [
    "EVALUATION",
    "REGRESSION",
    "ActionSent",
    "AgentStarted",
    "Attribute",
    "Certificate",
    "CheckpointSaved",
    "CommandIssued",
    "DeadLetter",
    "DetectorTicked",
    "Distribution",
    "EpisodeAborted",
    "EpisodeClaimed",
    "EpisodeEnded",
    "EpisodeFailed",
    "EpisodeIntervened",
    "EpisodePaused",
    "EpisodeRequested",
    "EpisodeResumed",
    "EpisodeSealed",
    "EpisodeStalled",
    "EpisodeTimedOut",
    "Event",
    "EvidenceEpisode",
    "Fault",
    "HeaderField",
    "Headers",
    "LogRecord",
    "Metric",
    "Origin",
    "Outcome",
    "PartitionProgress",
    "PatternDetected",
    "PolicySnapshot",
    "PositionSaved",
    "Producer",
    "Provenance",
    "Request",
    "RetrainAcknowledged",
    "RetrainAnswered",
    "RetrainExpired",
    "RetrainMuted",
    "RetrainRequested",
    "RetrainUnmuted",
    "RetrainWithdrawn",
    "RetryRequested",
    "RulesActivated",
    "SamplingWeight",
    "SequenceRange",
    "Series",
    "SimReady",
    "SnapshotTaken",
    "Span",
    "SpanEvent",
    "SpanLink",
    "SpansEnded",
    "StepDone",
    "TelemetryPoint",
    "TelemetrySampled",
    "Tensor",
    "TopicProgress",
    "Value",
    "VerdictExpected",
    "VerdictIssued",
    "WorkerReported",
]

# --- planned and claimed ------------------------------------------------------------------------------------------


class Request(Event, frozen=True, kw_only=True):
    """What both kinds of request say; each attempt's facts stand by themselves, so a retry says it again."""

    task: str
    """Simulator and task, e.g. ``metaworld/reach-v3``."""
    policy: str
    policy_version: str
    checkpoint: str | None = None
    """Identifies the policy's weights, where it has any."""
    scene: str
    perturbation: str
    """Name of the perturbation applied to scene or policy; ``none`` for the plain cell."""
    seed: int
    repetition: int
    cell: str
    """Canonical text of the matrix cell; with run, task and repetition it determines ``episode_id``."""
    max_steps: int
    """The step budget; reaching it ends the episode."""
    requested_by: str
    definition_json: str = ""
    """Scene, policy and perturbation as the task spec defines them (JSON), so that the episode can be run again from
    the log alone; empty where whoever asked gave none."""
    purpose: str = EVALUATION
    """What the episode is run for: ``evaluation``, or ``regression`` (to judge a retrained checkpoint)."""


class EpisodeRequested(Request, frozen=True, kw_only=True):
    """An episode was asked for: one cell of a run's matrix, one repetition. The host's fact 0 of attempt 1."""

    TYPE = "episode::requested"
    PRODUCER = "host"


class RetryRequested(Request, frozen=True, kw_only=True):
    """A further attempt was asked for: the host's fact 0 of attempt n + 1, once attempt n has ended."""

    TYPE = "episode::retry_requested"
    PRODUCER = "host"

    reason: str
    from_checkpoint: str | None = None


class EpisodeClaimed(Event, frozen=True, kw_only=True):
    """A host takes the attempt. The first claim in the log wins; a later one is simply lost. The host's fact 1."""

    TYPE = "episode::claimed"
    PRODUCER = "host"

    host: str
    pid: int


# --- the episode itself -------------------------------------------------------------------------------------------


class SimReady(Event, frozen=True, kw_only=True):
    """The simulator is reset. Carries observation ``first_step``; the simulator's fact 0."""

    TYPE = "sim::ready"
    PRODUCER = "sim"

    first_step: int
    """0, or the step of the checkpoint that was restored."""
    simulator: str
    simulator_version: str
    adapter_version: str
    environment_digest: str
    """Digest of the lock file of the simulator's environment."""
    seed: int
    step_duration_s: float | None = None
    """Simulated seconds per step, where fixed."""
    observation: tuple[Tensor, ...]
    state_digest: bytes | None = None
    """Digest of the full simulator state, where the adapter gives one."""


class AgentStarted(Event, frozen=True, kw_only=True):
    """The policy is loaded and can act; the agent's fact 0 where it sends one."""

    TYPE = "agent::started"
    PRODUCER = "agent"

    policy: str
    policy_version: str
    checkpoint: str | None = None


class ActionSent(Event, frozen=True, kw_only=True):
    """The agent chose actions for steps ``first_step`` to ``first_step + n_steps - 1`` (an action chunk).

    ``action`` has shape (n_steps, action dimensions). The head's ``step`` equals ``first_step``.
    """

    TYPE = "agent::action_sent"
    PRODUCER = "agent"

    first_step: int
    n_steps: int
    action: Tensor
    observed_step: int | None = None
    """The observation it was computed from."""
    inference_s: float | None = None


class StepDone(Event, frozen=True, kw_only=True):
    """Step ``step`` was done with the action of ``action_seq``; yields observation ``step + 1``."""

    TYPE = "sim::step_done"
    PRODUCER = "sim"

    action_seq: int
    """``producer_seq`` of the ``agent::action_sent`` that was applied."""
    reward: float | None = None
    success: bool | None = None
    """Whether the simulator says that the task stands achieved after this step."""
    terminated: bool
    truncated: bool
    observation: tuple[Tensor, ...]
    metrics: tuple[Metric, ...] = ()
    state_digest: bytes | None = None
    step_wall_s: float | None = None
    """Wall time that the simulator took for the step."""


# --- ends ---------------------------------------------------------------------------------------------------------


class EpisodeEnded(Event, frozen=True, kw_only=True):
    """The episode ran to an end that its rules foresee. Only the host (or an importer) writes it."""

    TYPE = "episode::ended"
    PRODUCER = "host"

    n_steps: int | None = None
    """Steps done in this attempt; None where unknown."""
    last_sim_seq: int | None = None
    """The last sequence the simulator wrote; None where unknown (-1: it wrote none)."""
    last_agent_seq: int | None = None
    success: bool | None = None
    reason: str
    """``success``, ``max_steps``, ``terminated`` or ``truncated``."""


class EpisodeFailed(Event, frozen=True, kw_only=True):
    """The attempt broke: a component raised, died, hung or sent nonsense."""

    TYPE = "episode::failed"
    PRODUCER = "host"

    n_steps: int | None = None
    last_sim_seq: int | None = None
    last_agent_seq: int | None = None
    failure_type: str
    """One of `stepwell.events.taxonomy.FAILURE_TYPES`."""
    component: str
    """Who broke: ``sim``, ``agent`` or ``host``."""
    message: str
    exit_code: int | None = None
    """Exit status of the process that died; negative for a signal."""


class EpisodeAborted(Event, frozen=True, kw_only=True):
    """A person stopped the attempt."""

    TYPE = "episode::aborted"
    PRODUCER = "host"

    n_steps: int | None = None
    last_sim_seq: int | None = None
    last_agent_seq: int | None = None
    reason: str
    aborted_by: str


# --- beside the steps ---------------------------------------------------------------------------------------------


class EpisodePaused(Event, frozen=True, kw_only=True):
    """The host holds the episode still."""

    TYPE = "episode::paused"
    PRODUCER = "host"

    reason: str
    command_id: str | None = None


class EpisodeResumed(Event, frozen=True, kw_only=True):
    """The host lets the episode go on."""

    TYPE = "episode::resumed"
    PRODUCER = "host"

    reason: str
    command_id: str | None = None


class CheckpointSaved(Event, frozen=True, kw_only=True):
    """The state before step ``step`` was saved to the artifact store."""

    TYPE = "episode::checkpoint_saved"
    PRODUCER = "host"

    uri: str
    sha256: bytes
    size_bytes: int
    fidelity: str
    """``bit_exact``, ``repeatable`` or ``approximate``."""


class EpisodeIntervened(Event, frozen=True, kw_only=True):
    """A person put in an action, a goal or a message; the attempt no longer counts as autonomous."""

    TYPE = "episode::intervened"
    PRODUCER = "host"

    kind: str
    detail: str
    intervened_by: str
    command_id: str | None = None


# --- what the engine adds -----------------------------------------------------------------------------------------


class EpisodeStalled(Event, frozen=True, kw_only=True):
    """Nothing came for a while. The token (owed, owed_seq, flips) says for which moment this holds."""

    TYPE = "episode::stalled"
    PRODUCER = "engine"

    owed: str
    """The producer that owes the next event."""
    owed_seq: int
    flips: int
    """Pauses and resumes applied so far."""
    idle_s: float


class EpisodeTimedOut(Event, frozen=True, kw_only=True):
    """Nothing came for too long: the owed fact is given up. Token as in `EpisodeStalled`."""

    TYPE = "episode::timed_out"
    PRODUCER = "engine"

    owed: str
    owed_seq: int
    flips: int
    idle_s: float


class EpisodeSealed(Event, frozen=True, kw_only=True):
    """The attempt is closed for good; later facts about it are dead letters."""

    TYPE = "episode::sealed"
    PRODUCER = "engine"

    reason: str
    """``complete`` (everything announced is in), or ``grace`` (waited long enough)."""


# --- verdicts -----------------------------------------------------------------------------------------------------


class VerdictIssued(Event, frozen=True, kw_only=True):
    """What an attempt came to, in one revision. ``producer_seq`` is the revision; a later one replaces it."""

    TYPE = "verdict::issued"
    PRODUCER = "engine"

    revision: int
    policy: str
    policy_version: str
    checkpoint: str | None = None
    task: str
    scene: str
    perturbation: str
    seed: int
    repetition: int
    cell: str
    purpose: str = EVALUATION
    """As the request had it; detection rules count ``evaluation`` alone."""
    requested_at: int | None = None
    started_at: int | None = None
    ended_at: int
    outcome: Outcome
    failure_type: str | None = None
    fault: str | None = None
    """``policy``, ``simulator``, ``infrastructure`` or ``operator``; None for a success."""
    message: str
    """The first cause, in the words of the component that reported it; empty for a plain end."""
    labels: tuple[str, ...]
    """What the step rules found, sorted."""
    label_steps: tuple[int, ...] = ()
    """For each label the step at which it was first found; -1 where it is of no one step."""
    autonomous: bool
    n_steps: int
    total_reward: float
    success_at_end: bool | None = None
    success_once: bool | None = None
    metrics: tuple[Metric, ...]
    certificate: Certificate
    provenance: Provenance


class VerdictExpected(Event, frozen=True, kw_only=True):
    """A first attempt was asked for: its verdict will come. Tells rules that go by the order of requests whom to wait
    for. Written once per episode, with ``producer_seq`` 0.
    """

    TYPE = "verdict::expected"
    PRODUCER = "engine"

    policy: str
    policy_version: str
    checkpoint: str | None = None
    task: str
    scene: str
    perturbation: str
    requested_at: int
    purpose: str = EVALUATION
    """As the request had it."""


# --- commands -----------------------------------------------------------------------------------------------------


class CommandIssued(Event, frozen=True, kw_only=True):
    """An operator asks a host for something; the host answers with facts."""

    TYPE = "operator::commanded"
    PRODUCER = "operator"

    command_id: str
    kind: str
    """``pause``, ``resume``, ``retry``, ``abort`` or ``intervene``."""
    arguments_json: str
    issued_by: str


LogRecord = (
    Event | DeadLetter | SnapshotTaken | PolicySnapshot | PositionSaved | TelemetrySampled | SpansEnded | WorkerReported
)
"""Everything that Stepwell writes to a topic."""
