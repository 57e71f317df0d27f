"""Owner and grants of whatever stands in our schemas, once the roles are in use in a database."""

from stepwell.projections import queries
from stepwell.projections.database import Connection

__all__ = ["in_use", "settle"]


def in_use(connection: Connection) -> bool:
    """Whether this database uses the roles: they belong to the server, and may be there for another database."""
    return connection.execute(queries.load("roles")["in_use"]).fetchone() == (True,)


def settle(connection: Connection) -> None:
    """Give everything in our schemas its owner and its grants, in the caller's transaction.

    Call it after views, tables or a generation were made: grants do not come by themselves. Nothing happens where the
    roles are not in use (`stepwell.projections.access.roles.apply`).
    """
    if in_use(connection):
        connection.execute(queries.load("roles")["settle"])
