"""The policies of one partition of ``stepwell.policy-events``, and the rules in force there. Pure.

Most records concern one policy. Two concern all of them: a rule set that takes effect, and a tick. Each policy
remembers the last record that it holds, so that some may be ahead of others after a restart from snapshots.
"""

from typing import NamedTuple

import pydantic

from stepwell.engine.detection.fold import (
    Detector,
    RecordedAt,
    RuleFailedError,
    apply_parking,
    policy_of,
)
from stepwell.engine.detection.state import PolicyState, dump, load
from stepwell.engine.detection.turn import Said
from stepwell.engine.doubt import Suspects, in_doubt, unexpected
from stepwell.engine.ruleset import BUILT_IN, RuleSet, read_canonical
from stepwell.events.model import DetectorTicked, Event, RulesActivated
from stepwell.events.topics import POLICY_EVENTS
from stepwell.exceptions import DecodeError

Taken = list[Said]
"""What follows from a record, in order."""


class Place(NamedTuple):
    """Where an event stands in ``stepwell.policy-events``. ``timestamp``: the log's time of append (µs)."""

    partition: int
    offset: int
    timestamp: int


def rules_of(rules_json: str) -> RuleSet:
    """The rule set in force; the built-in one for an empty text.

    Raises:
        DecodeError: no rule set of this version, reason ``rules``.
    """
    if not rules_json:
        return BUILT_IN
    try:
        return read_canonical(rules_json)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise DecodeError(f"no rule set that this version reads: {place}: {first['msg']}", reason="rules") from None


class Policies:
    """The fold of one partition.

    Attributes:
        states: by policy.
        detector: judges by the rules in force.
        rules_json: these in canonical form; empty for the built-in ones.
        touched: the policies that the last record has changed.
    """

    def __init__(self, rules_json: str = "", suspects: Suspects[str] | None = None) -> None:
        self.states: dict[str, PolicyState] = {}
        self.touched: list[str] = []
        self.rules_json = rules_json
        self.detector = Detector(rules_of(rules_json))
        self._suspects: Suspects[str] = Suspects() if suspects is None else suspects
        self._deadlines: dict[str, int] = {}

    def adopt(self, state: PolicyState) -> None:
        """Take in a policy from its snapshot."""
        self.states[state.policy] = state
        self._note_deadline(state)

    def take(self, event: Event, place: RecordedAt) -> Taken:
        """Fold the partition's next record; policies that hold it already are left out.

        Raises:
            DecodeError: the record cannot be used; nothing was changed.
            StateDoubtError: a rule raised; restore, and fold again with the same suspects.
        """
        self.touched = []
        if isinstance(event, RulesActivated):
            self.activate(event.rules_json, place.offset)
            return []
        if isinstance(event, DetectorTicked):
            due = sorted(policy for policy, deadline in self._deadlines.items() if deadline <= event.now)
            return [found for policy in due for found in self._apply(self.states[policy], event, place)]
        policy = policy_of(event)
        if not policy:
            return []
        state = self.states.get(policy)
        if state is None:
            state = self.states[policy] = self.detector.begin(policy)
        return self._apply(state, event, place)

    def activate(self, rules_json: str, offset: int | None = None) -> None:
        """A rule set takes effect for what comes from now on.

        Args:
            rules_json: the set in canonical form.
            offset: of the record that says so; policies that hold it already are left out. None: there is no record.

        Raises:
            DecodeError: it is none that this version reads; the one before stays in force.
        """
        detector = Detector(rules_of(rules_json))
        self.detector, self.rules_json = detector, rules_json
        for state in self.states.values():
            if offset is None or state.last_offset < offset:
                detector.take_over(state)
                state.last_offset = state.last_offset if offset is None else offset
                self.touched.append(state.policy)
            self._note_deadline(state)

    def next_deadline(self) -> int | None:
        """When time alone will change something (µs); None: never."""
        return min(self._deadlines.values(), default=None)

    def _apply(self, state: PolicyState, event: Event, place: RecordedAt) -> Taken:
        if state.last_offset >= place.offset:
            return []
        policy = state.policy
        self.touched.append(policy)
        if policy in self._suspects:
            return self._apply_with_care(state, event, place)
        try:
            found = self.detector.apply(state, event, place)
        except MemoryError:
            raise
        except Exception as error:
            self._suspects.add(policy)
            cause = error.__cause__ if isinstance(error, RuleFailedError) else error
            assert isinstance(cause, Exception)
            raise in_doubt(f"{POLICY_EVENTS}/{place.partition} offset {place.offset}", cause) from error
        self._note_deadline(state)
        return list(found)

    def _apply_with_care(self, state: PolicyState, event: Event, place: RecordedAt) -> Taken:
        """Something has raised for this policy before: what raises again costs a rule, or the record."""
        kept = dump(state)
        try:
            state, found, parked = apply_parking(self.detector, state, event, place)
        except MemoryError:
            raise
        except Exception as error:
            self.states[state.policy] = load(kept)
            raise unexpected(event.TYPE, error) from error
        self.states[state.policy] = state
        self._note_deadline(state)
        return [*parked, *found]

    def _note_deadline(self, state: PolicyState) -> None:
        deadline = self.detector.deadline(state)
        if deadline is None:
            self._deadlines.pop(state.policy, None)
        else:
            self._deadlines[state.policy] = deadline

    def ledger_bytes(self) -> dict[str, bytes]:
        """The state of each policy as canonical bytes, for comparing."""
        return {policy: dump(state) for policy, state in sorted(self.states.items())}
