"""What workers say of themselves on ``stepwell.telemetry``."""

from typing import ClassVar

from stepwell.events.values import Value


class PartitionProgress(Value, frozen=True, kw_only=True):
    """How far a worker is in one partition (positions are log offsets, times µs since 1970 UTC).

    Attributes:
        position: everything below is processed.
        log_end: where the partition ended when last looked at; None before the first look.
        rate, arrival_rate: offsets passed and appended a second over the last minute; None while not known.
        progressed_at: when the position last moved; None for not yet in this process.
        complete_until_at: everything logged before this moment is processed; None while not known.
    """

    partition: int
    position: int
    log_end: int | None = None
    rate: float | None = None
    arrival_rate: float | None = None
    progressed_at: int | None = None
    complete_until_at: int | None = None


class TopicProgress(Value, frozen=True, kw_only=True):
    """How far a worker is in the partitions that it has of one topic. ``consumer``: the group that it reads for."""

    consumer: str
    topic: str
    partitions: tuple[PartitionProgress, ...]


class WorkerReported(Value, frozen=True, kw_only=True):
    """How one worker is, as it says itself (key: ``worker_id``); the newest report stands.

    Attributes:
        kind: ``engine``, ``detector``, ``projector``, ``otlp`` …
        started_at, reported_at: when the process started, and when it said this (µs since 1970 UTC).
        report_seq: the process's own count of reports, from 0.
        state: ``starting``, ``running``, ``waiting``, ``stopping``, ``stopped`` or ``failed``.
        waits_for: what it waits for, and why; empty where it waits for nothing.
        last_error, last_error_at: the last thing that went wrong, and when (µs).
        last_progress_at: when it last moved on in any partition (µs).
        looked_at: when it last saw where the log ends (µs).
        reads: the partitions that it has now.
    """

    TYPE: ClassVar[str] = "worker::reported"

    worker_id: str
    kind: str
    host: str
    pid: int
    version: str
    started_at: int
    reported_at: int
    report_seq: int
    state: str
    waits_for: str
    last_error: str
    last_error_at: int | None = None
    last_progress_at: int | None = None
    looked_at: int | None = None
    reads: tuple[TopicProgress, ...]
