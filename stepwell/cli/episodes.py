"""``stepwell episodes | show | replay | verify``: what the log says, folded here and now."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepwell.cli.resources import opened_log
from stepwell.cli.tables import plain_table
from stepwell.exceptions import ConfigurationError, NotFoundError, VerificationError

if TYPE_CHECKING:
    from rich.console import Console

    from stepwell.adapters.verify import FoldReport
    from stepwell.engine.ports import MessageLog
    from stepwell.engine.replay import FoldedHistory, ReplayStep
    from stepwell.engine.state import AttemptState, EpisodeState, Position
    from stepwell.events.codec import Codec
    from stepwell.events.model import Event, VerdictIssued

EpisodeArgument = Annotated[
    str, typer.Argument(metavar="EPISODE", help="Episode id, or the beginning of one.", show_default=False)
]
JsonOption = Annotated[bool, typer.Option("--json", help="One line of JSON each.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("episodes")(episodes)
    app.command("show")(show)
    app.command("replay")(replay)
    app.command("verify")(verify)


def episodes(
    run_id: Annotated[str | None, typer.Option("--run", help="Only of this run.")] = None,
    policy: Annotated[str | None, typer.Option(help="Only of this policy.")] = None,
    outcome: Annotated[
        str | None, typer.Option(help="Only those that came to this: success, failure, error, aborted or running.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the latest.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """List episodes, folded from the log."""
    from rich.console import Console

    from stepwell.adapters.history import fold_episodes
    from stepwell.events.codec import Codec

    known = ("success", "failure", "error", "aborted", "running")
    if outcome is not None and outcome not in known:
        raise ConfigurationError(f"--outcome {outcome}: expected one of {', '.join(known)}")
    codec = Codec()
    with opened_log() as log:
        rows = [_row(state) for state in fold_episodes(log, codec).values()]
    wanted = {"run": run_id, "policy": policy, "outcome": outcome}
    rows = [row for row in rows if all(value in (None, row[name]) for name, value in wanted.items())]
    shown = rows[-limit:]
    if as_json:
        _print_json(shown)
        return
    cells = []
    for row in shown:
        where = row["scene"] if row["perturbation"] in ("none", "") else f"{row['scene']} + {row['perturbation']}"
        cause = f"{row['failure_type']} ({row['fault']})" if row["failure_type"] else ""
        cells.append((row["episode"], row["policy"], where, row["seed"], row["outcome"], cause, row["steps"]))
    columns = ("episode", "policy", "where", "seed", "outcome", "cause (fault)", "steps")
    console = Console(highlight=False)
    console.print(plain_table(*columns, rows=cells, whole=("episode",)))
    if len(shown) < len(rows):
        console.print(f"the latest {len(shown)} of {len(rows)}; --limit shows more")


def show(episode: EpisodeArgument, as_json: JsonOption = False) -> None:
    """Show one episode: its attempts, verdicts, certificate and provenance."""
    from rich.console import Console

    from stepwell.engine.replay import fold_history
    from stepwell.events.codec import Codec
    from stepwell.events.plain import as_plain

    codec = Codec()
    with opened_log() as log:
        history = _history(log, codec, episode)
    folded = fold_history(history)
    if as_json:
        _print_json([as_plain(verdict) for verdict in folded.verdicts.values()])
        return
    _print_episode(Console(highlight=False), folded, len(history))


def replay(
    episode: EpisodeArgument,
    attempt: Annotated[int | None, typer.Option(min=1, help="Only this attempt.")] = None,
    last: Annotated[int | None, typer.Option(min=1, help="Only the last so many events.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Fold an episode again from the log alone, event by event, and compare with the verdict on record."""
    from rich.console import Console

    from stepwell.engine.replay import replay as replay_events
    from stepwell.events.codec import Codec
    from stepwell.events.plain import as_plain

    codec = Codec()
    with opened_log() as log:
        history = _history(log, codec, episode)
        on_record = _verdicts_on_record(log, codec, history[0][0].episode_id)
    steps = [step for step in replay_events(history) if attempt in (None, step.event.attempt)]
    if not steps:
        raise NotFoundError(f"episode {history[0][0].episode_id} has no attempt {attempt}")
    shown = steps[-last:] if last else steps
    if as_json:
        _print_json([as_plain(step.event) | {"replay": _step_as_plain(step)} for step in shown])
        return
    console = Console(highlight=False)
    _print_replay(console, shown, len(steps) - len(shown))
    differences = _print_comparison(console, history, on_record)
    if differences:
        raise VerificationError(differences[0])


