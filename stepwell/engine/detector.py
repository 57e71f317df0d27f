"""The detector: one fold per policy over ``stepwell.policy-events``.

`apply` takes the next recorded event of a policy and gives what it makes the detector say. All it knows comes from the
events and their positions, so folding the topic again, from the start or from a snapshot, gives the same state byte for
byte and the same triggers with the same ids.

Verdicts are kept in a window, in the order in which their first revision was recorded. An amended verdict takes the old
one's place and everything that rests on it is judged again:

* A standing trigger *holds* while an unbroken row of N or more in the window contains one of its episodes; once part
  of its opening evidence has left the window, also while none of that evidence was amended away. Else it is withdrawn.
* Where a row of N or more is not yet taken in by a trigger, its first N free episodes open one; the others are merged.

Sampling weights of a request: the share of the evidence that fell into each (scene, perturbation),
``w(c) = |{e in evidence: cell(e) = c}| / |evidence|``. They sum to 1; cells in alphabetical order.
"""

from collections import Counter
from typing import Protocol

import msgspec

from stepwell.engine.ledger import Ledger, Trigger
from stepwell.engine.rules import (
    SAME_FAILURE_IN_A_ROW,
    WINDOW_MAX,
    Bearing,
    RowKey,
    Rule,
    bearing,
    row_key,
    rules_hash,
)
from stepwell.events.ids import derived_event_id
from stepwell.events.model import (
    Event,
    EvidenceEpisode,
    PatternDetected,
    RetrainAnswered,
    RetrainRequested,
    RetrainWithdrawn,
    SamplingWeight,
    VerdictIssued,
)

DETECTOR_VERSION = 1
"""Raise it whenever this module, the ledger or the rules judge differently."""

FORGOTTEN_MAX = 2048
"""Episodes remembered by revision alone after they left the window: a late amendment must not pass for a new one."""

PRODUCER_ID = "detector"


class RecordedAt(Protocol):
    """Where an event stands in ``stepwell.policy-events``; `stepwell.engine.fold.Position` is one."""

    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...


class Entry(msgspec.Struct):
    """A verdict in the window; ``trigger`` names the trigger that took it in."""

    evidence: EvidenceEpisode
    row: RowKey
    bearing: Bearing
    failure_type: str
    run_id: str
    trace_id: str
    trigger: str = ""


class PolicyState(msgspec.Struct):
    """What the detector knows of one policy.

    Attributes:
        policy: its name.
        window: the last `WINDOW_MAX` episodes by episode id, in recorded order.
        forgotten: the last revision of episodes that left the window, oldest first.
        ledger: its triggers.
        published: how many events went out; the next one's ``producer_seq``.
        ignored: verdicts and answers that changed nothing (repeats, old revisions, answers to nobody).
    """

    policy: str
    window: dict[str, Entry] = msgspec.field(default_factory=dict)
    forgotten: dict[str, int] = msgspec.field(default_factory=dict)
    ledger: Ledger = msgspec.field(default_factory=Ledger)
    published: int = 0
    ignored: int = 0


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(PolicyState)


def dump(state: PolicyState) -> bytes:
    """The state as canonical bytes: equal states give equal bytes."""
    return _ENCODER.encode(state)


def load(data: bytes) -> PolicyState:
    """The state that `dump` wrote."""
    return _DECODER.decode(data)


def policy_of(event: Event) -> str:
    """The policy that an event of ``stepwell.policy-events`` is about; empty for one that detectors don't read."""
    if isinstance(event, VerdictIssued | RetrainAnswered):
        return event.policy
    return ""


