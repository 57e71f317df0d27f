"""Which step rules judge whom: those in force where an attempt's first record stands.

A set takes effect by a record (`RulesActivated`) in every partition, for the attempts that begin behind it there.
"""

import json
from collections.abc import Iterable
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
    """The step rules in force in one partition: now, and back to the offset from which a restart folds again.

    Args:
        text: those in force at ``start``.
        start: where the fold begins.

    Attributes:
        now: for attempts that begin now.
    """

    def __init__(self, text: str = "", start: int = 0) -> None:
        self._since: list[tuple[int, str]] = [(start, text)]
        self._never_any = not text
        self.now = text

    def activate(self, offset: int, text: str) -> None:
        """A record at ``offset`` puts other rules into force, for what stands behind it."""
        self._since.append((offset + 1, text))
        self._never_any = self._never_any and not text
        self.now = text

    def saved(self, rewind: int, open_attempts: Iterable[tuple[int, str]]) -> str:
        """What a restart has to know, for the saved position; nothing below ``rewind`` is asked for afterwards.

        Two places with the rules in force there: the first record of the oldest open attempt (another version of the
        fold, to which its snapshot means nothing, begins there), and the rewind offset.

        Args:
            rewind: the rewind offset.
            open_attempts: of each its first offset and its rules.

        Returns:
            JSON, ``[[offset, rules], [offset, rules]]``, null for rules equal to those before; empty where neither the
            partition nor any open attempt ever had any.
        """
        since = self._since
        while len(since) > 1 and since[1][0] <= rewind:
            del since[0]
        if self._never_any:
            return ""
        text = since[0][1]
        found = list(open_attempts)
        if not text and len(since) == 1 and not any(rules for _, rules in found):
            self._never_any = True
            return ""
        oldest, rules = min([*found, (rewind, text)])
        return json.dumps([[oldest, rules], [rewind, None if text == rules else text]], ensure_ascii=False)


def rules_at(saved: str, start: int) -> tuple[int, RulesInForce]:
    """From where to fold again so that ``start`` is covered and the rules in force are known; and those rules.

    Args:
        saved: what `RulesInForce.saved` gave.
        start: the rewind offset, or the first record of an open attempt.
    """
    if not saved:
        return start, RulesInForce("", start)
    (oldest, rules), (rewind, text) = json.loads(saved)
    if start >= rewind:
        return start, RulesInForce(rules if text is None else text, start)
    return oldest, RulesInForce(rules, oldest)
