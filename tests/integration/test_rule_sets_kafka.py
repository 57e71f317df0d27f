"""Activating a rule set on a real Kafka: everywhere or nowhere, whoever dies or comes at the same time."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from stepwell.adapters.logs.kafka import KafkaLog
from stepwell.adapters.logs.reading import read_batches
from stepwell.adapters.parts.kafka import KafkaPart
from stepwell.adapters.rules import activate as activating
from stepwell.adapters.rules.activate import RulesRefusedError, activate
from stepwell.adapters.rules.in_force import Activation, activations, rules_in_force
from stepwell.engine.ports import MessageLog
from stepwell.engine.ruleset import BUILT_IN, RateRule, RuleSet
from stepwell.events.codec import Codec
from stepwell.events.model import RulesActivated
from stepwell.events.topics import BY_NAME, EPISODE_EVENTS, POLICY_EVENTS, RULE_SETS, TOPICS
from stepwell.exceptions import FencedError

CODEC = Codec()
PLACES = sum(BY_NAME[topic].partitions for topic in (EPISODE_EVENTS, POLICY_EVENTS))

DIES_BEFORE_IT_COMMITS = """
import os, signal, sys, time
from stepwell.adapters.logs.kafka import KafkaLog
from stepwell.adapters.rules.activate import TRANSACTIONAL_ID, _copies, _event
from stepwell.engine.ruleset import RuleSet
from stepwell.events.codec import Codec

log = KafkaLog(sys.argv[1])
producer = log.transactional_producer(TRANSACTIONAL_ID)
producer.begin()
producer.send(_copies(log, Codec(), _event(RuleSet(rule_set="dead"), "dead@host")))
time.sleep(2)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def log() -> Iterator[KafkaLog]:
    """A Kafka of its own: the topics have fixed names."""
    node = KafkaPart()
    try:
        log = KafkaLog(node.start())
        log.admin().create(TOPICS)
        yield log
        log.close()
    finally:
        node.stop()


def rate_set(version: int, limit: float = 0.3) -> RuleSet:
    return RuleSet(
        rule_set="arm", version=version, verdicts=[RateRule(kind="rate", name="r", version=version, limit=limit)]
    )


def standing(log: MessageLog) -> list[tuple[str, int, bytes | None, int]]:
    """Topic, partition, key and version of every committed activation."""
    found = []
    for topic in (EPISODE_EVENTS, POLICY_EVENTS, RULE_SETS):
        for batch in read_batches(log, topic):
            for key, value, headers in zip(batch.keys, batch.values, batch.headers, strict=True):
                event = CODEC.decode(value, headers)
                assert isinstance(event, RulesActivated)
                found.append((topic, batch.source.partition, key, event.version))
    return found


def everywhere(version: int) -> list[tuple[str, int, bytes | None, int]]:
    topics = (EPISODE_EVENTS, POLICY_EVENTS)
    copies = [(t, n, f"rules/{n}".encode(), version) for t in topics for n in range(BY_NAME[t].partitions)]
    return [*copies, (RULE_SETS, 0, b"rules", version)]


def test_a_set_stands_in_every_partition_once_and_an_activator_that_dies_leaves_nothing(log: KafkaLog) -> None:
    died = subprocess.run([sys.executable, "-c", DIES_BEFORE_IT_COMMITS, log.bootstrap], check=False, timeout=120)
    assert died.returncode == -9
    outcome = activate(log, CODEC, rate_set(1), "ann@lab")
    assert (outcome.before, outcome.changed, outcome.partitions) == (("built_in", 1), True, PLACES)
    assert standing(log) == everywhere(1)
    assert rules_in_force(log, CODEC) == rate_set(1)
    assert not activate(log, CODEC, rate_set(1), "ann@lab").changed
    with pytest.raises(RulesRefusedError):
        activate(log, CODEC, rate_set(1, limit=0.4), "ann@lab")
    assert standing(log) == everywhere(1)
    activate(log, CODEC, rate_set(2), "ann@lab")
    assert sorted(standing(log)) == sorted([*everywhere(1), *everywhere(2)])
    assert activate(log, CODEC, BUILT_IN, "ann@lab").before == ("arm", 2)
    assert rules_in_force(log, CODEC) == BUILT_IN


def test_of_two_at_the_same_time_one_is_refused_and_nothing_of_it_stands(
    log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = KafkaLog(log.bootstrap)

    def overtaken(log: MessageLog, codec: Codec) -> list[Activation]:
        """While the slower one looks at what is in force, another comes and is done."""
        known = activations(log, codec)
        monkeypatch.setattr(activating, "activations", activations)
        activate(other, codec, rate_set(1), "bob@lab")
        return known

    monkeypatch.setattr(activating, "activations", overtaken)
    with pytest.raises(FencedError, match="someone else is activating a rule set at this time; nothing was written"):
        activate(log, CODEC, rate_set(2), "ann@lab")
    assert standing(log) == everywhere(1)
    assert rules_in_force(log, CODEC) == rate_set(1)
    other.close()
