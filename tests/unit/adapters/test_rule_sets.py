"""Rule sets in the log: one event in every partition that rules judge, in one transaction; and what is refused."""

from hashlib import sha256

import msgspec
import pytest

from stepwell.adapters.logs.memory import MemoryLog
from stepwell.adapters.logs.reading import read_batches
from stepwell.adapters.rules.activate import TRANSACTIONAL_ID, RulesRefusedError, activate
from stepwell.adapters.rules.in_force import Activation, activations, rules_in_force
from stepwell.engine.ports import MessageLog
from stepwell.engine.publish import outgoing
from stepwell.engine.ruleset import BUILT_IN, InARowRule, NonfiniteRule, RateRule, RuleSet
from stepwell.events.codec import Codec
from stepwell.events.model import RulesActivated
from stepwell.events.topics import BY_NAME, EPISODE_EVENTS, POLICY_EVENTS, RULE_SETS, TOPICS
from stepwell.exceptions import ConfigurationError, FencedError, TopicError

CODEC = Codec()


def rate_set(version: int = 1, *, limit: float = 0.3, rule_version: int = 1, name: str = "arm") -> RuleSet:
    rule = RateRule(kind="rate", name="too_often", version=rule_version, limit=limit)
    step = NonfiniteRule(kind="nonfinite", name="no_number")
    return RuleSet(rule_set=name, version=version, steps=[step], verdicts=[rule])


def records(log: MessageLog, topic: str) -> list[tuple[int, bytes | None, RulesActivated]]:
    found = []
    for batch in read_batches(log, topic):
        for key, value, headers in zip(batch.keys, batch.values, batch.headers, strict=True):
            event = CODEC.decode(value, headers)
            assert isinstance(event, RulesActivated)
            found.append((batch.source.partition, key, event))
    return found


def test_without_an_activation_the_built_in_set_is_in_force() -> None:
    log = MemoryLog()
    assert rules_in_force(log, CODEC) == BUILT_IN
    assert activations(log, CODEC) == []
    log.close()


def test_an_activation_stands_in_every_partition_and_in_its_home() -> None:
    log = MemoryLog()
    outcome = activate(log, CODEC, rate_set(), "ann@lab")
    assert (outcome.before, outcome.changed, outcome.partitions) == (("built_in", 1), True, 8)
    everywhere = []
    for topic in (EPISODE_EVENTS, POLICY_EVENTS):
        found = records(log, topic)
        assert [(number, key) for number, key, _ in found] == [
            (number, f"rules/{number}".encode()) for number in range(BY_NAME[topic].partitions)
        ]
        everywhere += [event for *_, event in found]
    home = records(log, RULE_SETS)
    assert [key for _, key, _ in home] == [b"rules"]
    everywhere += [event for *_, event in home]
    assert len({event.event_id for event in everywhere}) == 1
    event = everywhere[0]
    assert (event.rules_json, event.sha256) == (rate_set().canonical(), rate_set().sha256())
    assert (event.activated_by, event.producer_id, event.episode_id) == ("ann@lab", "ann@lab", "")
    assert rules_in_force(log, CODEC) == rate_set()
    log.close()


def test_the_same_set_again_writes_nothing() -> None:
    log = MemoryLog()
    assert not activate(log, CODEC, BUILT_IN, "a").changed
    activate(log, CODEC, rate_set(), "a")
    assert not activate(log, CODEC, rate_set(), "b").changed
    assert len(records(log, EPISODE_EVENTS)) == 4
    assert len(records(log, RULE_SETS)) == 1
    log.close()


def test_one_name_and_version_means_one_set_for_ever() -> None:
    log = MemoryLog()
    activate(log, CODEC, rate_set(), "a")
    activate(log, CODEC, BUILT_IN, "a")
    for force in (False, True):
        with pytest.raises(RulesRefusedError, match="arm version 1 was activated before with other content"):
            activate(log, CODEC, rate_set(limit=0.4, rule_version=2), "a", force=force)
        with pytest.raises(RulesRefusedError, match="built_in version 1 is the built-in one; give the set another"):
            activate(log, CODEC, RuleSet(rule_set="built_in"), "a", force=force)
    assert rules_in_force(log, CODEC) == BUILT_IN
    log.close()


