"""The three questions of operations, asked of the database in one go."""

from dataclasses import dataclass
from typing import Any

from psycopg.rows import dict_row

from stepwell.projections import queries
from stepwell.projections.database import connect, named_errors
from stepwell.projections.migrate import require_current

__all__ = ["Overview", "read_overview"]

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Overview:
    """Rows of the views ``running_now``, ``stuck_episodes`` and ``pipeline_lag``, as of one moment.

    ``stuck_after_s``: for how long (s) nothing must have been logged about an attempt for it to count as stuck.
    """

    running: list[Record]
    stuck: list[Record]
    lag: list[Record]
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
            answers = [cursor.execute(sql[name]).fetchall() for name in ("running", "stuck", "lag", "threshold")]
    return Overview(answers[0], answers[1], answers[2], answers[3][0]["value"])
