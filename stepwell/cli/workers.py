"""``stepwell engine | detector | projector | work``: the long-running workers. See docs/workers.md."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from stepwell.cli.resources import codec_in_force, opened_database, opened_log
from stepwell.exceptions import ConfigurationError

if TYPE_CHECKING:
    from stepwell.adapters.workers.process import StopFlag
    from stepwell.adapters.workers.vitals import WorkerVitals
    from stepwell.engine.ports import MessageLog
    from stepwell.events.codec import Codec
    from stepwell.projections.progress.log_watch import LogWatch
    from stepwell.settings import Settings

SLOT_HELP = "Stable name of this worker among its kind; no two may run under one name. Default: setting worker_slot."

Slot = Annotated[str | None, typer.Option(help=SLOT_HELP, show_default=False)]
Telemetry = Annotated[bool, typer.Option(help="Publish CPU, memory and GPU figures of this worker.")]
LISTEN_HELP = (
    "Answer /healthz, /readyz and /metrics here; a port alone: this machine only. Default: setting worker_listen."
)
Listen = Annotated[str | None, typer.Option(metavar="HOST:PORT", help=LISTEN_HELP, show_default=False)]
EndWithStdin = Annotated[bool, typer.Option("--end-with-stdin", hidden=True)]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("engine")(engine)
    app.command("detector")(detector)
    app.command("projector")(projector)
    app.command("work")(work)


def engine(
    slot: Slot = None, telemetry: Telemetry = True, listen: Listen = None, end_with_stdin: EndWithStdin = False
) -> None:
    """Fold episode events into verdicts, exactly once. Run as many as there is work for, each with its own slot."""
    from stepwell.engine.restore import GROUP, TOPICS

    worker = WorkerKind("engine", GROUP, TOPICS, _engine)
    run_worker(worker, slot, telemetry=telemetry, listen=listen, end_with_stdin=end_with_stdin)


def detector(
    slot: Slot = None, telemetry: Telemetry = True, listen: Listen = None, end_with_stdin: EndWithStdin = False
) -> None:
    """Watch verdicts for failure patterns and publish retrain requests, exactly once."""
    from stepwell.engine.detection.restore import GROUP, TOPICS

    worker = WorkerKind("detector", GROUP, TOPICS, _detector)
    run_worker(worker, slot, telemetry=telemetry, listen=listen, end_with_stdin=end_with_stdin)


def projector(
    slot: Slot = None, telemetry: Telemetry = True, listen: Listen = None, end_with_stdin: EndWithStdin = False
) -> None:
    """Write the log's records to the tables of the database, exactly once."""
    from stepwell.projections.writing.projector import GROUP
    from stepwell.projections.writing.rows import PROJECTED_TOPICS

    worker = WorkerKind("projector", GROUP, PROJECTED_TOPICS, _projector, watch=_before_the_projector())
    run_worker(worker, slot, telemetry=telemetry, listen=listen, end_with_stdin=end_with_stdin)


