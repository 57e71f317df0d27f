"""Where a record goes: topic and key.

Records with one key stay in order, in one partition; so everything about an episode has the episode's id as its key,
and everything that is judged per policy has the policy's name.

What concerns a whole partition (rules that take effect, a tick) is sent to that partition by number, and its key says
so: ``rules/2`` (`partition_key`). Such keys are never used to choose a partition.
"""

from stepwell.events import model, topics
from stepwell.events.catalogue import BY_CLASS
from stepwell.events.guards import LETTER_KEY_MAX
from stepwell.events.model import Event, LogRecord
from stepwell.exceptions import EncodeError

_KEYED_BY_POLICY = (
    model.VerdictIssued,
    model.VerdictExpected,
    model.PatternDetected,
    model.RetrainRequested,
    model.RetrainWithdrawn,
    model.RetrainAnswered,
    model.RetrainExpired,
    model.RetrainAcknowledged,
    model.RetrainMuted,
    model.RetrainUnmuted,
)

PARTITION_WIDE: dict[type[LogRecord], str] = {model.RulesActivated: "rules", model.DetectorTicked: "tick"}
"""What concerns whole partitions, and the first part of its key."""


def topic_of(record: LogRecord) -> str:
    """The record's home topic. A position's is that of the snapshots of the topic which it is about.

    Raises:
        EncodeError: the record's class is not in the catalogue.
    """
    entry = BY_CLASS.get(type(record))
    if entry is None:
        raise EncodeError(f"{type(record).__name__} is no record type of the catalogue", reason="unknown-type")
    if type(record) is model.PositionSaved and record.topic == topics.POLICY_EVENTS:
        return topics.POLICY_SNAPSHOTS
    return entry.topic


def key_of(record: LogRecord) -> bytes:
    """The record's key: which records it must stay in order with.

    A dead letter keeps its source's key (empty where that had none), of a very long one the first bytes.
    """
    match record:
        case model.SnapshotTaken():
            return f"{record.episode_id}/{record.attempt}".encode()
        case model.PositionSaved():
            return f"checkpoint/{record.partition}".encode()
        case model.PolicySnapshot():
            return f"policy/{record.policy}".encode()
        case model.RulesActivated() | model.DetectorTicked():
            return PARTITION_WIDE[type(record)].encode()
        case model.DeadLetter():
            return (record.source_key or b"")[:LETTER_KEY_MAX]
        case model.TelemetrySampled() | model.SpansEnded():
            return (record.episode_id or record.worker_id).encode()
        case model.WorkerReported():
            return record.worker_id.encode()
        case Event():
            # A class pattern per policy type would read nicer, but this runs once per event written.
            return (record.policy if isinstance(record, _KEYED_BY_POLICY) else record.episode_id).encode()


def partition_key(record: LogRecord, partition: int) -> bytes:
    """The key under which a record of `PARTITION_WIDE` stands in a partition that it concerns, e.g. ``rules/2``."""
    return f"{PARTITION_WIDE[type(record)]}/{partition}".encode()
