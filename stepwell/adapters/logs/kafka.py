"""Apache Kafka as the message log, on confluent-kafka (librdkafka). Settings and their reasons: docs/kafka.md."""

from collections.abc import Mapping
from typing import Any

from stepwell.engine.ports import Touches
from stepwell.exceptions import MissingPartError

try:
    import confluent_kafka  # noqa: F401
except ImportError as error:
    raise MissingPartError("A Kafka log needs confluent-kafka: pip install 'stepwell[kafka]'") from error

from stepwell.adapters.logs.kafka_admin import KafkaAdmin
from stepwell.adapters.logs.kafka_client import Outage
from stepwell.adapters.logs.kafka_consumer import KafkaConsumer
from stepwell.adapters.logs.kafka_producer import KafkaProducer, KafkaTransactionalProducer

__all__ = ["KafkaLog"]


class KafkaLog:
    """See `stepwell.engine.ports.MessageLog`.

    Args:
        bootstrap: one or more ``host:port``, separated by commas.
        options: options of librdkafka for every client, on top of ours: security, or shorter times in a test. They may
            hold secrets; they are never logged and never part of an error.
    """

    def __init__(self, bootstrap: str, options: Mapping[str, Any] | None = None) -> None:
        self.bootstrap = bootstrap
        self._options = dict(options or {})
        self._outage = Outage(bootstrap)

    def __repr__(self) -> str:
        return f"KafkaLog({self.bootstrap!r})"

    @property
    def said_away(self) -> bool:
        """See `stepwell.engine.ports.MessageLog.said_away`."""
        return self._outage.said

    def producer(self, *, quiet: bool = False) -> KafkaProducer:
        """See `stepwell.engine.ports.MessageLog.producer`."""
        return KafkaProducer(self.bootstrap, self._options, self._outage, quiet=quiet)

    def transactional_producer(
        self, transactional_id: str, touches: Touches | None = None
    ) -> KafkaTransactionalProducer:
        """See `stepwell.engine.ports.MessageLog.transactional_producer`.

        Raises:
            LogUnavailableError: no broker answered in time.
        """
        return KafkaTransactionalProducer(self.bootstrap, transactional_id, self._options, self._outage, touches)

    def consumer(self, group: str | None = None, instance_id: str | None = None) -> KafkaConsumer:
        """See `stepwell.engine.ports.MessageLog.consumer`."""
        return KafkaConsumer(self.bootstrap, group, instance_id, self._options, self._outage)

    def admin(self) -> KafkaAdmin:
        """See `stepwell.engine.ports.MessageLog.admin`."""
        return KafkaAdmin(self.bootstrap, self._options, self._outage)

    def close(self) -> None:
        """See `stepwell.engine.ports.MessageLog.close`. Every client is closed on its own; the log holds nothing."""
