"""Numbers as people read them."""

import math
from datetime import UTC, datetime
from typing import Any

from stepwell.adapters.dashboards.model import Unit

__all__ = ["NOTHING", "axis", "write"]

NOTHING = "–"
"""Stands where there is no value."""

_BINARY = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_SECONDS = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_LARGE = ((1e6, "M"), (1e9, "G"), (1e12, "T"))
_PLAIN = {"/s": "/s", "Cel": "°C", "W": "W", "N.m": "N·m", "A": "A"}


def write(value: Any, unit: Unit) -> str:
    """A value with its unit; `NOTHING` for None."""
    if value is None or value == "":
        return NOTHING
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if unit in {"text", "id", "moment"}:
        return str(value)
    number = float(value)
    if not math.isfinite(number):
        return str(number).replace("inf", "infinity").replace("nan", "not a number")
    if unit == "count":
        return f"{number:,.0f}" if number == round(number) else f"{number:,.1f}"
    if unit == "ratio":
        return f"{100 * number:.1f} %"
    if unit == "s":
        return _duration(number)
    factor, label = axis(unit, abs(number))
    return f"{_short(number / factor)} {label}".rstrip()


def axis(unit: Unit, largest: float) -> tuple[float, str]:
    """By what to divide the values of an axis whose largest is ``largest``, and the unit that they are in then."""
    if unit in {"By", "By/s"}:
        factor, label = next((step for step in _BINARY if largest >= step[0]), (1, "B"))
        return float(factor), label + unit.removeprefix("By")
    if unit == "s":
        return next((step for step in _SECONDS if largest >= step[0]), (1e-6, "µs") if largest > 0 else (1.0, "s"))
    return 1.0, _PLAIN.get(unit, "")


def _duration(seconds: float) -> str:
    sign, seconds = ("-" if seconds < 0 else ""), abs(seconds)
    if seconds < 60:
        factor, label = axis("s", seconds)
        return f"{sign}{_short(seconds / factor)} {label}"
    whole = round(seconds)
    for large, small, names in ((86_400, 3_600, ("d", "h")), (3_600, 60, ("h", "min")), (60, 1, ("min", "s"))):
        if whole >= large:
            return f"{sign}{whole // large} {names[0]} {whole % large // small:02d} {names[1]}"
    return f"{sign}{whole} s"


def _short(number: float) -> str:
    """Three significant digits; from a million on with a suffix, below a thousandth with an exponent."""
    for size, suffix in _LARGE:
        if size <= abs(number) < 1000 * size:
            return f"{_short(number / size)} {suffix}"
    if number == 0 or 1e-3 <= abs(number) < 1e6:
        digits = 2 - math.floor(math.log10(abs(number))) if number else 0
        text = f"{number:,.{max(digits, 0)}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{number:.3g}"
