"""``stepwell retrain``: the commands around requests to retrain; most have modules of their own beside this one."""

from enum import StrEnum
from typing import Annotated

import typer

from stepwell.cli import regress, retrain_inbox, retrain_ledger, retrain_listen
from stepwell.cli.resources import codec_in_force, opened_log
from stepwell.cli.retrain_ledger import TriggerArgument


class Status(StrEnum):
    """What a request can be answered with."""

    ACCEPTED = "accepted"
    DONE = "done"
    FAILED = "failed"
    REJECTED = "rejected"


retrain = typer.Typer(help="Requests to retrain: receive, answer, look at, mute them.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    retrain_ledger.register(retrain)
    regress.register(retrain)
    retrain_listen.register(retrain)
    retrain_inbox.register(retrain)
    app.add_typer(retrain, name="retrain")


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

    codec = codec_in_force(writing=True)
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
