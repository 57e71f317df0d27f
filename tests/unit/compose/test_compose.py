"""The stack for a team, read by a strict parser of the Compose Specification; no container is started."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import typer
import yaml
from compose_spec import PyCompose

from stepwell.adapters.dev.prometheus import configuration
from stepwell.adapters.parts import debian, kafka
from stepwell.cli import build_app
from stepwell.settings import Settings, load_settings, variable_of

COMPOSE = Path(__file__).resolve().parents[3] / "compose"
TEXT = (COMPOSE / "compose.yaml").read_text(encoding="utf-8")
THREE = (COMPOSE / "compose.kafka3.yaml").read_text(encoding="utf-8")
DOCKERFILE = (COMPOSE / "Dockerfile").read_text(encoding="utf-8")
IMAGE = re.compile(r"[a-z0-9./-]+:v?\d+\.\d+(?:\.\d+)?(?:-[a-z0-9.-]+)?")
SERVERS = {"kafka", "registry", "timescaledb", "object-store", "prometheus", "grafana"}
ONCE = {"topics", "schemas", "migrate", "tune", "roles", "grant-projector", "grant-grafana"}
WORKERS = {"engine", "detector", "projector", "otlp"}
KEEPERS = {"cancel-overdue"}


class UniqueKeyLoader(yaml.SafeLoader):
    """Refuses a key that stands twice; plain YAML keeps the last one in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if key.value != "<<"]
        assert len(keys) == len(set(keys)), f"line {node.start_mark.line + 1}: a key stands twice: {sorted(keys)}"
        return super().construct_mapping(node, deep)


STACK: dict[str, Any] = UniqueKeyLoader(TEXT).get_single_data()
OVERRIDE: dict[str, Any] = UniqueKeyLoader(THREE).get_single_data()
SERVICES: dict[str, dict[str, Any]] = STACK["services"]
OURS = sorted(ONCE | WORKERS | KEEPERS)


def merged(base: Any, over: Any) -> Any:
    """As `docker compose -f base -f over` merges what these two files hold: mappings by key, the rest replaced."""
    if isinstance(base, dict) and isinstance(over, dict):
        return {key: merged(base[key], over[key]) if {key} <= base.keys() & over.keys() else {**base, **over}[key]
                for key in {**base, **over}}  # fmt: skip
    return over


CLUSTER: dict[str, Any] = merged(STACK, OVERRIDE)


def without_extensions(stack: dict[str, Any]) -> str:
    return yaml.safe_dump({key: value for key, value in stack.items() if not key.startswith("x-")}, sort_keys=False)


@pytest.mark.parametrize("stack", [STACK, CLUSTER], ids=["one broker", "three brokers"])
def test_the_parser_of_the_specification_accepts_it(stack: dict[str, Any]) -> None:
    parsed = PyCompose.from_yaml(without_extensions(stack))
    parsed.validate()
    assert sorted(parsed.service_names()) == sorted(stack["services"])


def test_every_service_is_known_here() -> None:
    assert set(SERVICES) == SERVERS | ONCE | WORKERS | KEEPERS
    assert set(CLUSTER["services"]) == set(SERVICES) | {"kafka-2", "kafka-3"}


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
    with pytest.raises((ValueError, RuntimeError)):
        PyCompose.from_yaml(without_extensions(broken)).validate()


@pytest.mark.parametrize("name", sorted(CLUSTER["services"]))
def test_images_are_pinned_memory_is_bounded_and_rights_are_few(name: str) -> None:
    service = CLUSTER["services"][name]
    assert IMAGE.fullmatch(service["image"]), service["image"]
    assert re.fullmatch(r"\d+[mg]", service["mem_limit"])
    assert service["restart"] in ({"on-failure"} if name in ONCE else {"unless-stopped"})
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert ("healthcheck" in service) is (name not in ONCE | KEEPERS)
    # One image starts as root: its data folder is root's. The others need no right of root's.
    assert ("user" in service) is (name != "object-store")
    assert ("cap_add" in service) is (name == "object-store")
    assert int(service.get("user", "1").split(":")[0]) > 0


