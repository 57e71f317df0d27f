"""Every error code and flag of the Kafka driver has a class of ours."""

from itertools import combinations

import pytest
from confluent_kafka import KafkaError, KafkaException

from stepwell.adapters.logs.kafka_errors import GROUPS, classify, to_log_error
from stepwell.exceptions import (
    FencedError,
    LogError,
    LogUnavailableError,
    PositionLostError,
    TopicError,
    TransactionAbortedError,
)

CODES = sorted(name for name in dir(KafkaError) if isinstance(getattr(KafkaError, name), int))


@pytest.mark.parametrize("name", CODES)
def test_every_code_of_the_driver_stands_in_exactly_one_group(name: str) -> None:
    assert [kind.__name__ for kind, names in GROUPS.items() if name in names] != []


def test_no_code_stands_in_two_groups() -> None:
    for (one, names), (other, more) in combinations(GROUPS.items(), 2):
        assert names.isdisjoint(more), (one, other)


def test_no_group_names_a_code_that_does_not_exist() -> None:
    assert set().union(*GROUPS.values()) <= set(CODES)


@pytest.mark.parametrize("name", CODES)
def test_flags_outrank_codes(name: str) -> None:
    code = getattr(KafkaError, name)
    fatal = classify(KafkaError(code, fatal=True))
    assert not fatal.retriable, "what is fatal cannot be tried again"
    abortable = classify(KafkaError(code, txn_requires_abort=True))
    assert abortable in (TransactionAbortedError, FencedError)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("_ALL_BROKERS_DOWN", LogUnavailableError),
        ("_TIMED_OUT", LogUnavailableError),
        ("NOT_COORDINATOR", LogUnavailableError),
        ("REBALANCE_IN_PROGRESS", LogUnavailableError),
        ("_FENCED", FencedError),
        ("ILLEGAL_GENERATION", FencedError),
        ("FENCED_INSTANCE_ID", FencedError),
        ("INVALID_PRODUCER_ID_MAPPING", TransactionAbortedError),
        ("_AUTO_OFFSET_RESET", PositionLostError),
        ("OFFSET_OUT_OF_RANGE", PositionLostError),
        ("UNKNOWN_TOPIC_OR_PART", TopicError),
        ("TOPIC_AUTHORIZATION_FAILED", TopicError),
        ("MSG_SIZE_TOO_LARGE", LogError),
        ("SASL_AUTHENTICATION_FAILED", LogError),
    ],
)
def test_the_ones_that_matter_most(name: str, kind: type[LogError]) -> None:
    assert classify(KafkaError(getattr(KafkaError, name))) is kind


def test_an_unknown_code_follows_its_flags() -> None:
    assert classify(KafkaError(9_999, retriable=True)) is LogUnavailableError
    assert classify(KafkaError(9_999)) is LogError


def test_the_message_says_what_was_done_and_what_helps() -> None:
    error = to_log_error(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)), "reading t/0")
    assert isinstance(error, TopicError)
    assert "reading t/0" in str(error)
    assert "UNKNOWN_TOPIC_OR_PART" in str(error)
    assert "stepwell topics create" in str(error)
