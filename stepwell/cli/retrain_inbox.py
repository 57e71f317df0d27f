"""``stepwell retrain inbox``: what training services on this machine have taken; setting parked requests free."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stepwell.cli.tables import console, plain_table, short_line
from stepwell.exceptions import NotFoundError

if TYPE_CHECKING:
    from stepwell.adapters.inbox.store import Entry, Inbox, State

OPEN_STATES: "tuple[State, ...]" = ("stored", "waiting", "working", "parked")

inbox = typer.Typer(help="The inboxes of training services on this machine.", no_args_is_help=True)

GroupOption = Annotated[str | None, typer.Option(help="Only of this consumer group.")]
FileOption = Annotated[
    Path | None, typer.Option("--inbox", help="Only this file. Default: all inboxes in STEPWELL_HOME.")
]
RequestArgument = Annotated[
    str,
    typer.Argument(metavar="REQUEST", help="As 'list' shows it, or the beginning of it.", show_default=False),
]


def register(retrain: typer.Typer) -> None:
    """Add the commands."""
    retrain.add_typer(inbox, name="inbox")


@inbox.command("list")
def list_entries(
    group: GroupOption = None,
    file: FileOption = None,
    parked: Annotated[bool, typer.Option("--parked", help="Only those that are parked.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON for each request.")] = False,
) -> None:
    """List the requests that are taken and not finished: waiting, being worked on, or parked, and why."""
    from stepwell.events.plain import as_text, time_text

    rows: list[tuple[object, ...]] = []
    columns = ("request", "kind", "policy", "state", "failures", "taken at", "reason", "inbox")
    for opened in _inboxes(group, file):
        for entry in opened.entries(["parked"] if parked else OPEN_STATES):
            facts = (
                _name(entry), entry.kind, entry.policy, entry.state, entry.failures, time_text(entry.stored_at),
                entry.reason, str(opened.path),
            )  # fmt: skip
            if as_json:
                names = tuple(column.replace(" ", "_") for column in columns)
                typer.echo(as_text(dict(zip(names, facts, strict=True))))
            rows.append((*facts[:6], short_line(entry.reason), facts[7]))
    if not as_json:
        console().print(plain_table(*columns, rows=rows, whole=("request", "inbox")))


@inbox.command("retry")
def retry(request: RequestArgument, group: GroupOption = None, file: FileOption = None) -> None:
    """Hand a parked request out again, as if it had never failed. A listener that runs takes it by itself."""
    _change(request, group, file, lambda opened, entry: opened.retry(entry.number), "waits again", "is not parked")


@inbox.command("drop")
def drop(request: RequestArgument, group: GroupOption = None, file: FileOption = None) -> None:
    """Finish a request that is parked or waits, without working on it.

    Stepwell does not hear of it: the request stays open there. `stepwell retrain answer REQUEST rejected` tells it.
    """
    _change(request, group, file, lambda opened, entry: opened.drop(entry.number), "dropped", "is being worked on now")


def _change(
    request: str,
    group: str | None,
    file: Path | None,
    change: "Callable[[Inbox, Entry], bool]",
    done: str,
    refused: str,
) -> None:
    found = [
        (opened.path, entry)
        for opened in _inboxes(group, file)
        for entry in opened.entries(OPEN_STATES)
        if request and _name(entry).startswith(request)
    ]
    exact = [each for each in found if _name(each[1]) == request]
    found = exact or found
    if not found:
        raise NotFoundError(f"no request in an inbox begins with {request!r}; stepwell retrain inbox list lists them")
    if len({_name(entry) for _, entry in found}) > 1:
        names = ", ".join(sorted({_name(entry) for _, entry in found})[:5])
        raise NotFoundError(f"{len(found)} requests begin with {request!r}: {names} …; give more of it")
    failed = False
    for path, entry in found:
        with _opened(path) as opened:
            changed = change(opened, entry)
        failed |= not changed
        typer.echo(f"{_name(entry)}  {entry.policy}  {done if changed else refused}")
    if failed:
        raise typer.Exit(1)


def _inboxes(group: str | None, file: Path | None) -> "Iterator[Inbox]":
    """The inboxes that are meant, one open at a time."""
    from stepwell.adapters.inbox.places import all_folders, group_folder, inbox_files
    from stepwell.settings import get_settings

    if file is not None:
        if not file.is_file():
            raise NotFoundError(f"no inbox at {file}")
        files = [file]
    else:
        home = get_settings().home
        folders = [group_folder(home, group)] if group is not None else list(all_folders(home))
        files = [each for folder in folders for each in inbox_files(folder)]
    for path in files:
        with _opened(path) as opened:
            yield opened


@contextlib.contextmanager
def _opened(path: Path) -> "Iterator[Inbox]":
    from stepwell.adapters.inbox.store import Inbox

    with contextlib.closing(Inbox(path, held=False)) as opened:
        yield opened


def _name(entry: "Entry") -> str:
    """What people call it: its trigger, or its place in the log where that cannot be read."""
    if entry.kind == "unreadable":
        return f"unreadable-{entry.source.partition}-{entry.offset}"
    return entry.trigger_id
