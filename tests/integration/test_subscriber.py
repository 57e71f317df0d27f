"""Retrain requests reach a training service at least once, in order, and whatever happens to log, group and service."""

import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from stepwell.adapters.logs.local import LocalLog
from stepwell.adapters.logs.memory import MemoryLog
from stepwell.adapters.retrain_history import read_requests
from stepwell.engine.detection.bearing import Key
from stepwell.engine.detection.ledger import Ledger, Trigger
from stepwell.engine.ports import MessageLog
from stepwell.engine.publish import outgoing
from stepwell.events.model import RetrainExpired, RetrainRequested, RetrainWithdrawn
from stepwell.exceptions import ConfigurationError, FencedError, LogError, LogUnavailableError, NotFoundError
from tests.integration.projections.facts import withdrawn
from tests.integration.subscriptions import (
    CODEC,
    PATIENCE_S,
    answers,
    append,
    inboxes,
    joined,
    log,
    receive,
    request,
    send,
    silent,
    subscribed,
    take,
    wait_for,
)
from tests.unit.runs.places import Running, away

__all__ = ["inboxes", "log"]


# --- at least once ------------------------------------------------------------------------------------------------


def test_what_was_handled_does_not_come_again_and_the_rest_does(log: MessageLog) -> None:
    append(log, *(request(f"t-{n}") for n in range(5)))
    with subscribed(log) as first:
        assert take(first, 2) == ["t-0", "t-1"]
        assert receive(first).event.trigger_id == "t-2"  # and it dies over it
    with subscribed(log) as second:
        assert take(second, 3) == ["t-2", "t-3", "t-4"]
        assert silent(second)
    with subscribed(log) as third:
        assert silent(third)


def test_iterating_handles_the_one_before(log: MessageLog) -> None:
    append(log, *(request(f"t-{n}") for n in range(4)))
    with subscribed(log) as subscription:
        for delivery in subscription:
            if delivery.event.trigger_id == "t-2":
                break
    with subscribed(log) as again:
        assert next(iter(again)).event.trigger_id == "t-2"
    with subscribed(log) as last:
        assert take(last, 2) == ["t-2", "t-3"]


def test_each_group_sees_every_request(log: MessageLog) -> None:
    append(log, request("t-1"))
    for group in ("a", "b"):
        with subscribed(log, group) as subscription:
            assert take(subscription) == ["t-1"]


def test_new_requests_come_while_it_listens(log: MessageLog) -> None:
    with subscribed(log) as subscription:
        assert silent(subscription)
        for n in range(3):
            append(log, request(f"t-{n}"))
            delivery = receive(subscription)
            assert (delivery.event.trigger_id, delivery.source.partition, delivery.offset) == (f"t-{n}", 0, n)
            subscription.handled()


# --- groups -------------------------------------------------------------------------------------------------------


def test_long_work_holds_up_neither_the_membership_nor_other_policies_of_the_partition(log: MessageLog) -> None:
    append(log, request("long", "slow"), request("behind", "slow"), request("t-1", "quick"))
    with subscribed(log) as one:
        long = receive(one)
        assert long.event.trigger_id == "long"
        for n in range(2, 5):  # longer than the session's time-out, all told
            quick = receive(one)
            assert quick.event.trigger_id == f"t-{n - 1}"
            one.handled(quick)
            append(log, request(f"t-{n}", "quick"))
            time.sleep(1.0)
        assert take(one) == ["t-4"]
        assert silent(one), "of one policy they come one at a time"
        one.handled(long)
        assert take(one) == ["behind"]
        assert not one._intake.failure


