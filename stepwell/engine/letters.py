"""Dead letters for what the fold noticed: each with the raw record that it is about."""

from bisect import bisect_left
from collections.abc import Callable

from stepwell.engine.findings import Finding
from stepwell.engine.ports import RecordBatch
from stepwell.engine.publish import dead_letter
from stepwell.events.model import DeadLetter

Fetch = Callable[[int], RecordBatch | None]
"""Reads the record at an offset of the partition; None where it is gone."""


def letter_of(finding: Finding, batch: RecordBatch, index: int, fetch: Fetch, worker_id: str) -> DeadLetter:
    """The dead letter of one finding.

    Usually it is about the record just folded. A fact that had to wait may have come in this batch or long before; then
    its record is looked for. Where it is gone, and where the finding is about several facts, the record at which it was
    noticed stands for it.

    Args:
        finding: a violation, or a fact after the seal.
        batch: where the record that was being folded is.
        index: its place in the batch.
        fetch: reads an older record.
        worker_id: who reports it.
    """
    offset = finding.offset
    if offset >= 0 and offset != batch.offsets[index]:
        at = bisect_left(batch.offsets, offset)
        if at < len(batch) and batch.offsets[at] == offset:
            index = at
        else:
            older = fetch(offset)
            if older is not None and older.offsets and older.offsets[0] == offset:
                batch, index = older, 0
    return dead_letter(
        batch,
        index,
        kind=finding.kind,
        reason=finding.code,
        detail=finding.detail,
        reported_by=worker_id,
        episode_id=finding.episode_id,
        attempt=finding.attempt,
        event_type=finding.event_type or None,
    )
