"""Who may do what in the database: three roles without rights beyond their work, and the users who are given one.

- ``stepwell_owner`` owns schemas, tables, views and functions: migrations, rebuilds, tuning, generated views.
- ``stepwell_writer`` reads and writes the tables of the generations: projectors, ``stepwell verify``.
- ``stepwell_reader`` reads the views of the schemas ``stepwell`` and ``stepwell_views``, and nothing else.

Users who log in are the site's own; `grant` gives one of them a role, and a reader its limits too (a role's settings
are not inherited). Everybody else (PUBLIC) has nothing. What is made later, views and generations, gets its owner and
its grants from `stepwell.projections.access.grants`, once the roles are in use.
See docs/decisions/0052-roles-and-row-filters.md.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
from psycopg import sql

from stepwell.exceptions import ConfigurationError, DatabaseError, NotFoundError
from stepwell.projections import queries
from stepwell.projections.access.grants import in_use, settle
from stepwell.projections.access.row_filters import RowFilter, read_filters
from stepwell.projections.database import Connection, connect, named_errors
from stepwell.projections.schema.files import packaged
from stepwell.projections.schema.migrate import migrating, require_current
from stepwell.projections.schema.public_views import make_views
from stepwell.redaction import redact_url

__all__ = [
    "OWNER",
    "READER",
    "WRITER",
    "Finding",
    "Limits",
    "Member",
    "Overdue",
    "RolesState",
    "apply",
    "cancel_overdue",
    "drop_filter",
    "grant",
    "ignores_users",
    "look",
    "revoke",
    "set_filter",
]

OWNER, WRITER, READER = "stepwell_owner", "stepwell_writer", "stepwell_reader"
_SHORT = {"owner": OWNER, "writer": WRITER, "reader": READER}


@dataclass(frozen=True, slots=True)
class Limits:
    """What readers are held to.

    Attributes:
        statement_s: a statement is ended after so long (s).
        idle_s: a session that sits in an open transaction is ended after so long (s).
    """

    statement_s: float
    idle_s: float

    def settings(self) -> dict[str, str]:
        """As PostgreSQL's parameters."""
        statement, idle = (f"{round(seconds * 1000)}ms" for seconds in (self.statement_s, self.idle_s))
        return {
            "default_transaction_read_only": "on",
            "statement_timeout": statement,
            "lock_timeout": statement,
            "idle_in_transaction_session_timeout": idle,
        }


@dataclass(frozen=True, slots=True)
class Member:
    """A user who may log in and has a role, with what is set for that user."""

    role: str
    user: str
    settings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be: of what, and what."""

    what: str
    problem: str


@dataclass(frozen=True, slots=True)
class RolesState:
    """How a database's roles stand. ``missing``: roles that the server does not have, or this database does not use."""

    missing: tuple[str, ...]
    members: tuple[Member, ...]
    filters: tuple[RowFilter, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Overdue:
    """A reader's session that was over its limit. ``done``: cancelled (its statement) or ended (the session)."""

    pid: int
    user: str
    done: str
    after_s: float


def apply(url: str, *, harden: bool = False) -> None:
    """Make the roles and put them in use in this database. Safe to run again.

    Args:
        url: of a user who may make roles and owns the database, or a superuser.
        harden: also take from everybody but owner and writers PostgreSQL's own functions for advisory locks and large
            objects. For a database that is Stepwell's alone; needs a superuser.

    Raises:
        MigrationError: the schema is not this version's.
        DatabaseError: the user may not do that.
        DatabaseUnavailableError: no server answers.
    """
    sql_ = queries.load("roles")
    with migrating(url) as connection, _told(url), connection.transaction():
        require_current(url, connection)
        connection.execute(sql_["lock"])
        known = {name for (name,) in connection.execute(sql_["known"])}
        for role in (OWNER, WRITER, READER):
            if role not in known:
                # TimescaleDB runs its jobs as the owner of the table, who must be one that may log in. Without a
                # password, no password lets anybody in.
                login = "LOGIN PASSWORD NULL" if role == OWNER else "NOLOGIN"
                connection.execute(sql.SQL("CREATE ROLE {} {}").format(sql.Identifier(role), sql.SQL(login)))
        database, me, superuser = _row(connection.execute(sql_["me"]).fetchone())
        if not superuser:
            connection.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(OWNER), sql.Identifier(me)))
        name = sql.Identifier(database)
        connection.execute(sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(name))
        for rights, role in (
            ("CONNECT, CREATE, TEMPORARY", OWNER),
            ("CONNECT, TEMPORARY", WRITER),
            ("CONNECT", READER),
        ):
            statement = sql.SQL("GRANT {} ON DATABASE {} TO {}")
            connection.execute(statement.format(sql.SQL(rights), name, sql.Identifier(role)))
        connection.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        connection.execute(sql.SQL("GRANT USAGE ON SCHEMA stepwell TO {}").format(sql.Identifier(READER)))
        settle(connection)
        if harden:
            connection.execute(sql_["harden"])


