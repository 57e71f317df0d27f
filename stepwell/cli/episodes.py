"""``stepwell episodes | show | replay | verify``: what the log says, folded here and now."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepwell.cli.resources import codec_in_force, opened_log
from stepwell.cli.tables import console, counted, plain_table
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
        str | None,
        typer.Option(help="Only those that came to this: success, failure, error, aborted, running or pending."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the latest.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """List episodes, folded from the log, by the time at which they were asked for."""
    from stepwell.adapters.history import fold_episodes
    from stepwell.adapters.runs.summary import requested_at

    known = ("success", "failure", "error", "aborted", "running", "pending")
    if outcome is not None and outcome not in known:
        raise ConfigurationError(f"--outcome {outcome}: expected one of {', '.join(known)}")
    codec = codec_in_force()
    with opened_log(must_exist=True) as log:
        everything = [_row(state) for state in sorted(fold_episodes(log, codec).values(), key=requested_at)]
    wanted = {"run_id": run_id, "policy": policy, "outcome": outcome}
    rows = [row for row in everything if all(value in (None, row[name]) for name, value in wanted.items())]
    shown = rows[-limit:]
    if as_json:
        _print_json(shown)
        return
    if not shown:
        typer.echo(_nothing_of(wanted, everything))
        return
    cells = []
    for row in shown:
        where = row["scene"] if row["perturbation"] in ("none", "") else f"{row['scene']} + {row['perturbation']}"
        cause = f"{row['failure_type']} ({row['fault']})" if row["failure_type"] else ""
        cells.append((row["episode"], row["policy"], where, row["seed"], row["outcome"], cause, row["steps"]))
    columns = ("episode", "policy", "where", "seed", "outcome", "cause (fault)", "steps")
    out = console()
    out.print(plain_table(*columns, rows=cells, whole=("episode", "policy", "outcome")))
    if len(shown) < len(rows):
        out.print(f"the latest {len(shown)} of {len(rows)}; --limit shows more")


NAMED_MAX = 20
"""So many of a log's runs and policies are named where none was found."""


def _nothing_of(wanted: "dict[str, str | None]", rows: list[dict[str, Any]]) -> str:
    """That a list is empty, and what it could have been asked for."""
    if not rows:
        return "no episodes in this log yet"
    asked = " and ".join(f"{name.removesuffix('_id')} {value}" for name, value in wanted.items() if value is not None)
    lines = [f"no episodes of {asked}"]
    for name, plural in (("run_id", "runs"), ("policy", "policies")):
        there = list(dict.fromkeys(str(row[name]) for row in rows))
        more = f" and {len(there) - NAMED_MAX} more" if len(there) > NAMED_MAX else ""
        lines.append(f"{plural} in this log: {', '.join(there[-NAMED_MAX:])}{more}")
    return "; ".join(lines)


def show(episode: EpisodeArgument, as_json: JsonOption = False) -> None:
    """Show one episode: its attempts, verdicts, certificate and provenance."""
    from stepwell.engine.replay import fold_history
    from stepwell.events.plain import as_plain

    codec = codec_in_force()
    with opened_log(must_exist=True) as log:
        history = _history(log, codec, episode)
    folded = fold_history(history)
    if as_json:
        _print_json([as_plain(verdict) for verdict in folded.verdicts.values()])
        return
    _print_episode(console(), folded, len(history))


