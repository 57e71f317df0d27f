"""Which of our errors each of Kafka's becomes.

Every code that the driver knows stands in exactly one of the groups below; a test fails when a new driver brings one
that does not. Flags outrank codes: a fatal error is never retriable, and one that asks for an abort ends the
transaction, whatever its code.
"""

from confluent_kafka import KafkaError, KafkaException

from stepwell.exceptions import (
    FencedError,
    LogError,
    LogUnavailableError,
    PositionLostError,
    TopicError,
    TransactionAbortedError,
)

__all__ = ["GROUPS", "classify", "kafka_error", "to_log_error"]

# Somebody else took this transactional id, member or instance.
_FENCED = """
    PRODUCER_FENCED INVALID_PRODUCER_EPOCH TRANSACTION_COORDINATOR_FENCED _FENCED
    ILLEGAL_GENERATION UNKNOWN_MEMBER_ID FENCED_INSTANCE_ID FENCED_MEMBER_EPOCH STALE_MEMBER_EPOCH
    UNRELEASED_INSTANCE_ID _ASSIGNMENT_LOST
"""
# The cluster, or the part that is needed, is away or not settled; the same call can succeed later.
_UNAVAILABLE = """
    BROKER_NOT_AVAILABLE CONCURRENT_TRANSACTIONS COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE
    ELECTION_NOT_NEEDED ELIGIBLE_LEADERS_NOT_AVAILABLE FENCED_LEADER_EPOCH FETCH_SESSION_ID_NOT_FOUND
    INCONSISTENT_TOPIC_ID INVALID_FETCH_SESSION_EPOCH INVALID_MSG KAFKA_STORAGE_ERROR LEADER_NOT_AVAILABLE
    LISTENER_NOT_FOUND MEMBER_ID_REQUIRED NETWORK_EXCEPTION NOT_CONTROLLER NOT_COORDINATOR NOT_ENOUGH_REPLICAS
    NOT_ENOUGH_REPLICAS_AFTER_APPEND NOT_LEADER_FOR_PARTITION OFFSET_NOT_AVAILABLE PREFERRED_LEADER_NOT_AVAILABLE
    REASSIGNMENT_IN_PROGRESS REBALANCE_IN_PROGRESS REBOOTSTRAP_REQUIRED REPLICA_NOT_AVAILABLE REQUEST_TIMED_OUT
    STALE_BROKER_EPOCH STALE_CTRL_EPOCH THROTTLING_QUOTA_EXCEEDED UNKNOWN_LEADER_EPOCH UNSTABLE_OFFSET_COMMIT
    _ALL_BROKERS_DOWN _DESTROY_BROKER _INTR _IN_PROGRESS _ISR_INSUFF _MAX_POLL_EXCEEDED _MSG_TIMED_OUT _OUTDATED
    _PREV_IN_PROGRESS _PURGE_INFLIGHT _PURGE_QUEUE _QUEUE_FULL _RESOLVE _RETRY _TIMED_OUT _TIMED_OUT_QUEUE _TRANSPORT
    _UNKNOWN_BROKER _WAIT_CACHE _WAIT_COORD
"""
# The open transaction cannot be committed; a fresh one can.
_ABORTED = "TRANSACTION_ABORTABLE INVALID_PRODUCER_ID_MAPPING UNKNOWN_PRODUCER_ID"
# The needed records are gone.
_LOST = "OFFSET_OUT_OF_RANGE _AUTO_OFFSET_RESET _LOG_TRUNCATION _NO_OFFSET"
# A topic is missing, forbidden or set up wrongly.
_TOPIC = """
    INVALID_CONFIG INVALID_PARTITIONS INVALID_REPLICATION_FACTOR INVALID_REPLICA_ASSIGNMENT POLICY_VIOLATION
    TOPIC_ALREADY_EXISTS TOPIC_AUTHORIZATION_FAILED TOPIC_DELETION_DISABLED TOPIC_EXCEPTION UNKNOWN_TOPIC_ID
    UNKNOWN_TOPIC_OR_PART _UNKNOWN_PARTITION _UNKNOWN_TOPIC
"""
# Everything else: a wrong call, a wrong setting, a refusal that lasts, or a feature that is not used here.
_REFUSED = """
    CLUSTER_AUTHORIZATION_FAILED DELEGATION_TOKEN_AUTHORIZATION_FAILED DELEGATION_TOKEN_AUTH_DISABLED
    DELEGATION_TOKEN_EXPIRED DELEGATION_TOKEN_NOT_FOUND DELEGATION_TOKEN_OWNER_MISMATCH
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED DUPLICATE_RESOURCE DUPLICATE_SEQUENCE_NUMBER DUPLICATE_VOTER
    FEATURE_UPDATE_FAILED FENCED_STATE_EPOCH GROUP_AUTHORIZATION_FAILED GROUP_ID_NOT_FOUND GROUP_MAX_SIZE_REACHED
    GROUP_SUBSCRIBED_TO_TOPIC ILLEGAL_SASL_STATE INCONSISTENT_GROUP_PROTOCOL INCONSISTENT_VOTER_SET
    INVALID_COMMIT_OFFSET_SIZE INVALID_GROUP_ID INVALID_MSG_SIZE INVALID_PRINCIPAL_TYPE INVALID_RECORD
    INVALID_RECORD_STATE INVALID_REGISTRATION INVALID_REGULAR_EXPRESSION INVALID_REQUEST INVALID_REQUIRED_ACKS
    INVALID_SESSION_TIMEOUT INVALID_SHARE_SESSION_EPOCH INVALID_TIMESTAMP INVALID_TRANSACTION_TIMEOUT
    INVALID_TXN_STATE INVALID_UPDATE_VERSION INVALID_VOTER_KEY LOG_DIR_NOT_FOUND MISMATCHED_ENDPOINT_TYPE
    MSG_SIZE_TOO_LARGE NON_EMPTY_GROUP NO_ERROR NO_REASSIGNMENT_IN_PROGRESS OFFSET_METADATA_TOO_LARGE
    OPERATION_NOT_ATTEMPTED OUT_OF_ORDER_SEQUENCE_NUMBER PRINCIPAL_DESERIALIZATION_FAILURE RECORD_LIST_TOO_LARGE
    RESOURCE_NOT_FOUND SASL_AUTHENTICATION_FAILED SECURITY_DISABLED SHARE_SESSION_LIMIT_REACHED
    SHARE_SESSION_NOT_FOUND STREAMS_INVALID_TOPOLOGY STREAMS_INVALID_TOPOLOGY_EPOCH STREAMS_TOPOLOGY_FENCED
    TELEMETRY_TOO_LARGE TRANSACTIONAL_ID_AUTHORIZATION_FAILED UNACCEPTABLE_CREDENTIAL UNKNOWN UNKNOWN_CONTROLLER_ID
    UNKNOWN_SUBSCRIPTION_ID UNSUPPORTED_ASSIGNOR UNSUPPORTED_COMPRESSION_TYPE UNSUPPORTED_ENDPOINT_TYPE
    UNSUPPORTED_FOR_MESSAGE_FORMAT UNSUPPORTED_SASL_MECHANISM UNSUPPORTED_VERSION VOTER_NOT_FOUND
    _APPLICATION _ASSIGN_PARTITIONS _AUTHENTICATION _BAD_COMPRESSION _BAD_MSG _CONFLICT _CRIT_SYS_RESOURCE _DESTROY
    _EXISTING_SUBSCRIPTION _FAIL _FATAL _FS _GAPLESS_GUARANTEE _INCONSISTENT _INVALID_ARG _INVALID_DIFFERENT_RECORD
    _INVALID_TYPE _KEY_DESERIALIZATION _KEY_SERIALIZATION _NODE_UPDATE _NOENT _NOOP _NOT_CONFIGURED _NOT_IMPLEMENTED
    _PARTIAL _PARTITION_EOF _READ_ONLY _REVOKE_PARTITIONS _SSL _STATE _UNDERFLOW _UNKNOWN_GROUP _UNKNOWN_PROTOCOL
    _UNSUPPORTED_FEATURE _VALUE_DESERIALIZATION _VALUE_SERIALIZATION
"""

