"""What Python programs of users call; `stepwell` itself hands these names on.

Beside the command line this is the only place that reads settings.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stepwell.adapters.inbox.desk import FAILURES_MAX, Wanted
from stepwell.adapters.inbox.places import group_folder
from stepwell.adapters.inbox.store import FIRST_PAUSE_S
from stepwell.adapters.logs import open_log
from stepwell.adapters.registry import open_codec
from stepwell.adapters.subscriber import Delivery, Subscription
from stepwell.adapters.subscriber_aio import AsyncSubscription
from stepwell.events.codec import Codec
from stepwell.events.model import RetrainRequested, RetrainWithdrawn
from stepwell.exceptions import ConfigurationError
from stepwell.settings import get_settings

__all__ = [
    "AsyncSubscription",
    "Delivery",
    "RetrainRequested",
    "RetrainWithdrawn",
    "Subscription",
    "subscribe",
    "subscribe_async",
]


def subscribe(
    group: str,
    *,
    log: str | None = None,
    instance_id: str | None = None,
    policies: Iterable[str] | None = None,
    withdrawals: bool = False,
    only_open: bool = True,
    inbox: str | Path | None = None,
    failures_max: int = FAILURES_MAX,
    retry_pause_s: float = FIRST_PAUSE_S,
    adopt_after_s: float | None = None,
) -> Subscription:
    """Receive retrain requests, and answer them: an endless iterator, and a context manager that leaves the group.

    Delivery is at least once. A request is stored in an inbox on this machine's disk before the group's position is
    committed, so that it is this member's, however long the work takes. It counts as received once it was answered
    ``done``, ``failed`` or ``rejected``, or once the next one is asked for; if the process dies before, it comes again
    with the same ``trigger_id``: take that as the idempotency key.

    A loop works on one request at a time, and those of other policies wait meanwhile, in the log. For work side by side
    let several threads call `Subscription.receive`.

    Args:
        group: consumer group. Each request goes to one member of it, so several trainers share the work under one
            name; services that must each see every request use names of their own, and ``only_open=False``.
        log: ``local:DIRECTORY`` or ``kafka://host:port[,host:port]``; None for the setting ``log`` (`STEPWELL_LOG`).
        instance_id: stable name of this member, so that a restart takes its work back at once.
        policies: only requests for these policies; None for all.
        withdrawals: hand out `RetrainWithdrawn` too: the verdicts behind a request were amended.
        only_open: pass over requests that are closed by the time it is their turn: answered by whichever group,
            withdrawn, or expired. False: every request since the log's start.
        inbox: the inbox's file, which must end with ``.db`` and be this member's alone; None for one among those of
            this group in the folder ``inbox`` of `STEPWELL_HOME`.
        failures_max: park a request in the inbox that was begun so often and never came to an end: an exception left
            the ``with`` block, the process died, or `Subscription.put_back` was called.
        retry_pause_s: pause (s) after `Subscription.put_back`; doubles each time.
        adopt_after_s: take over requests of this group about which the log has heard nothing for so long (s), from
            members that are gone with their disk; give the same to all members. None: never.

    Raises:
        ConfigurationError: the group's name is empty, ``policies`` is one text, the log's URL is wrong, or the inbox
            cannot be used.
        MissingPartError: the log is Kafka, and its client is not installed (``pip install 'stepwell[kafka]'``).
        SchemaRegistryError: a schema registry is set (`STEPWELL_SCHEMA_REGISTRY`), and lacks schemas.
        LogError: the log or the registry cannot be used. What goes wrong later is raised by the iteration.
    """
    wanted = _wanted(policies, withdrawals, only_open, failures_max, retry_pause_s, adopt_after_s)
    url = log or get_settings().log
    opened = open_log(url)
    try:
        return Subscription(
            opened,
            _codec(),
            group,
            log_name=url,
            wanted=wanted,
            owns_log=True,
            **_member(wanted.members_of(group), inbox, instance_id),
        )
    except BaseException:
        opened.close()
        raise


def subscribe_async(
    group: str,
    *,
    log: str | None = None,
    instance_id: str | None = None,
    policies: Iterable[str] | None = None,
    withdrawals: bool = False,
    only_open: bool = True,
    inbox: str | Path | None = None,
    failures_max: int = FAILURES_MAX,
    retry_pause_s: float = FIRST_PAUSE_S,
    adopt_after_s: float | None = None,
) -> AsyncSubscription:
    """As `subscribe`, for asyncio: to be opened with ``async with``, and gone through with ``async for``.

    A cancellation loses nothing: what was being worked on comes again. For work side by side let several tasks call
    `AsyncSubscription.receive`.

    Raises:
        ConfigurationError: as `subscribe`; about the log and the inbox it is raised by ``async with``.
        MissingPartError, LogError: by ``async with``.
    """
    wanted = _wanted(policies, withdrawals, only_open, failures_max, retry_pause_s, adopt_after_s)
    return AsyncSubscription(
        log or get_settings().log,
        _codec(),
        group,
        wanted=wanted,
        **_member(wanted.members_of(group), inbox, instance_id),
    )


def _codec() -> Codec:
    settings = get_settings()
    return open_codec(settings.schema_registry, settings.schema_registry_credentials(), writing=True)


def _wanted(
    policies: Iterable[str] | None,
    withdrawals: bool,
    only_open: bool,
    failures_max: int,
    retry_pause_s: float,
    adopt_after_s: float | None,
) -> Wanted:
    if isinstance(policies, str):
        raise ConfigurationError(f"policies must be a list of names, as in policies=[{policies!r}]")
    return Wanted(
        policies=None if policies is None else frozenset(policies),
        withdrawals=withdrawals,
        only_open=only_open,
        failures_max=failures_max,
        retry_pause_s=retry_pause_s,
        adopt_after_s=adopt_after_s,
    )


def _member(group: str, inbox: str | Path | None, instance_id: str | None) -> dict[str, Any]:
    """Where the member's inbox lies, and its name."""
    if inbox is None:
        return {"inbox": group_folder(get_settings().home, group), "instance_id": instance_id}
    place = Path(inbox).expanduser().absolute()
    if place.suffix != ".db":
        raise ConfigurationError(f"inbox {str(inbox)!r}: give a file that ends with .db")
    return {"inbox": place, "instance_id": instance_id}
