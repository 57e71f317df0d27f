"""What all rules in the order of requests have in common: streams per key, amendments, cool-downs, triggers.

A rule keeps one stream per key (`stepwell.engine.detection.state.Stream`). When its counts are over the line a trigger
opens, on the last counted failures, and remembers its *sample*: which episodes it rests on, and their counts. While
it stands, failures are merged and the stream goes on counting.

* **Amendments.** The old contribution is taken out and the new one put in its place, in the stream and in the sample of
  every standing trigger that holds the episode. A sample that is no longer over the line withdraws its trigger; the
  stream is then judged as it stands. So a test is never fed one episode twice.
* **Beyond the window** only the loss of a failure that is still named (by a trigger, or among a stream's last) is
  noticed: it then counts as an episode that did not fail.
* **After a closing answer** the stream starts anew behind the cool-down: an e-process restarts only then. A trigger
  that expires, or is withdrawn, leaves it as it is; after an expiry it takes one more failure to open the next.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections import Counter

from stepwell.engine.detection.bearing import Entry, Key
from stepwell.engine.detection.ledger import Sample, Trigger
from stepwell.engine.detection.state import (
    CELLS_MAX,
    KEYS_MAX,
    NEVER,
    Cell,
    Failure,
    PolicyState,
    RuleState,
    Stream,
    Tally,
    cell_of,
    named_max,
)
from stepwell.engine.detection.turn import Judge, Opening, TooMuchError, Turn


class InOrderJudge(Judge, ABC):
    """Judges one rule in the order of requests. Says only what its kind looks at."""

    # --- what a kind of rule says -------------------------------------------------------------------------------------

    @abstractmethod
    def over(self, sample: Sample) -> bool:
        """Whether these counts are over the line."""

    @abstractmethod
    def seen(self, sample: Sample) -> str:
        """The counts in words."""

    def sample_of(self, stream: Stream, last: int) -> Sample:
        """The stream's counts, up to rank ``last``."""
        return Sample(stream.since, last, stream.tally.failures, stream.tally.episodes)

    def key_text(self, policy: str, key: Key, sample: Sample) -> str:
        """What the trigger is for, in words."""
        del sample
        return key.text(policy)

    def put(self, stream: Stream, rank: int, failed: bool, cell: Cell) -> None:
        """Count one episode of the stream."""
        del rank
        stream.tally.add(failed)
        if cell in stream.cells or len(stream.cells) < CELLS_MAX:
            stream.cells.setdefault(cell, Tally()).add(failed)

    def take_out(self, stream: Stream, rank: int, failed: bool, cell: Cell) -> None:
        """Undo `put`. A cell stays when it is empty, so that one that had no room is never counted by half."""
        del rank
        stream.tally.add(failed, -1)
        if cell in stream.cells:
            stream.cells[cell].add(failed, -1)

    def cells_of(self, stream: Stream) -> dict[Cell, Tally]:
        """The stream's counts by cell."""
        return stream.cells

    def observe(self, own: RuleState, key: Key, entry: Entry, failed: bool, sign: int) -> list[tuple[Key, Stream]]:
        """One more (or less) episode of a key: what other streams make of it; those that changed."""
        del own, key, entry, failed, sign
        return []

    def restarted(self, stream: Stream, rank: int) -> None:
        """The stream starts anew with this rank."""

    # --- the judge ----------------------------------------------------------------------------------------------------

    def admitted(self, turn: Turn, own: RuleState, entry: Entry) -> None:
        """Count the episode under its key, and judge."""
        failed = self.reading.failed(entry)
        if failed is None:
            return
        key = self.reading.key(entry)
        stream = self._stream(turn, own, key)
        others = self.observe(own, key, entry, failed, 1)
        if self._counts_now(turn, stream, entry.rank, failed):
            self.put(stream, entry.rank, failed, cell_of(entry.evidence))
            if failed:
                stream.barred = False
                _name(own, stream, Failure(entry.rank, entry.evidence, entry.failure_type))
        for other_key, other in [(key, stream), *others]:
            self._judge(turn, other_key, other, entry)

    def amended(self, turn: Turn, own: RuleState, old: Entry, new: Entry) -> None:
        """Put the new contribution in the old one's place."""
        old_key, key = self.reading.key(old), self.reading.key(new)
        was, now = self.reading.failed(old), self.reading.failed(new)
        touched = self._take_back(own, old_key, old, was) + self._put_in_place(turn, own, key, new, now)
        if (old_key, was) == (key, now):
            return  # the evidence is up to date, and no count has changed
        keys = (old_key, key)
        for trigger in self.own_standing(turn):
            if trigger.key not in keys and (trigger.sample is None or trigger.sample.base not in keys):
                continue
            changed = _adjust(trigger, old_key, was, new.rank, -1)
            changed |= _adjust(trigger, key, now, new.rank, 1)
            _note_loss(trigger, new, agrees=bool(now) and key == trigger.key)
            if changed:
                self._recheck(turn, trigger, new)
        for touched_key, stream in touched:
            self._judge(turn, touched_key, stream, new)

    def _take_back(self, own: RuleState, key: Key, entry: Entry, failed: bool | None) -> list[tuple[Key, Stream]]:
        """Undo what an entry has contributed; the streams that changed."""
        if failed is None:
            return []
        touched = self.observe(own, key, entry, failed, -1)
        stream = own.streams.get(key)
        if stream is not None and entry.rank >= stream.since:
            self.take_out(stream, entry.rank, failed, cell_of(entry.evidence))
            _unname(stream, entry.rank)
            touched.append((key, stream))
        return touched

    def _put_in_place(
        self, turn: Turn, own: RuleState, key: Key, entry: Entry, failed: bool | None
    ) -> list[tuple[Key, Stream]]:
        """Count an entry that had its turn before; the streams that changed."""
        if failed is None:
            return []
        stream = own.streams.get(key)
        if stream is None and entry.rank >= own.since_rank:
            stream = self._stream(turn, own, key)
        touched = self.observe(own, key, entry, failed, 1)
        if stream is not None and entry.rank >= stream.since:
            self.put(stream, entry.rank, failed, cell_of(entry.evidence))
            if failed:
                _name(own, stream, Failure(entry.rank, entry.evidence, entry.failure_type))
            touched.append((key, stream))
        return touched

    def amended_late(self, turn: Turn, own: RuleState, new: Entry) -> None:
        """Beyond the window: a failure that is still named may be lost."""
        episode = new.evidence.episode_id
        counts, key = self.reading.says(new) == "counts", self.reading.key(new)
        touched: list[tuple[Key, Stream]] = []
        for stream_key, stream in list(own.streams.items()):
            named = next((item for item in stream.recent if item.evidence.episode_id == episode), None)
            if named is None or (counts and stream_key == key):
                continue
            new.rank = named.rank
            _unname(stream, named.rank)
            if named.rank >= stream.since:
                cell = cell_of(named.evidence)
                self.take_out(stream, named.rank, True, cell)
                self.put(stream, named.rank, False, cell)
            touched.append((stream_key, stream))
            touched += self.observe(own, stream_key, new, True, -1)
            touched += self.observe(own, stream_key, new, False, 1)
        for trigger in self.own_standing(turn):
            change = _note_loss(trigger, new, agrees=counts and key == trigger.key)
            if change and trigger.sample is not None:
                trigger.sample.failures += change
                trigger.sample.episodes = max(trigger.sample.episodes, trigger.sample.failures)
                self._recheck(turn, trigger, new)
        for stream_key, stream in touched:
            self._judge(turn, stream_key, stream, new)

    def released(self, own: RuleState, trigger: Trigger) -> None:
        """An answer stops the stream until the cool-down is over; after an expiry it waits for a failure."""
        stream = own.streams.get(trigger.key)
        if stream is None or stream.trigger != trigger.trigger_id:
            return
        if trigger.status in ("withdrawn", "expired"):
            stream.trigger = ""
            stream.barred = trigger.status == "expired"
            return
        stream.since = NEVER
        stream.tally.failures = stream.tally.episodes = 0
        stream.window.clear()
        stream.cells.clear()
        stream.recent.clear()
        self.restarted(stream, NEVER)

    def cells(self, state: PolicyState, trigger: Trigger) -> dict[Cell, Tally]:
        """Of the trigger's stream, as far as it has come."""
        stream = state.rules[self.rule.name].streams.get(trigger.key)
        return {} if stream is None else self.cells_of(stream)

    def _stream(self, turn: Turn, own: RuleState, key: Key) -> Stream:
        """The key's stream; a new one where there is none."""
        stream = own.streams.get(key)
        if stream is None:
            if len(own.streams) >= KEYS_MAX:
                raise TooMuchError(f"more than {KEYS_MAX} keys")
            stream = Stream(own.since_rank, order=own.seen, begun=own.since_rank)
            own.seen += 1
            self.begin(own, key, stream)
            for trigger in turn.state.ledger.about(self.rule.name, key):
                stream.trigger = trigger.trigger_id
                stream.since = stream.since if trigger.standing else NEVER
            own.streams[key] = stream
            own.changed()
        return stream

    def begin(self, own: RuleState, key: Key, stream: Stream) -> None:
        """A key is seen for the first time."""

    def _counts_now(self, turn: Turn, stream: Stream, rank: int, failed: bool) -> bool:
        """Whether the stream counts this episode; if not, it is the aftermath of an answer."""
        trigger = turn.state.ledger.triggers.get(stream.trigger) if stream.trigger else None
        if stream.since == NEVER:
            if trigger is not None and trigger.live(turn.now):
                turn.state.ledger.cool(trigger)
                trigger.merged += failed
                return False
            stream.since, stream.trigger, stream.barred = rank, "", False
            self.restarted(stream, rank)
        elif trigger is not None:
            trigger.merged += failed
        return True

    def _judge(self, turn: Turn, key: Key, stream: Stream, cause: Entry) -> None:
        """Open a trigger where the counts are over the line."""
        if stream.trigger or stream.barred or stream.since == NEVER:
            return
        sample = self.sample_of(stream, turn.state.admitted - 1)
        if not self.over(sample):
            return
        named = [item for item in stream.recent if item.rank >= sample.first]
        if not named:
            return  # every failure that could be named has been amended away beyond the window
        types = Counter(item.failure_type for item in named)
        text = self.key_text(turn.state.policy, key, sample)
        opening = Opening(
            key=key,
            key_text=text,
            about=text,
            failure_type=min(types, key=lambda name: (-types[name], name)),
            evidence=tuple(item.evidence for item in named),
            seen=self.seen(sample),
            cause=cause,
            sample=sample,
        )
        stream.trigger = turn.open(self, opening).trigger_id

    def _recheck(self, turn: Turn, trigger: Trigger, cause: Entry) -> None:
        """After its sample has changed: withdraw a trigger that is no longer over the line."""
        sample = trigger.sample
        assert sample is not None
        if self.over(sample):
            return
        evidence = cause.evidence
        turn.withdraw(
            trigger,
            f"verdict of episode {evidence.episode_id} was amended to revision {evidence.revision}; what is left at "
            f"its opening does not suffice: {self.seen(sample)}",
        )


