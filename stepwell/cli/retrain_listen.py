"""``stepwell retrain listen``: run a command for each request and answer with how it went."""

import threading
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stepwell.cli.resources import codec_in_force, opened_log
from stepwell.cli.tables import short_line
from stepwell.cli.times import span_us
from stepwell.exceptions import ConfigurationError

if TYPE_CHECKING:
    from stepwell.adapters.processes.command import CommandResult
    from stepwell.adapters.subscriber import Delivery, Subscription
    from stepwell.events.model import RetrainRequested

OUTPUT_CHARS_MAX = 4_000
EXIT_INTERRUPTED = 130
EXIT_TRY_AGAIN = 75
"""EX_TEMPFAIL of BSD's sysexits.h: not now, try again later."""
RECEIVE_S = 0.5
PARALLEL = 4
"""A policy's request does not wait for hours behind another policy's. Where one GPU is all there is, one at a time."""


class Answer(StrEnum):
    """What a successful command is answered with."""

    ACCEPTED = "accepted"
    DONE = "done"


GroupOption = Annotated[str, typer.Option(help="Consumer group; each request goes to one member of it.")]


def register(retrain: typer.Typer) -> None:
    """Add the command."""
    retrain.command("listen")(listen)


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
    parallel: Annotated[
        int, typer.Option(min=1, help="Up to so many commands side by side, each for another policy; 1: one at a time.")
    ] = PARALLEL,
    tries: Annotated[
        int, typer.Option(min=1, help="Park a request that was begun so often without coming to an end.")
    ] = 5,
    output: Annotated[Path | None, typer.Option(help="Append each request as a line of JSON to this file.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also requests that are closed already: answered for good, or withdrawn.")
    ] = False,
    inbox: Annotated[
        Path | None,
        typer.Option(help="This member's inbox, a file that ends with .db. Default: one in STEPWELL_HOME."),
    ] = None,
    instance: Annotated[
        str | None, typer.Option(help="Stable name of this member; a restart takes its work back at once.")
    ] = None,
    adopt_after: Annotated[
        str | None,
        typer.Option(
            metavar="SPAN", help="Take over requests of which nothing was heard for so long, e.g. 6h. Default: never."
        ),
    ] = None,
) -> None:
    """Run a command for each open retrain request and answer with how it went.

    Up to four run side by side, each for another policy; --parallel 1 runs one at a time.

    Exit code 0 is answered as done (or as --answer says). 75 means "not now": the request comes again after a pause,
    and is parked after --tries of them. Any other code is answered as failed, with the end of the output. A last line
    "checkpoint: NAME" names the new checkpoint. Exit codes 126 and 127, by which a shell says that it cannot run the
    command, end the listener without an answer. Ctrl-C ends a command that runs, with all it started; so does the
    listener's own death. A request whose handling was cut off comes again: take its trigger_id as the idempotency key.
    """
    from stepwell.adapters.subscriber import Subscription, Wanted
    from stepwell.adapters.workers.process import stopping_by_signal
    from stepwell.settings import get_settings

    _keep(output, None)
    wanted = Wanted(
        policies=frozenset(policy) if policy else None,
        only_open=not everything,
        failures_max=tries,
        adopt_after_s=None if adopt_after is None else span_us(adopt_after, "--adopt-after") / 1e6,
    )
    with stopping_by_signal() as stop, opened_log() as log:
        subscription = Subscription(
            log, codec_in_force(writing=True), group, inbox=_place(inbox, wanted.members_of(group)),
            instance_id=instance, wanted=wanted, log_name=get_settings().log,
        )  # fmt: skip
        with subscription:
            typer.echo(f"listening for retrain requests as group {group!r}; Ctrl-C ends")
            listener = _Listener(subscription, run, answer, output, limit, stop)
            listener.work(parallel)
    if listener.error is not None:
        raise listener.error
    if listener.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)


class _Listener:
    """The commands that run side by side, one thread each.

    Attributes:
        error: what ended it before its time.
        interrupted: whether a command was ended by Ctrl-C; its request comes again.
    """

    def __init__(
        self, subscription: "Subscription", run: str, answer: Answer, output: Path | None, limit: int | None,
        stop: threading.Event,
    ) -> None:  # fmt: skip
        self.error: Exception | None = None
        self.interrupted = False
        self._subscription = subscription
        self._run = run
        self._answer = answer
        self._output = output
        self._stop = stop
        self._mutex = threading.Lock()
        self._left = limit
        self._over = threading.Event()

    def work(self, parallel: int) -> None:
        """Return when the limit is reached, when it shall stop, or when something broke."""
        others = [threading.Thread(target=self._guarded, name=f"listener-{n}") for n in range(1, parallel)]
        for thread in others:
            thread.start()
        self._guarded()
        for thread in others:
            # In short waits, so that a second Ctrl-C is heard.
            while thread.is_alive():
                thread.join(RECEIVE_S)

    def _guarded(self) -> None:
        try:
            self._loop()
        except Exception as error:  # noqa: BLE001 - raised again by the command, once the others have ended
            with self._mutex:
                self.error = self.error or error
            self._over.set()
            self._stop.set()  # ends the commands that run

    def _loop(self) -> None:
        while not self._stop.is_set() and self._take_ticket():
            delivery = self._subscription.receive(timeout_s=RECEIVE_S)
            if delivery is None or not self._handle(delivery):
                self._give_ticket_back()

    def _handle(self, delivery: "Delivery") -> bool:
        """Run the command for one request; whether it came to an end."""
        from stepwell.adapters.processes.command import run_command
        from stepwell.events.model import RetrainRequested
        from stepwell.events.plain import as_json

        request = delivery.event
        assert isinstance(request, RetrainRequested), "withdrawals were not asked for"
        with self._mutex:
            _keep(self._output, request)
        result = run_command(self._run, as_json(request).encode() + b"\n", self._stop)
        if result is None:
            self.interrupted = not self._over.is_set()
            return False  # not marked as handled: it comes again
        _check_that_it_ran(result, request)
        detail = result.output[-OUTPUT_CHARS_MAX:] or f"exit code {result.code}"
        if result.code == EXIT_TRY_AGAIN:
            parked = self._subscription.put_back(detail, delivery)
            what = "parked" if parked else "put back"
            typer.echo(f"{request.trigger_id}  {request.policy}  {what}  {short_line(detail)}")
            return True
        status = self._answer.value if result.code == 0 else "failed"
        self._subscription.answer(request, status, detail=detail, new_checkpoint=_checkpoint(result))
        self._subscription.handled(delivery)
        reason = f"  {short_line(detail)}" if status == "failed" else ""
        typer.echo(f"{request.trigger_id}  {request.policy}  {status}{reason}")
        return True

    def _take_ticket(self) -> bool:
        with self._mutex:
            if self._left is None:
                return True
            if self._left == 0:
                return False
            self._left -= 1
            return True

    def _give_ticket_back(self) -> None:
        with self._mutex:
            if self._left is not None:
                self._left += 1


def _place(inbox: Path | None, group: str) -> Path:
    """The member's inbox, or the folder to find one in."""
    from stepwell.adapters.inbox.places import group_folder
    from stepwell.settings import get_settings

    if inbox is None:
        return group_folder(get_settings().home, group)
    if inbox.suffix != ".db":
        raise ConfigurationError(f"--inbox {inbox}: give a file that ends with .db")
    return inbox.expanduser().absolute()


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
