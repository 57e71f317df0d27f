"""Write the dashboards as Grafana's JSON: ``python compose/grafana/make.py``.

The panels are defined in ``stepwell/adapters/dashboards``; nothing here decides what is asked or what it means. Run it
after each change there; a test compares the files with what this would write.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import cast

from grafana_foundation_sdk.builders import common as viz
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.builders import prometheus, stat, table, timeseries, trend
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.variants import Dataquery
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.table import Options as TableOptions

from stepwell.adapters.dashboards.catalogue import DASHBOARDS
from stepwell.adapters.dashboards.macros import POINTS_MAX, RESOLUTIONS
from stepwell.adapters.dashboards.model import WIDTH_MAX, Column, Dashboard, Panel, Threshold, Unit, Variable

FOLDER = Path(__file__).parent / "dashboards"
DATABASE = model.DataSourceRef("grafana-postgresql-datasource", "stepwell-database")
PROMETHEUS = model.DataSourceRef("prometheus", "stepwell-prometheus")

UNITS: dict[Unit, str] = {
    "text": "string", "id": "string", "moment": "dateTimeAsIso", "count": "none", "number": "short",
    "ratio": "percentunit", "s": "s", "/s": "suffix:/s", "By": "bytes", "By/s": "binBps", "Cel": "celsius", "W": "watt",
    "N.m": "suffix: N·m", "A": "amp",
}  # fmt: skip
COLOURS = {"good": "green", "warn": "orange", "bad": "red"}

AnyPanel = timeseries.Panel | trend.Panel | stat.Panel | table.Panel


class SqlQuery(Dataquery, Builder[Dataquery]):
    """A query of Grafana's PostgreSQL data source, for which the SDK has no type."""

    def __init__(self, sql: str, *, over_time: bool) -> None:
        self._sql = sql
        self._format = "time_series" if over_time else "table"

    def build(self) -> Dataquery:
        return self

    def to_json(self) -> dict[str, object]:
        return {
            "refId": "A", "datasource": DATABASE, "editorMode": "code", "format": self._format, "rawQuery": True,
            "rawSql": self._sql,
        }  # fmt: skip


def dashboard_json(dashboard: Dashboard) -> str:
    """The file's text."""
    made = (
        build.Dashboard(dashboard.title)
        .uid(uid_of(dashboard.name))
        .description(dashboard.about)
        .tags(["stepwell"])
        .readonly()
        .timezone("utc")
        .time(f"now-{dashboard.since}", "now")
        .refresh("1m")
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .link(build.DashboardLink("Stepwell").type(model.DashboardLinkType.DASHBOARDS).tags(["stepwell"])
              .as_dropdown(True).keep_time(True).include_vars(True))
    )  # fmt: skip
    for chosen in dashboard.variables:
        made = made.with_variable(_query_variable(chosen))
    if dashboard.resolved:
        made = made.with_variable(_resolution("hour" if dashboard.since in {"6h", "24h", "7d"} else "day"))
    for number, (panel, place) in enumerate(zip(dashboard.panels, _places(dashboard.panels), strict=True), 1):
        made = made.with_panel(_panel(dashboard, panel).id(number).grid_pos(place))
    content = json.loads(json.dumps(made.build(), cls=JSONEncoder))
    del content["style"]  # of old versions: today each reader chooses light or dark
    for variable in content["templating"].get("list", []):
        # Written by the SDK for every variable, known to Grafana for none or for those of other kinds only.
        for name in ("id", "auto", "auto_min", "auto_count"):
            variable.pop(name, None)
        if variable["includeAll"]:
            # Grafana puts it into the SQL as it is, so the quotes belong to it.
            variable["allValue"] = "'*'"
    return json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def uid_of(name: str) -> str:
    """Grafana's id of a dashboard; stands in links."""
    return f"stepwell-{name}"


def _query_variable(variable: Variable) -> build.QueryVariable:
    made = (
        build.QueryVariable(variable.name)
        .label(variable.label)
        .datasource(DATABASE)
        .query(variable.sql)
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.DISABLED)
        .multi(variable.several)
        .include_all(variable.several)
    )
    if variable.several:
        made = made.current(model.VariableOption(True, ["All"], ["$__all"]))
    return made


