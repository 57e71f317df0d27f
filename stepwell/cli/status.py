"""``stepwell status``: what is running, what is stuck and on whom, how far behind we are."""

import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("status")(status)


def status(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    all_partitions: Annotated[
        bool, typer.Option("--all", help="List every partition, also those that are caught up.")
    ] = False,
) -> None:
    """Show what is running now, what is stuck and on whom, and how far behind the tables are."""
    from stepwell.adapters.database import database_url
    from stepwell.projections.overview import read_overview
    from stepwell.settings import get_settings

    with database_url(get_settings().database) as url:
        overview = read_overview(url)
    if as_json:
        answer = {"running": overview.running, "stuck": overview.stuck, "lag": overview.lag}
        print(json.dumps(answer, indent=2, default=lambda value: value.isoformat()))
        return

    from rich.console import Console

    console = Console()
    if overview.running:
        console.print(_running(overview.running))
    else:
        console.print("Running now: nothing.")
    if overview.stuck:
        console.print(_stuck(overview.stuck))
    else:
        console.print(f"Stuck (nothing logged for {overview.stuck_after_s:g} s): nothing.")
    console.print(_lag(overview.lag, all_partitions))


def _running(rows: list[dict[str, Any]]) -> "Table":
    return _table(
        f"Running now: {len(rows)}", rows,
        {
            "episode": lambda r: f"{r['episode_id']}/{r['attempt']}", "policy": lambda r: r["policy"],
            "task": lambda r: r["task"], "scene": lambda r: r["scene"],
            "phase": lambda r: r["phase"] + (" (paused)" if r["paused"] else ""), "owes": lambda r: r["owes"],
            "steps": lambda r: f"{r['steps_done']}/{r['max_steps'] if r['max_steps'] is not None else '?'}",
            "for": lambda r: _duration(r["running_s"]), "host": lambda r: r["host"],
        },
    )  # fmt: skip


def _stuck(rows: list[dict[str, Any]]) -> "Table":
    return _table(
        f"Stuck: {len(rows)}", rows,
        {
            "episode": lambda r: f"{r['episode_id']}/{r['attempt']}", "policy": lambda r: r["policy"],
            "phase": lambda r: r["phase"], "stuck on": lambda r: r["stuck_on"],
            "since (UTC)": lambda r: f"{r['stuck_since']:%Y-%m-%d %H:%M:%S}", "for": lambda r: _duration(r["stuck_s"]),
            "steps": lambda r: str(r["steps_done"]), "host": lambda r: r["host"],
        },
    )  # fmt: skip


def _lag(rows: list[dict[str, Any]], all_partitions: bool) -> Any:
    if not rows:
        return "How far behind: no projector has run yet. Start one with: stepwell projector"
    shown = [row for row in rows if all_partitions or row["state"] != "caught up"]
    if not shown:
        return f"How far behind: not at all ({len(rows)} partitions)."
    return _table(
        "How far behind", shown,
        {
            "consumer": lambda r: r["consumer"], "topic/partition": lambda r: f"{r['topic']}/{r['partition']}",
            "events": lambda r: str(r["behind_events"]), "time": lambda r: _duration(r["behind_s"]),
            "state": lambda r: r["state"], "seen (UTC)": lambda r: f"{r['seen_at']:%Y-%m-%d %H:%M:%S}",
        },
    )  # fmt: skip


def _table(
    title: str, rows: Iterable[dict[str, Any]], columns: dict[str, Callable[[dict[str, Any]], str | None]]
) -> "Table":
    from rich.table import Table
    from rich.text import Text

    from stepwell.structured_logging import escape_text

    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        # Names come from outside: neither Rich's markup nor the terminal's control characters in them may take effect.
        table.add_row(
            *[Text(escape_text(str(cell(row) if cell(row) is not None else "?"))) for cell in columns.values()]
        )
    return table


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