def test_one_name_and_version_of_a_rule_means_one_rule_for_ever() -> None:
    log = MemoryLog()
    activate(log, CODEC, rate_set(), "a")
    told = r"too_often version 1 stands in rule set arm version 1 with other content \(limit 0\.3 -> 0\.4\); raise the"
    for name, version in (("arm", 2), ("leg", 1)):  # ids of triggers know no set
        with pytest.raises(RulesRefusedError, match=told):
            activate(log, CODEC, rate_set(version, limit=0.4, name=name), "a")
    row = InARowRule(kind="in_a_row", name="same_failure_in_a_row", length=3)
    with pytest.raises(RulesRefusedError, match="stands in rule set built_in version 1"):
        activate(log, CODEC, RuleSet(rule_set="own", verdicts=[row]), "a")
    assert activate(log, CODEC, rate_set(2, limit=0.4, rule_version=2), "a").changed
    assert len(records(log, POLICY_EVENTS)) == 8
    log.close()


def test_a_lower_version_is_a_step_back_that_must_be_wanted() -> None:
    log = MemoryLog()
    for version in (1, 3):
        activate(log, CODEC, rate_set(version), "a")
    activate(log, CODEC, rate_set(1, name="leg"), "a")
    for version in (1, 2):
        with pytest.raises(RulesRefusedError, match=f"arm has had version 3; {version} would be a step back"):
            activate(log, CODEC, rate_set(version), "a")
    assert activate(log, CODEC, rate_set(1), "a", force=True).before == ("leg", 1)
    assert rules_in_force(log, CODEC) == rate_set(1)
    assert [(each.event.rule_set, each.event.version) for each in activations(log, CODEC)] == [
        ("arm", 1), ("arm", 3), ("leg", 1), ("arm", 1),
    ]  # fmt: skip
    log.close()


def test_every_version_is_remembered() -> None:
    """What a name and version stood for is known for ever: the topic drops nothing."""
    assert (BY_NAME[RULE_SETS].compacted, BY_NAME[RULE_SETS].retention_ms, BY_NAME[RULE_SETS].partitions) == (
        False, -1, 1,
    )  # fmt: skip
    log = MemoryLog()
    for rules in (rate_set(1), rate_set(2), BUILT_IN, rate_set(1, name="leg")):
        activate(log, CODEC, rules, "a")
    assert log.admin().maintain() == 0
    assert [(each.event.rule_set, each.event.version) for each in activations(log, CODEC)] == [
        ("arm", 1), ("arm", 2), ("built_in", 1), ("leg", 1),
    ]  # fmt: skip
    with pytest.raises(RulesRefusedError):
        activate(log, CODEC, rate_set(2, limit=0.4, rule_version=2), "a")
    log.close()


def test_whoever_activates_at_the_same_time_is_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryLog()

    def meanwhile(log: MessageLog, codec: Codec) -> list[Activation]:
        known = activations(log, codec)
        log.transactional_producer(TRANSACTIONAL_ID).close()
        return known

    monkeypatch.setattr("stepwell.adapters.rules.activate.activations", meanwhile)
    with pytest.raises(FencedError, match="someone else is activating a rule set at this time; nothing was written"):
        activate(log, CODEC, rate_set(), "a")
    assert records(log, EPISODE_EVENTS) == []
    assert rules_in_force(log, CODEC) == BUILT_IN
    log.close()


def test_nothing_is_written_where_a_topic_is_missing() -> None:
    log = MemoryLog(topics=[topic for topic in TOPICS if topic.name != POLICY_EVENTS])
    with pytest.raises(TopicError, match=POLICY_EVENTS):
        activate(log, CODEC, rate_set(), "a")
    assert records(log, EPISODE_EVENTS) == []
    assert records(log, RULE_SETS) == []
    log.close()


def test_a_set_that_this_version_cannot_read_is_said_so_and_can_be_replaced() -> None:
    log = MemoryLog()
    activate(log, CODEC, rate_set(), "a")
    (*_, event) = records(log, RULE_SETS)[-1]
    text = rate_set(2).canonical().replace('"limit":0.3', '"limit":0.3,"of_later":1')
    later = msgspec.structs.replace(
        event, event_id=bytes(15) + b"\1", version=2, rules_json=text, sha256=sha256(text.encode()).digest()
    )
    producer = log.producer()
    producer.send([outgoing(CODEC, later)])
    producer.flush(5.0)
    producer.close()
    with pytest.raises(
        ConfigurationError, match=r"arm version 2 cannot be read .*of_later.*another version of Stepwell"
    ):
        rules_in_force(log, CODEC)
    assert activate(log, CODEC, rate_set(3), "a").before == ("arm", 2)
    assert rules_in_force(log, CODEC) == rate_set(3)
    log.close()
