"""Names of the database's errors."""

import psycopg
import pytest

from stepwell.exceptions import ConfigurationError, DatabaseError, DatabaseUnavailableError
from stepwell.projections import queries
from stepwell.projections.database import connect, named_errors
from stepwell.projections.schema.files import packaged
from stepwell.projections.tables import KINDS

URL = "postgresql://u:secret@127.0.0.1:1/x"


class _UndefinedChunk(psycopg.DatabaseError):
    """A state of TimescaleDB's own, which psycopg has no class for."""

    sqlstate = "TS003"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (psycopg.OperationalError("server closed the connection"), DatabaseUnavailableError),
        (psycopg.errors.AdminShutdown("terminating"), DatabaseUnavailableError),
        (psycopg.errors.CrashShutdown("terminating"), DatabaseUnavailableError),
        (psycopg.errors.CannotConnectNow("starting up"), DatabaseUnavailableError),
        (psycopg.errors.QueryCanceled("statement timeout"), DatabaseUnavailableError),
        (psycopg.errors.DeadlockDetected("deadlock"), DatabaseUnavailableError),
        (psycopg.errors.SerializationFailure("serialise"), DatabaseUnavailableError),
        (psycopg.errors.LockNotAvailable("lock timeout"), DatabaseUnavailableError),
        (psycopg.errors.DiskFull("no space left"), DatabaseUnavailableError),
        (psycopg.errors.TooManyConnections("too many"), DatabaseUnavailableError),
        (psycopg.errors.ConfigurationLimitExceeded("tuple decompression limit exceeded"), DatabaseError),
        (psycopg.errors.IdleInTransactionSessionTimeout("idle"), DatabaseUnavailableError),
        (psycopg.errors.InvalidPassword("no"), DatabaseError),
        (psycopg.OperationalError('FATAL: password authentication failed for user "u"'), DatabaseError),
        (psycopg.errors.UndefinedObject("chunk not found\nDETAIL:  id: 2"), DatabaseUnavailableError),
        (_UndefinedChunk('table "_hyper_1_2_chunk" is not a chunk'), DatabaseUnavailableError),
        (psycopg.errors.UndefinedTable('relation "_t._hyper_1_22_chunk" does not exist'), DatabaseUnavailableError),
        (psycopg.errors.UndefinedTable("chunk with ID 7 does not exist"), DatabaseUnavailableError),
        (psycopg.errors.InternalError_("could not open relation with OID 17157"), DatabaseUnavailableError),
        (psycopg.errors.UndefinedTable('relation "steps" does not exist'), DatabaseError),
        (psycopg.errors.UndefinedObject('type "chunks" does not exist'), DatabaseError),
        (psycopg.errors.InternalError_("invalid page in block 3"), DatabaseError),
        (psycopg.errors.UndefinedTable("no such table"), DatabaseError),
        (psycopg.errors.InsufficientPrivilege("denied"), DatabaseError),
    ],
)
def test_errors_are_named_and_hide_the_password(error: psycopg.Error, kind: type[DatabaseError]) -> None:
    with pytest.raises(DatabaseError) as raised, named_errors(URL):
        raise error
    assert type(raised.value) is kind
    assert "secret" not in str(raised.value)
    assert "127.0.0.1:1" in str(raised.value)


@pytest.mark.parametrize("kind", [psycopg.errors.InsufficientPrivilege, psycopg.errors.ReadOnlySqlTransaction])
def test_what_a_user_may_not_do_names_the_role_that_may(kind: type[psycopg.Error]) -> None:
    with pytest.raises(DatabaseError, match=r"stepwell_owner .* migrates, rebuilds, tunes"), named_errors(URL):
        raise kind("permission denied for database x")
    with pytest.raises(DatabaseError) as raised, named_errors(URL):
        raise psycopg.errors.UndefinedTable("no such table")
    assert "stepwell_owner" not in str(raised.value)


def test_nobody_listens() -> None:
    with pytest.raises(DatabaseUnavailableError, match=r"127\.0\.0\.1"):
        connect(URL, application="test")


def test_a_url_that_is_none() -> None:
    with pytest.raises(ConfigurationError, match="Write postgresql://"):
        connect("postgresql://h:1/x?nonsense=1", application="test")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:se%zzcret@h/x", "postgresql://u:se cret@h/x", "postgresql://u:se@cret@127.0.0.1:1/x",
        "postgresql://u:se/cret@127.0.0.1:1/x", "postgresql://u@h/x?password=se cret", "host=h password='se cret",
        "host=h password=se cret", "postgresql://u:secret@h:se/x",
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_url_is_not_said_in_words_of_its_password(url: str) -> None:
    """libpq quotes what it stumbles over, and takes the rest of a password for a host or a port."""
    with pytest.raises(ConfigurationError, match="%40 for @") as raised:
        connect(url, application="test", connect_timeout_s=1)
    assert "cret" not in str(raised.value)
    assert raised.value.__cause__ is raised.value.__context__ is None, "a traceback shows those, too"


def test_a_server_that_says_the_password_is_not_repeated() -> None:
    with pytest.raises(DatabaseUnavailableError) as raised, named_errors("postgresql://u:p%40ss@h/x"):
        raise psycopg.OperationalError("no answer from h with p@ss")
    assert str(raised.value) == "The database postgresql://u:***@h/x is not available: no answer from h with ***"


def test_every_merge_has_its_query() -> None:
    known = queries.load("projector")
    assert {kind.merge for kind in KINDS.values() if kind.merge} <= set(known)


def test_packaged_migrations_are_numbered_without_a_hole() -> None:
    for files in (packaged().control, packaged().tables):
        assert sorted({file.version for file in files}) == list(range(1, len({file.version for file in files}) + 1))
