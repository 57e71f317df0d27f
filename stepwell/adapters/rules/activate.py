"""Putting a rule set into force: one event, written into every partition that rules judge, in one transaction.

So each partition knows from which record on which set judged, and a replay finds the same. Readers of committed records
see the set everywhere or nowhere.
"""

import time
from dataclasses import dataclass

from stepwell.adapters.ids import new_event_id
from stepwell.adapters.rules.in_force import Activation, activations
from stepwell.engine.ports import MessageLog, OutgoingRecord, TransactionalProducer
from stepwell.engine.publish import outgoing, partition_copies
from stepwell.engine.ruleset import BUILT_IN, RuleSet, VerdictRule
from stepwell.events.codec import Codec
from stepwell.events.model import RulesActivated
from stepwell.events.topics import EPISODE_EVENTS, POLICY_EVENTS, RULE_SETS
from stepwell.exceptions import ConfigurationError, FencedError, LogUnavailableError

TRANSACTIONAL_ID = "stepwell-rule-sets"
"""One for all who activate: the later of two at the same time fences the earlier, so that they cannot cross."""


class RulesRefusedError(ConfigurationError):
    """The set must not be activated as it is; says why and what to do."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an activation came to.

    Attributes:
        before: name and version of the set that was in force.
        changed: False where that was this very set, and nothing was written.
        partitions: how many partitions of the events that rules judge have got the set.
    """

    before: tuple[str, int]
    changed: bool
    partitions: int = 0


def activate(log: MessageLog, codec: Codec, rules: RuleSet, who: str, *, force: bool = False) -> Outcome:
    """Put ``rules`` into force, in the name of ``who``. The same set again does nothing.

    ``force``: also where the set had a higher version before.

    Raises:
        RulesRefusedError: the name and version of the set, or of one of its rules, stands for something else already;
            or a lower version without ``force``. Nothing was written.
        TopicError: a topic is missing.
        FencedError: someone else activated a set at the same time. Nothing was written.
        LogUnavailableError: the log does not answer. The same call again is harmless.
    """
    producer = log.transactional_producer(TRANSACTIONAL_ID)
    try:
        known = activations(log, codec)  # only now: whoever else was at it has finished, or is fenced
        before = (known[-1].event.rule_set, known[-1].event.version) if known else (BUILT_IN.rule_set, BUILT_IN.version)
        check_allowed(rules, known, force=force)
        if rules.canonical() == (_text(known[-1]) if known else BUILT_IN.canonical()):
            return Outcome(before, changed=False)
        copies = _copies(log, codec, _event(rules, who))
        _write(producer, copies)
        return Outcome(before, changed=True, partitions=sum(copy.topic != RULE_SETS for copy in copies))
    finally:
        producer.close()


def check_allowed(rules: RuleSet, known: list[Activation], *, force: bool) -> None:
    """Refuse what would make two things of one name; ``known`` is what was activated before, oldest first.

    Raises:
        RulesRefusedError: see `activate`.
    """
    name, version = rules.rule_set, rules.version
    texts = {(BUILT_IN.rule_set, BUILT_IN.version): BUILT_IN.canonical()}
    texts |= {(each.event.rule_set, each.event.version): _text(each) for each in known}
    earlier = texts.get((name, version))
    if earlier is not None and earlier != rules.canonical():
        whose = "is the built-in one" if name == BUILT_IN.rule_set else "was activated before with other content"
        hint = "give the set another name" if name == BUILT_IN.rule_set else "raise the set's version"
        raise RulesRefusedError(f"rule set {name} version {version} {whose}; {hint}")
    highest = max((each_version for each_name, each_version in texts if each_name == name), default=version)
    if version < highest and not force:
        raise RulesRefusedError(
            f"rule set {name} has had version {highest}; {version} would be a step back (--force takes it)"
        )
    for each in [BUILT_IN, *_readable(known)]:
        for before in each.verdicts:
            _check_same_rule(rules, before, f"rule set {each.rule_set} version {each.version}")


def _check_same_rule(rules: RuleSet, before: VerdictRule, where: str) -> None:
    """Ids of triggers come from a rule's name and version, so these must always mean the same rule."""
    for rule in rules.verdicts:
        if (rule.name, rule.version) == (before.name, before.version) and rule != before:
            old, new = before.model_dump(), rule.model_dump()
            changed = ", ".join(f"{key} {old.get(key)} -> {new[key]}" for key in new if new[key] != old.get(key))
            raise RulesRefusedError(
                f"rule {rule.name} version {rule.version} stands in {where} with other content ({changed}); "
                "raise the rule's version"
            )


def _text(activation: Activation) -> str:
    """The set as this version of Stepwell would write it: one that fields were added to since is still the same."""
    try:
        return activation.rules().canonical()
    except ConfigurationError:
        return activation.event.rules_json


def _readable(known: list[Activation]) -> list[RuleSet]:
    """Those sets that this version of Stepwell can read; with others nothing can be compared."""
    found = []
    for each in known:
        try:
            found.append(each.rules())
        except ConfigurationError:
            continue
    return found


def _event(rules: RuleSet, who: str) -> RulesActivated:
    event_id = new_event_id()
    return RulesActivated(
        event_id=event_id,
        run_id="",
        episode_id="",
        attempt=1,
        producer_id=who,
        producer_seq=0,
        occurred_at=time.time_ns() // 1000,
        trace_id=event_id.hex(),
        rule_set=rules.rule_set,
        version=rules.version,
        rules_json=rules.canonical(),
        sha256=rules.sha256(),
        activated_by=who,
    )


def _copies(log: MessageLog, codec: Codec, event: RulesActivated) -> list[OutgoingRecord]:
    """The event as it goes to each partition that rules judge, and to its home."""
    admin = log.admin()
    try:
        numbers = {topic: range(admin.partitions(topic)) for topic in (EPISODE_EVENTS, POLICY_EVENTS)}
    finally:
        admin.close()
    copies = [copy for topic in numbers for copy in partition_copies(codec, event, topic, numbers[topic])]
    return [*copies, outgoing(codec, event)]


def _write(producer: TransactionalProducer, records: list[OutgoingRecord]) -> None:
    try:
        producer.begin()
        producer.send(records)
        producer.commit()
    except FencedError:
        raise FencedError("someone else is activating a rule set at this time; nothing was written") from None
    except LogUnavailableError as error:
        raise LogUnavailableError(
            f"{error}; whether the set is in force shows in: stepwell patterns list. The same command again is harmless"
        ) from error