def verify(
    episode: Annotated[
        list[str] | None, typer.Argument(metavar="[EPISODE]...", help="Episode ids, or the beginning of one.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every episode in the log, and every table.")] = False,
) -> None:
    """Fold episodes again from the log; compare verdicts, snapshots and (with --all) every row of the tables.

    Exits with 1 and names the first difference when something differs.
    """
    from rich.console import Console

    from stepwell.adapters.verify import verify_folds
    from stepwell.events.codec import Codec

    if bool(episode) == everything:
        raise ConfigurationError("verify wants either episodes or --all")
    console = Console(highlight=False)
    codec = Codec()
    with opened_log() as log:
        wanted = None if everything else [_resolve(log, name) for name in episode or ()]
        report = verify_folds(log, codec, wanted)
        differences = list(report.differences)
        _print_fold_report(console, report)
        if everything:
            differences += _verify_tables(console, log, codec)
    if differences:
        more = f"\n… and {len(differences) - 1} more" if len(differences) > 1 else ""
        raise VerificationError(f"first difference: {differences[0]}{more}")
    console.print("no difference")


# --- reading ------------------------------------------------------------------------------------------------------


def _history(log: "MessageLog", codec: "Codec", episode: str) -> "list[tuple[Event, Position]]":
    from stepwell.adapters.history import read_episode_events

    return list(read_episode_events(log, codec, [_resolve(log, episode)]))


def _resolve(log: "MessageLog", episode: str) -> str:
    """The whole id of the episode that begins so."""
    from stepwell.adapters.logs.reading import read_batches
    from stepwell.events.topics import EPISODE_EVENTS

    prefix = episode.encode()
    found: set[bytes] = set()
    for batch in read_batches(log, EPISODE_EVENTS):
        found.update(key for key in batch.keys if key is not None and key.startswith(prefix))
    if prefix in found:
        return episode
    names = sorted(key.decode("utf-8", "replace") for key in found)
    if len(names) > 1:
        raise NotFoundError(
            f"{len(names)} episodes begin with {episode!r}: {', '.join(names[:5])} …; give more of the id"
        )
    if not names:
        raise NotFoundError(f"no episode in the log begins with {episode!r}; stepwell episodes lists them")
    return names[0]


def _verdicts_on_record(log: "MessageLog", codec: "Codec", episode_id: str) -> "dict[int, VerdictIssued]":
    """The last revision of each attempt's verdict, as the engine wrote it."""
    from stepwell.adapters.verify import latest_verdicts

    return {attempt: verdict for (_, attempt), verdict in latest_verdicts(log, codec, [episode_id]).items()}


def _row(state: "EpisodeState") -> dict[str, Any]:
    from stepwell.adapters.history import latest_attempt
    from stepwell.adapters.runs.summary import counting_verdict

    attempt = latest_attempt(state)
    verdict = counting_verdict(state)
    request = attempt.request if attempt is not None else None
    return {
        "episode": state.episode_id,
        "run": attempt.run_id if attempt else "",
        "policy": request.policy if request else "",
        "task": request.task if request else "",
        "scene": request.scene if request else "",
        "perturbation": request.perturbation if request else "",
        "seed": request.seed if request else "",
        "attempts": len(state.attempts),
        "outcome": verdict.outcome if verdict else "running",
        "failure_type": verdict.failure_type if verdict else None,
        "fault": verdict.fault if verdict else None,
        "steps": verdict.n_steps if verdict else (attempt.steps if attempt else 0),
    }


# --- printing -----------------------------------------------------------------------------------------------------


def _print_json(rows: list[dict[str, Any]]) -> None:
    from stepwell.events.plain import as_text

    for row in rows:
        typer.echo(as_text(row))


def _print_episode(console: "Console", folded: "FoldedHistory", n_events: int) -> None:
    from stepwell.engine.state import AttemptState

    state = folded.state
    console.print(f"{state.episode_id}: {len(state.attempts)} attempts, {n_events} events", markup=False)
    for number, attempt in sorted(state.attempts.items()):
        if not isinstance(attempt, AttemptState):
            continue
        _print_attempt(console, attempt)
        verdict = folded.verdicts.get(number)
        if verdict is not None:
            _print_verdict(console, verdict)
    for finding in folded.findings:
        console.print(f"  {finding.kind}: {finding.detail}", markup=False)


def _print_attempt(console: "Console", attempt: "AttemptState") -> None:
    request = attempt.request
    console.print(f"\n[bold]attempt {attempt.attempt}[/bold]: {attempt.phase}" + (", sealed" if attempt.sealed else ""))
    if request is not None:
        console.print(f"  {request.policy} {request.policy_version} in {request.task}", markup=False)
        console.print(
            f"  scene {request.scene}, perturbation {request.perturbation}, seed {request.seed}, "
            f"repetition {request.repetition}, run {attempt.run_id}",
            markup=False,
        )


