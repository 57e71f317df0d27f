"""``stepwell dashboard``: the dashboards as one HTML page, for those without Grafana."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stepwell.cli.resources import opened_database

if TYPE_CHECKING:
    from datetime import timedelta

    from stepwell.adapters.dashboards.model import Dashboard

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("dashboard")(dashboard)


def dashboard(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where to write the page; - is standard output.")
    ] = Path("stepwell-dashboard.html"),
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--dashboard",
            help="fleet, policies, failures, episode, pipeline or machines; may be repeated. Default: all of them.",
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(help="How far back, e.g. 90m, 24h or 30d. Default: what each dashboard says of itself."),
    ] = None,
    resolution: Annotated[
        str | None, typer.Option(help="minute, hour or day. Default: what suits the time shown.")
    ] = None,
    policy: Annotated[list[str] | None, typer.Option(help="Only this policy; may be repeated.")] = None,
    task: Annotated[list[str] | None, typer.Option(help="Only this task; may be repeated.")] = None,
    run: Annotated[list[str] | None, typer.Option(help="Only this run; may be repeated.")] = None,
    host: Annotated[list[str] | None, typer.Option(help="Only this host; may be repeated.")] = None,
    episode: Annotated[
        str | None,
        typer.Option(help="The episode to show; the beginning of its id is enough. Default: the newest that failed."),
    ] = None,
) -> None:
    """Draw the dashboards as one HTML page from the database, with no Grafana, no Prometheus and no network.

    The page needs nothing else: it can be sent by mail, kept with a run, or served as a file. What a panel cannot be
    narrowed by stands below it.
    Exit code 1 when a panel could not be read; the page says which and why.
    """
    from stepwell.adapters.dashboards.page import render
    from stepwell.adapters.dashboards.reading import read_dashboards

    wanted = _dashboards(names)
    spans = {each.name: _span(since or each.since) for each in wanted}
    given = {"policy": policy, "task": task, "run": run, "host": host, "episode": [episode] if episode else None}
    chosen = {name: values for name, values in given.items() if values}
    whole = _unnarrowed(wanted, chosen)
    with opened_database() as url:
        readings = read_dashboards(url, wanted, spans, chosen, resolution=_resolution(resolution))
        page = render(readings, url)
    if str(output) == "-":
        print(page, end="")
    else:
        _write(output, page)
        print(f"Wrote {output} ({len(readings)} {'dashboard' if len(readings) == 1 else 'dashboards'}).")
    failed = [
        (f"{reading.dashboard.name}/{answer.panel.query}", answer.problem)
        for reading in readings for answer in reading.answers if answer.problem
    ]  # fmt: skip
    for option, left in whole.items():
        typer.echo(f"--{option} does not narrow {', '.join(left)}: shown whole.", err=True)
    for panel, problem in failed:
        typer.echo(f"{panel} could not be read: {problem}", err=True)
    if failed:
        raise typer.Exit(1)


def _dashboards(names: list[str] | None) -> "list[Dashboard]":
    from stepwell.adapters.dashboards.catalogue import DASHBOARDS
    from stepwell.exceptions import ConfigurationError

    known = {each.name: each for each in DASHBOARDS}
    for name in names or []:
        if name not in known:
            raise ConfigurationError(f"--dashboard {name!r}: expected one of {', '.join(known)}")
    return [each for name, each in known.items() if not names or name in names]


def _unnarrowed(wanted: "list[Dashboard]", chosen: dict[str, list[str]]) -> dict[str, list[str]]:
    """Names of the dashboards that an option cannot narrow, by option; an option that narrows none is refused."""
    from stepwell.adapters.dashboards.catalogue import DASHBOARDS
    from stepwell.exceptions import ConfigurationError

    found: dict[str, list[str]] = {}
    for option in chosen:
        knows = [each.name for each in DASHBOARDS if option in {variable.name for variable in each.variables}]
        left = [each.name for each in wanted if each.name not in knows]
        if len(left) == len(wanted):
            raise ConfigurationError(
                f"--{option}: {', '.join(left)} cannot be narrowed by {option}; {', '.join(knows)} can (--dashboard)"
            )
        # One episode is a page of its own, and no selection from the others.
        if left and option != "episode":
            found[option] = left
    return found


def _span(text: str) -> "timedelta":
    from datetime import timedelta

    from stepwell.cli.times import span_us
    from stepwell.exceptions import ConfigurationError

    span = timedelta(microseconds=span_us(text, "--since"))
    if not span:
        raise ConfigurationError(f"--since {text!r}: expected more than nothing, e.g. 24h")
    return span


def _resolution(text: str | None) -> str:
    from stepwell.adapters.dashboards.macros import RESOLUTIONS
    from stepwell.exceptions import ConfigurationError

    if text is not None and text not in RESOLUTIONS:
        raise ConfigurationError(f"--resolution {text!r}: expected one of {', '.join(RESOLUTIONS)}")
    return text or ""


def _write(path: Path, page: str) -> None:
    """All of it or nothing: a web server may be handing out the old page meanwhile."""
    from stepwell.exceptions import ConfigurationError

    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        unfinished.write_text(page, encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise ConfigurationError(f"--output {path}: cannot be written: {error.strerror}") from None
