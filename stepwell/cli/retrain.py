"""``stepwell retrain``: receive requests to retrain and answer them."""

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stepwell.cli.resources import opened_log
from stepwell.cli.tables import plain_table
from stepwell.exceptions import ConfigurationError

if TYPE_CHECKING:
    from stepwell.events.model import RetrainRequested

OUTPUT_CHARS_MAX = 4_000
OUTPUT_BYTES_READ = 64 * 1024
END_GRACE_S = 10.0
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
    "checkpoint: NAME" names the new checkpoint. Ctrl-C ends a command that runs, with all it started. A request whose
    handling was cut off comes again: take its trigger_id as the idempotency key.
    """
    from stepwell.adapters.subscriber import Subscription
    from stepwell.adapters.workers.process import stopping_by_signal
    from stepwell.events.codec import Codec
    from stepwell.events.model import RetrainRequested

    _keep(output, None)
    seen = 0
    policies = frozenset(policy) if policy else None
    with (
        stopping_by_signal() as stop,
        opened_log() as log,
        Subscription(log, Codec(), group, policies=policies) as subscription,
    ):
        typer.echo(f"listening for retrain requests as group {group!r}; Ctrl-C ends")
        while not stop.is_set() and (limit is None or seen < limit):
            delivery = subscription.receive(timeout_s=0.5)
            if delivery is None:
                continue
            request = delivery.event
            assert isinstance(request, RetrainRequested), "withdrawals were not asked for"
            _keep(output, request)
            result = _run(run, request, stop)
            if result is None:
                raise typer.Exit(EXIT_INTERRUPTED)  # not marked as handled: it comes again
            succeeded, detail, checkpoint = result
            status = answer.value if succeeded else "failed"
            subscription.answer(request, status, detail=detail, new_checkpoint=checkpoint)
            subscription.handled()
            typer.echo(f"{request.trigger_id}  {request.policy}  {status}")
            seen += 1


@retrain.command("list")
def list_requests(
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON for each request.")] = False,
) -> None:
    """List the requests in the log, with what became of each."""
    from rich.console import Console

    from stepwell.adapters.retrain_history import read_requests
    from stepwell.events.codec import Codec
    from stepwell.events.plain import as_plain, as_text

    with opened_log() as log:
        entries = read_requests(log, Codec())
    if as_json:
        for entry in entries:
            typer.echo(as_text(as_plain(entry.request) | {"state": entry.state}))
        return
    rows = [
        (entry.request.trigger_id, entry.request.policy, entry.request.failure_type, len(entry.request.evidence),
         entry.state)
        for entry in entries
    ]  # fmt: skip
    columns = ("trigger", "policy", "failure type", "evidence", "state")
    Console().print(plain_table(*columns, rows=rows, whole=("trigger",)))


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


def _run(command: str, request: "RetrainRequested", stop: threading.Event) -> tuple[bool, str, str | None] | None:
    """Run the command to its end: (whether it succeeded, end of its output, new checkpoint); None where it was cut.

    Input and output are files: a command that reads nothing, prints a lot, or leaves something behind that holds on to
    its output blocks nobody.
    """
    from stepwell.events.plain import as_json

    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as printed:
        given.write(as_json(request).encode() + b"\n")
        given.seek(0)
        process = subprocess.Popen(  # noqa: S602 (a shell command is what the user asked for)
            command, shell=True, stdin=given, stdout=printed, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            while process.poll() is None:
                if stop.is_set():
                    return None
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.2)
        finally:
            if process.returncode is None:
                _end(process)
        size = printed.seek(0, os.SEEK_END)
        printed.seek(max(0, size - OUTPUT_BYTES_READ))
        output = printed.read().decode("utf-8", "replace").strip()
    last = output.rpartition("\n")[2]
    checkpoint = last.removeprefix("checkpoint:").strip() if last.startswith("checkpoint:") else None
    return process.returncode == 0, output[-OUTPUT_CHARS_MAX:] or f"exit code {process.returncode}", checkpoint or None


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the command and what it started (it leads a process group of its own): ask first, then kill."""
    # The command is not reaped before the last signal, so that its group's id cannot be somebody else's by then.
    os.killpg(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + END_GRACE_S
    while time.monotonic() < deadline:
        if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            break
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