def replay(
    episode: EpisodeArgument,
    attempt: Annotated[int | None, typer.Option(min=1, help="Only this attempt.")] = None,
    last: Annotated[int | None, typer.Option(min=1, help="Only the last so many events.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Fold an episode again from the log alone, event by event, and compare with the verdict on record."""
    from stepwell.engine.replay import fold_history
    from stepwell.engine.replay import replay as replay_events
    from stepwell.events.plain import as_plain

    codec = codec_in_force()
    with opened_log(must_exist=True) as log:
        history = _history(log, codec, episode)
        on_record = _verdicts_on_record(log, codec, history[0][0].episode_id)
    steps = [step for step in replay_events(history) if attempt in (None, step.event.attempt)]
    if not steps:
        raise NotFoundError(f"episode {history[0][0].episode_id} has no attempt {attempt}")
    shown = steps[-last:] if last else steps
    if as_json:
        _print_json([as_plain(step.event) | {"replay": _step_as_plain(step)} for step in shown])
        return
    out, folded = console(), fold_history(history)
    _print_replay(out, shown, len(steps) - len(shown), _labels_at(folded.verdicts))
    differences = _print_comparison(out, folded, on_record)
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
    from stepwell.adapters.verify import verify_folds

    if bool(episode) == everything:
        raise ConfigurationError("verify wants either episodes or --all")
    out = console()
    codec = codec_in_force()
    with opened_log(must_exist=True) as log:
        wanted = None if everything else [_resolve(log, name) for name in episode or ()]
        report = verify_folds(log, codec, wanted)
        differences = list(report.differences)
        _print_fold_report(out, report)
        if not differences:
            _check_that_compared(report, wanted)
        if everything:
            differences += _verify_tables(out, log, codec)
    if differences:
        more = f"\n… and {len(differences) - 1} more" if len(differences) > 1 else ""
        raise VerificationError(f"first difference: {differences[0]}{more}")
    out.print("no difference")


def _check_that_compared(report: "FoldReport", wanted: "list[str] | None") -> None:
    """A verification that had nothing to compare is none, and must not look like one that found no difference."""
    why = "no engine has read {} yet (stepwell work does)"
    if report.events:
        why = "{}: going on, and the log holds no verdict, snapshot or seal yet"
    if report.other_folds:
        why = "what the log holds of {} was made by another version of the fold"
    if wanted is None:
        if (report.events or report.unread) and not report.compared:
            raise VerificationError(f"nothing to compare: {why.format('the episodes')}")
        return
    untouched = [episode_id for episode_id in wanted if episode_id not in report.compared]
    if untouched:
        raise VerificationError(f"nothing to compare: {why.format(', '.join(untouched))}")


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
        "run_id": attempt.run_id if attempt else "",
        "policy": request.policy if request else "",
        "task": request.task if request else "",
        "scene": request.scene if request else "",
        "perturbation": request.perturbation if request else "",
        "seed": request.seed if request else "",
        "attempts": len(state.attempts),
        "outcome": verdict.outcome if verdict else "running" if attempt and _begun(attempt) else "pending",
        "failure_type": verdict.failure_type if verdict else None,
        "fault": verdict.fault if verdict else None,
        "steps": verdict.n_steps if verdict else (attempt.steps if attempt else 0),
    }


def _begun(attempt: "AttemptState") -> bool:
    """Whether a host took it, or its simulator is past starting; the view ``episode_results`` follows the same rule."""
    return attempt.claimed or attempt.phase not in ("REQUESTED", "INIT")


# --- printing -----------------------------------------------------------------------------------------------------


def _print_json(rows: list[dict[str, Any]]) -> None:
    from stepwell.events.plain import as_text

    for row in rows:
        typer.echo(as_text(row))


def _print_episode(out: "Console", folded: "FoldedHistory", n_events: int) -> None:
    from stepwell.adapters.runs.summary import counting_verdict
    from stepwell.engine.state import AttemptState

    state = folded.state
    counting = counting_verdict(state)
    counts = f"; attempt {counting.attempt} counts" if counting is not None and len(state.attempts) > 1 else ""
    told = f"{counted(len(state.attempts), 'attempt')}, {counted(n_events, 'event')}{counts}"
    out.print(f"{state.episode_id}: {told}", markup=False)
    for number, attempt in sorted(state.attempts.items()):
        if not isinstance(attempt, AttemptState):
            continue
        _print_attempt(out, attempt)
        verdict = folded.verdicts.get(number)
        if verdict is not None:
            _print_verdict(out, verdict)
    for finding in folded.findings:
        out.print(f"  {finding.kind}: {finding.detail}", markup=False)


def _print_attempt(out: "Console", attempt: "AttemptState") -> None:
    request = attempt.request
    out.print(f"\n[bold]attempt {attempt.attempt}[/bold]: {attempt.phase}" + (", sealed" if attempt.sealed else ""))
    if request is not None:
        out.print(f"  {request.policy} {request.policy_version} in {request.task}", markup=False)
        out.print(
            f"  scene {request.scene}, perturbation {request.perturbation}, seed {request.seed}, "
            f"repetition {request.repetition}, run {attempt.run_id}",
            markup=False,
        )


def _print_verdict(out: "Console", verdict: "VerdictIssued") -> None:
    cause = f": {verdict.failure_type}, {verdict.fault}'s fault" if verdict.failure_type else ""
    out.print(f"  [bold]{verdict.outcome}[/bold]{cause} (revision {verdict.revision})")
    if verdict.message:
        for line in verdict.message.splitlines():
            out.print(f"    {line}", markup=False)
    out.print(
        f"  {counted(verdict.n_steps, 'step')}, total reward {verdict.total_reward:g}, autonomous: {verdict.autonomous}"
    )
    for metric in verdict.metrics:
        out.print(f"    {metric.name} {metric.value:g}", markup=False)
    if verdict.labels:
        out.print(f"  labels: {', '.join(_labels(verdict))}", markup=False)
    certificate = verdict.certificate
    notes = f" ({', '.join(certificate.notes)})" if certificate.notes else ""
    out.print(
        f"  evidence {certificate.status}{notes}: {certificate.lost_count} lost, {certificate.late_count} late, "
        f"{certificate.duplicate_count} doubled, {counted(certificate.violation_count, 'violation')}"
    )
    origin = verdict.provenance
    out.print(
        f"  from partition {origin.partition}, offsets {origin.first_offset} to {origin.last_offset}; "
        f"{origin.simulator} {origin.simulator_version}; fold {origin.fold_hash[:12]}, rules {origin.rule_set}",
        markup=False,
    )


def _labels(verdict: "VerdictIssued") -> list[str]:
    """Its labels, those of a step with that step."""
    steps = dict(zip(verdict.labels, verdict.label_steps, strict=False))  # verdicts of old have no steps
    return [f"{label} (step {steps[label]})" if steps.get(label, -1) >= 0 else label for label in verdict.labels]


def _labels_at(verdicts: "dict[int, VerdictIssued]") -> dict[tuple[int, int], list[str]]:
    """By attempt and step, the labels first found there."""
    found: dict[tuple[int, int], list[str]] = {}
    for number, verdict in verdicts.items():
        for label, step in zip(verdict.labels, verdict.label_steps, strict=False):
            found.setdefault((number, step), []).append(label)
    return found


def _print_replay(
    out: "Console", steps: "list[ReplayStep]", left_out: int, labels: dict[tuple[int, int], list[str]]
) -> None:
    if left_out:
        out.print(f"({counted(left_out, 'event')} before these)")
    head = ("offset", "event", "step", "sim s", "state", "reward", "next", "")
    lines = [head, *(_replay_cells(step, labels) for step in steps)]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    for line in lines:
        cells = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, _RIGHT, strict=True)
        )
        out.print(f" {'  '.join(cells)}".rstrip(), markup=False, soft_wrap=True)
    for step in steps:
        for finding in step.findings:
            out.print(f"offset {step.position.offset}: {finding.kind}: {finding.detail}", markup=False)


