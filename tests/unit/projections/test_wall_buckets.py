"""Durations in buckets: what stands for a bucket is near to all that is in it."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.projections.schema.files import packaged
from stepwell.projections.sums.wall_buckets import BOUNDS, ERROR, wall_bucket, wall_us


def stands_for(bucket: int) -> float:
    """Microseconds, as the database's wall_bucket_s has it."""
    if bucket == 0:
        return 0.0
    least = BOUNDS[bucket - 1]
    if bucket == len(BOUNDS):
        return float(least)
    most = BOUNDS[bucket] - 1
    return 2 / (1 / least + 1 / most)


@given(st.integers(0, BOUNDS[-1]))
def test_no_duration_is_farther_from_its_bucket_than_is_said(us: int) -> None:
    bucket = wall_bucket(us)
    assert bucket is not None
    assert abs(stands_for(bucket) - us) <= ERROR * us + 1e-9


def test_short_durations_are_exact() -> None:
    assert [stands_for(wall_bucket(us) or 0) for us in range(10)] == pytest.approx(list(range(10)))


@pytest.mark.parametrize("wall_s", [None, math.nan, -0.001, math.inf, -math.inf, 1e9])
def test_what_makes_no_sense_is_in_no_bucket(wall_s: float | None) -> None:
    assert wall_us(wall_s) is None
    assert wall_bucket(wall_us(wall_s)) is None


def test_microseconds_are_rounded_as_the_database_does() -> None:
    assert [wall_us(us / 1e6) for us in (0.5, 1.5, 2.5, 3.4)] == [0, 2, 2, 3]


def test_the_database_has_the_same_bounds() -> None:
    (file,) = (file for file in packaged().control if file.name.endswith("wall_buckets.sql"))
    listed = re.search(r"\('\{([\d,\s]+)\}'\)::bigint", file.sql)
    assert listed
    assert tuple(map(int, listed[1].split(","))) == BOUNDS
