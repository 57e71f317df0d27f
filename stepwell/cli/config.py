"""``stepwell config``: what is set, and where each value came from."""

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add ``stepwell config``."""
    app.command("config")(config)


def config(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object: name -> value, origin, variable.")] = False,
) -> None:
    """Show every setting in force and where it came from; secrets are hidden."""
    from stepwell.settings import Settings, get_settings, variable_of

    settings = get_settings()
    rows = [
        {
            "name": name,
            "value": settings.shown(name),
            "origin": str(settings.origin(name)),
            "variable": variable_of(name),
            "description": field.description or "",
        }
        for name, field in Settings.model_fields.items()
    ]
    if as_json:
        import json

        print(json.dumps({row.pop("name"): row for row in rows}, indent=2))
    else:
        _print_table(rows)


def _print_table(rows: list[dict[str, object]]) -> None:
    from rich.table import Table
    from rich.text import Text

    from stepwell.cli.tables import console

    table = Table(box=None, pad_edge=False)
    table.add_column("setting", style="bold", no_wrap=True)
    # A value is copied from here into a shell: it must not be cut.
    table.add_column("value", overflow="fold")
    table.add_column("origin", overflow="fold")
    for row in rows:
        value = "-" if row["value"] is None else str(row["value"])
        table.add_row(Text(str(row["name"])), Text(value), Text(str(row["origin"])))
    console().print(table)
    print("\nSet any of them by its variable (STEPWELL_LOG for log), or by its name in stepwell.toml here or in home.")
