"""Ends what a transactional id may have left open without anybody knowing.

A transaction coordinator that comes back (seen with Kafka 4.4.0, one node, killed with a transaction open) may look for
the transaction's partitions before it knows their leaders, take them for deleted, and call the transaction ended
without having told them. From then on nobody ends it: readers of committed records stop before it, the group's
positions stay hidden, and the next commit under the same id would make its records visible beside their repetition.

Only a transaction of the same producer that touches the same partitions ends it there. So whoever takes an id over
begins one that touches all of them, and aborts it. What the coordinator really had ended is not touched by that.
"""

from typing import Any

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as DriverPartition

from stepwell.adapters.logs.kafka_client import CALL_TIMEOUT_S, base_options, make_client, patiently
from stepwell.adapters.logs.kafka_errors import to_log_error
from stepwell.engine.ports import Touches

__all__ = ["group_metadata", "settle"]

_KEY = b"stepwell/settling"
_FLUSH_S = 10.0
_log = structlog.get_logger(__name__)


def group_metadata(bootstrap: str, options: Any, touches: Touches) -> object:
    """What a transaction names a group by, without being a member: enough for positions that are never committed.

    Raises:
        LogError: the group's coordinator cannot be asked.
    """
    settings = {
        **base_options(bootstrap, options, None),
        "group.id": touches.group,
        "enable.auto.commit": False,
        "isolation.level": "read_uncommitted",  # what is left open must not hold this up
    }
    client = make_client(Consumer, settings)
    try:
        # A group's first use makes the broker make its topic of positions. A producer that asks meanwhile may wait for
        # ever (librdkafka issues 5456 and 5511); a consumer asks again.
        patiently(lambda: _find_coordinator(client, touches), CALL_TIMEOUT_S)
        return client.consumer_group_metadata()
    finally:
        client.close()


def _find_coordinator(client: Consumer, touches: Touches) -> None:
    try:
        client.committed([DriverPartition(touches.topics[0], 0)], CALL_TIMEOUT_S)
    except KafkaException as error:
        raise to_log_error(error, f"looking for the coordinator of group {touches.group}") from error


def settle(driver: Producer, touches: Touches, metadata: object) -> None:
    """Touch every partition that a transaction of this producer may have touched, and abort.

    Raises:
        KafkaException: it could not be done now; take the id over again.
    """
    partitions: list[tuple[str, int]] = []
    for name in touches.topics:  # one that is not there yet has no partitions
        partitions += [(name, number) for number in driver.list_topics(name, CALL_TIMEOUT_S).topics[name].partitions]
    if not partitions:
        return
    driver.begin_transaction()
    for name, number in partitions:
        driver.produce(name, b"", _KEY, number)
    left = driver.flush(_FLUSH_S)
    if left:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{left} partition(s) did not answer"))
    name, number = partitions[0]
    driver.send_offsets_to_transaction([DriverPartition(name, number, 0)], metadata, CALL_TIMEOUT_S)
    driver.abort_transaction(CALL_TIMEOUT_S)
    _log.debug("log_transactions_settled", partitions=len(partitions), group=touches.group)