def _resolution(chosen: str) -> build.CustomVariable:
    options = [model.VariableOption(name == chosen, name, name) for name in RESOLUTIONS]
    return (
        build.CustomVariable("resolution")
        .label("Resolution")
        .values(",".join(RESOLUTIONS))
        .options(options)
        .current(model.VariableOption(True, chosen, chosen))
    )


def _places(panels: Iterable[Panel]) -> Iterable[model.GridPos]:
    """From left to right; a new row where the next panel does not fit."""
    x = y = height = 0
    for panel in panels:
        if x + panel.width > WIDTH_MAX:
            x, y, height = 0, y + height, 0
        yield model.GridPos(panel.height, panel.width, x, y)
        x, height = x + panel.width, max(height, panel.height)


def _panel(dashboard: Dashboard, panel: Panel) -> AnyPanel:
    if panel.prometheus or panel.kind == "time":
        made: AnyPanel = _over_time(panel)
    elif panel.kind == "trend":
        made = _trend(panel)
    elif panel.kind == "stat":
        made = _stat(panel)
    else:
        made = _matrix(panel) if panel.kind == "matrix" else _table(panel)
    made = made.title(panel.title).description(panel.about)
    if not panel.prometheus:
        if panel.kind == "time":
            made = made.max_data_points(POINTS_MAX)
        return made.datasource(DATABASE).with_target(SqlQuery(dashboard.sql(panel), over_time=panel.kind == "time"))
    made = made.datasource(PROMETHEUS)
    for letter, query in zip("ABCD", panel.prometheus, strict=False):
        asked = prometheus.Dataquery().expr(query.expression).legend_format(query.legend).ref_id(letter)
        made = made.with_target(asked.datasource(PROMETHEUS))
    return made


def _over_time(panel: Panel) -> timeseries.Panel:
    made = (
        timeseries.Panel()
        .unit(UNITS[panel.unit])
        .min(0)
        .line_width(2)
        .fill_opacity(60 if panel.stacked else 8)
        .show_points(common.VisibilityMode.NEVER if panel.stacked else common.VisibilityMode.AUTO)
        .color_scheme(build.FieldColor().mode(model.FieldColorModeId.PALETTE_CLASSIC_BY_NAME))
        .legend(
            viz.VizLegendOptions().display_mode(common.LegendDisplayMode.TABLE).show_legend(True)
            .placement(common.LegendPlacement.BOTTOM)
            .calcs(["sum"] if panel.stacked else ["lastNotNull", "mean", "max"])
        )
        .tooltip(viz.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING))
    )  # fmt: skip
    if panel.maximum is not None:
        made = made.max(panel.maximum)
    if panel.stacked:
        made = made.draw_style(common.GraphDrawStyle.BARS).stacking(
            viz.StackingConfig().mode(common.StackingMode.NORMAL).group("A")
        )
    if panel.thresholds:
        made = made.thresholds(_thresholds(panel.thresholds)).thresholds_style(
            viz.GraphThresholdsStyleConfig().mode(common.GraphTresholdsStyleMode.DASHED)
        )
    for name, level in panel.colours.items():
        fixed = model.FieldColor(model.FieldColorModeId.FIXED, COLOURS[level])
        made = made.override_by_name(name, [model.DynamicConfigValue("color", fixed)])
    return made


def _trend(panel: Panel) -> trend.Panel:
    first, *lines = panel.columns
    made = (
        trend.Panel()
        .x_field(first.name)
        .unit(UNITS[panel.unit])
        .line_width(2)
        .legend(viz.VizLegendOptions().show_legend(len(lines) > 1).display_mode(common.LegendDisplayMode.LIST)
                .placement(common.LegendPlacement.BOTTOM).calcs([]))
        .tooltip(viz.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.NONE))
    )  # fmt: skip
    for column in panel.columns:
        made = made.override_by_name(column.name, _properties(column))
    return made


