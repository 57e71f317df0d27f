"""``stepwell dev``: the team's stack as processes on this machine. See docs/dev.md."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from stepwell.adapters.dev.stack import Stack


def register(app: typer.Typer) -> None:
    """Add ``stepwell dev up | down | status | env``."""
    dev = typer.Typer(help="The team's stack as processes on this machine, without containers.", no_args_is_help=True)
    dev.command("up")(up)
    dev.command("down")(down)
    dev.command("status")(status)
    dev.command("env")(env)
    app.add_typer(dev, name="dev")


def up(
    database: Annotated[
        str | None,
        typer.Option(
            metavar="timescaledb|embedded|URL",
            help="TimescaleDB (WebAssembly), the embedded PostgreSQL, or a server of yours, postgresql://... Default: "
            "timescaledb, or as the set was made.",
            show_default=False,
        ),
    ] = None,
    registry: Annotated[
        bool | None, typer.Option("--registry/--no-registry", help="With a schema registry.", show_default=False)
    ] = None,
    prometheus: Annotated[
        bool | None,
        typer.Option(
            "--prometheus/--no-prometheus",
            help="With Prometheus, as Debian has it. Default: where it is installed.",
            show_default=False,
        ),
    ] = None,
    engines: Annotated[int | None, typer.Option(min=1, max=16, help="Engine workers.", show_default=False)] = None,
) -> None:
    """Start Kafka, a database, Stepwell's workers and the receiver of telemetry, and wait until all are ready.

    What runs already stays as it is; what ended, however, is started again. Everything listens on 127.0.0.1 only, and
    keeps its data and its port. An option that is not given stays as it was.
    """
    from stepwell.adapters.dev.state import DATABASES
    from stepwell.exceptions import ConfigurationError

    if database is not None and database not in DATABASES and not database.startswith(("postgresql://", "postgres://")):
        raise ConfigurationError(f"--database {database!r}: expected {', '.join(DATABASES)} or postgresql://...")
    stack = _stack()
    stack.up(database=database, registry=registry, prometheus=prometheus, engines=engines)
    _print_status(stack)
    print('\nTo work with it in this shell: eval "$(stepwell dev env)"\nTo end it: stepwell dev down')


def down(
    wipe: Annotated[bool, typer.Option("--wipe", help="Remove the data, too.")] = False,
) -> None:
    """End every process of the set. The data stay, unless they are wiped."""
    count = _stack().down(wipe=wipe)
    print(f"{count} process(es) ended.")


def status(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line: one service.")] = False,
) -> None:
    """Show what runs, and where. Exit code 1 when something does not."""
    shown = _stack().status()
    if as_json:
        import json

        for each in shown:
            row = {"service": each.name, "state": each.state, "pid": each.pid, "address": each.address}
            print(json.dumps({**row, "log": str(each.log)}))
    else:
        _print_status(_stack())
    if any(each.state != "ready" for each in shown):
        raise typer.Exit(1)


def env() -> None:
    """Print what a shell has to export to work with the set: eval "$(stepwell dev env)"."""
    import shlex
    import sys

    stack = _stack()
    for name, value in stack.environment().items():
        print(f"unset {name}" if value is None else f"export {name}={shlex.quote(value)}")
    away = [f"{each.name} is {each.state}" for each in stack.status() if each.state != "ready"]
    if away:
        print(f"stepwell: not all of the set runs ({', '.join(away)}). Start it with: stepwell dev up", file=sys.stderr)


def _stack() -> "Stack":
    from stepwell.adapters.dev.stack import Stack
    from stepwell.settings import get_settings

    return Stack(get_settings().home, say=print)


def _print_status(stack: "Stack") -> None:
    from stepwell.cli.tables import console, plain_table
    from stepwell.redaction import redact_url

    rows = [
        (each.name, each.state, "-" if each.pid is None else each.pid, redact_url(each.address), each.log)
        for each in stack.status()
    ]
    console().print(plain_table("service", "state", "process", "address", "log", rows=rows))
