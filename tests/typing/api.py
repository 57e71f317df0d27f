"""The public face as a typed caller uses it; checked by mypy, never run."""

import stepwell
from stepwell import ConfigurationError, Delivery, RetrainRequested, RetrainWithdrawn, StepwellError, Subscription
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


with stepwell.subscribe("trainer", log="local:log", policies=["reach"], withdrawals=True) as listening:
    train(listening)

try:
    print(log_of(get_settings()))
except ConfigurationError as refused:
    print(told(refused))
