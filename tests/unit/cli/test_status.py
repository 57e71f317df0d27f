"""``stepwell status``: lag summed up so that it fits a screen."""

from datetime import UTC, datetime
from typing import Any

from rich.console import Console

from stepwell.cli.status import _lag, by_topic

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
        console.print(_lag(rows, partitions))
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
    assert shown(False, [row("events", n) for n in range(8)]) == ["How far behind: not at all (8 partitions)."]
    assert "Start one with: stepwell projector" in shown(False, [])[0]
