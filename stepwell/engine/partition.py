"""One partition of ``stepwell.episode-events``, folded: what a batch of records makes the engine write.

`EpisodePartition.process` takes a batch and gives everything that has to be written with it, in one transaction:
dead letters, verdicts (of each attempt only the last revision), seals, snapshots and markers, and the position from
which a restart has to fold again. Records that put a rule set into force are taken in as they pass: attempts that begin
behind them are judged by it.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from stepwell.engine.cover import Cover, Covers, phase_of
from stepwell.engine.doubt import Suspects, in_doubt, unexpected
from stepwell.engine.findings import DEAD_LETTER_KINDS, Finding
from stepwell.engine.fold import adopt, apply, content_digest, copy_attempt
from stepwell.engine.letters import Fetch, letter_of
from stepwell.engine.loop import Processor
from stepwell.engine.ports import EventCodec, OutgoingRecord, RecordBatch, TopicPartition
from stepwell.engine.publish import dead_letter, outgoing, outgoing_letter
from stepwell.engine.snapshot import FOLD_HASH, seal_marker, snapshot_record
from stepwell.engine.state import AttemptState, EpisodeState, Position, SealedAttempt
from stepwell.engine.steps.in_force import RulesInForce, is_activation, step_rules_of
from stepwell.engine.timers import Timeouts, due_facts, seal_if_complete
from stepwell.engine.verdict import announcement, mark_announced, mark_published, pending_verdict
from stepwell.events.guards import check_time
from stepwell.events.model import Event, PositionSaved
from stepwell.exceptions import DecodeError, EncodeError, EventError

Notice = Callable[[int, Iterable[Finding] | EventError], None]
"""Told of the record at an index of the batch: what the fold found, or why it could not be read."""


class Markers(Protocol):
    """Where sealed attempts are kept, by partition and episode; a cache that may be thrown away."""

    def get(self, partition: int, episode_id: str) -> list[SealedAttempt]:
        """The sealed attempts of an episode, in order of their numbers."""

    def put(self, partition: int, attempts: Iterable[SealedAttempt]) -> None:
        """Keep sealed attempts."""

    def clear(self, partition: int) -> None:
        """Forget a partition."""


class EpisodePartition(Processor):
    """The unsealed attempts of one partition.

    Args:
        source: the partition of the events.
        position: where it begins.
        codec: reads and writes records.
        markers: where sealed attempts go.
        timeouts: how long to wait for what.
        worker_id: stands in dead letters and engine facts.
        fetch: reads an older record of the partition, for dead letters.
        suspects: episodes (keys) that the fold has raised for; see `stepwell.engine.doubt`.
        rules: the step rules in force at ``position``; none where left out.
    """

    def __init__(
        self,
        source: TopicPartition,
        position: int,
        *,
        codec: EventCodec,
        markers: Markers,
        timeouts: Timeouts,
        worker_id: str,
        fetch: Fetch,
        suspects: Suspects[bytes] | None = None,
        rules: RulesInForce | None = None,
    ) -> None:
        self.position = position
        self.rules = RulesInForce() if rules is None else rules
        self.episodes: dict[bytes, EpisodeState] = {}
        self.covers = Covers()
        self._source = source
        self._partition = source.partition
        self._codec = codec
        self._markers = markers
        self._timeouts = timeouts
        self._worker_id = worker_id
        self._fetch = fetch
        self._suspects: Suspects[bytes] = Suspects() if suspects is None else suspects

    # --- the loop's side ----------------------------------------------------------------------------------------------

    def process(self, batch: RecordBatch, now_us: int) -> list[OutgoingRecord]:
        """Fold a batch; everything that has to be written with it."""
        letters: list[OutgoingRecord] = []
        touched = self.fold(batch, self._letters_into(batch, letters))
        out = letters
        for key, offset in touched.items():
            out += self._settle(key, offset, now_us)
        for cover in self.covers.overdue(batch.end, now_us):
            out += self._snapshot(cover, now_us)
        self.position = batch.end
        return out

    def committing(self) -> list[OutgoingRecord]:
        """The position and from where to fold again: what the next owner finds committed, it finds saved as well."""
        return [self._position_saved()]

    def tick(self, now_us: int) -> list[OutgoingRecord]:
        """Snapshots that are due, and facts that follow from silence. Called while caught up."""
        caught_up_since = now_us if self.caught_up_since is None else self.caught_up_since
        out: list[OutgoingRecord] = []
        for cover in self.covers.due(now_us):
            out += self._snapshot(cover, now_us)
        for cover in self.covers:
            # Only after a restart with another version of the fold is there one that no batch has published.
            out += self._verdict(cover.attempt)
            facts = due_facts(cover, self._timeouts, caught_up_since, now_us, self._worker_id)
            out += [outgoing(self._codec, fact, self._partition) for fact in facts]
        return out

    def finish(self, now_us: int) -> list[OutgoingRecord]:
        """Snapshots of everything uncovered, so that the next owner has nothing to fold again."""
        return [record for cover in self.covers.uncovered() for record in self._snapshot(cover, now_us)]

    # --- folding ------------------------------------------------------------------------------------------------------

    def fold(
        self,
        batch: RecordBatch,
        notice: Notice,
        skip_held: bool = False,
    ) -> dict[bytes, int]:
        """Fold the records of a batch into the episodes, in place.

        Args:
            batch: the records.
            notice: told of what was found.
            skip_held: leave out what an attempt's state holds already, for folding again after a restart.

        Returns:
            The episodes touched (by key), each with the offset of its first record in the batch.

        Raises:
            StateDoubtError: the fold raised; restore, and fold again with the same suspects.
        """
        touched: dict[bytes, int] = {}
        decode, episodes, partition, careful = self._codec.decode_event, self.episodes, self._partition, self._suspects
        new_position, rules, schema_of = tuple.__new__, self.rules, self._codec.fingerprint_of
        for index, (offset, timestamp, key, value, headers) in enumerate(
            zip(batch.offsets, batch.timestamps, batch.keys, batch.values, batch.headers, strict=True)
        ):
            try:
                event = decode(value, headers)
                check_time(event, timestamp)
                state = episodes.get(key) if key is not None else None
                if state is None:
                    if is_activation(key, event, partition):
                        rules.activate(offset, step_rules_of(event))
                        continue
                    state = self._load(key)
            except EventError as error:
                notice(index, error)
                continue
            assert value is not None
            fingerprint = schema_of(value, headers)
            if skip_held and _holds(state, event.attempt, offset):
                continue
            if key not in touched:
                touched[key] = offset  # type: ignore[index]
            position = new_position(
                Position, (partition, offset, timestamp, fingerprint, content_digest(value), rules.now)
            )
            try:
                change = apply_or_undo if careful and key in careful else apply
                findings = change(state, event, position)
            except DecodeError as error:
                notice(index, error)
                continue
            except MemoryError:
                raise
            except Exception as error:
                careful.add(key)  # type: ignore[arg-type]
                raise in_doubt(f"{self._source.topic}/{partition} offset {offset}", error) from error
            if findings:
                notice(index, findings)
        return touched

    def adopt(self, attempt: AttemptState) -> None:
        """Take in an attempt from its snapshot."""
        key = attempt.episode_id.encode()
        state = self.episodes.get(key)
        if state is None:
            state = self._load(key)
        adopt(state, attempt)
        self.covers.restored(attempt)

    def uncover(self, touched: dict[bytes, int], now_us: int) -> None:
        """After folding again: what was touched is not in its snapshot."""
        for key, offset in touched.items():
            for attempt in self._live(key):
                self.covers.uncover(self.covers.of(attempt), offset, now_us)

    def sweep(self) -> None:
        """After folding again: forget the episodes of which only sealed attempts came by."""
        for key in list(self.episodes):
            self._let_go(key)

    def attempts(self) -> list[AttemptState]:
        """All unsealed attempts."""
        return [cover.attempt for cover in self.covers]

    def _load(self, key: bytes | None) -> EpisodeState:
        """The episode's state: what is known of its sealed attempts, or nothing yet."""
        if key is None:
            raise DecodeError("the record has no key; its key must be the episode's id", reason="no-key")
        try:
            episode_id = key.decode()
        except UnicodeDecodeError:
            raise DecodeError("the record's key is no text; it must be the episode's id", reason="bad-key") from None
        state = EpisodeState(episode_id)
        for sealed in self._markers.get(self._partition, episode_id):
            state.attempts[sealed.attempt] = sealed
        self.episodes[key] = state
        return state

    def _live(self, key: bytes) -> list[AttemptState]:
        return [item for item in self.episodes[key].attempts.values() if isinstance(item, AttemptState)]

    def _let_go(self, key: bytes) -> None:
        """Forget an episode of which nothing is left but what the markers hold."""
        if not self._live(key):
            del self.episodes[key]

    # --- what follows from a batch ------------------------------------------------------------------------------------

    def _letters_into(self, batch: RecordBatch, letters: list[OutgoingRecord]) -> Notice:
        def notice(index: int, found: Iterable[Finding] | EventError) -> None:
            if isinstance(found, EventError):
                letter = dead_letter(
                    batch,
                    index,
                    kind="unreadable",
                    reason=found.reason,
                    detail=str(found),
                    reported_by=self._worker_id,
                )
                letters.append(outgoing_letter(self._codec, letter))
                return
            for finding in found:
                if finding.kind in DEAD_LETTER_KINDS:
                    letter = letter_of(finding, batch, index, self._fetch, self._worker_id)
                    letters.append(outgoing_letter(self._codec, letter))

        return notice

    def _settle(self, key: bytes, offset: int, now_us: int) -> list[OutgoingRecord]:
        """What the attempts of a touched episode have come to at the end of the batch."""
        out: list[OutgoingRecord] = []
        for attempt in self._live(key):
            cover = self.covers.of(attempt)
            self.covers.uncover(cover, offset, now_us)
            out += self._announcement(attempt)
            out += self._verdict(attempt)
            if attempt.sealed:
                out.append(self._seal(key, attempt))
                continue
            seal = seal_if_complete(cover, now_us, self._worker_id)
            out += [outgoing(self._codec, fact, self._partition) for fact in seal]
            # A seal comes back in the next batch and its marker takes the snapshot's place.
            if not seal and cover.phase != phase_of(attempt):
                out += self._snapshot(cover, now_us)
        self._let_go(key)
        return out

    def _announcement(self, attempt: AttemptState) -> list[OutgoingRecord]:
        """That a verdict is to be expected, once for each episode; with the batch in which its request was applied."""
        expected = announcement(attempt)
        if expected is None:
            return []
        mark_announced(attempt)
        try:
            return [outgoing(self._codec, expected)]
        except EncodeError:
            return []  # hostile texts; rules that go by the order of requests take the verdict in when it comes

    def _verdict(self, attempt: AttemptState) -> list[OutgoingRecord]:
        """The verdict, where its last revision is not published yet."""
        verdict = pending_verdict(attempt)
        if verdict is None:
            return []
        mark_published(attempt)
        try:
            return [outgoing(self._codec, verdict)]
        except EncodeError as error:
            # Hostile texts can make a verdict too large to write; that must be seen, and must not stop the others.
            batch = self._fetch(attempt.last_offset)
            if batch is None or not batch.offsets:
                return []
            letter = dead_letter(
                batch,
                0,
                kind="refused",
                reason=error.reason,
                detail=f"the verdict of {attempt.episode_id}/{attempt.attempt} cannot be written: {error}",
                reported_by=self._worker_id,
                episode_id=attempt.episode_id,
                attempt=attempt.attempt,
                event_type=verdict.TYPE,
            )
            return [outgoing_letter(self._codec, letter)]

    def _seal(self, key: bytes, attempt: AttemptState) -> OutgoingRecord:
        """Put a sealed attempt away: its marker to the log and to the disk cache, its state out of memory."""
        record = outgoing(self._codec, snapshot_record(attempt), self._partition)
        marker = seal_marker(attempt)
        self.episodes[key].attempts[attempt.attempt] = marker
        self._markers.put(self._partition, [marker])
        self.covers.drop(attempt)
        return record

    def _snapshot(self, cover: Cover, now_us: int) -> list[OutgoingRecord]:
        try:
            record = outgoing(self._codec, snapshot_record(cover.attempt), self._partition)
        except EncodeError:
            # Too large, by hostile texts. Without a snapshot a restart folds the attempt again from its first record.
            return []
        self.covers.covered(cover, now_us)
        return [record]

    def _position_saved(self) -> OutgoingRecord:
        rewind = self.covers.rewind_offset(self.position)
        attempts = ((cover.attempt.first_offset, cover.attempt.rules) for cover in self.covers)
        saved = PositionSaved(
            topic=self._source.topic,
            partition=self._partition,
            rewind_offset=rewind,
            committed_offset=self.position,
            fold_hash=FOLD_HASH,
            rules_json=self.rules.saved(rewind, attempts),
        )
        return outgoing(self._codec, saved, self._partition)


def apply_or_undo(state: EpisodeState, event: Event, position: Position) -> Sequence[Finding]:
    """As `stepwell.engine.fold.apply`, but a state as it was before where that raises.

    Raises:
        DecodeError: reason ``unexpected``.
    """
    attempts = dict(state.attempts)
    before = {
        number: copy_attempt(attempt)
        for number in (event.attempt, event.attempt + 1)  # no other attempt can be touched
        if isinstance(attempt := attempts.get(number), AttemptState)
    }
    try:
        return apply(state, event, position)
    except MemoryError:
        raise
    except Exception as error:
        state.attempts = attempts
        for number, kept in before.items():
            for name in kept.__struct_fields__:  # into the same object: covers hold it too
                setattr(attempts[number], name, getattr(kept, name))
        raise unexpected(event.TYPE, error) from error


def _holds(state: EpisodeState, attempt: int, offset: int) -> bool:
    """Whether a record is in the state already, or concerns an attempt that was sealed."""
    known = state.attempts.get(attempt)
    if known is None:
        return False
    return not isinstance(known, AttemptState) or offset <= known.last_offset
