"""A member takes no more than it can start: what it leaves, how far it looks ahead, what it does when it is full."""

import threading
import time
from pathlib import Path

import pytest

from stepwell.adapters.inbox import desk, window
from stepwell.adapters.logs.local import LocalLog
from stepwell.adapters.subscriber import Subscription
from stepwell.engine.ports import MessageLog, TopicPartition
from stepwell.events.topics import RETRAIN_REQUESTS
from tests.integration.subscriptions import (
    PATIENCE_S,
    append,
    inboxes,
    log,
    receive,
    request,
    silent,
    subscribed,
    take,
    wait_for,
)
from tests.unit.runs.places import Running

__all__ = ["inboxes", "log"]

SOURCE = TopicPartition(RETRAIN_REQUESTS, 0)


def held(subscription: Subscription) -> list[str]:
    """What the member has taken and not finished."""
    return [each.trigger_id for each in subscription._inbox.entries(["stored", "waiting", "working"])]


def position(log: MessageLog, source: TopicPartition = SOURCE) -> int:
    admin = log.admin()
    try:
        return admin.group_positions("g", RETRAIN_REQUESTS)[source] or 0
    finally:
        admin.close()


def test_a_member_at_work_leaves_the_rest_in_the_log(log: MessageLog) -> None:
    append(log, *(request(f"t-{n}", f"p{n}") for n in range(6)))
    with subscribed(log) as one:
        time.sleep(1.0)
        assert held(one) == [], "nobody has asked yet"
        assert receive(one).event.trigger_id == "t-0"
        time.sleep(1.0)
        assert held(one) == ["t-0"]
        assert position(log) == 1


@pytest.mark.parametrize("kind", ["memory", "local"])
def test_a_member_that_joins_later_gets_what_was_not_taken(kind: str, log: MessageLog, tmp_path: Path) -> None:
    place = log if kind == "memory" else LocalLog(tmp_path / "log", session_timeout_s=2.0)
    for n in range(8):
        append(place, request(f"t-{n}", f"p{n}"), partition=n % 4)
    with subscribed(place) as one:
        first = receive(one)
        with subscribed(place, machine="there") as two:
            theirs = take(two, 2)
            while (delivery := two.receive(3.0)) is not None:
                theirs.append(delivery.event.trigger_id)
                two.handled()
            assert len(theirs) >= 3, "of two partitions; one of them may have lost a request to the first member"
            one.handled(first)
            rest = take(one, 7 - len(theirs))
    assert sorted([first.event.trigger_id, *theirs, *rest]) == [f"t-{n}" for n in range(8)]
    if place is not log:
        place.close()


def test_another_policy_is_found_behind_a_row_of_a_busy_one(log: MessageLog) -> None:
    append(log, *(request(f"a-{n}", "a") for n in range(20)), request("b-0", "b"), request("b-1", "b"))
    with subscribed(log) as one:
        long = receive(one)
        assert held(one) == ["a-0"]
        assert take(one) == ["b-0"]
        assert held(one) == [f"a-{n}" for n in range(20)], "what lies before it was taken with it"
        assert take(one) == ["b-1"]
        assert silent(one)
        one.handled(long)
        assert take(one, 19) == [f"a-{n}" for n in range(1, 20)]
        assert silent(one)


def test_a_backlog_over_three_policies_in_one_partition(log: MessageLog) -> None:
    triggers = [f"p{n % 3}-{n:02d}" for n in range(50)]
    append(log, *(request(trigger, trigger[:2]) for trigger in triggers))
    worked: list[str] = []
    most: list[int] = []
    together = threading.Barrier(3, timeout=PATIENCE_S)
    with subscribed(log) as one:

        def work() -> None:
            together.wait()
            first = True
            while (delivery := one.receive(1.5)) is not None:
                if first:
                    together.wait()  # three are handed out at once, or this breaks
                    first = False
                worked.append(delivery.event.trigger_id)
                most.append(len(held(one)))
                one.handled(delivery)

        for thread in [Running(work) for _ in range(3)]:
            thread.result()
    assert sorted(worked) == sorted(triggers)
    for policy in ("p0", "p1", "p2"):
        own = [trigger for trigger in worked if trigger.startswith(policy)]
        assert own == sorted(own)
    assert max(most) < 25, "most of it stays in the log until somebody has time"
    assert position(log) == 50


def test_a_full_window_pauses_the_partition_and_keeps_the_membership(
    log: MessageLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window, "WINDOW_MAX", 3)
    monkeypatch.setattr("stepwell.adapters.inbox.intake.POLL_RECORDS_MAX", 2)
    append(log, *(request(f"a-{n}", "a") for n in range(10)), request("b", "b"))
    append(log, request("c", "c"), partition=1)
    with subscribed(log) as one:
        long = receive(one)
        assert take(one) == ["c"], "other partitions go on"
        wait_for(lambda: one._intake._paused == {SOURCE})
        time.sleep(3.0)  # longer than the session time-out
        assert silent(one), "b lies behind more than it looks at"
        assert len(one._intake._windows._windows[SOURCE]) <= 4
        assert len(one._intake._owned) == 4
        append(log, request("d", "d"), partition=2)
        assert take(one) == ["d"]
        one.handled(long)
        rest = take(one, 10)
        assert [trigger for trigger in rest if trigger != "b"] == [f"a-{n}" for n in range(1, 10)]
        assert "b" in rest
        assert one._intake.failure is None


def test_what_is_put_back_is_bounded_too(log: MessageLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk, "HELD_OFF_MAX", 2)
    append(log, *(request(f"t-{n}", f"p{n}") for n in range(4)))
    with subscribed(log, retry_pause_s=3.0) as one:
        for n in range(2):
            assert receive(one).event.trigger_id == f"t-{n}"
            assert not one.put_back("no free GPU")
        assert one.receive(1.0) is None
        assert held(one) == ["t-0", "t-1"], "the others are left to members that have a GPU"
        assert sorted(take(one, 4)) == [f"t-{n}" for n in range(4)]


def test_a_member_stores_so_many_and_no_more(log: MessageLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk, "UNFINISHED_MAX", 5)
    append(log, *(request(f"a-{n}", "a") for n in range(6)), request("b", "b"))
    with subscribed(log) as one:
        long = receive(one)
        assert silent(one)
        assert held(one) == ["a-0"]
        one.handled(long)
        assert take(one, 6) == ["a-1", "a-2", "a-3", "a-4", "a-5", "b"]


def test_what_is_closed_in_the_window_is_never_taken(log: MessageLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.adapters.inbox.intake.CLOSED_EVERY_S", 0.2)
    append(log, *(request(f"t-{n}") for n in range(3)))
    with subscribed(log) as one:
        assert receive(one).event.trigger_id == "t-0"
        assert position(log) == 1
        for trigger in ("t-1", "t-2"):
            one.answer(trigger, "rejected")
        wait_for(lambda: position(log) == 3)
        assert held(one) == ["t-0"]
        one.handled()
        assert silent(one)
