"""Taking a partition over: from what its last owner committed to the state that one had, without saying anything twice.

1. The committed position (stable: an open transaction of the last owner is waited out, or was ended by taking over its
   transactional id).
2. The snapshots of the partition, up to the last stable offset: of each attempt the latest, seals into the cache.
3. The events from the rewind offset to the committed position, folded silently; each attempt skips what its snapshot
   holds. Snapshots of another version of the fold are left aside: their attempts are folded from their first record.
   The saved position tells the step rules in force there; those activated behind it pass by while folding.

Nothing is ever reset: where a needed record is below the log's start, `PositionLostError` names what is concerned.
"""

from stepwell.engine.doubt import Suspects
from stepwell.engine.loop import Report
from stepwell.engine.partition import EpisodePartition, Markers
from stepwell.engine.ports import Consumer, EventCodec, MessageLog, RecordBatch, TopicPartition, Watermarks
from stepwell.engine.reading import read_range
from stepwell.engine.snapshot import FOLD_HASH, SEALED, SnapshotRefusedError, restore
from stepwell.engine.state import AttemptState, SealedAttempt
from stepwell.engine.steps.in_force import rules_at
from stepwell.engine.timers import Timeouts
from stepwell.engine.verdict import mark_announced, mark_published
from stepwell.engine.vitals import Unwatched, Vitals
from stepwell.events.model import PositionSaved, SnapshotTaken
from stepwell.events.topics import EPISODE_EVENTS, EPISODE_SNAPSHOTS
from stepwell.exceptions import EventError, LogError, PositionLostError

GROUP = "stepwell-engine"
TOPICS = (EPISODE_EVENTS,)

NAMED_MAX = 10
"""How many episodes an error names."""

SETTLE_TRIES = 5
MARKERS_AT_ONCE = 10_000


class _Saved:
    """What the snapshot topic says of one partition."""

    def __init__(self) -> None:
        self.position: PositionSaved | None = None
        self.latest: dict[tuple[str, int], SnapshotTaken] = {}
        self.sealed: dict[tuple[str, int], SealedAttempt] = {}


