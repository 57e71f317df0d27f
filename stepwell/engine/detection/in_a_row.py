"""The same failure type N times in a row, in the order in which the first revisions of the verdicts were recorded.

A success, or a failure that the rule does not count or of another type, breaks the row; what is silent is skipped. An
amended verdict takes the old one's place and everything that rests on it is judged again. The episodes of a row that
goes on are kept however many others come in between (at most N - 1 for each key). Of amendments:

* A standing trigger *holds* while an unbroken row of N or more in the window contains one of its episodes; once part
  of its opening evidence has left the window, also while none of that evidence was amended away. Else it is withdrawn.
* Where a row of N or more is not yet taken in by a trigger, its first N free episodes open one; the others are merged.

Fires by chance: at a failure rate q, with every episode independent and of one failure type, on average after
``(q**-N - 1) / (1 - q)`` episodes (W. Feller, An Introduction to Probability Theory and Its Applications I, 3rd ed.,
Wiley 1968, XIII.7).
"""

from stepwell.engine.detection.bearing import Entry, Key
from stepwell.engine.detection.ledger import Trigger
from stepwell.engine.detection.state import KEYS_MAX, Row, RuleState
from stepwell.engine.detection.turn import Judge, Opening, TooMuchError, Turn
from stepwell.engine.ruleset import InARowRule


