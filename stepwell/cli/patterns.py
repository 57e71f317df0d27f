"""``stepwell patterns``: the rules that failures are looked for by: list, check, try on history, put into force."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepwell.cli import patterns_analysis, patterns_dry_run
from stepwell.cli.resources import codec_in_force, opened_log
from stepwell.cli.tables import console, counted, plain_table

if TYPE_CHECKING:
    from rich.console import Console

    from stepwell.adapters.rules.simulate import PromiseReport
    from stepwell.engine.ruleset import RuleSet

FileArgument = Annotated[Path, typer.Argument(metavar="RULES.yaml", help="A rule file.", show_default=False)]
JsonOption = Annotated[bool, typer.Option("--json", help="As JSON.")]

EXIT_BROKEN = 1


def register(app: typer.Typer) -> None:
    """Add ``stepwell patterns``."""
    patterns = typer.Typer(
        help="Failure patterns: the rules they are found by, and what explains failures.", no_args_is_help=True
    )
    patterns.command("list")(list_)
    patterns.command("check")(check)
    patterns.command("activate")(activate)
    patterns_dry_run.register(patterns)
    patterns.command("explain")(patterns_analysis.explain)
    patterns.command("cluster")(patterns_analysis.cluster)
    app.add_typer(patterns, name="patterns")


def list_(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[RULES.yaml]", help="Of this file, not of what is in force.", show_default=False),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every set that was ever activated, without its rules.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the rules in force, or those of a file: what each looks for, for whom, and what it promises."""
    from stepwell.adapters.rules.file import load_rules

    if every:
        _list_activations(as_json=as_json)
        return
    rules, source = (load_rules(file), {"file": str(file)}) if file is not None else _in_force()
    if as_json:
        from stepwell.events.plain import as_text

        typer.echo(as_text(_as_plain(rules) | source))
        return
    out = console()
    out.print(f"rule set {rules.rule_set} version {rules.version}, {_told(source)}", markup=False, soft_wrap=True)
    _print_rules(out, rules)


def check(file: FileArgument) -> None:
    """Check a rule file: every key, and that every rule keeps its promise. Exit code 1 where one does not.

    Nothing is read from the log, and nothing takes effect.
    """
    from stepwell.adapters.rules.file import load_rules
    from stepwell.adapters.rules.words import counted_rules

    rules = load_rules(file)
    _check_promises(file, rules, show=True)
    typer.echo(f"{file}: fine; rule set {rules.rule_set} version {rules.version}: {counted_rules(rules)}")


def activate(
    file: FileArgument,
    force: Annotated[bool, typer.Option("--force", help="Also a lower version than this set had before.")] = False,
    skip_promises: Annotated[
        bool, typer.Option("--skip-promises", help="Do not simulate what the rules promise; 'check' did already.")
    ] = False,
) -> None:
    """Put a rule file into force: attempts that begin from now on, and verdicts recorded from now on, go by it.

    It is checked as by 'check' first. The same set again does nothing.
    """
    from stepwell.adapters.rules.activate import activate as put_into_force
    from stepwell.adapters.rules.file import load_rules
    from stepwell.adapters.runs.identity import operator

    rules = load_rules(file)
    if not skip_promises:
        _check_promises(file, rules, show=False)
    with opened_log() as log:
        outcome = put_into_force(log, codec_in_force(writing=True), rules, operator(), force=force)
    if not outcome.changed:
        typer.echo(f"rule set {rules.rule_set} version {rules.version} is in force already; nothing was written")
        return
    name, version = outcome.before
    typer.echo(
        f"rule set {rules.rule_set} version {rules.version} is in force in {counted(outcome.partitions, 'partition')}; "
        f"before: {name} version {version}"
    )


def _check_promises(file: Path, rules: "RuleSet", *, show: bool) -> None:
    """Hold each rule over verdicts to its promise; leave with exit code 1 where one is not shown to keep it."""
    from stepwell.adapters.rules.simulate import Shown

    reports = _promise_reports(rules)
    broken = [report for report in reports if report.shown is Shown.NOT_KEPT]
    unshown = [report for report in reports if report.shown is Shown.OPEN]
    if reports and (show or broken or unshown):
        rows = [_promise_cells(report) for report in reports]
        columns = ("rule", "kind", "promise", "stated", "found", "by", "early", "kept")
        console().print(plain_table(*columns, rows=rows, whole=("rule", "promise", "stated", "found")))
    if broken:
        names = ", ".join(report.rule for report in broken)
        typer.echo(f"{file}: the promise is not kept by: {names}; make the rule stricter, or promise less")
    for report in unshown:
        typer.echo(
            f"{file}: {report.rule}: {report.found_by} episodes cannot show an average run length of "
            f"{_figure(report.promised)}; what can be shown is {_figure(report.low)}: promise no more, or make the "
            "rule stricter"
        )
    if broken or unshown:
        raise typer.Exit(EXIT_BROKEN)


