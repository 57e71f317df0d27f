"""The detector's worker: folds ``stepwell.policy-events`` and publishes what the rules find, exactly once.

Answers of training services stand on ``stepwell.retrain-results``. Each is copied into policy-events first and acted
on only when it is read from there: so that the order in which the detector saw answers and verdicts is recorded, and
folding policy-events alone always gives the same ledger.

On assignment a partition is folded silently from the start to the committed position. Verdicts are few (one episode, a
few hundred bytes), so this is quick for a long time; see docs/decisions/0031.
"""

from collections.abc import Sequence
from copy import deepcopy

from stepwell.engine.detector import Detector, PolicyState, dump, policy_of
from stepwell.engine.doubt import Suspects, in_doubt, unexpected
from stepwell.engine.loop import Processor
from stepwell.engine.ports import Consumer, EventCodec, MessageLog, OutgoingRecord, RecordBatch, TopicPartition
from stepwell.engine.publish import check_size, dead_letter, outgoing, outgoing_letter
from stepwell.engine.reading import read_range
from stepwell.events.model import DeadLetter, Event, LogRecord, RetrainAnswered
from stepwell.events.routing import topic_of
from stepwell.events.topics import POLICY_EVENTS, RETRAIN_RESULTS
from stepwell.exceptions import EncodeError, EventError, PositionLostError

GROUP = "stepwell-detector"
TOPICS = (POLICY_EVENTS, RETRAIN_RESULTS)


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
        self,
        source: TopicPartition,
        position: int,
        codec: EventCodec,
        detector: Detector,
        worker_id: str,
        suspects: Suspects[str] | None = None,
    ) -> None:
        self.position = position
        self.states: dict[str, PolicyState] = {}
        self._source = source
        self._codec = codec
        self._detector = detector
        self._worker_id = worker_id
        self._suspects: Suspects[str] = Suspects() if suspects is None else suspects

    def process(self, batch: RecordBatch, now_us: int) -> list[OutgoingRecord]:
        """Fold a batch; what the rules found, and dead letters for what could not be read or written."""
        del now_us  # all time comes from the log
        out: list[OutgoingRecord] = []
        for index, record in self.fold(batch):
            if isinstance(record, DeadLetter):
                out.append(outgoing_letter(self._codec, record))
                continue
            try:
                out.append(outgoing(self._codec, record))
            except EncodeError as error:
                detail = f"what follows from it cannot be written: {error}"
                letter = dead_letter(
                    batch, index, kind="refused", reason=error.reason, detail=detail, reported_by=self._worker_id
                )
                out.append(outgoing_letter(self._codec, letter))
        return out

    def fold(self, batch: RecordBatch) -> list[tuple[int, LogRecord]]:
        """Fold a batch; what would be published, each with the index of the record that it follows from.

        Raises:
            StateDoubtError: a rule raised; restore, and fold again with the same suspects.
        """
        out: list[tuple[int, LogRecord]] = []
        place = Place(batch.source.partition)
        for index in range(len(batch)):
            try:
                event = self._codec.decode_event(batch.values[index], batch.headers[index])
                policy = policy_of(event)
                if not policy:
                    continue
                place.offset, place.timestamp = batch.offsets[index], batch.timestamps[index]
                found = self._apply(policy, event, place)
            except EventError as error:
                letter = dead_letter(
                    batch,
                    index,
                    kind="unreadable",
                    reason=error.reason,
                    detail=str(error),
                    reported_by=self._worker_id,
                )
                out.append((index, letter))
                continue
            out += [(index, record) for record in found]
        self.position = batch.end
        return out

    def _apply(self, policy: str, event: Event, place: Place) -> Sequence[Event]:
        """Fold the policy's next event; see `stepwell.engine.doubt` for what happens where a rule raises."""
        state = self.states.get(policy)
        if state is None:
            state = self.states[policy] = PolicyState(policy)
        kept = deepcopy(state) if policy in self._suspects else None
        try:
            return self._detector.apply(state, event, place)
        except MemoryError:
            raise
        except Exception as error:
            if kept is None:
                self._suspects.add(policy)
                raise in_doubt(f"{self._source.topic}/{place.partition} offset {place.offset}", error) from error
            self.states[policy] = kept
            raise unexpected(event.TYPE, error) from error

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
            kind = "unreadable"
            try:
                event = self._codec.decode_event(value, headers)
            except EventError as error:
                reason, detail = error.reason, str(error)
            else:
                if isinstance(event, RetrainAnswered):
                    copied = OutgoingRecord(POLICY_EVENTS, event.policy.encode(), value, headers)
                    try:
                        check_size(copied)
                    except EncodeError as error:
                        kind, reason, detail = "refused", error.reason, f"the copy under its policy's key: {error}"
                    else:
                        out.append(copied)
                        continue
                else:
                    reason, detail = "wrong-topic", f"{event.TYPE} belongs on {topic_of(event)}"
            letter = dead_letter(batch, index, kind=kind, reason=reason, detail=detail, reported_by=self._worker_id)
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
        self._suspects: Suspects[str] = Suspects()

    def __call__(
        self, source: TopicPartition, committed: int | None, consumer: Consumer
    ) -> PolicyPartition | AnswersPartition:
        """The state at the committed position.

        Raises:
            PositionLostError: the start of policy-events is gone, and with it the ledger.
            StateDoubtError: a rule raised; restore once more.
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
        partition = PolicyPartition(source, low, self._codec, self._detector, self._worker_id, self._suspects)
        for batch in read_range(self._log, source, low, position):
            partition.fold(batch)
        partition.position = position
        return partition
