"""What commands open and must close again: the log and the database in force."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepwell.engine.ports import MessageLog


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


def opened_database(database: str | None = None) -> "contextlib.AbstractContextManager[str]":
    """The URL of ``database``, or of the one in force; an embedded one runs meanwhile."""
    from stepwell.adapters.database import database_url
    from stepwell.settings import get_settings

    return database_url(database or get_settings().database)
