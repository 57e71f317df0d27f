"""``stepwell retrain``: receive requests to retrain and answer them."""

import signal
import subprocess
import threading
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stepwell.cli.resources import opened_log
from stepwell.cli.tables import plain_table

if TYPE_CHECKING:
    from stepwell.events.model import RetrainRequested

OUTPUT_CHARS_MAX = 4_000
EXIT_INTERRUPTED = 130


class Answer(StrEnum):
    """What a successful command is answered with."""

    ACCEPTED = "accepted"
    DONE = "done"


retrain = typer.Typer(help="Requests to retrain: receive and answer them.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(retrain, name="retrain")


@retrain.command("listen")
def listen(
    run: Annotated[
        str, typer.Option("--run", help="Shell command to run for each request; gets the request as JSON on its input.")
    ],
    group: Annotated[str, typer.Option(help="Consumer group; each request goes to one member of it.")] = "trainer",
    policy: Annotated[list[str] | None, typer.Option(help="Only requests for this policy; may be repeated.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Leave after so many requests.")] = None,
    answer: Annotated[
        Answer, typer.Option(help="What exit code 0 means: the request was taken (accepted), or all is done.")
    ] = Answer.DONE,
    output: Annotated[Path | None, typer.Option(help="Append each request as a line of JSON to this file.")] = None,
) -> None:
    """Run a command for each retrain request and answer with how it went.

    Exit code 0 is answered as done (or as --answer says), any other as failed, with the end of the output. A last line
    "checkpoint: NAME" names the new checkpoint. A request whose handling was cut off comes again: take its trigger_id
    as the idempotency key.
    """
    from stepwell.adapters.subscriber import Subscription
    from stepwell.events.codec import Codec
    from stepwell.events.model import RetrainRequested

    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    seen = 0
    policies = frozenset(policy) if policy else None
    with opened_log() as log, Subscription(log, Codec(), group, policies=policies) as subscription:
        typer.echo(f"listening for retrain requests as group {group!r}; Ctrl-C ends")
        while not stop.is_set() and (limit is None or seen < limit):
            for delivery in subscription.receive(timeout_s=1.0):
                request = delivery.event
                if not isinstance(request, RetrainRequested):
                    continue
                _keep(output, request)
                result = _run(run, request, stop)
                if result is None:
                    raise typer.Exit(EXIT_INTERRUPTED)  # not marked as handled: it comes again
                succeeded, detail, checkpoint = result
                status = answer.value if succeeded else "failed"
                subscription.answer(request, status, detail=detail, new_checkpoint=checkpoint)
                typer.echo(f"{request.trigger_id}  {request.policy}  {status}")
                seen += 1
            subscription.handled()


@retrain.command("list")
def list_requests(
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON for each request.")] = False,
) -> None:
    """List the requests in the log, with what became of each."""
    from rich.console import Console

    from stepwell.adapters.retrain_history import read_requests
    from stepwell.events.codec import Codec
    from stepwell.events.plain import as_json as to_json

    with opened_log() as log:
        entries = read_requests(log, Codec())
    if as_json:
        for entry in entries:
            typer.echo(to_json(entry.request))
        return
    table = plain_table("trigger", "policy", "failure type", "evidence", "state", whole=("trigger",))
    for entry in entries:
        table.add_row(
            entry.request.trigger_id,
            entry.request.policy,
            entry.request.failure_type,
            str(len(entry.request.evidence)),
            entry.state,
        )
    Console().print(table)


def _keep(output: Path | None, request: "RetrainRequested") -> None:
    from stepwell.events.plain import as_json

    if output is not None:
        with output.open("a", encoding="utf-8") as file:
            file.write(as_json(request) + "\n")


def _run(command: str, request: "RetrainRequested", stop: threading.Event) -> tuple[bool, str, str | None] | None:
    """Run the command to its end: (whether it succeeded, end of its output, new checkpoint); None where it was cut."""
    from stepwell.events.plain import as_json

    process = subprocess.Popen(  # noqa: S602 (a shell command is what the user asked for)
        command,
        shell=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    text: str | None = as_json(request) + "\n"
    output = ""
    while process.returncode is None:
        try:
            output, _ = process.communicate(text, timeout=0.5)
        except subprocess.TimeoutExpired:
            text = None
            if stop.is_set():
                _end(process)
                process.communicate()
                return None
    lines = output.strip().splitlines()
    checkpoint = (
        lines[-1].removeprefix("checkpoint:").strip() if lines and lines[-1].startswith("checkpoint:") else None
    )
    detail = output[-OUTPUT_CHARS_MAX:].strip() or f"exit code {process.returncode}"
    return process.returncode == 0, detail, checkpoint


def _end(process: "subprocess.Popen[str]") -> None:
    """End the command and what it started; it leads a process group of its own."""
    import os

    os.killpg(process.pid, signal.SIGTERM)
