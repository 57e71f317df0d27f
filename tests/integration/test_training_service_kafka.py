"""Training services on real Kafka, in threads and in asyncio: long work, rebalances, members that die, adoption."""

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest

import stepwell
from stepwell.adapters.logs.kafka import KafkaLog
from stepwell.adapters.logs.reading import read_all
from stepwell.adapters.parts.kafka import KafkaPart
from stepwell.engine.ports import MessageLog
from stepwell.events.model import RetrainAnswered
from stepwell.events.topics import RETRAIN_RESULTS, TOPICS
from tests.integration.subscriptions import CODEC, append, request

T = TypeVar("T")
PATIENCE_S = 60.0
SILENCE_S = 2.0
LONG_S = 9.0
"""Longer than the session time-out (6 s)."""
_numbers = itertools.count()


class Member(Protocol):
    """A subscription, however it waits."""

    def receive(self, timeout_s: float) -> stepwell.Delivery | None: ...

    def handled(self, delivery: stepwell.Delivery) -> None: ...

    def answer(self, request: Any, status: str) -> None: ...

    def close(self) -> None: ...


class InAsyncio:
    """An `AsyncSubscription` in an event loop of its own."""

    def __init__(self, subscription: stepwell.AsyncSubscription) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._subscription = subscription
        self._call(subscription.__aenter__())

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def receive(self, timeout_s: float) -> stepwell.Delivery | None:
        return self._call(self._subscription.receive(timeout_s))

    def handled(self, delivery: stepwell.Delivery) -> None:
        self._call(self._subscription.handled(delivery))

    def answer(self, request: Any, status: str) -> None:
        self._call(self._subscription.answer(request, status, new_checkpoint="c"))

    def close(self) -> None:
        if self._loop.is_closed():
            return
        try:
            self._call(self._subscription.aclose())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()


class Place:
    """The log, this test's group and policies, and a folder for inboxes."""

    def __init__(self, kind: str, bootstrap: str, directory: Path) -> None:
        self.kind = kind
        self.url = f"kafka://{bootstrap}"
        self.group = f"trainers-{uuid.uuid4().hex[:8]}"
        self.directory = directory
        self.log: MessageLog = KafkaLog(bootstrap)
        self.log.admin().create(TOPICS)
        self.policies = [f"{self.group}-p{n}" for n in range(6)]
        self._members = contextlib.ExitStack()

    def join(self, name: str, **options: Any) -> Member:
        options = {"log": self.url, "inbox": self.directory / f"{name}.db", "policies": self.policies} | options
        if self.kind == "asyncio":
            member: Member = InAsyncio(stepwell.subscribe_async(self.group, **options))
        else:
            member = stepwell.subscribe(self.group, **options)
        self._members.callback(member.close)
        return member

    def request(self, policy: int, partition: int) -> str:
        trigger = f"{self.group}-{next(_numbers)}"
        append(self.log, request(trigger, self.policies[policy]), partition=partition)
        return trigger

    def answered(self) -> list[tuple[str, str]]:
        every = read_all(self.log, CODEC, RETRAIN_RESULTS)
        mine = (event for event in every if isinstance(event, RetrainAnswered) and event.policy in self.policies)
        return [(event.trigger_id, event.status) for event in mine]

    def close(self) -> None:
        self._members.close()
        self.log.close()


@pytest.fixture(params=["threads", "asyncio"])
def place(request: pytest.FixtureRequest, kafka_bootstrap: str, tmp_path: Path) -> Iterator[Place]:
    place = Place(request.param, kafka_bootstrap, tmp_path)
    yield place
    place.close()


def receive(member: Member) -> stepwell.Delivery:
    delivery = member.receive(PATIENCE_S / 2)
    assert delivery is not None, "no request came"
    return delivery


def take(member: Member, count: int) -> list[str]:
    taken = []
    for _ in range(count):
        delivery = receive(member)
        taken.append(delivery.event.trigger_id)
        member.handled(delivery)
    return taken


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def test_long_work_goes_on_through_a_rebalance_and_holds_up_no_other_policy(place: Place) -> None:
    long = place.request(policy=0, partition=0)
    behind = place.request(policy=0, partition=0)
    one = place.join("one")
    working = receive(one)
    assert working.event.trigger_id == long
    until_s = time.monotonic() + LONG_S
    other = place.request(policy=1, partition=0)
    assert take(one, 1) == [other], "of the same partition"
    two = place.join("two")  # a rebalance in the middle of the work
    seen: dict[str, list[str]] = {"one": [], "two": []}
    sent = []
    while time.monotonic() < until_s or not seen["two"]:
        assert time.monotonic() < until_s + PATIENCE_S, "the second member gets partitions"
        sent += [place.request(policy=2 + partition, partition=partition) for partition in range(4)]
        for name, member in (("one", one), ("two", two)):
            while (delivery := member.receive(0.5)) is not None:
                seen[name].append(delivery.event.trigger_id)
                member.handled(delivery)
    one.answer(working.event, "done")
    assert take(one, 1) == [behind], "it was stored by the first member, and stays with it"
    deadline = time.monotonic() + PATIENCE_S
    while len(seen["one"]) + len(seen["two"]) < len(sent):
        assert time.monotonic() < deadline
        for name, member in (("one", one), ("two", two)):
            while (delivery := member.receive(0.2)) is not None:
                seen[name].append(delivery.event.trigger_id)
                member.handled(delivery)
    assert sorted(seen["one"] + seen["two"]) == sorted(sent), "each exactly once: nobody died"
    assert place.answered() == [(long, "done")]
    assert one.receive(SILENCE_S) is None
    assert two.receive(SILENCE_S) is None


