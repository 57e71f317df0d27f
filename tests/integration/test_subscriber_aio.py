"""The subscriber in asyncio, on the local log: the same promises, and cancellation at any point loses nothing."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell.adapters.logs import open_log
from stepwell.adapters.logs.reading import read_all
from stepwell.engine.ports import MessageLog
from stepwell.events.model import RetrainAnswered, RetrainRequested
from stepwell.events.topics import RETRAIN_RESULTS
from stepwell.exceptions import ConfigurationError, FencedError, NotFoundError
from tests.integration.projections.facts import withdrawn
from tests.integration.subscriptions import CODEC, append, request

PATIENCE_S = 30.0
SILENCE_S = 0.6


class Place:
    """A local log and a folder for inboxes."""

    def __init__(self, directory: Path) -> None:
        self.url = f"local:{directory / 'log'}"
        self.directory = directory
        self.log: MessageLog = open_log(self.url)

    @contextlib.asynccontextmanager
    async def subscribed(self, **options: Any) -> AsyncIterator[stepwell.AsyncSubscription]:
        inbox = self.directory / "inbox" / "g.db"
        async with stepwell.subscribe_async("g", log=self.url, inbox=inbox, **options) as subscription:
            yield subscription

    def answers(self) -> list[tuple[str, str]]:
        every = read_all(self.log, CODEC, RETRAIN_RESULTS)
        return [(event.trigger_id, event.status) for event in every if isinstance(event, RetrainAnswered)]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.log.close()


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await work()

    asyncio.run(bounded())


async def receive(subscription: stepwell.AsyncSubscription) -> stepwell.Delivery:
    delivery = await subscription.receive(PATIENCE_S)
    assert delivery is not None, "no request came"
    return delivery


async def take(subscription: stepwell.AsyncSubscription, count: int = 1) -> list[str]:
    triggers = []
    for _ in range(count):
        delivery = await receive(subscription)
        triggers.append(delivery.event.trigger_id)
        await subscription.handled(delivery)
    return triggers


async def silent(subscription: stepwell.AsyncSubscription) -> bool:
    return await subscription.receive(SILENCE_S) is None


def test_requests_are_received_answered_and_not_received_again(place: Place) -> None:
    append(place.log, *(request(f"t-{n}") for n in range(4)), withdrawn("t-1"))

    async def work() -> None:
        seen = []
        async with place.subscribed() as subscription:
            assert subscription.inbox.name == "g.db"
            async for delivery in subscription:
                event = delivery.event
                assert isinstance(event, RetrainRequested)
                assert await subscription.still_open(event)
                seen.append(event.trigger_id)
                if event.trigger_id == "t-3":
                    break  # unhandled: it comes again
                await subscription.answer(event, "done", new_checkpoint="c")
                assert not await subscription.still_open(event)
        assert seen == ["t-0", "t-2", "t-3"]
        async with place.subscribed() as again:
            assert await take(again) == ["t-3"]
            await again.answer("t-3", "accepted")
            with pytest.raises(NotFoundError):
                await again.answer("t-9", "done")
            assert await silent(again)

    run(work)
    assert place.answers() == [("t-0", "done"), ("t-2", "done"), ("t-3", "accepted")]


def test_tasks_work_side_by_side_and_one_policy_stays_in_order(place: Place) -> None:
    append(place.log, *(request(f"{policy}-{n}", policy) for n in range(2) for policy in "abc"))

    async def work() -> None:
        worked: list[str] = []
        together = asyncio.Barrier(3)

        async def one(subscription: stepwell.AsyncSubscription) -> None:
            for _ in range(2):
                delivery = await receive(subscription)
                await together.wait()
                worked.append(delivery.event.trigger_id)
                await subscription.handled(delivery)
                await together.wait()

        async with place.subscribed() as subscription, asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(one(subscription))
        for policy in "abc":
            assert [trigger for trigger in worked if trigger[0] == policy] == [f"{policy}-0", f"{policy}-1"]

    run(work)


def test_a_cancellation_at_any_moment_loses_nothing_and_is_no_failure(place: Place) -> None:
    append(place.log, *(request(f"t-{n}", f"p{n}") for n in range(5)))

    async def service(seen: list[str]) -> None:
        async with place.subscribed(failures_max=1) as subscription:
            async for delivery in subscription:
                seen.append(delivery.event.trigger_id)
                await asyncio.sleep(0.01)

    async def work() -> None:
        seen: list[str] = []
        for milliseconds in [*range(0, 300, 25), 20_000]:
            task = asyncio.create_task(service(seen))
            for _ in range(milliseconds):
                await asyncio.sleep(0.001)
                if milliseconds > 1_000 and len(set(seen)) == 5:
                    break
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert set(seen) == {f"t-{n}" for n in range(5)}
        async with place.subscribed() as subscription:
            assert subscription._inbox.entries(["parked"]) == []

    run(work)


def test_an_exception_is_a_failure_and_parks_in_the_end(place: Place) -> None:
    append(place.log, request("bad"), request("good"))

    async def service(failures: int) -> None:
        async with place.subscribed(failures_max=2) as subscription:
            async for delivery in subscription:
                assert (delivery.event.trigger_id, delivery.failures) == ("bad", failures)
                _ = 1 / 0

    async def work() -> None:
        for failures in range(2):
            with pytest.raises(ZeroDivisionError):
                await service(failures)
        async with place.subscribed(failures_max=2, retry_pause_s=0.1) as subscription:
            good = await receive(subscription)
            assert good.event.trigger_id == "good"
            assert not await subscription.put_back("not now")
            assert await take(subscription) == ["good"]

    run(work)


def test_silence_gives_requests_away_and_work_is_told_of(place: Place) -> None:
    append(place.log, request("t-0"))

    async def work() -> None:
        async with place.subscribed(adopt_after_s=0.9) as subscription:
            assert (await receive(subscription)).event.trigger_id == "t-0"
            await asyncio.sleep(1.5)
        said = place.answers()
        assert set(said) == {("t-0", "accepted")}
        assert 3 <= len(said) <= 8, "when it begins, and every third of the time"

    run(work)


def test_what_cannot_be_opened_is_an_error_and_leaves_nothing_open(place: Place, tmp_path: Path) -> None:
    async def work() -> None:
        with pytest.raises(ConfigurationError, match="none that Stepwell knows"):
            async with stepwell.subscribe_async("g", log="nonsense:log", inbox=tmp_path / "x.db"):
                pass
        async with place.subscribed(instance_id="one") as subscription:
            with pytest.raises(ConfigurationError, match="another process works with this inbox"):
                async with place.subscribed():
                    pass
            append(place.log, request("t-0"))
            assert await take(subscription) == ["t-0"]
            rival = stepwell.subscribe_async("g", log=place.url, inbox=tmp_path / "y.db", instance_id="one")
            async with rival:
                with pytest.raises(FencedError):
                    await subscription.receive(PATIENCE_S)
                with pytest.raises(FencedError):
                    await anext(aiter(subscription))

    run(work)
    with pytest.raises(ConfigurationError, match="needs a group name"):
        stepwell.subscribe_async("", log=place.url)
    with pytest.raises(ConfigurationError, match=r"ends with \.db"):
        stepwell.subscribe_async("g", log=place.url, inbox=tmp_path / "folder")
