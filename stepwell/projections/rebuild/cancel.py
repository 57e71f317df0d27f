"""Gives an unfinished rebuild up: by whoever works on it, or in its place."""

import time
from collections.abc import Callable, Sequence

from stepwell.exceptions import RebuildError
from stepwell.projections import queries
from stepwell.projections.database import connect, named_errors
from stepwell.projections.rebuild.hand_over import drop_retired
from stepwell.projections.rebuild.state import give_up, hold, read_status, unfinished

__all__ = ["cancel", "drop_old"]

_PATIENCE_S = 60.0


def cancel(locate: Callable[[], str], patience_s: float = _PATIENCE_S) -> str:
    """End the unfinished rebuild and drop what it made; the generation's name.

    Raises:
        RebuildError: there is none, or it was handed over already, or whoever works on it does not answer in time.
    """
    url = locate()
    with connect(url, application="stepwell rebuild: cancel") as connection, named_errors(url):
        found = unfinished(connection)
        if found is None:
            raise RebuildError("There is no unfinished rebuild to cancel.")
        if found.handed_over:
            raise RebuildError(
                f"{found.generation} was handed over already; only the old tables are left. Drop them by: stepwell db "
                "rebuild --drop-old"
            )
        connection.execute(queries.load("rebuild")["ask_to_cancel"], {"generation": found.generation})
        deadline = time.monotonic() + patience_s
        while True:
            status = read_status(connection)
            if status is None or status.generation != found.generation or status.ended_at is not None:
                drop_retired(connection)
                return found.generation
            try:
                hold(connection)
            except RebuildError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
                continue
            give_up(connection, found.generation)
            drop_retired(connection)
            return found.generation


def drop_old(locate: Callable[[], str]) -> Sequence[str]:
    """Drop generations that are looked at no more; their names.

    Raises:
        RebuildError: a rebuild is running, or something that is not ours is built on the old tables.
    """
    url = locate()
    with connect(url, application="stepwell rebuild: drop old") as connection, named_errors(url):
        hold(connection)
        dropped = drop_retired(connection)
        found = unfinished(connection)
        if found is not None and found.handed_over:
            connection.execute(queries.load("rebuild")["end"], {"generation": found.generation, "step": "done"})
        return dropped
