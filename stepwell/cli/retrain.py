"""``stepwell retrain``: receive requests to retrain and answer them; `retrain_ledger` has the commands that look on."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stepwell.cli import regress, retrain_ledger
from stepwell.cli.resources import opened_log
from stepwell.cli.retrain_ledger import TriggerArgument
from stepwell.cli.tables import short_line
from stepwell.exceptions import ConfigurationError

if TYPE_CHECKING:
    from stepwell.adapters.processes.command import CommandResult
    from stepwell.events.model import RetrainRequested

OUTPUT_CHARS_MAX = 4_000
EXIT_INTERRUPTED = 130


class Answer(StrEnum):
    """What a successful command is answered with."""

    ACCEPTED = "accepted"
    DONE = "done"


class Status(StrEnum):
    """What a request can be answered with."""

    ACCEPTED = "accepted"
    DONE = "done"
    FAILED = "failed"
    REJECTED = "rejected"


GroupOption = Annotated[str, typer.Option(help="Consumer group; each request goes to one member of it.")]

retrain = typer.Typer(help="Requests to retrain: receive, answer, look at, mute them.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    retrain_ledger.register(retrain)
    regress.register(retrain)
    app.add_typer(retrain, name="retrain")


@retrain.command("listen")
def listen(
    run: Annotated[
        str, typer.Option("--run", help="Shell command to run for each request; gets the request as JSON on its input.")
    ],
    group: GroupOption = "trainer",
    policy: Annotated[list[str] | None, typer.Option(help="Only requests for this policy; may be repeated.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Leave after so many requests.")] = None,
    answer: Annotated[
        Answer, typer.Option(help="What exit code 0 means: the request was taken (accepted), or all is done.")
    ] = Answer.DONE,
    output: Annotated[Path | None, typer.Option(help="Append each request as a line of JSON to this file.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also requests that are closed already: answered for good, or withdrawn.")
    ] = False,
) -> None:
    """Run a command for each open retrain request and answer with how it went.

    Exit code 0 is answered as done (or as --answer says), any other as failed, with the end of the output. A last line
    "checkpoint: NAME" names the new checkpoint. Exit codes 126 and 127, by which a shell says that it cannot run the
    command, end the listener without an answer. Ctrl-C ends a command that runs, with all it started; so does the
    listener's own death. A request whose handling was cut off comes again: take its trigger_id as the idempotency key.
    """
    from stepwell.adapters.processes.command import run_command
    from stepwell.adapters.subscriber import Subscription
    from stepwell.adapters.workers.process import stopping_by_signal
    from stepwell.events.codec import Codec
    from stepwell.events.model import RetrainRequested
    from stepwell.events.plain import as_json

    _keep(output, None)
    seen = 0
    policies = frozenset(policy) if policy else None
    with (
        stopping_by_signal() as stop,
        opened_log() as log,
        Subscription(log, Codec(), group, policies=policies, only_open=not everything) as subscription,
    ):
        typer.echo(f"listening for retrain requests as group {group!r}; Ctrl-C ends")
        while not stop.is_set() and (limit is None or seen < limit):
            delivery = subscription.receive(timeout_s=0.5)
            if delivery is None:
                continue
            request = delivery.event
            assert isinstance(request, RetrainRequested), "withdrawals were not asked for"
            _keep(output, request)
            result = run_command(run, as_json(request).encode() + b"\n", stop)
            if result is None:
                raise typer.Exit(EXIT_INTERRUPTED)  # not marked as handled: it comes again
            _check_that_it_ran(result, request)
            status = answer.value if result.code == 0 else "failed"
            detail = result.output[-OUTPUT_CHARS_MAX:] or f"exit code {result.code}"
            subscription.answer(request, status, detail=detail, new_checkpoint=_checkpoint(result))
            subscription.handled()
            reason = f"  {short_line(detail)}" if status == "failed" else ""
            typer.echo(f"{request.trigger_id}  {request.policy}  {status}{reason}")
            seen += 1


@retrain.command("answer")
def answer_request(
    trigger: TriggerArgument,
    status: Annotated[Status, typer.Argument(help="What became of it.", show_default=False)],
    checkpoint: Annotated[str | None, typer.Option(help="Identifies the retrained policy's weights.")] = None,
    detail: Annotated[str, typer.Option(help="What there is to say about it.")] = "",
    group: Annotated[str, typer.Option(help="In whose name: the training service's group.")] = "trainer",
) -> None:
    """Answer a request by hand. The first done, failed or rejected closes it; what comes later changes nothing."""
    from stepwell.adapters.retrain_answers import AnswerWriter
    from stepwell.adapters.retrain_history import find_request
    from stepwell.events.codec import Codec

    codec = Codec()
    with opened_log(must_exist=True) as log:
        entry = find_request(log, codec, trigger)
        writer = AnswerWriter(log, codec, group)
        try:
            writer.write(entry.request, status.value, detail=detail, new_checkpoint=checkpoint)
        finally:
            writer.close()
    if entry.closed:
        typer.echo(f"{entry.request.trigger_id}  {entry.state} before: the answer is kept and changes nothing")
    else:
        typer.echo(f"{entry.request.trigger_id}  {entry.request.policy}  {status.value}")


def _check_that_it_ran(result: "CommandResult", request: "RetrainRequested") -> None:
    from stepwell.adapters.processes.command import CANNOT_RUN

    if result.code in CANNOT_RUN:
        raise ConfigurationError(
            f"--run: the command cannot be run (exit code {result.code}: {short_line(result.output) or 'no output'}); "
            f"request {request.trigger_id} was not answered and comes again"
        )


def _checkpoint(result: "CommandResult") -> str | None:
    last = result.output.rpartition("\n")[2]
    return last.removeprefix("checkpoint:").strip() or None if last.startswith("checkpoint:") else None


def _keep(output: Path | None, request: "RetrainRequested | None") -> None:
    """Append the request to the file; None only tries whether that will work."""
    from stepwell.events.plain import as_json

    if output is None:
        return
    try:
        with output.open("a", encoding="utf-8") as file:
            file.write("" if request is None else as_json(request) + "\n")
    except OSError as error:
        raise ConfigurationError(f"--output {output}: cannot be written: {error.strerror}") from None
