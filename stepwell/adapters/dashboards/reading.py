"""Ask a database what a dashboard's panels show."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from stepwell.adapters.dashboards.macros import ALL, Window, expand
from stepwell.adapters.dashboards.model import Dashboard, Panel
from stepwell.exceptions import DatabaseError, MigrationError, MissingPartError, NotFoundError
from stepwell.projections.database import Connection, connect, named_errors
from stepwell.redaction import redact_url

try:
    import psycopg
except ImportError as error:
    raise MissingPartError("psycopg is not installed. Run: pip install 'stepwell[postgres]'") from error

__all__ = ["Answer", "Reading", "read_dashboards", "read_panel"]

ROWS_MAX = 20_000
"""So many rows of a panel are taken; the page says where there were more."""

# The one of that very name comes first. One that nobody asked for has only what was set aside of it.
_EPISODES_THAT_BEGIN = """SELECT episode_id FROM stepwell.episodes WHERE starts_with(episode_id, %(begin)s)
UNION SELECT episode_id FROM stepwell.dead_letters WHERE starts_with(episode_id, %(begin)s)
ORDER BY 1 LIMIT 6"""

# Readers cannot see the filters; that there are some shows in how the views are made.
_FILTERED = """SELECT 'security_barrier=true' = ANY(reloptions) AND NOT EXISTS (
    SELECT FROM pg_roles WHERE rolname IN ('stepwell_owner', 'stepwell_writer') AND pg_has_role(oid, 'USAGE'))
FROM pg_class WHERE oid = 'stepwell.verdicts'::regclass"""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a panel's SQL gave.

    Attributes:
        panel: whose.
        rows: in order, each as long as the panel's columns.
        cut: whether there were more rows than `ROWS_MAX`.
        problem: why there are none, in words; empty when all is well.
    """

    panel: Panel
    rows: list[tuple[Any, ...]]
    cut: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """A dashboard with what its panels show.

    Attributes:
        dashboard: which.
        window: the time that it shows.
        chosen: values of its variables by name; `ALL` where nothing was chosen.
        answers: one a panel, in their order.
        filtered: whether row filters decide what we see.
    """

    dashboard: Dashboard
    window: Window
    chosen: dict[str, Sequence[str]]
    answers: list[Answer]
    filtered: bool = False


def read_dashboards(
    url: str,
    dashboards: Sequence[Dashboard],
    spans: Mapping[str, timedelta],
    chosen: Mapping[str, Sequence[str]],
    *,
    resolution: str = "",
    statement_timeout_s: float = 60.0,
) -> list[Reading]:
    """All panels as of one moment: one read-only transaction sees one state of the database.

    A variable of one value (the episode) that was not chosen takes the first that the database offers. An episode may
    be chosen by the beginning of its id.

    Args:
        url: ``postgresql://...``; a role that may read the views is enough.
        dashboards: which.
        spans: by name of the dashboard, how far back from the database's clock.
        chosen: values of variables by name, for all dashboards.
        resolution: one of `macros.RESOLUTIONS`; empty: by the span's length.
        statement_timeout_s: longest time for one panel.

    Raises:
        MigrationError: it has no views of Stepwell.
        NotFoundError: no episode begins as the one that was chosen, or several do.
        DatabaseUnavailableError: no server answers.
        DatabaseError: it refuses us. A panel that fails by itself is told in its `Answer` instead.
    """
    with named_errors(url), connect(url, application="stepwell-dashboard") as connection, connection.transaction():
        # Set for this transaction alone: behind a pooler, or on a server that shares its session, others come after us.
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        connection.execute(
            "SELECT set_config('statement_timeout', %s, true), set_config('TimeZone', 'UTC', true)",
            (str(round(statement_timeout_s * 1000)),),
        )
        if not _first(connection, "SELECT to_regclass('stepwell.success_by_minute') IS NOT NULL"):
            raise MigrationError(f"The database {redact_url(url)} lacks Stepwell's views. Run: stepwell db migrate")
        filtered = bool(_first(connection, _FILTERED))
        now = _first(connection, "SELECT now()")
        if "episode" in chosen:
            chosen = {**chosen, "episode": [_episode(connection, begin) for begin in chosen["episode"]]}
        readings = []
        for dashboard in dashboards:
            window = Window(now - spans[dashboard.name], now, resolution)
            values = {**{each.name: [ALL] for each in dashboard.variables if each.several}, **chosen}
            for variable in dashboard.variables:
                if variable.name not in values:
                    first = _first(connection, expand(variable.sql, window, values))
                    values[variable.name] = [] if first is None else [first]
            answers = [read_panel(connection, dashboard, panel, window, values) for panel in dashboard.panels]
            readings.append(Reading(dashboard, window, values, answers, filtered))
        return readings


def read_panel(
    connection: Connection, dashboard: Dashboard, panel: Panel, window: Window, values: Mapping[str, Sequence[str]]
) -> Answer:
    """What one panel shows; ``connection`` is in a transaction, which outlives a failure here."""
    if any(not values[each.name] for each in dashboard.variables):
        return Answer(panel, [])
    try:
        with connection.transaction():
            cursor = connection.execute(expand(dashboard.sql(panel), window, values))
            rows = cursor.fetchmany(ROWS_MAX + 1)
            names = tuple(column.name for column in cursor.description or ())
    except psycopg.OperationalError as error:
        if connection.closed or error.sqlstate is None:
            raise
        return Answer(panel, [], problem=_words(error))
    except psycopg.Error as error:
        return Answer(panel, [], problem=_words(error))
    if names != panel.names:
        raise DatabaseError(f"panel {dashboard.name}/{panel.query}: its SQL gives {names}, expected {panel.names}")
    return Answer(panel, rows[:ROWS_MAX], cut=len(rows) > ROWS_MAX)


def _episode(connection: Connection, begin: str) -> str:
    """The whole id of the episode that begins so."""
    found: list[str] = [name for (name,) in connection.execute(_EPISODES_THAT_BEGIN, {"begin": begin})]
    if not found:
        raise NotFoundError(
            f"no episode in the database begins with {begin!r}; stepwell episodes lists what the log has"
        )
    if found[0] != begin and len(found) > 1:
        raise NotFoundError(f"several episodes begin with {begin!r}: {', '.join(found[:5])} …; give more of the id")
    return found[0]


def _first(connection: Connection, sql: str) -> Any:
    row = connection.execute(sql).fetchone()
    return None if row is None else row[0]


def _words(error: psycopg.Error) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
