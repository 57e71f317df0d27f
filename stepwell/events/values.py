"""What events are made of: arrays, metrics, certificates, evidence. Immutable, compared by content."""

import msgspec

Headers = tuple[tuple[str, bytes | None], ...]
"""Headers of a log record, in order."""


class Value(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A part of an event: immutable, compared by content.

    ``gc=False``: a value cannot refer to itself, so the cycle collector need not look at it.
    """


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


class EvidenceEpisode(Value, frozen=True, kw_only=True):
    """One episode that a trigger rests on, with where its verdict and its facts stand.

    Attributes:
        partition, offset: of the verdict, in ``stepwell.policy-events``.
        events_partition, first_offset, last_offset: of the facts, in ``stepwell.episode-events``; -1 where not known.
    """

    episode_id: str
    attempt: int
    revision: int
    partition: int
    offset: int
    scene: str
    perturbation: str
    seed: int
    n_steps: int
    task: str = ""
    events_partition: int = -1
    first_offset: int = -1
    last_offset: int = -1


class SamplingWeight(Value, frozen=True, kw_only=True):
    """A proposed share of new training data for one scene and perturbation; the weights of a request sum to 1."""

    scene: str
    perturbation: str
    weight: float
