"""Retrain requests reach a training service at least once, in order, and whatever happens to log, group and service."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from stepwell.adapters.logs.local import LocalLog
from stepwell.adapters.logs.memory import MemoryLog
from stepwell.adapters.logs.reading import read_all
from stepwell.adapters.retrain_history import read_requests
from stepwell.adapters.subscriber import Delivery, Subscription
from stepwell.engine.detection.bearing import Key
from stepwell.engine.detection.ledger import Ledger, Trigger
from stepwell.engine.ports import MessageLog, OutgoingRecord
from stepwell.engine.publish import outgoing
from stepwell.events.codec import Codec
from stepwell.events.model import RetrainAnswered, RetrainRequested, RetrainWithdrawn
from stepwell.events.topics import RETRAIN_RESULTS
from stepwell.exceptions import ConfigurationError, FencedError, LogError, LogUnavailableError, NotFoundError
from tests.integration.projections.facts import retrain, withdrawn
from tests.unit.runs.places import Running, away

CODEC = Codec()
PATIENCE_S = 30.0
SILENCE_S = 0.6


@pytest.fixture
def log() -> Iterator[MemoryLog]:
    log = MemoryLog(session_timeout_s=2.0)
    yield log
    log.close()


def request(trigger: str, policy: str = "p") -> RetrainRequested:
    return msgspec.structs.replace(retrain(trigger), policy=policy)


def append(log: MessageLog, *records: RetrainRequested | RetrainWithdrawn, partition: int | None = 0) -> None:
    send(log, *(outgoing(CODEC, record, partition) for record in records))


def send(log: MessageLog, *records: OutgoingRecord) -> None:
    producer = log.producer()
    producer.send(records)
    producer.flush(PATIENCE_S)
    producer.close()


@contextlib.contextmanager
def subscribed(log: MessageLog, group: str = "g", **options: object) -> Iterator[Subscription]:
    with Subscription(log, CODEC, group, **options) as subscription:  # type: ignore[arg-type]
        yield subscription


def receive(subscription: Subscription) -> Delivery:
    delivery = subscription.receive(PATIENCE_S)
    assert delivery is not None, "no request came"
    return delivery


def take(subscription: Subscription, count: int = 1) -> list[str]:
    """Receive so many and handle them; their triggers."""
    triggers = []
    for _ in range(count):
        triggers.append(receive(subscription).event.trigger_id)
        subscription.handled()
    return triggers


def silent(subscription: Subscription) -> bool:
    return subscription.receive(SILENCE_S) is None


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


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


def test_long_work_costs_neither_membership_nor_other_partitions(log: MessageLog) -> None:
    with subscribed(log) as one, subscribed(log) as two:
        both = {"one": one, "two": two}
        owners: dict[int, str] = {}
        for partition in range(3):
            append(log, request(f"first-{partition}"), partition=partition)
        deadline = time.monotonic() + PATIENCE_S
        while len(owners) < 3:
            assert time.monotonic() < deadline
            for name, each in both.items():
                if (delivery := each.receive(0.05)) is not None:
                    owners[delivery.source.partition] = name
                    each.handled()
        busy_partition, busy_name = next(iter(owners.items()))
        idle_partition = next((p for p, name in owners.items() if name != busy_name), None)
        assert idle_partition is not None, "the group shares its partitions"
        busy, idle = both[busy_name], both[owners[idle_partition]]
        append(log, request("long"), request("behind"), partition=busy_partition)
        assert receive(busy).event.trigger_id == "long"
        for n in range(3):  # longer than the session's time-out, all told
            append(log, request(f"other-{n}"), partition=idle_partition)
            assert take(idle) == [f"other-{n}"]
            time.sleep(1.0)
        busy.handled()
        assert take(busy) == ["behind"]
        assert silent(idle)


def test_a_partition_that_is_taken_away_in_the_middle_goes_to_the_other_member(log: MessageLog) -> None:
    """What waited for its turn here is handed out there, not here as well."""
    partitions = range(4)
    for partition in partitions:
        append(log, request(f"a-{partition}"), request(f"b-{partition}"), partition=partition)
    with subscribed(log) as one:
        held = receive(one).event.trigger_id
        with subscribed(log) as two:
            first_of_two = receive(two).event.trigger_id
            assert first_of_two.startswith("a-")
            two.handled()
            one.handled()
            seen_by_one, seen_by_two = [held], [first_of_two]
            deadline = time.monotonic() + PATIENCE_S
            while len({*seen_by_one, *seen_by_two}) < 2 * len(partitions):
                assert time.monotonic() < deadline, (seen_by_one, seen_by_two)
                for each, seen in ((one, seen_by_one), (two, seen_by_two)):
                    if (delivery := each.receive(0.05)) is not None:
                        seen.append(delivery.event.trigger_id)
                        each.handled()
        # Only the one that was being worked on while its partition moved may have come twice.
        assert set(seen_by_one) & set(seen_by_two) <= {held}
    with subscribed(log) as three:
        assert silent(three)


def test_what_was_read_before_its_partition_went_is_not_handed_out_after_that(log: MessageLog) -> None:
    append(log, *(request(f"t-{n}") for n in range(3)))
    with subscribed(log) as one:
        assert take(one) == ["t-0"]
        wait_for(lambda: not one._finished)
        one._on_revoke([receive(one).source])  # as when it goes to a member that dies before it does anything
        one.handled()
        assert silent(one)
    with subscribed(log) as again:
        assert take(again, 2) == ["t-1", "t-2"]


def test_a_rival_with_the_same_instance_id_is_an_error_in_the_loop(log: MessageLog) -> None:
    with subscribed(log, instance_id="trainer-1") as one:
        append(log, request("t-0"))
        assert take(one) == ["t-0"]
        wait_for(lambda: not one._finished)
        with subscribed(log, instance_id="trainer-1") as two:
            append(log, request("t-1"))
            with pytest.raises(FencedError, match="trainer-1"):
                one.receive(PATIENCE_S)
            with pytest.raises(FencedError):
                next(iter(one))
            assert take(two) == ["t-1"]


# --- what is handed out -------------------------------------------------------------------------------------------


def test_policies_filter_and_what_is_passed_over_counts_as_seen(log: MessageLog) -> None:
    append(log, *(request(f"t-{n}", "wanted" if n % 2 else "other") for n in range(6)))
    with subscribed(log, policies=frozenset({"wanted"})) as subscription:
        assert take(subscription, 3) == ["t-1", "t-3", "t-5"]
        append(log, request("t-6", "other"))
        append(log, request("t-7", "wanted"))
        assert take(subscription) == ["t-7"]
    with subscribed(log) as everything:
        assert silent(everything)


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


def test_a_record_that_cannot_be_read_is_told_and_passed_over(log: MessageLog) -> None:
    append(log, request("t-1"))
    broken = outgoing(CODEC, request("t-2"), 0)
    send(log, broken._replace(value=(broken.value or b"")[:-5]), broken._replace(value=None))
    append(log, request("t-3"))
    with capture_logs() as said, subscribed(log) as subscription:
        assert take(subscription, 2) == ["t-1", "t-3"]
    told = [
        (line["log_level"], line["partition"], line["offset"]) for line in said if line["event"] == "unreadable_request"
    ]
    assert told == [("error", 0, 1), ("error", 0, 2)]


# --- answers ------------------------------------------------------------------------------------------------------


def answers(log: MessageLog) -> list[RetrainAnswered]:
    return [event for event in read_all(log, CODEC, RETRAIN_RESULTS) if isinstance(event, RetrainAnswered)]


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
    assert [entry.counting.detail for entry in entries.values() if entry.counting] == ["0", "1", "1", "0"]
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


def test_what_is_closed_while_it_waits_for_its_turn_is_passed_over(log: MessageLog) -> None:
    append(log, *(request(f"t-{n}") for n in range(4)))
    with subscribed(log) as subscription:
        assert receive(subscription).event.trigger_id == "t-0"
        with subscribed(log, "another") as another:
            another.answer("t-1", "done")
            append(log, withdrawn("t-2"))
        subscription.handled()
        assert take(subscription) == ["t-3"]


def test_passing_over_does_not_make_what_is_worked_on_handled(log: MessageLog) -> None:
    append(log, request("t-0"), request("t-1"))
    with subscribed(log) as subscription:
        assert receive(subscription).event.trigger_id == "t-0"
        subscription.answer("t-1", "done")
        assert silent(subscription)
        time.sleep(2 * SILENCE_S)
    with subscribed(log) as again:
        assert take(again) == ["t-0"]
        assert silent(again)
        append(log, request("t-2"))
        assert take(again) == ["t-2"]


# --- the log goes away --------------------------------------------------------------------------------------------


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.adapters.logs.local_store.BUSY_TIMEOUT_S", 0.1)


@pytest.mark.usefixtures("hasty")
def test_handled_while_the_log_is_away_is_committed_once_it_is_back(tmp_path: Path) -> None:
    log = LocalLog(tmp_path)
    append(log, *(request(f"t-{n}") for n in range(3)))
    with capture_logs() as said, subscribed(log) as subscription:
        asked = receive(subscription).event
        assert isinstance(asked, RetrainRequested)
        with away(tmp_path):
            with pytest.raises(LogUnavailableError):
                subscription.answer(asked, "done")
            subscription.handled()
            wait_for(lambda: any(line["event"] == "log_away" for line in said))
            time.sleep(0.5)
        assert [line["event"] for line in said].count("log_away") == 1
        subscription.answer(asked, "done")
        assert take(subscription, 2) == ["t-1", "t-2"]
        append(log, request("t-3"))
        assert take(subscription) == ["t-3"]
    assert {answer.trigger_id for answer in answers(log)} == {"t-0"}
    with subscribed(log) as again:
        assert silent(again)
    log.close()


@pytest.mark.usefixtures("hasty")
def test_closing_while_the_log_is_away_returns_and_the_request_comes_again(tmp_path: Path) -> None:
    log = LocalLog(tmp_path, session_timeout_s=1.0)
    append(log, request("t-0"))
    subscription = Subscription(log, CODEC, "g")
    assert receive(subscription).event.trigger_id == "t-0"
    with away(tmp_path):
        subscription.handled()
        subscription.close()
    with subscribed(log) as again:
        assert take(again) == ["t-0"]
    log.close()


def test_a_log_that_is_closed_under_it_is_an_error_in_the_loop() -> None:
    log = MemoryLog()
    subscription = Subscription(log, CODEC, "g")
    assert subscription.receive(0.1) is None
    log.close()
    with pytest.raises(LogError):
        subscription.receive(PATIENCE_S)
    with pytest.raises(LogError):
        subscription.receive(PATIENCE_S)
    subscription.close()


def test_closing_ends_a_loop_that_waits_in_another_thread(log: MessageLog) -> None:
    subscription = Subscription(log, CODEC, "g")
    waiting = Running(lambda: list(subscription))
    receiving = Running(lambda: subscription.receive(600))
    time.sleep(0.3)
    subscription.close()
    waiting.result()
    receiving.result()


def test_a_group_needs_a_name(log: MessageLog) -> None:
    with pytest.raises(ConfigurationError, match="group name"):
        Subscription(log, CODEC, "")
