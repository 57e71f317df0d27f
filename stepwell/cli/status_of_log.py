"""What ``stepwell status`` says when the tables cannot tell: the log itself is asked."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from stepwell.cli.resources import codec_in_force, opened_log
from stepwell.cli.tables import first_line, plain_table
from stepwell.cli.times import span_text
from stepwell.exceptions import LogError, NotFoundError
from stepwell.redaction import redact_text

if TYPE_CHECKING:
    from stepwell.adapters.workers.survey import LogSurvey, PartitionSurvey
    from stepwell.events.model import WorkerReported

__all__ = ["Asked", "ask_log"]

SILENT_AFTER_US = 30_000_000
"""A worker whose last report is older (µs) is not heard of any more; workers report every 5 s."""


@dataclass(frozen=True)
class Asked:
    """What the log said, or why it said nothing (``problem``). ``away``: it did not answer; else there is none yet."""

    survey: "LogSurvey | None"
    problem: str = ""
    away: bool = False

    def as_json(self) -> dict[str, Any]:
        """For ``--json``; times in microseconds since 1970 UTC."""
        if self.survey is None:
            return {"problem": self.problem}
        import msgspec

        reports = [msgspec.to_builtins(report) for report in self.survey.reports]
        return {
            "problem": "", "at": self.survey.at, "partitions": [asdict(each) for each in self.survey.partitions],
            "reports": reports,
        }  # fmt: skip

    def shown(self, with_tables: bool, *, partitions: bool) -> Iterator[Any]:
        """Lines and tables for people. ``with_tables``: what the database says stands above."""
        if self.survey is None:
            yield f"Asked of the log itself: {self.problem}"
            return
        at = self.survey.at
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at / 1e6))
        rows = list(self.survey.partitions) if partitions else _by_topic(self.survey.partitions)
        behind = [row for row in rows if row.behind_events or partitions]
        said = "Asked of the log itself" + (", which knows nothing of what is in the tables" if not with_tables else "")
        if not behind:
            yield f"{said}: nothing is left to do for any worker, as of {moment} UTC ({len(rows)} topics)."
        else:
            yield plain_table(
                "consumer", "topic/partition" if partitions else "topic", "events", "oldest waits since",
                rows=[
                    (row.consumer, f"{row.topic}/{row.partition}" if partitions else row.topic, row.behind_events,
                     _since(row, at))
                    for row in behind
                ],
                title=f"{said}: what is left to do, as of {moment} UTC",
            )  # fmt: skip
        yield from _workers(self.survey.reports, at)


def ask_log() -> Asked:
    """Ask the log in force how far its workers are."""
    from stepwell.adapters.workers.survey import survey_log

    try:
        with opened_log(must_exist=True) as log:
            return Asked(survey_log(log, codec_in_force(), _groups()))
    except (LogError, NotFoundError) as error:
        return Asked(None, redact_text(str(error)), isinstance(error, LogError))


def _groups() -> Mapping[str, Sequence[str]]:
    from stepwell.engine import restore
    from stepwell.engine.detection import restore as detector_restore
    from stepwell.projections.writing.projector import GROUP
    from stepwell.projections.writing.rows import PROJECTED_TOPICS

    return {
        restore.GROUP: restore.TOPICS, detector_restore.GROUP: detector_restore.TOPICS, GROUP: PROJECTED_TOPICS,
    }  # fmt: skip


def _by_topic(partitions: "Sequence[PartitionSurvey]") -> "list[PartitionSurvey]":
    """One for each consumer and topic, the worst first: events summed, the oldest of what waits."""
    from dataclasses import replace

    groups: dict[tuple[str, str], PartitionSurvey] = {}
    for each in partitions:
        key = (each.consumer, each.topic)
        known = groups.get(key)
        if known is None:
            groups[key] = each
            continue
        times = [at for at in (known.oldest_logged_at, each.oldest_logged_at) if at is not None]
        groups[key] = replace(
            known, behind_events=known.behind_events + each.behind_events, oldest_logged_at=min(times, default=None)
        )
    return sorted(groups.values(), key=lambda row: (row.oldest_logged_at or row.behind_events == 0, row.consumer))


def _since(row: "PartitionSurvey", now: int) -> str:
    if not row.behind_events:
        return ""
    return "?" if row.oldest_logged_at is None else span_text(now - row.oldest_logged_at)


def _workers(reports: "Sequence[WorkerReported]", now: int) -> Iterator[Any]:
    if not reports:
        yield "Workers: none has said anything lately."
        return
    yield plain_table(
        "worker", "host", "state", "waits for", "last error", "heard",
        rows=[
            (each.worker_id, each.host, _state(each, now), first_line(each.waits_for), first_line(each.last_error),
             f"{span_text(now - each.reported_at)} ago")
            for each in reports
        ],
        title="Workers, by their last words on the log",
    )  # fmt: skip


def _state(report: "WorkerReported", now: int) -> str:
    over = report.state in ("stopped", "failed")
    return report.state if over or now - report.reported_at <= SILENT_AFTER_US else f"silent (was {report.state})"
