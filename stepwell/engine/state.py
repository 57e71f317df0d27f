"""What the fold knows of an attempt: mutable, compact, bounded.

One `AttemptState` per (episode, attempt), three `ProducerState` in it. All are msgspec structs laid out as arrays, so a
snapshot is one encoding call and exact to the bit (floats, NaN included).

Bounds: per producer at most `HOLD_LIMIT` held facts and as many digests; at most `LIST_LIMIT` entries in each list,
then a count; at most `ACTION_LIMIT` actions whose steps have not passed, of which step rules keep at most
`stepwell.engine.steps.signals.READ_MAX` bytes each.
"""

from typing import Final, NamedTuple

import msgspec

from stepwell.engine.facts import EndFact, Fact, ReadyFact, RequestFact, StartFact
from stepwell.engine.machine import STATES
from stepwell.engine.steps.memory import KeptAction, StepMemory

HOLD_LIMIT: Final = 64
"""H: facts that a producer may have waiting, and how far back a repeat can be told from an equivocation."""
LIST_LIMIT: Final = 64
"""Entries kept per list; after that only a count."""
ACTION_LIMIT: Final = 256
"""Actions kept whose steps have not passed. A step that names an older one is believed."""
NUMBER_LIMIT: Final = 2**53
"""Sequences and steps above this are nonsense."""

SIM: Final = 0
AGENT: Final = 1
HOST: Final = 2
PRODUCERS: Final = ("sim", "agent", "host")

PREVIOUS_OPEN: Final = 0
"""The end of the attempt before does not stand in the log yet."""
PREVIOUS_FAILED: Final = 1
"""It stands, and is no success: a retry is accepted."""
PREVIOUS_SUCCEEDED: Final = 2
PREVIOUS_GIVEN_UP: Final = 3
"""Waited for too long."""


class Position(NamedTuple):
    """Where a record stands in the log.

    Attributes:
        partition, offset: in ``stepwell.episode-events``.
        timestamp: the log's time of append (µs).
        fingerprint: fingerprint (hex) of the schema it was written with.
        digest: digest of the event's content (`stepwell.engine.fold.content_digest` of the record's value). 0: the fold
            takes it from the event. Within one attempt use one way throughout.
        rules: the step rules in force there (`stepwell.engine.ruleset.RuleSet.steps_canonical`): an attempt keeps those
            of its first record. Empty: none.
    """

    partition: int
    offset: int
    timestamp: int
    fingerprint: str
    digest: int = 0
    rules: str = ""


class Held(msgspec.Struct, array_like=True):
    """A fact that waits, with where it stands in the log."""

    fact: Fact
    digest: int
    offset: int
    timestamp: int
    event_type: str
    producer_id: str


class ProducerState(msgspec.Struct, array_like=True):
    """One producer of an attempt.

    Attributes:
        index: `SIM`, `AGENT` or `HOST`.
        producer_id: the incarnation whose facts count; None before the first.
        next_seq: every sequence below has been applied or is lost.
        limit: the last sequence, as the end that was applied names it.
        digests: of the last `HOLD_LIMIT` sequences, slot ``seq % HOLD_LIMIT``; -1 where lost.
        held: facts that wait, by sequence.
        lost, late: ranges [first, last], ascending. What is late is no longer lost.
        lost_count, late_count: sequences, listed or not.
        unlisted: sequences that were lost but are in no list, for want of room.
    """

    index: int
    producer_id: str | None = None
    next_seq: int = 0
    limit: int | None = None
    digests: list[int] = msgspec.field(default_factory=lambda: [-1] * HOLD_LIMIT)
    held: dict[int, Held] = msgspec.field(default_factory=dict)
    lost: list[list[int]] = msgspec.field(default_factory=list)
    late: list[list[int]] = msgspec.field(default_factory=list)
    lost_count: int = 0
    late_count: int = 0
    unlisted: int = 0

    @property
    def name(self) -> str:
        """``sim``, ``agent`` or ``host``."""
        return PRODUCERS[self.index]


class Violation(msgspec.Struct, array_like=True):
    """A fact that broke the protocol. ``offset`` -1 where the record is not at hand any more."""

    code: str
    event_type: str
    producer: str
    producer_id: str
    seq: int
    digest: int
    offset: int


