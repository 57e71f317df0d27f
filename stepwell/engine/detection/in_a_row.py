"""The same failure type N times in a row, in the order in which the first revisions of the verdicts were recorded.

A success, or a failure that the rule does not count or of another type, breaks the row; what is silent is skipped. An
amended verdict takes the old one's place and everything that rests on it is judged again:

* A standing trigger *holds* while an unbroken row of N or more in the window contains one of its episodes; once part
  of its opening evidence has left the window, also while none of that evidence was amended away. Else it is withdrawn.
* Where a row of N or more is not yet taken in by a trigger, its first N free episodes open one; the others are merged.

Fires by chance: at a failure rate q, with every episode independent and of one failure type, on average after
``(q**-N - 1) / (1 - q)`` episodes (W. Feller, An Introduction to Probability Theory and Its Applications I, 3rd ed.,
Wiley 1968, XIII.7).
"""

from stepwell.engine.detection.bearing import Entry, Key
from stepwell.engine.detection.ledger import Trigger
from stepwell.engine.detection.state import RuleState
from stepwell.engine.detection.turn import Judge, Opening, Turn
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
            return
        name, free = self.rule.name, []
        for before in reversed(turn.state.window.values()):
            if before.number < own.since_number:
                break
            if not self._same_row(before, key):
                continue
            if before.failure_type != entry.failure_type or name in before.taken or not self._counts(before):
                break
            free.append(before)
        self._open(turn, key, free[::-1])

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
        self._recheck(turn, own, new)
        self._judge_rows(turn, own, key)
        if old_key != key:
            self._judge_rows(turn, own, old_key)

    def amended_late(self, turn: Turn, own: RuleState, new: Entry) -> None:
        """It is in no row of the window any more, but a trigger may rest on it."""
        self._recheck(turn, own, new)
        self._judge_rows(turn, own, self.reading.key(new))

    def _counts(self, entry: Entry) -> bool:
        return self.reading.says(entry) == "counts"

    def _same_row(self, entry: Entry, key: Key) -> bool:
        return entry.bearing != "silent" and self.reading.key(entry) == key

    def _taking_in(self, turn: Turn, key: Key, failure_type: str) -> Trigger | None:
        """The trigger that further evidence of this kind belongs to, if there is one."""
        name, ledger = self.rule.name, turn.state.ledger
        if not ledger.live_ids:
            return None
        for item in ledger.live():
            about = item.rule == name and item.key == key and item.failure_type == failure_type
            if about and not item.orphaned and item.live(turn.now):
                return item
        return None

    def _merge(self, turn: Turn, key: Key, entry: Entry) -> None:
        trigger = self._taking_in(turn, key, entry.failure_type)
        if trigger is not None:
            entry.taken[self.rule.name] = trigger.trigger_id
            trigger.merged += 1

    def _cool(self, turn: Turn, key: Key) -> None:
        """One more episode of a row: closed triggers of that row come nearer to the end of their time."""
        ledger, name = turn.state.ledger, self.rule.name
        if not ledger.live_ids:
            return
        for item in ledger.live():
            if item.cooldown_left > 0 and item.rule == name and item.key == key and not item.orphaned:
                item.cooldown_left -= 1

    def _recheck(self, turn: Turn, own: RuleState, entry: Entry) -> None:
        """After an amendment: withdraw the triggers that no longer hold."""
        name, episode = self.rule.name, entry.evidence.episode_id
        about = (self.reading.key(entry), entry.failure_type)
        counts = self._counts(entry)
        for trigger in self.own_standing(turn):
            if any(item.episode_id == episode for item in trigger.evidence):
                agrees = counts and about == (trigger.key, trigger.failure_type)
                if not agrees and episode not in trigger.lost:
                    trigger.lost.append(episode)
                elif agrees and episode in trigger.lost:
                    trigger.lost.remove(episode)
            if self._holds(turn, own, trigger):
                continue
            turn.withdraw(
                trigger,
                f"verdict of episode {episode} was amended to revision {entry.evidence.revision}; no row of "
                f"{self.length} times {trigger.failure_type} is left",
            )
            for other in turn.state.window.values():
                if other.taken.get(name) == trigger.trigger_id:
                    del other.taken[name]

    def _holds(self, turn: Turn, own: RuleState, trigger: Trigger) -> bool:
        name = self.rule.name
        for run in self._runs(turn, own, trigger.key):
            about = len(run) >= self.length and run[0].failure_type == trigger.failure_type
            if about and any(entry.taken.get(name) == trigger.trigger_id for entry in run):
                return True
        some_left = any(item.episode_id not in turn.state.window for item in trigger.evidence)
        return some_left and not trigger.lost

    def _judge_rows(self, turn: Turn, own: RuleState, key: Key) -> None:
        name = self.rule.name
        for run in self._runs(turn, own, key):
            if self._taking_in(turn, key, run[0].failure_type) is None:
                last_taken = max((i for i, entry in enumerate(run) if name in entry.taken), default=-1)
                self._open(turn, key, run[last_taken + 1 :])

    def _runs(self, turn: Turn, own: RuleState, key: Key) -> list[list[Entry]]:
        """The unbroken rows of one failure type in the window, each as its episodes in recorded order."""
        runs: list[list[Entry]] = []
        current: list[Entry] = []
        for entry in turn.state.window.values():
            if entry.number < own.since_number or not self._same_row(entry, key):
                continue
            counts = self._counts(entry)
            if counts and current and current[0].failure_type == entry.failure_type:
                current.append(entry)
                continue
            if current:
                runs.append(current)
            current = [entry] if counts else []
        if current:
            runs.append(current)
        return runs

    def _open(self, turn: Turn, key: Key, free: list[Entry]) -> None:
        """Open a trigger, if these episodes in a row are enough for one: on the first N, the others are merged."""
        if len(free) < self.length:
            return
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
