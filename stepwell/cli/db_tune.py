"""``stepwell db tune`` and ``stepwell db upkeep``: how the tables are kept, and doing what is due."""

import json
from collections import Counter
from typing import Annotated

import typer

from stepwell.cli.resources import opened_database
from stepwell.cli.tables import console, plain_table
from stepwell.exceptions import ConfigurationError

__all__ = ["register", "tune_new"]


def register(group: typer.Typer) -> None:
    """Add the commands."""
    group.command("tune")(tune)
    group.command("upkeep")(upkeep)


def tune(
    *,
    show: Annotated[bool, typer.Option("--show", help="Show what is set, and what should be (default).")] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Bring the database to the configuration.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Show also what is as configured.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show or set how TimescaleDB keeps the tables: chunks, columnstore, refresh of the sums, retention.

    The lengths come from the configuration (retention_steps_days and so on: stepwell config). Shown is what differs;
    then the exit code of --show is 1. Plain PostgreSQL has nothing to set: what goes when, there, is done
    by stepwell db upkeep.
    """
    from stepwell.projections.database import connect, named_errors
    from stepwell.projections.schema.migrate import require_current
    from stepwell.projections.upkeep import tune as tuner
    from stepwell.settings import get_settings

    if apply and every:
        raise ConfigurationError("--all goes with --show: --apply shows what it changed")
    if show and apply:
        raise ConfigurationError("--show and --apply exclude each other: --apply shows what it changed")
    tuning = get_settings().tuning()
    with opened_database() as target, connect(target, application="stepwell tune") as connection, named_errors(target):
        require_current(target, connection)
        settings = tuner.apply_all(connection, tuning) if apply else tuner.show(connection, tuning)
    wrong = [setting for setting in settings if not setting.right]
    if as_json:
        names = ("schema", "relation", "name", "wanted", "found", "right")
        print(json.dumps([{name: getattr(setting, name) for name in names} for setting in settings], indent=2))
    elif not settings:
        print("Nothing had to be changed." if apply else "The tables are plain: the database has nothing to be set.")
    else:
        rows = [
            ("" if setting.right else "differs", setting.schema, setting.relation, setting.name,
             setting.found or "nothing", setting.wanted or "nothing")
            for setting in (settings if every else wrong)
        ]  # fmt: skip
        columns = ("schema", "table", "what", "was" if apply else "is", "is now" if apply else "should be")
        if every:
            console().print(plain_table("", *columns, rows=rows, whole=("table",)))
        elif rows:
            console().print(plain_table(*columns, rows=[row[1:] for row in rows], whole=("table",)))
        print(f"{len(settings)} settings were changed." if apply else _verdict(len(wrong), len(settings)))
    if wrong and not apply:
        raise typer.Exit(1)


def upkeep(as_json: Annotated[bool, typer.Option("--json", help="Print a JSON line for each.")] = False) -> None:
    """Do now what is due: refresh sums, compress chunks, and take away what has been kept long enough.

    TimescaleDB's background jobs do the same by themselves. On plain PostgreSQL nobody else does: run it once a day.
    Where something went a line tells how much, the last line what was done in all; --json tells of each.
    """
    from dataclasses import asdict

    from stepwell.projections.database import connect, named_errors
    from stepwell.projections.schema.migrate import require_current
    from stepwell.projections.upkeep.retention import upkeep as run
    from stepwell.settings import get_settings

    tuning = get_settings().tuning()
    times: Counter[str] = Counter()
    with (
        opened_database() as target,
        connect(target, application="stepwell upkeep") as connection,
        named_errors(target),
    ):
        require_current(target, connection)
        for done in run(connection, tuning):
            times[done.what] += 1
            if as_json:
                print(json.dumps(asdict(done)))
            elif done.count:
                print(f"{done.relation}: {done.what}, {done.count} {done.unit}")
    if not as_json:
        print(f"Seen to, by number of tables and sums: {', '.join(f'{what} {n}' for what, n in times.items())}.")


def tune_new(url: str) -> None:
    """Bring to the configuration what has never been tuned; where something else was set, say so and leave it."""
    from stepwell.projections.database import connect, named_errors
    from stepwell.projections.upkeep import tune as tuner
    from stepwell.settings import get_settings

    tuning = get_settings().tuning()
    with connect(url, application="stepwell tune") as connection, named_errors(url):
        tuner.apply_where_new(connection, tuning)
        wrong = sum(not setting.right for setting in tuner.show(connection, tuning))
    if wrong:
        print(f"{wrong} settings of TimescaleDB are not as configured. Look: stepwell db tune --show")


def _verdict(wrong: int, count: int) -> str:
    if not wrong:
        return f"All {count} settings are as configured."
    return f"{wrong} of {count} settings are not as configured. Next: stepwell db tune --apply"
