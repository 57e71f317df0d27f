"""The detector: one fold per policy over ``stepwell.policy-events``.

`Detector.apply` takes the next recorded event of a policy and gives what it makes the detector say. All it knows comes
from the events and their positions, so folding the topic again, from the start or from a snapshot, gives the same
state byte for byte and the same triggers with the same ids.

Verdicts are kept in a window, in the order in which their first revision was recorded. Rules over rows judge each as it
is recorded; rules over rates judge it when its turn comes in the order of requests (see
`stepwell.engine.detection.admission`). An amended verdict takes the old one's place, and everything that rests on it is
judged again.

Time is what the log tells: the time of append of the policy's own records, and ticks. What it makes due (expiries, ends
of mutes, passed turns) is settled before the record itself.
"""

import hashlib
from collections.abc import Callable, Iterable
from typing import Protocol

from stepwell.engine.detection import admission, mutes
from stepwell.engine.detection.bearing import WAITING, Entry, entry_of
from stepwell.engine.detection.in_a_row import InARowJudge
from stepwell.engine.detection.in_order import InOrderJudge
from stepwell.engine.detection.ledger import CLOSING_ANSWERS
from stepwell.engine.detection.sequential import RateJudge, ShiftJudge
from stepwell.engine.detection.state import KEPT_MAX, PolicyState, Row, RuleState, dump, load
from stepwell.engine.detection.turn import AnyVerdictRule, Judge, Parked, Refused, Said, TooMuchError, Turn
from stepwell.engine.detection.window_rate import WindowRateJudge
from stepwell.engine.ruleset import BUILT_IN, WINDOW_MAX, InARowRule, RateRule, RuleSet, WindowRateRule
from stepwell.events.model import (
    EVALUATION,
    DetectorTicked,
    Event,
    RetrainAcknowledged,
    RetrainAnswered,
    RetrainMuted,
    RetrainUnmuted,
    VerdictExpected,
    VerdictIssued,
)


class RecordedAt(Protocol):
    """Where an event stands in ``stepwell.policy-events``; `stepwell.engine.state.Position` is one."""

    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...


class RuleFailedError(Exception):
    """A rule raised. The state may be half changed: take a copy from before, see `apply_parking`."""

    def __init__(self, rule: str, error: Exception) -> None:
        super().__init__(f"rule {rule} raised {type(error).__name__}: {error}")
        self.rule = rule


_OF_A_POLICY = (
    VerdictIssued,
    VerdictExpected,
    RetrainAnswered,
    RetrainAcknowledged,
    RetrainMuted,
    RetrainUnmuted,
)


def policy_of(event: Event) -> str:
    """The policy that an event of ``stepwell.policy-events`` is about; empty for one that is about none."""
    return event.policy if isinstance(event, _OF_A_POLICY) else ""


def judge_of(rule: AnyVerdictRule) -> Judge:
    """The rule, compiled."""
    digest = hashlib.sha256(rule.model_dump_json().encode()).hexdigest()[:32]
    if isinstance(rule, InARowRule):
        return InARowJudge(rule, digest)
    if isinstance(rule, WindowRateRule):
        return WindowRateJudge(rule, digest)
    if isinstance(rule, RateRule):
        return RateJudge(rule, digest)
    return ShiftJudge(rule, digest)


