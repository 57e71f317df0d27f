"""The projector beside raw COPY of the same rows into the same indexed tables."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg

from benchmarks.logs import fill, new_log
from benchmarks.measure import child
from benchmarks.workload import Workload
from stepwell.adapters.parts.embedded_postgres import EmbeddedPostgres
from stepwell.adapters.parts.timescale import TimescalePart
from stepwell.engine.ports import OutgoingRecord
from stepwell.projections.migrate import migrate

TABLES = ("steps", "actions")


def projector_runs(
    load: Workload, records: Sequence[OutgoingRecord], turns: int, timescale: bool = False
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Both cases in turn, on tables that are emptied before each."""
    with new_log("local") as log, _databases(timescale) as urls:
        fill(log, records)
        for turn in range(turns):
            for case in ("copy", "projector"):
                url = urls[case]
                _empty(url)
                rows = 2 * load.episodes * load.steps
                run = child(case, log=log, database=url, events=load.events, group=f"bench-{turn}", rows=rows)
                _check(url, load)
                yield case, run


@contextmanager
def _databases(timescale: bool) -> Iterator[dict[str, str]]:
    """A migrated database for each case; on TimescaleDB, whose server here holds one, the same for both."""
    if timescale:
        with TimescalePart() as part:
            url = part.start()
            migrate(url)
            yield {"copy": url, "projector": url}
        return
    with tempfile.TemporaryDirectory(prefix="stepwell-bench-") as directory:
        server_url = (server := EmbeddedPostgres(directory)).start()
        try:
            urls = {}
            for case in ("copy", "projector"):
                with psycopg.connect(server_url, autocommit=True) as connection:
                    connection.execute(f"CREATE DATABASE bench_{case}")
                urls[case] = urlunsplit(urlsplit(server_url)._replace(path=f"/bench_{case}"))
                migrate(urls[case])
            yield urls
        finally:
            server.stop(force=True)


def _empty(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        tables = connection.execute("SELECT schemaname, tablename FROM pg_tables WHERE schemaname ~ '^stepwell_g'")
        for schema, table in tables.fetchall():
            connection.execute(f"TRUNCATE {schema}.{table}")
        connection.execute("CHECKPOINT")


def _check(url: str, load: Workload) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for table in TABLES:
            row = connection.execute(f"SELECT count(*) FROM stepwell.{table}").fetchone()
            assert row == (load.episodes * load.steps,), f"{table}: {row}"