def test_a_new_member_goes_on_after_the_group_and_an_old_one_from_its_inbox(place: Place) -> None:
    first, second, third = (place.request(policy=n, partition=n) for n in range(3))
    one = place.join("one")
    assert len({receive(one).event.trigger_id for _ in range(3)}) == 3
    one.close()
    new = place.join("new")
    fourth = place.request(policy=3, partition=3)
    assert take(new, 1) == [fourth]
    assert new.receive(SILENCE_S) is None, "the rest is one's"
    new.close()
    again = place.join("one")
    assert sorted(take(again, 3)) == sorted([first, second, third])
    assert again.receive(SILENCE_S) is None


def test_a_member_that_joins_later_gets_what_was_not_taken(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.adapters.inbox.window.WINDOW_MAX", 3)
    monkeypatch.setattr("stepwell.adapters.inbox.intake.POLL_RECORDS_MAX", 2)
    sent = [place.request(policy=partition, partition=partition) for _ in range(10) for partition in range(4)]
    one = place.join("one")
    working = receive(one)
    time.sleep(LONG_S)  # its partitions are paused, and it stays a member
    two = place.join("two")
    theirs = take(two, 10)
    while (delivery := two.receive(SILENCE_S)) is not None:
        theirs.append(delivery.event.trigger_id)
        two.handled(delivery)
    assert len(theirs) < len(sent) - 1, "the first is still a member, and has partitions"
    one.handled(working)
    ours = [working.event.trigger_id, *take(one, len(sent) - len(theirs) - 1)]
    assert sorted([*ours, *theirs]) == sorted(sent), "each exactly once"
    assert one.receive(SILENCE_S) is None


SERVICE = """
import asyncio, sys, stepwell
kind, url, group, inbox, policy = sys.argv[1:]
options = {"log": url, "inbox": inbox, "policies": [policy]}
if kind == "threads":
    with stepwell.subscribe(group, **options) as subscription:
        for delivery in subscription:
            print("got", delivery.event.trigger_id, delivery.failures, flush=True)
            subscription.answer(delivery.event, "accepted")
            sys.stdin.readline()
            subscription.answer(delivery.event, "done", new_checkpoint="c")
else:
    async def main():
        async with stepwell.subscribe_async(group, **options) as subscription:
            async for delivery in subscription:
                print("got", delivery.event.trigger_id, delivery.failures, flush=True)
                await subscription.answer(delivery.event, "accepted")
                await asyncio.to_thread(sys.stdin.readline)
                await subscription.answer(delivery.event, "done", new_checkpoint="c")
    asyncio.run(main())
"""


def test_a_service_that_is_killed_gets_its_request_again(place: Place) -> None:
    trigger = place.request(policy=0, partition=1)
    arguments = [place.kind, place.url, place.group, str(place.directory / "one.db"), place.policies[0]]
    for life in range(2):
        process = subprocess.Popen(
            [sys.executable, "-c", SERVICE, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        with process:
            try:
                assert process.stdin is not None
                assert process.stdout is not None
                # Other tests leave records in the topic that nobody can read, and the log tells of them.
                got = next(line for line in process.stdout if line.startswith("got "))
                assert got == f"got {trigger} {life}\n"
                until(lambda: len(place.answered()) == life + 1)  # noqa: B023 - called at once
                if life == 1:
                    process.stdin.write("\n")
                    process.stdin.flush()
                    until(lambda: place.answered()[-1] == (trigger, "done"))
            finally:
                os.kill(process.pid, signal.SIGKILL)
    assert place.answered() == [(trigger, "accepted"), (trigger, "accepted"), (trigger, "done")]
    again = place.join("one")
    assert again.receive(SILENCE_S) is None, "closed meanwhile: passed over"


def test_a_member_that_is_lost_with_its_disk_is_replaced_after_a_silence(place: Place) -> None:
    triggers = sorted(place.request(policy=n, partition=n) for n in range(3))
    lost = place.join("lost", adopt_after_s=3.0)
    assert sorted(receive(lost).event.trigger_id for _ in range(3)) == triggers
    lost.close()  # its file is never opened again
    stands_in = place.join("stands-in", adopt_after_s=3.0)
    assert sorted(take(stands_in, 3)) == triggers
    assert stands_in.receive(SILENCE_S) is None
    accepted = [trigger for trigger, status in place.answered() if status == "accepted"]
    assert set(accepted) == set(triggers)


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_an_outage_of_the_cluster_is_waited_out(kind: str, tmp_path: Path) -> None:
    with KafkaPart() as node:
        place = Place(kind, node.bootstrap, tmp_path)
        first, second = place.request(policy=0, partition=0), place.request(policy=0, partition=0)
        member = place.join("one")
        working = receive(member)
        assert working.event.trigger_id == first
        node.kill9()
        assert member.receive(3.0) is None
        node.start()
        member.answer(working.event, "done")
        assert take(member, 1) == [second]
        third = place.request(policy=1, partition=1)
        assert take(member, 1) == [third]
        assert place.answered() == [(first, "done")]
        place.close()
