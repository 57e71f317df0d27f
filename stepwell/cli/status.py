"""``stepwell status``: what is running, what is stuck and on whom, how far behind we are, as of when."""

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepwell.cli.resources import opened_database
from stepwell.cli.tables import console as terminal
from stepwell.cli.tables import counted, plain_table

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("status")(status)


def status(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    partitions: Annotated[
        bool, typer.Option("--partitions", help="How far behind each partition is, also those that are caught up.")
    ] = False,
) -> None:
    """Show what is running now, what is stuck and on whom, how far behind the tables are, and who reports."""
    from stepwell.projections.overview import read_overview

    with opened_database() as url:
        overview = read_overview(url)
    if as_json:
        print(json.dumps(asdict(overview), indent=2, default=lambda value: value.isoformat()))
        return

    console = terminal()
    warning = staleness(overview.freshness)
    then = "" if warning is None else ", as of then"
    if warning is not None:
        console.print(warning, style="bold")
    if overview.running:
        console.print(_running(overview.running, "Running now" if warning is None else "Running, as of then"))
    else:
        console.print("Running now: nothing." if warning is None else "Running, as of then: nothing.")
    if overview.stuck:
        console.print(_stuck(overview.stuck, then))
    else:
        console.print(f"Stuck (nothing logged for {overview.stuck_after_s:g} s){then}: nothing.")
    console.print(_lag(overview.lag, partitions, overview.freshness["seen_s_ago"]))
    console.print(dead_letters(overview.dead_letters))
    console.print(requests(overview.requests, overview.parked_rules), markup=False)
    console.print(workers(overview.workers, overview.freshness["state"]), markup=False)


def staleness(freshness: dict[str, Any]) -> str | None:
    """The line that stands above everything while the tables do not say what is true now; None while they do."""
    if freshness["state"] == "current":
        return None
    if freshness["seen_at"] is None:
        return "As of: unknown; no projector has reported yet. Start one with: stepwell projector"
    since = "an unknown moment" if freshness["as_of"] is None else _moment(freshness["as_of"], freshness["age_s"])
    if freshness["state"] == "behind":
        return f"As of {since}: the projector is behind."
    return f"As of {since}: the projector has not reported for {_duration(freshness['seen_s_ago'])}."


def dead_letters(found: dict[str, Any]) -> str:
    """How many records could not be used, and when the newest came."""
    if not found["count"]:
        return "Dead letters: none."
    return f"Dead letters: {found['count']}, newest {_duration(found['newest_s_ago'])} ago."


def requests(found: list[dict[str, Any]], parked: list[dict[str, Any]]) -> str:
    """What waits for a training service, and which rules look for nothing any more."""
    from stepwell.structured_logging import escape_text

    standing = ", ".join(f"{row['count']} {row['status']}" for row in found)
    failed = ", ".join(f"{escape_text(row['rule'])} ({counted(row['count'], 'time')})" for row in parked)
    return f"Requests: {standing or 'none stands'}; rules that failed and were parked: {failed or 'none'}."


def workers(found: list[dict[str, Any]], state: str) -> str:
    """Who reports, and who no longer does; ``state`` is that of the tables, which know only what was read to them."""
    from stepwell.structured_logging import escape_text

    def name(w: dict[str, Any]) -> str:
        return escape_text(f"{w['worker_id']} on {w['host']}")

    def missed(rows: list[dict[str, Any]]) -> str:
        return ", ".join(f"{name(w)} (for {_duration(w['heard_s_ago'])})" for w in rows)

    if state == "silent":
        unheard = f"; nothing was read of: {missed(found)}" if found else ""
        return f"Workers: not known, since no projector reports{unheard}."
    alive = ", ".join(name(w) for w in found if not w["silent"])
    gone = missed([w for w in found if w["silent"]])
    then = "" if state == "current" else ", as of then"
    said = f"Workers that report{then}: {alive or 'none (none runs, or with --no-telemetry)'}."
    return said + (f"\nWorkers no longer heard of: {gone}." if gone else "")


