"""The three questions of operations, asked of the database in one go."""

from dataclasses import dataclass
from typing import Any

from psycopg.rows import dict_row

from stepwell.projections import queries
from stepwell.projections.database import connect, named_errors
from stepwell.projections.schema.migrate import require_current

__all__ = ["Overview", "read_overview"]

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Overview:
    """What the database says, in one snapshot.

    Attributes:
        freshness: the row of ``projection_freshness``: as of when all this holds.
        running, stuck: rows of the views ``running_now`` and ``stuck_episodes``.
        lag: rows of the view ``pipeline_lag``, the worst first.
        dead_letters: how many (``count``), and when the newest was logged (``newest_at``, ``newest_s_ago``).
        requests: how many triggers (``count``) stand as open, acknowledged, accepted or muted (``status``).
        parked_rules: rules that failed since rules were activated last (``rule``), on how many records (``count``).
        workers: rows of the view ``workers``, the worst first, with the ages of the last error and the last progress
            (s); those that were stopped a day ago and more are left out.
        upkeep: the row of ``upkeep``: how the tables are kept (``storage``), and when upkeep was done last by command
            (``ended_at``, ``ended_s_ago``; None: never).
        stuck_after_s: for how long (s) nothing must have been logged about an attempt for it to count as stuck.
    """

    freshness: Record
    running: list[Record]
    stuck: list[Record]
    lag: list[Record]
    dead_letters: Record
    requests: list[Record]
    parked_rules: list[Record]
    workers: list[Record]
    upkeep: Record
    stuck_after_s: float


def read_overview(url: str) -> Overview:
    """Read it in one snapshot of the database.

    Raises:
        MigrationError: the schema is not this version's.
        DatabaseUnavailableError: no server answers.
    """
    sql = queries.load("status")
    with connect(url, application="stepwell status", statement_timeout_s=60) as connection, named_errors(url):
        require_current(url, connection)
        with connection.transaction(), connection.cursor(row_factory=dict_row) as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            found = {name: cursor.execute(statement).fetchall() for name, statement in sql.items()}
    return Overview(
        freshness=found["freshness"][0],
        running=found["running"],
        stuck=found["stuck"],
        lag=found["lag"],
        dead_letters=found["dead_letters"][0],
        requests=found["requests"],
        parked_rules=found["parked_rules"],
        workers=found["workers"],
        upkeep=found["upkeep"][0],
        stuck_after_s=found["threshold"][0]["value"],
    )
