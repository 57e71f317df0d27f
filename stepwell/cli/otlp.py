"""``stepwell otlp``: the receiver of OpenTelemetry's metrics and traces. See docs/telemetry.md."""

from pathlib import Path
from typing import Annotated

import typer

from stepwell.cli.workers import EndWithStdin, Given, Listen, Slot, Telemetry, WorkerKind, run_worker
from stepwell.exceptions import MissingPartError

GRPC, HTTP = "127.0.0.1:4317", "127.0.0.1:4318"


def register(app: typer.Typer) -> None:
    """Add ``stepwell otlp``."""
    app.command("otlp")(otlp)


def otlp(
    grpc: Annotated[str, typer.Option(metavar="HOST:PORT", help="Listen here for gRPC; 'off': do not.")] = GRPC,
    http: Annotated[str, typer.Option(metavar="HOST:PORT", help="Listen here for HTTP; 'off': do not.")] = HTTP,
    token_file: Annotated[
        Path | None,
        typer.Option(help="Every request must carry the token in this file as 'authorization: Bearer TOKEN'."),
    ] = None,
    slot: Slot = None,
    telemetry: Telemetry = True,
    listen: Listen = None,
    end_with_stdin: EndWithStdin = False,
) -> None:
    """Receive metrics and traces of anything with an OpenTelemetry SDK (OTLP) and put them on the log.

    A request is answered once the log has what it holds. While the log is away requests are refused, and senders send
    them again. SIGTERM and SIGINT end it: what was begun is answered first.
    """
    try:
        from stepwell.adapters.otlp.intake import Intake
        from stepwell.adapters.otlp.receiver import Receiver
        from stepwell.adapters.otlp.tokens import Token
    except ModuleNotFoundError as error:
        raise MissingPartError(f"{error}; the receiver needs: pip install 'stepwell[otlp]'") from error
    from stepwell.events.topics import TELEMETRY

    addresses = {name: _address(name, text) for name, text in (("grpc", grpc), ("http", http))}
    if not any(addresses.values()):
        raise typer.BadParameter("with both off there is nothing to listen on", param_hint="--http")
    token = Token(token_file) if token_file is not None else None

    def receive(given: Given) -> None:
        intake = Intake(given.log, given.codec, vitals=given.vitals, count=given.vitals.count)
        receiver = Receiver(
            intake,
            grpc=addresses["grpc"],
            http=addresses["http"],
            token=token,
            alive=lambda: given.vitals.turned({}),
        )
        try:
            receiver.run(given.stop, lambda _: given.vitals.doing("receiving requests"))
        finally:
            intake.close()

    worker = WorkerKind("otlp", None, (TELEMETRY,), receive)
    run_worker(worker, slot, telemetry=telemetry, listen=listen, end_with_stdin=end_with_stdin)


def _address(name: str, text: str) -> str | None:
    if text == "off":
        return None
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise typer.BadParameter(f"{text!r} is not HOST:PORT", param_hint=f"--{name}")
    return text
