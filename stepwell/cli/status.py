"""``stepwell status``: what is running, what is stuck and on whom, how far behind everybody is, as of when."""

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepwell.cli.resources import opened_database
from stepwell.cli.status_of_log import ask_log
from stepwell.cli.tables import console as terminal
from stepwell.cli.tables import counted, first_line, plain_table
from stepwell.redaction import redact_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from stepwell.cli.status_of_log import Asked
    from stepwell.projections.overview import Overview

PROJECTOR = "stepwell-projector"
_UPKEEP_LATE_S = 2 * 86_400.0

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
    """Show what is running now, what is stuck and on whom, how far behind everybody is, and how the workers are.

    Where the database is away or no projector reports, the log itself is asked how far everybody is. Exit code 1 where
    the database is away, or the log is when it is asked: what one of them alone knows is missing then.
    """
    from stepwell.exceptions import DatabaseUnavailableError
    from stepwell.projections.overview import read_overview

    away: DatabaseUnavailableError | None = None
    overview: Overview | None = None
    try:
        with opened_database() as url:
            overview = read_overview(url)
    except DatabaseUnavailableError as error:
        away = error
    asked = None if overview is not None and overview.freshness["state"] != "silent" else ask_log()
    if as_json:
        found = {} if overview is None else asdict(overview)
        reason = None if away is None else redact_text(str(away))
        found |= {"database_error": reason, "asked_of_log": None if asked is None else asked.as_json()}
        print(json.dumps(found, indent=2, default=lambda value: value.isoformat()))
    else:
        _show(overview, away, asked, partitions=partitions)
    if away is not None or (asked is not None and asked.away):
        raise typer.Exit(1)


def _show(overview: "Overview | None", away: Exception | None, asked: "Asked | None", *, partitions: bool) -> None:
    from stepwell.structured_logging import escape_text

    console = terminal()
    if away is not None:
        reason = " | ".join(line.strip() for line in redact_text(str(away)).split("\n"))
        print(f"stepwell: {escape_text(reason)}", file=sys.stderr)
        console.print("What runs and what is stuck is not known without the database.")
    if overview is not None:
        _show_overview(console, overview, partitions=partitions)
    if asked is not None:
        for line in asked.shown(overview is not None, partitions=partitions):
            console.print(line) if not isinstance(line, str) else console.print(line, markup=False)


def _show_overview(console: "Console", overview: "Overview", *, partitions: bool) -> None:
    waits = next((row["waits_for"] for row in overview.lag if row["consumer"] == PROJECTOR and row["waits_for"]), "")
    warning = staleness(overview.freshness, waits)
    then = "" if warning is None else ", as of then"
    if warning is not None:
        console.print(warning, style="bold", markup=False)
    if overview.running:
        console.print(_running(overview.running, "Running now" if warning is None else "Running, as of then"))
    else:
        console.print("Running now: nothing." if warning is None else "Running, as of then: nothing.")
    if overview.stuck:
        console.print(_stuck(overview.stuck, then))
    else:
        console.print(f"Stuck (nothing logged for {overview.stuck_after_s:g} s){then}: nothing.")
    console.print(lag(overview.lag, overview.freshness["seen_s_ago"], partitions=partitions))
    console.print(dead_letters(overview.dead_letters))
    console.print(requests(overview.requests, overview.parked_rules), markup=False)
    if (overdue := upkeep(overview.upkeep)) is not None:
        console.print(overdue)
    for told in workers(overview.workers, overview.freshness["state"]):
        console.print(told) if not isinstance(told, str) else console.print(told, markup=False)


def staleness(freshness: dict[str, Any], waits_for: str = "") -> str | None:
    """The line that stands above everything while the tables do not say what is true now; None while they do.

    ``waits_for``: what the projector says that it waits for.
    """
    if freshness["state"] == "current":
        return None
    if freshness["seen_at"] is None:
        return "As of: unknown; no projector has reported yet. Start one with: stepwell projector"
    since = "an unknown moment" if freshness["as_of"] is None else _moment(freshness["as_of"], freshness["age_s"])
    if freshness["state"] == "behind":
        why = f"; it waits for {first_line(waits_for)}" if waits_for else ""
        return f"As of {since}: the projector is behind{why}."
    return f"As of {since}: the projector has not reported for {duration(freshness['seen_s_ago'])}."


