"""What all of Kafka's clients here share: options, and saying once that the cluster is away or back."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import structlog
from confluent_kafka import KafkaError, KafkaException

from stepwell.adapters.logs.kafka_errors import kafka_error
from stepwell.exceptions import ConfigurationError, LogUnavailableError

__all__ = ["CALL_TIMEOUT_S", "Availability", "Outage", "base_options", "make_client", "patiently"]

CALL_TIMEOUT_S = 30.0
"""How long a call that needs an answer waits for it before it raises `LogUnavailableError` (s)."""

ClientT = TypeVar("ClientT")

_log = structlog.get_logger(__name__)
_driver_log = logging.getLogger("stepwell.librdkafka")
_driver_log.addHandler(logging.NullHandler())
_driver_log.propagate = False
_AWAY = (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE, KafkaError._TIMED_OUT)
_BROKEN = (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT)
_LASTING = (KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED)


class Outage:
    """What the clients of one log share: where its brokers are, and whether it was said that they are away."""

    def __init__(self, brokers: str = "") -> None:
        self.brokers = brokers
        self.said = False


class Availability:
    """Says once that the cluster is away, and once that it is back.

    librdkafka reports every failed connection of every client; for a worker that waits, one line is enough, however
    many clients it has and makes anew meanwhile.

    Args:
        client: names it in what is said.
        outage: shared with the other clients of the log.
        quiet: for what nobody waits for: say nothing of it (level debug).
    """

    def __init__(self, client: str, outage: Outage | None = None, *, quiet: bool = False) -> None:
        self._client = client
        self._outage = outage or Outage()
        self._quiet = quiet
        self._away = False
        self.lost_connections = 0
        """How often a connection to a broker broke, or could not be made."""

    @property
    def away(self) -> bool:
        """Whether the last thing heard was that the cluster is away."""
        return self._away

    def on_error(self, error: KafkaError) -> None:
        """The driver's error callback. Fatal errors never come here: the driver raises them from the call."""
        if error.code() in _BROKEN:
            self.lost_connections += 1
        if error.code() in _LASTING:
            self._say_away("log_refuses_us", error)
        elif error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._say_away("log_away", error)
        elif error.code() not in _AWAY:
            _log.warning("log_client_error", client=self._client, code=error.name(), reason=error.str())

    def on_success(self) -> None:
        """Call when something came through."""
        self._away = False
        if self._outage.said:
            self._outage.said = False
            _log.info("log_back", client=self._client, brokers=self._outage.brokers)

    def _say_away(self, event: str, error: KafkaError) -> None:
        self._away = True
        said = {"brokers": self._outage.brokers, "client": self._client, "code": error.name(), "reason": error.str()}
        if self._quiet:
            _log.debug(event, **said)
        elif not self._outage.said:
            self._outage.said = True
            _log.warning(event, **said, then="waiting")


def make_client(factory: Callable[[dict[str, Any]], ClientT], options: dict[str, Any]) -> ClientT:
    """Make one of the driver's clients. Raises `ConfigurationError` that names the option which the driver refuses."""
    try:
        return factory(options)
    except KafkaException as error:
        reason = kafka_error(error).str()
        raise ConfigurationError(f"Kafka's client cannot be made with these options: {reason}") from error


def patiently(call: Callable[[], ClientT], timeout_s: float) -> ClientT:
    """Ask again while the cluster is settling (a new topic's leaders, a moving coordinator), for this long at most."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return call()
        except LogUnavailableError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.1)


def base_options(
    bootstrap: str, options: Mapping[str, Any], on_error: Callable[[KafkaError], None] | None
) -> dict[str, Any]:
    """Options of every client. ``options`` are the user's own (security and the like) and are never logged."""
    base: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "client.id": "stepwell",
        # librdkafka would write each failed connection to standard error. `Availability` says it once instead, and what
        # is fatal comes as an exception.
        "log_level": 2,
        "logger": _driver_log,
        "reconnect.backoff.ms": 100,
        "reconnect.backoff.max.ms": 2_000,
        "socket.keepalive.enable": True,
        "socket.timeout.ms": 20_000,
        "topic.metadata.refresh.interval.ms": 60_000,
        "allow.auto.create.topics": False,
    }
    if on_error is not None:
        base["error_cb"] = on_error
    return {**base, **options}
