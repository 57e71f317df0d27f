"""``stepwell engine | detector | projector | work``: the long-running workers. See docs/workers.md."""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from stepwell.cli.resources import opened_database, opened_log

if TYPE_CHECKING:
    from stepwell.adapters.workers.process import StopFlag
    from stepwell.engine.ports import MessageLog
    from stepwell.events.codec import Codec
    from stepwell.settings import Settings

SLOT_HELP = "Stable name of this worker among its kind; no two may run under one name. Default: setting worker_slot."

Slot = Annotated[str | None, typer.Option(help=SLOT_HELP, show_default=False)]
Telemetry = Annotated[bool, typer.Option(help="Publish CPU, memory and GPU figures of this worker.")]
EndWithStdin = Annotated[bool, typer.Option("--end-with-stdin", hidden=True)]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("engine")(engine)
    app.command("detector")(detector)
    app.command("projector")(projector)
    app.command("work")(work)


def engine(slot: Slot = None, telemetry: Telemetry = True, end_with_stdin: EndWithStdin = False) -> None:
    """Fold episode events into verdicts, exactly once. Run as many as there is work for, each with its own slot."""
    _run("stepwell-engine", slot, _engine, telemetry=telemetry, end_with_stdin=end_with_stdin)


def detector(slot: Slot = None, telemetry: Telemetry = True, end_with_stdin: EndWithStdin = False) -> None:
    """Watch verdicts for failure patterns and publish retrain requests, exactly once."""
    _run("stepwell-detector", slot, _detector, telemetry=telemetry, end_with_stdin=end_with_stdin)


def projector(slot: Slot = None, telemetry: Telemetry = True, end_with_stdin: EndWithStdin = False) -> None:
    """Write the log's records to the tables of the database, exactly once."""
    _run("stepwell-projector", slot, _projector, telemetry=telemetry, end_with_stdin=end_with_stdin)


def work(
    engines: Annotated[int, typer.Option(min=1, max=64, help="Engine workers, slots 0 to N-1.")] = 1,
    until_idle: Annotated[bool, typer.Option(help="End once everything in the log has been processed.")] = False,
    project: Annotated[bool, typer.Option("--projector/--no-projector", help="Also write the tables.")] = True,
    telemetry: Telemetry = True,
) -> None:
    """Run engine, detector and projector together, as child processes that are started again when they die.

    Waits for the log where that is away, makes missing topics and brings the database's schema up to date first.
    For one machine; a team runs the workers under its own supervisor (compose/).
    """
    from stepwell.adapters.workers.idle import IdleCheck
    from stepwell.adapters.workers.lock import hold_workers
    from stepwell.adapters.workers.process import EXIT_OK, stopping_by_signal
    from stepwell.adapters.workers.supervisor import Supervisor, stepwell_command
    from stepwell.engine import restore
    from stepwell.engine.detection import restore as detector_restore
    from stepwell.settings import get_settings

    settings = get_settings()
    options = ["--end-with-stdin", *([] if telemetry else ["--no-telemetry"])]
    commands = {f"engine {n}": stepwell_command("engine", "--slot", str(n), *options) for n in range(engines)}
    commands["detector"] = stepwell_command("detector", "--slot", "0", *options)
    groups = {restore.GROUP: restore.TOPICS, detector_restore.GROUP: detector_restore.TOPICS}
    with contextlib.ExitStack() as stack:
        stack.enter_context(hold_workers(settings.home, settings.log))
        log = stack.enter_context(opened_log(settings.log))
        stop = stack.enter_context(stopping_by_signal())
        if not _made_topics(log, stop):
            raise typer.Exit(EXIT_OK)
        if project:
            from stepwell.projections.migrate import migrate

            migrate(stack.enter_context(opened_database(settings.database)))
            commands["projector"] = stepwell_command("projector", "--slot", "0", *options)
            groups |= _projected()
        finished = IdleCheck(log, groups) if until_idle else None
        if finished is not None:
            stack.callback(finished.close)
        code = Supervisor(commands).run(stop, finished)
    raise typer.Exit(code)


def _made_topics(log: "MessageLog", stop: "StopFlag") -> bool:
    """Make what topics are missing, as soon as the log is there; False when told to stop meanwhile."""
    import structlog

    from stepwell.engine.loop import BACK_OFF_MAX_S
    from stepwell.events.topics import TOPICS
    from stepwell.exceptions import LogUnavailableError

    report = structlog.get_logger("stepwell.work")
    said = False
    while not stop():
        try:
            with contextlib.closing(log.admin()) as admin:
                admin.create(TOPICS)
        except LogUnavailableError as error:
            if not said:
                say = report.info if log.said_away else report.warning
                say("log is away, waiting", reason=str(error))
            said = True
            stop.wait(BACK_OFF_MAX_S)
            continue
        if said:
            report.info("log is back")
        return True
    return False


