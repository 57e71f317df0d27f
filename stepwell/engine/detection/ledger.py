"""The trigger ledger: what was asked of whom, on which evidence, and what became of it. One per policy.

    open ──acknowledged by a person──> acknowledged ──┐
     │  ──accepted by a service──────> accepted  ─────┼──done/failed/rejected──> done, failed, rejected
     │                                                ├──evidence lost─────────> withdrawn
    muted (found while muted; requested later) ───────┴──nobody closed it──────> expired

* While a trigger stands (open, acknowledged, accepted or muted), further evidence of its kind belongs to it (it is
  merged), and nothing is published again.
* The first closing answer (done, failed or rejected) counts; answers after it, after a withdrawal or after its time,
  change nothing. So a request that was withdrawn or expired had no closing answer before: whoever reads the topics
  takes it as that.
* After a closing answer the aftermath is merged too, for as many episodes and as long as the rule's cool-down says.
* The id is derived from rule, version, key and the evidence at the opening, and never changes.
* A withdrawn trigger gives its episodes back: what remains of them may be evidence of another trigger.
"""

import functools
from collections.abc import Iterator
from typing import Literal

import msgspec

from stepwell.engine.detection.bearing import Key, Reading
from stepwell.engine.ruleset import Counted
from stepwell.events.ids import trigger_id_for
from stepwell.events.model import EvidenceEpisode

CLOSED_MAX = 256
"""Closed triggers kept per policy, without their evidence."""

STANDING_MAX = 1024
"""Triggers of one policy that stand at a time; one more lets the oldest expire."""

Status = Literal["open", "acknowledged", "accepted", "muted", "done", "failed", "rejected", "withdrawn", "expired"]
_STANDING: tuple[Status, ...] = ("open", "acknowledged", "accepted", "muted")
ANSWERS: tuple[Status, ...] = ("accepted", "done", "failed", "rejected")
CLOSING_ANSWERS: tuple[Status, ...] = ("done", "failed", "rejected")


class Sample(msgspec.Struct):
    """The episodes behind a rule in the order of requests at its opening, as their verdicts stand now.

    Attributes:
        first, last: ranks between which the key's episodes belong to it.
        failures, episodes: counts of these.
        base: the key that they are compared with, by rules that compare.
        base_first, old_failures, old_episodes: of the base, up to the same last rank.
    """

    first: int
    last: int
    failures: int
    episodes: int
    base: Key | None = None
    base_first: int = 0
    old_failures: int = 0
    old_episodes: int = 0


class Trigger(msgspec.Struct, kw_only=True):
    """One entry of the ledger.

    Attributes:
        trigger_id, rule, rule_version, key, rule_key, failure_type: what it is about; fixed at the opening.
        evidence: the episodes at the opening, as their verdicts stood then; empty once it is closed and cooled down.
        seen: what was seen at the opening, in words and numbers.
        opened_at: log time of its opening (µs).
        run_id, trace_id: of the verdict that opened it.
        sample: what it rests on, for rules in the order of requests.
        status: where it stands.
        expires_us: how long after its request it expires (µs); 0 for never.
        types, labels: of the failures that its rule counts; empty for all. The rule itself may change.
        expires_at: when it expires unless closed before (µs); 0 for never, or not yet requested.
        orphaned: the rule has changed, gone or been parked since: it can be answered, but no verdict touches it.
        merged: further episodes that belonged to it.
        lost: those of ``evidence`` whose amended verdict no longer says so.
        cooldown_left: episodes that its aftermath still takes in, once it is closed by an answer.
        cooldown_until: and until when (µs).
        acknowledged_by: who has seen it.
        detail: the words of the answer that counts, or why it was withdrawn or expired.
    """

    trigger_id: str
    rule: str
    rule_version: int
    key: Key
    rule_key: str
    failure_type: str
    evidence: tuple[EvidenceEpisode, ...]
    seen: str
    opened_at: int
    run_id: str
    trace_id: str
    sample: Sample | None = None
    status: Status = "open"
    expires_us: int = 0
    types: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    expires_at: int = 0
    orphaned: bool = False
    merged: int = 0
    lost: list[str] = msgspec.field(default_factory=list)
    cooldown_left: int = 0
    cooldown_until: int = 0
    acknowledged_by: str = ""
    detail: str = ""

    @property
    def reading(self) -> Reading:
        """How its rule read entries when it opened."""
        counts = Counted(failure_types=list(self.types) or None, labels=list(self.labels) or None)
        return Reading((name for name, _ in self.key.parts), counts)

    @property
    def standing(self) -> bool:
        """Whether it can still be answered or withdrawn."""
        return self.status in _STANDING

    def live(self, now: int) -> bool:
        """Whether further evidence is merged into it: it stands, or its aftermath lasts."""
        return self.standing or self.cooldown_left > 0 or now < self.cooldown_until


