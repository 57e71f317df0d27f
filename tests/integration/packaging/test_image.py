"""The image's build, in the steps of its own Dockerfile, without a container: what they install works."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[3]
DOCKERFILE = (REPOSITORY / "compose" / "Dockerfile").read_text(encoding="utf-8")
# What each of our services needs beside the wheel itself.
NEEDED = (
    "confluent_kafka", "confluent_kafka.schema_registry.avro", "psycopg_pool", "numpy", "prometheus_client", "psutil",
    "pynvml", "grpc.aio", "aiohttp", "opentelemetry.proto.collector.metrics.v1.metrics_service_pb2",
)  # fmt: skip


def build_steps() -> list[tuple[str, str]]:
    """COPY and RUN of the stage that builds, in their order."""
    (stage,) = re.findall(r"^FROM \S+ AS build$(.*?)^FROM ", DOCKERFILE, re.MULTILINE | re.DOTALL)
    steps = re.findall(r"^(COPY|RUN) (.+)$", stage.replace("\\\n", " "), re.MULTILINE)
    assert [word for word, _ in steps] == ["COPY", "RUN", "COPY", "COPY", "RUN"]
    return steps


def run(command: list[str] | str, cwd: Path, env: dict[str, str]) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=env, shell=isinstance(command, str), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the image has at /opt/stepwell."""
    root = tmp_path_factory.mktemp("image")
    work, base = root / "build", root / "base"
    work.mkdir()
    run([sys.executable, "-m", "venv", str(base)], root, dict(os.environ))
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("VIRTUAL_ENV", "PYTHON", "UV_"))}
    clean["PATH"] = f"{base / 'bin'}:/usr/local/bin:/usr/bin:/bin"
    for word, rest in build_steps():
        if word == "COPY":
            *sources, target = rest.split()
            for source in sources:
                copy(REPOSITORY / source, work / target)
        else:
            # In its own folder, and with the caches of this machine: the hashes are checked all the same.
            script = rest.replace("/opt/", f"{root}/opt/").replace("--no-cache-dir ", "").replace("--no-cache ", "")
            run(script, work, clean)
    return root / "opt" / "stepwell"


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        return
    into = target / source.name if target.name != source.name else target
    into.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, into)


def test_every_command_of_the_stack_is_there_with_all_that_it_needs(image: Path, tmp_path: Path) -> None:
    env = {"PATH": f"{image / 'bin'}:/usr/bin:/bin", "STEPWELL_HOME": str(tmp_path)}
    shown = run(["stepwell", "--help"], tmp_path, env)
    assert "Not available" not in shown
    run(["python", "-c", f"import {', '.join(NEEDED)}"], tmp_path, env)
    where = run(["python", "-c", "import stepwell; print(stepwell.__file__)"], tmp_path, env)
    assert where.startswith(str(image))
    stack = yaml.safe_load((REPOSITORY / "compose" / "compose.yaml").read_text(encoding="utf-8"))
    commands = {each["command"][0] for each in stack["services"].values() if each["image"].startswith("stepwell:")}
    assert commands == {"topics", "schemas", "db", "engine", "detector", "projector", "otlp"}
    for command in ("otlp", "schemas"):
        run(["stepwell", command, "--help"], tmp_path, env)


def test_nothing_for_developers_is_in_it(image: Path) -> None:
    packages = {path.name.partition("-")[0] for path in image.glob("lib/python3*/site-packages/*.dist-info")}
    assert {"stepwell", "confluent_kafka", "grpcio"} <= packages
    assert not packages & {"pytest", "mypy", "ruff", "hypothesis", "playwright", "uv", "hatchling"}
