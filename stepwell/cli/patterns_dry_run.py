"""``stepwell patterns dry-run``: what another rule set would have made of the history; publishes nothing."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepwell.cli.resources import codec_in_force, opened_log
from stepwell.cli.tables import console, counted, plain_table

if TYPE_CHECKING:
    from rich.console import Console

    from stepwell.adapters.rules.dry_run import DryRunReport
    from stepwell.engine.detection.dry_run import DryTrigger
    from stepwell.engine.ruleset import RuleSet

EPISODES_SHOWN = 8


def register(patterns: typer.Typer) -> None:
    """Add it to the group ``patterns``."""
    patterns.command("dry-run")(dry_run)


def dry_run(
    file: Annotated[Path, typer.Argument(metavar="RULES.yaml", help="The rules to try.", show_default=False)],
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="As if activated then, e.g. 2026-11-01. Default: from the log's start."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Replay history under other rules: which triggers would appear, vanish or move against the rules in force.

    Nothing is written to the log. Answers in it belong to triggers of the rules that were in force, so a trigger that
    would appear stays unanswered here, and takes in all later evidence of its kind.
    """
    from stepwell.adapters.rules.dry_run import run_dry
    from stepwell.adapters.rules.file import load_rules
    from stepwell.cli.times import moment_us

    rules = load_rules(file)
    since_us = moment_us(since, "--since") if since is not None else None
    with opened_log(must_exist=True) as log:
        report = run_dry(log, codec_in_force(), rules, since_us=since_us)
    if as_json:
        from stepwell.events.plain import as_text

        typer.echo(as_text(_as_plain(rules, report, since)))
        return
    _print(console(), rules, report, since)


def _print(out: "Console", rules: "RuleSet", report: "DryRunReport", since: str | None) -> None:
    from stepwell.structured_logging import escape_text

    found = report.comparison
    start = f"from {since} on" if since is not None else "from the log's start"
    out.print(
        f"rule set {rules.rule_set} version {rules.version}, {start}, over {counted(report.verdicts, 'verdict')}",
        soft_wrap=True,
    )
    if report.changed_verdicts:
        out.print(f"its step rules would say something else of {counted(report.changed_verdicts, 'verdict')}")
    if report.attempts:
        found_in = [(name, str(count) if count else "none", _hint(count)) for name, count in report.labels.items()]
        title = f"\nlabels found in {counted(report.attempts, 'attempt')}"
        out.print(plain_table("step rule", "attempts", "", rows=found_in, whole=("step rule",), title=title))
    _print_triggers(out, "would appear", found.appear)
    _print_triggers(out, "would vanish", found.vanish)
    if found.move:
        rows = [
            (*_about(moved.candidate), f"{_time(moved.recorded)}\n{_time(moved.candidate)}",
             f"{_episodes(moved.recorded)}\n{_episodes(moved.candidate)}")
            for moved in found.move
        ]  # fmt: skip
        columns = ("rule", "for", "failure type", "opened: is, would be", "evidence: is, would be")
        out.print(plain_table(*columns, rows=rows, whole=("rule",), title=f"\nwould move: {len(rows)}"))
    out.print(
        f"\n{len(found.appear)} would appear, {len(found.vanish)} would vanish, {len(found.move)} would move, "
        f"{len(found.stay)} would stay; nothing was written"
    )
    for told in report.parked:
        out.print(f"parked: {escape_text(told)}", markup=False, soft_wrap=True)


def _hint(count: int) -> str:
    return "" if count else "is its signal there? see 'stepwell replay EPISODE --json'"


def _print_triggers(out: "Console", title: str, triggers: "tuple[DryTrigger, ...]") -> None:
    if not triggers:
        return
    rows = [(*_about(each), _time(each), each.status, each.pattern.detail, _episodes(each)) for each in triggers]
    columns = ("rule", "for", "failure type", "opened", "stands", "seen", "evidence")
    out.print(plain_table(*columns, rows=rows, whole=("rule",), title=f"\n{title}: {len(rows)}"))


def _about(trigger: "DryTrigger") -> tuple[str, str, str]:
    return trigger.pattern.rule, trigger.pattern.rule_key, trigger.pattern.failure_type


def _time(trigger: "DryTrigger") -> str:
    from stepwell.events.plain import time_text

    return time_text(trigger.opened_at)


def _episodes(trigger: "DryTrigger") -> str:
    names = [item.episode_id for item in trigger.pattern.evidence]
    more = f" and {len(names) - EPISODES_SHOWN} more" if len(names) > EPISODES_SHOWN else ""
    return " ".join(names[:EPISODES_SHOWN]) + more


def _as_plain(rules: "RuleSet", report: "DryRunReport", since: str | None) -> dict[str, Any]:
    found = report.comparison
    return {
        "rule_set": rules.rule_set,
        "version": rules.version,
        "since": since,
        "verdicts": report.verdicts,
        "changed_verdicts": report.changed_verdicts,
        "attempts": report.attempts,
        "labels": report.labels,
        "appear": [_trigger(each) for each in found.appear],
        "vanish": [_trigger(each) for each in found.vanish],
        "move": [{"recorded": _trigger(each.recorded), "candidate": _trigger(each.candidate)} for each in found.move],
        "stay": [_trigger(each) for each in found.stay],
        "parked": list(report.parked),
    }


def _trigger(trigger: "DryTrigger") -> dict[str, Any]:
    from stepwell.events.plain import as_plain, time_text

    body = as_plain(trigger.pattern)
    head = ("type", "event_id", "episode_id", "attempt", "producer_id", "producer_seq", "occurred_at", "trace_id",
            "sim_time", "step", "origin", "run_id")  # fmt: skip
    return {name: value for name, value in body.items() if name not in head} | {
        "partition": trigger.partition,
        "offset": trigger.offset,
        "opened_at": time_text(trigger.opened_at),
        "status": trigger.status,
    }
