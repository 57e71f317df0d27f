"""Mutes and acknowledgements: what people say about retrain requests, written to the policy's own history.

The detector folds them with everything else about the policy, in recorded order.
"""

import re
import time
from dataclasses import dataclass
from typing import Any

from stepwell.adapters.ids import new_event_id
from stepwell.adapters.logs.reading import read_batches, read_of_type
from stepwell.adapters.retrain_history import LedgerEntry
from stepwell.engine.ports import MessageLog
from stepwell.engine.publish import outgoing
from stepwell.events.codec import Codec
from stepwell.events.model import Event, RetrainAcknowledged, RetrainMuted, RetrainUnmuted
from stepwell.events.routing import PARTITION_WIDE
from stepwell.events.topics import POLICY_EVENTS

WRITE_TIMEOUT_S = 60.0
_OF_A_PARTITION = re.compile(rf"({'|'.join(PARTITION_WIDE.values())})/\d+")


@dataclass(frozen=True, slots=True)
class Mute:
    """A mute as it stands.

    Attributes:
        event: the last one of its policy and rule.
        ended_by: who unmuted it; empty where nobody did.
    """

    event: RetrainMuted
    ended_by: str = ""

    def in_force(self, now: int) -> bool:
        """Whether it still holds at ``now`` (µs since 1970 UTC)."""
        return not self.ended_by and (self.event.until is None or now < self.event.until)


def read_mutes(log: MessageLog, codec: Codec) -> list[Mute]:
    """The last mute of each policy and rule, in the order in which they were made, those that ended too."""
    found: dict[tuple[str, str | None], Mute] = {}
    for event in read_of_type(log, codec, POLICY_EVENTS, RetrainMuted, RetrainUnmuted):
        if isinstance(event, RetrainMuted):
            found.pop((event.policy, event.rule), None)
            found[event.policy, event.rule] = Mute(event)
        elif isinstance(event, RetrainUnmuted) and (earlier := found.get((event.policy, event.rule))) is not None:
            found[event.policy, event.rule] = Mute(earlier.event, earlier.ended_by or event.unmuted_by)
    return sorted(found.values(), key=lambda mute: mute.event.occurred_at)


def known_policies(log: MessageLog) -> list[str]:
    """The policies that the log has verdicts or requests of, by name."""
    keys: set[bytes | None] = set()
    for batch in read_batches(log, POLICY_EVENTS):
        keys.update(batch.keys)
    names = {key.decode("utf-8", "replace") for key in keys if key}
    return sorted(name for name in names if not _OF_A_PARTITION.fullmatch(name))


def mute(
    log: MessageLog, codec: Codec, policy: str, rule: str | None, *, until: int | None, reason: str, who: str
) -> None:
    """No requests for ``policy`` (of ``rule``, or of all) until a time (µs since 1970 UTC) or until unmuted.

    Raises:
        LogError: it was not written, or may not have been (`LogUnavailableError`).
    """
    event = RetrainMuted(**_head(who), policy=policy, rule=rule, until=until, reason=reason, muted_by=who)
    _write(log, codec, event)


def unmute(log: MessageLog, codec: Codec, policy: str, rule: str | None, who: str) -> None:
    """End a mute of this policy and rule. Raises as `mute`."""
    _write(log, codec, RetrainUnmuted(**_head(who), policy=policy, rule=rule, unmuted_by=who))


def acknowledge(log: MessageLog, codec: Codec, entry: LedgerEntry, detail: str, who: str) -> None:
    """Say that a person has seen the request. Raises as `mute`."""
    request = entry.request
    head = _head(who) | {"run_id": request.run_id, "trace_id": request.trace_id}
    event = RetrainAcknowledged(
        **head, trigger_id=request.trigger_id, policy=request.policy, detail=detail, acknowledged_by=who
    )
    _write(log, codec, event)


def _head(who: str) -> dict[str, Any]:
    event_id = new_event_id()
    return {
        "event_id": event_id, "run_id": "", "episode_id": "", "attempt": 1, "producer_id": who, "producer_seq": 0,
        "occurred_at": time.time_ns() // 1000, "trace_id": event_id.hex(),
    }  # fmt: skip


def _write(log: MessageLog, codec: Codec, event: Event) -> None:
    producer = log.producer()
    try:
        producer.send([outgoing(codec, event)])
        producer.flush(WRITE_TIMEOUT_S)
    finally:
        producer.close()
