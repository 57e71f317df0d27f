"""What the database knows of a rebuild: one row, which a killed one is taken up from.

One process at a time works on it. It holds an advisory lock for as long as its connection lives, and says every second
that it does, because a server that serves all its clients from one backend gives every one of them that lock.
"""

import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from psycopg.types.json import Jsonb

from stepwell import __version__
from stepwell.exceptions import ConfigurationError, RebuildError
from stepwell.projections import queries
from stepwell.projections.access import grants
from stepwell.projections.database import Connection
from stepwell.projections.rebuild.families import Scope, scope_of
from stepwell.projections.schema.files import packaged
from stepwell.projections.schema.generations import BUILDING, Homes, make_generation, read_homes, storage_of_server

__all__ = [
    "RebuildState",
    "RebuildStatus",
    "beat",
    "begin_or_resume",
    "end",
    "enter_step",
    "give_up",
    "hold",
    "note_carried",
    "note_compared",
    "read_status",
    "unfinished",
]  # fmt: skip

_SILENT_AFTER_S = 10.0
"""A runner that has not been heard of for so long is gone."""
_LETTING_GO_S = 2.0
"""A server takes a moment to see that a connection is gone, and its locks with it."""


@dataclass(frozen=True, slots=True)
class RebuildState:
    """The rebuild that is not at its end.

    Attributes:
        generation: what it makes.
        homes: where its tables are.
        scope: what moves.
        handed_over: whether the views show it already; then only the old tables are left to be dropped.
        keep_old: whether they stay.
        made_by: version of Stepwell that began it.
    """

    generation: str
    homes: Homes
    scope: Scope
    handed_over: bool
    keep_old: bool
    made_by: str


@dataclass(frozen=True, slots=True)
class RebuildStatus:
    """The last rebuild, as the database knows it. Times in UTC by its clock; ``seen_s_ago`` in seconds.

    Attributes:
        tables: what it was asked for; None: all.
        carried: rows taken over from the old tables, by table.
        compared: rows that the last comparison found in the old tables, by table.
        differences: what it found to differ, a sentence a table.
    """

    generation: str
    tables: tuple[str, ...] | None
    made_from: str
    step: str
    runner: str
    seen_s_ago: float
    cancel_asked: bool
    keep_old: bool
    carried: Mapping[str, int]
    compared: Mapping[str, int]
    differences: Sequence[str]
    started_at: datetime
    handed_over_at: datetime | None
    ended_at: datetime | None

    @property
    def running(self) -> bool:
        """Whether a process works on it now."""
        return self.ended_at is None and self.seen_s_ago < _SILENT_AFTER_S


def hold(connection: Connection) -> None:
    """Be the only one who works on a rebuild of this database, until the connection ends.

    Raises:
        RebuildError: somebody else does.
    """
    deadline = time.monotonic() + _LETTING_GO_S
    while (found := _other_runner(connection)) is not None:
        if time.monotonic() > deadline:
            raise RebuildError(
                f"A rebuild is running already ({found}). See it with: stepwell db rebuild --status; end it with: "
                "stepwell db rebuild --cancel"
            )
        time.sleep(0.1)


def _other_runner(connection: Connection) -> str | None:
    """Who has what `hold` wants; None: we have it now."""
    sql = queries.load("rebuild")
    row = connection.execute(sql["try_runner_lock"]).fetchone()
    assert row is not None
    held, pid = row
    found = connection.execute(sql["unfinished"]).fetchone()
    if not held:
        return "another process" if found is None else str(found[8])
    shared_backend = found is not None and found[9] == pid
    if not shared_backend or found is None or found[10] >= _SILENT_AFTER_S or found[8] == _runner():
        return None
    connection.execute(sql["runner_unlock"])
    return str(found[8])


