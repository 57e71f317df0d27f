"""``stepwell db views``: views with a typed column for each key found in the data."""

import json
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from stepwell.cli.resources import opened_database
from stepwell.cli.tables import console, counted, plain_table
from stepwell.cli.times import moment_us
from stepwell.exceptions import ConfigurationError

if TYPE_CHECKING:
    from stepwell.projections.on_read.fields import Field

__all__ = ["register"]


def register(group: typer.Typer) -> None:
    """Add the command."""
    group.command("views")(views)


def views(
    *,
    show: Annotated[
        bool, typer.Option("--show", help="Show the columns, and those that would come (default).")
    ] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Look for keys and bring the views up to date.")] = False,
    drop: Annotated[bool, typer.Option("--drop", help="Drop the views; which columns they had is remembered.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Look at every row, not at the newest episodes only.")
    ] = False,
    split: Annotated[
        str | None, typer.Option(metavar="VIEW.COLUMN", help="End a column at --at, and begin a new one for its key.")
    ] = None,
    at: Annotated[str | None, typer.Option(metavar="TIME", help="With --split: from when the key means else.")] = None,
    describe: Annotated[
        tuple[str, str] | None, typer.Option(metavar="VIEW.COLUMN TEXT", help="Say what a column means.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --show: print JSON.")] = False,
) -> None:
    """Make views of schema stepwell_views: metrics, definitions and attributes as typed columns, with no migration."""
    from stepwell.projections.on_read import fields

    if sum([show, apply, drop, split is not None, describe is not None]) > 1:
        raise ConfigurationError("stepwell db views wants one of --show, --apply, --drop, --split, --describe")
    if (split is None) != (at is None):
        raise ConfigurationError("--split VIEW.COLUMN goes with --at TIME")
    with opened_database() as url:
        if apply:
            added = fields.apply(url, everything=everything)
            print("\n".join([*(f"new {name}" for name in added), "The views are up to date."]))
        elif drop:
            print("The views are dropped." if fields.drop(url) else "There were none.")
        elif split is not None and at is not None:
            view, column = _named(split, "--split")
            moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=moment_us(at, "--at"))
            name = fields.split(url, view, column, moment)
            print(f"{split} ends at {moment.isoformat()}; from then on it is {view}.{name}.")
        elif describe is not None:
            fields.describe(url, *_named(describe[0], "--describe"), describe[1])
            print(f"{describe[0]} is described.")
        else:
            _show(fields.read_fields(url), fields.look(url, everything=everything), as_json=as_json)


def _named(text: str, option: str) -> tuple[str, str]:
    view, point, column = text.partition(".")
    if not (view and point and column):
        raise ConfigurationError(f"{option} {text!r}: expected VIEW.COLUMN, e.g. step_metrics.path_length_m")
    return view, column


def _show(known: "list[Field]", coming: list[str], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"columns": [asdict(field) for field in known], "new": coming}, indent=2, default=str))
        return
    if not known and not coming:
        print("No keys were found yet.")
        return
    rows = [
        (field.view, field.column, ".".join(field.path), field.kind, f"{field.first_seen:%Y-%m-%d %H:%M}",
         f"{field.last_seen:%Y-%m-%d %H:%M}", field.meaning, "yes" if field.made else "no")
        for field in known
    ]  # fmt: skip
    columns = ("view", "column", "key", "kind", "first seen", "last seen", "meaning", "made")
    console().print(plain_table(*columns, rows=rows, whole=("view", "column")))
    for name in coming:
        print(f"new {name}")
    if coming:
        print(f"{counted(len(coming), 'column')} to come. Next: stepwell db views --apply")
