"""How far the workers are and what they said last, asked of the log itself: for when the tables cannot tell."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stepwell.engine.ports import Admin, EventCodec, MessageLog, TopicPartition, Watermarks
from stepwell.engine.reading import read_range
from stepwell.events.model import WorkerReported
from stepwell.events.topics import TELEMETRY
from stepwell.exceptions import EventError, LogUnavailableError, PositionLostError, TopicError

REPORTS_TAIL = 2_000
"""So many of the last offsets of each partition of the telemetry topic are searched for reports."""
OLDEST_TIMEOUT_S = 5.0
"""How long to look for the oldest records that nobody has processed."""


@dataclass(frozen=True, slots=True)
class PartitionSurvey:
    """How far one group is in one partition.

    Attributes:
        position: everything below is processed (log offset); None: the group has never worked there.
        log_end: where the partition ends (log offset).
        behind_events: offsets between the two; an upper bound on Kafka, where markers count.
        oldest_logged_at: when the oldest record that is not processed was logged (µs, log's clock); None where there is
            none, or it was not found in time.
    """

    consumer: str
    topic: str
    partition: int
    position: int | None
    log_end: int
    behind_events: int
    oldest_logged_at: int | None


@dataclass(frozen=True, slots=True)
class LogSurvey:
    """What the log says.

    Attributes:
        at: when it was asked (µs since 1970 UTC, this machine's clock).
        partitions: of each group, in order.
        reports: the last report of each worker, as far as they are among the last records.
    """

    at: int
    partitions: Sequence[PartitionSurvey]
    reports: Sequence[WorkerReported]


def survey_log(log: MessageLog, codec: EventCodec, groups: Mapping[str, Sequence[str]]) -> LogSurvey:
    """Ask the log how far ``groups`` are, each in its topics, and what workers said last.

    Raises:
        LogUnavailableError: the log does not answer.
    """
    at = time.time_ns() // 1000
    admin = log.admin()
    try:
        marks, positions = _places(admin, groups)
    finally:
        admin.close()
    starts: dict[TopicPartition, list[int]] = {}
    for (_, source), position in positions.items():
        start = max(position if position is not None else 0, marks[source].low)
        if start < marks[source].high:
            starts.setdefault(source, []).append(start)
    oldest = _oldest(log, starts)
    partitions = []
    for (group, source), position in sorted(positions.items()):
        low, high = marks[source]
        start = max(position if position is not None else 0, low)
        behind = max(high - start, 0)
        found = oldest.get((source, start)) if behind else None
        partitions.append(PartitionSurvey(group, *source, position, high, behind, found))
    return LogSurvey(at, partitions, _reports(log, codec))


def _places(
    admin: Admin, groups: Mapping[str, Sequence[str]]
) -> tuple[dict[TopicPartition, Watermarks], dict[tuple[str, TopicPartition], int | None]]:
    marks: dict[TopicPartition, Watermarks] = {}
    positions: dict[tuple[str, TopicPartition], int | None] = {}
    for group, topics in groups.items():
        for topic in topics:
            try:
                found = admin.watermarks(topic)
            except TopicError:
                continue  # nothing has been written there yet
            marks |= found
            known = admin.group_positions(group, topic)
            positions |= {(group, source): known.get(source) for source in found}
    return marks, positions


def _oldest(log: MessageLog, starts: Mapping[TopicPartition, Sequence[int]]) -> dict[tuple[TopicPartition, int], int]:
    """When the first record at or above each start was logged; those that are not found in time are left out."""
    found: dict[tuple[TopicPartition, int], int] = {}
    deadline = time.monotonic() + OLDEST_TIMEOUT_S
    # One start a partition and reader: groups that stand at different places of one partition take turns.
    for turn in range(max(map(len, starts.values()), default=0)):
        wanted = {source: sorted(each)[turn] for source, each in starts.items() if turn < len(each)}
        consumer = log.consumer()
        try:
            consumer.assign(wanted)
            while wanted and time.monotonic() < deadline:
                for batch in consumer.poll(len(wanted) * 10, 0.2):
                    start = wanted.pop(batch.source, None)
                    if start is not None and batch.timestamps:
                        found[batch.source, start] = batch.timestamps[0]
                    consumer.pause([batch.source])
        except PositionLostError:
            continue  # retention was faster
        finally:
            consumer.close()
    return found


def _reports(log: MessageLog, codec: EventCodec) -> list[WorkerReported]:
    last: dict[str, WorkerReported] = {}
    admin = log.admin()
    try:
        ends = admin.watermarks(TELEMETRY)
    except TopicError:
        return []
    finally:
        admin.close()
    for source, (low, high) in ends.items():
        try:
            for batch in read_range(log, source, max(low, high - REPORTS_TAIL), high):
                for value, headers in zip(batch.values, batch.headers, strict=True):
                    report = _report(codec, value, headers)
                    if report is not None:
                        last[report.worker_id] = report
        except (LogUnavailableError, PositionLostError):
            continue
    return sorted(last.values(), key=lambda report: report.worker_id)


def _report(
    codec: EventCodec, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]
) -> WorkerReported | None:
    if ("ce_type", WorkerReported.TYPE.encode()) not in headers:
        return None
    try:
        record = codec.decode(value, tuple(headers))
    except EventError:
        return None
    return record if isinstance(record, WorkerReported) else None
