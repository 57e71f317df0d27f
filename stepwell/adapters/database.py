"""From the setting ``database`` to a server that answers."""

import contextlib
from collections.abc import Callable, Iterator

__all__ = ["database_server", "database_url"]

_EMBEDDED = "embedded:"


@contextlib.contextmanager
def database_url(database: str) -> Iterator[str]:
    """The ``postgresql://`` URL behind ``postgresql://...`` or ``embedded:DIR``, for as long as the block lasts.

    The embedded server is started where it does not run, and ended where this block was its last user.

    Raises:
        MissingPartError: the embedded PostgreSQL is not installed.
        DatabaseUnavailableError: it did not come up.
    """
    with database_server(database) as locate:
        yield locate()


@contextlib.contextmanager
def database_server(database: str) -> Iterator[Callable[[], str]]:
    """As `database_url`, for those who stay: what is yielded gives the URL, and is to be asked before each connection.

    It starts an embedded server that died again, and raises `DatabaseUnavailableError` where somebody stopped it.
    """
    if not database.startswith(_EMBEDDED):
        yield lambda: database
        return
    from stepwell.adapters.parts.embedded_postgres import EmbeddedPostgres

    server = EmbeddedPostgres(database.removeprefix(_EMBEDDED))
    try:
        server.start()
        yield server.revive
    finally:
        server.stop()
