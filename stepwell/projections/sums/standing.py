"""Which verdict counts for an episode, and how that changes. Pure: verdicts in the order of the log in, rows out.

The rule is that of the view ``episode_results``: the first attempt that was scored stands with its last revision, since
what infrastructure ended may be made good by a later attempt and a policy's failure never; else the last attempt. A sum
over verdicts can't ask which of them still counts. So each change becomes rows of its own, -1 of the old verdict and +1
of the new, and a sum over those is right at any time.
"""

from collections.abc import Iterable, Iterator, Sequence

from stepwell.projections.tables import KINDS, Values

__all__ = ["VERDICT_COLUMNS", "changes_of"]

VERDICT_COLUMNS = (
    "episode_id", "attempt", "revision", "run_id", "policy", "policy_version", "checkpoint", "task", "scene",
    "perturbation", "purpose", "outcome", "failure_type", "fault", "n_steps", "issued_at", "requested_at", "started_at",
    "ended_at", "logged_at", "verdict_partition", "verdict_offset",
)  # fmt: skip
"""What must be known of a verdict; times in µs since 1970."""

_PLACE = {name: place for place, name in enumerate(VERDICT_COLUMNS)}
_ATTEMPT, _REVISION, _OUTCOME, _ISSUED = (_PLACE[name] for name in ("attempt", "revision", "outcome", "issued_at"))
_TIMES = tuple(_PLACE[name] for name in ("requested_at", "started_at", "ended_at", "issued_at"))
_SCORED = ("success", "failure")
# From 2000 to 2100: beyond, the table takes no row.
EARLIEST_US, LATEST_US = 946_684_800_000_000, 4_102_444_800_000_000
# The columns of a change that are the verdict's own, in their order, and those that are the record's that made it.
_OWN = tuple(_PLACE[name] for name in KINDS["verdict_changes"].columns[4:-3])
_CAUSE = tuple(_PLACE[name] for name in ("logged_at", "verdict_partition", "verdict_offset"))


def changes_of(verdicts: Iterable[Values]) -> Iterator[tuple[Values, list[Values]]]:
    """For each verdict the rows of ``verdict_changes`` that it makes.

    Args:
        verdicts: all of one episode, as `VERDICT_COLUMNS`, in the order of the log. Of those with one attempt and
            revision, the first one alone.
    """
    latest: dict[int, Values] = {}
    standing: Values | None = None
    count = 0
    for verdict in verdicts:
        known = latest.get(verdict[_ATTEMPT])
        if known is None or verdict[_REVISION] > known[_REVISION]:
            latest[verdict[_ATTEMPT]] = verdict
        now = _standing(latest)
        rows = []
        if now is not standing:
            for which, sign in ((standing, -1), (now, 1)):
                if which is not None:
                    count += 1
                    rows.append(_row(which, sign, count, cause=verdict))
            standing = now
        yield verdict, rows


def _standing(latest: dict[int, Values]) -> Values:
    scored = [attempt for attempt, verdict in latest.items() if verdict[_OUTCOME] in _SCORED]
    return latest[min(scored) if scored else max(latest)]


def _row(verdict: Values, sign: int, change: int, *, cause: Values) -> Values:
    own: Sequence[object] = [verdict[place] for place in _OWN]
    return (_time(verdict), verdict[0], change, sign, *own, *(cause[place] for place in _CAUSE))


def _time(verdict: Values) -> int:
    """When the attempt was asked for, as far as that can be believed."""
    for place in _TIMES:
        at = verdict[place]
        if at is not None and EARLIEST_US <= at < LATEST_US:
            return int(at)
    return min(max(int(verdict[_ISSUED]), EARLIEST_US), LATEST_US - 1)
