"""``stepwell status``: lag summed up so that it fits a screen."""

from datetime import UTC, datetime
from typing import Any

from rich.console import Console

from stepwell.adapters.workers.survey import LogSurvey, PartitionSurvey
from stepwell.cli.status import by_topic, dead_letters, lag, requests, staleness, upkeep, workers
from stepwell.cli.status_of_log import Asked
from stepwell.events.model import WorkerReported

EARLY, LATE = datetime(2026, 1, 1, 10, tzinfo=UTC), datetime(2026, 1, 1, 11, tzinfo=UTC)


def row(topic: str, partition: int, events: int = 0, seconds: float | None = 0.0, state: str = "caught up", seen_at: datetime = LATE, **other: Any) -> dict[str, Any]:  # noqa: E501 # fmt: skip
    return {
        "consumer": "stepwell-engine", "topic": topic, "partition": partition, "behind_events": events,
        "behind_s": seconds, "state": state, "looked_at": seen_at, "events_per_s": 2.0, "catch_up_s": 0.0,
        "waits_for": "", **other,
    }  # fmt: skip


ROWS = [
    row("events", 0, 5, 2.0, "behind", catch_up_s=10.0),
    row("events", 1, 7, 90.0, "behind", EARLY, catch_up_s=20.0, events_per_s=None),
    row("events", 2),
    row("policies", 0),
    row("quiet", 0, 0, None, "silent"),
    row("quiet", 1, 3, 1.0, "behind", catch_up_s=None),
    row("held", 0, 3, 1.0, "waiting", waits_for="log: away"),
]


def printed(*told: Any) -> list[str]:
    console = Console(width=200, record=True, file=None, quiet=False)
    with console.capture() as captured:
        for each in told:
            console.print(each)
    return [" ".join(line.split()) for line in captured.get().splitlines() if line.strip()]


def shown(partitions: bool, rows: list[dict[str, Any]]) -> list[str]:
    return printed(lag(rows, 12.3, partitions=partitions))


def test_events_are_summed_and_the_worst_of_the_rest_is_told() -> None:
    found = by_topic(ROWS)
    assert [each["topic"] for each in found] == ["quiet", "held", "events", "policies"], "the worst first"
    quiet, _, events, policies = found
    assert (events["partitions"], events["partitions_behind"]) == (3, 2)
    assert (events["behind_events"], events["behind_s"], events["state"], events["looked_at"]) == (12, 90.0, "behind", EARLY)  # noqa: E501 # fmt: skip
    assert (events["events_per_s"], events["catch_up_s"]) == (4.0, 20.0)
    assert (policies["behind_events"], policies["behind_s"], policies["state"]) == (0, 0.0, "caught up")
    assert (quiet["behind_events"], quiet["behind_s"], quiet["state"], quiet["catch_up_s"]) == (3, None, "silent", None)


def test_topics_that_are_caught_up_are_left_out_and_partitions_shown_on_demand() -> None:
    lines = shown(False, ROWS)
    assert any(line.startswith("stepwell-engine events 2 of 3 12 1 min 30 s 4.0 20.0 s behind") for line in lines)
    assert any(line.startswith("stepwell-engine held 1 of 1 3 1.0 s 2.0 ? waiting log: away") for line in lines)
    assert not any("policies" in line for line in lines)
    each = shown(True, ROWS)
    assert sum(line.startswith("stepwell-engine") for line in each) == len(ROWS)
    assert any("events/1 7 1 min 30 s ? 20.0 s" in line for line in each)
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
    assert staleness(freshness("behind"), "log: a\x1b") == rf"{then} is behind; it waits for log: a\x1b."
    assert staleness(freshness("behind", age_s=None)) == "As of an unknown moment: the projector is behind."
    never = staleness(freshness("silent", age_s=None, reported=False))
    assert never == "As of: unknown; no projector has reported yet. Start one with: stepwell projector"


def test_dead_letters_are_told_in_a_line() -> None:
    assert dead_letters({"count": 0, "newest_s_ago": None}) == "Dead letters: none."
    assert dead_letters({"count": 3, "newest_s_ago": 121.0}) == "Dead letters: 3, newest 2 min 01 s ago."


