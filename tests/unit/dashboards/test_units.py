"""Values as people read them."""

from datetime import UTC, datetime
from typing import Any

import pytest

from stepwell.adapters.dashboards.model import Unit
from stepwell.adapters.dashboards.units import NOTHING, axis, write


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "count", NOTHING),
        ("", "text", NOTHING),
        (0, "count", "0"),
        (1234567, "count", "1,234,567"),
        (0.4216, "ratio", "42.2 %"),
        (0, "s", "0 s"),
        (0.00042, "s", "420 µs"),
        (0.035, "s", "35 ms"),
        (59.4, "s", "59.4 s"),
        (85, "s", "1 min 25 s"),
        (3 * 3600 + 61, "s", "3 h 01 min"),
        (2 * 86_400 + 5 * 3600, "s", "2 d 05 h"),
        (-85, "s", "-1 min 25 s"),
        (9e9, "By", "8.38 GiB"),
        (512, "By", "512 B"),
        (3e8, "By/s", "286 MiB/s"),
        (74.25, "Cel", "74.2 °C"),
        (-12.5, "N.m", "-12.5 N·m"),
        (0.0167, "/s", "0.0167 /s"),
        (2.15e10, "number", "21.5 G"),
        (-1e6, "number", "-1 M"),
        (1e15, "number", "1e+15"),
        (0.00042, "number", "0.00042"),
        (float("nan"), "number", "not a number"),
        (float("-inf"), "number", "-infinity"),
        (True, "text", "yes"),
        (7, "id", "7"),
        (datetime(2026, 3, 1, 12, 0, 1, tzinfo=UTC), "moment", "2026-03-01 12:00:01"),
    ],
)
def test_a_value_with_its_unit(value: Any, unit: Unit, text: str) -> None:
    assert write(value, unit) == text


@pytest.mark.parametrize(
    ("unit", "largest", "scaled"),
    [
        ("s", 0.05, (1e-3, "ms")),
        ("s", 90.0, (60.0, "min")),
        ("s", 0.0, (1.0, "s")),
        ("s", 1e-9, (1e-6, "µs")),
        ("By", 5e9, (float(1 << 30), "GiB")),
        ("By/s", 10.0, (1.0, "B/s")),
        ("count", 1e6, (1.0, "")),
        ("W", 200.0, (1.0, "W")),
    ],
)
def test_an_axis_is_in_the_unit_of_its_largest_value(unit: Unit, largest: float, scaled: tuple[float, str]) -> None:
    assert axis(unit, largest) == scaled
