"""Requests whose handler fails, and requests of members that are gone."""

import threading
import time

import pytest
from structlog.testing import capture_logs

from stepwell.adapters.subscriber import Subscription
from stepwell.engine.ports import MessageLog
from tests.integration.subscriptions import (
    PATIENCE_S,
    answers,
    append,
    inboxes,
    joined,
    log,
    receive,
    request,
    silent,
    subscribed,
    take,
)
from tests.unit.runs.places import Running

__all__ = ["inboxes", "log"]


# --- failures and parking -----------------------------------------------------------------------------------------


def test_a_request_whose_handler_raises_is_parked_in_the_end_and_the_next_ones_go_on(log: MessageLog) -> None:
    append(log, request("bad"), request("good"))

    def service(life: int) -> None:
        with subscribed(log, failures_max=3) as subscription:
            for delivery in subscription:
                assert (delivery.event.trigger_id, delivery.failures) == ("bad", life)
                _ = 1 / 0

    for life in range(3):
        with pytest.raises(ZeroDivisionError):
            service(life)
    with subscribed(log, failures_max=3) as subscription:
        assert take(subscription) == ["good"]
        (parked,) = subscription._inbox.entries(["parked"])
        assert (parked.trigger_id, parked.reason) == ("bad", "ZeroDivisionError: division by zero")


def test_leaving_by_ctrl_c_counts_as_no_failure(log: MessageLog) -> None:
    append(log, request("t-0"))

    def service() -> None:
        with subscribed(log, failures_max=1) as subscription:
            assert receive(subscription).failures == 0
            raise KeyboardInterrupt

    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            service()


def test_put_back_comes_again_after_a_pause_and_holds_up_its_policy_only(log: MessageLog) -> None:
    append(log, request("t-0", "a"), request("t-1", "a"), request("t-2", "b"))
    with subscribed(log, failures_max=2, retry_pause_s=1.0) as subscription:
        assert receive(subscription).event.trigger_id == "t-0"
        put_back_at = time.monotonic()
        assert not subscription.put_back("no free GPU")
        assert take(subscription) == ["t-2"]
        again = receive(subscription)
        assert (again.event.trigger_id, again.failures) == ("t-0", 1)
        assert time.monotonic() - put_back_at >= 1.0
        assert subscription.put_back("no free GPU", again)
        assert take(subscription) == ["t-1"]


def test_a_loop_that_is_left_and_entered_again_gets_the_same(log: MessageLog) -> None:
    append(log, request("t-0"))
    with subscribed(log) as subscription:
        for _ in range(2):
            assert next(iter(subscription)).event.trigger_id == "t-0"


def test_threads_work_side_by_side_on_different_policies(log: MessageLog) -> None:
    append(log, *(request(f"{policy}-{n}", policy) for n in range(3) for policy in "abc"))
    worked: list[str] = []
    together = threading.Barrier(3, timeout=PATIENCE_S)
    with subscribed(log) as subscription:

        def work() -> None:
            for _ in range(3):
                delivery = receive(subscription)
                together.wait()  # three are handed out at once, or this breaks
                worked.append(delivery.event.trigger_id)
                subscription.handled(delivery)
                together.wait()

        threads = [Running(work) for _ in range(3)]
        for thread in threads:
            thread.result()
    for policy in "abc":
        assert [trigger for trigger in worked if trigger[0] == policy] == [f"{policy}-{n}" for n in range(3)]


# --- members that are gone ----------------------------------------------------------------------------------------


def abandoned(subscription: Subscription) -> None:
    """As when its machine is gone: it leaves the group, and its inbox is never opened again."""
    for entry in subscription._desk.out():
        subscription._desk._take_in(entry)
    subscription.close()


def test_another_member_on_the_same_machine_takes_over_what_one_has_left(
    log: MessageLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepwell.adapters.inbox.intake.SIBLINGS_EVERY_S", 0.2)
    append(log, request("t-0"), request("t-1"), request("other", "q"))
    gone = joined(log)
    assert [receive(gone).event.trigger_id for _ in range(2)] == ["t-0", "other"]
    with subscribed(log) as stays:
        assert silent(stays)
        abandoned(gone)
        first = receive(stays)
        assert (first.event.trigger_id, first.failures) == ("t-0", 1)
        stays.handled()
        assert sorted(take(stays, 2)) == ["other", "t-1"]


def test_what_a_lost_machine_had_taken_is_adopted_once_it_is_silent(log: MessageLog) -> None:
    for partition in range(4):
        first, second = (request(f"{name}-{partition}", f"p{partition}") for name in "ab")
        append(log, first, second, request(f"c-{partition}", f"q{partition}"), partition=partition)
    append(log, request("closed", "q"), partition=2)
    lost = joined(log, machine="lost", adopt_after_s=1.5)
    lost.answer("closed", "done", new_checkpoint="c")
    at_work = sorted(f"{name}-{partition}" for name in "ac" for partition in range(4))
    assert sorted(receive(lost).event.trigger_id for _ in at_work) == at_work
    assert len(lost._inbox.entries(["waiting"])) == 4, "what lies between them"
    with subscribed(log, machine="there", adopt_after_s=1.5) as there, capture_logs() as said:
        time.sleep(3.0)
        # What is being worked on is told of again and again. What only waits is not: the new owner may have it.
        own = sorted(source.partition for source in there._intake._owned)
        assert 0 < len(own) < 4, "the group shares its partitions"
        stolen = [f"b-{partition}" for partition in own]
        assert not there._inbox.entries(["waiting"]), "nobody waits for it yet"
        assert sorted(receive(there).event.trigger_id for _ in own) == stolen
        assert silent(there)
        for entry in lost._desk.out():
            if entry.trigger_id.startswith("a-"):
                lost._desk.finish(entry, "handled")
        left = [f"b-{partition}" for partition in range(4) if partition not in own]
        assert sorted(receive(lost).event.trigger_id for _ in left) == left
        assert silent(lost), "the others are being worked on elsewhere"
        abandoned(lost)
        for entry in there._desk.out():
            there._desk.finish(entry, "handled")
        # Now all partitions are there's, and nobody speaks of what was at work on the lost machine.
        expected = sorted([*left, *(f"{name}-{partition}" for name in "c" for partition in range(4))])
        expected += [f"a-{partition}" for partition in range(4)]  # handled there, and never answered
        assert sorted(take(there, len(expected))) == sorted(expected)
        assert silent(there)
    adopted = sorted(line["trigger_id"] for line in said if line["event"] == "request_adopted")
    assert adopted == sorted([*stolen, *expected])


def test_without_adoption_a_lost_machines_requests_wait_for_it(log: MessageLog) -> None:
    append(log, request("t-0"))
    lost = joined(log, machine="lost")
    assert receive(lost).event.trigger_id == "t-0"
    abandoned(lost)
    with subscribed(log, machine="there") as there:
        assert silent(there)
    assert answers(log) == [], "and nothing is said in anybody's name"
    with subscribed(log, machine="lost") as back:
        assert take(back) == ["t-0"]
