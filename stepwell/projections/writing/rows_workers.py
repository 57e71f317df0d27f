"""The rows of what workers say of themselves."""

from stepwell.events import model
from stepwell.projections.tables import Row

__all__ = ["report"]


def report(record: model.WorkerReported, timestamp: int, partition: int, offset: int) -> list[Row]:
    """The worker's own row, and one for each partition that it has. ``timestamp``: the log's time of append (µs)."""
    place = (timestamp, partition, offset)
    status = (
        record.worker_id, record.kind, record.host, record.pid, record.version, record.started_at, record.reported_at,
        record.report_seq, record.state, record.waits_for, record.last_error, record.last_error_at,
        record.last_progress_at, record.looked_at, *place,
    )  # fmt: skip
    rows = [Row("worker_status", status)]
    for reads in record.reads:
        rows += [
            Row("worker_partitions", (
                record.worker_id, reads.consumer, reads.topic, each.partition, each.position, each.log_end, each.rate,
                each.arrival_rate, each.progressed_at, each.complete_until_at, record.reported_at, *place,
            ))
            for each in reads.partitions
        ]  # fmt: skip
    return rows
