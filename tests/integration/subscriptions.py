"""Subscriptions for tests: groups, members on machines of their own, requests to hand out."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stepwell.adapters.logs.memory import MemoryLog
from stepwell.adapters.logs.reading import read_all
from stepwell.adapters.subscriber import Delivery, Subscription, Wanted
from stepwell.engine.ports import MessageLog, OutgoingRecord
from stepwell.engine.publish import outgoing
from stepwell.events.codec import Codec
from stepwell.events.model import RetrainAnswered, RetrainRequested, RetrainWithdrawn
from stepwell.events.topics import RETRAIN_RESULTS
from tests.integration.projections.facts import retrain

CODEC = Codec()
PATIENCE_S = 30.0
SILENCE_S = 0.6
_PLACES: list[Path] = []
"""Where the running test's members have their inboxes; the last one counts."""


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


@pytest.fixture(autouse=True)
def inboxes(tmp_path: Path) -> Iterator[Path]:
    """Where this test's members have their inboxes."""
    _PLACES.append(tmp_path / "inboxes")
    yield _PLACES[-1]
    _PLACES.pop()


def joined(log: MessageLog, group: str = "g", *, machine: str = "here", **options: Any) -> Subscription:
    """A member of a group. Members on one machine share a folder of inboxes."""
    wishes = {name: options.pop(name) for name in list(options) if name in Wanted.__dataclass_fields__}
    wanted = Wanted(**wishes)
    inbox = _PLACES[-1] / machine / wanted.members_of(group)
    return Subscription(log, CODEC, group, inbox=inbox, wanted=wanted, **options)


@contextlib.contextmanager
def subscribed(log: MessageLog, group: str = "g", **options: Any) -> Iterator[Subscription]:
    with joined(log, group, **options) as subscription:
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


def answers(log: MessageLog) -> list[RetrainAnswered]:
    return [event for event in read_all(log, CODEC, RETRAIN_RESULTS) if isinstance(event, RetrainAnswered)]
