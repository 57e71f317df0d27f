"""Which rule set is in force, and which were before, as ``stepwell.rule-sets`` tells it.

The topic has one partition and keeps every activation for ever; the last one is in force. (Partitions of the events
that rules judge have copies of their own: a worker goes by those that it has passed, docs/rules.md.)
"""

from dataclasses import dataclass

from pydantic import ValidationError

from stepwell.adapters.logs.reading import read_batches
from stepwell.engine.ports import MessageLog
from stepwell.engine.ruleset import BUILT_IN, RuleSet, read_canonical
from stepwell.events.codec import Codec
from stepwell.events.model import RulesActivated
from stepwell.events.topics import RULE_SETS
from stepwell.exceptions import ConfigurationError, EventError


@dataclass(frozen=True, slots=True)
class Activation:
    """A rule set that was put into force.

    Attributes:
        event: as it was recorded.
        recorded_at: the log's time (µs since 1970 UTC).
    """

    event: RulesActivated
    recorded_at: int

    def rules(self) -> RuleSet:
        """The set itself.

        Raises:
            ConfigurationError: this version of Stepwell cannot read it.
        """
        name = f"rule set {self.event.rule_set} version {self.event.version}"
        try:
            return read_canonical(self.event.rules_json)
        except ValidationError as error:
            told = error.errors(include_url=False)[0]
            where = ".".join(map(str, told["loc"]))
            raise ConfigurationError(
                f"{name} cannot be read ({where}: {told['msg']}): it was activated by another version of Stepwell; "
                "use that one, or activate a set that this one knows"
            ) from None


def activations(log: MessageLog, codec: Codec) -> list[Activation]:
    """Every activation, oldest first; the last one is in force.

    Raises:
        TopicError: the log has no topic for rule sets yet (``stepwell topics create`` makes it).
    """
    found = []
    for batch in read_batches(log, RULE_SETS):
        for timestamp, value, headers in zip(batch.timestamps, batch.values, batch.headers, strict=True):
            try:
                event = codec.decode(value, headers)
            except EventError:
                continue
            if isinstance(event, RulesActivated):
                found.append(Activation(event, timestamp))
    return found


def rules_in_force(log: MessageLog, codec: Codec) -> RuleSet:
    """The set that new records are judged by: the one activated last, else the built-in one.

    Raises:
        ConfigurationError: see `Activation.rules`.
    """
    known = activations(log, codec)
    return known[-1].rules() if known else BUILT_IN
