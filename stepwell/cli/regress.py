"""``stepwell retrain regress``: run what a request wants to be run with the new checkpoint; before and after."""

from typing import TYPE_CHECKING, Annotated

import typer

from stepwell.cli.resources import codec_in_force, opened_log
from stepwell.cli.tables import console, counted, plain_table
from stepwell.exceptions import ConfigurationError, LogError, LogUnavailableError, StepwellError

if TYPE_CHECKING:
    from rich.console import Console

    from stepwell.adapters.runs.before_after import BeforeAfter, CellResult
    from stepwell.adapters.runs.regression import Regression
    from stepwell.engine.ports import MessageLog, TopicPartition, Watermarks
    from stepwell.events.codec import Codec
    from stepwell.events.model import RetrainRequested

EXIT_NOTHING_SCORED = 1
EXIT_INTERRUPTED = 130
FOLLOW_POLL_S = 1.0


def register(retrain: typer.Typer) -> None:
    """Add the command."""
    retrain.command("regress")(regress)


def regress(
    trigger: Annotated[
        str | None, typer.Argument(metavar="TRIGGER", help="Trigger id, or the beginning of one.", show_default=False)
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="The new checkpoint. Default: the one that the request was answered with.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Run it for every request answered as done with a new checkpoint.")
    ] = False,
    policy: Annotated[list[str] | None, typer.Option(help="With --follow: only these policies' requests.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="With --follow: leave after so many runs.")] = None,
    parallel: Annotated[int, typer.Option(min=1, max=256, help="Episodes side by side.")] = 1,
    retry_errors: Annotated[bool, typer.Option(help="Try episodes again that ended in an error.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Only check that it can be run, and say what would run.")
    ] = False,
) -> None:
    """Run the regression that a retrain request asks for, with the new checkpoint, and show before and after.

    The seeds that failed run with the new checkpoint; fresh seeds run with the new one and the old one, in the cells
    that failed and in up to four others. What to run comes from the log alone; the policy's files must be here. The
    same command again runs only what is missing.
    """
    if (trigger is None) != follow or (follow and checkpoint is not None):
        raise ConfigurationError("give TRIGGER, with --checkpoint NAME where it is not answered yet, or --follow alone")
    if not follow and (policy or limit):
        raise ConfigurationError("--policy and --limit go with --follow")
    if follow and check:
        raise ConfigurationError("--check goes with TRIGGER")
    out, codec = console(), codec_in_force(writing=True)
    with opened_log(must_exist=not follow) as log:
        runner = _Runner(out, log, codec, parallel, retry_errors)
        if follow:
            _follow(runner, frozenset(policy or ()), limit)
            return
        assert trigger is not None
        regression = runner.planned(trigger, checkpoint or runner.answered(trigger))
        if check:
            out.print(f"{regression.run_id}: fine; {_what(regression)}", markup=False, soft_wrap=True)
        else:
            runner.run(regression)
            if not runner.scored:
                raise typer.Exit(EXIT_NOTHING_SCORED)


class _Runner:
    """Plans and runs regressions on one log."""

    def __init__(self, out: "Console", log: "MessageLog", codec: "Codec", parallel: int, retry_errors: bool) -> None:
        self.out = out
        self.log = log
        self.codec = codec
        self.scored = True
        """Whether the last run gave anything to judge by."""
        self._parallel = parallel
        self._retry_errors = retry_errors

    def answered(self, trigger: str) -> str:
        """The checkpoint that a request was answered with."""
        from stepwell.adapters.retrain_history import find_request

        entry = find_request(self.log, self.codec, trigger)
        if entry.counting is None or not entry.counting.new_checkpoint:
            raise ConfigurationError(
                f"request {entry.request.trigger_id} is not answered with a new checkpoint; give --checkpoint NAME"
            )
        return entry.counting.new_checkpoint

    def planned(self, trigger: "str | RetrainRequested", checkpoint: str) -> "Regression":
        """The run, checked."""
        from stepwell.adapters.retrain_history import find_request
        from stepwell.adapters.runs.regression import plan_regression

        request = find_request(self.log, self.codec, trigger).request if isinstance(trigger, str) else trigger
        regression = plan_regression(self.log, self.codec, request, checkpoint)
        regression.check()
        return regression

    def run(self, regression: "Regression", *, quiet_if_done: bool = False) -> bool:
        """Run what is missing of it and show what came of it; whether there was anything to run."""
        from stepwell.adapters.runs.before_after import before_and_after
        from stepwell.adapters.runs.host import Host
        from stepwell.adapters.runs.identity import hold_identity
        from stepwell.cli.run import run_episodes
        from stepwell.settings import get_settings

        run_id, spec = regression.run_id, regression.spec
        with hold_identity(get_settings().home, run_id) as identity:
            host = Host(
                self.log, self.codec, identity, parallel=self._parallel, retry_errors=self._retry_errors, telemetry=True
            )
            if quiet_if_done and all(todo.standing == "done" for todo in host.standing(regression.episodes)):
                return False
            self.out.print(f"regression of {spec.trigger_id}: {_what(regression)}", markup=False, soft_wrap=True)
            _, interrupted = run_episodes(self.out, self.log, host, run_id, regression.episodes)
        results = before_and_after(self.log, self.codec, spec.trigger_id)
        print_before_after(self.out, [result for result in results if result.run_id == run_id])
        scored = any(each.total.pairs.n or each.total.again_scored for each in results if each.run_id == run_id)
        if interrupted:
            again = f"stepwell retrain regress {spec.trigger_id} --checkpoint {regression.checkpoint}"
            self.out.print(f"to run what is missing: {again}", markup=False, soft_wrap=True)
            raise typer.Exit(EXIT_INTERRUPTED)
        if not scored:
            self.out.print(f"nothing could be scored; see: stepwell episodes --run {run_id}", markup=False)
        self.scored = scored
        return True


def _what(regression: "Regression") -> str:
    """What runs, in words."""
    again = sum(len(plan.again) for plan in regression.cells)
    plans = (*regression.cells, *regression.others)
    fresh = sum(len(plan.fresh) for plan in plans)
    known = sum(pair.earlier is not None for plan in plans for pair in plan.fresh)
    return (
        f"{counted(again, 'seed')} that failed, with {regression.checkpoint}; {counted(fresh, 'fresh seed')}, with"
        f" {regression.checkpoint} and {regression.spec.baseline_checkpoint}"
        + (f" ({known} of the latter known from other runs)" if known else "")
        + f"; in {counted(len(regression.cells), 'cell')}"
        + (f" that failed and {counted(len(regression.others), 'other')}" if regression.others else "")
    )


def _follow(runner: _Runner, policies: frozenset[str], limit: int | None) -> None:
    """Run each regression once, as its answer comes; what was run before, here or elsewhere, is passed over."""
    from stepwell.adapters.workers.process import stopping_by_signal

    typer.echo("waiting for requests answered as done with a new checkpoint; Ctrl-C ends")
    seen: dict[TopicPartition, Watermarks] = {}
    judged: set[tuple[str, str]] = set()
    runs = 0
    with stopping_by_signal() as stop:
        while not stop.is_set() and (limit is None or runs < limit):
            try:
                if seen == (seen := _answers_until(runner)):
                    stop.wait(FOLLOW_POLL_S)
                    continue
                due = _due(runner, policies, judged)
            except LogUnavailableError:
                seen = {}
                stop.wait(FOLLOW_POLL_S)
                continue
            for request, checkpoint in due:
                if stop.is_set() or (limit is not None and runs >= limit):
                    break
                judged.add((request.trigger_id, checkpoint))
                runs += _run_one(runner, request, checkpoint)


def _answers_until(runner: _Runner) -> "dict[TopicPartition, Watermarks]":
    from stepwell.engine.reading import watermarks_of
    from stepwell.events.topics import RETRAIN_RESULTS

    return watermarks_of(runner.log, RETRAIN_RESULTS)


def _due(
    runner: _Runner, policies: frozenset[str], judged: set[tuple[str, str]]
) -> "list[tuple[RetrainRequested, str]]":
    """Requests whose counting answer is ``done`` with a checkpoint, that were not looked at yet."""
    from stepwell.adapters.retrain_history import read_requests

    found = []
    for entry in read_requests(runner.log, runner.codec):
        answer = entry.counting
        if entry.state != "done" or answer is None or not answer.new_checkpoint:
            continue
        if policies and entry.request.policy not in policies:
            continue
        if (entry.request.trigger_id, answer.new_checkpoint) not in judged:
            found.append((entry.request, answer.new_checkpoint))
    return found


def _run_one(runner: _Runner, request: "RetrainRequested", checkpoint: str) -> bool:
    """Run one regression; what is wrong with it is told and stops nobody else's. Whether anything was run."""
    try:
        ran = runner.run(runner.planned(request, checkpoint), quiet_if_done=True)
    except LogError:
        raise
    except StepwellError as error:
        text = f"regression of {request.trigger_id} with {checkpoint} cannot be run: {error}"
        runner.out.print(text, markup=False, soft_wrap=True)
        return False
    if not ran:
        runner.out.print(f"regression of {request.trigger_id} with {checkpoint}: run before", markup=False)
    return ran


# --- before and after ---------------------------------------------------------------------------------------------


def print_before_after(out: "Console", results: "list[BeforeAfter]") -> None:
    """Success before and after with 95 % intervals, for each regression run, and whether the pattern came again."""
    for result in results:
        _print_one(out, result)


def _print_one(out: "Console", result: "BeforeAfter") -> None:
    from stepwell.adapters.runs.summary import describe_rate
    from stepwell.engine.intervals import wilson

    def rates(cell: "CellResult") -> tuple[str, str]:
        pairs = cell.pairs
        before, after = wilson(pairs.before, pairs.n), wilson(pairs.after, pairs.n)
        return describe_rate(pairs.before, pairs.n, before), describe_rate(pairs.after, pairs.n, after)

    rows = [
        (cell.name, f"{cell.again_succeeded} of {cell.again_scored}", *rates(cell))
        for cell in _with_total(result.cells, result.total)
    ]
    fresh = ("fresh seeds, before (95 %)", "fresh seeds, after (95 %)")
    title = f"\n{result.policy}: {result.baseline_checkpoint} before, {result.checkpoint} after"
    out.print(plain_table("where", "failed before: succeed now", *fresh, rows=rows, title=title))
    if result.others:
        beside = [(cell.name, *rates(cell)) for cell in _with_total(result.others, result.others_total)]
        out.print(plain_table("other cells", *fresh, rows=beside))
    for line in _conclusions(result):
        out.print(line, markup=False, soft_wrap=True)


def _with_total(cells: "tuple[CellResult, ...]", total: "CellResult") -> "tuple[CellResult, ...]":
    return cells if len(cells) == 1 else (*cells, total)


def _conclusions(result: "BeforeAfter") -> list[str]:
    from stepwell.adapters.runs.summary import describe_rate
    from stepwell.engine.intervals import wilson

    found = result.recurrence
    same = describe_rate(found.same_failure, found.scored, wilson(found.same_failure, found.scored))
    lines = [
        *_difference("fresh seeds", result.total),
        *_difference("fresh seeds in other cells", result.others_total),
        f"{result.failure_type} with {result.checkpoint}: {same} of the fresh episodes",
        f"rule {found.rule} version {found.rule_version} on them: {found.in_words}",
    ]
    if result.opened:
        lines.append(f"evaluations of {result.checkpoint} have opened {', '.join(result.opened)} for it")
    both = (result.total, result.others_total)
    missing = sum(total.missing for total in both)
    if result.unfinished:
        lines.append(f"{counted(result.unfinished, 'episode')} not ended yet")
    elif missing:
        seeds = sum(total.again + total.fresh for total in both)
        lines.append(f"{counted(missing, 'seed')} not scored, of {seeds}: see run {result.run_id}")
    return lines


def _difference(what: str, total: "CellResult") -> list[str]:
    pairs = total.pairs
    difference, interval = pairs.difference, pairs.interval()
    if difference is None or interval is None:
        return []
    low, high = (100 * bound for bound in interval)
    points = f"{100 * difference:+.0f} points ({low:+.0f} to {high:+.0f})"
    changed = f"{pairs.gained} gained, {pairs.lost} lost"
    return [f"{what}, {counted(pairs.n, 'pair')}: {points}; {changed}, exact McNemar p = {pairs.p_value():.2g}"]
