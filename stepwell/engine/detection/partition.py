"""One partition of ``stepwell.policy-events``, folded: what a batch of records makes the detector write.

Everything goes out in one transaction with the consumed position: patterns, requests, withdrawals and expiries, dead
letters (records that cannot be used, rules that raised), ticks, snapshots, and the position from which a restart folds.

Snapshots are a cache of a fold that can be repeated. A policy's is written when `SNAPSHOT_RECORDS` records or
`SNAPSHOT_US` have passed since the first change that its last one lacks, a few at a time, and at a graceful stop. The
rewind offset is the first record that some policy's snapshot lacks.
"""

import zlib
from dataclasses import dataclass

from stepwell.engine.detection.policies import Place, Policies
from stepwell.engine.detection.requests import PRODUCER_ID
from stepwell.engine.detection.state import DETECTOR_HASH, PolicyState, dump, load
from stepwell.engine.detection.turn import Parked, Refused
from stepwell.engine.doubt import Suspects
from stepwell.engine.loop import Processor
from stepwell.engine.ports import EventCodec, OutgoingRecord, RecordBatch, TopicPartition
from stepwell.engine.publish import dead_letter, outgoing, outgoing_letter, partition_copies
from stepwell.events.ids import derived_event_id
from stepwell.events.model import (
    DeadLetter,
    DetectorTicked,
    LogRecord,
    PolicySnapshot,
    PositionSaved,
    RulesActivated,
)
from stepwell.events.topics import POLICY_EVENTS
from stepwell.exceptions import EncodeError, EventError

SNAPSHOT_RECORDS = 5_000
SNAPSHOT_US = 30_000_000
SNAPSHOTS_AT_ONCE = 16
"""Most snapshots that go out with one batch: each takes a millisecond or two, and requests wait for them."""

PACK_LEVEL = 1


@dataclass(slots=True)
class _Uncovered:
    """What a policy's snapshot lacks.

    Attributes:
        offset, since_us: the first record, and when it was folded (the worker's clock).
        again_at: the position at which to try again, where a snapshot was too large.
    """

    offset: int
    since_us: int
    again_at: int = 0