def upkeep(found: dict[str, Any]) -> str | None:
    """When the tables were last seen to, where nobody does that by himself; None on hypertables, whose jobs do."""
    if found["storage"] != "plain":
        return None
    if found["ended_s_ago"] is None:
        return "Upkeep: not done yet. On plain PostgreSQL run once a day: stepwell db upkeep"
    late = ". It must run once a day: stepwell db upkeep" if found["ended_s_ago"] > _UPKEEP_LATE_S else "."
    return f"Upkeep: done {duration(found['ended_s_ago'])} ago{late}"


def dead_letters(found: dict[str, Any]) -> str:
    """How many records could not be used, and when the newest came."""
    if not found["count"]:
        return "Dead letters: none."
    return f"Dead letters: {found['count']}, newest {duration(found['newest_s_ago'])} ago."


def requests(found: list[dict[str, Any]], parked: list[dict[str, Any]]) -> str:
    """What waits for a training service, and which rules look for nothing any more."""
    from stepwell.structured_logging import escape_text

    standing = ", ".join(f"{row['count']} {row['status']}" for row in found)
    failed = ", ".join(f"{escape_text(row['rule'])} ({counted(row['count'], 'time')})" for row in parked)
    return f"Requests: {standing or 'none stands'}; rules that failed and were parked: {failed or 'none'}."


def workers(found: list[dict[str, Any]], state: str) -> list[Any]:
    """How the workers are, the worst first: a line while all is well, else a table.

    ``state`` is that of the tables, which know only what was read to them.
    """
    from stepwell.structured_logging import escape_text

    if state == "silent":
        heard = ", ".join(f"{escape_text(w['worker_id'])} ({duration(w['heard_s_ago'])} ago)" for w in found)
        return [f"Workers: not known, since no projector reports{f'; last heard of: {heard}' if heard else ''}."]
    then = "" if state == "current" else ", as of then"
    if not found:
        return [f"Workers that report{then}: none (none runs)."]
    if all(w["state"] == "running" and not _lately(w["last_error_s_ago"]) for w in found):
        names = ", ".join(escape_text(f"{w['worker_id']} on {w['host']}") for w in found)
        return [f"Workers that report{then}: {names}."]
    return [
        _table(
            f"Workers{then}", found,
            {
                "worker": lambda w: w["worker_id"], "host": lambda w: w["host"], "state": lambda w: w["state"],
                "waits for": lambda w: first_line(w["waits_for"]),
                "last error": lambda w: first_line(w["last_error"]),
                "error seen": lambda w: _ago(w["last_error_s_ago"]), "moved": lambda w: _ago(w["progress_s_ago"]),
                "heard": lambda w: _ago(w["heard_s_ago"]),
            },
        )
    ]  # fmt: skip


ERROR_SHOWN_S = 3600.0
"""For so long (s) a worker's last error makes it worth a look, though it runs."""


def _lately(seconds: float | None) -> bool:
    return seconds is not None and seconds < ERROR_SHOWN_S


def _ago(seconds: float | None) -> str:
    return "" if seconds is None else f"{duration(seconds)} ago"


def _moment(at: datetime, seconds_ago: float) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC ({duration(seconds_ago)} ago)"


def _running(rows: list[dict[str, Any]], title: str) -> "Table":
    return _table(
        f"{title}: {len(rows)}", rows,
        {
            "episode": lambda r: f"{r['episode_id']}/{r['attempt']}", "policy": lambda r: r["policy"],
            "task": lambda r: r["task"], "scene": lambda r: r["scene"],
            "phase": lambda r: r["phase"] + (" (paused)" if r["paused"] else ""), "owes": lambda r: r["owes"],
            "steps": lambda r: f"{r['steps_done']}/{r['max_steps'] if r['max_steps'] is not None else '?'}",
            "for": lambda r: duration(r["running_s"]), "host": lambda r: r["host"],
        },
    )  # fmt: skip