def _name(own: RuleState, stream: Stream, failure: Failure) -> None:
    """Remember a failure as evidence of a trigger to come.

    Where there are too many, the oldest goes of the cell that has most: so every failing cell stays in evidence, with
    its newest, though another has failed more often or later.
    """
    insort(stream.recent, failure, key=lambda item: item.rank)
    while len(stream.recent) > named_max(len(own.streams)):
        if stream.recent[0].rank < stream.since:  # out of the rule's own window
            del stream.recent[0]
            continue
        cells = [cell_of(item.evidence) for item in stream.recent]
        count = Counter(cells)
        most = max(count.values())
        del stream.recent[next(i for i, cell in enumerate(cells) if count[cell] == most)]


def _unname(stream: Stream, rank: int) -> None:
    at = bisect_left(stream.recent, rank, key=lambda item: item.rank)
    if at < len(stream.recent) and stream.recent[at].rank == rank:
        del stream.recent[at]


def _adjust(trigger: Trigger, key: Key, failed: bool | None, rank: int, sign: int) -> bool:
    """Add an episode to a trigger's sample, or take it out, where it belongs to it; whether anything changed."""
    sample = trigger.sample
    if sample is None or failed is None or rank > sample.last:
        return False
    failures = sign if failed else 0
    if key == trigger.key and rank >= sample.first:
        sample.failures += failures
        sample.episodes += sign
        return True
    if key == sample.base and rank >= sample.base_first:
        sample.old_failures += failures
        sample.old_episodes += sign
        return True
    return False


def _note_loss(trigger: Trigger, new: Entry, *, agrees: bool) -> int:
    """Keep ``lost`` up to date: -1 where a piece of evidence was lost, 1 where one came back, else 0."""
    episode = new.evidence.episode_id
    if not any(item.episode_id == episode for item in trigger.evidence):
        return 0
    if not agrees and episode not in trigger.lost:
        trigger.lost.append(episode)
        return -1
    if agrees and episode in trigger.lost:
        trigger.lost.remove(episode)
        return 1
    return 0