def _stat(panel: Panel) -> stat.Panel:
    made = (
        stat.Panel()
        .reduce_options(viz.ReduceDataOptions().values(False).calcs(["lastNotNull"]).fields("/.*/"))
        .graph_mode(common.BigValueGraphMode.NONE)
        .color_mode(common.BigValueColorMode.VALUE)
        .text_mode(common.BigValueTextMode.VALUE_AND_NAME)
        .orientation(common.VizOrientation.VERTICAL)
        .no_value("–")
        .thresholds(_thresholds(()))
    )
    for column in panel.columns:
        made = made.override_by_name(column.name, _properties(column))
    return made


class _TablePanel(table.Panel):
    """A table without the footer that the SDK always writes and newer versions of Grafana no longer have."""

    def build(self) -> model.Panel:
        made = super().build()
        cast(TableOptions, made.options).footer = None
        return made


def _table(panel: Panel) -> table.Panel:
    made = _TablePanel().show_header(True).cell_height(common.TableCellHeight.SM).no_value("")
    made = made.thresholds(_thresholds(()))
    for place, column in enumerate(panel.columns):
        properties = _properties(column)
        if column.thresholds or column.words:
            properties.append(model.DynamicConfigValue("custom.cellOptions", {"type": "color-text"}))
        if panel.kind == "interval" and place == 1:
            gauge = {"type": "gauge", "mode": "basic", "valueDisplayMode": "text"}
            properties += [
                model.DynamicConfigValue("custom.cellOptions", gauge),
                model.DynamicConfigValue("min", 0),
                model.DynamicConfigValue("max", panel.maximum or 1),
            ]
        made = made.override_by_name(column.name, properties)
    return made


def _matrix(panel: Panel) -> table.Panel:
    row, column, value = (each.name for each in panel.columns)
    # Rates go from red to green; of counts, which all are of failures, many are bad.
    scheme = model.FieldColorModeId.CONTINUOUS_RD_YL_GR if panel.maximum else model.FieldColorModeId.CONTINUOUS_YL_RD
    turned = {"rowField": row, "columnField": column, "valueField": value, "emptyValue": "empty"}
    made = (
        _TablePanel()
        .show_header(True)
        .cell_height(common.TableCellHeight.SM)
        .unit(UNITS[panel.unit])
        .min(0)
        .color_scheme(build.FieldColor().mode(scheme))
        .no_value("")
        .with_transformation(model.DataTransformerConfig("groupingToMatrix", options=turned))
        .override_by_field_type(
            "number", [model.DynamicConfigValue("custom.cellOptions", {"type": "color-background", "mode": "basic"})]
        )
    )
    return made if panel.maximum is None else made.max(panel.maximum)


def _properties(column: Column) -> list[model.DynamicConfigValue]:
    """How a column is named, written, coloured and linked."""
    made = [
        model.DynamicConfigValue("displayName", column.title),
        model.DynamicConfigValue("unit", UNITS[column.unit]),
    ]
    if column.thresholds:
        made.append(model.DynamicConfigValue("thresholds", _thresholds(column.thresholds).build()))
    if column.words:
        coloured = {word: model.ValueMappingResult(color=COLOURS[level]) for word, level in column.words.items()}
        made.append(model.DynamicConfigValue("mappings", [model.ValueMap(options=coloured)]))
    if column.leads_where:
        chosen = f"var-{column.leads_to}=${{__value.raw:percentencode}}"
        url = f"/d/{uid_of(column.leads_where)}?{chosen}&${{__url_time_range}}"
        link = {"title": f"Open {column.leads_where}", "url": url}
        made.append(model.DynamicConfigValue("links", [link]))
    return made


def _thresholds(steps: Iterable[Threshold]) -> build.ThresholdsConfig:
    plain = model.Threshold(None, "text")
    coloured = [model.Threshold(step.value, COLOURS[step.level]) for step in steps]
    return build.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps([plain, *coloured])


def write(folder: Path = FOLDER) -> None:
    """Write every dashboard; files of dashboards that are no more go away."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {folder / f"{dashboard.name}.json": dashboard_json(dashboard) for dashboard in DASHBOARDS}
    for path in set(folder.glob("*.json")) - set(wanted):
        path.unlink()
    for path, text in wanted.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