def begin_or_resume(
    connection: Connection, tables: Sequence[str] | None, made_from: str, *, keep_old: bool
) -> tuple[RebuildState, bool]:
    """The unfinished rebuild, or a new one; and whether it is taken up from before. Call `hold` first.

    Raises:
        ConfigurationError: no such table, or another rebuild than the one asked for is unfinished.
        RebuildError: an unfinished one was begun by another version of Stepwell.
    """
    sql = queries.load("rebuild")
    found = unfinished(connection)
    if found is None:
        return _begin(connection, tables, made_from, keep_old=keep_old), False
    if not found.handed_over and found.made_by != __version__:
        raise RebuildError(
            f"The unfinished rebuild ({found.generation}) was begun by Stepwell {found.made_by}, whose rows may differ "
            f"from those of this one ({__version__}). Give it up by: stepwell db rebuild --cancel; then begin anew."
        )
    if tables is not None and found.scope.relations != scope_of(tables).relations:
        raise ConfigurationError(
            f"The unfinished rebuild ({found.generation}) is of other tables. Go on with it by: stepwell db rebuild; "
            "or give it up by: stepwell db rebuild --cancel"
        )
    with connection.transaction():
        connection.execute(sql["take_over"], {"generation": found.generation, "runner": _runner()})
        connection.execute(sql["keep_old"], {"generation": found.generation, "keep_old": keep_old})
    return replace(found, keep_old=keep_old), True


def _begin(connection: Connection, tables: Sequence[str] | None, made_from: str, *, keep_old: bool) -> RebuildState:
    sql = queries.load("rebuild")
    scope = scope_of(tables)
    if scope.relations is not None and storage_of_server(connection) != read_homes(connection).storage:
        raise RebuildError(
            "The server keeps large tables in another way than when these were made (TimescaleDB came or went). Views "
            "cannot show both: make all tables again, without --table."
        )
    with connection.transaction():
        connection.execute(sql["lock_migrators_out"])
        asked = None if scope.relations is None else sorted(set(tables or ()))
        made = make_generation(connection, packaged().tables, made_from=made_from, relations=asked)
        (generation,) = made.schemas
        connection.execute(sql["begin"], {"generation": generation, "keep_old": keep_old, "runner": _runner()})
        grants.settle(connection)
    homes = replace(made, relations=scope.relations)
    return RebuildState(generation, homes, scope, handed_over=False, keep_old=keep_old, made_by=__version__)


def unfinished(connection: Connection) -> RebuildState | None:
    """The rebuild that is not at its end; None where there is none."""
    row = connection.execute(queries.load("rebuild")["unfinished"]).fetchone()
    if row is None:
        return None
    generation, storage, state, tables, _, made_by, _, keep_old, *_ = row
    scope = scope_of(tables)
    homes = Homes((generation,), storage, active=False, relations=scope.relations)
    return RebuildState(generation, homes, scope, state != BUILDING, keep_old, made_by)


def beat(connection: Connection, generation: str) -> bool:
    """Say that we live; whether somebody asked to give it up."""
    return connection.execute(queries.load("rebuild")["beat"], {"generation": generation}).fetchone() == (True,)


def enter_step(connection: Connection, generation: str, step: str) -> None:
    """Note how far we are."""
    connection.execute(queries.load("rebuild")["step"], {"generation": generation, "step": step})


def note_carried(connection: Connection, generation: str, carried: Mapping[str, int]) -> None:
    """Note what was taken over from the old tables."""
    values = {"generation": generation, "carried": Jsonb(dict(carried))}
    connection.execute(queries.load("rebuild")["carried"], values)


def note_compared(
    connection: Connection, generation: str, compared: Mapping[str, int], differences: Sequence[str]
) -> None:
    """Note what the comparison found."""
    values = {
        "generation": generation, "compared": Jsonb(dict(compared)), "differences": Jsonb(list(differences)),
    }  # fmt: skip
    connection.execute(queries.load("rebuild")["compared"], values)


def end(connection: Connection, generation: str) -> None:
    """Note that it is done."""
    connection.execute(queries.load("rebuild")["end"], {"generation": generation, "step": "done"})


def give_up(connection: Connection, generation: str) -> None:
    """Note that it is not to be: what it made may be dropped."""
    sql = queries.load("rebuild")
    with connection.transaction():
        connection.execute(sql["retire"], {"generation": generation})
        connection.execute(sql["end"], {"generation": generation, "step": "cancelled"})


def read_status(connection: Connection) -> RebuildStatus | None:
    """The last rebuild; None where there never was one."""
    row = connection.execute(queries.load("rebuild")["last"]).fetchone()
    if row is None:
        return None
    generation, tables, *rest = row
    return RebuildStatus(generation, None if tables is None else tuple(tables), *rest)


def _runner() -> str:
    return f"{platform.node()}, process {os.getpid()}"
