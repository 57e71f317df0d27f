"""What a dashboard is made of. The same definition makes Grafana's panel and the figure of the static page.

The shape of a panel's rows follows from its kind:

========== =====================================================================================================
kind       rows
========== =====================================================================================================
stat       one row; each column is a tile
table      any rows; each column is shown as it is declared
time       ``time`` (timestamptz, ascending), ``metric`` (text, the series), ``value`` (double precision)
trend      the first column is the x axis (ascending), each further one a line
interval   label, point, low, high; further columns are shown beside them
matrix     row, column, value: one coloured cell each
========== =====================================================================================================
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from stepwell.exceptions import StepwellError
from stepwell.projections.queries import load

__all__ = ["Column", "Dashboard", "Kind", "Level", "Panel", "PromQuery", "Threshold", "Unit", "Variable"]

Kind = Literal["stat", "table", "time", "trend", "interval", "matrix"]
Level = Literal["good", "warn", "bad"]
Unit = Literal["text", "id", "moment", "count", "number", "ratio", "s", "/s", "By", "By/s", "Cel", "W", "N.m", "A"]
"""UCUM codes where there is one; ``id`` is text that people copy, ``ratio`` runs from 0 to 1, ``moment`` is a time."""

WIDTH_MAX = 24
"""Columns of the grid that panels are laid out on, as Grafana's."""
TIME_COLUMNS = ("time", "metric", "value")


@dataclass(frozen=True, slots=True)
class Threshold:
    """From ``value`` on (in the panel's unit) the colour of ``level`` holds."""

    value: float
    level: Level


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a panel's rows.

    Attributes:
        name: as the SQL calls it.
        title: as people read it.
        unit: decides how values are written.
        thresholds: colours of numbers, ascending; what lies below the first is plain.
        words: colours of texts that mean something good or bad.
        leads_to: name of the variable that this column's values fill on the dashboard `Dashboard.name` ``leads_where``.
        leads_where: that dashboard.
    """

    name: str
    title: str
    unit: Unit = "text"
    thresholds: tuple[Threshold, ...] = ()
    words: Mapping[str, Level] = field(default_factory=dict)
    leads_to: str = ""
    leads_where: str = ""


@dataclass(frozen=True, slots=True)
class PromQuery:
    """What Grafana asks Prometheus instead of the database.

    Attributes:
        expression: PromQL.
        legend: Grafana's template of a series' name, e.g. ``{{consumer}}``.
    """

    expression: str
    legend: str


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One panel.

    Attributes:
        query: name of the SQL entry in the dashboard's file, and the panel's anchor on the page.
        title: a few words.
        about: what it shows and how to read it; plain sentences.
        kind: decides the shape of the rows; see the module.
        columns: in the order of the SQL's columns. Those of a ``time`` panel are fixed and left out.
        unit: of the values of ``time`` and ``matrix`` panels.
        thresholds: of the same values.
        prometheus: asked by Grafana instead of the SQL, which then is the page's equivalent.
        width: of `WIDTH_MAX`.
        height: in Grafana's grid rows (30 px).
        stacked: bars on each other rather than lines.
        maximum: upper end of the value axis; None: as the data has it.
        colours: series or column name to level, where a name means something good or bad.
    """

    query: str
    title: str
    about: str
    kind: Kind
    columns: tuple[Column, ...] = ()
    unit: Unit = "number"
    thresholds: tuple[Threshold, ...] = ()
    prometheus: tuple[PromQuery, ...] = ()
    width: int = 12
    height: int = 8
    stacked: bool = False
    maximum: float | None = None
    colours: Mapping[str, Level] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns that the SQL gives."""
        return TIME_COLUMNS if self.kind == "time" else tuple(column.name for column in self.columns)


@dataclass(frozen=True, kw_only=True)
class Variable:
    """What a reader can choose; the SQL refers to it as ``${name:sqlstring}``.

    Attributes:
        name: in SQL and in links.
        label: as people read it.
        query: SQL entry of ``variables.sql`` that lists the values, best first.
        several: more than one value, or all of them (then the SQL sees ``'*'``).
    """

    name: str
    label: str
    query: str
    several: bool = True

    @property
    def sql(self) -> str:
        return load("variables", __package__)[self.query]


@dataclass(frozen=True, kw_only=True)
class Dashboard:
    """A page of panels that answer one circle of questions.

    Attributes:
        name: also that of its file in ``sql/``; ``stepwell-NAME`` is Grafana's uid.
        title: a few words.
        about: whom it serves and with what.
        panels: from the top left to the bottom right.
        variables: what can be chosen.
        since: how far back it looks unless told otherwise, as in ``24h``.
    """

    name: str
    title: str
    about: str
    panels: tuple[Panel, ...]
    variables: tuple[Variable, ...] = ()
    since: str = "24h"

    def sql(self, panel: Panel) -> str:
        """The panel's SQL, with Grafana's macros and variables in it."""
        entries = load(self.name, __package__)
        if panel.query not in entries:
            raise StepwellError(f"dashboard {self.name}: sql/{self.name}.sql has no entry {panel.query!r}")
        return entries[panel.query]

    @cached_property
    def resolved(self) -> bool:
        """Whether any panel reads views by minute, hour or day, so that the resolution can be chosen."""
        return any("${resolution:raw}" in self.sql(panel) for panel in self.panels)