def _moment(at: datetime, seconds_ago: float) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC ({_duration(seconds_ago)} ago)"


def _running(rows: list[dict[str, Any]], title: str) -> "Table":
    return _table(
        f"{title}: {len(rows)}", rows,
        {
            "episode": lambda r: f"{r['episode_id']}/{r['attempt']}", "policy": lambda r: r["policy"],
            "task": lambda r: r["task"], "scene": lambda r: r["scene"],
            "phase": lambda r: r["phase"] + (" (paused)" if r["paused"] else ""), "owes": lambda r: r["owes"],
            "steps": lambda r: f"{r['steps_done']}/{r['max_steps'] if r['max_steps'] is not None else '?'}",
            "for": lambda r: _duration(r["running_s"]), "host": lambda r: r["host"],
        },
    )  # fmt: skip


def _stuck(rows: list[dict[str, Any]], then: str) -> "Table":
    return _table(
        f"Stuck{then}: {len(rows)}", rows,
        {
            "episode": lambda r: f"{r['episode_id']}/{r['attempt']}", "policy": lambda r: r["policy"],
            "phase": lambda r: r["phase"], "stuck on": lambda r: r["stuck_on"],
            "since (UTC)": lambda r: f"{r['stuck_since']:%Y-%m-%d %H:%M:%S}", "for": lambda r: _duration(r["stuck_s"]),
            "steps": lambda r: str(r["steps_done"]), "host": lambda r: r["host"],
        },
    )  # fmt: skip


def _lag(rows: list[dict[str, Any]], partitions: bool, seen_s_ago: float | None) -> Any:
    if not rows:
        return "How far behind: no projector has run yet. Start one with: stepwell projector"
    if partitions:
        return _table(
            "How far behind", rows,
            {
                "consumer": lambda r: r["consumer"], "topic/partition": lambda r: f"{r['topic']}/{r['partition']}",
                "events": lambda r: str(r["behind_events"]), "time": lambda r: _duration(r["behind_s"]),
                "state": lambda r: r["state"], "seen (UTC)": lambda r: f"{r['seen_at']:%Y-%m-%d %H:%M:%S}",
            },
        )  # fmt: skip
    shown = [row for row in by_topic(rows) if row["state"] != "caught up"]
    if not shown:
        return f"How far behind: not at all, as of {_duration(seen_s_ago)} ago ({len(rows)} partitions)."
    return _table(
        "How far behind (--partitions shows each)", shown,
        {
            "consumer": lambda r: r["consumer"], "topic": lambda r: r["topic"],
            "partitions": lambda r: f"{r['partitions_behind']} of {r['partitions']}",
            "events": lambda r: str(r["behind_events"]), "time": lambda r: _duration(r["behind_s"]),
            "state": lambda r: r["state"], "seen (UTC)": lambda r: f"{r['seen_at']:%Y-%m-%d %H:%M:%S}",
        },
    )  # fmt: skip


_WORST_FIRST = ("silent", "behind", "caught up")


def by_topic(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each consumer and topic: events summed, the longest time, the worst state, the oldest report."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["consumer"], row["topic"]), []).append(row)
    return [
        {
            "consumer": consumer,
            "topic": topic,
            "partitions": len(group),
            "partitions_behind": sum(row["state"] != "caught up" for row in group),
            "behind_events": sum(row["behind_events"] for row in group),
            # What is unknown may be anything.
            "behind_s": None
            if any(row["behind_s"] is None for row in group)
            else max(row["behind_s"] for row in group),
            "state": min((row["state"] for row in group), key=_WORST_FIRST.index),
            "seen_at": min(row["seen_at"] for row in group),
        }
        for (consumer, topic), group in groups.items()
    ]


def _table(
    title: str, rows: Iterable[dict[str, Any]], columns: dict[str, Callable[[dict[str, Any]], str | None]]
) -> "Table":
    cells = ([cell(row) for cell in columns.values()] for row in rows)
    return plain_table(*columns, rows=cells, whole=("episode",), title=title)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
