"""What Python programs of users call; `stepwell` itself hands these names on.

Beside the command line this is the only place that reads settings.
"""

from collections.abc import Iterable

from stepwell.adapters.logs import open_log
from stepwell.adapters.subscriber import Delivery, Subscription
from stepwell.events.codec import Codec
from stepwell.events.model import RetrainRequested, RetrainWithdrawn
from stepwell.exceptions import ConfigurationError
from stepwell.settings import get_settings

__all__ = ["Delivery", "RetrainRequested", "RetrainWithdrawn", "Subscription", "subscribe"]


def subscribe(
    group: str,
    *,
    log: str | None = None,
    instance_id: str | None = None,
    policies: Iterable[str] | None = None,
    withdrawals: bool = False,
    only_open: bool = True,
) -> Subscription:
    """Receive retrain requests, and answer them: an endless iterator, and a context manager that leaves the group.

    Delivery is at least once. A request counts as received once it was answered ``done``, ``failed`` or ``rejected``,
    or once the next one is asked for; if the process dies before, it comes again with the same ``trigger_id``: take
    that as the idempotency key.

    Args:
        group: consumer group. Each request goes to one member of it, so several trainers share the work under one
            name; services that must each see every request use names of their own, and ``only_open=False``.
        log: ``local:DIRECTORY`` or ``kafka://host:port[,host:port]``; None for the setting ``log`` (`STEPWELL_LOG`).
        instance_id: stable name of this member, so that a restart takes its work back at once.
        policies: only requests for these policies; None for all.
        withdrawals: hand out `RetrainWithdrawn` too: the verdicts behind a request were amended.
        only_open: pass over requests that are closed by the time it is their turn, by an answer of whichever group or
            by a withdrawal. False: every request since the log's start.

    Raises:
        ConfigurationError: the group's name is empty, ``policies`` is one text, or the log's URL is wrong.
        MissingPartError: the log is Kafka, and its client is not installed (``pip install 'stepwell[kafka]'``).
        LogError: the log cannot be used. What goes wrong later is raised by the iteration.
    """
    if isinstance(policies, str):
        raise ConfigurationError(f"policies must be a list of names, as in policies=[{policies!r}]")
    opened = open_log(log or get_settings().log)
    try:
        return Subscription(
            opened,
            Codec(),
            group,
            instance_id=instance_id,
            policies=None if policies is None else frozenset(policies),
            withdrawals=withdrawals,
            only_open=only_open,
            owns_log=True,
        )
    except BaseException:
        opened.close()
        raise
