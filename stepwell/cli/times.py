"""Times and spans as people write them on a command line."""

import re
from datetime import UTC, datetime, timedelta

from stepwell.exceptions import ConfigurationError

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_SPAN = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*([smhdw])")
SPAN_MAX_US = 3660 * 86_400 * 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def span_us(text: str, option: str) -> int:
    """``90s``, ``45m``, ``12h``, ``3d`` or ``2w`` in microseconds.

    Raises:
        ConfigurationError: it is none of these, or more than ten years.
    """
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        raise ConfigurationError(f"{option} {text!r}: expected a number with s, m, h, d or w behind it, e.g. 3d")
    microseconds = round(float(match[1]) * _UNITS[match[2]] * 1_000_000)
    if microseconds > SPAN_MAX_US:
        raise ConfigurationError(f"{option} {text!r}: that is more than ten years; expected 3660d at most")
    return microseconds


def span_text(microseconds: int) -> str:
    """A span as `span_us` reads it, rounded down to its largest whole unit: ``45m``, ``12h``, ``3d``."""
    seconds = max(microseconds, 0) // 1_000_000  # a clock that was wrong makes no negative age
    unit = max((unit for unit in "mhd" if _UNITS[unit] <= seconds), key=_UNITS.__getitem__, default="s")
    return f"{seconds // _UNITS[unit]}{unit}"


def moment_us(text: str, option: str) -> int:
    """``2026-12-01``, ``2026-12-01T14:30`` or with seconds and a zone, in microseconds since 1970 UTC.

    Without a zone it is UTC, as everywhere in Stepwell.

    Raises:
        ConfigurationError: it is no date.
    """
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ConfigurationError(
            f"{option} {text!r}: expected a date or a time in ISO 8601, e.g. 2026-12-01 or 2026-12-01T14:30Z"
        ) from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    microseconds = (moment - _EPOCH) // timedelta(microseconds=1)
    if microseconds < 0:
        raise ConfigurationError(f"{option} {text!r}: expected a time after 1970")
    return microseconds
