"""What of a run is still to be done, judged from the log: that is all that resuming needs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from stepwell.adapters.history import latest_attempt
from stepwell.adapters.runs.plan import PlannedEpisode
from stepwell.engine.state import AttemptState, EpisodeState
from stepwell.engine.verdict import verdict_of

NO_ANSWER = ("host_lost", "silent_timeout")
"""Failure types that say only that whoever ran the attempt has vanished."""

Standing = Literal["new", "requested", "interrupted", "again", "done", "elsewhere"]
"""Where an episode stands:

* ``new``: never asked for; ``requested``: asked for, nobody took it;
* ``interrupted``: this host had it when an earlier process died; ``again``: it ended without an answer (aborted, its
  host was lost, or it fell silent), or with an error that is to be tried again;
* ``done``: it has its answer; ``elsewhere``: another host has it now.
"""


@dataclass(frozen=True, slots=True)
class Todo:
    """One planned episode and where it stands.

    Attributes:
        episode: the plan.
        standing: see `Standing`.
        attempt: the latest attempt in the log; 0 where there is none.
        host_seq: the host's next sequence in that attempt.
    """

    episode: PlannedEpisode
    standing: Standing
    attempt: int
    host_seq: int


def judge(episode: PlannedEpisode, states: Mapping[str, EpisodeState], producer_id: str, *, retry_errors: bool) -> Todo:
    """Where a planned episode stands for the host ``producer_id``."""
    state = states.get(episode.episode_id)
    attempt = None if state is None else latest_attempt(state)
    if attempt is None:
        return Todo(episode, "new", 0, 0)
    return Todo(episode, _standing(attempt, producer_id, retry_errors), attempt.attempt, attempt.host.next_seq)


def _standing(attempt: AttemptState, producer_id: str, retry_errors: bool) -> Standing:
    if not attempt.ended:
        if not attempt.claimed:
            return "requested"
        return "interrupted" if attempt.host.producer_id == producer_id else "elsewhere"
    verdict = verdict_of(attempt)
    unanswered = verdict is None or verdict.outcome == "aborted" or verdict.failure_type in NO_ANSWER
    if unanswered or (retry_errors and verdict is not None and verdict.outcome == "error"):
        return "again"
    return "done"
