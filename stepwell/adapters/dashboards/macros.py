"""Grafana's macros and variables, expanded as its PostgreSQL data source does it.

Grafana replaces variables in the browser and macros in its server. Both are done here for the page and for the tests:
``$__timeFilter(column)``, ``$__timeFrom()``, ``$__timeTo()``, ``$__interval`` (a PostgreSQL interval such as ``1m``),
``${name:sqlstring}`` (quoted values, comma between them) and ``${name:raw}``. Whatever else is left of a macro is an
error: a query that Grafana would send otherwise must not pass here.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from stepwell.exceptions import ConfigurationError

__all__ = ["ALL", "POINTS_MAX", "RESOLUTIONS", "Window", "expand"]

ALL = "*"
"""Stands for every value of a variable."""
RESOLUTIONS = ("minute", "hour", "day")
POINTS_MAX = 120
"""So many points a series has at most; ``$__interval`` follows from it, as in Grafana from a panel's width."""

_MACRO = re.compile(r"\$__(\w+)\(([^)]*)\)")
_VARIABLE = re.compile(r"\$\{(\w+):(\w+)\}")
_LEFT_OVER = re.compile(r"\$(?:__\w+|\{[^}]*\}|[a-z]\w*)")
_HOUR = timedelta(hours=1)
_LENGTHS = {"minute": timedelta(minutes=1), "hour": _HOUR, "day": 24 * _HOUR}
_STEPS_S = (1, 5, 10, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400)


@dataclass(frozen=True, slots=True)
class Window:
    """The span of time that a dashboard shows.

    Attributes:
        start: with a zone.
        end: with a zone.
        chosen: the resolution that somebody asked for; empty: by the span's length.
    """

    start: datetime
    end: datetime
    chosen: str = ""

    @property
    def resolution(self) -> str:
        """One of `RESOLUTIONS`: minutes for up to 6 hours, hours for up to 20 days, else days."""
        if self.chosen:
            return self.chosen
        span = self.end - self.start
        return "minute" if span <= 6 * _HOUR else "hour" if span <= 20 * 24 * _HOUR else "day"

    @property
    def interval(self) -> timedelta:
        """Width of a bucket where the SQL makes its own (``$__interval``)."""
        wanted = (self.end - self.start).total_seconds() / POINTS_MAX
        return timedelta(seconds=next((step for step in _STEPS_S if step >= wanted), _STEPS_S[-1]))

    @property
    def bucket(self) -> timedelta:
        """Width of a bucket that is put together from those of the resolution."""
        return max(self.interval, _LENGTHS[self.resolution])


def expand(sql: str, window: Window, variables: Mapping[str, Sequence[str]]) -> str:
    """The statement as the database gets it.

    Args:
        sql: with macros and variables.
        window: what the time macros say.
        variables: values by name; ``resolution`` is the window's unless given.

    Raises:
        ConfigurationError: a macro or variable is unknown, or ``resolution`` is none of `RESOLUTIONS`.
    """
    values = {"resolution": [window.resolution], **variables}

    def variable(match: re.Match[str]) -> str:
        name, form = match.groups()
        if name not in values:
            raise ConfigurationError(f"the query uses the variable {name!r}, which has no value")
        if form == "sqlstring":
            return ",".join("'" + value.replace("'", "''") + "'" for value in values[name])
        # Raw text goes into the statement as it is, so only this one variable may.
        if form != "raw" or name != "resolution" or list(values[name]) not in [[each] for each in RESOLUTIONS]:
            raise ConfigurationError(
                f"${{{name}:{form}}} with {values[name]}: expected one of {', '.join(RESOLUTIONS)} as resolution"
            )
        return values[name][0]

    # What came out of a variable is never looked at again: a value may look like a macro.
    pieces = _VARIABLE.split(sql)
    plain = [_macros(piece, window) for piece in pieces[::3]]
    filled = [variable(match) for match in _VARIABLE.finditer(sql)]
    return "".join(text + value for text, value in zip(plain, [*filled, ""], strict=True))


def _macros(text: str, window: Window) -> str:
    def macro(match: re.Match[str]) -> str:
        name, argument = match.groups()
        if "(" in argument or "," in argument:
            raise ConfigurationError(f"{match[0]}: Grafana's macros take no calls and no lists; write it out")
        if name == "timeFilter":
            return f"{argument} BETWEEN {_literal(window.start)} AND {_literal(window.end)}"
        if name in {"timeFrom", "timeTo"}:
            return _literal(window.start if name == "timeFrom" else window.end)
        raise ConfigurationError(f"the query uses the macro $__{name}, which is not known here")

    done = _MACRO.sub(macro, text).replace("$__interval", f"{window.interval.total_seconds():.0f}s")
    if left := _LEFT_OVER.search(done):
        raise ConfigurationError(f"the query holds {left[0]}, which is not known here")
    return done


def _literal(moment: datetime) -> str:
    return f"'{moment.astimezone(UTC).isoformat(timespec='microseconds').replace('+00:00', 'Z')}'"
