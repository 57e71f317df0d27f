"""Wheel and source distribution, installed into empty environments without any optional part, as a user would."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import stepwell

REPOSITORY = Path(__file__).resolve().parents[3]


def uv() -> str:
    found = shutil.which("uv")
    if found is None:
        pytest.fail("uv is not installed; run: make install, and pytest with .venv/bin on the PATH", pytrace=False)
    return found


def run(*command: str | Path, cwd: Path) -> str:
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("STEPWELL_", "PYTHON", "VIRTUAL_"))
    }
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=clean | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def package_files() -> set[str]:
    """What git keeps of the package, relative to the repository."""
    tracked = run("git", "ls-files", "--cached", "stepwell", cwd=REPOSITORY).splitlines()
    return {name for name in tracked if Path(REPOSITORY, name).is_file()}


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The source distribution, and the wheel that is built from it."""
    out = tmp_path_factory.mktemp("dist")
    run(uv(), "build", "--quiet", "--no-build-isolation", "--python", sys.executable, "--out-dir", out, cwd=REPOSITORY)
    (wheel,), (source,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return {"wheel": wheel, "sdist": source}


@pytest.fixture(scope="module", params=["wheel", "sdist"])
def environment(
    request: pytest.FixtureRequest, distributions: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """An empty environment with the locked run-time dependencies and one of the two distributions."""
    place = tmp_path_factory.mktemp(request.param)
    venv, locks = place / "venv", REPOSITORY / "requirements"
    run(uv(), "venv", "--quiet", "--python", "3.11", venv, cwd=place)
    install = (uv(), "pip", "install", "--quiet", "--python", venv)
    run(*install, "--require-hashes", "-r", locks / "runtime.txt", cwd=place)
    run(*install, "--no-deps", "--build-constraints", locks / "dev.txt", distributions[request.param], cwd=place)
    return venv


def test_both_distributions_hold_the_whole_package(distributions: dict[str, Path]) -> None:
    with zipfile.ZipFile(distributions["wheel"]) as wheel:
        in_wheel = set(wheel.namelist())
    with tarfile.open(distributions["sdist"]) as source:
        in_source = {name.split("/", 1)[1] for name in source.getnames() if "/" in name}
    assert package_files() <= in_wheel
    assert package_files() | {"README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml"} <= in_source
    assert any(name.endswith("licenses/LICENSE") for name in in_wheel)
    kinds = {Path(name).suffix or Path(name).name for name in in_wheel}
    assert {".avsc", ".sql", ".mjs", ".properties", ".xml"} <= kinds
    assert "stepwell/py.typed" in in_wheel


def test_nothing_but_the_package_is_installed(distributions: dict[str, Path]) -> None:
    with zipfile.ZipFile(distributions["wheel"]) as wheel:
        tops = {name.split("/", 1)[0] for name in wheel.namelist()}
    assert tops == {"stepwell", f"stepwell-{stepwell.__version__}.dist-info"}


def test_the_command_answers(environment: Path, tmp_path: Path) -> None:
    command = environment / "bin" / "stepwell"
    assert run(command, "--version", cwd=tmp_path) == f"stepwell {stepwell.__version__}\n"
    assert " config " in run(command, "--help", cwd=tmp_path)
    assert json.loads(run(command, "config", "--json", cwd=tmp_path))["log"]["origin"] == "default"


def test_every_command_shows_its_help_without_optional_parts(environment: Path, tmp_path: Path) -> None:
    code = """
from stepwell.cli import build_app
from typer.main import get_command

def walk(command, path):
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from walk(inner, [*path, name])

whole = get_command(build_app())
for path in walk(whole, []):
    print("command:", *path)
    whole.main([*path, "--help"], prog_name="stepwell", standalone_mode=False)
"""
    shown = run(environment / "bin" / "python", "-c", code, cwd=tmp_path)
    assert shown.count("command:") > 10
    assert shown.count("Usage:") == shown.count("command:")
    assert "Not available" not in shown


@pytest.mark.parametrize(
    ("arguments", "variable", "value", "extra"),
    [
        (["topics", "list"], "STEPWELL_LOG", "kafka://127.0.0.1:9", "kafka"),
        (["db", "status"], "STEPWELL_DATABASE", "postgresql://nobody@127.0.0.1:9/nothing", "postgres"),
        (["db", "url"], "STEPWELL_DATABASE", "embedded:database", "embedded"),
    ],
)
def test_a_command_that_needs_an_extra_names_it(
    arguments: list[str], variable: str, value: str, extra: str, environment: Path, tmp_path: Path
) -> None:
    done = subprocess.run(
        [environment / "bin" / "stepwell", *arguments],
        cwd=tmp_path, env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), variable: value},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert f"pip install 'stepwell[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_inner_rooms_import_without_optional_parts(environment: Path, tmp_path: Path) -> None:
    code = """
import importlib, pkgutil, stepwell, stepwell.events, stepwell.engine
for name in stepwell.__all__:
    getattr(stepwell, name)
for room in (stepwell.events, stepwell.engine):
    for module in pkgutil.walk_packages(room.__path__, room.__name__ + "."):
        importlib.import_module(module.name)
print(stepwell.__file__)
"""
    place = run(environment / "bin" / "python", "-c", code, cwd=tmp_path).strip()
    assert Path(place).is_relative_to(environment)
