"""Which verdict counts, and how that changes: sums of signs say it at any time."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.projections.sums.standing import EARLIEST_US, LATEST_US, VERDICT_COLUMNS, changes_of
from stepwell.projections.tables import KINDS, Values

NOW = 1_790_000_000_000_000
COLUMNS = KINDS["verdict_changes"].columns


def verdict(attempt: int, revision: int, outcome: str, offset: int = 0, **more: Any) -> Values:
    fields: dict[str, Any] = {
        **dict.fromkeys(VERDICT_COLUMNS), "episode_id": "e-1", "attempt": attempt, "revision": revision,
        "outcome": outcome, "n_steps": 7, "issued_at": NOW + offset, "requested_at": NOW - attempt, "logged_at": NOW,
        "verdict_partition": 2, "verdict_offset": offset, **more,
    }  # fmt: skip
    return tuple(fields[name] for name in VERDICT_COLUMNS)


def rows_of(*verdicts: Values) -> list[dict[str, Any]]:
    return [dict(zip(COLUMNS, row, strict=True)) for _, rows in changes_of(verdicts) for row in rows]


def brief(*verdicts: Values) -> list[tuple[int, int, int]]:
    return [(row["sign"], row["attempt"], row["revision"]) for row in rows_of(*verdicts)]


def test_the_first_verdict_counts() -> None:
    (row,) = rows_of(verdict(1, 1, "success", offset=9))
    assert (row["sign"], row["change"], row["at"], row["n_steps"]) == (1, 1, NOW - 1, 7)
    assert (row["source_partition"], row["source_offset"]) == (2, 9)


def test_a_revision_takes_the_old_one_back() -> None:
    rows = rows_of(verdict(1, 1, "failure"), verdict(1, 3, "success", offset=4))
    assert [(row["sign"], row["outcome"], row["change"]) for row in rows] == [
        (1, "failure", 1), (-1, "failure", 2), (1, "success", 3),
    ]  # fmt: skip
    assert {row["source_offset"] for row in rows[1:]} == {4}


def test_a_revision_that_comes_after_a_later_one_changes_nothing() -> None:
    assert brief(verdict(1, 3, "success"), verdict(1, 1, "failure")) == [(1, 1, 3)]


def test_an_error_is_made_good_by_the_next_attempt_and_a_failure_never() -> None:
    assert brief(verdict(1, 1, "error"), verdict(2, 1, "success")) == [(1, 1, 1), (-1, 1, 1), (1, 2, 1)]
    assert brief(verdict(1, 1, "failure"), verdict(2, 1, "success")) == [(1, 1, 1)]


def test_what_is_no_longer_scored_gives_way() -> None:
    changes = brief(verdict(1, 1, "failure"), verdict(2, 1, "success"), verdict(1, 2, "error"))
    assert changes == [(1, 1, 1), (-1, 1, 1), (1, 2, 1)]


@pytest.mark.parametrize(
    ("times", "at"),
    [
        ({"requested_at": None, "started_at": NOW - 5}, NOW - 5),
        ({"requested_at": 0, "started_at": None, "ended_at": NOW - 3}, NOW - 3),
        ({"requested_at": LATEST_US, "issued_at": NOW}, NOW),
        ({"requested_at": None, "issued_at": 5}, EARLIEST_US),
        ({"requested_at": None, "issued_at": 2**62}, LATEST_US - 1),
    ],
)
def test_a_time_that_cannot_be_believed_is_passed_over(times: dict[str, Any], at: int) -> None:
    (row,) = rows_of(verdict(1, 1, "success", **times))
    assert row["at"] == at


VERDICTS = st.lists(
    st.tuples(st.integers(1, 3), st.integers(1, 4), st.sampled_from(["success", "failure", "error", "aborted"])),
    max_size=12, unique_by=lambda each: each[:2],
)  # fmt: skip


@given(VERDICTS)
def test_signs_add_up_to_the_verdict_that_counts(told: list[tuple[int, int, str]]) -> None:
    verdicts = [verdict(*each, offset=place) for place, each in enumerate(told)]
    for end in range(1, len(told) + 1):
        signs: Counter[tuple[int, int]] = Counter()
        for sign, attempt, revision in brief(*verdicts[:end]):
            signs[attempt, revision] += sign
        assert {key: count for key, count in signs.items() if count} == {counts(told[:end]): 1}


@given(VERDICTS)
def test_what_is_known_before_changes_no_row_that_was_made(told: list[tuple[int, int, str]]) -> None:
    verdicts = [verdict(*each, offset=place) for place, each in enumerate(told)]
    whole = rows_of(*verdicts)
    for end in range(len(told) + 1):
        part = rows_of(*verdicts[:end])
        assert whole[: len(part)] == part


def counts(told: list[tuple[int, int, str]]) -> tuple[int, int]:
    """By the words of the view episode_results."""
    last: dict[int, tuple[int, str]] = {}
    for attempt, revision, outcome in told:
        if attempt not in last or revision > last[attempt][0]:
            last[attempt] = (revision, outcome)
    scored = sorted(attempt for attempt, (_, outcome) in last.items() if outcome in ("success", "failure"))
    attempt = scored[0] if scored else max(last)
    return attempt, last[attempt][0]
