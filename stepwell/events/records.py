"""Records that stand on topics but are no events: they concern records and workers, and carry no event head."""

from typing import ClassVar

from stepwell.events.values import Value


class HeaderField(Value, frozen=True, kw_only=True):
    """One header of a log record."""

    name: str
    value: bytes | None


class DeadLetter(Value, frozen=True, kw_only=True):
    """A record that could not be used, kept whole, with where it stood and why it was refused.

    ``kind`` is ``unreadable`` (no event in it), ``after_seal`` (came too late), ``violation`` (breaks the protocol;
    the fold went on), ``rule_failed`` (a detection rule raised on it and is parked; the others went on), or ``refused``
    (the database would not take its rows).
    """

    TYPE: ClassVar[str] = "engine::dead_lettered"

    kind: str
    reason: str
    """Short stable code, e.g. ``trailing-bytes`` or ``foreign``; of ``rule_failed`` the name of the rule."""
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
    rules_json: str = ""
    """Of ``stepwell.policy-events`` the rule set in force at the rewind offset, empty: the one that is built in. Of
    ``stepwell.episode-events`` the step rules in force there and at the first record of the oldest open attempt, as
    `stepwell.engine.steps.in_force` writes them; empty: none."""


class PolicySnapshot(Value, frozen=True, kw_only=True):
    """What the detector has folded of one policy, on the compacted topic ``stepwell.policy-snapshots``.

    A cache of a fold that can be repeated: ``state`` is opaque outside the detector.
    """

    TYPE: ClassVar[str] = "engine::policy_snapshot"

    policy: str
    partition: int
    last_offset: int
    """The last record of ``stepwell.policy-events`` that it holds."""
    detector_hash: str
    state: bytes
