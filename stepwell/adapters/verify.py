"""Folds episodes again from the log and compares with what the engine wrote: verdicts, snapshots, seals.

Only what the engine has read is compared (its committed positions), so a verification may run beside live workers. The
tables are compared with the log by `stepwell.projections.audit.rows`; together they connect every row to the facts.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from stepwell.adapters.history import events_in
from stepwell.adapters.logs.reading import read_all
from stepwell.engine.fold import apply
from stepwell.engine.ports import MessageLog, TopicPartition
from stepwell.engine.reading import read_range
from stepwell.engine.restore import GROUP
from stepwell.engine.snapshot import FOLD_HASH, SEALED, dump, load, seal_marker
from stepwell.engine.state import AttemptState, EpisodeState, Position
from stepwell.engine.verdict import mark_announced, mark_published, same_verdict, verdict_of
from stepwell.events.codec import Codec
from stepwell.events.model import Event, SnapshotTaken, VerdictIssued
from stepwell.events.topics import EPISODE_EVENTS, EPISODE_SNAPSHOTS, POLICY_EVENTS
from stepwell.exceptions import StepwellError

AttemptKey = tuple[str, int]
"""Episode id and attempt."""


@dataclass(slots=True)
class FoldReport:
    """What was folded again and compared.

    Attributes:
        events, episodes, attempts: folded.
        verdicts, snapshots, seals: compared with what the log holds.
        other_folds: snapshots and verdicts by another version of the fold: not comparable bit for bit.
        unread: events that no engine has read yet; they are left out.
        compared: the episodes of which something was compared.
        differences: one sentence each, in the order of the log.
    """

    events: int = 0
    episodes: int = 0
    attempts: int = 0
    verdicts: int = 0
    snapshots: int = 0
    seals: int = 0
    other_folds: int = 0
    unread: int = 0
    differences: list[str] = field(default_factory=list)
    compared: set[str] = field(default_factory=set, compare=False)


def verify_folds(log: MessageLog, codec: Codec, wanted: Collection[str] | None = None) -> FoldReport:
    """Fold every episode (or those ``wanted``) again and compare.

    Raises:
        LogError: the log cannot be read.
    """
    keep = None if wanted is None else frozenset(wanted)
    return _Verification(log, codec, keep).run()


class _Verification:
    def __init__(self, log: MessageLog, codec: Codec, wanted: frozenset[str] | None) -> None:
        self._log = log
        self._codec = codec
        self._wanted = wanted
        self._report = FoldReport()
        self._verdicts = latest_verdicts(log, codec, wanted)
        self._snapshots, self._seals = self._read_snapshots()
        self._seen: set[AttemptKey] = set()
        self._compared: set[AttemptKey] = set()

    def run(self) -> FoldReport:
        admin = self._log.admin()
        try:
            marks = admin.watermarks(EPISODE_EVENTS)
            committed = admin.group_positions(GROUP, EPISODE_EVENTS)
        finally:
            admin.close()
        read: dict[int, range] = {}
        for source, mark in sorted(marks.items()):
            end = max(mark.low, min(committed.get(source) or mark.low, mark.high))
            self._report.unread += mark.high - end
            self._partition(source, mark.low, end)
            read[source.partition] = range(mark.low, end)
        self._without_events(read)
        return self._report

    def _without_events(self, read: Mapping[int, range]) -> None:
        """What the engine is said to have made of events that do not stand where they should."""
        for key, verdict in self._verdicts.items():
            origin = verdict.provenance
            if key not in self._seen and origin.last_offset in read.get(origin.partition, ()):
                self._differ(f"{_name(key)}: {POLICY_EVENTS} holds a verdict ({verdict.outcome}), no event asks for it")
        for key, snapshot in self._snapshots.items():
            if key not in self._compared and snapshot.last_offset in read.get(snapshot.partition, ()):
                where = f"at offset {snapshot.last_offset}"
                self._differ(f"{_name(key)}: a snapshot was made {where}, where no event of this attempt stands")

    def _partition(self, source: TopicPartition, start: int, end: int) -> None:
        keys = None if self._wanted is None else frozenset(episode_id.encode() for episode_id in self._wanted)
        episodes: dict[str, EpisodeState] = {}
        in_force: dict[int, str] = {}
        keep = keys.__contains__ if keys is not None else _any
        for batch in read_range(self._log, source, start, end):
            for event, position in events_in(batch, self._codec, in_force, keep):
                self._fold(episodes, event, position)
        self._report.episodes += len(episodes)
        for state in episodes.values():
            for attempt in state.attempts.values():
                self._report.attempts += 1
                if isinstance(attempt, AttemptState):
                    self._compare_verdict(attempt)

    def _fold(self, episodes: dict[str, EpisodeState], event: Event, position: Position) -> None:
        state = episodes.get(event.episode_id)
        if state is None:
            state = episodes[event.episode_id] = EpisodeState(event.episode_id)
        apply(state, event, position)
        self._report.events += 1
        self._seen.add((event.episode_id, event.attempt))
        attempt = state.attempts.get(event.attempt)
        if not isinstance(attempt, AttemptState):
            return
        snapshot = self._snapshots.get((event.episode_id, event.attempt))
        if snapshot is not None and snapshot.last_offset == position.offset:
            self._compare_snapshot(attempt, snapshot)
        if attempt.sealed:
            self._compare_verdict(attempt)
            self._compare_seal(attempt)
            # As in the engine: of a sealed attempt only the marker stays, so that memory follows what is open.
            state.attempts[event.attempt] = seal_marker(attempt)

    def _compare_verdict(self, attempt: AttemptState) -> None:
        folded = verdict_of(attempt)
        said = self._verdicts.get((attempt.episode_id, attempt.attempt))
        name = _name((attempt.episode_id, attempt.attempt))
        if folded is None or said is None:
            if folded is not None:
                self._differ(f"{name}: the fold gives a verdict ({folded.outcome}), {POLICY_EVENTS} holds none")
            elif said is not None:
                self._differ(f"{name}: {POLICY_EVENTS} holds a verdict ({said.outcome}), the fold gives none")
            return
        if said.provenance.fold_hash != FOLD_HASH:
            self._report.other_folds += 1
            return
        self._report.verdicts += 1
        self._report.compared.add(attempt.episode_id)
        if not same_verdict(folded, said):
            self._differ(f"{name}: {first_difference(folded, said)}")

    def _compare_snapshot(self, attempt: AttemptState, snapshot: SnapshotTaken) -> None:
        self._compared.add((attempt.episode_id, attempt.attempt))
        if snapshot.fold_hash != FOLD_HASH:
            self._report.other_folds += 1
            return
        self._report.snapshots += 1
        self._report.compared.add(attempt.episode_id)
        name = f"{_name((attempt.episode_id, attempt.attempt))}: snapshot at offset {snapshot.last_offset}"
        try:
            kept = load(snapshot.state)
        except StepwellError as error:
            self._differ(f"{name} cannot be read: {error}")
            return
        ours = load(dump(attempt))
        # What has been published is the worker's book-keeping, not the fold's.
        for attempt_state in (kept, ours):
            mark_published(attempt_state)
            mark_announced(attempt_state)
        if dump(kept) != dump(ours):
            # Where all read the same, the bits of a NaN differ.
            unlike = (f for f in AttemptState.__struct_fields__ if repr(getattr(kept, f)) != repr(getattr(ours, f)))
            if (field_name := next(unlike, None)) is None:
                self._differ(f"{name} differs in the bits of a NaN")
                return
            there, here = getattr(kept, field_name), getattr(ours, field_name)
            self._differ(f"{name} has {field_name} {there!r:.80}, the fold gives {here!r:.80}")

    def _compare_seal(self, attempt: AttemptState) -> None:
        seal = self._seals.get((attempt.episode_id, attempt.attempt))
        if seal is None:
            return  # the engine may write it with its next batch
        self._report.seals += 1
        self._report.compared.add(attempt.episode_id)
        marker = seal_marker(attempt)
        if (marker.outcome, marker.revision) != (seal.outcome, seal.revision):
            self._differ(
                f"{_name((attempt.episode_id, attempt.attempt))}: sealed as {seal.outcome} revision {seal.revision}, "
                f"the fold gives {marker.outcome} revision {marker.revision}"
            )

    def _differ(self, sentence: str) -> None:
        self._report.differences.append(sentence)

    def _read_snapshots(self) -> tuple[dict[AttemptKey, SnapshotTaken], dict[AttemptKey, SnapshotTaken]]:
        """The last snapshot and the seal marker of each attempt."""
        snapshots: dict[AttemptKey, SnapshotTaken] = {}
        seals: dict[AttemptKey, SnapshotTaken] = {}
        for record in read_all(self._log, self._codec, EPISODE_SNAPSHOTS):
            if isinstance(record, SnapshotTaken) and (self._wanted is None or record.episode_id in self._wanted):
                kept = seals if record.kind == SEALED else snapshots
                kept[record.episode_id, record.attempt] = record
        return snapshots, seals


def latest_verdicts(
    log: MessageLog, codec: Codec, wanted: Collection[str] | None = None
) -> dict[AttemptKey, VerdictIssued]:
    """The last revision of each attempt's verdict, as it stands in the log (only of episodes ``wanted``)."""
    latest: dict[AttemptKey, VerdictIssued] = {}
    for event in read_all(log, codec, POLICY_EVENTS):
        if isinstance(event, VerdictIssued) and (wanted is None or event.episode_id in wanted):
            key = (event.episode_id, event.attempt)
            if key not in latest or event.revision >= latest[key].revision:
                latest[key] = event
    return latest


def first_difference(folded: VerdictIssued, said: VerdictIssued) -> str:
    """The first field in which two verdicts of one attempt differ."""
    for name in VerdictIssued.__struct_fields__:
        ours, theirs = getattr(folded, name), getattr(said, name)
        if name in ("revision", "producer_seq", "event_id", "occurred_at", "trace_id") or repr(ours) == repr(theirs):
            continue
        return f"the verdict in the log has {name} {theirs!r:.120}, the fold gives {ours!r:.120}"
    return "the verdicts differ"


def _name(key: AttemptKey) -> str:
    return f"{key[0]}/{key[1]}"


def _any(_key: bytes | None) -> bool:
    return True
