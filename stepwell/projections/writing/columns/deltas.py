"""What steps by columns add to the rollups that the projector keeps on plain PostgreSQL."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from stepwell.projections.sums.rollups import StepDelta
from stepwell.projections.sums.wall_buckets import BOUNDS
from stepwell.projections.writing.columns.avro import Ints
from stepwell.projections.writing.columns.batch import ColumnRows
from stepwell.projections.writing.columns.guards import numbers_of, places_of

__all__ = ["NO_BUCKET", "WALL_BOUNDS", "StepDeltas", "step_deltas"]

NO_BUCKET = -1
"""Stands for the bucket of steps that do not say how long they took."""

WALL_BOUNDS = np.array(BOUNDS, np.int64)
"""The bounds of `stepwell.projections.sums.wall_buckets`, as `step_deltas` takes them."""

_MINUTE_US = 60_000_000
_SECONDS_MAX = 1e9


@dataclass(frozen=True, slots=True)
class StepDeltas:
    """Steps counted by minute, attempt and how long they took: columns of equal length, each combination once.

    Attributes:
        minutes: beginning of the minute in which the steps were done (µs since 1970, UTC).
        episode_ids, attempts: whose steps they are.
        wall_buckets: see `step_deltas`; `NO_BUCKET` where a step does not say.
        steps: how many there are.
        wall_us: how long they took together (µs).
        logged: when the log took the newest of them (µs since 1970, UTC).
        partition: of the log, which holds them all.
    """

    minutes: Sequence[int]
    episode_ids: Sequence[str]
    attempts: Sequence[int]
    wall_buckets: Sequence[int]
    steps: Sequence[int]
    wall_us: Sequence[int]
    logged: Sequence[int]
    partition: int

    def __iter__(self) -> Iterator[StepDelta]:
        buckets = [None if bucket == NO_BUCKET else bucket for bucket in self.wall_buckets]
        return map(
            StepDelta, self.minutes, self.episode_ids, self.attempts, buckets, repeat(self.partition), self.steps,
            self.wall_us, self.logged,
        )  # fmt: skip


def step_deltas(rows: ColumnRows, bounds: Ints) -> StepDeltas:
    """Count rows of ``steps``.

    Args:
        rows: of the kind ``steps``.
        bounds: lower bounds (µs) of the buckets 1, 2, … of durations; bucket 0 lies below the first.
    """
    facts = rows.facts
    columns, raw = facts.columns, facts.bodies.raw
    places = places_of(columns, "episode_id")
    numbers: dict[bytes, int] = {}
    ends = (places.starts + places.sizes).tolist()
    episodes = np.array(
        [
            numbers.setdefault(raw[start:end], len(numbers))
            for start, end in zip(places.starts.tolist(), ends, strict=True)
        ]
    )
    minutes = numbers_of(columns, "occurred_at").values // _MINUTE_US * _MINUTE_US
    attempts = numbers_of(columns, "attempt").values
    taken = numbers_of(columns, "step_wall_s")
    # As the database rounds: halves to the even neighbour.
    told = (taken.values >= 0) & (taken.values < _SECONDS_MAX)
    if taken.present is not None:
        told &= taken.present
    wall_us = np.where(told, np.rint(np.where(told, taken.values, 0) * 1e6).astype(np.int64), 0)
    buckets = np.where(told, np.searchsorted(bounds, wall_us, side="right"), NO_BUCKET)

    keys = (minutes, episodes, attempts, buckets)
    order = np.lexsort(keys)
    new = np.ones(len(order), np.bool_)
    new[1:] = np.logical_or.reduce([key[order][1:] != key[order][:-1] for key in keys])
    starts = new.nonzero()[0]
    first = order[starts]
    names = [name.decode() for name in numbers]
    return StepDeltas(
        minutes=minutes[first].tolist(),
        episode_ids=[names[number] for number in episodes[first].tolist()],
        attempts=attempts[first].tolist(),
        wall_buckets=buckets[first].tolist(),
        steps=np.diff(starts, append=len(order)).tolist(),
        wall_us=np.add.reduceat(wall_us[order], starts).tolist(),
        logged=np.maximum.reduceat(facts.logged_at[order], starts).tolist(),
        partition=facts.partition,
    )