def test_what_is_stored_stays_with_its_member_when_its_partition_goes(log: MessageLog) -> None:
    partitions = range(4)
    for partition in partitions:
        append(log, *(request(f"a{n}-{partition}", f"p{partition}") for n in range(2)), partition=partition)
        append(log, request(f"b-{partition}", f"q{partition}"), partition=partition)
    with subscribed(log) as one:
        # The second of each partition lies before the third, which somebody waits for.
        held = [receive(one) for _ in range(8)]
        stored = sorted(each.trigger_id for each in one._inbox.entries(["waiting"]))
        assert stored == [f"a1-{partition}" for partition in partitions]
        with subscribed(log, machine="there") as two:
            assert silent(two)
            for partition in partitions:  # the group shares the partitions now: two gets new ones, and only those
                append(log, request(f"c-{partition}", f"p{partition}"), partition=partition)
            assert receive(two).event.trigger_id.startswith("c-")
            two.handled()
            for delivery in held:
                one.handled(delivery)
            seen_by_one, seen_by_two = [], []
            deadline = time.monotonic() + PATIENCE_S
            while len(seen_by_one) + len(seen_by_two) < 7:
                assert time.monotonic() < deadline, (seen_by_one, seen_by_two)
                for each, seen in ((one, seen_by_one), (two, seen_by_two)):
                    if (delivery := each.receive(0.05)) is not None:
                        seen.append(delivery.event.trigger_id)
                        each.handled()
        assert set(stored) <= set(seen_by_one)
        assert {trigger[0] for trigger in seen_by_two} == {"c"}
        assert len({*seen_by_one, *seen_by_two}) == 7
    for machine in ("here", "there"):
        with subscribed(log, machine=machine) as again:
            assert silent(again)


def test_a_rival_with_the_same_instance_id_is_an_error_in_the_loop(log: MessageLog) -> None:
    with subscribed(log, instance_id="trainer-1") as one:
        append(log, request("t-0"))
        assert take(one) == ["t-0"]
        with subscribed(log, instance_id="trainer-1", machine="there") as two:
            append(log, request("t-1"))
            with pytest.raises(FencedError, match="trainer-1"):
                one.receive(PATIENCE_S)
            with pytest.raises(FencedError):
                next(iter(one))
            assert take(two) == ["t-1"]


# --- what is handed out -------------------------------------------------------------------------------------------


def test_a_choice_of_policies_takes_nothing_from_the_rest_of_the_group(log: MessageLog) -> None:
    append(log, *(request(f"t-{n}", "wanted" if n % 2 else "other") for n in range(6)))
    with subscribed(log, policies=frozenset({"nobody's"})) as nobody:
        assert silent(nobody)
    with subscribed(log, policies=frozenset({"wanted"})) as subscription:
        assert take(subscription, 3) == ["t-1", "t-3", "t-5"]
        append(log, request("t-6", "other"))
        append(log, request("t-7", "wanted"))
        assert take(subscription) == ["t-7"]
    with subscribed(log, policies=frozenset({"wanted"})) as again:
        assert silent(again)
    with subscribed(log, policies=frozenset({"other"})) as others:
        assert take(others, 4) == ["t-0", "t-2", "t-4", "t-6"]


def test_withdrawals_come_only_where_they_are_wanted(log: MessageLog) -> None:
    append(log, request("t-1"), withdrawn("t-1"), request("t-2"))
    with subscribed(log, "without", only_open=False) as subscription:
        assert take(subscription, 2) == ["t-1", "t-2"]
    with subscribed(log, "with", only_open=False, withdrawals=True) as subscription:
        kinds = []
        for _ in range(3):
            kinds.append(type(receive(subscription).event))
            subscription.handled()
    assert kinds == [RetrainRequested, RetrainWithdrawn, RetrainRequested]


def test_a_record_that_cannot_be_read_is_told_and_parked(log: MessageLog) -> None:
    append(log, request("t-1"))
    broken = outgoing(CODEC, request("t-2"), 0)
    send(log, broken._replace(value=(broken.value or b"")[:-5]), broken._replace(value=None))
    append(log, request("t-3"))
    with capture_logs() as said, subscribed(log) as subscription:
        assert take(subscription, 2) == ["t-1", "t-3"]
        parked = subscription._inbox.entries(["parked"])
        assert [(each.offset, each.reason.partition(":")[0]) for each in parked] == [
            (1, "cannot be read"), (2, "cannot be read"),
        ]  # fmt: skip
        # A person tries again: still unreadable, still parked, and nobody is held up.
        assert all(subscription._inbox.retry(each.number) for each in parked)
        append(log, request("t-4"))
        assert take(subscription) == ["t-4"]
        wait_for(lambda: subscription.receive(0) is None and len(subscription._inbox.entries(["parked"])) == 2)
    told = [
        (line["log_level"], line["partition"], line["offset"]) for line in said if line["event"] == "unreadable_request"
    ]
    assert told[:2] == [("error", 0, 1), ("error", 0, 2)]