class Detector:
    """Judges by one rule set. Holds no state of its own, so one instance serves every policy."""

    def __init__(self, rule_set: RuleSet = BUILT_IN) -> None:
        self.rule_set = rule_set
        self.judges: dict[str, Judge] = {rule.name: judge_of(rule) for rule in rule_set.verdicts}
        self._rows = [judge for judge in self.judges.values() if isinstance(judge, InARowJudge)]
        self._in_order = [judge for judge in self.judges.values() if isinstance(judge, InOrderJudge)]
        self._wait_us = int(rule_set.wait_s * 1_000_000)

    # --- the fold -----------------------------------------------------------------------------------------------------

    def begin(self, policy: str) -> PolicyState:
        """The state of a policy of which nothing is known yet."""
        return PolicyState(policy, rules={name: RuleState(judge.digest) for name, judge in self.judges.items()})

    def take_over(self, state: PolicyState) -> None:
        """This rule set takes effect for what comes from now on.

        Rules that are the same as before go on. What another or a parked rule has seen is dropped; its open triggers
        stay in the ledger, and no verdict touches them any more.
        """
        before, state.rules = state.rules, {}
        for name, judge in self.judges.items():
            kept = before.get(name)
            if kept is None or kept.digest != judge.digest or name in state.parked:
                kept = RuleState(judge.digest, since_number=state.recorded, since_rank=state.admitted)
            state.rules[name] = kept
        for trigger in state.ledger.live():
            trigger.orphaned |= self._changed(before, state, trigger.rule)
            if trigger.orphaned:
                trigger.cooldown_left = trigger.cooldown_until = 0
        state.ledger.changed()
        for entry in state.entries():
            if entry.taken:
                entry.taken = {
                    name: trigger for name, trigger in entry.taken.items() if not self._changed(before, state, name)
                }
        state.parked.clear()
        Turn(state, self.judges).let_go(list(state.kept))

    @staticmethod
    def _changed(before: dict[str, RuleState], state: PolicyState, rule: str) -> bool:
        return rule not in state.rules or state.rules[rule] is not before.get(rule)

    def apply(self, state: PolicyState, event: Event, position: RecordedAt) -> list[Said]:
        """Fold the policy's next event in place; what follows from it, in order.

        Raises:
            RuleFailedError: a rule raised, and the state may be half changed.
        """
        at = event.now if isinstance(event, DetectorTicked) else position.timestamp
        state.now = max(state.now, at)
        state.last_offset = position.offset
        turn = Turn(state, self.judges)
        self._settle(turn)
        match event:
            case VerdictIssued():
                self._verdict(turn, event, position)
            case VerdictExpected():
                self._expected(turn, event)
            case RetrainAnswered():
                self._answered(turn, event)
            case RetrainAcknowledged():
                state.ignored += not state.ledger.acknowledge(event.trigger_id, event.acknowledged_by)
            case RetrainMuted():
                self._muted(turn, event)
            case RetrainUnmuted():
                self._unmuted(turn, event)
            case _:
                pass  # a tick: all that it brings is settled by now
        return turn.out

    def deadline(self, state: PolicyState) -> int | None:
        """When time alone will change something (µs); None: never."""
        expiry = state.ledger.next_expiry
        due = [] if expiry is None else [expiry]
        if self._in_order and state.held:
            due.append(next(iter(state.held.values())) + self._wait_us)
        due += [until for until in state.mutes.values() if until]
        return min(due, default=None)

    # --- what time brings ---------------------------------------------------------------------------------------------

    def _settle(self, turn: Turn) -> None:
        """Expiries, ends of mutes, ends of cool-downs, passed turns: whatever is due by now."""
        state, now = turn.state, turn.now
        expiry = state.ledger.next_expiry
        if expiry is not None and expiry <= now:
            for trigger in state.ledger.standing():
                if trigger.expires_at and trigger.expires_at <= now:
                    turn.expire(trigger, f"nobody closed it in {trigger.expires_us / 1_000_000:g} s")
        state.ledger.settle(now)
        if mutes.over(state.mutes, now):
            self._request_unmuted(turn)
        if state.held:
            self._admit(turn, admission.overdue(state, self._wait_us))

    def _request_unmuted(self, turn: Turn) -> None:
        """Request what was found while muted and is muted no more."""
        for trigger in turn.state.ledger.standing():
            if trigger.status == "muted" and not turn.state.muted(trigger.rule):
                turn.request(trigger)

    # --- what records bring -------------------------------------------------------------------------------------------

    def _expected(self, turn: Turn, event: VerdictExpected) -> None:
        if event.purpose == EVALUATION:
            self._admit(turn, admission.expect(turn.state, event.episode_id))
        else:
            turn.state.ignored += 1

    def _verdict(self, turn: Turn, verdict: VerdictIssued, position: RecordedAt) -> None:
        state, episode = turn.state, verdict.episode_id
        old = state.entry(episode)
        known = old.evidence.revision if old is not None else state.forgotten.get(episode)
        # A retry is the episode again: only first attempts have a place. And only evaluations.
        strange = verdict.attempt != 1 or (known is None and verdict.purpose != EVALUATION)
        if strange or (known is not None and verdict.revision <= known):
            state.ignored += 1
            return
        entry = entry_of(verdict, position.partition, position.offset)
        if known is None:
            state.hold(episode, entry)
            self._trim(turn)
            self._ask(turn, self._rows, lambda judge, own: judge.recorded(turn, own, entry))
            self._admit(turn, admission.arrived(state, entry))
            self._admit(turn, admission.overdue(state, self._wait_us))
            return
        if old is None:
            state.forgotten[episode] = verdict.revision
            self._ask(turn, self.judges.values(), lambda judge, own: judge.amended_late(turn, own, entry))
            return
        state.replace(episode, entry)
        concerned: Iterable[Judge] = self.judges.values() if entry.rank != WAITING else self._rows
        self._ask(turn, concerned, lambda judge, own: judge.amended(turn, own, old, entry))
        turn.let_go([episode])

    def _answered(self, turn: Turn, event: RetrainAnswered) -> None:
        trigger = turn.state.ledger.answer(event.trigger_id, event.status, event.detail)
        if trigger is None:
            turn.state.ignored += 1
            return
        if trigger.status not in CLOSING_ANSWERS:
            return
        judge = turn.judge_of(trigger)
        if judge is not None:
            trigger.cooldown_left = judge.rule.cooldown_episodes
            if judge.rule.cooldown_s > 0.0:
                trigger.cooldown_until = turn.now + int(judge.rule.cooldown_s * 1_000_000)
            turn.state.ledger.changed()
        turn.released(trigger)
        turn.state.ledger.settle(turn.now)

    def _muted(self, turn: Turn, event: RetrainMuted) -> None:
        became = mutes.mute(turn.state.mutes, event.rule, event.until, turn.now)
        if became == "ended":
            self._request_unmuted(turn)
        elif became == "nothing":
            turn.state.ignored += 1
        elif became == "refused":
            detail = f"policy {event.policy}: {mutes.MUTES_MAX} mutes run already; end some that are not needed first"
            turn.out.append(Refused("mutes", detail))

    def _unmuted(self, turn: Turn, event: RetrainUnmuted) -> None:
        if mutes.unmute(turn.state.mutes, event.rule):
            self._request_unmuted(turn)
        else:
            turn.state.ignored += 1

    # --- the rules ----------------------------------------------------------------------------------------------------

    def _trim(self, turn: Turn) -> None:
        """Let the oldest leave a full window; whoever waits there has their turn first, and rows that go on stay."""
        state = turn.state
        while len(state.window) > WINDOW_MAX:
            oldest = next(iter(state.window))
            if state.window[oldest].rank == WAITING:
                self._admit(turn, admission.through(state, oldest))
            if turn.keeps(state.window[oldest]):
                state.keep(oldest)
            else:
                state.forget(oldest)
        if len(state.kept) > KEPT_MAX:
            most = max(self._rows, key=lambda judge: sum(len(row.episodes) for row in self._rows_of(state, judge)))
            turn.park(most.rule.name, f"more than {KEPT_MAX} episodes of rows that go on")

    @staticmethod
    def _rows_of(state: PolicyState, judge: Judge) -> Iterable[Row]:
        return state.rules[judge.rule.name].rows.values()

    def _admit(self, turn: Turn, entries: Iterable[Entry]) -> None:
        """These have their turn in the order of requests."""
        for entry in entries:
            entry.rank = turn.state.admitted
            turn.state.admitted += 1
            if self._in_order and entry.bearing != "silent":
                self._ask(
                    turn,
                    self._in_order,
                    lambda judge, own, entry=entry: judge.admitted(turn, own, entry),  # type: ignore[misc]
                )

    @staticmethod
    def _ask(turn: Turn, judges: Iterable[Judge], question: Callable[[Judge, RuleState], None]) -> None:
        """Let the rules judge that are not parked.

        Raises:
            RuleFailedError: one raised.
        """
        state = turn.state
        for judge in judges:
            name = judge.rule.name
            if state.parked and name in state.parked:
                continue
            try:
                question(judge, state.rules[name])
            except TooMuchError as error:
                turn.park(name, str(error))
            except MemoryError:
                raise
            except Exception as error:
                raise RuleFailedError(name, error) from error


def apply_parking(
    detector: Detector, state: PolicyState, event: Event, position: RecordedAt
) -> tuple[PolicyState, list[Said], list[Parked]]:
    """As `Detector.apply`, but rules that raise are parked from this event on, as if they had never seen it.

    Costs a copy of the state; so it is used for policies only for which a rule has raised before.

    Returns:
        The state that goes on (another object where a rule raised), as `Detector.apply`, and whose rules raised.
    """
    kept = dump(state)
    parked: list[Parked] = []
    while True:
        try:
            return state, detector.apply(state, event, position), parked
        except RuleFailedError as error:
            parked.append(Parked(error.rule, str(error)))
            state = load(kept)
            for rule, _ in parked:
                state.parked[rule] = position.offset
            Turn(state, detector.judges).let_go(list(state.kept))