def _stuck(rows: list[dict[str, Any]], then: str) -> "Table":
    return _table(
        f"Stuck{then}: {len(rows)}", rows,
        {
            "episode": lambda r: f"{r['episode_id']}/{r['attempt']}", "policy": lambda r: r["policy"],
            "phase": lambda r: r["phase"], "stuck on": lambda r: r["stuck_on"],
            "since (UTC)": lambda r: f"{r['stuck_since']:%Y-%m-%d %H:%M:%S}", "for": lambda r: duration(r["stuck_s"]),
            "steps": lambda r: str(r["steps_done"]), "host": lambda r: r["host"],
        },
    )  # fmt: skip


def lag(rows: list[dict[str, Any]], seen_s_ago: float | None, *, partitions: bool) -> Any:
    """How far behind everybody is, the worst first."""
    if not rows:
        return "How far behind: no projector has run yet. Start one with: stepwell projector"
    shown = rows if partitions else [row for row in by_topic(rows) if row["state"] != "caught up"]
    if not shown:
        return f"How far behind: not at all, as of {duration(seen_s_ago)} ago ({len(rows)} partitions)."
    place: dict[str, Callable[[dict[str, Any]], str | None]] = (
        {"topic/partition": lambda r: f"{r['topic']}/{r['partition']}"}
        if partitions
        else {"topic": lambda r: r["topic"], "partitions": lambda r: f"{r['partitions_behind']} of {r['partitions']}"}
    )
    return _table(
        "How far behind" if partitions else "How far behind (--partitions shows each)", shown,
        {
            "consumer": lambda r: r["consumer"], **place,
            "events": lambda r: str(r["behind_events"]), "time": lambda r: duration(r["behind_s"]),
            "rate (1/s)": lambda r: _rate(r["events_per_s"]), "caught up in": _catch_up, "state": lambda r: r["state"],
            "waits for": lambda r: first_line(r["waits_for"]),
            "seen (UTC)": lambda r: f"{r['looked_at']:%Y-%m-%d %H:%M:%S}",
        },
    )  # fmt: skip


def _rate(per_s: float | None) -> str:
    return "?" if per_s is None else f"{per_s:.0f}" if per_s >= 10 else f"{per_s:.1f}"


def _catch_up(row: dict[str, Any]) -> str:
    """Nothing is promised of who waits or does not report, nor where more comes than is done."""
    return duration(row["catch_up_s"]) if row["state"] in ("behind", "caught up") else "?"


_WORST_FIRST = ("silent", "stalled", "waiting", "behind", "caught up")


def by_topic(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each consumer and topic, the worst first.

    Events and rates summed, the longest times, the worst state with what that waits for, the oldest look.
    """
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["consumer"], row["topic"]), []).append(row)
    found = [
        {
            "consumer": consumer,
            "topic": topic,
            "partitions": len(group),
            "partitions_behind": sum(row["state"] != "caught up" for row in group),
            "behind_events": sum(row["behind_events"] for row in group),
            # What is unknown may be anything.
            "behind_s": _longest(row["behind_s"] for row in group),
            "catch_up_s": _longest(row["catch_up_s"] for row in group),
            "events_per_s": _sum(row["events_per_s"] for row in group),
            "state": (worst := min(group, key=lambda row: (_WORST_FIRST.index(row["state"]), not row["waits_for"])))[
                "state"
            ],
            "waits_for": worst["waits_for"],
            "looked_at": min(row["looked_at"] for row in group),
        }
        for (consumer, topic), group in groups.items()
    ]
    return sorted(found, key=lambda row: (_WORST_FIRST.index(row["state"]), -(row["behind_s"] or float("inf"))))


def _longest(seconds: Iterable[float | None]) -> float | None:
    each = list(seconds)
    return None if None in each else max(value for value in each if value is not None)


def _sum(rates: Iterable[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None


def _table(
    title: str, rows: Iterable[dict[str, Any]], columns: dict[str, Callable[[dict[str, Any]], str | None]]
) -> "Table":
    cells = ([cell(row) for cell in columns.values()] for row in rows)
    return plain_table(*columns, rows=cells, whole=("episode",), title=title)


def duration(seconds: float | None) -> str:
    """A span for people: ``1.5 s``, ``2 min 05 s``, ``3 h 10 min``; ``?`` where it is not known."""
    if seconds is None:
        return "?"
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
