"""``stepwell status``: lag summed up so that it fits a screen."""

from datetime import UTC, datetime
from typing import Any

from rich.console import Console

from stepwell.cli.status import _lag, by_topic, dead_letters, requests, staleness, workers

EARLY, LATE = datetime(2026, 1, 1, 10, tzinfo=UTC), datetime(2026, 1, 1, 11, tzinfo=UTC)


def row(topic: str, partition: int, events: int = 0, seconds: float | None = 0.0, state: str = "caught up", seen_at: datetime = LATE) -> dict[str, Any]:  # noqa: E501 # fmt: skip
    return {
        "consumer": "stepwell-engine", "topic": topic, "partition": partition, "behind_events": events,
        "behind_s": seconds, "state": state, "seen_at": seen_at,
    }  # fmt: skip


ROWS = [
    row("events", 0, 5, 2.0, "behind"),
    row("events", 1, 7, 90.0, "behind", EARLY),
    row("events", 2),
    row("policies", 0),
    row("quiet", 0, 0, None, "silent"),
    row("quiet", 1, 3, 1.0, "behind"),
]


def shown(partitions: bool, rows: list[dict[str, Any]]) -> list[str]:
    console = Console(width=200, record=True, file=None, quiet=False)
    with console.capture() as captured:
        console.print(_lag(rows, partitions, 12.3))
    return [" ".join(line.split()) for line in captured.get().splitlines() if line.strip()]


def test_events_are_summed_and_the_worst_of_the_rest_is_told() -> None:
    events, policies, quiet = by_topic(ROWS)
    assert (events["partitions"], events["partitions_behind"]) == (3, 2)
    assert (events["behind_events"], events["behind_s"], events["state"], events["seen_at"]) == (12, 90.0, "behind", EARLY)  # noqa: E501 # fmt: skip
    assert (policies["behind_events"], policies["behind_s"], policies["state"]) == (0, 0.0, "caught up")
    assert (quiet["behind_events"], quiet["behind_s"], quiet["state"]) == (3, None, "silent")


def test_topics_that_are_caught_up_are_left_out_and_partitions_shown_on_demand() -> None:
    lines = shown(False, ROWS)
    assert any(line.startswith("stepwell-engine events 2 of 3 12 1 min 30 s behind") for line in lines)
    assert not any("policies" in line for line in lines)
    each = shown(True, ROWS)
    assert sum(line.startswith("stepwell-engine") for line in each) == len(ROWS)
    assert any("events/1 7 1 min 30 s" in line for line in each)
    assert shown(False, [row("events", n) for n in range(8)]) == [
        "How far behind: not at all, as of 12.3 s ago (8 partitions)."
    ]
    assert "Start one with: stepwell projector" in shown(False, [])[0]


def freshness(state: str, *, age_s: float | None = 95.0, reported: bool = True) -> dict[str, Any]:
    return {
        "state": state, "as_of": None if age_s is None else EARLY, "age_s": age_s,
        "seen_at": EARLY if reported else None, "seen_s_ago": 94.0 if reported else None,
    }  # fmt: skip


def test_what_is_not_true_now_is_said_to_be_of_then() -> None:
    assert staleness(freshness("current", age_s=1.0)) is None
    then = "As of 2026-01-01 10:00:00 UTC (1 min 35 s ago): the projector"
    assert staleness(freshness("silent")) == f"{then} has not reported for 1 min 34 s."
    assert staleness(freshness("behind")) == f"{then} is behind."
    assert staleness(freshness("behind", age_s=None)) == "As of an unknown moment: the projector is behind."
    never = staleness(freshness("silent", age_s=None, reported=False))
    assert never == "As of: unknown; no projector has reported yet. Start one with: stepwell projector"


def test_dead_letters_and_workers_are_told_in_a_line() -> None:
    assert dead_letters({"count": 0, "newest_s_ago": None}) == "Dead letters: none."
    assert dead_letters({"count": 3, "newest_s_ago": 121.0}) == "Dead letters: 3, newest 2 min 01 s ago."
    engine = {"worker_id": "stepwell-engine-0", "host": "lab", "silent": False, "heard_s_ago": 3.0}
    gone = {"worker_id": "stepwell-engine-1", "host": "\x1b[31m", "silent": True, "heard_s_ago": 90.0}
    assert workers([engine, gone], "current").splitlines() == [
        "Workers that report: stepwell-engine-0 on lab.",
        r"Workers no longer heard of: stepwell-engine-1 on \x1b[31m (for 1 min 30 s).",
    ]
    assert workers([engine], "behind") == "Workers that report, as of then: stepwell-engine-0 on lab."
    assert workers([engine], "silent") == (
        "Workers: not known, since no projector reports; nothing was read of: stepwell-engine-0 on lab (for 3.0 s)."
    )
    assert workers([], "silent") == "Workers: not known, since no projector reports."
    assert "none" in workers([], "current")


def test_requests_and_parked_rules_are_told_in_a_line() -> None:
    assert requests([], []) == "Requests: none stands; rules that failed and were parked: none."
    standing = [{"status": "open", "count": 3}, {"status": "muted", "count": 1}]
    parked = [{"rule": "still", "count": 1}, {"rule": "\x1b[2J", "count": 4}]
    assert requests(standing, parked) == (
        r"Requests: 3 open, 1 muted; rules that failed and were parked: still (1 time), \x1b[2J (4 times)."
    )