class EngineRestore:
    """Makes the processors of the engine's partitions; see `stepwell.engine.loop.Restore`."""

    def __init__(
        self,
        log: MessageLog,
        *,
        codec: EventCodec,
        markers: Markers,
        timeouts: Timeouts,
        worker_id: str,
        report: Report,
        vitals: Vitals | None = None,
    ) -> None:
        self._log = log
        self._codec = codec
        self._markers = markers
        self._timeouts = timeouts
        self._worker_id = worker_id
        self._report = report
        self._vitals = vitals or Unwatched()
        self._suspects: Suspects[bytes] = Suspects()

    def __call__(self, source: TopicPartition, committed: int | None, consumer: Consumer) -> EpisodePartition:
        """The state at the committed position.

        Raises:
            PositionLostError: records that are needed are gone.
            LogError: committed position and snapshots contradict each other.
            StateDoubtError: the fold raised; restore once more.
        """
        saved = self._read_saved(source, consumer)
        for _ in range(SETTLE_TRIES):
            if saved.position is None or committed == saved.position.committed_offset:
                break
            # The last owner may have committed between the two readings.
            committed = consumer.committed([source]).get(source)
            saved = self._read_saved(source, consumer)
        marks = consumer.watermarks(source)
        position = self._agreed_position(source, committed, saved, marks)
        partition = EpisodePartition(
            source,
            position,
            codec=self._codec,
            markers=self._markers,
            timeouts=self._timeouts,
            worker_id=self._worker_id,
            fetch=lambda offset: self._fetch(source, offset),
            suspects=self._suspects,
        )
        refolded = _adopt_all(partition, saved)
        rewind = min(
            [position if saved.position is None else saved.position.rewind_offset]
            + [snapshot.first_offset for snapshot in refolded.values()]
        )
        if saved.position is not None:
            rewind, partition.rules = rules_at(saved.position.rules_json, rewind)
        self._check_range(source, rewind, position, saved, marks)
        for batch in read_range(self._log, source, rewind, position):
            self._vitals.alive()
            partition.uncover(partition.fold(batch, _say_nothing, skip_held=True), 0)
        partition.position = position
        partition.sweep()
        for attempt in partition.attempts():
            _continue_revisions(attempt, refolded.get((attempt.episode_id, attempt.attempt)))
        if refolded:
            self._report.info(
                "snapshots of another fold version were folded again", worker_id=self._worker_id, attempts=len(refolded)
            )
        return partition

    def _read_saved(self, source: TopicPartition, consumer: Consumer) -> _Saved:
        """Read the partition's snapshots to their end; seals go to the cache as they come."""
        snapshots = TopicPartition(EPISODE_SNAPSHOTS, source.partition)
        marks = consumer.watermarks(snapshots)
        saved = _Saved()
        self._markers.clear(source.partition)
        for batch in read_range(self._log, snapshots, marks.low, marks.high):
            self._vitals.alive()
            for value, headers in zip(batch.values, batch.headers, strict=True):
                if value is None:
                    continue
                try:
                    record = self._codec.decode(value, headers)
                except EventError as error:
                    self._report.warning("unreadable snapshot skipped", worker_id=self._worker_id, reason=str(error))
                    continue
                self._take(saved, record)
            if len(saved.sealed) >= MARKERS_AT_ONCE:
                self._put_away(source, saved)
        self._put_away(source, saved)
        return saved

    @staticmethod
    def _take(saved: _Saved, record: object) -> None:
        if isinstance(record, PositionSaved):
            saved.position = record
        elif isinstance(record, SnapshotTaken):
            key = (record.episode_id, record.attempt)
            if record.kind == SEALED:
                saved.latest.pop(key, None)
                marker = restore(record)
                assert isinstance(marker, SealedAttempt)
                saved.sealed[key] = marker
            else:
                saved.latest[key] = record

    def _put_away(self, source: TopicPartition, saved: _Saved) -> None:
        self._markers.put(source.partition, saved.sealed.values())
        saved.sealed.clear()

    def _agreed_position(self, source: TopicPartition, committed: int | None, saved: _Saved, marks: Watermarks) -> int:
        name = f"{source.topic}/{source.partition}"
        if saved.position is None:
            if saved.latest or committed is not None:
                raise LogError(
                    f"{name}: group {GROUP} has worked here, but {EPISODE_SNAPSHOTS}/{source.partition} holds no "
                    "saved position: its records are gone, and with them the open attempts. Restore the topic; or, to "
                    f"fold everything anew, delete the group {GROUP} and the rest of that topic"
                )
            return marks.low
        at = saved.position.committed_offset
        if committed is None:
            # Kafka forgets a group's positions some days after its last member has left.
            self._report.info("the group's position has expired, the saved one is used", position=at, partition=name)
            return at
        if committed != at:
            raise LogError(
                f"{name}: group {GROUP} stands at {committed}, but its snapshots were written at {at}. Positions and "
                f"snapshots are committed together; one was changed by hand. Set the group back to {at}; or, to fold "
                f"everything anew, delete the group and the records of {EPISODE_SNAPSHOTS}/{source.partition}"
            )
        return at

    def _check_range(
        self, source: TopicPartition, rewind: int, position: int, saved: _Saved, marks: Watermarks
    ) -> None:
        low, high = marks
        name = f"{source.topic}/{source.partition}"
        if rewind < low:
            open_now = [f"{episode}/{attempt}" for episode, attempt in saved.latest]
            shown = ", ".join(open_now[:NAMED_MAX]) or "none with a snapshot"
            more = f" and {len(open_now) - NAMED_MAX} more" if len(open_now) > NAMED_MAX else ""
            raise PositionLostError(
                f"{name}: records from {rewind} on are needed, but the log starts at {low}. Attempts that were open: "
                f"{shown}{more}. Nothing was skipped. Restore the log, or set its retention.ms to -1 and seal these "
                "attempts by hand"
            )
        if position > high:
            raise PositionLostError(
                f"{name}: position {position} is committed, but the log ends at {high}: it was cut or made anew"
            )

    def _fetch(self, source: TopicPartition, offset: int) -> RecordBatch | None:
        try:
            return next(iter(read_range(self._log, source, offset, offset + 1)), None)
        except PositionLostError:
            return None


def _adopt_all(partition: EpisodePartition, saved: _Saved) -> dict[tuple[str, int], SnapshotTaken]:
    """Take in the snapshots; those of another version of the fold are given back."""
    refused = {}
    for key, record in saved.latest.items():
        try:
            attempt = restore(record)
        except SnapshotRefusedError:
            refused[key] = record
            continue
        assert isinstance(attempt, AttemptState)
        partition.adopt(attempt)
    return refused


def _continue_revisions(attempt: AttemptState, before: SnapshotTaken | None) -> None:
    """What was folded again has been said already; only a verdict by another fold is worth another revision."""
    mark_announced(attempt)
    if before is None or before.fold_hash == FOLD_HASH or not attempt.ended:
        mark_published(attempt)
        return
    attempt.revision = max(attempt.revision, before.revision + 1)
    attempt.published = before.revision


def _say_nothing(_index: int, _found: object) -> None:
    """Whatever is found when folding again was reported the first time."""