class Ledger(msgspec.Struct, kw_only=True, dict=True):
    """The triggers of one policy.

    Attributes:
        triggers: all that are known, by id, in order of their opening.
        live_ids: those that may still take evidence in, in the same order.

    What is worked out from these is kept beside them until something changes, and is no part of the state.
    """

    triggers: dict[str, Trigger] = msgspec.field(default_factory=dict)
    live_ids: list[str] = msgspec.field(default_factory=list)

    def open(self, trigger: Trigger, about: str) -> Trigger:
        """Enter a new trigger and give it its id. ``about``: its key in full, as it goes into the id."""
        trigger_id = trigger_id_for(trigger.rule, trigger.rule_version, about, trigger.evidence)
        # An episode between them that broke the row for a while brings the very same evidence back after a withdrawal;
        # that is another trigger, or subscribers would take it for the one that they were told to forget.
        openings = 1
        while trigger_id in self.triggers:
            openings += 1
            again = f"{about} opening={openings}"
            trigger_id = trigger_id_for(trigger.rule, trigger.rule_version, again, trigger.evidence)
        trigger.trigger_id = trigger_id
        self.triggers[trigger_id] = trigger
        self.live_ids.append(trigger_id)
        self.changed()
        return trigger

    def changed(self) -> None:
        """A trigger was opened, requested, answered or put away: what was worked out holds no more."""
        self.__dict__.clear()

    @functools.cached_property
    def _by_key(self) -> dict[tuple[str, Key], list[Trigger]]:
        found: dict[tuple[str, Key], list[Trigger]] = {}
        for item in self.live():
            if not item.orphaned:
                found.setdefault((item.rule, item.key), []).append(item)
        return found

    def about(self, rule: str, *keys: Key) -> list[Trigger]:
        """Those of a rule and of one of these keys that stand or cool down, but for the orphaned."""
        if not self.live_ids:
            return []
        found = self._by_key
        return [item for key in keys for item in found.get((rule, key), ())]

    @functools.cached_property
    def next_expiry(self) -> int | None:
        """When the first standing one expires (µs); None: never."""
        return min((item.expires_at for item in self.live() if item.expires_at and item.standing), default=None)

    @functools.cached_property
    def _next_end(self) -> int | None:
        """From when on one of them takes nothing in any more (µs)."""
        ends = (item.cooldown_until for item in self.live() if not item.standing and item.cooldown_left == 0)
        return min(ends, default=None)

    def cool(self, trigger: Trigger) -> None:
        """One more episode of its aftermath."""
        trigger.cooldown_left = max(0, trigger.cooldown_left - 1)
        if trigger.cooldown_left == 0:
            self.changed()

    def live(self) -> Iterator[Trigger]:
        """Those that stand or cool down."""
        return (self.triggers[trigger_id] for trigger_id in self.live_ids)

    def standing(self) -> list[Trigger]:
        """Those that can still be answered or withdrawn."""
        return [item for item in self.live() if item.standing]

    def settle(self, now: int) -> None:
        """Put away what no longer takes anything in."""
        if not self.live_ids or self._next_end is None or self._next_end > now:
            return
        left = [trigger_id for trigger_id in self.live_ids if self.triggers[trigger_id].live(now)]
        for trigger_id in set(self.live_ids).difference(left):
            self.triggers[trigger_id].evidence = ()
            self.triggers[trigger_id].lost = []
        self.live_ids = left
        self.changed()
        too_many = len(self.triggers) - len(left) - CLOSED_MAX
        if too_many > 0:
            live = set(left)
            for trigger_id in [item for item in self.triggers if item not in live][:too_many]:
                del self.triggers[trigger_id]

    def answer(self, trigger_id: str, status: str, detail: str) -> Trigger | None:
        """Note a training service's answer; the trigger, or None if it fits nothing here and was ignored."""
        trigger = self.triggers.get(trigger_id)
        known = next((answer for answer in ANSWERS if answer == status), None)
        if trigger is None or known is None or not trigger.standing:
            return None
        trigger.status, trigger.detail = known, detail
        self.changed()
        return trigger

    def acknowledge(self, trigger_id: str, by: str) -> bool:
        """Note that a person has seen it; False if it does not stand."""
        trigger = self.triggers.get(trigger_id)
        if trigger is None or not trigger.standing:
            return False
        trigger.acknowledged_by = by
        if trigger.status == "open":
            trigger.status = "acknowledged"
        return True
