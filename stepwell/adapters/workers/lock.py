"""One ``stepwell work`` a home and log: two would throw each other's workers out by turns."""

import contextlib
import fcntl
import hashlib
from collections.abc import Iterator
from pathlib import Path

from stepwell.exceptions import ConfigurationError


@contextlib.contextmanager
def hold_workers(home: Path, log_url: str) -> Iterator[None]:
    """Hold the place of the one process that supervises the workers of a log from this home.

    Raises:
        ConfigurationError: another process holds it, or the directory cannot be written.
    """
    directory = home / "workers"
    # A digest: an address may be long, or hold what is no file name.
    path = directory / f"work-{hashlib.sha256(log_url.encode()).hexdigest()[:16]}.lock"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = path.open("a", encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be written: {error.strerror}; set STEPWELL_HOME") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(
                f"another `stepwell work` runs on this log from {home}, and its workers do the work already; stop it "
                "first, or give it more engines (--engines N)"
            ) from None
        except OSError as error:
            raise ConfigurationError(
                f"{path}: cannot be locked: {error.strerror}; set STEPWELL_HOME to a directory on a local disk"
            ) from None
        yield