def _projected() -> dict[str, tuple[str, ...]]:
    """What the projector reads and must have written when all is idle; telemetry never comes to an end."""
    from stepwell.events.topics import TELEMETRY
    from stepwell.projections.projector import GROUP
    from stepwell.projections.rows import PROJECTED_TOPICS

    return {GROUP: tuple(topic for topic in PROJECTED_TOPICS if topic != TELEMETRY)}


Work = Callable[["Settings", "MessageLog", "Codec", str, "StopFlag"], None]


def _run(kind: str, slot: str | None, do: Work, *, telemetry: bool, end_with_stdin: bool) -> None:
    """Run one worker as this process, and exit with the code that says how it ended."""
    from stepwell.adapters.telemetry.publisher import TelemetryPublisher
    from stepwell.adapters.workers.process import run_as_worker, stopping_by_signal
    from stepwell.engine.publish import outgoing
    from stepwell.events.codec import Codec
    from stepwell.settings import get_settings

    settings = get_settings()
    name = slot or settings.worker_slot
    worker_id = f"{kind}-{name}"

    def body() -> None:
        codec = Codec()
        with contextlib.ExitStack() as stack:
            stop = stack.enter_context(stopping_by_signal(with_stdin=end_with_stdin))
            log = stack.enter_context(opened_log(settings.log))
            if telemetry:
                publisher = TelemetryPublisher(log, worker_id, partial(outgoing, codec))
                publisher.start()
                stack.callback(publisher.stop)
            do(settings, log, codec, name, stop)

    raise typer.Exit(run_as_worker(body, worker_id))


def _engine(settings: "Settings", log: "MessageLog", codec: "Codec", slot: str, stop: "StopFlag") -> None:
    import structlog

    from stepwell.adapters.workers.markers import DiskMarkers
    from stepwell.adapters.workers.process import SystemClock
    from stepwell.engine.loop import ExactlyOnceLoop
    from stepwell.engine.restore import GROUP, TOPICS, EngineRestore
    from stepwell.engine.timers import Timeouts
    from stepwell.events.topics import WRITTEN_BY_ENGINE

    worker_id = f"stepwell-engine-{slot}"
    report = structlog.get_logger("stepwell.engine")
    markers = DiskMarkers(settings.home / "workers" / f"{worker_id}.db")
    timeouts = Timeouts(settings.stall_after_s, settings.timeout_after_s, settings.seal_grace_s)
    try:
        restore = EngineRestore(
            log, codec=codec, markers=markers, timeouts=timeouts, worker_id=worker_id, report=report
        )
        loop = ExactlyOnceLoop(
            log,
            group=GROUP,
            worker_id=worker_id,
            topics=TOPICS,
            writes=WRITTEN_BY_ENGINE,
            restore=restore,
            clock=SystemClock(stop),
            report=report,
        )
        loop.run(stop)
    finally:
        markers.close()


def _detector(settings: "Settings", log: "MessageLog", codec: "Codec", slot: str, stop: "StopFlag") -> None:  # noqa: ARG001
    import structlog

    from stepwell.adapters.workers.process import SystemClock
    from stepwell.engine.detection.restore import GROUP, TOPICS, DetectorRestore
    from stepwell.engine.loop import ExactlyOnceLoop
    from stepwell.events.topics import WRITTEN_BY_DETECTOR

    worker_id = f"stepwell-detector-{slot}"
    loop = ExactlyOnceLoop(
        log,
        group=GROUP,
        worker_id=worker_id,
        topics=TOPICS,
        writes=WRITTEN_BY_DETECTOR,
        restore=DetectorRestore(log, codec, worker_id),
        clock=SystemClock(stop),
        report=structlog.get_logger("stepwell.detector"),
    )
    loop.run(stop)


def _projector(settings: "Settings", log: "MessageLog", codec: "Codec", slot: str, stop: "StopFlag") -> None:
    from stepwell.adapters.database import database_server
    from stepwell.engine import restore
    from stepwell.engine.detection import restore as detector_restore
    from stepwell.projections.projector import Projector

    watch = {restore.GROUP: restore.TOPICS, detector_restore.GROUP: detector_restore.TOPICS}
    with database_server(settings.database) as locate:
        Projector(log, locate(), codec, slot=slot, watch=watch, locate=locate).run(stop)