# --- answers ------------------------------------------------------------------------------------------------------


def test_answers_reach_the_log_and_the_list_of_requests(log: MessageLog) -> None:
    append(log, *(request(f"t-{n}") for n in range(4)), withdrawn("t-3"))
    append(log, request("t-1"))  # published again after a crash
    with subscribed(log, "trainer-a") as subscription:
        for status in ("rejected", "accepted"):
            asked = receive(subscription).event
            assert isinstance(asked, RetrainRequested)
            subscription.answer(asked, status, detail="why")
            subscription.handled()
        subscription.answer(asked, "done", new_checkpoint="p-2")
        with pytest.raises(ValueError, match="accepted, done, failed, rejected; got 'finished'"):
            subscription.answer(asked, "finished")
    given = [(a.trigger_id, a.status, a.new_checkpoint, a.detail, a.producer_id, a.policy) for a in answers(log)]
    assert given == [
        ("t-0", "rejected", None, "why", "trainer-a", "p"),
        ("t-1", "accepted", None, "why", "trainer-a", "p"),
        ("t-1", "done", "p-2", "", "trainer-a", "p"),
    ]
    assert [(entry.request.trigger_id, entry.state) for entry in read_requests(log, CODEC)] == [
        ("t-0", "rejected"), ("t-1", "done"), ("t-2", "open"), ("t-3", "withdrawn"),
    ]  # fmt: skip


def test_the_first_closing_answer_counts_unless_the_request_was_withdrawn(log: MessageLog) -> None:
    append(log, *(request(f"t-{n}") for n in range(4)), withdrawn("t-3"))
    given = {"t-0": ["done", "failed", "accepted"], "t-1": ["accepted", "rejected", "done"], "t-2": ["accepted"] * 2}
    with subscribed(log, "trainer-a") as subscription:
        for trigger, statuses in {**given, "t-3": ["done"]}.items():
            for n, status in enumerate(statuses):
                subscription.answer(trigger, status, detail=str(n))
    entries = {entry.request.trigger_id: entry for entry in read_requests(log, CODEC)}
    assert {trigger: entry.state for trigger, entry in entries.items()} == {
        "t-0": "done", "t-1": "rejected", "t-2": "accepted", "t-3": "withdrawn",
    }  # fmt: skip
    assert [entry.counting.detail for entry in entries.values() if entry.counting] == ["0", "1", "1"]
    assert [len(entry.answers) for entry in entries.values()] == [3, 3, 2, 1]
    # The detector's ledger, which decides what follows from an answer, says the same.
    for trigger, statuses in given.items():
        ledger = Ledger()
        opened = ledger.open(
            Trigger(
                trigger_id="", rule="r", rule_version=1, key=Key("1", None), rule_key="policy=p", failure_type="f",
                evidence=entries[trigger].request.evidence, seen="", opened_at=0, run_id="r", trace_id="0" * 32,
            ),
            "policy=p",
        )  # fmt: skip
        for n, status in enumerate(statuses):
            ledger.answer(opened.trigger_id, status, str(n))
        counting = entries[trigger].counting
        assert counting is not None
        assert (opened.status, opened.detail) == (entries[trigger].state, counting.detail)


def test_an_answer_for_another_policy_answers_nothing(log: MessageLog) -> None:
    append(log, request("t-0"))
    with subscribed(log) as subscription:
        subscription.answer(request("t-0", "another"), "done", new_checkpoint="c")
        assert [entry.state for entry in read_requests(log, CODEC)] == ["open"]
        assert take(subscription) == ["t-0"]


