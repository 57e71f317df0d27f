"""From the setting ``database`` to a server that answers."""

import contextlib
from collections.abc import Iterator

__all__ = ["database_url"]

_EMBEDDED = "embedded:"


@contextlib.contextmanager
def database_url(database: str) -> Iterator[str]:
    """The ``postgresql://`` URL behind ``postgresql://...`` or ``embedded:DIR``, for as long as the block lasts.

    The embedded server is started where it does not run, and ended where this block was its last user.

    Raises:
        MissingPartError: the embedded PostgreSQL is not installed.
        DatabaseUnavailableError: it did not come up.
    """
    if not database.startswith(_EMBEDDED):
        yield database
        return
    from stepwell.adapters.parts.embedded_postgres import EmbeddedPostgres

    server = EmbeddedPostgres(database.removeprefix(_EMBEDDED))
    try:
        yield server.start()
    finally:
        server.stop()
