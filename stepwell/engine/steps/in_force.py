"""Which step rules judge whom: those in force where an attempt's first record stands.

A set takes effect by a record (`RulesActivated`) in every partition, for the attempts that begin behind it there.
"""

import json
from typing import Final

from pydantic import ValidationError

from stepwell.engine.ruleset import read_canonical
from stepwell.engine.steps.program import program_of
from stepwell.events.model import Event, RulesActivated
from stepwell.events.routing import PARTITION_WIDE
from stepwell.exceptions import DecodeError

_PREFIX: Final = PARTITION_WIDE[RulesActivated]


def is_activation(key: bytes | None, event: Event, partition: int) -> bool:
    """Whether a record puts a rule set into force in its partition; anything else under that key is no such thing."""
    return isinstance(event, RulesActivated) and key == f"{_PREFIX}/{partition}".encode()


def activation_key(partition: int) -> bytes:
    """The key of activations in a partition."""
    return f"{_PREFIX}/{partition}".encode()


def step_rules_of(event: Event) -> str:
    """The step rules that an activation puts into force, as an attempt carries them; empty where there are none.

    Raises:
        DecodeError: reason ``rules``: no rule set that this version can read. What was in force stays.
    """
    assert isinstance(event, RulesActivated)
    try:
        text = read_canonical(event.rules_json).steps_canonical()
        if text:
            program_of(text)
    except (ValidationError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise DecodeError(
            f"rule set {event.rule_set}/{event.version} cannot be read by this version of Stepwell ({first}); the "
            "rules that were in force stay. Activate a set that `stepwell patterns check` accepts",
            reason="rules",
        ) from error
    return text


class RulesInForce:
    """The step rules in force in one partition: now, and back to the first record that may have to be folded again.

    Attributes:
        now: for attempts that begin now.
    """

    def __init__(self, saved: str = "", at: int = 0) -> None:
        """From what `saved` gave (empty: nothing was ever in force), as of offset ``at``."""
        entries = json.loads(saved) if saved else []
        self._since: list[tuple[int, str]] = [(int(offset), str(text)) for offset, text in entries if offset < at]
        self.now = self._since[-1][1] if self._since else ""

    def activate(self, offset: int, text: str) -> None:
        """A record at ``offset`` puts other rules into force, for what stands behind it."""
        self._since.append((offset, text))
        self.now = text

    def forget_below(self, offset: int) -> None:
        """Nothing below ``offset`` will be folded again."""
        since = self._since
        while len(since) > 1 and since[1][0] < offset:
            del since[0]
        if len(since) == 1 and not since[0][1] and since[0][0] < offset:
            since.clear()

    @property
    def changed(self) -> bool:
        """Whether more than one set is remembered."""
        return len(self._since) > 1

    def saved(self) -> str:
        """All of it as JSON, for the saved position: ``[[offset, rules], ...]``; empty: there never were any."""
        return json.dumps(self._since, ensure_ascii=False) if self._since else ""