_RIGHT = (True, False, True, True, False, True, False, False)
"""Which of the columns of a replay are numbers."""


def _replay_cells(step: "ReplayStep", labels: dict[tuple[int, int], list[str]]) -> tuple[str, ...]:
    from stepwell.events.model import StepDone

    event = step.event
    notes: list[str] = [] if step.fate == "applied" else [step.fate]
    notes += [f"{step.released} released"] if step.released else []
    notes += ["paused"] if step.paused else []
    if isinstance(event, StepDone) and event.step is not None and step.fate in ("applied", "held"):
        notes += [f"label {label}" for label in labels.get((event.attempt, event.step), ())]
    return (
        str(step.position.offset),
        f"{event.TYPE} {event.producer_seq}",
        "" if event.step is None else str(event.step),
        "" if event.sim_time is None else f"{event.sim_time:.3f}",
        step.after,
        f"{step.total_reward:.4g}",
        f"{step.owes} {step.owes_seq}" if step.owes else "",
        ", ".join(notes),
    )


def _print_comparison(out: "Console", folded: "FoldedHistory", on_record: "dict[int, VerdictIssued]") -> list[str]:
    """Say of each attempt whether the fold agrees with the verdict on record; the differences."""
    from stepwell.adapters.verify import first_difference
    from stepwell.engine.verdict import same_verdict

    differences = []
    for number in sorted(folded.state.attempts):
        verdict, said = folded.verdicts.get(number), on_record.get(number)
        if verdict is None:
            out.print(f"attempt {number}: no end yet, so no verdict")
        elif said is None:
            out.print(f"attempt {number}: {verdict.outcome}; no engine has judged it yet (stepwell work does)")
        elif same_verdict(verdict, said):
            cause = f", {verdict.failure_type}, {verdict.fault}'s fault" if verdict.failure_type else ""
            out.print(f"attempt {number}: {verdict.outcome}{cause}: [bold]same verdict[/bold] as on record")
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


def _print_fold_report(out: "Console", report: "FoldReport") -> None:
    out.print(
        f"folded {counted(report.events, 'event')} of {counted(report.episodes, 'episode')} again; compared "
        f"{counted(report.verdicts, 'verdict')}, {counted(report.snapshots, 'snapshot')}, "
        f"{counted(report.seals, 'seal')}"
    )
    if not (report.events or report.unread):
        out.print("there are no episodes in this log")
    if report.other_folds:
        out.print(f"{report.other_folds} were made by another version of the fold and are not compared")
    if report.unread:
        out.print(f"{counted(report.unread, 'event')} in the log not read by an engine yet, and left out")


def _verify_tables(out: "Console", log: "MessageLog", codec: "Codec") -> list[str]:
    from stepwell.cli.resources import opened_database
    from stepwell.projections.audit.rows import audit_tables
    from stepwell.projections.database import connect

    with opened_database() as url, connect(url, application="stepwell-verify") as connection:
        audit = audit_tables(log, codec, connection)
    out.print(f"made {counted(audit.rows, 'row')} again and compared them with the tables")
    return [str(difference) for difference in audit.differences]
