"""Taking a partition of the detector over: to the state of its last owner, without saying anything twice.

1. The committed position (stable: an open transaction of the last owner is waited out, or was ended by taking over its
   transactional id).
2. The partition of ``stepwell.policy-snapshots`` to its end: of each policy the latest snapshot, and the rewind offset
   with the rules in force there.
3. ``stepwell.policy-events`` from the rewind offset to the committed position, folded silently; each policy skips what
   its snapshot holds. Where snapshots are another version's, or cannot be read, all is folded from the start.

Nothing is ever reset: where a needed record is below the log's start, `PositionLostError` says so.
"""

from stepwell.engine.detection.answers import AnswersPartition
from stepwell.engine.detection.partition import PolicyPartition
from stepwell.engine.detection.state import DETECTOR_HASH
from stepwell.engine.doubt import Suspects
from stepwell.engine.ports import Consumer, EventCodec, MessageLog, TopicPartition
from stepwell.engine.reading import read_range
from stepwell.engine.vitals import Unwatched, Vitals
from stepwell.events.model import PolicySnapshot, PositionSaved
from stepwell.events.topics import POLICY_EVENTS, POLICY_SNAPSHOTS, RETRAIN_RESULTS
from stepwell.exceptions import EventError, LogError, PositionLostError

GROUP = "stepwell-detector"
TOPICS = (POLICY_EVENTS, RETRAIN_RESULTS)

SETTLE_TRIES = 5


class _Saved:
    """What the snapshot topic says of one partition."""

    def __init__(self) -> None:
        self.position: PositionSaved | None = None
        self.latest: dict[str, PolicySnapshot] = {}
        self.readable = True

    @property
    def usable(self) -> bool:
        """Whether to start from here; if not, all is folded from the start."""
        return self.readable and self.position is not None and self.position.fold_hash == DETECTOR_HASH


class DetectorRestore:
    """Makes the processors of the detector's partitions; see `stepwell.engine.loop.Restore`."""

    def __init__(self, log: MessageLog, codec: EventCodec, worker_id: str, vitals: Vitals | None = None) -> None:
        self._log = log
        self._codec = codec
        self._worker_id = worker_id
        self._vitals = vitals or Unwatched()
        self._suspects: Suspects[str] = Suspects()

    def __call__(
        self, source: TopicPartition, committed: int | None, consumer: Consumer
    ) -> PolicyPartition | AnswersPartition:
        """The state at the committed position.

        Raises:
            PositionLostError: a needed record of policy-events is gone, and with it the ledger.
            LogError: committed position and snapshots contradict each other.
            StateDoubtError: a rule raised; restore once more.
        """
        low, high = consumer.watermarks(source)
        if source.topic == RETRAIN_RESULTS:
            return AnswersPartition(low if committed is None else committed, self._codec, self._worker_id)
        saved = self._read_saved(source, consumer)
        for _ in range(SETTLE_TRIES):
            if saved.position is None or committed is None or committed >= saved.position.committed_offset:
                break
            # The last owner may have committed between the two readings.
            committed = consumer.committed([source]).get(source)
        position = self._agreed_position(source, committed, saved, low)
        start, rules_json = low, ""
        if saved.position is not None and saved.usable:
            start, rules_json = saved.position.rewind_offset, saved.position.rules_json
        if start < low or (not saved.usable and 0 < low < position) or position > max(high, low):
            raise PositionLostError(
                f"{source.topic}/{source.partition} starts at offset {low} and ends at {high}, but its ledger has to "
                f"be folded from {start if saved.usable else 0} to {position}; set its retention.ms to -1 and restore "
                "the topic from a backup"
            )
        partition = PolicyPartition(source, start, self._codec, self._worker_id, rules_json, self._suspects)
        for snapshot in saved.latest.values() if saved.usable else ():
            if snapshot.detector_hash == DETECTOR_HASH:
                partition.adopt(snapshot)
        for batch in read_range(self._log, source, start, position):
            self._vitals.alive()
            partition.fold(batch, 0)
        partition.position = position
        return partition

    @staticmethod
    def _agreed_position(source: TopicPartition, committed: int | None, saved: "_Saved", low: int) -> int:
        at = saved.position.committed_offset if saved.position is not None else None
        if committed is None:
            # Kafka forgets a group's positions some days after its last member has left. What lies behind the saved one
            # has brought nothing about, see `PolicyPartition`.
            return low if at is None else at
        if at is not None and committed < at:
            raise LogError(
                f"{source.topic}/{source.partition}: group {GROUP} stands at {committed}, but its snapshots were "
                f"written at {at}. Positions and snapshots are committed together; one was changed by hand. Set the "
                f"group back to {at}, or higher"
            )
        return committed

    def _read_saved(self, source: TopicPartition, consumer: Consumer) -> _Saved:
        """Read the partition's snapshots to their end."""
        snapshots = TopicPartition(POLICY_SNAPSHOTS, source.partition)
        low, high = consumer.watermarks(snapshots)
        saved = _Saved()
        for batch in read_range(self._log, snapshots, low, high):
            self._vitals.alive()
            for value, headers in zip(batch.values, batch.headers, strict=True):
                if value is None:
                    continue
                try:
                    record = self._codec.decode(value, headers)
                except EventError:
                    saved.readable = False
                    continue
                if isinstance(record, PositionSaved):
                    saved.position = record
                elif isinstance(record, PolicySnapshot):
                    saved.latest[record.policy] = record
        return saved