GROUPS: dict[type[LogError], frozenset[str]] = {
    FencedError: frozenset(_FENCED.split()),
    LogUnavailableError: frozenset(_UNAVAILABLE.split()),
    TransactionAbortedError: frozenset(_ABORTED.split()),
    PositionLostError: frozenset(_LOST.split()),
    TopicError: frozenset(_TOPIC.split()),
    LogError: frozenset(_REFUSED.split()),
}
# A driver older than a code lacks its name; those are left out of the lookup, not of the groups.
_BY_CODE: dict[int, type[LogError]] = {
    getattr(KafkaError, name): kind for kind, names in GROUPS.items() for name in names if hasattr(KafkaError, name)
}


def classify(error: KafkaError) -> type[LogError]:
    """The class of ours for one of the driver's errors, its flags taken into account."""
    kind = _BY_CODE.get(error.code())
    if kind is FencedError:
        return FencedError
    if error.fatal():
        return kind if kind is not None and not kind.retriable else LogError
    if error.txn_requires_abort():
        return TransactionAbortedError
    if kind is not None:
        return kind
    return LogUnavailableError if error.retriable() else LogError


def kafka_error(exception: KafkaException) -> KafkaError:
    """The driver's error object inside its exception (older paths carry plain text instead)."""
    inner = exception.args[0] if exception.args else None
    if isinstance(inner, KafkaError):
        return inner
    return KafkaError(KafkaError._FAIL, str(exception))


def to_log_error(error: KafkaError | KafkaException, doing: str) -> LogError:
    """Our error, with what was being done and Kafka's own name and reason. Options and passwords never get into it."""
    if isinstance(error, KafkaException):
        error = kafka_error(error)
    kind = classify(error)
    hint = _HINTS.get(error.name(), "")
    return kind(f"Kafka: {doing}: {error.str()} ({error.name()}).{hint and ' ' + hint}")


_HINTS = {
    "UNKNOWN_TOPIC_OR_PART": "Make the topics with 'stepwell topics create'.",
    "_UNKNOWN_TOPIC": "Make the topics with 'stepwell topics create'.",
    "_ALL_BROKERS_DOWN": "Is the broker running, and is its address right?",
    "MSG_SIZE_TOO_LARGE": "Large observations belong in artifacts; the event holds their digest.",
}