def test_kafka_is_the_version_that_the_tests_run() -> None:
    images = {service["image"] for name, service in CLUSTER["services"].items() if name.startswith("kafka")}
    assert images == {f"apache/kafka:{kafka.VERSION}"}


@pytest.mark.parametrize("name", [*OURS, "registry", "timescaledb", "prometheus", "grafana"])
def test_what_can_be_is_read_only(name: str) -> None:
    assert SERVICES[name]["read_only"] is True


def test_the_database_has_where_it_writes_beside_its_data() -> None:
    """PostgreSQL's socket lies in a folder that must be its own; `initdb` and the tuner use temporary files."""
    service = SERVICES["timescaledb"]
    uid, _, gid = service["user"].partition(":")
    options = dict(each.split(":", 1) for each in service["tmpfs"])
    assert {"/tmp", "/var/run/postgresql"} == set(options)
    assert {f"uid={uid}", f"gid={gid}"} <= set(options["/var/run/postgresql"].split(","))


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
    secrets = SERVICES[name].get("secrets", [])
    for secret in secrets:
        (tmp_path / secret).write_text("secret\n")
    monkeypatch.chdir(tmp_path)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value.replace("/run/secrets", str(tmp_path)))
    settings = load_settings()
    assert settings.log == "kafka://kafka:9092"
    assert settings.schema_registry == "http://registry:8080/apis/ccompat/v7"
    assert (settings.worker_listen == "0.0.0.0:9464") is (name in WORKERS)
    users = {"projector": "projector", **dict.fromkeys((ONCE | KEEPERS) - {"topics", "schemas"}, "stepwell")}
    if name in users:
        assert settings.database == f"postgresql://{users[name]}:secret@timescaledb:5432/stepwell"
    else:
        assert "STEPWELL_DATABASE" not in environment
    given = " ".join([*environment.values(), *SERVICES[name]["command"]])
    assert set(re.findall(r"/run/secrets/(\w+)", given)) == set(secrets)


def test_hosts_and_ports_in_the_settings_are_those_of_the_servers() -> None:
    brokers = {name: service["environment"] for name, service in CLUSTER["services"].items() if "kafka" in name}
    for name, environment in brokers.items():
        assert f"INSIDE://{name}:9092" in environment["KAFKA_ADVERTISED_LISTENERS"].split(",")
        listeners = {entry.split("://")[0] for entry in environment["KAFKA_LISTENERS"].split(",")}
        protocols = environment["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"].split(",")
        assert listeners == {entry.split(":")[0] for entry in protocols}
    database = SERVICES["timescaledb"]["environment"]
    assert f"postgresql://{database['POSTGRES_USER']}@timescaledb:5432/{database['POSTGRES_DB']}" in TEXT


def test_three_brokers_keep_three_copies_and_everybody_knows_all_three() -> None:
    services = CLUSTER["services"]
    brokers = [services[name] for name in ("kafka", "kafka-2", "kafka-3")]
    environments = [broker["environment"] for broker in brokers]
    assert [each["KAFKA_NODE_ID"] for each in environments] == ["1", "2", "3"]
    for variable, value in {
        "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@kafka:9093,2@kafka-2:9093,3@kafka-3:9093",
        "KAFKA_DEFAULT_REPLICATION_FACTOR": "3",
        "KAFKA_MIN_INSYNC_REPLICAS": "2",
        "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "3",
        "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "3",
        "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "2",
    }.items():
        assert [each[variable] for each in environments] == [value] * 3, variable
    own = {"KAFKA_NODE_ID", "KAFKA_LISTENERS", "KAFKA_ADVERTISED_LISTENERS"}
    common = [{key: value for key, value in each.items() if key not in own} for each in environments]
    assert common[0] == common[1] == common[2]
    data = [volume for broker in brokers for volume in broker["volumes"]]
    ports = [port for broker in brokers for port in broker["ports"]]
    assert (len(set(data)), len(set(ports))) == (3, 3)
    assert all(services[name]["environment"]["STEPWELL_LOG"].count(":9092") == 3 for name in OURS)
    assert set(services["topics"]["depends_on"]) == {"kafka", "kafka-2", "kafka-3"}


