"""What commands open and must close again: the log and the database in force."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepwell.engine.ports import MessageLog
    from stepwell.settings import Settings


@contextlib.contextmanager
def opened_log(url: str | None = None) -> "Iterator[MessageLog]":
    """The log at ``url``, or the one in force."""
    from stepwell.adapters.logs import open_log
    from stepwell.settings import get_settings

    log = open_log(url or get_settings().log)
    try:
        yield log
    finally:
        log.close()


@contextlib.contextmanager
def opened_database(settings: "Settings | None" = None) -> Iterator[str]:
    """The URL of the database in force; an embedded one runs meanwhile."""
    from stepwell.settings import get_settings

    database = (settings or get_settings()).database
    if not database.startswith("embedded:"):
        yield database
        return
    from stepwell.adapters.parts.embedded_postgres import EmbeddedPostgres

    server = EmbeddedPostgres(database.removeprefix("embedded:"))
    try:
        yield server.start()
    finally:
        server.stop()