def ignores_users(url: str) -> bool:
    """Whether the server takes every client for its superuser, so that roles and filters limit nobody.

    Raises:
        DatabaseUnavailableError: no server answers.
    """
    with connect(url, application="stepwell roles") as connection, named_errors(url):
        return connection.execute(queries.load("roles")["ignores_users"], {}).fetchone() == (True,)


def look(url: str, limits: Limits) -> RolesState:
    """How the roles stand, and what is not as it should be; changes nothing.

    Raises:
        MigrationError: the schema is not this version's.
        DatabaseError: the user is a reader.
    """
    sql_ = queries.load("roles")
    with connect(url, application="stepwell roles") as connection, named_errors(url):
        require_current(url, connection)
        known = {name for (name,) in connection.execute(sql_["known"])}
        missing = tuple(role for role in (OWNER, WRITER, READER) if role not in known)
        filters = tuple(read_filters(connection))
        members = tuple(
            Member(role, user, tuple(settings)) for role, user, _, settings in connection.execute(sql_["members"])
        )
        if missing or not in_use(connection):
            return RolesState(missing or (OWNER, WRITER, READER), members, filters, ())
        findings = [Finding(*row) for row in connection.execute(sql_["findings"])]
    return RolesState((), members, filters, (*findings, *_of_readers(members, filters, limits)))


def _of_readers(members: tuple[Member, ...], filters: tuple[RowFilter, ...], limits: Limits) -> list[Finding]:
    wanted = {f"{name}={value}" for name, value in limits.settings().items()}
    writing = {member.user for member in members if member.role in (OWNER, WRITER)}
    seeing = {member.user for member in members if member.role in {each.role for each in filters}}
    found = []
    for member in members:
        if member.role != READER or member.user in writing:
            continue
        lacking = sorted(wanted - set(member.settings))
        found += [Finding(f"user {member.user}", f"is a reader without {each}") for each in lacking]
        if filters and member.user not in seeing:
            found.append(Finding(f"user {member.user}", "is a reader whom no row filter names, and sees no rows"))
    return found


def grant(url: str, role: str, user: str, limits: Limits) -> None:
    """Give a user a role, and a reader its limits: like the role itself, in every database of the server.

    Args:
        url: of a member of the owner who may grant, or a superuser.
        role: ``owner``, ``writer``, ``reader``, or a role with a row filter.
        user: who logs in; the site has made it.
        limits: of readers.

    Raises:
        NotFoundError: there is no such role or user.
        ConfigurationError: the user is a superuser, whom no grant limits, or a writer who is to become a reader.
        DatabaseError: we may not grant it.
    """
    sql_ = queries.load("roles")
    with connect(url, application="stepwell roles") as connection, _told(url), connection.transaction():
        connection.execute(sql_["lock"])
        name = _known_role(connection, role)
        found = connection.execute(sql_["role"], {"role": user}).fetchone()
        if found is None:
            raise NotFoundError(
                f"There is no user {user!r}. Make it first: CREATE ROLE \"{user}\" LOGIN PASSWORD '...'"
            )
        if found[0]:
            raise ConfigurationError(f"The user {user!r} is a superuser: no grant limits it. Make another user.")
        reading = name not in (OWNER, WRITER)
        if reading and any(_may(connection, user, each) for each in (OWNER, WRITER)):
            raise ConfigurationError(f"The user {user!r} is an owner or writer, and reads already. Make another user.")
        connection.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(name), sql.Identifier(user)))
        if reading:
            for parameter, value in limits.settings().items():
                connection.execute(_setting(user, "SET {} = {}", parameter, value))


def revoke(url: str, role: str, user: str) -> tuple[str, ...]:
    """Take a role from a user, and from one that is no reader any more its limits.

    Returns:
        Roles by which the user still has the same rights: that of a team, say, whose members are readers. The role
        itself is among them where somebody else has given it, too.

    Raises:
        NotFoundError: there is no such role or user.
    """
    sql_ = queries.load("roles")
    with connect(url, application="stepwell roles") as connection, _told(url), connection.transaction():
        name = _known_role(connection, role)
        if connection.execute(sql_["role"], {"role": user}).fetchone() is None:
            raise NotFoundError(f"There is no user {user!r}")
        connection.execute(sql.SQL("REVOKE {} FROM {}").format(sql.Identifier(name), sql.Identifier(user)))
        if not _may(connection, user, READER):
            for parameter in Limits(0, 0).settings():
                connection.execute(_setting(user, "RESET {}", parameter))
        still = connection.execute(sql_["given_by"], {"user": user, "role": name}).fetchall()
    return tuple(each for (each,) in still)


