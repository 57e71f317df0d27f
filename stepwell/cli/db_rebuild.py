"""``stepwell db rebuild``: make the tables again from the log, without downtime."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepwell.cli.resources import codec_in_force, opened_database, opened_log
from stepwell.exceptions import ConfigurationError

if TYPE_CHECKING:
    from stepwell.projections.rebuild.rebuilder import Outcome
    from stepwell.projections.rebuild.state import RebuildStatus

__all__ = ["register"]

EXIT_DIFFERS = 1
EXIT_INTERRUPTED = 130


def register(group: typer.Typer) -> None:
    """Add the command."""
    group.command("rebuild")(rebuild)


def rebuild(
    *,
    table: Annotated[
        list[str] | None,
        typer.Option("--table", help="Only this table, and those that go with it; can be repeated. Default: all."),
    ] = None,
    made_from: Annotated[str, typer.Option("--from", help="What to make them from: log.")] = "log",
    accept_differences: Annotated[
        bool, typer.Option("--accept-differences", help="Hand over although old and new tables differ.")
    ] = False,
    keep_old: Annotated[
        bool, typer.Option("--keep-old/--no-keep-old", help="Leave the old tables beside the new ones.")
    ] = False,
    status: Annotated[bool, typer.Option("--status", help="Show how the last rebuild stands, and do nothing.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Give the unfinished rebuild up and drop it.")] = False,
    drop_old: Annotated[bool, typer.Option("--drop-old", help="Drop old tables that were left.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Make the tables again from the log beside those in use, compare both, and let the views show the new ones.

    Projectors and queries go on all the time. What was broken off goes on where it was when the command is run again.
    Exit code 1: old and new differ, and nothing was handed over.
    """
    if sum((status, cancel, drop_old)) > 1:
        raise ConfigurationError("--status, --cancel and --drop-old are three different things: give one of them.")
    if status or cancel or drop_old:
        _refuse_more(
            "--status" if status else "--cancel" if cancel else "--drop-old",
            {
                "--table": bool(table), "--from": made_from != "log", "--accept-differences": accept_differences,
                "--keep-old": keep_old, "--json": as_json and not status,
            },
        )  # fmt: skip
    if status:
        _show(as_json=as_json)
    elif cancel or drop_old:
        _tidy(cancel=cancel)
    else:
        _rebuild(table, made_from, accept=accept_differences, keep_old=keep_old, as_json=as_json)


def _refuse_more(given: str, others: dict[str, bool]) -> None:
    """Refuse options that would do nothing beside this one."""
    idle = [name for name, is_given in others.items() if is_given]
    if idle:
        raise ConfigurationError(f"{given} makes no tables: leave out {', '.join(idle)}.")


def _rebuild(tables: list[str] | None, made_from: str, *, accept: bool, keep_old: bool, as_json: bool) -> None:
    from stepwell.adapters.database import database_server
    from stepwell.adapters.workers.process import stopping_by_signal
    from stepwell.projections.rebuild.rebuilder import Rebuilder
    from stepwell.settings import get_settings

    settings = get_settings()
    with database_server(settings.database) as locate, opened_log(must_exist=True) as log, stopping_by_signal() as stop:
        outcome = Rebuilder(
            log,
            locate,
            codec_in_force(),
            tables=tables,
            made_from=made_from,
            accept_differences=accept,
            keep_old=keep_old,
            tuning=settings.tuning(),
            stop=stop,
            say=_quiet if as_json else print,
        ).run()
    _print_outcome(outcome, as_json=as_json)
    if outcome.ended == "differs":
        raise typer.Exit(EXIT_DIFFERS)
    if outcome.ended in ("stopped", "cancelled"):
        raise typer.Exit(EXIT_INTERRUPTED)


def _quiet(_words: str) -> None:
    """Say nothing."""


def _print_outcome(outcome: "Outcome", *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(asdict(outcome), default=str, indent=2))
        return
    for table, count in outcome.carried.items():
        if count:
            print(f"{table}: {count} rows that the log no longer tells were taken over from the old table")
    rows = sum(comparison.new for comparison in outcome.comparisons)
    if outcome.ended == "done":
        found = f"{len(outcome.differing)} tables differed, which was accepted" if outcome.differing else "all the same"
        print(f"The views show {rows} rows of new tables. Compared with the old ones: {found}.")
        print(f"Dropped: {', '.join(outcome.dropped)}" if outcome.dropped else "Left: stepwell db rebuild --drop-old")
    elif outcome.ended == "differs":
        print(
            "Nothing was handed over. Where the new tables are right, run the command again with --accept-differences; "
            f"look at both in {outcome.generation} and the tables in use, or give up by: stepwell db rebuild --cancel"
        )
    elif outcome.ended == "stopped":
        print("Stopped. Go on by the same command, or give up by: stepwell db rebuild --cancel")
    else:
        print(f"Cancelled; {outcome.generation} is dropped.")


def _tidy(*, cancel: bool) -> None:
    from stepwell.projections.rebuild import cancel as ends

    with opened_database() as url:
        if cancel:
            print(f"Cancelled; {ends.cancel(lambda: url)} is dropped.")
            return
        dropped = ends.drop_old(lambda: url)
    print(f"Dropped: {', '.join(dropped)}" if dropped else "There are no old tables.")


def _show(*, as_json: bool) -> None:
    from stepwell.projections.database import connect, named_errors
    from stepwell.projections.rebuild.state import read_status

    with (
        opened_database() as url,
        connect(url, application="stepwell rebuild: status") as connection,
        named_errors(url),
    ):
        found = read_status(connection)
    if as_json:
        print(json.dumps(None if found is None else asdict(found), default=str, indent=2))
    elif found is None:
        print("There never was a rebuild.")
    else:
        for name, value in _told(found).items():
            print(f"{name + ':':<14}{value}")
        for difference in found.differences:
            print(f"differs:      {difference}")


def _told(found: "RebuildStatus") -> dict[str, Any]:
    told = {
        "generation": found.generation,
        "tables": ", ".join(found.tables) if found.tables else "all",
        "made from": found.made_from,
        "step": found.step,
        "begun": found.started_at.isoformat(timespec="seconds"),
        "worked on by": f"{found.runner}, heard of {found.seen_s_ago:.0f} s ago",
        "handed over": found.handed_over_at and found.handed_over_at.isoformat(timespec="seconds"),
        "ended": found.ended_at and found.ended_at.isoformat(timespec="seconds"),
        "compared": f"{sum(found.compared.values())} rows of {len(found.compared)} tables" if found.compared else None,
        "taken over": ", ".join(f"{table} {count}" for table, count in found.carried.items() if count) or None,
    }
    if found.ended_at is None and not found.running:
        told["next"] = "nobody works on it: go on by stepwell db rebuild, or give up by stepwell db rebuild --cancel"
    return {name: value for name, value in told.items() if value is not None}