class AttemptState(msgspec.Struct, array_like=True):
    """Everything that the fold knows of one attempt. See the module's words and ``docs/state-machine.md``."""

    episode_id: str
    attempt: int
    run_id: str
    trace_id: str
    partition: int
    first_offset: int
    last_offset: int
    sim: ProducerState
    agent: ProducerState
    host: ProducerState
    state: int = 0
    """Index into `stepwell.engine.machine.STATES`: the live state, beneath an end as well."""
    end_state: int = -1
    """The final state, or -1."""
    paused: bool = False
    pause_unknown: bool = False
    flips: int = 0
    """Pauses and resumes applied."""
    held_count: int = 0
    """Held facts of all producers."""

    # Steps and coverage.
    first_step: int = 0
    next_step: int = 0
    covered_to: int = 0
    ready: bool = False
    """``sim::ready`` was applied or is lost."""
    coverage_unknown: bool = False
    may_skip: bool = False
    """Facts of the simulator were lost since its last step."""
    actions: dict[int, list[int]] = msgspec.field(default_factory=dict)
    """Sequence -> [first step, step after the last, 1 once a step named it], of actions whose steps have not passed."""
    actions_forgotten_to: int = 0
    """Actions below this sequence were dropped for want of room."""

    # What was said.
    request: RequestFact | None = None
    claimed: bool = False
    claimed_at: int | None = None
    ready_fact: ReadyFact | None = None
    start_fact: StartFact | None = None
    end: EndFact | None = None
    previous: int = PREVIOUS_OPEN
    interventions: int = 0
    checkpoints: int = 0
    last_checkpoint: tuple[int | None, str] | None = None
    """Step and URI."""

    # Numbers, added in each producer's order.
    steps: int = 0
    actions_applied: int = 0
    actions_executed: int = 0
    total_reward: float = 0.0
    max_reward: float | None = None
    success_once: bool | None = None
    success_last: bool | None = None
    step_wall_total_s: float = 0.0
    step_wall_count: int = 0
    inference_total_s: float = 0.0
    inference_count: int = 0
    last_sim_time: float | None = None
    nonfinite_actions: int = 0
    nonfinite_observations: int = 0
    nonfinite_rewards: int = 0
    nonfinite_events: int = 0

    # Evidence.
    fingerprints: list[str] = msgspec.field(default_factory=list)
    fingerprints_unlisted: bool = False
    violations: list[Violation] = msgspec.field(default_factory=list)
    violation_count: int = 0
    duplicate_count: int = 0
    stale_count: int = 0
    lost_claims: int = 0
    overflow: bool = False

    # The log's time (µs) and revisions.
    since_at: int = 0
    """When it entered its phase."""
    owed_since: int = 0
    """Since when the owed fact is owed."""
    changed_at: int = 0
    """When a fact was last accepted (applied or held, or late)."""
    last_event_at: int = 0
    end_stands_at: int | None = None
    """When an end first stood in the log, applied or held."""
    stalled: bool = False
    sealed: bool = False
    seal_reason: str = ""
    revision: int = 0
    """Changes of the verdict's content so far; 0: no verdict yet."""
    content: bytes = b""
    """Digest of the content of that revision."""
    published: int = 0
    """The last revision that the worker has published."""
    announced: bool = False
    """Whether the worker has published that a verdict is to be expected."""

    # Step rules.
    rules: str = ""
    """Those that judge it, from its first record to its end; see `Position`."""
    step_memory: StepMemory | None = None
    """What they remember; None before the first moment."""
    kept_actions: dict[int, KeptAction] = msgspec.field(default_factory=dict)
    """Sequence -> what they read of an action, for those in ``actions``."""

    @property
    def phase(self) -> str:
        """The state as users see it: the final one once ended."""
        return STATES[self.state if self.end_state < 0 else self.end_state]

    @property
    def ended(self) -> bool:
        """Whether an end was applied."""
        return self.end_state >= 0

    def producers(self) -> tuple[ProducerState, ProducerState, ProducerState]:
        """Simulator, agent, host."""
        return self.sim, self.agent, self.host


class SealedAttempt(msgspec.Struct, array_like=True, frozen=True):
    """All that stays in memory of an attempt that was sealed."""

    episode_id: str
    attempt: int
    outcome: str
    revision: int
    last_offset: int


class EpisodeState(msgspec.Struct):
    """The attempts of one episode, each a fold of its own."""

    episode_id: str
    attempts: dict[int, AttemptState | SealedAttempt] = msgspec.field(default_factory=dict)


def new_attempt(episode_id: str, attempt: int, run_id: str, trace_id: str, position: Position) -> AttemptState:
    """An attempt of which nothing is known yet, first heard of at ``position``."""
    return AttemptState(
        episode_id=episode_id,
        attempt=attempt,
        run_id=run_id,
        trace_id=trace_id,
        partition=position.partition,
        first_offset=position.offset,
        last_offset=position.offset,
        sim=ProducerState(SIM),
        agent=ProducerState(AGENT),
        host=ProducerState(HOST),
        since_at=position.timestamp,
        owed_since=position.timestamp,
        changed_at=position.timestamp,
        last_event_at=position.timestamp,
        previous=PREVIOUS_FAILED if attempt <= 1 else PREVIOUS_OPEN,
        rules=position.rules,
    )
