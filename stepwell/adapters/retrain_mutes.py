"""Mutes and acknowledgements: what people say about retrain requests, written to the policy's own history.

The detector folds them with everything else about the policy, in recorded order.
"""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from stepwell.adapters.ids import new_event_id
from stepwell.adapters.logs.reading import read_batches
from stepwell.adapters.retrain_history import LedgerEntry
from stepwell.engine.detection import mutes as rules
from stepwell.engine.detection.mutes import Mutes
from stepwell.engine.ports import MessageLog
from stepwell.engine.publish import outgoing
from stepwell.events.codec import Codec
from stepwell.events.model import DetectorTicked, Event, RetrainAcknowledged, RetrainMuted, RetrainUnmuted
from stepwell.events.routing import PARTITION_WIDE
from stepwell.events.topics import POLICY_EVENTS
from stepwell.exceptions import EventError

WRITE_TIMEOUT_S = 60.0
REFUSED = "the detector: too many mutes of the policy"
_MARKS = [("ce_type", each.TYPE.encode()) for each in (RetrainMuted, RetrainUnmuted, DetectorTicked)]
_OF_A_PARTITION = re.compile(rf"({'|'.join(PARTITION_WIDE.values())})/\d+")


@dataclass(frozen=True, slots=True)
class Mute:
    """A mute as it stands.

    Attributes:
        event: the last one of its policy and rule.
        ended_by: who ended it before its time; empty where nobody did.
    """

    event: RetrainMuted
    ended_by: str = ""

    def in_force(self, now: int) -> bool:
        """Whether it still holds at ``now`` (µs since 1970 UTC)."""
        return not self.ended_by and (self.event.until is None or now < self.event.until)


def read_mutes(log: MessageLog, codec: Codec) -> list[Mute]:
    """The last mute of each policy and rule, in the order in which they were made, those that ended too.

    Judged as the detector does, by the time at which the log took each record and by the detector's ticks.
    """
    found: dict[tuple[str, str], Mute] = {}
    running: dict[str, Mutes] = {}
    clocks: dict[int, int] = {}
    for partition, timestamp, event in _said(log, codec):
        told = event.now if isinstance(event, DetectorTicked) else timestamp
        now = clocks[partition] = max(clocks.get(partition, 0), told)
        if isinstance(event, DetectorTicked):
            continue
        mutes = running.setdefault(event.policy, {})
        rules.over(mutes, now)
        place = (event.policy, event.rule or "")
        earlier = found.get(place)
        if isinstance(event, RetrainUnmuted):
            if rules.unmute(mutes, event.rule) and earlier is not None:
                found[place] = Mute(earlier.event, event.unmuted_by)
            continue
        became = rules.mute(mutes, event.rule, event.until, now)
        if became == "ended" and earlier is not None:
            found[place] = Mute(earlier.event, event.muted_by)
        elif became != "ended":
            found.pop(place, None)
            found[place] = Mute(event, REFUSED if became == "refused" else "")
    return sorted(found.values(), key=lambda mute: mute.event.occurred_at)


def _said(log: MessageLog, codec: Codec) -> Iterator[tuple[int, int, RetrainMuted | RetrainUnmuted | DetectorTicked]]:
    """Everything about mutes, with its partition and the log's time of append (µs), partition after partition."""
    for batch in read_batches(log, POLICY_EVENTS):
        for value, headers, timestamp in zip(batch.values, batch.headers, batch.timestamps, strict=True):
            if not any(mark in headers for mark in _MARKS):
                continue
            try:
                event = codec.decode_event(value, headers)
            except EventError:
                continue
            if isinstance(event, RetrainMuted | RetrainUnmuted | DetectorTicked):
                yield batch.source.partition, timestamp, event


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
