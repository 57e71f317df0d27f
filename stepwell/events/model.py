"""The facts, as immutable typed values.

Every event about an episode carries one head (`Event`); what else it says stands in its class.
The classes mirror the Avro records in ``schemas/`` field by field (a test keeps them equal), so a decoded
record becomes an event without renaming anything.

Two rules of thumb for readers:

* times are integers, microseconds since 1970-01-01 UTC (``*_at``); durations are floats in seconds (``*_s``);
* a name that ends in ``_seq`` is a producer's own count (from 0, per episode, attempt and producer).
"""

from typing import ClassVar, Literal

import msgspec

Producer = Literal["sim", "agent", "host", "engine", "trainer", "operator"]
Origin = Literal["live", "import"]
Outcome = Literal["success", "failure", "error", "aborted"]
Fault = Literal["policy", "simulator", "infrastructure", "operator"]


Headers = tuple[tuple[str, bytes | None], ...]
"""Headers of a log record, in order."""


class Value(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of an event: immutable, compared by content."""


class Tensor(Value, frozen=True, kw_only=True):
    """A typed array, or a reference to one that is too large for the log.

    Attributes:
        name: what it is, e.g. ``qpos`` or ``agentview_image``; ``action`` for actions.
        dtype: a NumPy dtype name (``float32``, ``float64``, ``int32``, ``int64``, ``uint8``, ``bool``).
        shape: the lengths of the axes; ``()`` is a scalar.
        data: the elements in C order, little-endian; empty where ``uri`` is given.
        uri: where the artifact lies, for arrays kept out of the log; else None.
        sha256: digest (32 bytes) of the artifact's bytes; given exactly where ``uri`` is.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes
    uri: str | None = None
    sha256: bytes | None = None


class Metric(Value, frozen=True, kw_only=True):
    """A named number; its unit is part of the name's documentation, e.g. ``path_length_m``."""

    name: str
    value: float


class Event(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The head that every event carries.

    Attributes:
        event_id: 16 bytes. A UUIDv7 for facts from outside; derived for what the engine makes.
        run_id: the run this episode was planned in.
        episode_id: the episode; empty for the few events that concern none.
        attempt: from 1.
        producer_id: one incarnation of the producer, e.g. ``sim-3f2a``.
        producer_seq: from 0, per episode, attempt and producer.
        occurred_at: when it happened, by the producer's clock (µs since 1970, UTC).
        trace_id: W3C trace id, 32 lower-case hex digits.
        sim_time: simulated seconds since the episode's start, where there is such a thing.
        step: the step that the event is about; see each class.
        origin: ``live``, or ``import`` for recordings brought in later.
    """

    TYPE: ClassVar[str]
    PRODUCER: ClassVar[Producer]

    event_id: bytes
    run_id: str
    episode_id: str
    attempt: int
    producer_id: str
    producer_seq: int
    occurred_at: int
    trace_id: str
    sim_time: float | None = None
    step: int | None = None
    origin: Origin = "live"


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


class SequenceRange(Value, frozen=True, kw_only=True):
    """Sequences ``first`` to ``last`` (both included) of one producer."""

    producer: str
    first: int
    last: int


class Certificate(Value, frozen=True, kw_only=True):
    """How complete the evidence behind a verdict is.

    Attributes:
        status: ``complete``, or ``incomplete``.
        notes: why it is incomplete, e.g. ``tail unknown``, ``overflow``.
        lost: sequences that never came (bounded; ``lost_count`` has the whole number).
        late: sequences that came after they had been given up.
        lost_count, late_count, duplicate_count, violation_count: totals.
        nonfinite_count: NaN or infinite values seen in actions, observations and rewards (events, not elements).
    """

    status: str
    notes: tuple[str, ...]
    lost: tuple[SequenceRange, ...]
    late: tuple[SequenceRange, ...]
    lost_count: int
    late_count: int
    duplicate_count: int
    violation_count: int
    nonfinite_count: int


class Provenance(Value, frozen=True, kw_only=True):
    """Where a verdict comes from: enough to make it again.

    Attributes:
        partition, first_offset, last_offset: the records that were folded, in ``stepwell.episode-events``.
        fold_hash: version of the state machine and its configuration (hex).
        rule_set: name and version of the step rules.
        schema_fingerprints: fingerprints (hex) of the schemas of the folded records, sorted.
        seed, checkpoint, simulator, simulator_version, adapter_version, environment_digest: as the producers report;
            empty where the fact that says so never came.
    """

    partition: int
    first_offset: int
    last_offset: int
    fold_hash: str
    rule_set: str
    schema_fingerprints: tuple[str, ...]
    seed: int | None
    checkpoint: str | None
    simulator: str
    simulator_version: str
    adapter_version: str
    environment_digest: str


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
    autonomous: bool
    n_steps: int
    total_reward: float
    success_at_end: bool | None = None
    success_once: bool | None = None
    metrics: tuple[Metric, ...]
    certificate: Certificate
    provenance: Provenance


# --- from failures to training ------------------------------------------------------------------------------------


class EvidenceEpisode(Value, frozen=True, kw_only=True):
    """One episode that a trigger rests on, with where its verdict stands in ``stepwell.policy-events``."""

    episode_id: str
    attempt: int
    revision: int
    partition: int
    offset: int
    scene: str
    perturbation: str
    seed: int
    n_steps: int


class PatternDetected(Event, frozen=True, kw_only=True):
    """A rule saw its pattern. ``trigger_id`` is derived from rule, version, key and the opening evidence."""

    TYPE = "failure::pattern_detected"
    PRODUCER = "engine"

    trigger_id: str
    rule: str
    rule_version: int
    rule_key: str
    """What the rule was judged for, e.g. ``policy=reach-expert``."""
    policy: str
    policy_version: str
    checkpoint: str | None = None
    failure_type: str
    evidence: tuple[EvidenceEpisode, ...]
    promise: str
    """What the rule promises, in words."""


class SamplingWeight(Value, frozen=True, kw_only=True):
    """A proposed share of new training data for one scene and perturbation; the weights of a request sum to 1."""

    scene: str
    perturbation: str
    weight: float


class RetrainRequested(Event, frozen=True, kw_only=True):
    """Please retrain: policy, pattern, evidence and a proposal. One effect per ``trigger_id``."""

    TYPE = "retrain::requested"
    PRODUCER = "engine"

    trigger_id: str
    rule: str
    rule_version: int
    rule_key: str
    policy: str
    policy_version: str
    checkpoint: str | None = None
    failure_type: str
    evidence: tuple[EvidenceEpisode, ...]
    sampling_weights: tuple[SamplingWeight, ...]
    requested_by: str


class RetrainWithdrawn(Event, frozen=True, kw_only=True):
    """Verdicts were amended and the trigger lost its evidence."""

    TYPE = "retrain::withdrawn"
    PRODUCER = "engine"

    trigger_id: str
    policy: str
    reason: str


class RetrainAnswered(Event, frozen=True, kw_only=True):
    """A training service answers a request."""

    TYPE = "retrain::answered"
    PRODUCER = "trainer"

    trigger_id: str
    policy: str
    status: str
    """``accepted``, ``done``, ``failed`` or ``rejected``."""
    new_checkpoint: str | None = None
    detail: str


class CommandIssued(Event, frozen=True, kw_only=True):
    """An operator asks a host for something; the host answers with facts."""

    TYPE = "operator::commanded"
    PRODUCER = "operator"

    command_id: str
    kind: str
    """``pause``, ``resume``, ``retry``, ``abort`` or ``intervene``."""
    arguments_json: str
    issued_by: str


# --- records that are no events (no head) -------------------------------------------------------------------------


class HeaderField(Value, frozen=True, kw_only=True):
    """One header of a log record."""

    name: str
    value: bytes | None


class DeadLetter(Value, frozen=True, kw_only=True):
    """A record that could not be used, kept whole, with where it stood and why it was refused.

    ``kind`` is ``unreadable`` (no event in it), ``after_seal`` (came too late), ``violation`` (breaks the protocol;
    the fold went on), or ``refused`` (the database would not take its rows).
    """

    TYPE: ClassVar[str] = "engine::dead_lettered"

    kind: str
    reason: str
    """Short stable code, e.g. ``trailing-bytes`` or ``foreign``."""
    detail: str
    source_topic: str
    source_partition: int
    source_offset: int
    source_timestamp: int
    """Broker time of the record (µs)."""
    source_key: bytes | None
    source_value: bytes | None
    source_headers: tuple[HeaderField, ...]
    episode_id: str | None = None
    attempt: int | None = None
    event_type: str | None = None
    reported_by: str


class SnapshotTaken(Value, frozen=True, kw_only=True):
    """A folded attempt, on the compacted snapshot topic (key: ``episode_id/attempt``).

    ``state`` is opaque outside the engine (empty for a seal marker); the columns beside it feed the status tables.
    """

    TYPE: ClassVar[str] = "engine::snapshot_taken"

    run_id: str
    episode_id: str
    attempt: int
    kind: str
    """``snapshot`` or ``sealed``."""
    fold_hash: str
    partition: int
    first_offset: int
    last_offset: int
    phase: str
    """The state machine's state, e.g. ``AGENT_RUNNING``."""
    paused: bool
    since_at: int
    """When it entered that phase, by the log's time (µs)."""
    owes: str | None
    """The producer that owes the next event; None once ended."""
    owes_seq: int | None
    next_step: int
    last_event_at: int
    outcome: str | None
    revision: int
    state: bytes


class PositionSaved(Value, frozen=True, kw_only=True):
    """From where a partition must be folded again after a restart (key: ``checkpoint/<partition>``)."""

    TYPE: ClassVar[str] = "engine::position_saved"

    topic: str
    partition: int
    rewind_offset: int
    committed_offset: int
    fold_hash: str


class Attribute(Value, frozen=True, kw_only=True):
    """One attribute of a telemetry sample."""

    name: str
    value: str


class TelemetryPoint(Value, frozen=True, kw_only=True):
    """One measured number. ``unit`` is a UCUM code as OpenTelemetry uses it (``1``, ``s``, ``By``, ``Cel``, ``W``)."""

    metric: str
    unit: str
    value: float
    attributes: tuple[Attribute, ...]


class TelemetrySampled(Value, frozen=True, kw_only=True):
    """Samples that one worker took at one moment (key: ``episode_id`` or ``worker_id``)."""

    TYPE: ClassVar[str] = "telemetry::sampled"

    worker_id: str
    host: str
    episode_id: str | None = None
    attempt: int | None = None
    sampled_at: int
    sample_seq: int
    points: tuple[TelemetryPoint, ...]


LogRecord = Event | DeadLetter | SnapshotTaken | PositionSaved | TelemetrySampled
"""Everything that Stepwell writes to a topic."""
