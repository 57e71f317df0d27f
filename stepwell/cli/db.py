"""``stepwell db``: the database's schema, its URL, and the embedded server."""

import json
import sys
from typing import Annotated

import typer

from stepwell.cli import db_rebuild, db_roles, db_tune, db_views
from stepwell.cli.resources import opened_database
from stepwell.cli.tables import console, plain_table

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(no_args_is_help=True, help="The database: its schema, roles and views, its URL, its server.")
    group.command("migrate")(migrate)
    group.command("status")(status)
    group.command("url")(url)
    group.command("stop")(stop)
    for module in (db_tune, db_views, db_roles, db_rebuild):
        module.register(group)
    app.add_typer(group, name="db")


def migrate() -> None:
    """Bring the schema up to this version of Stepwell. Safe to run again and from several places at once."""
    from stepwell.projections.schema.migrate import migrate as bring_up
    from stepwell.projections.schema.migrate import status as look

    with opened_database() as target:
        for migration in bring_up(target):
            print(f"applied {migration.name} to {migration.scope}")
        state = look(target)
        db_tune.tune_new(target)
    print(f"The schema is up to date: {len(state.applied)} migrations, {_storage(state.storage)}.")


def status(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show which migrations the database has. Exit code 1 when they are not exactly this version's."""
    from stepwell.projections.schema.migrate import status as look
    from stepwell.redaction import redact_url
    from stepwell.settings import get_settings

    configured = get_settings().database
    with opened_database(configured) as target:
        state = look(target)
    rows = [
        (row.scope, row.name, "changed since" if row.name in state.changed else "applied", row.applied_at.isoformat(),
         row.applied_by)
        for row in state.applied if row not in state.unknown
    ]  # fmt: skip
    rows += [(row.scope, row.name, "unknown here", row.applied_at.isoformat(), row.applied_by) for row in state.unknown]
    rows += [(row.scope, row.file.name, "pending", "", "") for row in state.pending]
    if as_json:
        names = ("schema", "migration", "state", "applied_at", "applied_by")
        listed = [dict(zip(names, row, strict=True)) for row in rows]
        print(json.dumps({"current": state.current, "storage": state.storage, "migrations": listed}, indent=2))
    else:
        columns = ("schema", "migration", "state", "applied at", "by")
        console().print(plain_table(*columns, rows=rows, title=redact_url(configured)))
        print(f"Storage: {_storage(state.storage)}.")
        if state.pending and not (state.unknown or state.changed):
            print("Next: stepwell db migrate")
    if not state.current:
        raise typer.Exit(1)


def url() -> None:
    """Print the database's URL, password and all, for psql or Grafana. The embedded server is started and kept up."""
    from stepwell.settings import get_settings

    configured = get_settings().database
    if configured.startswith("embedded:"):
        from stepwell.adapters.parts.embedded_postgres import EmbeddedPostgres

        configured = EmbeddedPostgres(configured.removeprefix("embedded:")).start(keep=True)
        print("The embedded server stays up until: stepwell db stop", file=sys.stderr)
    print(configured)


def stop() -> None:
    """Stop the embedded server, whoever uses it."""
    from stepwell.exceptions import ConfigurationError
    from stepwell.settings import get_settings

    configured = get_settings().database
    if not configured.startswith("embedded:"):
        raise ConfigurationError("The database is a server of its own (postgresql://...); Stepwell does not stop it.")
    from stepwell.adapters.parts.embedded_postgres import EmbeddedPostgres

    server = EmbeddedPostgres(configured.removeprefix("embedded:"))
    was_running = server.running
    server.stop(force=True)
    print("Stopped." if was_running else "It was not running.")


def _storage(storage: str) -> str:
    return {
        "hypertables": "TimescaleDB hypertables",
        "plain": "plain PostgreSQL tables",
        "none": "no tables yet",
    }[storage]
