"""The trigger ledger: what was asked of whom, on which evidence, and what became of it. One per policy.

A trigger is *open* from its opening until it is answered for good or withdrawn:

    open ──accepted──> accepted ──done/failed/rejected──> done, failed, rejected
     │                     │
     └──evidence lost──────┴──> withdrawn

* While a trigger is open or accepted, further evidence for the same policy and failure type belongs to it (it is
  merged), and nothing is published again.
* The first closing answer (done, failed or rejected) counts; answers after it, or after a withdrawal, change nothing.
  So a request that was withdrawn had no closing answer before: whoever reads the topics takes it as withdrawn.
* After an answer the aftermath is merged too, for as many episodes as the rule's cool-down says.
* The id is derived from rule, version, key and the evidence at the opening, and never changes.
* A withdrawn trigger gives its episodes back: what remains of them may be evidence of another trigger.
"""

from typing import Literal

import msgspec

from stepwell.engine.rules import RowKey, Rule
from stepwell.events.ids import trigger_id_for
from stepwell.events.model import EvidenceEpisode

CLOSED_MAX = 256
"""Closed triggers kept per policy. Open ones are obligations and are never dropped."""

Status = Literal["open", "accepted", "done", "failed", "rejected", "withdrawn"]
_STANDING: tuple[Status, ...] = ("open", "accepted")
ANSWERS: tuple[Status, ...] = ("accepted", "done", "failed", "rejected")
CLOSING_ANSWERS: tuple[Status, ...] = ("done", "failed", "rejected")


class Trigger(msgspec.Struct, kw_only=True):
    """One entry of the ledger.

    Attributes:
        trigger_id, rule, rule_version, row, failure_type: what it is about; fixed at the opening.
        evidence: the episodes at the opening, as their verdicts stood then.
        opened_at: log time of the verdict that opened it (µs).
        status: where it stands.
        merged: further episodes that belonged to it.
        lost: those of ``evidence`` whose amended verdict no longer says so.
        cooldown_left: episodes that its aftermath still takes in, once it is closed by an answer.
        detail: the words of the answer that counts, or why it was withdrawn.
    """

    trigger_id: str
    rule: str
    rule_version: int
    row: RowKey
    failure_type: str
    evidence: tuple[EvidenceEpisode, ...]
    opened_at: int
    status: Status = "open"
    merged: int = 0
    lost: list[str] = msgspec.field(default_factory=list)
    cooldown_left: int = 0
    detail: str = ""

    @property
    def standing(self) -> bool:
        """Whether it can still be answered or withdrawn."""
        return self.status in _STANDING

    def takes_in(self, row: RowKey, failure_type: str) -> bool:
        """Whether further evidence of this kind is merged into it."""
        about = self.row == row and self.failure_type == failure_type
        return about and (self.standing or self.cooldown_left > 0)


class Ledger(msgspec.Struct, kw_only=True):
    """The triggers of one policy, in order of their opening."""

    triggers: dict[str, Trigger] = msgspec.field(default_factory=dict)

    def open(
        self, rule: Rule, policy: str, row: RowKey, failure_type: str, evidence: tuple[EvidenceEpisode, ...], at: int
    ) -> Trigger:
        """Enter a new trigger."""
        key = f"{row.text(policy)} failure={failure_type}"
        trigger_id = trigger_id_for(rule.name, rule.version, key, evidence)
        # An episode between them that broke the row for a while brings the very same evidence back after a withdrawal;
        # that is another trigger, or subscribers would take it for the one that they were told to forget.
        openings = 1
        while trigger_id in self.triggers:
            openings += 1
            trigger_id = trigger_id_for(rule.name, rule.version, f"{key} opening={openings}", evidence)
        trigger = Trigger(
            trigger_id=trigger_id,
            rule=rule.name,
            rule_version=rule.version,
            row=row,
            failure_type=failure_type,
            evidence=evidence,
            opened_at=at,
        )
        self.triggers[trigger_id] = trigger
        return trigger

    def taking_in(self, row: RowKey, failure_type: str) -> Trigger | None:
        """The trigger that further evidence of this kind belongs to, if there is one."""
        return next((item for item in self.triggers.values() if item.takes_in(row, failure_type)), None)

    def standing(self) -> list[Trigger]:
        """Those that can still be withdrawn."""
        return [item for item in self.triggers.values() if item.standing]

    def cool(self, row: RowKey) -> None:
        """One more episode of a row was recorded: closed triggers of that row come nearer to the end of their time."""
        for item in self.triggers.values():
            if item.cooldown_left > 0 and item.row == row:
                item.cooldown_left -= 1

    def answer(self, trigger_id: str, status: str, detail: str, cooldown: int) -> bool:
        """Note a training service's answer; False if it fits nothing here and was ignored."""
        trigger = self.triggers.get(trigger_id)
        known = next((answer for answer in ANSWERS if answer == status), None)
        if trigger is None or known is None or not trigger.standing:
            return False
        trigger.status, trigger.detail = known, detail
        if known in CLOSING_ANSWERS:
            trigger.cooldown_left = cooldown
            self._forget_old()
        return True

    def withdraw(self, trigger: Trigger, reason: str) -> None:
        """Note that a trigger lost its evidence."""
        trigger.status, trigger.detail = "withdrawn", reason
        self._forget_old()

    def _forget_old(self) -> None:
        closed = [item.trigger_id for item in self.triggers.values() if not item.standing and item.cooldown_left == 0]
        for trigger_id in closed[: max(0, len(closed) - CLOSED_MAX)]:
            del self.triggers[trigger_id]
