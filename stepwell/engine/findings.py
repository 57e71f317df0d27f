"""What the fold noticed beside the state: violations, losses, late facts, facts after the seal, stale time-outs.

Kinds in `DEAD_LETTER_KINDS` belong into the dead-letter topic; the others are for logs and replay.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from stepwell.engine.effects import CODES
from stepwell.engine.state import LIST_LIMIT, AttemptState, Held, Position, ProducerState, Violation
from stepwell.engine.steps.program import Failure

DEAD_LETTER_KINDS: Final = frozenset({"violation", "after_seal", "rule_failed"})


class Finding(NamedTuple):
    """One thing noticed.

    Attributes:
        kind: ``violation``, ``after_seal``, ``lost``, ``late``, ``stale`` or ``rule_failed`` (a step rule raised).
        code: stable and short. Of a violation one of `stepwell.engine.effects.CODES`; of a loss its cause
            (``timed_out``, ``overflow``, ``seal``); of a failed rule its name; else equal to ``kind``.
        detail: one sentence for people.
        episode_id, attempt: which attempt.
        event_type: of the fact concerned; empty for losses.
        producer, first_seq, last_seq: which facts; equal sequences for one fact.
        partition, offset, timestamp: where the fact's record stands, which need not be the record just folded (it may
            have waited); offset -1 where it is not known any more.
    """

    kind: str
    code: str
    detail: str
    episode_id: str
    attempt: int
    event_type: str
    producer: str
    first_seq: int
    last_seq: int
    partition: int
    offset: int
    timestamp: int


class Findings(list[Finding]):
    """The findings of one event, as they are made."""

    def violation(self, attempt: AttemptState, code: str, producer: ProducerState, seq: int, held: Held) -> None:
        """A fact of the attempt's own producer broke the protocol."""
        entry = Violation(code, held.event_type, producer.name, held.producer_id, seq, held.digest, held.offset)
        self.record(attempt, entry, held.timestamp)

    def record(self, attempt: AttemptState, entry: Violation, timestamp: int) -> None:
        """Count a violation and list it; the same record delivered again counts as a duplicate."""
        for known in attempt.violations:
            if (known.code, known.producer, known.producer_id, known.seq, known.digest) == (
                entry.code,
                entry.producer,
                entry.producer_id,
                entry.seq,
                entry.digest,
            ):
                attempt.duplicate_count += 1
                return
        attempt.violation_count += 1
        if len(attempt.violations) < LIST_LIMIT:
            attempt.violations.append(entry)
        detail = f"{entry.event_type} {entry.seq} of {entry.producer} {entry.producer_id}: {CODES[entry.code]}"
        self.append(
            Finding(
                "violation",
                entry.code,
                detail,
                attempt.episode_id,
                attempt.attempt,
                entry.event_type,
                entry.producer,
                entry.seq,
                entry.seq,
                attempt.partition,
                entry.offset,
                timestamp,
            )
        )

    def rules_failed(self, attempt: AttemptState, failures: Sequence[Failure], seq: int, held: Held) -> None:
        """Step rules raised on a fact of the simulator that was applied."""
        for failure in failures:
            self.append(rule_failed(attempt, failure, held.event_type, ("sim", seq), held.offset, held.timestamp))

    def beyond_end_applied(
        self, attempt: AttemptState, producer: ProducerState, first: int, last: int, count: int
    ) -> None:
        """So many facts beyond the end's last sequence came before the end and had their turn; the others are lost."""
        attempt.violation_count += count
        if len(attempt.violations) < LIST_LIMIT:
            attempt.violations.append(
                Violation("beyond_end", "", producer.name, producer.producer_id or "", first, -1, -1)
            )
        detail = (
            f"facts {first} to {last} of {producer.name} lie beyond the end's last sequence, but came before the end"
        )
        self._about_range("violation", "beyond_end", detail, attempt, producer, (first, last))

    def lost(self, attempt: AttemptState, producer: ProducerState, first: int, last: int, cause: str) -> None:
        """Sequences were given up."""
        detail = f"facts {first} to {last} of {producer.name} never came; given up by {cause}"
        self._about_range("lost", cause, detail, attempt, producer, (first, last))

    def _about_range(
        self, kind: str, code: str, detail: str, attempt: AttemptState, producer: ProducerState, seqs: tuple[int, int]
    ) -> None:
        """A finding about several sequences, and so about no record of its own."""
        self.append(
            Finding(
                kind,
                code,
                detail,
                attempt.episode_id,
                attempt.attempt,
                "",
                producer.name,
                *seqs,
                attempt.partition,
                -1,
                -1,
            )
        )

    def note(
        self, kind: str, detail: str, attempt: AttemptState, event_type: str, at: tuple[str, int], position: Position
    ) -> None:
        """Something that is no violation: ``late`` or ``stale``. ``at``: producer and sequence."""
        producer, seq = at
        self.append(
            Finding(
                kind,
                kind,
                detail,
                attempt.episode_id,
                attempt.attempt,
                event_type,
                producer,
                seq,
                seq,
                position.partition,
                position.offset,
                position.timestamp,
            )
        )


def rule_failed(
    attempt: AttemptState, failure: Failure, event_type: str, at: tuple[str, int], offset: int, timestamp: int
) -> Finding:
    """A step rule raised; it is parked for this attempt, the others go on. ``at``: the fact's producer and sequence."""
    producer, seq = at
    return Finding(
        "rule_failed",
        failure.rule,
        f"step rule {failure.rule} raised and is parked for this attempt: {failure.detail}",
        attempt.episode_id,
        attempt.attempt,
        event_type,
        producer,
        seq,
        seq,
        attempt.partition,
        offset,
        timestamp,
    )
