"""The projector beside raw COPY of the same rows into the same indexed tables."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from benchmarks.logs import fill, new_log
from benchmarks.measure import child
from benchmarks.workload import Workload
from stepwell.adapters.parts.embedded_postgres import EmbeddedPostgres
from stepwell.adapters.parts.timescale import TimescalePart
from stepwell.engine.ports import OutgoingRecord
from stepwell.projections.schema.generations import read_homes
from stepwell.projections.schema.migrate import migrate

TABLES = ("steps", "actions")
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "copy": ("copy", {}),
    "projector": ("projector", {}),
    "projector, record by record": ("projector", {"columns_from": 10**9}),
}
"""What is run under which name: the case, which is also the name of its database, and what it is told."""


def projector_runs(
    load: Workload, records: Sequence[OutgoingRecord], turns: int, timescale: bool = False
) -> Iterator[tuple[str, dict[str, Any]]]:
    """All cases in turn, on tables that are emptied before each."""
    with new_log("local") as log, databases(timescale) as urls:
        fill(log, records)
        for turn in range(turns):
            for number, (name, (case, more)) in enumerate(CASES.items()):
                url = urls[case]
                _empty(url)
                rows = 2 * load.episodes * load.steps
                group = f"bench-{turn}-{number}"
                run = child(case, log=log, database=url, events=load.events, group=group, rows=rows, **more)
                _check(url, load)
                yield name, run


@contextmanager
def databases(timescale: bool) -> Iterator[dict[str, str]]:
    """A migrated database for each case, ``copy`` and ``projector``.

    On TimescaleDB, whose server here holds one, it is the same for both.
    """
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
    """Every table of the generation, positions and rollups among them."""
    with psycopg.connect(url, autocommit=True) as connection:
        (schema,) = read_homes(connection).schemas
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (schema,)).fetchall()
        for (table,) in tables:
            connection.execute(sql.SQL("TRUNCATE {}").format(sql.Identifier(schema, table)))
        connection.execute("CHECKPOINT")


def _check(url: str, load: Workload) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for table in TABLES:
            row = connection.execute(f"SELECT count(*) FROM stepwell.{table}").fetchone()
            assert row == (load.episodes * load.steps,), f"{table}: {row}"