class Detector:
    """Judges one rule. Holds no state of its own, so one instance serves every policy."""

    def __init__(self, rule: Rule = SAME_FAILURE_IN_A_ROW) -> None:
        self.rule = rule
        self.hash = rules_hash(rule, DETECTOR_VERSION)

    def apply(self, state: PolicyState, event: Event, position: RecordedAt) -> list[Event]:
        """Fold the policy's next event in place; what the detector has to publish because of it, in order."""
        if isinstance(event, VerdictIssued):
            return self._verdict(state, event, position)
        if isinstance(event, RetrainAnswered) and not state.ledger.answer(
            event.trigger_id, event.status, event.detail, self.rule.cooldown
        ):
            state.ignored += 1
        return []

    def _verdict(self, state: PolicyState, verdict: VerdictIssued, position: RecordedAt) -> list[Event]:
        episode = verdict.episode_id
        old = state.window.get(episode)
        known = old.evidence.revision if old else state.forgotten.get(episode)
        # A retry is the episode again: only first attempts have a place in a row.
        if verdict.attempt != 1 or (known is not None and verdict.revision <= known):
            state.ignored += 1
            return []
        entry = _entry(verdict, position)
        if known is None or old is not None:
            self._place(state, episode, entry, old)
        else:
            state.forgotten[episode] = verdict.revision
        if known is None:
            return self._judge_end(state, entry, position)
        withdrawn = self._recheck(state, episode, entry, position)
        opened = self._judge_row(state, entry.row, position)
        if old is not None and old.row != entry.row:
            opened += self._judge_row(state, old.row, position)
        return [*withdrawn, *opened]

    def _place(self, state: PolicyState, episode: str, entry: Entry, old: Entry | None) -> None:
        """Put an entry into the window: an amended verdict at the old one's place, a new one at the end."""
        if old is not None and (old.row, old.failure_type) == (entry.row, entry.failure_type):
            entry.trigger = old.trigger
        elif entry.bearing == "counts":
            taking_in = state.ledger.taking_in(entry.row, entry.failure_type)
            if taking_in is not None:
                entry.trigger = taking_in.trigger_id
                taking_in.merged += 1
        state.window[episode] = entry
        if old is not None:
            return
        if entry.bearing != "silent":
            state.ledger.cool(entry.row)
        while len(state.window) > WINDOW_MAX:
            oldest = next(iter(state.window))
            state.forgotten[oldest] = state.window.pop(oldest).evidence.revision
        while len(state.forgotten) > FORGOTTEN_MAX:
            del state.forgotten[next(iter(state.forgotten))]

    def _recheck(self, state: PolicyState, episode: str, entry: Entry, position: RecordedAt) -> list[Event]:
        """After an amendment: withdraw the triggers that no longer hold."""
        out: list[Event] = []
        for trigger in state.ledger.standing():
            if any(item.episode_id == episode for item in trigger.evidence):
                agrees = entry.bearing == "counts" and (entry.row, entry.failure_type) == (
                    trigger.row,
                    trigger.failure_type,
                )
                if not agrees and episode not in trigger.lost:
                    trigger.lost.append(episode)
                elif agrees and episode in trigger.lost:
                    trigger.lost.remove(episode)
            if self._holds(state, trigger):
                continue
            reason = (
                f"verdict of episode {episode} was amended to revision {entry.evidence.revision}; no row of "
                f"{self.rule.length} times {trigger.failure_type} is left"
            )
            state.ledger.withdraw(trigger, reason)
            for other in state.window.values():
                if other.trigger == trigger.trigger_id:
                    other.trigger = ""
            out.append(self._withdrawn(state, trigger, reason, entry, position))
        return out

    def _holds(self, state: PolicyState, trigger: Trigger) -> bool:
        for run in _runs(state, trigger.row):
            about = len(run) >= self.rule.length and run[0].failure_type == trigger.failure_type
            if about and any(entry.trigger == trigger.trigger_id for entry in run):
                return True
        some_left = any(item.episode_id not in state.window for item in trigger.evidence)
        return some_left and not trigger.lost

    def _judge_end(self, state: PolicyState, entry: Entry, position: RecordedAt) -> list[Event]:
        """After a new verdict: only the row that it ends can have become long enough."""
        if entry.bearing != "counts" or entry.trigger:
            return []
        free: list[Entry] = []
        for before in reversed(state.window.values()):
            if before.row != entry.row or before.bearing == "silent":
                continue
            if before.failure_type != entry.failure_type or before.trigger:
                break
            free.append(before)
        return self._open(state, free[::-1], position)

    def _judge_row(self, state: PolicyState, row: RowKey, position: RecordedAt) -> list[Event]:
        """After an amendment: open triggers for the rows of N or more that none has taken in."""
        out: list[Event] = []
        for run in _runs(state, row):
            if state.ledger.taking_in(row, run[0].failure_type) is None:
                last_taken = max((i for i, entry in enumerate(run) if entry.trigger), default=-1)
                out += self._open(state, run[last_taken + 1 :], position)
        return out

    def _open(self, state: PolicyState, free: list[Entry], position: RecordedAt) -> list[Event]:
        """Open a trigger, if these episodes in a row are enough for one: on the first N, the others are merged."""
        if len(free) < self.rule.length:
            return []
        evidence = tuple(entry.evidence for entry in free[: self.rule.length])
        row, failure_type = free[0].row, free[0].failure_type
        trigger = state.ledger.open(self.rule, state.policy, row, failure_type, evidence, position.timestamp)
        for entry in free:
            entry.trigger = trigger.trigger_id
        trigger.merged = len(free) - len(evidence)
        return self._opened(state, trigger, free[self.rule.length - 1])

    def _opened(self, state: PolicyState, trigger: Trigger, last: Entry) -> list[Event]:
        pattern = PatternDetected(
            event_id=derived_event_id("failure::pattern_detected", trigger.trigger_id),
            run_id=last.run_id,
            episode_id="",
            attempt=1,
            producer_id=PRODUCER_ID,
            producer_seq=state.published,
            occurred_at=trigger.opened_at,
            trace_id=last.trace_id,
            trigger_id=trigger.trigger_id,
            rule=trigger.rule,
            rule_version=trigger.rule_version,
            rule_key=trigger.row.text(state.policy),
            policy=state.policy,
            policy_version=trigger.row.policy_version,
            checkpoint=trigger.row.checkpoint,
            failure_type=trigger.failure_type,
            evidence=trigger.evidence,
            promise=self.rule.promise,
        )
        request = RetrainRequested(
            event_id=derived_event_id("retrain::requested", trigger.trigger_id),
            run_id=pattern.run_id,
            episode_id="",
            attempt=1,
            producer_id=PRODUCER_ID,
            producer_seq=state.published + 1,
            occurred_at=trigger.opened_at,
            trace_id=pattern.trace_id,
            trigger_id=trigger.trigger_id,
            rule=pattern.rule,
            rule_version=pattern.rule_version,
            rule_key=pattern.rule_key,
            policy=pattern.policy,
            policy_version=pattern.policy_version,
            checkpoint=pattern.checkpoint,
            failure_type=pattern.failure_type,
            evidence=pattern.evidence,
            sampling_weights=sampling_weights(trigger.evidence),
            requested_by=f"{PRODUCER_ID} rule {trigger.rule} version {trigger.rule_version}",
        )
        state.published += 2
        return [pattern, request]

    def _withdrawn(
        self, state: PolicyState, trigger: Trigger, reason: str, entry: Entry, position: RecordedAt
    ) -> RetrainWithdrawn:
        event = RetrainWithdrawn(
            event_id=derived_event_id("retrain::withdrawn", trigger.trigger_id),
            run_id=entry.run_id,
            episode_id="",
            attempt=1,
            producer_id=PRODUCER_ID,
            producer_seq=state.published,
            occurred_at=position.timestamp,
            trace_id=entry.trace_id,
            trigger_id=trigger.trigger_id,
            policy=state.policy,
            reason=reason,
        )
        state.published += 1
        return event


