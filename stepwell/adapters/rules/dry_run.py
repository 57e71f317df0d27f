"""A dry run: what another rule set would have made of the history in a log. Reads only; no producer is ever made.

Verdict rules judge what is recorded in ``stepwell.policy-events`` (`stepwell.engine.detection.dry_run`). Where the step
rules differ, too, the facts of the episodes are folded once more under the candidate's, and each recorded verdict is
given the outcome, failure type and labels that it would have had, at the place where it stands. (A verdict that only
the candidate would have amended once more, after the last recorded revision, keeps what that revision would have said.)
"""

from collections import Counter
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby

import msgspec

from stepwell.adapters.history import read_episode_events
from stepwell.adapters.rules.in_force import activations
from stepwell.engine.detection.dry_run import Comparison, DryLedger, compare, dry_run
from stepwell.engine.detection.policies import Place
from stepwell.engine.fold import apply
from stepwell.engine.ports import MessageLog
from stepwell.engine.reading import read_range, watermarks_of
from stepwell.engine.ruleset import RuleSet
from stepwell.engine.state import AttemptState, EpisodeState, Position
from stepwell.engine.verdict import verdict_of
from stepwell.events.codec import Codec
from stepwell.events.model import Event, VerdictIssued
from stepwell.events.topics import POLICY_EVENTS
from stepwell.exceptions import ConfigurationError, EventError

History = list[tuple[Event, Place]]
_At = tuple[str, int, int, int]
"""A revision of a verdict, by episode, attempt, and partition and offset of the last fact that it rests on."""


@dataclass(frozen=True, slots=True)
class DryRunReport:
    """What would change.

    Attributes:
        comparison: triggers that appear, vanish, move or stay.
        verdicts: how many verdicts were judged, each with its last revision only.
        changed_verdicts: for how many of them the step rules would have said something else.
        attempts: how many ended attempts the candidate's step rules looked at; 0 where it has none.
        labels: of each of its step rules in how many of them it found its label.
        parked: of each rule that raised an error what it raised, a sentence each; it looked no further.
    """

    comparison: Comparison
    verdicts: int
    changed_verdicts: int
    attempts: int
    labels: dict[str, int]
    parked: tuple[str, ...]


def run_dry(log: MessageLog, codec: Codec, candidate: RuleSet, *, since_us: int | None = None) -> DryRunReport:
    """Compare what the rules in force found with what ``candidate`` would have found.

    ``since_us``: log time (µs since 1970 UTC) from which the candidate is taken to be in force; None: from the start.
    Attempts and verdicts recorded before that are judged as they were.

    Raises:
        TopicError: the log lacks a topic.
    """
    recorded = _histories(log, codec)
    judged = _Rejudged()
    histories = recorded
    if _step_rules_differ(log, codec, candidate):
        judged = _rejudge(log, codec, candidate, recorded, since_us)
        histories = [[(judged.put_into(event), place) for event, place in history] for history in recorded]
    before: DryLedger = dry_run(recorded)
    after: DryLedger = dry_run(histories, candidate, since_us=since_us)
    latest = {(e.episode_id, e.attempt) for history in recorded for e, _ in history if isinstance(e, VerdictIssued)}
    parked = dict.fromkeys((*judged.parked, *(detail for _, detail in after.parked)))
    counts = Counter(label for labels in judged.labels.values() for label in labels)
    return DryRunReport(
        compare(before, after),
        len(latest),
        len(judged.changed),
        len(judged.labels),
        {rule.name: counts[rule.name] for rule in candidate.steps},
        tuple(parked),
    )


def _histories(log: MessageLog, codec: Codec) -> list[History]:
    """The readable events of each partition that detectors fold, in order."""
    found: list[History] = []
    for source, marks in sorted(watermarks_of(log, POLICY_EVENTS).items()):
        history: History = []
        for batch in read_range(log, source, marks.low, marks.high):
            for offset, timestamp, value, headers in zip(
                batch.offsets, batch.timestamps, batch.values, batch.headers, strict=True
            ):
                try:
                    event = codec.decode_event(value, headers)
                except EventError:
                    continue
                history.append((event, Place(source.partition, offset, timestamp)))
        found.append(history)
    return found