def work(
    engines: Annotated[int, typer.Option(min=1, max=64, help="Engine workers, slots 0 to N-1.")] = 1,
    until_idle: Annotated[
        bool, typer.Option(help="End once all of the log is processed; telemetry, which has no end, does not count.")
    ] = False,
    project: Annotated[bool, typer.Option("--projector/--no-projector", help="Also write the tables.")] = True,
    telemetry: Telemetry = True,
    listen: Listen = None,
) -> None:
    """Run engine, detector and projector together, as child processes that are started again when they die.

    Waits for the log where that is away, makes missing topics and brings the database's schema up to date first. With
    --listen, each worker listens on a port of its own: the engines on the one given and those after it, then the
    detector, then the projector.
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
    _refuse_beside_a_set(settings)
    options = ["--end-with-stdin", *([] if telemetry else ["--no-telemetry"])]
    addresses = _consecutive(listen or settings.worker_listen, engines + 2)
    commands = {
        f"engine {n}": stepwell_command("engine", "--slot", str(n), *options, *addresses[n]) for n in range(engines)
    }
    commands["detector"] = stepwell_command("detector", "--slot", "0", *options, *addresses[engines])
    groups = {restore.GROUP: restore.TOPICS, detector_restore.GROUP: detector_restore.TOPICS}
    with contextlib.ExitStack() as stack:
        stack.enter_context(hold_workers(settings.home, settings.log))
        log = stack.enter_context(opened_log(settings.log))
        stop = stack.enter_context(stopping_by_signal())
        if not _made_topics(log, stop):
            raise typer.Exit(EXIT_OK)
        if project:
            from stepwell.cli.db_tune import tune_new
            from stepwell.projections.schema.migrate import migrate

            database = stack.enter_context(opened_database(settings.database))
            migrate(database)
            tune_new(database)
            commands["projector"] = stepwell_command("projector", "--slot", "0", *options, *addresses[engines + 1])
            groups |= _projected()
        finished = IdleCheck(log, groups) if until_idle else None
        if finished is not None:
            stack.callback(finished.close)
        code = Supervisor(commands).run(stop, finished)
    raise typer.Exit(code)


def _refuse_beside_a_set(settings: "Settings") -> None:
    """A shell may be set to work with a set, whose own workers have the same slots: they would end each other."""
    from stepwell.adapters.dev.stack import workers_on

    process = workers_on(settings.home, settings.log)
    if process is not None:
        raise ConfigurationError(
            f"`stepwell dev up` runs the workers of {settings.log} already (process {process}), under the same slots. "
            "For more of them: stepwell dev up --engines N; for a worker of another slot: stepwell engine --slot NAME"
        )


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
    from stepwell.projections.writing.projector import GROUP
    from stepwell.projections.writing.rows import PROJECTED_TOPICS

    return {GROUP: tuple(topic for topic in PROJECTED_TOPICS if topic != TELEMETRY)}


def _before_the_projector() -> dict[str, tuple[str, ...]]:
    """The groups whose positions the projector shows beside its own, each with what it reads."""
    from stepwell.engine import restore
    from stepwell.engine.detection import restore as detector_restore

    return {restore.GROUP: restore.TOPICS, detector_restore.GROUP: detector_restore.TOPICS}


def _consecutive(listen: str | None, count: int) -> list[list[str]]:
    """The options that let so many workers listen side by side, one list a worker."""
    if listen is None:
        return [[] for _ in range(count)]
    from stepwell.adapters.workers.health import PORT_MAX, parse_listen

    host, port = parse_listen(listen)
    if 0 < port > PORT_MAX - count + 1:
        raise ConfigurationError(f"--listen {listen}: {count} workers need {count} ports, the last is {PORT_MAX}")
    shown = f"[{host}]" if ":" in host else host
    return [["--listen", f"{shown}:{port + number if port else 0}"] for number in range(count)]


@dataclass(frozen=True)
class WorkerKind:
    """One kind of worker.

    Attributes:
        name: as in ``stepwell-NAME-SLOT``.
        group: its consumer group; None for one that reads nothing.
        topics: what it reads, or writes to.
        run: does the work until told to stop.
        watch: other groups whose positions it tells of.
    """

    name: str
    group: str | None
    topics: Sequence[str]
    run: Callable[["Given"], None]
    watch: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Given:
    """What a worker is given.

    Attributes:
        looks: looks at its topics and the groups that it watches.
        vitals: where it tells what it does.
    """

    settings: "Settings"
    log: "MessageLog"
    codec: "Codec"
    slot: str
    worker_id: str
    stop: "StopFlag"
    looks: "LogWatch"
    vitals: "WorkerVitals"


def run_worker(
    kind: WorkerKind, slot: str | None, *, telemetry: bool, listen: str | None, end_with_stdin: bool
) -> None:
    """Run one worker as this process, and exit with the code that says how it ended."""
    from stepwell.adapters.telemetry.publisher import TelemetryPublisher
    from stepwell.adapters.workers.health import parse_listen
    from stepwell.adapters.workers.monitoring import monitored
    from stepwell.adapters.workers.process import run_as_worker, stopping_by_signal
    from stepwell.adapters.workers.vitals import WorkerVitals
    from stepwell.engine.publish import outgoing
    from stepwell.settings import get_settings

    settings = get_settings()
    name = slot or settings.worker_slot
    worker_id = f"stepwell-{kind.name}-{name}"
    address = listen or settings.worker_listen

    def body() -> None:
        codec = codec_in_force(writing=True)
        make = partial(outgoing, codec)
        with contextlib.ExitStack() as stack:
            stop = stack.enter_context(stopping_by_signal(with_stdin=end_with_stdin))
            log = stack.enter_context(opened_log(settings.log))
            if telemetry:
                publisher = TelemetryPublisher(log, worker_id, make)
                publisher.start()
                stack.callback(publisher.stop)
            vitals = WorkerVitals(worker_id, kind.name, kind.group, codec, log_url=settings.log, stopping=stop)
            looks = stack.enter_context(
                monitored(
                    vitals,
                    log,
                    make,
                    topics=kind.topics,
                    watch=kind.watch,
                    stuck_exit_after_s=settings.stuck_exit_after_s,
                    listen=None if address is None else parse_listen(address),
                )
            )
            kind.run(Given(settings, log, codec, name, worker_id, stop, looks, vitals))

    raise typer.Exit(run_as_worker(body, worker_id))


def _engine(given: Given) -> None:
    import structlog

    from stepwell.adapters.workers.markers import DiskMarkers
    from stepwell.adapters.workers.process import SystemClock
    from stepwell.engine.loop import ExactlyOnceLoop
    from stepwell.engine.restore import GROUP, TOPICS, EngineRestore
    from stepwell.engine.timers import Timeouts
    from stepwell.events.topics import WRITTEN_BY_ENGINE

    settings = given.settings
    report = structlog.get_logger("stepwell.engine")
    markers = DiskMarkers(settings.home / "workers" / f"{given.worker_id}.db")
    timeouts = Timeouts(settings.stall_after_s, settings.timeout_after_s, settings.seal_grace_s)
    try:
        restore = EngineRestore(
            given.log,
            codec=given.codec,
            markers=markers,
            timeouts=timeouts,
            worker_id=given.worker_id,
            report=report,
            vitals=given.vitals,
        )
        loop = ExactlyOnceLoop(
            given.log,
            group=GROUP,
            worker_id=given.worker_id,
            topics=TOPICS,
            writes=WRITTEN_BY_ENGINE,
            restore=restore,
            clock=SystemClock(given.stop),
            report=report,
            vitals=given.vitals,
        )
        loop.run(given.stop)
    finally:
        markers.close()


def _detector(given: Given) -> None:
    import structlog

    from stepwell.adapters.workers.process import SystemClock
    from stepwell.engine.detection.restore import GROUP, TOPICS, DetectorRestore
    from stepwell.engine.loop import ExactlyOnceLoop
    from stepwell.events.topics import WRITTEN_BY_DETECTOR

    loop = ExactlyOnceLoop(
        given.log,
        group=GROUP,
        worker_id=given.worker_id,
        topics=TOPICS,
        writes=WRITTEN_BY_DETECTOR,
        restore=DetectorRestore(given.log, given.codec, given.worker_id, given.vitals),
        clock=SystemClock(given.stop),
        report=structlog.get_logger("stepwell.detector"),
        vitals=given.vitals,
    )
    loop.run(given.stop)


def _projector(given: Given) -> None:
    from stepwell.adapters.database import database_server
    from stepwell.projections.writing.projector import Projector

    with database_server(given.settings.database) as locate:
        projector = Projector(
            given.log,
            locate(),
            given.codec,
            slot=given.slot,
            watch=_before_the_projector(),
            locate=locate,
            looks=given.looks,
            vitals=given.vitals,
        )
        projector.run(given.stop)
