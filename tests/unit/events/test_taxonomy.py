"""Every failure has one fault, and an unknown one never hurts a policy."""

import typing

import pytest

from stepwell.events.model import Fault, Outcome
from stepwell.events.taxonomy import FAILURE_TYPES, OUTCOME_OF_FAULT, fault_of


@pytest.mark.parametrize("failure_type", FAILURE_TYPES)
def test_known_failures(failure_type: str) -> None:
    fault, meaning = FAILURE_TYPES[failure_type]
    assert fault_of(failure_type) == fault
    assert meaning


def test_unknown_failures_are_the_infrastructures() -> None:
    assert fault_of("of a later version") == "infrastructure"
    assert OUTCOME_OF_FAULT["infrastructure"] == "error"


def test_every_fault_has_an_outcome() -> None:
    assert set(OUTCOME_OF_FAULT) == set(typing.get_args(Fault))
    assert set(OUTCOME_OF_FAULT.values()) == set(typing.get_args(Outcome)) - {"success"}