def _promise_reports(rules: "RuleSet") -> "list[PromiseReport]":
    """Hold the rules to their promises; whoever sits at a terminal sees which one takes so long."""
    from rich.console import Console

    from stepwell.adapters.rules.simulate import check_promises
    from stepwell.structured_logging import escape_text

    with Console(stderr=True).status("holding the rules to their promises") as status:
        return check_promises(
            rules.verdicts, lambda rule: status.update(f"holding {escape_text(rule.name)} ({rule.kind}) to its promise")
        )


def _promise_cells(report: "PromiseReport") -> tuple[str, ...]:
    if report.measure == "average_run_length":
        what, stated = "average run length", f"at least {_figure(report.promised)}"
        low, high = _figure(report.low), _figure(report.high) if report.high is not None else "or more"
        exact = f"{_figure(report.exact)} exactly" if report.exact is not None else ""
    else:
        what, stated = "false alarm ever", f"at most {report.promised:.3g}"
        low, high = f"{report.low:.2g}", f"{report.high:.2g}" if report.high is not None else "or more"
        exact = f"{report.exact:.3g} exactly" if report.exact is not None else ""
    found = exact or (f"{low} {high}" if report.high is None else f"{low} to {high}")
    early = f"{report.early * 100:.3g} % within {report.early_episodes}" if report.early is not None else ""
    return report.rule, report.kind, what, stated, found, report.found_by, early, report.shown.value


def _figure(episodes: float) -> str:
    return f"{episodes:,.0f}" if episodes < 1e9 else f"{episodes:.3g}"


# --- what is in force ---------------------------------------------------------------------------------------------


def _in_force() -> "tuple[RuleSet, dict[str, Any]]":
    """The set in force and where it comes from. Without a log, or without a set in it, the built-in one is."""
    from stepwell.adapters.rules.in_force import activations
    from stepwell.engine.ruleset import BUILT_IN
    from stepwell.events.plain import time_text
    from stepwell.exceptions import NotFoundError

    try:
        with opened_log(must_exist=True) as log:
            known = activations(log, codec_in_force())
    except NotFoundError:
        known = []
    if not known:
        return BUILT_IN, {"activated_by": None, "activated_at": None}
    last = known[-1]
    return last.rules(), {"activated_by": last.event.activated_by, "activated_at": time_text(last.recorded_at)}


def _list_activations(*, as_json: bool) -> None:
    from stepwell.adapters.rules.in_force import activations
    from stepwell.events.plain import as_text, time_text

    with opened_log(must_exist=True) as log:
        known = activations(log, codec_in_force())
    rows = [
        {
            "rule_set": each.event.rule_set,
            "version": each.event.version,
            "activated_at": time_text(each.recorded_at),
            "activated_by": each.event.activated_by,
            "sha256": each.event.sha256.hex(),
            "in_force": each is known[-1],
        }
        for each in known
    ]
    if as_json:
        for row in rows:
            typer.echo(as_text(row))
        return
    if not rows:
        typer.echo("no set was activated: the built-in one is in force")
        return
    cells = [(*list(row.values())[:4], str(row["sha256"])[:8], "in force" if row["in_force"] else "") for row in rows]
    columns = ("rule set", "version", "activated at", "by", "sha256", "")
    console().print(plain_table(*columns, rows=cells, whole=("rule set",)))


def _told(source: dict[str, Any]) -> str:
    if "file" in source:
        return f"of {source['file']}"
    if source["activated_by"] is None:
        return "built in: no other was activated"
    return f"in force since {source['activated_at']}, activated by {source['activated_by']}"


# --- printing -----------------------------------------------------------------------------------------------------


def _print_rules(out: "Console", rules: "RuleSet") -> None:
    from stepwell.adapters.rules.words import effect, judged_per, looks_for, promised

    if rules.steps:
        cells = [(rule.name, rule.kind, looks_for(rule), effect(rule)) for rule in rules.steps]
        out.print(plain_table("rule", "kind", "looks for", "gives", rows=cells, whole=("rule",), title="\nover steps"))
    if rules.verdicts:
        rows = [
            (rule.name, rule.version, rule.kind, looks_for(rule), judged_per(rule), promised(rule))
            for rule in rules.verdicts
        ]
        columns = ("rule", "version", "kind", "looks for", "per", "promise")
        out.print(plain_table(*columns, rows=rows, whole=("rule",), title="\nover verdicts"))
    if not rules.steps and not rules.verdicts:
        out.print("no rules: nothing is looked for")


def _as_plain(rules: "RuleSet") -> dict[str, Any]:
    """The set with every default written out, and each rule's meaning in words."""
    from stepwell.adapters.rules.words import judged_per, looks_for, promised

    body: dict[str, Any] = rules.model_dump(mode="json")
    for key, models in (("steps", rules.steps), ("verdicts", rules.verdicts)):
        for entry, rule in zip(body[key], models, strict=True):
            entry |= {"looks_for": looks_for(rule), "judged_per": judged_per(rule), "promise_text": promised(rule)}
    return body | {"sha256": rules.sha256().hex()}
