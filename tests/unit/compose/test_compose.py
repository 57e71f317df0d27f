"""The stack for a team, read by a strict parser of the Compose Specification; no container is started."""

import re
from pathlib import Path
from typing import Any

import click
import pytest
import typer
import yaml
from compose_spec import PyCompose

from stepwell.adapters.parts import kafka
from stepwell.cli import build_app
from stepwell.settings import Settings, load_settings, variable_of

COMPOSE = Path(__file__).resolve().parents[3] / "compose"
TEXT = (COMPOSE / "compose.yaml").read_text(encoding="utf-8")
DOCKERFILE = (COMPOSE / "Dockerfile").read_text(encoding="utf-8")
IMAGE = re.compile(r"[a-z0-9./-]+:\d+\.\d+\.\d+(?:-[a-z0-9.-]+)?")
SERVERS = {"kafka", "timescaledb"}
ONCE = {"topics", "migrate"}


class UniqueKeyLoader(yaml.SafeLoader):
    """Refuses a key that stands twice; plain YAML keeps the last one in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if key.value != "<<"]
        assert len(keys) == len(set(keys)), f"line {node.start_mark.line + 1}: a key stands twice: {sorted(keys)}"
        return super().construct_mapping(node, deep)


STACK: dict[str, Any] = UniqueKeyLoader(TEXT).get_single_data()
SERVICES: dict[str, dict[str, Any]] = STACK["services"]
OURS = sorted(set(SERVICES) - SERVERS)


def test_the_parser_of_the_specification_accepts_it() -> None:
    merged = yaml.safe_dump({key: value for key, value in STACK.items() if not key.startswith("x-")}, sort_keys=False)
    parsed = PyCompose.from_yaml(merged)
    parsed.validate()
    assert sorted(parsed.service_names()) == sorted(SERVICES)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("mem_limit:", "memlimit:"),
        ("interval: 5s", "interval: soon"),
        ("mem_limit: 1g", "mem_limit: lots"),
        ("networks: [inside]", "networks: [inner]"),
        ("secrets:\n  database_password:", "secrets:\n  password:"),
    ],
)
def test_the_parser_would_notice(old: str, new: str) -> None:
    """The check above is worth something: it refuses misspelt keys, values and names."""
    assert old in TEXT
    broken = yaml.safe_load(TEXT.replace(old, new))
    broken = {key: value for key, value in broken.items() if not key.startswith("x-")}
    with pytest.raises((ValueError, RuntimeError)):
        PyCompose.from_yaml(yaml.safe_dump(broken)).validate()


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_images_are_pinned_and_memory_is_bounded(name: str) -> None:
    service = SERVICES[name]
    assert IMAGE.fullmatch(service["image"]), service["image"]
    assert re.fullmatch(r"\d+[mg]", service["mem_limit"])
    assert service["restart"] in ({"on-failure"} if name in ONCE else {"unless-stopped"})


def test_kafka_is_the_version_that_the_tests_run() -> None:
    assert SERVICES["kafka"]["image"] == f"apache/kafka:{kafka.VERSION}"


@pytest.mark.parametrize("name", OURS)
def test_our_containers_have_few_rights(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert int(service["user"].split(":")[0]) > 0
    assert "ports" not in service


@pytest.mark.parametrize("name", OURS)
def test_every_command_is_one_of_ours(name: str) -> None:
    command: click.Command = typer.main.get_command(build_app())
    arguments = SERVICES[name]["command"]
    for position, word in enumerate(arguments):
        inner = getattr(command, "commands", None)
        if inner is None:
            # Options and arguments of the command itself.
            command.make_context("stepwell", list(arguments[position:]))
            return
        assert word in inner, f"stepwell {' '.join(arguments[: position + 1])}: there are {sorted(inner)}"
        command = inner[word]
    assert not hasattr(command, "commands"), f"stepwell {' '.join(arguments)} is a group of commands"
    command.make_context("stepwell", [])


@pytest.mark.parametrize("name", OURS)
def test_every_variable_is_a_setting_with_a_fitting_value(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = SERVICES[name]["environment"]
    assert set(environment) <= {variable_of(field) for field in Settings.model_fields}
    (tmp_path / "database_password").write_text("secret\n")
    monkeypatch.chdir(tmp_path)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value.replace("/run/secrets", str(tmp_path)))
    settings = load_settings()
    assert settings.log == "kafka://kafka:9092"
    assert settings.database == "postgresql://stepwell:secret@timescaledb:5432/stepwell"
    assert set(SERVICES[name]["secrets"]) <= set(STACK["secrets"])


def test_hosts_and_ports_in_the_settings_are_those_of_the_servers() -> None:
    kafka_environment = SERVICES["kafka"]["environment"]
    assert "INSIDE://kafka:9092" in kafka_environment["KAFKA_ADVERTISED_LISTENERS"].split(",")
    listeners = {entry.split("://")[0] for entry in kafka_environment["KAFKA_LISTENERS"].split(",")}
    protocols = {entry.split(":")[0] for entry in kafka_environment["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"].split(",")}
    assert listeners == protocols
    database = SERVICES["timescaledb"]["environment"]
    assert f"postgresql://{database['POSTGRES_USER']}@timescaledb:5432/{database['POSTGRES_DB']}" in TEXT


def test_ports_are_open_to_this_host_only_and_no_password_is_written_down() -> None:
    for service in SERVICES.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        for variable, value in service.get("environment", {}).items():
            assert "PASSWORD" not in variable or value == "/run/secrets/database_password"


def test_everything_starts_after_what_it_needs() -> None:
    for name in sorted(SERVICES):
        for needed, how in SERVICES[name].get("depends_on", {}).items():
            assert needed in SERVICES
            if how["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[needed]
            else:
                assert (how["condition"], needed in ONCE) == ("service_completed_successfully", True)
    for worker in set(OURS) - ONCE:
        assert set(SERVICES[worker]["depends_on"]) == ONCE


def test_every_volume_is_declared_and_used() -> None:
    """The parser does not look into short volume names."""
    named = {volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])}
    assert named == set(STACK["volumes"])


def test_no_two_workers_of_a_kind_share_a_slot() -> None:
    slots = [
        (*SERVICES[name]["command"], SERVICES[name]["environment"]["STEPWELL_WORKER_SLOT"])
        for name in OURS
        if name not in ONCE
    ]
    assert len(slots) == len(set(slots)) == 3


def test_dockerfile_is_pinned_locked_and_unprivileged() -> None:
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert all(IMAGE.fullmatch(base) for base in bases), bases
    assert re.findall(r"^USER (\S+)", DOCKERFILE, re.MULTILINE)[-1] == SERVICES["engine"]["user"]
    installs = re.findall(r"pip install (?:[^&\\]|\\\n)*", DOCKERFILE)
    assert len(installs) == 4
    assert all("--require-hashes" in each or "--no-deps dist/" in each for each in installs)


def test_dockerfile_copies_what_there_is() -> None:
    allowed = {
        line[1:] for line in (COMPOSE / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")
    }
    for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (COMPOSE.parent / source).exists(), source
            assert source.split("/")[0] in allowed, source
