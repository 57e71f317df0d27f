"""Row filters: which rows the views show to which team.

A filter belongs to a role and names runs, policies and requesters by pattern. While there is none, views show all rows
to everybody who may read them. As soon as there is one, every view of a table is made with a condition and a security
barrier: owner and writers see all rows, a reader sees what a filter of one of its roles lets through, and a reader
whom no filter names sees nothing. Views that answer questions are built on those views, so they follow.

What is let through is decided by the episode: a row that names one is seen by whoever sees the episode. Rows that name
a policy only (requests to retrain, sums) are seen where the filter restricts neither runs nor requesters, since such a
row may tell of others' runs. What names neither (machines' telemetry) needs ``fleet``. A series of telemetry, with all
that its sender says of itself, is seen by whoever sees one of its points of an episode, or has ``fleet``.
See docs/decisions/0052-roles-and-row-filters.md.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from psycopg import sql

from stepwell.projections import queries
from stepwell.projections.database import Connection

__all__ = ["RowFilter", "any_filter", "filtered_select", "like", "read_filters", "shell"]

_SHARED = frozenset({"consumer_positions", "rule_sets", "sink_offsets", "worker_partitions", "worker_status"})
"""Tables without anything of an episode or policy in them, which every reader may see. Whatever is not named here and
bears no episode, run or policy is seen with ``fleet`` only."""
_MAY_LACK_EPISODE = frozenset({"dead_letters", "spans", "telemetry_points"})

_ALL = sql.SQL(
    "(SELECT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname IN ('stepwell_owner', 'stepwell_writer')"
    " AND pg_catalog.pg_has_role(r.oid, 'USAGE')))"
)
# Roles by way of the catalogue: a filter whose role was dropped matches nobody, and raises nothing.
_MINE = sql.SQL(
    "SELECT FROM stepwell.row_filters f JOIN pg_catalog.pg_roles r ON r.rolname = f.role"
    " AND pg_catalog.pg_has_role(r.oid, 'USAGE')"
)
_EPISODE = sql.SQL("EXISTS ({mine} WHERE {of}.run_id LIKE f.runs AND {of}.policy LIKE f.policies AND {of}.requested_by LIKE f.requested_by)")  # fmt: skip # noqa: E501
_POLICY = sql.SQL("EXISTS ({mine} WHERE t.policy LIKE f.policies AND f.runs = '%' AND f.requested_by = '%')")
_FLEET = sql.SQL("(SELECT EXISTS ({mine} WHERE f.fleet))").format(mine=_MINE)


@dataclass(frozen=True, slots=True)
class RowFilter:
    """What the members of a role see: rows that fit all patterns (LIKE), and with ``fleet`` those of no episode."""

    role: str
    runs: str = "%"
    policies: str = "%"
    requested_by: str = "%"
    fleet: bool = False


def like(pattern: str) -> str:
    """The LIKE pattern of a shell pattern, in which ``*`` stands for any text and everything else for itself."""
    escaped = pattern.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return escaped.replace("*", "%")


def shell(pattern: str) -> str:
    """The shell pattern of a LIKE pattern that `like` made."""
    return re.sub(r"\\(.)|%", lambda found: found[1] or "*", pattern)


def read_filters(connection: Connection) -> list[RowFilter]:
    """Every filter, by role."""
    return [RowFilter(*row) for row in connection.execute(queries.load("roles")["filters"])]


def any_filter(connection: Connection) -> bool:
    """Whether the views must be made with conditions."""
    return connection.execute(queries.load("roles")["any_filter"]).fetchone() == (True,)


def filtered_select(name: str, columns: Sequence[str], homes: Mapping[str, str]) -> sql.Composed:
    """What a filtered view of a table selects.

    Two branches, of which the one that does not apply costs nothing: who sees all rows pays for no join. The wrapping
    query keeps the planner from taking the branches out of the view's security barrier.

    Args:
        name: the table's name.
        columns: all of its columns.
        homes: of each table, the schema where it lives.
    """
    table = sql.Identifier(homes[name], name)
    listed = sql.SQL(", ").join(map(sql.Identifier, columns))
    if name in _SHARED:
        return sql.SQL("SELECT {} FROM {}").format(listed, table)
    seen = _seen(name, columns, homes)
    conditions = [_ALL, *(sql.SQL("NOT {} AND {}").format(_ALL, each) for each in seen)]
    branches = [sql.SQL("SELECT {} FROM {} t WHERE {}").format(listed, table, each) for each in conditions]
    return sql.SQL("SELECT {} FROM ({}) seen").format(listed, sql.SQL(" UNION ALL ").join(branches))


def _seen(name: str, columns: Sequence[str], homes: Mapping[str, str]) -> list[sql.Composed]:
    """What a filtered reader sees of a table: conditions of which no row fits two."""
    episodes = sql.Identifier(homes["episodes"], "episodes")
    of_episodes = _EPISODE.format(mine=_MINE, of=sql.SQL("e"))
    if name == "episodes":
        return [_EPISODE.format(mine=_MINE, of=sql.SQL("t"))]
    inner = sql.SQL("SELECT e.episode_id FROM {} e WHERE {}").format(episodes, of_episodes)
    if name == "telemetry_series":
        points = sql.Identifier(homes["telemetry_points"], "telemetry_points")
        measured = sql.SQL("SELECT DISTINCT p.series_id FROM {} p WHERE p.episode_id <> '' AND p.episode_id IN ({})")
        # As an array, which is made once a query, and not for each row that is joined.
        mine = sql.SQL("NOT {} AND t.series_id = ANY (ARRAY({}))").format(_FLEET, measured.format(points, inner))
        return [_FLEET, mine]
    if "episode_id" in columns:
        found = [sql.SQL("t.episode_id IN ({})").format(inner)]
        if name in _MAY_LACK_EPISODE:
            found.append(sql.SQL("{} AND coalesce(t.episode_id, '') = ''").format(_FLEET))
        return found
    if "run_id" in columns:
        return [sql.SQL("t.run_id IN (SELECT e.run_id FROM {} e WHERE {})").format(episodes, of_episodes)]
    if "policy" in columns:
        return [_POLICY.format(mine=_MINE)]
    return [_FLEET]