# --- step rules ---------------------------------------------------------------------------------------------------


def _step_rules_differ(log: MessageLog, codec: Codec, candidate: RuleSet) -> bool:
    """Whether some attempt may have been judged by other step rules than the candidate's. None were built in."""
    if candidate.steps:
        return True
    for each in activations(log, codec):
        try:
            if each.rules().steps:
                return True
        except ConfigurationError:  # what this version cannot read may have been anything
            return True
    return False


@dataclass(slots=True)
class _Rejudged:
    """Verdicts under the candidate's step rules.

    Attributes:
        verdicts: by the recorded revision whose place they take.
        labels: of each attempt the labels of its last revision.
        changed: attempts of which the last revision would say something else.
        parked: what step rules raised, once each.
    """

    verdicts: dict[_At, VerdictIssued] = field(default_factory=dict)
    labels: dict[tuple[str, int], tuple[str, ...]] = field(default_factory=dict)
    changed: set[tuple[str, int]] = field(default_factory=set)
    parked: dict[str, None] = field(default_factory=dict)

    def put_into(self, event: Event) -> Event:
        """The event; of a verdict what the candidate would have said, at the recorded one's place."""
        if not isinstance(event, VerdictIssued) or (ours := self.verdicts.get(_at(event))) is None:
            return event
        return msgspec.structs.replace(
            event,
            outcome=ours.outcome,
            failure_type=ours.failure_type,
            fault=ours.fault,
            labels=ours.labels,
            label_steps=ours.label_steps,
            provenance=msgspec.structs.replace(event.provenance, rule_set=ours.provenance.rule_set),
        )


def _rejudge(
    log: MessageLog, codec: Codec, candidate: RuleSet, recorded: list[History], since_us: int | None
) -> _Rejudged:
    """Fold the facts of every episode under the candidate's step rules, partition after partition."""
    revisions = {_at(e): e for history in recorded for e, _ in history if isinstance(e, VerdictIssued)}
    found = _Rejudged()
    rules = candidate.steps_canonical()
    for _, events in groupby(read_episode_events(log, codec), key=lambda item: item[1].partition):
        for at, ours in _fold(_ruled_by(events, rules, since_us), revisions, found.parked):
            found.verdicts[at] = ours
            found.labels[at[:2]] = ours.labels
            # Revisions come in order, so the last one has the last word.
            _note(found.changed, at[:2], changed=_says(ours) != _says(revisions[at]))
    return found


def _ruled_by(
    events: Iterable[tuple[Event, Position]], rules: str, since_us: int | None
) -> Iterator[tuple[Event, Position]]:
    for event, position in events:
        candidates_turn = since_us is None or position.timestamp >= since_us
        yield event, position._replace(rules=rules) if candidates_turn else position


def _fold(
    events: Iterable[tuple[Event, Position]], wanted: Container[_At], parked: dict[str, None]
) -> Iterator[tuple[_At, VerdictIssued]]:
    """The verdict at each wanted moment, while the events of one partition are folded."""
    episodes: dict[str, EpisodeState] = {}
    for event, position in events:
        state = episodes.setdefault(event.episode_id, EpisodeState(event.episode_id))
        for finding in apply(state, event, position):
            if finding.kind == "rule_failed":
                parked[finding.detail] = None
        at = (event.episode_id, event.attempt, position.partition, position.offset)
        attempt = state.attempts.get(event.attempt)
        if at not in wanted or not isinstance(attempt, AttemptState):
            continue
        verdict = verdict_of(attempt)
        if verdict is not None:
            yield at, verdict


def _note(into: set[tuple[str, int]], attempt: tuple[str, int], *, changed: bool) -> None:
    if changed:
        into.add(attempt)
    else:
        into.discard(attempt)


def _at(verdict: VerdictIssued) -> _At:
    origin = verdict.provenance
    return verdict.episode_id, verdict.attempt, origin.partition, origin.last_offset


def _says(verdict: VerdictIssued) -> tuple[object, ...]:
    """What step rules have a say in; at which step a label was found is told, but judges nothing."""
    return verdict.outcome, verdict.failure_type, verdict.fault, verdict.labels