def test_a_closing_answer_counts_as_received_and_accepted_does_not(log: MessageLog) -> None:
    """What a service does that takes one request, answers and leaves."""
    append(log, *(request(f"t-{n}") for n in range(4)))
    seen = []
    for status in ("done", "accepted", "failed", "rejected"):
        with subscribed(log, only_open=False) as subscription:
            for delivery in subscription:
                seen.append(delivery.event.trigger_id)
                subscription.answer(delivery.event.trigger_id, status)
                break
    assert seen == ["t-0", "t-1", "t-1", "t-2"]
    with subscribed(log, only_open=False) as subscription:
        assert receive(subscription).event.trigger_id == "t-3"
        subscription.answer("t-0", "failed")  # of another one: says nothing about this one
    with subscribed(log, only_open=False) as subscription:
        assert take(subscription) == ["t-3"]
        assert silent(subscription)


def test_only_done_without_a_checkpoint_is_warned_of(log: MessageLog) -> None:
    append(log, request("t-0"))
    with capture_logs() as said, subscribed(log) as subscription:
        subscription.answer("t-0", "accepted")
        subscription.answer("t-0", "done", new_checkpoint="c")
        subscription.answer("t-0", "failed")
        assert [line for line in said if line["log_level"] == "warning"] == []
        subscription.answer("t-0", "done")
    assert [line["trigger_id"] for line in said if line["event"] == "done_without_checkpoint"] == ["t-0"]


def test_an_answer_to_nothing_in_the_log_is_refused(log: MessageLog) -> None:
    append(log, request("t-0"))
    with subscribed(log) as subscription:
        for nothing in ("t-9", ""):
            with pytest.raises(NotFoundError, match=f"begins with '{nothing}'"):
                subscription.answer(nothing, "done")
    assert answers(log) == []


# --- closed already -----------------------------------------------------------------------------------------------


def test_a_new_group_gets_open_requests_only_unless_it_wants_all(log: MessageLog) -> None:
    append(log, *(request(f"t-{n}") for n in range(5)), withdrawn("t-3"))
    with subscribed(log, "first") as first:
        for trigger, status in (("t-0", "done"), ("t-1", "accepted"), ("t-2", "rejected")):
            first.answer(trigger, status)
    with subscribed(log, "second") as second:
        assert take(second, 2) == ["t-1", "t-4"]
        assert silent(second)
    with subscribed(log, "second", only_open=False) as again:  # what was passed over counts as seen
        assert silent(again)
    with subscribed(log, "third", only_open=False) as third:
        assert take(third, 5) == [f"t-{n}" for n in range(5)]


def test_a_long_history_of_closed_requests_is_passed_over_at_once(log: MessageLog) -> None:
    append(log, *(request(f"t-{n}") for n in range(500)), *(withdrawn(f"t-{n}") for n in range(499)))
    with subscribed(log) as subscription:
        began = time.monotonic()
        assert take(subscription) == ["t-499"]
        assert time.monotonic() - began < 10.0
        assert subscription._inbox.entries(["finished"])[-1].trigger_id == "t-499"
    append(log, *(request(f"u-{n}") for n in range(50)))
    with subscribed(log) as subscription:
        assert receive(subscription).event.trigger_id == "u-0"
        append(log, *(withdrawn(f"u-{n}") for n in range(49)))
        subscription.handled()
        assert take(subscription) == ["u-49"], "stored before they were closed"


