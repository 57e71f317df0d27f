"""The detector's worker: folds ``stepwell.policy-events`` and publishes what the rules find, exactly once.

Answers of training services stand on ``stepwell.retrain-results``. Each is copied into policy-events first and acted
on only when it is read from there: so that the order in which the detector saw answers and verdicts is recorded, and
folding policy-events alone always gives the same ledger.

On assignment a partition is folded silently from the start to the committed position. Verdicts are few (one episode, a
few hundred bytes), so this is quick for a long time; see docs/decisions/0031.
"""

from typing import Protocol

from stepwell.engine.detector import Detector, PolicyState, dump, policy_of
from stepwell.engine.loop import Processor
from stepwell.engine.ports import Consumer, MessageLog, OutgoingRecord, RecordBatch, TopicPartition
from stepwell.engine.publish import dead_letter, outgoing, outgoing_letter
from stepwell.engine.reading import read_range
from stepwell.events.model import DeadLetter, Event, Headers, LogRecord, RetrainAnswered
from stepwell.events.routing import topic_of
from stepwell.events.topics import POLICY_EVENTS, RETRAIN_RESULTS
from stepwell.exceptions import EventError, PositionLostError

GROUP = "stepwell-detector"
TOPICS = (POLICY_EVENTS, RETRAIN_RESULTS)


class EventCodec(Protocol):
    """What the workers need of `stepwell.events.codec.Codec`."""

    def encode(self, record: LogRecord) -> tuple[bytes, Headers]:
        """The record's bytes and headers."""

    def decode(self, value: bytes | None, headers: Headers) -> LogRecord:
        """The record behind a value and its headers."""

    def decode_event(self, value: bytes | None, headers: Headers) -> Event:
        """As `decode`, for topics that hold events only."""


class Place:
    """Where an event stands in policy-events. One object is reused for a whole batch."""

    __slots__ = ("offset", "partition", "timestamp")

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.offset = 0
        self.timestamp = 0


class PolicyPartition(Processor):
    """All policies of one partition of policy-events."""

    def __init__(
        self, source: TopicPartition, position: int, codec: EventCodec, detector: Detector, worker_id: str
    ) -> None:
        self.position = position
        self.states: dict[str, PolicyState] = {}
        self._source = source
        self._codec = codec
        self._detector = detector
        self._worker_id = worker_id

    def process(self, batch: RecordBatch, now_us: int) -> list[OutgoingRecord]:
        """Fold a batch; what the rules found, and dead letters for what could not be read."""
        del now_us  # all time comes from the log
        return [
            outgoing_letter(self._codec, record) if isinstance(record, DeadLetter) else outgoing(self._codec, record)
            for record in self.fold(batch)
        ]

    def fold(self, batch: RecordBatch) -> list[LogRecord]:
        """Fold a batch; what would be published."""
        out: list[LogRecord] = []
        place = Place(batch.source.partition)
        for index in range(len(batch)):
            try:
                event = self._codec.decode_event(batch.values[index], batch.headers[index])
            except EventError as error:
                out.append(
                    dead_letter(
                        batch,
                        index,
                        kind="unreadable",
                        reason=error.reason,
                        detail=str(error),
                        reported_by=self._worker_id,
                    )
                )
                continue
            policy = policy_of(event)
            if not policy:
                continue
            place.offset, place.timestamp = batch.offsets[index], batch.timestamps[index]
            state = self.states.get(policy)
            if state is None:
                state = self.states[policy] = PolicyState(policy)
            out += self._detector.apply(state, event, place)
        self.position = batch.end
        return out

    def ledger_bytes(self) -> dict[str, bytes]:
        """The state of each policy as canonical bytes, for comparing."""
        return {policy: dump(state) for policy, state in sorted(self.states.items())}


class AnswersPartition(Processor):
    """Copies one partition of retrain-results into policy-events, byte for byte."""

    def __init__(self, position: int, codec: EventCodec, worker_id: str) -> None:
        self.position = position
        self._codec = codec
        self._worker_id = worker_id

    def process(self, batch: RecordBatch, now_us: int) -> list[OutgoingRecord]:
        """Copy what is an answer; everything else is a dead letter."""
        del now_us
        out: list[OutgoingRecord] = []
        for index in range(len(batch)):
            value, headers = batch.values[index], batch.headers[index]
            try:
                event = self._codec.decode_event(value, headers)
            except EventError as error:
                reason, detail = error.reason, str(error)
            else:
                if isinstance(event, RetrainAnswered):
                    out.append(OutgoingRecord(POLICY_EVENTS, event.policy.encode(), value, headers))
                    continue
                reason, detail = "wrong-topic", f"{event.TYPE} belongs on {topic_of(event)}"
            letter = dead_letter(
                batch, index, kind="unreadable", reason=reason, detail=detail, reported_by=self._worker_id
            )
            out.append(outgoing_letter(self._codec, letter))
        self.position = batch.end
        return out


class DetectorRestore:
    """Makes the processors of the detector's partitions; see `stepwell.engine.loop.Restore`."""

    def __init__(self, log: MessageLog, codec: EventCodec, worker_id: str, detector: Detector | None = None) -> None:
        self._log = log
        self._codec = codec
        self._worker_id = worker_id
        self._detector = detector or Detector()

    def __call__(
        self, source: TopicPartition, committed: int | None, consumer: Consumer
    ) -> PolicyPartition | AnswersPartition:
        """The state at the committed position.

        Raises:
            PositionLostError: the start of policy-events is gone, and with it the ledger.
        """
        low = consumer.watermarks(source).low
        position = low if committed is None else committed
        if source.topic == RETRAIN_RESULTS:
            return AnswersPartition(position, self._codec, self._worker_id)
        if low > 0 and committed is not None:
            raise PositionLostError(
                f"{source.topic}/{source.partition} starts at offset {low}, so what the detector folded before cannot "
                "be folded again; set its retention.ms to -1 and restore the topic from a backup"
            )
        partition = PolicyPartition(source, low, self._codec, self._detector, self._worker_id)
        for batch in read_range(self._log, source, low, position):
            partition.fold(batch)
        partition.position = position
        return partition
