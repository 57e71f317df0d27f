"""The public face as a typed caller uses it; checked by mypy, never run."""

import stepwell
from stepwell import (
    AsyncSubscription,
    ConfigurationError,
    Delivery,
    RetrainRequested,
    RetrainWithdrawn,
    StepwellError,
    Subscription,
)
from stepwell.settings import Settings, get_settings

version: str = stepwell.__version__


def log_of(settings: Settings) -> str:
    return settings.log


def told(error: StepwellError) -> tuple[str, bool]:
    return str(error), error.retriable


def withdrawn(delivery: Delivery) -> str | None:
    return delivery.event.reason if isinstance(delivery.event, RetrainWithdrawn) else None


def train(subscription: Subscription) -> None:
    for delivery in subscription:
        if isinstance(delivery.event, RetrainRequested):
            subscription.answer(delivery.event, "done", new_checkpoint="ab12")


def retried(subscription: Subscription) -> tuple[bool, bool] | None:
    delivery = subscription.receive(timeout_s=1.0)
    if delivery is None or not isinstance(delivery.event, RetrainRequested):
        return None
    return subscription.still_open(delivery.event), subscription.put_back(f"{delivery.failures} so far", delivery)


async def train_async(subscription: AsyncSubscription) -> None:
    async for delivery in subscription:
        if isinstance(delivery.event, RetrainRequested) and await subscription.still_open(delivery.event):
            await subscription.answer(delivery.event, "done", new_checkpoint="ab12")
        await subscription.handled(delivery)


async def listen_async() -> None:
    async with stepwell.subscribe_async("trainer", inbox="a.db", failures_max=3, adopt_after_s=3600.0) as opened:
        await train_async(opened)


with stepwell.subscribe("trainer", log="local:log", policies=["reach"], withdrawals=True) as listening:
    train(listening)

try:
    print(log_of(get_settings()))
except ConfigurationError as refused:
    print(told(refused))