class PolicyPartition(Processor):
    """All policies of one partition.

    Args:
        source: the partition.
        position: where it begins.
        codec: reads and writes records.
        worker_id: stands in dead letters.
        rules_json: the rules in force at ``position``; empty for the built-in ones.
        suspects: policies for which a rule has raised; see `stepwell.engine.doubt`.
    """

    def __init__(
        self,
        source: TopicPartition,
        position: int,
        codec: EventCodec,
        worker_id: str,
        rules_json: str = "",
        suspects: Suspects[str] | None = None,
    ) -> None:
        self.position = position
        self.policies = Policies(rules_json, suspects)
        self._source = source
        self._codec = codec
        self._worker_id = worker_id
        self._uncovered: dict[str, _Uncovered] = {}
        """By policy, in order of their offsets: the first change that its snapshot lacks."""
        self._activations: list[tuple[int, str]] = [(-1, rules_json)]
        """Rules in force, each with the offset that put it there: from the one at the rewind offset on."""
        self._tick_pending = False

    # --- the loop's side ----------------------------------------------------------------------------------------------

    def process(self, batch: RecordBatch, now_us: int) -> list[OutgoingRecord]:
        """Fold a batch; everything that has to be written with it."""
        out: list[OutgoingRecord] = []
        for index, record in self.fold(batch, now_us):
            if isinstance(record, DeadLetter):
                out.append(outgoing_letter(self._codec, record))
                continue
            try:
                out.append(outgoing(self._codec, record))
            except EncodeError as error:
                detail = f"what follows from it cannot be written: {error}"
                out.append(outgoing_letter(self._codec, self._letter(batch, index, "refused", error.reason, detail)))
        out += self._due_snapshots(now_us)
        return self._with_position(out)

    def tick(self, now_us: int) -> list[OutgoingRecord]:
        """A tick where something waited until now, and snapshots that are due. Called while caught up."""
        out: list[OutgoingRecord] = []
        deadline = self.policies.next_deadline()
        if deadline is not None and deadline <= now_us and not self._tick_pending:
            # What it brings about follows when it is read from the log, and only then.
            self._tick_pending = True
            out += partition_copies(self._codec, self._tick(now_us), POLICY_EVENTS, [self._source.partition])
        return self._with_position(out + self._due_snapshots(now_us))

    def finish(self, now_us: int) -> list[OutgoingRecord]:
        """Snapshots of everything uncovered, so that the next owner has nothing to fold again."""
        del now_us
        out = [record for policy in list(self._uncovered) for record in self._snapshot(policy)]
        return [*out, self._position_saved()]

    # --- folding ------------------------------------------------------------------------------------------------------

    def fold(self, batch: RecordBatch, now_us: int) -> list[tuple[int, LogRecord]]:
        """Fold a batch; what would be published, each with the index of the record that it follows from.

        Raises:
            StateDoubtError: a rule raised; restore, and fold again with the same suspects.
        """
        out: list[tuple[int, LogRecord]] = []
        policies, uncovered, partition = self.policies, self._uncovered, batch.source.partition
        for index, offset in enumerate(batch.offsets):
            try:
                event = self._codec.decode_event(batch.values[index], batch.headers[index])
                found = policies.take(event, Place(partition, offset, batch.timestamps[index]))
            except EventError as error:
                out.append((index, self._letter(batch, index, "unreadable", error.reason, str(error))))
                continue
            if isinstance(event, RulesActivated):
                self._activations.append((offset, event.rules_json))
            elif isinstance(event, DetectorTicked):
                self._tick_pending = False
            for policy in policies.touched:
                if policy not in uncovered:
                    uncovered[policy] = _Uncovered(offset, now_us)
            for item in found:
                if isinstance(item, Parked):
                    detail = f"{item.detail}; it is parked for this policy until rules are activated again"
                    out.append((index, self._letter(batch, index, "rule_failed", item.rule, detail, event.TYPE)))
                elif isinstance(item, Refused):
                    out.append((index, self._letter(batch, index, "refused", item.reason, item.detail, event.TYPE)))
                else:
                    out.append((index, item))
        self.position = batch.end
        return out

    def adopt(self, snapshot: PolicySnapshot) -> None:
        """Take in a policy from its snapshot."""
        self.policies.adopt(unpack(snapshot.state))

    def ledger_bytes(self) -> dict[str, bytes]:
        """The state of each policy as canonical bytes, for comparing."""
        return self.policies.ledger_bytes()

    # --- what is written ----------------------------------------------------------------------------------------------

    def _letter(
        self, batch: RecordBatch, index: int, kind: str, reason: str, detail: str, event_type: str | None = None
    ) -> DeadLetter:
        return dead_letter(
            batch,
            index,
            kind=kind,
            reason=reason,
            detail=detail,
            reported_by=self._worker_id,
            event_type=event_type,
        )

    def _tick(self, now_us: int) -> DetectorTicked:
        event_id = derived_event_id(DetectorTicked.TYPE, self._source.partition, now_us)
        return DetectorTicked(
            event_id=event_id,
            run_id="",
            episode_id="",
            attempt=1,
            producer_id=PRODUCER_ID,
            producer_seq=0,
            occurred_at=now_us,
            trace_id=event_id.hex(),
            now=now_us,
        )

    def _due_snapshots(self, now_us: int) -> list[OutgoingRecord]:
        out: list[OutgoingRecord] = []
        for policy, lacks in list(self._uncovered.items()):
            if self.position < lacks.again_at:
                continue
            if self.position - lacks.offset < SNAPSHOT_RECORDS and now_us - lacks.since_us < SNAPSHOT_US:
                break  # the others came later
            out += self._snapshot(policy)
            if len(out) >= SNAPSHOTS_AT_ONCE:
                break
        return out

    def _snapshot(self, policy: str) -> list[OutgoingRecord]:
        state = self.policies.states[policy]
        record = PolicySnapshot(
            policy=policy,
            partition=self._source.partition,
            last_offset=state.last_offset,
            detector_hash=DETECTOR_HASH,
            state=pack(state),
        )
        try:
            made = outgoing(self._codec, record, self._source.partition)
        except EncodeError:
            # Too large, by hostile texts: it stays uncovered, so a restart folds the policy again from there.
            self._uncovered[policy].again_at = self.position + SNAPSHOT_RECORDS
            return []
        del self._uncovered[policy]
        return [made]

    def _with_position(self, out: list[OutgoingRecord]) -> list[OutgoingRecord]:
        """With the position from which to fold again, where anything is written.

        A position without it is as good: what lies between has brought nothing about and brings nothing about again.
        """
        return [*out, self._position_saved()] if out else []

    def _position_saved(self) -> OutgoingRecord:
        first = next(iter(self._uncovered.values()), None)
        rewind = self.position if first is None else first.offset
        while len(self._activations) > 1 and self._activations[1][0] < rewind:
            del self._activations[0]
        saved = PositionSaved(
            topic=self._source.topic,
            partition=self._source.partition,
            rewind_offset=rewind,
            committed_offset=self.position,
            fold_hash=DETECTOR_HASH,
            rules_json=self._activations[0][1],
        )
        return outgoing(self._codec, saved, self._source.partition)


def pack(state: PolicyState) -> bytes:
    """A state for its snapshot; texts repeat, so it shrinks to about a tenth."""
    return zlib.compress(dump(state), PACK_LEVEL)


def unpack(data: bytes) -> PolicyState:
    """The state that `pack` wrote."""
    return load(zlib.decompress(data))
