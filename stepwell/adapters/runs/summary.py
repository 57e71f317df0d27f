"""What came of a run: how many episodes were planned, attempted, errored and scored, and both success rates.

Errors say nothing about a policy, but leaving them out silently flatters whoever crashes often. So both rates are
given, each with its interval, and the counts beside them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from stepwell.engine.intervals import wilson
from stepwell.engine.state import AttemptState, EpisodeState
from stepwell.engine.verdict import verdict_of
from stepwell.events.model import VerdictIssued


@dataclass(slots=True)
class Tally:
    """Counts of episodes.

    Attributes:
        planned: asked for.
        attempted: a host took at least one attempt.
        scored: ended in success or failure of the policy.
        succeeded: of those scored.
        errored: ended by the simulator's or the infrastructure's fault.
        aborted: stopped by a person, and not answered by a later attempt.
    """

    planned: int = 0
    attempted: int = 0
    scored: int = 0
    succeeded: int = 0
    errored: int = 0
    aborted: int = 0

    @property
    def missing(self) -> int:
        """Planned episodes without an end yet."""
        return self.planned - self.scored - self.errored - self.aborted

    @property
    def rate_of_scored(self) -> float | None:
        """Success rate, errors excluded."""
        return self.succeeded / self.scored if self.scored else None

    @property
    def rate_with_errors(self) -> float | None:
        """Success rate, errors counted as failures."""
        trials = self.scored + self.errored
        return self.succeeded / trials if trials else None

    @property
    def interval_of_scored(self) -> tuple[float, float] | None:
        """95 % Wilson interval of `rate_of_scored`."""
        return wilson(self.succeeded, self.scored)

    @property
    def interval_with_errors(self) -> tuple[float, float] | None:
        """95 % Wilson interval of `rate_with_errors`."""
        return wilson(self.succeeded, self.scored + self.errored)


@dataclass(slots=True)
class Group:
    """Episodes of one policy in one scene under one perturbation."""

    policy: str
    scene: str
    perturbation: str
    tally: Tally = field(default_factory=Tally)
    causes: dict[tuple[str, str], int] = field(default_factory=dict)
    """(fault, failure type) -> episodes."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The run's whole and its groups."""

    total: Tally
    groups: tuple[Group, ...]


def counting_verdict(state: EpisodeState) -> VerdictIssued | None:
    """The verdict that stands for an episode: of the first attempt that was scored, else of the last one.

    So an attempt lost to infrastructure may be made good by a later one, but a policy's failure never. None while the
    last attempt has not ended and none before it was scored. The view ``episode_results`` follows the same rule.
    """
    last: VerdictIssued | None = None
    for number in sorted(state.attempts):
        attempt = state.attempts[number]
        last = verdict_of(attempt) if isinstance(attempt, AttemptState) else None
        if last is not None and last.outcome in ("success", "failure"):
            return last
    return last


def requested_at(state: EpisodeState) -> int:
    """When the episode was asked for first (microseconds since 1970-01-01 UTC); 0 where the log does not tell."""
    for number in sorted(state.attempts):
        attempt = state.attempts[number]
        if isinstance(attempt, AttemptState) and attempt.request is not None:
            return attempt.request.occurred_at
    return 0


def summarise(episodes: Iterable[EpisodeState], planned: int = 0) -> Summary:
    """Count folded episodes. ``planned``: how many the plan has, where not all may have been asked for yet."""
    total = Tally()
    groups: dict[tuple[str, str, str], Group] = {}
    for state in episodes:
        attempts = [attempt for attempt in state.attempts.values() if isinstance(attempt, AttemptState)]
        request = next((attempt.request for attempt in attempts if attempt.request is not None), None)
        if request is None:
            continue  # not asked for as far as the log tells
        key = (request.policy, request.scene, request.perturbation)
        group = groups.setdefault(key, Group(*key))
        verdict = counting_verdict(state)
        claimed = any(attempt.claimed or attempt.ready for attempt in attempts)
        for tally in (total, group.tally):
            _count(tally, verdict, claimed)
        if verdict is not None and verdict.failure_type is not None:
            cause = (verdict.fault or "", verdict.failure_type)
            group.causes[cause] = group.causes.get(cause, 0) + 1
    total.planned = max(total.planned, planned)
    return Summary(total, tuple(groups.values()))


def _count(tally: Tally, verdict: VerdictIssued | None, claimed: bool) -> None:
    tally.planned += 1
    tally.attempted += claimed
    match verdict.outcome if verdict else None:
        case "success":
            tally.scored += 1
            tally.succeeded += 1
        case "failure":
            tally.scored += 1
        case "error":
            tally.errored += 1
        case "aborted":
            tally.aborted += 1


def describe_rate(successes: int, trials: int, interval: Sequence[float] | None) -> str:
    """``7 of 12, 58 % (32 to 81)``; a dash without trials."""
    if not trials or interval is None:
        return "–"
    low, high = (100 * bound for bound in interval)
    return f"{successes} of {trials}, {100 * successes / trials:.0f} % ({low:.0f} to {high:.0f})"
