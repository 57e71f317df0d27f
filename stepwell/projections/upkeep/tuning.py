"""How the tables are kept: chunks, compression, how far back sums are refreshed, and what goes when. Plain values.

`stepwell.projections.upkeep.tune` brings TimescaleDB to it, `stepwell.projections.upkeep.retention` plain PostgreSQL.
"""

from dataclasses import dataclass
from datetime import timedelta

from stepwell.exceptions import ConfigurationError

__all__ = ["AGGREGATES", "HYPERTABLES", "LEVELS", "Aggregate", "Hypertable", "Tuning"]


@dataclass(frozen=True, slots=True)
class Hypertable:
    """A table of facts, by time.

    Attributes:
        name: of the table.
        time: the column that it is split by.
        ingested: the column that says when a row was taken in, which retention goes by.
        segment_by, order_by: how the columnstore lays rows together; measured in
            docs/decisions/0051-sums-columnstore-and-retention.md.
        feeds: the continuous aggregate that sums it, if there is one.
    """

    name: str
    time: str
    ingested: str
    segment_by: tuple[str, ...]
    order_by: tuple[str, ...]
    feeds: str | None = None


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A continuous aggregate. ``source``: what it sums; ``level``: minute, hour or day; ``feeds``: what sums it."""

    name: str
    source: str
    level: str
    segment_by: tuple[str, ...]
    feeds: str | None


@dataclass(frozen=True, slots=True)
class Level:
    """How sums of one length are refreshed.

    Attributes:
        bucket: the length.
        every: how often.
        until: what is newer than so long ago is summed when asked.
        batch: buckets that one transaction of a refresh takes on. TimescaleDB's own default of ten would make ten
            thousand transactions of the first refresh of two months of minutes.
        chunk: length of a chunk (docs/decisions/0021-hypertables.md).
    """

    bucket: timedelta
    every: timedelta
    until: timedelta
    batch: int
    chunk: timedelta


HYPERTABLES: tuple[Hypertable, ...] = (
    Hypertable(
        "steps", "occurred_at", "logged_at", ("episode_id", "attempt"), ("producer_seq", "occurred_at"), "step_minutes",
    ),
    Hypertable("actions", "occurred_at", "logged_at", ("episode_id", "attempt"), ("producer_seq", "occurred_at")),
    Hypertable("telemetry_points", "sampled_at", "logged_at", ("series_id",), ("sampled_at",), "telemetry_minutes"),
    Hypertable("spans", "started_at", "logged_at", (), ("trace_id", "started_at")),
    Hypertable("verdict_changes", "at", "logged_at", (), ("episode_id", "change", "at"), "outcome_minutes"),
    Hypertable(
        "dead_letters", "logged_at", "recorded_at", ("source_topic", "source_partition"), ("source_offset", "logged_at")
    ),
)  # fmt: skip
"""Every hypertable."""

LEVELS: dict[str, Level] = {
    "minute": Level(timedelta(minutes=1), timedelta(minutes=1), timedelta(minutes=1), 7 * 24 * 60, timedelta(days=10)),
    "hour": Level(timedelta(hours=1), timedelta(minutes=10), timedelta(hours=1), 70 * 24, timedelta(days=30)),
    "day": Level(timedelta(days=1), timedelta(hours=1), timedelta(days=1), 365, timedelta(days=365)),
}
"""The lengths of a bucket, each summed from the one before."""


def _aggregates() -> tuple[Aggregate, ...]:
    found = []
    for family, source, segment_by in (
        ("outcome", "verdict_changes", ("policy",)), ("step", "steps", ("task",)),
        ("telemetry", "telemetry_points", ("series_id",)),
    ):  # fmt: skip
        names = [f"{family}_{level}s" for level in LEVELS]
        for level, name, below, above in zip(LEVELS, names, [source, *names], [*names[1:], None], strict=False):
            found.append(Aggregate(name, below, level, segment_by, above))
    return tuple(found)


AGGREGATES: tuple[Aggregate, ...] = _aggregates()
"""Every continuous aggregate, each after what it is summed from."""

_SHORT_CHUNKS = ("steps", "actions", "telemetry_points", "spans")
_LONG_CHUNK = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class Tuning:
    """What is configured; lengths in days. A retention of 0 keeps for ever.

    Attributes:
        chunk_days: length of a chunk of steps, actions, telemetry and spans.
        compress_after_days: chunks that ended so long ago are compressed.
        refresh_window_days: rows that come so late are taken into the sums of minutes, hours and days by themselves.
        retention_steps_days: how long steps and actions are kept, counted from when the log took them.
        retention_telemetry_days: of points and spans.
        retention_dead_letters_days: of dead letters.
        retention_minutes_days: of the sums by minute over steps and telemetry.
        retention_hours_days: of the sums by hour over steps and telemetry. Sums by day, and what is made of verdicts,
            are kept for ever.

    Raises:
        ConfigurationError: something would be taken away before it is compressed, or while it is still summed.
    """

    chunk_days: float = 1.0
    compress_after_days: float = 7.0
    refresh_window_days: float = 70.0
    retention_steps_days: float = 180.0
    retention_telemetry_days: float = 90.0
    retention_dead_letters_days: float = 365.0
    retention_minutes_days: float = 400.0
    retention_hours_days: float = 0.0

    def __post_init__(self) -> None:
        longest = max(("refresh_window_days", "compress_after_days"), key=lambda name: getattr(self, name))
        # A chunk is whole until its end, and the policies look back from now: one chunk more than the longer of them.
        least = getattr(self, longest) + self.chunk_days
        for name in ("steps", "telemetry", "minutes", "hours"):
            kept = getattr(self, f"retention_{name}_days")
            if kept and kept < least:
                raise ConfigurationError(
                    f"retention_{name}_days ({kept:g}) must be 0 (for ever) or at least {least:g}: {longest} "
                    f"({getattr(self, longest):g}) and one chunk (chunk_days, {self.chunk_days:g}). What is still "
                    "summed or compressed must not be taken away."
                )
        kept = self.retention_dead_letters_days
        if kept and kept <= self.compress_after_days:
            raise ConfigurationError(
                f"retention_dead_letters_days ({kept:g}) must be 0 (for ever) or more than compress_after_days "
                f"({self.compress_after_days:g})"
            )

    def chunk(self, relation: str) -> timedelta:
        """Length of a chunk of a hypertable or continuous aggregate."""
        for aggregate in AGGREGATES:
            if aggregate.name == relation:
                return LEVELS[aggregate.level].chunk
        return timedelta(days=self.chunk_days) if relation in _SHORT_CHUNKS else _LONG_CHUNK

    def compress_after(self, relation: str) -> timedelta:
        """How long ago a chunk must have ended: of a sum, longer than it is refreshed."""
        summed = relation in {aggregate.name for aggregate in AGGREGATES}
        days = max(self.compress_after_days, self.refresh_window_days) if summed else self.compress_after_days
        return timedelta(days=days)

    @property
    def refresh_window(self) -> timedelta:
        return timedelta(days=self.refresh_window_days)

    def kept(self, relation: str) -> timedelta | None:
        """How long rows of a table are kept after they were taken in; None: for ever."""
        days = {
            "steps": self.retention_steps_days, "actions": self.retention_steps_days,
            "telemetry_points": self.retention_telemetry_days, "spans": self.retention_telemetry_days,
            "dead_letters": self.retention_dead_letters_days,
            # Not of outcomes: a verdict may be revised after years, and hours and days are summed from the minutes.
            **{f"{family}_minutes": self.retention_minutes_days for family in ("step", "telemetry")},
            **{f"{family}_hours": self.retention_hours_days for family in ("step", "telemetry")},
        }.get(relation, 0.0)  # fmt: skip
        return timedelta(days=days) if days else None
