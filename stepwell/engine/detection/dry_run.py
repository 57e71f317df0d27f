"""What other rules would have found in what was recorded. Pure: reads events, publishes nothing.

Usage, with ``histories`` the recorded events of each partition of ``stepwell.policy-events`` in order, each with where
it stands (anything with ``partition``, ``offset`` and ``timestamp``, e.g. `stepwell.engine.detection.policies.Place`)::

    recorded = dry_run(histories)
    candidate = dry_run(histories, rule_set, since_us=None)
    comparison = compare(recorded, candidate)

``histories`` is read once by each call; pass lists, or make the iterables anew.

Two limits. Answers in the log name the triggers of the rules that were in force, so a trigger that only the candidate
opens stays unanswered and takes in everything of its kind. And the ticks in the log are those that the rules in force
called for; under the candidate, what waits for time is settled at the policy's next record or recorded tick.
"""

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from stepwell.engine.detection.fold import RecordedAt
from stepwell.engine.detection.policies import Policies, Taken
from stepwell.engine.detection.turn import Parked
from stepwell.engine.doubt import StateDoubtError, Suspects
from stepwell.engine.ruleset import RuleSet
from stepwell.events.model import Event, PatternDetected, RulesActivated
from stepwell.exceptions import DecodeError

History = Iterable[tuple[Event, RecordedAt]]


@dataclass(frozen=True, slots=True)
class DryTrigger:
    """A trigger that a fold of the recorded events has opened.

    Attributes:
        pattern: what was, or would be, published at its opening: id, rule, key, failure type, evidence, detail.
        partition, offset: the record of ``stepwell.policy-events`` at which it opened.
        opened_at: log time of that (µs).
        status: where it stands at the end of the history, e.g. ``open``, ``done``, ``withdrawn``; ``closed`` where the
            ledger has forgotten how.
    """

    pattern: PatternDetected
    partition: int
    offset: int
    opened_at: int
    status: str

    @property
    def kind(self) -> tuple[str, str, str]:
        """What it is about, whatever opened it: rule, key and failure type."""
        return self.pattern.rule, self.pattern.rule_key, self.pattern.failure_type


@dataclass(frozen=True, slots=True)
class DryLedger:
    """Everything that a fold has opened, in order of log time; and the rules that raised (name, what they raised)."""

    triggers: tuple[DryTrigger, ...]
    parked: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Moved:
    """A trigger that opens at another record, or on other evidence."""

    recorded: DryTrigger
    candidate: DryTrigger


@dataclass(frozen=True, slots=True)
class Comparison:
    """What changes from one ledger to another.

    Attributes:
        appear, vanish: triggers of the candidate only, and of the recorded rules only.
        move: same rule name, key and failure type, another opening.
        stay: same rule name, key and failure type, same opening record and evidence (as the candidate has them).
    """

    appear: tuple[DryTrigger, ...]
    vanish: tuple[DryTrigger, ...]
    move: tuple[Moved, ...]
    stay: tuple[DryTrigger, ...]


def dry_run(
    histories: Iterable[History], candidate: RuleSet | None = None, *, since_us: int | None = None
) -> DryLedger:
    """The ledger that the recorded events of each partition give.

    Args:
        histories: the events of each partition, in order; unreadable records left out.
        candidate: another rule set; None: the rules as they were activated.
        since_us: log time (µs) from which the candidate is in force instead of whatever was activated; None: from the
            start.
    """
    triggers: list[DryTrigger] = []
    parked: list[tuple[str, str]] = []
    for history in histories:
        found = _partition(list(history), candidate, since_us)
        triggers += found.triggers
        parked += found.parked
    triggers.sort(key=lambda item: (item.opened_at, item.partition, item.offset))
    return DryLedger(tuple(triggers), tuple(parked))


def compare(recorded: DryLedger, candidate: DryLedger) -> Comparison:
    """What would change. Of several triggers of one kind the same openings are paired first, then in their order."""
    left: dict[tuple[str, str, str], deque[DryTrigger]] = defaultdict(deque)
    for trigger in recorded.triggers:
        left[trigger.kind].append(trigger)
    stay, others = [], []
    for trigger in candidate.triggers:
        same = next((item for item in left[trigger.kind] if _opening(item) == _opening(trigger)), None)
        if same is None:
            others.append(trigger)
        else:
            left[trigger.kind].remove(same)
            stay.append(trigger)
    appear, move = [], []
    for trigger in others:
        if left[trigger.kind]:
            move.append(Moved(left[trigger.kind].popleft(), trigger))
        else:
            appear.append(trigger)
    vanish = [item for waiting in left.values() for item in waiting]
    vanish.sort(key=lambda item: (item.opened_at, item.partition, item.offset))
    return Comparison(tuple(appear), tuple(vanish), tuple(move), tuple(stay))


def _opening(trigger: DryTrigger) -> tuple[int, int, tuple[tuple[str, int], ...]]:
    evidence = tuple((item.episode_id, item.revision) for item in trigger.pattern.evidence)
    return trigger.partition, trigger.offset, evidence


def _partition(history: list[tuple[Event, RecordedAt]], candidate: RuleSet | None, since_us: int | None) -> DryLedger:
    suspects: Suspects[str] = Suspects()
    while True:
        try:
            return _fold(history, candidate, since_us, suspects)
        except StateDoubtError:
            continue  # a rule raised: again, with a copy before each change of that policy


def _fold(
    history: list[tuple[Event, RecordedAt]], candidate: RuleSet | None, since_us: int | None, suspects: Suspects[str]
) -> DryLedger:
    text = candidate.canonical() if candidate is not None else ""
    policies = Policies(text if since_us is None else "", suspects)
    waiting = candidate is not None and since_us is not None
    opened: dict[str, DryTrigger] = {}
    parked: list[tuple[str, str]] = []
    for event, place in history:
        if waiting and since_us is not None and place.timestamp >= since_us:
            policies.activate(text)
            waiting = False
        if isinstance(event, RulesActivated) and candidate is not None and not waiting:
            continue
        try:
            _collect(policies.take(event, place), place, opened, parked)
        except DecodeError:
            continue
    statuses = {
        trigger_id: trigger.status
        for state in policies.states.values()
        for trigger_id, trigger in state.ledger.triggers.items()
    }
    return DryLedger(
        tuple(replace(item, status=statuses.get(trigger_id, item.status)) for trigger_id, item in opened.items()),
        tuple(parked),
    )


def _collect(found: Taken, place: RecordedAt, opened: dict[str, DryTrigger], parked: list[tuple[str, str]]) -> None:
    for item in found:
        if isinstance(item, PatternDetected):
            opened[item.trigger_id] = DryTrigger(item, place.partition, place.offset, item.occurred_at, "closed")
        elif isinstance(item, Parked):
            parked.append((item.rule, item.detail))
