"""``stepwell run``: run the episodes that a spec asks for."""

import collections
import contextlib
import itertools
import re
import signal
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stepwell.cli.resources import codec_in_force, opened_log
from stepwell.cli.tables import console, counted, plain_table
from stepwell.exceptions import ConfigurationError

if TYPE_CHECKING:
    from rich.console import Console

    from stepwell.adapters.runs.attempt import AttemptResult
    from stepwell.adapters.runs.host import Host, Progress
    from stepwell.adapters.runs.plan import PlannedEpisode
    from stepwell.adapters.runs.summary import Summary
    from stepwell.adapters.runs.todo import Todo
    from stepwell.engine.ports import MessageLog
    from stepwell.engine.state import EpisodeState

EXIT_INTERRUPTED = 130
RUN_ID_CHARS_MAX = 120
FAILED_SHOWN = 3
PLAIN_FAILURES = ("max_steps", "truncated", "terminated")
"""The host's endings to which step rules may give a failure type."""
SHORT_ID = 11
"""Characters of an episode's id in a line of progress: enough to find it by."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("run")(run)


def run(
    spec_file: Annotated[Path, typer.Argument(metavar="SPEC.yaml", help="What to run.", show_default=False)],
    run_id: Annotated[
        str | None,
        typer.Option(help="Name of the run; giving that of an earlier one runs only what is missing of it."),
    ] = None,
    parallel: Annotated[
        int | None, typer.Option(min=1, max=256, help="Episodes side by side; overrides the spec.")
    ] = None,
    retry_errors: Annotated[bool, typer.Option(help="Try episodes again that ended in an error.")] = False,
    mix_definitions: Annotated[
        bool, typer.Option(help="Go on under a run id that has episodes of another definition.")
    ] = False,
    telemetry: Annotated[
        bool, typer.Option(help="Publish speed, CPU, memory and GPU figures while the episodes run.")
    ] = True,
    check: Annotated[bool, typer.Option("--check", help="Only check the spec and say what would run.")] = False,
) -> None:
    """Run a matrix of policies × scenes × seeds × perturbations in real simulators.

    The spec is checked whole before anything starts. Ctrl-C ends running episodes as aborted; the same command with
    --run-id runs what is missing.
    """
    from stepwell.adapters.runs.host import Host
    from stepwell.adapters.runs.identity import hold_identity
    from stepwell.adapters.runs.plan import plan
    from stepwell.adapters.runs.spec import load_spec
    from stepwell.adapters.runs.summary import summarise
    from stepwell.settings import get_settings

    out = console()
    spec = load_spec(spec_file)
    run_id = _checked_run_id(run_id) if run_id else _new_run_id(spec.run)
    episodes = plan(spec, run_id)
    if check:
        out.print(f"{spec_file}: fine; {counted(len(episodes), 'episode')}")
        return
    with opened_log() as log, hold_identity(get_settings().home, run_id) as identity:
        others = _other_definitions(log, run_id, episodes, go_on=mix_definitions)
        host = Host(
            log,
            codec_in_force(writing=True),
            identity,
            parallel=parallel or spec.parallel,
            retry_errors=retry_errors,
            telemetry=telemetry,
        )
        states, interrupted = run_episodes(out, log, host, run_id, episodes)
    summary = summarise(states, planned=len(episodes))
    print_summary(out, summary)
    if others:
        out.print(f"not counted here: {counted(others, 'episode')} of another definition under the same run id")
    _print_failed(out, run_id, states)
    if interrupted or summary.total.missing or summary.total.aborted:
        out.print(f"to run what is missing: stepwell run {spec_file} --run-id {run_id}", markup=False, soft_wrap=True)
    if interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)


def run_episodes(
    out: "Console", log: "MessageLog", host: "Host", run_id: str, episodes: "list[PlannedEpisode]"
) -> "tuple[list[EpisodeState], bool]":
    """Run what is missing of the episodes and show progress: (the folded episodes, whether it was interrupted)."""
    todos = host.standing(episodes)
    out.print(_opening(run_id, todos))
    interrupted = _run(out, host, todos, _step_rules_assign(log))
    return _folded(log, todos), interrupted


def _other_definitions(log: "MessageLog", run_id: str, episodes: "list[PlannedEpisode]", *, go_on: bool) -> int:
    """How many episodes the log has of this run that the plan does not ask for; refused unless ``go_on``."""
    from stepwell.adapters.runs.definitions import not_planned

    others = len(not_planned(log, codec_in_force(), run_id, [episode.episode_id for episode in episodes]))
    if others and not go_on:
        raise ConfigurationError(
            f"run {run_id} has {counted(others, 'episode')} of another definition: the spec was edited since, or is"
            " another one; give the run another --run-id, or --mix-definitions to go on"
        )
    return others


def _print_failed(out: "Console", run_id: str, states: "list[EpisodeState]") -> None:
    """Where to look further: the first few episodes without success."""
    from stepwell.adapters.runs.summary import counting_verdict

    verdicts = [counting_verdict(state) for state in states]
    failed = [each for each in verdicts if each is not None and each.outcome in ("failure", "error")]
    first_of_each = {(each.policy, each.failure_type): each for each in reversed(failed)}.values()
    failed.sort(key=lambda each: each not in first_of_each)  # different failures say more than three of a kind
    for verdict in failed[:FAILED_SHOWN]:
        out.print(
            f"failed: {verdict.episode_id}: {verdict.failure_type} (stepwell show {verdict.episode_id})",
            markup=False,
            soft_wrap=True,
        )
    if len(failed) > FAILED_SHOWN:
        out.print(f"… and {len(failed) - FAILED_SHOWN} more: stepwell episodes --run {run_id}")


def print_summary(out: "Console", summary: "Summary") -> None:
    """Counts and rates with Wilson intervals, by policy, scene and perturbation."""
    from stepwell.adapters.runs.summary import describe_rate

    rows = []
    for group in summary.groups:
        causes = "\n".join(f"{n} × {what} ({fault})" for (fault, what), n in sorted(group.causes.items()))
        tally = group.tally
        rate = describe_rate(tally.succeeded, tally.scored, tally.interval_of_scored)
        where = group.scene if group.perturbation == "none" else f"{group.scene} + {group.perturbation}"
        rows.append((group.policy, where, tally.planned, rate, causes))
    columns = ("policy", "scene", "planned", "success of scored (95 %)", "cause (fault)")
    out.print(plain_table(*columns, rows=rows, whole=("policy",)))
    total = summary.total
    out.print(
        f"planned {total.planned} · attempted {total.attempted} · errored {total.errored} · scored {total.scored}"
        + (f" · aborted {total.aborted}" if total.aborted else "")
        + (f" · missing {total.missing}" if total.missing else "")
    )
    scored = describe_rate(total.succeeded, total.scored, total.interval_of_scored)
    everything = describe_rate(total.succeeded, total.scored + total.errored, total.interval_with_errors)
    out.print(f"success rate, errors excluded:    {scored}")
    out.print(f"success rate, errors as failures: {everything}")


def _step_rules_assign(log: "MessageLog") -> bool:
    """Whether the verdict may give a plain failure another type than the host tells."""
    from stepwell.adapters.rules.in_force import rules_in_force

    try:
        return any(rule.assigns for rule in rules_in_force(log, codec_in_force()).steps)
    except ConfigurationError:  # a set that this version cannot read may do so
        return True


def _run(out: "Console", host: "Host", todos: "list[Todo]", assigning: bool) -> bool:
    """Run and show progress; whether it was interrupted."""
    stop = threading.Event()
    finished = sum(todo.standing in ("done", "elsewhere") for todo in todos)
    with _stopped_by_signals(stop, out), _progress(out, len(todos), finished, assigning) as progress:
        host.run(todos, stop, progress)
    return stop.is_set()


@contextlib.contextmanager
def _progress(out: "Console", total: int, finished: int, assigning: bool) -> "Iterator[Progress]":
    """A bar on a terminal; elsewhere, one line for each attempt."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    if not out.is_terminal:
        count = itertools.count(finished + 1)
        yield lambda episode, result: out.print(f"{next(count):>4}/{total}  {_told(episode, result, assigning)}")
        return
    columns = (TextColumn("episodes"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Bar(*columns, TextColumn("{task.description}"), console=out) as bar:
        task = bar.add_task("", total=total, completed=finished)
        yield lambda episode, result: bar.update(task, advance=1, description=_told(episode, result, assigning))


def _told(episode: "PlannedEpisode", result: "AttemptResult", assigning: bool) -> str:
    """How an attempt ended; the host does not know what step rules make of a plain failure."""
    open_ = ", before step rules" if assigning and result.ending in PLAIN_FAILURES else ""
    return (
        f"{episode.episode_id[:SHORT_ID]}  {episode.policy.name} in {episode.scene}, seed {episode.seed}:"
        f" {result.told()} ({counted(result.n_steps, 'step')}{open_})"
    )


@contextlib.contextmanager
def _stopped_by_signals(stop: threading.Event, out: "Console") -> "Iterator[None]":
    """Ctrl-C and SIGTERM set ``stop``; a second one ends at once, without waiting for the steps that run."""

    def handle(_number: int, _frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        out.print("ending after the steps that run now; once more to end at once")

    earlier = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def _opening(run_id: str, todos: "list[Todo]") -> str:
    counts: collections.Counter[str] = collections.Counter(todo.standing for todo in todos)
    told = {
        "done": "already done",
        "interrupted": "interrupted earlier",
        "again": "to be tried again",
        "elsewhere": "with another host",
    }
    parts = [f"{counts[standing]} {text}" for standing, text in told.items() if counts[standing]]
    return f"run {run_id}: {counted(len(todos), 'episode')}" + (f" ({', '.join(parts)})" if parts else "")


def _folded(log: "MessageLog", todos: "list[Todo]") -> "list[EpisodeState]":
    """The run's episodes as the log has them now, in the order of the plan."""
    from stepwell.adapters.history import fold_episodes

    episode_ids = [todo.episode.episode_id for todo in todos]
    folded = fold_episodes(log, codec_in_force(), episode_ids)
    return [folded[episode_id] for episode_id in episode_ids if episode_id in folded]


def _new_run_id(name: str) -> str:
    return f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"


def _checked_run_id(run_id: str) -> str:
    from stepwell.adapters.runs.spec import NAME_PATTERN

    if not re.fullmatch(NAME_PATTERN.removesuffix("$"), run_id) or len(run_id) > RUN_ID_CHARS_MAX:
        raise ConfigurationError(
            f"--run-id {run_id!r}: expected up to {RUN_ID_CHARS_MAX} letters, digits, dots, dashes and underscores"
        )
    return run_id