def worker(name: str, state: str = "running", **other: Any) -> dict[str, Any]:
    return {
        "worker_id": name, "host": "lab", "state": state, "waits_for": "", "last_error": "", "last_error_s_ago": None,
        "progress_s_ago": 1.0, "heard_s_ago": 3.0, **other,
    }  # fmt: skip


def test_workers_are_a_line_while_all_is_well() -> None:
    assert workers([worker("a"), worker("\x1b[31m")], "current") == [r"Workers that report: a on lab, \x1b[31m on lab."]
    assert workers([worker("a")], "behind") == ["Workers that report, as of then: a on lab."]
    assert workers([worker("a")], "silent") == [
        "Workers: not known, since no projector reports; last heard of: a (3.0 s ago)."
    ]
    assert workers([], "silent") == ["Workers: not known, since no projector reports."]
    assert "none" in workers([], "current")[0]


def test_a_worker_in_trouble_makes_it_a_table_with_what_it_waits_for_and_what_went_wrong() -> None:
    old = worker("b", last_error="long ago", last_error_s_ago=7200.0)
    assert workers([old], "current") == ["Workers that report: b on lab."]
    wrong = [
        worker("a", "failed", last_error="stuck: it hung", last_error_s_ago=90.0),
        worker("c", "waiting", waits_for="database: refused\n\tIs the server running?"),
    ]
    lines = printed(*workers(wrong, "current"))
    assert "a lab failed stuck: it hung 1 min 30 s ago 1.0 s ago 3.0 s ago" in lines
    assert "c lab waiting database: refused 1.0 s ago 3.0 s ago" in lines


REPORT = WorkerReported(
    worker_id="stepwell-engine-0", kind="engine", host="lab", pid=1, version="1", started_at=0, report_seq=0,
    reported_at=1_000_000_000, state="waiting", waits_for="log: away", last_error="away", reads=(),
)  # fmt: skip


def asked(now: int, *partitions: PartitionSurvey) -> Asked:
    return Asked(LogSurvey(now, partitions, [REPORT]))


def test_what_the_log_itself_says() -> None:
    now = 1_020_000_000
    left = [
        PartitionSurvey("stepwell-engine", "events", 0, 5, 9, 4, now - 60_000_000),
        PartitionSurvey("stepwell-engine", "events", 1, None, 3, 3, now - 7_200_000_000),
        PartitionSurvey("stepwell-engine", "quiet", 0, 3, 3, 0, None),
    ]
    lines = printed(*asked(now, *left).shown(True, partitions=False))
    assert "stepwell-engine events 7 2h" in lines
    assert not any("quiet" in line for line in lines)
    assert "stepwell-engine-0 lab waiting log: away away 20s ago" in lines
    lines = printed(*asked(now, *left).shown(True, partitions=True))
    assert "stepwell-engine events/0 4 1m" in lines
    assert any("quiet/0 0" in line for line in lines)
    (first, *_, last) = printed(*asked(now + 60_000_000, left[2]).shown(False, partitions=False))
    assert "nothing is left to do for any worker" in first
    assert "silent (was waiting)" in last
    assert Asked(None, "away").as_json() == {"problem": "away"}
    assert printed(*Asked(None, "away").shown(True, partitions=False)) == ["Asked of the log itself: away"]


def test_requests_and_parked_rules_are_told_in_a_line() -> None:
    assert requests([], []) == "Requests: none stands; rules that failed and were parked: none."
    standing = [{"status": "open", "count": 3}, {"status": "muted", "count": 1}]
    parked = [{"rule": "still", "count": 1}, {"rule": "\x1b[2J", "count": 4}]
    assert requests(standing, parked) == (
        r"Requests: 3 open, 1 muted; rules that failed and were parked: still (1 time), \x1b[2J (4 times)."
    )


def test_upkeep_that_nobody_does_is_told() -> None:
    def told(seconds: float | None, storage: str = "plain") -> str | None:
        return upkeep({"storage": storage, "ended_at": None, "ended_s_ago": seconds})

    assert told(None) == "Upkeep: not done yet. On plain PostgreSQL run once a day: stepwell db upkeep"
    assert told(3 * 3600.0) == "Upkeep: done 3 h 00 min ago."
    assert told(3 * 86_400.0) == "Upkeep: done 72 h 00 min ago. It must run once a day: stepwell db upkeep"
    assert told(None, "hypertables") is None
