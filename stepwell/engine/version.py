"""The version of the fold: a snapshot or a verdict made by another one says so by another hash."""

import hashlib
import json
from typing import Final

from stepwell.engine import machine
from stepwell.engine.labels import RULE_SET
from stepwell.engine.ruleset import ELEMENTS_MAX
from stepwell.engine.state import ACTION_LIMIT, HOLD_LIMIT, LIST_LIMIT, NUMBER_LIMIT
from stepwell.engine.steps.signals import READ_MAX, SEEN_MAX
from stepwell.events.taxonomy import FAILURE_TYPES

FOLD_VERSION: Final = 6
"""Raise it with every change of the code that can change a state or a verdict; golden histories hold you to it."""


def _fold_hash() -> str:
    """SHA-256 (first 32 hex digits) over the table, the guards, the version, the rule set and the configuration."""
    described = {
        "version": FOLD_VERSION,
        "table": machine.TABLE,
        "states": machine.STATES,
        "triggers": machine.TRIGGERS,
        "guards": machine.GUARDS,
        "guard_meanings": machine.GUARD_MEANINGS,
        "trigger_of": {event.TYPE: trigger for event, trigger in machine.TRIGGER_OF.items()},
        "rule_set": RULE_SET,
        "failure_types": {name: fault for name, (fault, _) in FAILURE_TYPES.items()},
        "configuration": [HOLD_LIMIT, LIST_LIMIT, ACTION_LIMIT, NUMBER_LIMIT, READ_MAX, ELEMENTS_MAX, SEEN_MAX],
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:32]


FOLD_HASH: Final = _fold_hash()