def _print_verdict(console: "Console", verdict: "VerdictIssued") -> None:
    cause = f": {verdict.failure_type}, {verdict.fault}'s fault" if verdict.failure_type else ""
    console.print(f"  [bold]{verdict.outcome}[/bold]{cause} (revision {verdict.revision})")
    if verdict.message:
        for line in verdict.message.splitlines():
            console.print(f"    {line}", markup=False)
    console.print(f"  {verdict.n_steps} steps, total reward {verdict.total_reward:g}, autonomous: {verdict.autonomous}")
    for metric in verdict.metrics:
        console.print(f"    {metric.name} {metric.value:g}", markup=False)
    if verdict.labels:
        console.print(f"  labels: {', '.join(verdict.labels)}", markup=False)
    certificate = verdict.certificate
    notes = f" ({', '.join(certificate.notes)})" if certificate.notes else ""
    console.print(
        f"  evidence {certificate.status}{notes}: {certificate.lost_count} lost, {certificate.late_count} late, "
        f"{certificate.duplicate_count} doubled, {certificate.violation_count} violations"
    )
    origin = verdict.provenance
    console.print(
        f"  from partition {origin.partition}, offsets {origin.first_offset} to {origin.last_offset}; "
        f"{origin.simulator} {origin.simulator_version}; fold {origin.fold_hash[:12]}, rules {origin.rule_set}",
        markup=False,
    )


def _print_replay(console: "Console", steps: "list[ReplayStep]", left_out: int) -> None:
    if left_out:
        console.print(f"({left_out} events before these)")
    console.print(
        f"{'offset':>7}  {'event':<27}{'step':>5}{'sim s':>9}  {'state':<14} {'reward':>8}  next", markup=False
    )
    for step in steps:
        event = step.event
        sim_time = "" if event.sim_time is None else f"{event.sim_time:.3f}"
        owed = f"{step.owes} {step.owes_seq}" if step.owes else ""
        notes: list[str] = [] if step.fate == "applied" else [step.fate]
        notes += [f"{step.released} released"] if step.released else []
        notes += ["paused"] if step.paused else []
        console.print(
            f"{step.position.offset:>7}  {event.TYPE + ' ' + str(event.producer_seq):<27}"
            f"{'' if event.step is None else event.step:>5}{sim_time:>9}  {step.after:<14} {step.total_reward:>8.4g}  "
            f"{owed:<8}{', '.join(notes)}".rstrip(),
            markup=False,
            soft_wrap=True,
        )
    for step in steps:
        for finding in step.findings:
            console.print(f"offset {step.position.offset}: {finding.kind}: {finding.detail}", markup=False)


def _print_comparison(
    console: "Console", history: "list[tuple[Event, Position]]", on_record: "dict[int, VerdictIssued]"
) -> list[str]:
    """Say of each attempt whether the fold agrees with the verdict on record; the differences."""
    from stepwell.adapters.verify import first_difference
    from stepwell.engine.replay import fold_history
    from stepwell.engine.verdict import same_verdict

    differences = []
    folded = fold_history(history)
    for number in sorted(folded.state.attempts):
        verdict, said = folded.verdicts.get(number), on_record.get(number)
        if verdict is None:
            console.print(f"attempt {number}: no end yet, so no verdict")
        elif said is None:
            console.print(f"attempt {number}: {verdict.outcome}; no engine has judged it yet (stepwell work does)")
        elif same_verdict(verdict, said):
            cause = f", {verdict.failure_type}, {verdict.fault}'s fault" if verdict.failure_type else ""
            console.print(f"attempt {number}: {verdict.outcome}{cause}: [bold]same verdict[/bold] as on record")
        else:
            differences.append(f"attempt {number}: {first_difference(verdict, said)}")
    return differences


def _step_as_plain(step: "ReplayStep") -> dict[str, Any]:
    return {
        "partition": step.position.partition,
        "offset": step.position.offset,
        "fate": step.fate,
        "trigger": step.trigger,
        "before": step.before,
        "after": step.after,
        "paused": step.paused,
        "released": step.released,
        "waiting": step.waiting,
        "next_step": step.next_step,
        "covered_to": step.covered_to,
        "total_reward": step.total_reward,
        "owes": step.owes,
        "owes_seq": step.owes_seq,
        "revision": step.revision,
        "findings": [finding.detail for finding in step.findings],
    }


def _print_fold_report(console: "Console", report: "FoldReport") -> None:
    console.print(
        f"folded {report.events} events of {report.episodes} episodes again; compared {report.verdicts} verdicts, "
        f"{report.snapshots} snapshots, {report.seals} seals"
    )
    if report.other_folds:
        console.print(f"{report.other_folds} were made by another version of the fold and are not compared")
    if report.unread:
        console.print(f"{report.unread} events have not been read by an engine yet and are left out")


def _verify_tables(console: "Console", log: "MessageLog", codec: "Codec") -> list[str]:
    from stepwell.cli.resources import opened_database
    from stepwell.projections.audit import audit_tables
    from stepwell.projections.database import connect

    with opened_database() as url, connect(url, application="stepwell-verify") as connection:
        audit = audit_tables(log, codec, connection)
    console.print(f"made {audit.rows} rows again and compared them with the tables")
    return [str(difference) for difference in audit.differences]