def test_ports_are_open_to_this_host_only_and_no_password_is_written_down() -> None:
    published: list[str] = []
    for service in CLUSTER["services"].values():
        published += service.get("ports", [])
        for variable, value in service.get("environment", {}).items():
            assert not re.search("PASSWORD|SECRET|TOKEN", variable) or value.startswith("/run/secrets/"), variable
    assert all(port.startswith("127.0.0.1:") for port in published)
    assert len({port.split(":")[1] for port in published}) == len(published)


def test_everything_starts_after_what_it_needs() -> None:
    for name, service in CLUSTER["services"].items():
        for needed, how in service.get("depends_on", {}).items():
            assert needed in CLUSTER["services"]
            if how["condition"] == "service_healthy":
                assert "healthcheck" in CLUSTER["services"][needed]
            else:
                assert (how["condition"], needed in ONCE) == ("service_completed_successfully", True), name
    for worker in WORKERS:
        assert set(SERVICES[worker]["depends_on"]) >= {"topics", "schemas"}
    assert "grant-projector" in SERVICES["projector"]["depends_on"]


@pytest.mark.parametrize("stack", [STACK, CLUSTER], ids=["one broker", "three brokers"])
def test_every_volume_is_declared_and_used_and_every_file_is_there(stack: dict[str, Any]) -> None:
    """The parser does not look into short volume names."""
    sources = {volume.split(":")[0] for service in stack["services"].values() for volume in service.get("volumes", [])}
    assert {source for source in sources if not source.startswith("./")} == set(stack["volumes"])
    for source in sources:
        assert not source.startswith("./") or (COMPOSE / source).exists(), source


def test_no_two_workers_of_a_kind_share_a_slot() -> None:
    slots = [(SERVICES[name]["command"][0], SERVICES[name]["environment"]["STEPWELL_WORKER_SLOT"]) for name in WORKERS]
    assert len(slots) == len(set(slots)) == len(WORKERS)


def test_secrets_are_made_once_each_and_are_those_that_the_stack_names(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    for _ in range(2):
        before = {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}
        subprocess.run(["sh", COMPOSE / "make_secrets.sh", folder], check=True)
        made = {path.name: path.read_bytes() for path in folder.iterdir()}
        assert set(made) == set(STACK["secrets"])
        assert made.items() >= before.items()
    assert {secret["file"] for secret in STACK["secrets"].values()} == {f"./secrets/{name}" for name in made}
    assert folder.stat().st_mode & 0o777 == 0o700
    assert len(set(made.values())) == len(made)
    (identity,) = json.loads(made["object_store"])["identities"]
    assert len(identity["credentials"][0]["secretKey"]) == 48
    del made["object_store"]
    assert all(re.fullmatch(rb"[0-9a-f]{48}\n", value) for value in made.values())


def test_prometheus_watches_every_worker_and_its_configuration_is_valid() -> None:
    targets = [f"{name}:9464" for name in ("engine", "detector", "projector", "otlp")]
    assert set(targets) == {f"{name}:9464" for name in WORKERS}
    file = COMPOSE / "prometheus" / "prometheus.yml"
    assert file.read_text(encoding="utf-8") == configuration(targets, ["rules/stepwell.yml"], every_s=15)
    command = [debian.program("promtool"), "check", "config", file]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 rule files found" in done.stdout


def test_grafana_finds_its_sources_by_the_names_of_the_services() -> None:
    text = (COMPOSE / "grafana" / "provisioning" / "datasources" / "stepwell.yaml").read_text(encoding="utf-8")
    sources = {source["type"]: source for source in yaml.safe_load(text)["datasources"]}
    assert sources["prometheus"]["url"] == "http://prometheus:9090"
    database = sources["grafana-postgresql-datasource"]
    assert database["url"] == "timescaledb:5432"
    assert SERVICES["grant-grafana"]["command"] == ["db", "roles", "--grant", "reader", database["user"]]
    assert f"CREATE ROLE {database['user']} " in (COMPOSE / "timescaledb" / "users.sh").read_text(encoding="utf-8")
    secret = re.fullmatch(r"\$__file\{/run/secrets/(\w+)\}", database["secureJsonData"]["password"])
    assert secret is not None
    assert secret[1] in SERVICES["grafana"]["secrets"]


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