def set_filter(url: str, wanted: RowFilter) -> None:
    """Set the row filter of a role, which is made a reader, and made at all where it is not there; the views follow.

    Args:
        url: of a member of the owner who may make roles, or a superuser.
        wanted: the filter, in place of the one that the role had.

    Raises:
        ConfigurationError: the roles are not in use, or the role sees all rows (owner, writer) or is the readers' own.
    """
    with _changing_filters(url) as connection:
        _filter_role(connection, wanted.role)
        row = {name: getattr(wanted, name) for name in RowFilter.__dataclass_fields__}
        connection.execute(queries.load("roles")["set_filter"], row)


def drop_filter(url: str, role: str, *, open_all: bool = False) -> None:
    """Drop the row filter of a role; the views follow. While there are other filters, the role sees no rows.

    Args:
        url: of a member of the owner, or a superuser.
        role: whose filter goes.
        open_all: also where it is the last one, without which every reader sees every row.

    Raises:
        ConfigurationError: the roles are not in use, or it is the last filter and nobody said ``open_all``.
        NotFoundError: the role has no filter.
    """
    with _changing_filters(url) as connection:
        if connection.execute(queries.load("roles")["drop_filter"], {"role": role}).rowcount != 1:
            raise NotFoundError(f"The role {role!r} has no row filter. See: stepwell db roles --show")
        if not open_all and not read_filters(connection):
            raise ConfigurationError(
                f"{role} has the last row filter: without one, every reader sees every row. To keep them apart, set "
                "another filter first. If it is meant, say: stepwell db roles --unfilter ROLE --to-all-readers"
            )


@contextlib.contextmanager
def _changing_filters(url: str) -> Iterator[Connection]:
    with migrating(url) as connection, _told(url), connection.transaction():
        connection.execute(queries.load("roles")["lock"])
        if not in_use(connection):
            raise ConfigurationError("The roles are not in use in this database yet. Run: stepwell db roles --apply")
        yield connection
        make_views(connection, packaged().views)


def cancel_overdue(url: str, limits: Limits) -> list[Overdue]:
    """End what readers do beyond their limits, whatever they have set for themselves; what was ended.

    Raises:
        DatabaseError: we may not: it takes a superuser, or a member of pg_signal_backend and pg_read_all_stats.
    """
    with connect(url, application="stepwell roles") as connection, _told(url):
        given = {"statement_s": limits.statement_s, "idle_s": limits.idle_s}
        rows = connection.execute(queries.load("roles")["cancel_overdue"], given).fetchall()
    return [Overdue(pid, user, done, seconds) for pid, user, done, seconds, _ in rows]


@contextlib.contextmanager
def _told(url: str) -> Iterator[None]:
    """Database errors in our words; what a user may not do, with who may."""
    with named_errors(url):
        try:
            yield
        except (psycopg.errors.InsufficientPrivilege, psycopg.errors.ReadOnlySqlTransaction) as error:
            raise DatabaseError(
                f"The user of the database {redact_url(url)} may not do that: {str(error).strip()}. Use a superuser, "
                "or the database's owner with the right to make roles (CREATEROLE)"
            ) from error


def _filter_role(connection: Connection, role: str) -> None:
    if role in (OWNER, WRITER, READER):
        raise ConfigurationError(f"{role} takes no row filter: give one to a role of the team, which --filter makes")
    found = connection.execute(queries.load("roles")["role"], {"role": role}).fetchone()
    if found is None:
        connection.execute(sql.SQL("CREATE ROLE {} NOLOGIN").format(sql.Identifier(role)))
    elif found[0] or _may(connection, role, OWNER) or _may(connection, role, WRITER):
        raise ConfigurationError(f"The role {role!r} is a superuser, owner or writer, who sees all rows")
    connection.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(READER), sql.Identifier(role)))


def _known_role(connection: Connection, role: str) -> str:
    """One of the three, or a team's: no user, and a reader."""
    name = _SHORT.get(role, role)
    found = connection.execute(queries.load("roles")["role"], {"role": name}).fetchone()
    if found is not None and (name in _SHORT.values() or (not found[1] and _may(connection, name, READER))):
        return name
    raise NotFoundError(
        f"There is no role {role!r} of Stepwell's here. owner, writer and reader are made by stepwell db roles --apply,"
        " a team's by stepwell db roles --filter ROLE"
    )


def _may(connection: Connection, user: str, role: str) -> bool:
    found = connection.execute(queries.load("roles")["role"], {"role": role}).fetchone()
    if found is None:
        return False
    return connection.execute(queries.load("roles")["may"], {"user": user, "role": role}).fetchone() == (True,)


def _setting(user: str, action: str, *parts: str) -> sql.Composed:
    parameter, *value = parts
    done = sql.SQL(action).format(sql.Identifier(parameter), *map(sql.Literal, value))
    return sql.SQL("ALTER ROLE {} {}").format(sql.Identifier(user), done)


def _row(row: tuple[object, ...] | None) -> tuple[str, str, bool]:
    assert row is not None
    return row  # type: ignore[return-value]
