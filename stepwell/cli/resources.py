"""What commands open and must close again: the log and the database in force."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from stepwell.exceptions import LogUnavailableError, NotFoundError
from stepwell.redaction import redact_url

if TYPE_CHECKING:
    from stepwell.engine.ports import MessageLog
    from stepwell.events.codec import Codec


@contextlib.contextmanager
def opened_log(url: str | None = None, *, must_exist: bool = False) -> "Iterator[MessageLog]":
    """The log at ``url``, or the one in force. ``must_exist``: for commands that only read, which should not make one.

    Raises:
        NotFoundError: ``must_exist``, and there is no log.
        LogUnavailableError: the block found it away; the message names it, which those of Kafka's client do not.
    """
    from stepwell.adapters.logs import open_log
    from stepwell.settings import get_settings

    url = url or get_settings().log
    if must_exist and url.startswith("local:"):
        directory = Path(url.removeprefix("local:"))
        if not (directory / "log.db").is_file():
            raise NotFoundError(
                f"no log at {directory}; STEPWELL_HOME or STEPWELL_LOG may point elsewhere (stepwell config shows it),"
                " or nothing has run yet (stepwell run makes a log)"
            )
    log = open_log(url)
    try:
        yield log
    except LogUnavailableError as error:
        if type(error) is not LogUnavailableError:
            raise
        raise LogUnavailableError(f"The log {redact_url(url)} is not available: {error}") from error
    finally:
        log.close()


def codec_in_force(*, writing: bool = False) -> "Codec":
    """The codec of the log in force: with the ids of the schema registry, where one is set.

    Args:
        writing: look up the ids of all schemas now, for a command that writes events.

    Raises:
        SchemaRegistryError, SchemaRegistryUnavailableError: as `stepwell.adapters.registry.open_codec`.
    """
    from stepwell.adapters.registry import open_codec
    from stepwell.settings import get_settings

    settings = get_settings()
    return open_codec(settings.schema_registry, settings.schema_registry_credentials(), writing=writing)


def opened_database(database: str | None = None) -> "contextlib.AbstractContextManager[str]":
    """The URL of ``database``, or of the one in force; an embedded one runs meanwhile."""
    from stepwell.adapters.database import database_url
    from stepwell.settings import get_settings

    return database_url(database or get_settings().database)