class InARowJudge(Judge):
    """Judges one rule of the kind ``in_a_row``."""

    rule: InARowRule

    def __init__(self, rule: InARowRule, digest: str) -> None:
        super().__init__(rule, digest)
        self.length = rule.length
        self.promise = (
            f"{rule.length} first attempts in a row, for one {self.reading.per_text}, ended in the same failure "
            "type whose fault is the policy's; errors, aborted and helped episodes were skipped. By chance alone, at a "
            f"failure rate of {rule.promise.baseline_rate:g}, that comes once in {rule.promise.average_run_length:g} "
            "episodes or more on average"
        )

    def recorded(self, turn: Turn, own: RuleState, entry: Entry) -> None:
        """Only the row that the entry ends can have become long enough."""
        says = self.reading.says(entry)
        if says == "silent":
            return
        key = self.reading.key(entry)
        if says == "counts":
            self._merge(turn, key, entry)
        self._cool(turn, key)
        if says != "counts" or self.rule.name in entry.taken:
            self._set_row(turn, own, key, [])
            return
        row = own.rows.get(key)
        free = self._entries_of(turn, row) if row is not None and row.failure_type == entry.failure_type else []
        free.append(entry)
        if self._open(turn, key, free):
            free = []
        self._set_row(turn, own, key, free)

    def keeps(self, own: RuleState, entry: Entry) -> bool:
        """The episodes of a row that goes on: however many other keys there are in between, it can be completed."""
        row = own.rows.get(self.reading.key(entry))
        return row is not None and entry.evidence.episode_id in row.episodes

    def amended(self, turn: Turn, own: RuleState, old: Entry, new: Entry) -> None:
        """Withdraw what no longer holds; open for the rows of N or more that no trigger has taken in."""
        name = self.rule.name
        old_key, key = self.reading.key(old), self.reading.key(new)
        says = self.reading.says(new)
        if (old_key, self.reading.says(old), old.failure_type) == (key, says, new.failure_type):
            if name in old.taken:
                new.taken[name] = old.taken[name]
        elif says == "counts" and new.number >= own.since_number:
            self._merge(turn, key, new)
        runs = {each: self._runs(turn, own, each) for each in dict.fromkeys((key, old_key))}
        self._recheck(turn, new, turn.state.ledger.about(name, *runs), runs)
        for each, found in runs.items():
            self._judge_rows(turn, own, each, found)

    def amended_late(self, turn: Turn, own: RuleState, new: Entry) -> None:
        """It is in no row of the window any more, but a trigger may rest on it."""
        episode = new.evidence.episode_id
        resting = [item for item in self.own_standing(turn) if any(e.episode_id == episode for e in item.evidence)]
        keys = dict.fromkeys((self.reading.key(new), *(item.key for item in resting)))
        runs = {each: self._runs(turn, own, each) for each in keys}
        self._recheck(turn, new, resting, runs)
        for each, found in runs.items():
            self._judge_rows(turn, own, each, found)

    def _counts(self, entry: Entry) -> bool:
        return self.reading.says(entry) == "counts"

    def _same_row(self, entry: Entry, key: Key) -> bool:
        return entry.bearing != "silent" and self.reading.key(entry) == key

    def _taking_in(self, turn: Turn, key: Key, failure_type: str) -> Trigger | None:
        """The trigger that further evidence of this kind belongs to, if there is one."""
        for item in turn.state.ledger.about(self.rule.name, key):
            if item.failure_type == failure_type and item.live(turn.now):
                return item
        return None

    def _merge(self, turn: Turn, key: Key, entry: Entry) -> None:
        trigger = self._taking_in(turn, key, entry.failure_type)
        if trigger is not None:
            entry.taken[self.rule.name] = trigger.trigger_id
            trigger.merged += 1

    def _cool(self, turn: Turn, key: Key) -> None:
        """One more episode of a row: closed triggers of that row come nearer to the end of their time."""
        ledger = turn.state.ledger
        for item in ledger.about(self.rule.name, key):
            if item.cooldown_left > 0:
                ledger.cool(item)

    def _recheck(self, turn: Turn, entry: Entry, concerned: list[Trigger], runs: dict[Key, list[list[Entry]]]) -> None:
        """After an amendment: withdraw the triggers that no longer hold. ``runs``: by their keys."""
        name, episode = self.rule.name, entry.evidence.episode_id
        about = (self.reading.key(entry), entry.failure_type)
        counts = self._counts(entry)
        for trigger in concerned:
            if not trigger.standing:
                continue
            if any(item.episode_id == episode for item in trigger.evidence):
                agrees = counts and about == (trigger.key, trigger.failure_type)
                if not agrees and episode not in trigger.lost:
                    trigger.lost.append(episode)
                elif agrees and episode in trigger.lost:
                    trigger.lost.remove(episode)
            if self._holds(turn, trigger, runs[trigger.key]):
                continue
            turn.withdraw(
                trigger,
                f"verdict of episode {episode} was amended to revision {entry.evidence.revision}; no row of "
                f"{self.length} times {trigger.failure_type} is left",
            )
            for run in runs[trigger.key]:
                for other in run:
                    if other.taken.get(name) == trigger.trigger_id:
                        del other.taken[name]

    def _holds(self, turn: Turn, trigger: Trigger, runs: list[list[Entry]]) -> bool:
        name = self.rule.name
        for run in runs:
            about = len(run) >= self.length and run[0].failure_type == trigger.failure_type
            if about and any(entry.taken.get(name) == trigger.trigger_id for entry in run):
                return True
        some_left = any(turn.state.entry(item.episode_id) is None for item in trigger.evidence)
        return some_left and not trigger.lost

    def _judge_rows(self, turn: Turn, own: RuleState, key: Key, runs: list[list[Entry]]) -> None:
        for run in runs:
            if run and self._taking_in(turn, key, run[0].failure_type) is None:
                self._open(turn, key, self._free(run))
        self._set_row(turn, own, key, self._free(runs[-1]))

    def _free(self, run: list[Entry]) -> list[Entry]:
        """The end of a run that no trigger has taken in."""
        last_taken = max((i for i, entry in enumerate(run) if self.rule.name in entry.taken), default=-1)
        return run[last_taken + 1 :]

    def _set_row(self, turn: Turn, own: RuleState, key: Key, free: list[Entry]) -> None:
        """Note the row that goes on; empty for none."""
        before = own.rows.pop(key, None)
        if free:
            if len(own.rows) >= KEYS_MAX:
                raise TooMuchError(f"more than {KEYS_MAX} keys")
            own.rows[key] = Row(free[0].failure_type, [entry.evidence.episode_id for entry in free])
        if before is not None:
            turn.let_go(before.episodes)

    @staticmethod
    def _entries_of(turn: Turn, row: Row) -> list[Entry]:
        found = [turn.state.entry(episode) for episode in row.episodes]
        assert all(entry is not None for entry in found), "what a row needs is kept"
        return [entry for entry in found if entry is not None]

    def _runs(self, turn: Turn, own: RuleState, key: Key) -> list[list[Entry]]:
        """The unbroken rows of one failure type, each as its episodes in recorded order.

        The last one goes on; it is empty where the last episode was no failure.
        """
        runs: list[list[Entry]] = []
        current: list[Entry] = []
        for entry in turn.state.entries():
            if entry.number < own.since_number or not self._same_row(entry, key):
                continue
            counts = self._counts(entry)
            if counts and current and current[0].failure_type == entry.failure_type:
                current.append(entry)
                continue
            if current:
                runs.append(current)
            current = [entry] if counts else []
        return [*runs, current]

    def _open(self, turn: Turn, key: Key, free: list[Entry]) -> bool:
        """Open a trigger, if these episodes in a row are enough for one: on the first N, the others are merged."""
        if len(free) < self.length:
            return False
        evidence = tuple(entry.evidence for entry in free[: self.length])
        failure_type, text = free[0].failure_type, key.text(turn.state.policy)
        trigger = turn.open(
            self,
            Opening(
                key=key,
                key_text=text,
                about=f"{text} failure={failure_type}",
                failure_type=failure_type,
                evidence=evidence,
                seen=f"{self.length} times {failure_type} in a row",
                cause=free[self.length - 1],
                merged=len(free) - len(evidence),
            ),
        )
        for entry in free:
            entry.taken[self.rule.name] = trigger.trigger_id
        return True
