import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import stepwell
from stepwell import cli
from stepwell.exceptions import ConfigurationError, MissingPartError, NotFoundError, StepwellError

# None of these is needed to show help; together they take most of a second.
HEAVY = {
    "aiokafka", "asyncio", "confluent_kafka", "fastavro", "numpy", "psycopg", "psycopg_pool", "pydantic",
    "pydantic_settings", "pynvml", "psutil", "sqlite3", "structlog", "transitions",
}  # fmt: skip


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the real command in a process of its own, with a wide terminal and no settings but these."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("STEPWELL_")}
    return subprocess.run(
        [sys.executable, "-m", "stepwell", *arguments],
        env=clean | {"COLUMNS": "200", "NO_COLOR": "1"} | environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_version() -> None:
    done = command("--version")
    assert (done.returncode, done.stdout) == (0, f"stepwell {stepwell.__version__}\n")


@pytest.mark.parametrize("name", ["run", "retrain listen", "retrain mute", "patterns dry-run"])
def test_sentences_of_help_are_not_broken(name: str) -> None:
    said = command(*name.split(), "--help", COLUMNS="1000").stdout.partition("╭")[0].splitlines()
    prose = [line.strip() for line in said[2:] if line.strip()]
    assert len(prose) > 1
    assert all(line[-1] == "." for line in prose), prose


def test_help_names_every_command() -> None:
    done = command("--help")
    assert done.returncode == 0
    for name in typer.main.get_command(cli.build_app()).commands:  # type: ignore[attr-defined]
        assert f" {name} " in done.stdout


def test_help_loads_nothing_heavy() -> None:
    code = "import sys; from stepwell.cli import build_app; build_app(); print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stdout.split())


def test_every_module_is_listed_once_and_stands_in_the_folder() -> None:
    folder = Path(cli.__file__).parent
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    registering = {name for name in modules if "\ndef register(app: " in (folder / f"{name}.py").read_text()}
    assert sorted(cli._MODULES) == sorted(registering)


def test_config_shows_value_and_origin(tmp_path: Path) -> None:
    done = command("config", "--json", STEPWELL_HOME=str(tmp_path), STEPWELL_DATABASE="postgresql://ops:hunter2@db/x")
    assert done.returncode == 0
    shown = json.loads(done.stdout)
    assert shown["database"]["value"] == "postgresql://ops:***@db/x"
    assert shown["database"]["origin"] == "environment STEPWELL_DATABASE"
    assert shown["log"] == {
        "value": f"local:{tmp_path}/log",
        "origin": "default",
        "variable": "STEPWELL_LOG",
        "description": shown["log"]["description"],
    }
    assert shown["seal_grace_s"]["value"] == 60.0
    table = command("config", STEPWELL_HOME=str(tmp_path), STEPWELL_DATABASE="postgresql://ops:hunter2@db/x").stdout
    assert f"local:{tmp_path}/log" in table.replace("\n", "")
    assert "hunter2" not in table + done.stdout


def test_configuration_error_is_one_line_and_exit_code_2() -> None:
    done = command("config", STEPWELL_LOOG="x")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "stepwell: unknown environment variable STEPWELL_LOOG (did you mean STEPWELL_LOG?)\n"


def test_reasons_of_several_lines_are_indented_without_tabs(capsys: pytest.CaptureFixture[str]) -> None:
    cli._say(StepwellError("connection failed:\n\tIs the server running?"))
    assert capsys.readouterr().err == "stepwell: connection failed:\n    Is the server running?\n"


def test_help_and_version_answer_whatever_is_set() -> None:
    for arguments in (["--version"], ["--help"], ["config", "--help"]):
        assert command(*arguments, STEPWELL_LOOG="x").returncode == 0


def test_messages_go_to_standard_error_as_the_settings_say() -> None:
    code = """
import sys
from stepwell import cli
import structlog, typer
def build_app():
    app = typer.Typer()
    app.command()(lambda: structlog.get_logger("x").info("hello"))
    app.command("speak")(lambda: structlog.get_logger("x").info("hello", task="a\\nb"))
    return app
cli.build_app = build_app
sys.argv = ["stepwell", "speak"]
cli.main()
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STEPWELL_")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert json.loads(done.stderr)["task"] == "a\nb"  # JSON's own escape, once


def test_debug_shows_the_traceback() -> None:
    done = command("config", STEPWELL_LOOG="x", STEPWELL_DEBUG="1")
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_wrong_usage_is_exit_code_2() -> None:
    done = command("confg")
    assert done.returncode == 2
    assert "No such command 'confg'" in done.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotFoundError("no episode 'x\r\x1b[2J'\nstepwell: all is well"), 1),
        (ConfigurationError("bad"), 2),
        (MissingPartError("need"), 1),
    ],
)
def test_error_becomes_one_escaped_message(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def build() -> typer.Typer:
        app = typer.Typer()

        @app.command()
        def fail() -> None:
            raise error

        return app

    monkeypatch.setattr(cli, "build_app", build)
    monkeypatch.setattr(sys, "argv", ["stepwell"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == code
    shown = str(error).replace("\r\x1b", "\\r\\x1b").replace("\n", "\n  ")
    assert capsys.readouterr().err == f"stepwell: {shown}\n"


def test_a_missing_extra_leaves_help_working_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "_MODULES", ("config", "no_such_room"))
    for arguments, code in ((["--help"], 0), (["no-such-room"], 1)):
        monkeypatch.setattr(sys, "argv", ["stepwell", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert (ended.value.code or 0) == code
    captured = capsys.readouterr()
    assert "Not available: an optional part is missing." in captured.out
    assert "pip install 'stepwell[all]'" in captured.err