def _entry(verdict: VerdictIssued, position: RecordedAt) -> Entry:
    evidence = EvidenceEpisode(
        episode_id=verdict.episode_id,
        attempt=verdict.attempt,
        revision=verdict.revision,
        partition=position.partition,
        offset=position.offset,
        scene=verdict.scene,
        perturbation=verdict.perturbation,
        seed=verdict.seed,
        n_steps=verdict.n_steps,
    )
    says = bearing(verdict)
    failure_type = (verdict.failure_type or "") if says == "counts" else ""
    return Entry(evidence, row_key(verdict), says, failure_type, verdict.run_id, verdict.trace_id)


def _runs(state: PolicyState, row: RowKey) -> list[list[Entry]]:
    """The unbroken rows of one failure type in the window, each as its episodes in recorded order."""
    runs: list[list[Entry]] = []
    current: list[Entry] = []
    for entry in state.window.values():
        if entry.row != row or entry.bearing == "silent":
            continue
        if entry.bearing == "counts" and current and current[0].failure_type == entry.failure_type:
            current.append(entry)
            continue
        if current:
            runs.append(current)
        current = [entry] if entry.bearing == "counts" else []
    if current:
        runs.append(current)
    return runs


def sampling_weights(evidence: tuple[EvidenceEpisode, ...]) -> tuple[SamplingWeight, ...]:
    """Share of the evidence per (scene, perturbation); see the module's formula."""
    cells = Counter((item.scene, item.perturbation) for item in evidence)
    return tuple(
        SamplingWeight(scene=scene, perturbation=perturbation, weight=count / len(evidence))
        for (scene, perturbation), count in sorted(cells.items())
    )
