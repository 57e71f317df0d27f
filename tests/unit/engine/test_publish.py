"""Records on their way to the log: what concerns whole partitions goes to each by number."""

import msgspec
import pytest

from stepwell.engine.publish import outgoing, partition_copies
from stepwell.events import model, topics
from stepwell.events.codec import Codec
from stepwell.exceptions import EncodeError
from tests.unit.events.records import digest, sample

CODEC = Codec()


def test_a_rule_set_goes_home_once_and_to_every_partition_that_it_concerns() -> None:
    event = sample(model.RulesActivated)
    home = outgoing(CODEC, event)
    assert (home.topic, home.key, home.partition) == (topics.RULE_SETS, b"rules", None)
    copies = partition_copies(CODEC, event, topics.EPISODE_EVENTS, range(3))
    assert [(copy.topic, copy.key, copy.partition) for copy in copies] == [
        (topics.EPISODE_EVENTS, f"rules/{number}".encode(), number) for number in range(3)
    ]
    assert {(copy.value, copy.headers) for copy in copies} == {(home.value, home.headers)}


def test_a_tick_goes_to_its_partition() -> None:
    (copy,) = partition_copies(CODEC, sample(model.DetectorTicked), topics.POLICY_EVENTS, [2])
    assert (copy.topic, copy.key, copy.partition) == (topics.POLICY_EVENTS, b"tick/2", 2)


def test_other_records_concern_no_partition() -> None:
    with pytest.raises(KeyError):
        partition_copies(CODEC, sample(model.RetrainMuted), topics.POLICY_EVENTS, [0])


def test_a_rule_set_that_no_log_takes_is_refused() -> None:
    text = "x" * 2_000_000
    event = msgspec.structs.replace(sample(model.RulesActivated), rules_json=text, sha256=digest(text))
    with pytest.raises(EncodeError) as caught:
        partition_copies(CODEC, event, topics.EPISODE_EVENTS, range(2))
    assert caught.value.reason == "too-large"