def test_what_is_closed_while_it_waits_for_its_turn_is_passed_over(log: MessageLog) -> None:
    append(log, *(request(f"t-{n}") for n in range(5)), request("u", "other"))
    expired = {name: getattr(withdrawn("t-3"), name) for name in withdrawn("t-3").__struct_fields__}
    with subscribed(log) as subscription:
        assert receive(subscription).event.trigger_id == "t-0"
        assert receive(subscription).event.trigger_id == "u", "and with it all that lies between them"
        subscription.handled()
        with subscribed(log, "another") as another:
            another.answer("t-1", "done")
            append(log, withdrawn("t-2"))
            send(log, outgoing(CODEC, RetrainExpired(**expired), 0))
        subscription.handled()
        assert take(subscription) == ["t-4"]
        passed = {each.trigger_id: each.reason for each in subscription._inbox.entries(["finished"])}
    assert passed["t-1"] == "passed over: answered done"
    assert passed["t-2"] == "passed over: withdrawn"
    assert passed["t-3"] == "passed over: expired"


def test_passing_over_does_not_make_what_is_worked_on_handled(log: MessageLog) -> None:
    append(log, request("t-0"), request("t-1"))
    with subscribed(log) as subscription:
        assert receive(subscription).event.trigger_id == "t-0"
        subscription.answer("t-1", "done")
        assert silent(subscription)
    with subscribed(log) as again:
        assert take(again) == ["t-0"]
        assert silent(again)
        append(log, request("t-2"))
        assert take(again) == ["t-2"]


def test_still_open_tells_long_work_that_it_may_stop(log: MessageLog) -> None:
    append(log, request("t-0"), request("t-1", "q"))
    with subscribed(log) as subscription:
        asked = [receive(subscription).event for _ in range(2)]
        assert [subscription.still_open(each) for each in asked if isinstance(each, RetrainRequested)] == [True, True]
        append(log, withdrawn("t-0"))
        assert [subscription.still_open(each) for each in asked if isinstance(each, RetrainRequested)] == [False, True]


# --- the log goes away --------------------------------------------------------------------------------------------


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.adapters.logs.local_store.BUSY_TIMEOUT_S", 0.1)


@pytest.mark.usefixtures("hasty")
def test_what_is_handled_while_the_log_is_away_stays_handled(tmp_path: Path) -> None:
    log = LocalLog(tmp_path / "log")
    append(log, request("t-0"), request("t-1"), request("t-2", "q"))
    with subscribed(log) as subscription:
        asked = receive(subscription).event
        assert isinstance(asked, RetrainRequested)
        with away(tmp_path / "log"):
            with pytest.raises(LogUnavailableError):
                subscription.answer(asked, "done")
            subscription.handled()
            time.sleep(1.0)
        subscription.answer(asked, "done")
        assert take(subscription, 2) == ["t-1", "t-2"]
        append(log, request("t-3"))
        assert take(subscription) == ["t-3"]
    assert {answer.trigger_id for answer in answers(log)} == {"t-0"}
    with subscribed(log) as again:
        assert silent(again)
    log.close()


@pytest.mark.usefixtures("hasty")
def test_closing_while_the_log_is_away_returns_and_nothing_is_lost(tmp_path: Path) -> None:
    log = LocalLog(tmp_path / "log", session_timeout_s=1.0)
    append(log, request("t-0"), request("t-1"))
    subscription = joined(log)
    assert receive(subscription).event.trigger_id == "t-0"
    with away(tmp_path / "log"):
        subscription.handled()
        subscription.close()
    with subscribed(log) as again:
        assert take(again) == ["t-1"]
        assert silent(again)
    log.close()


def test_a_log_that_is_closed_under_it_is_an_error_in_the_loop() -> None:
    log = MemoryLog()
    subscription = joined(log)
    assert subscription.receive(0.1) is None
    log.close()
    with pytest.raises(LogError):
        subscription.receive(PATIENCE_S)
    with pytest.raises(LogError):
        subscription.receive(PATIENCE_S)
    subscription.close()


def test_closing_ends_a_loop_that_waits_in_another_thread(log: MessageLog) -> None:
    subscription = joined(log)
    waiting = Running(lambda: list(subscription))
    receiving = Running(lambda: subscription.receive(600))
    time.sleep(0.3)
    subscription.close()
    waiting.result()
    receiving.result()


def test_a_group_needs_a_name(log: MessageLog) -> None:
    with pytest.raises(ConfigurationError, match="group name"):
        joined(log, "")
