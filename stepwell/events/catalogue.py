"""The catalogue: every record type, its class, its Avro name, its schema file and its home topic.

Names are mechanical, so that nobody has to look them up: ``sim::step_done`` is the Avro record
``stepwell.sim.StepDone`` in ``schemas/sim.step_done.avsc``. (``::`` is illegal in Avro names.)
"""

from dataclasses import dataclass

from stepwell.events import model, topics
from stepwell.events.model import Event, LogRecord, Producer

RecordClass = type[LogRecord]


@dataclass(frozen=True, slots=True)
class Entry:
    """One record type.

    Attributes:
        type: the type's name on the wire (``ce_type``), e.g. ``sim::step_done``.
        cls: the Python class.
        producer: who may write it; None for records without a head.
        topic: where it goes unless a caller says otherwise.
    """

    type: str
    cls: RecordClass
    producer: Producer | None
    topic: str

    @property
    def avro_name(self) -> str:
        """Full name of the Avro record, e.g. ``stepwell.sim.StepDone``."""
        room, _, name = self.type.partition("::")
        return f"stepwell.{room}." + "".join(word.title() for word in name.split("_"))

    @property
    def file(self) -> str:
        """Name of the file of the current schema, e.g. ``sim.step_done.avsc``."""
        return self.type.replace("::", ".") + ".avsc"

    @property
    def is_event(self) -> bool:
        """Whether records of this type carry the head of `stepwell.events.model.Event`."""
        return issubclass(self.cls, Event)


_HOMES: dict[RecordClass, str] = {
    model.EpisodeRequested: topics.EPISODE_EVENTS,
    model.RetryRequested: topics.EPISODE_EVENTS,
    model.EpisodeClaimed: topics.EPISODE_EVENTS,
    model.SimReady: topics.EPISODE_EVENTS,
    model.AgentStarted: topics.EPISODE_EVENTS,
    model.ActionSent: topics.EPISODE_EVENTS,
    model.StepDone: topics.EPISODE_EVENTS,
    model.EpisodeEnded: topics.EPISODE_EVENTS,
    model.EpisodeFailed: topics.EPISODE_EVENTS,
    model.EpisodeAborted: topics.EPISODE_EVENTS,
    model.EpisodePaused: topics.EPISODE_EVENTS,
    model.EpisodeResumed: topics.EPISODE_EVENTS,
    model.CheckpointSaved: topics.EPISODE_EVENTS,
    model.EpisodeIntervened: topics.EPISODE_EVENTS,
    model.EpisodeStalled: topics.EPISODE_EVENTS,
    model.EpisodeTimedOut: topics.EPISODE_EVENTS,
    model.EpisodeSealed: topics.EPISODE_EVENTS,
    model.VerdictIssued: topics.POLICY_EVENTS,
    model.VerdictExpected: topics.POLICY_EVENTS,
    model.RulesActivated: topics.RULE_SETS,
    model.DetectorTicked: topics.POLICY_EVENTS,
    model.PatternDetected: topics.FAILURE_PATTERNS,
    model.RetrainRequested: topics.RETRAIN_REQUESTS,
    model.RetrainWithdrawn: topics.RETRAIN_REQUESTS,
    model.RetrainExpired: topics.RETRAIN_REQUESTS,
    model.RetrainAnswered: topics.RETRAIN_RESULTS,
    model.RetrainAcknowledged: topics.POLICY_EVENTS,
    model.RetrainMuted: topics.POLICY_EVENTS,
    model.RetrainUnmuted: topics.POLICY_EVENTS,
    model.CommandIssued: topics.EPISODE_COMMANDS,
    model.DeadLetter: topics.DEAD_LETTERS,
    model.SnapshotTaken: topics.EPISODE_SNAPSHOTS,
    model.PositionSaved: topics.EPISODE_SNAPSHOTS,
    model.PolicySnapshot: topics.POLICY_SNAPSHOTS,
    model.TelemetrySampled: topics.TELEMETRY,
    model.SpansEnded: topics.TELEMETRY,
    model.WorkerReported: topics.TELEMETRY,
}

CATALOGUE: tuple[Entry, ...] = tuple(
    Entry(type=cls.TYPE, cls=cls, producer=cls.PRODUCER if issubclass(cls, Event) else None, topic=topic)
    for cls, topic in _HOMES.items()
)
BY_TYPE: dict[str, Entry] = {entry.type: entry for entry in CATALOGUE}
BY_CLASS: dict[type[LogRecord], Entry] = {entry.cls: entry for entry in CATALOGUE}
BY_AVRO_NAME: dict[str, Entry] = {entry.avro_name: entry for entry in CATALOGUE}
