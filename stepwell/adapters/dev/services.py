"""What belongs to a set, in the order of its start: servers, then our workers. The parts are those of the tests."""

import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from stepwell.adapters.dev.prometheus import configuration
from stepwell.adapters.dev.state import State
from stepwell.adapters.parts import debian, free_port, listens
from stepwell.adapters.parts.kafka import KafkaPart
from stepwell.adapters.parts.registry import RegistryPart
from stepwell.adapters.parts.timescale import TimescalePart
from stepwell.exceptions import StepwellError

__all__ = [
    "Service",
    "alert_rules",
    "client_environment",
    "foreign_variables",
    "servers",
    "workers",
    "workers_environment",
]

_LOCAL = "127.0.0.1"
_SCRAPE_EVERY_S = 5
_OURS = ("HOME", "LOG", "DATABASE", "DATABASE_PASSWORD_FILE", "SCHEMA_REGISTRY", "SCHEMA_REGISTRY_CREDENTIALS_FILE")


@dataclass(frozen=True, slots=True)
class Service:
    """One process of a set.

    Attributes:
        name: in the state, in the messages, and of its folder.
        command: makes what it needs, and gives the command.
        answers: whether it is ready now.
        address: where it is reached, as a person reads it.
        log: where what it says goes.
        grace_s: how long it may take to end when asked.
        ours: whether it is a ``stepwell`` command.
    """

    name: str
    command: Callable[[], list[str]]
    answers: Callable[[], bool]
    address: str
    log: Path
    grace_s: float = 30.0
    ours: bool = False


def servers(directory: Path, state: State) -> Iterator[Service]:
    """Kafka, the database where it is a process of the set, the registry."""
    kafka = KafkaPart(directory / "kafka", state.port("kafka"))
    yield Service("kafka", kafka.command, kafka.answers, f"kafka://{kafka.bootstrap}", kafka.log)
    if state.database == "timescaledb":
        database = TimescalePart(directory / "timescaledb", state.port("timescaledb"))
        yield Service("timescaledb", database.command, database.answers, database.url, database.log)
    if state.registry:
        registry = RegistryPart(directory / "registry", state.port("registry"))
        yield Service("registry", registry.command, registry.answers, registry.url, registry.log)


def workers(directory: Path, state: State) -> Iterator[Service]:
    """Our workers, the receiver of telemetry, and the Prometheus that watches them."""
    count = state.engines + 2
    first = _consecutive(state, "workers", count)
    yield Service(
        name="workers",
        command=lambda: _stepwell("work", "--engines", str(state.engines), "--listen", f"{_LOCAL}:{first}"),
        answers=lambda: all(_says_yes(f"http://{_LOCAL}:{first + n}/readyz") for n in range(count)),
        address=f"http://{_LOCAL}:{first} to :{first + count - 1} (/healthz, /readyz, /metrics)",
        log=directory / "workers.log",
        grace_s=60.0,
        ours=True,
    )
    grpc, http, listen = (state.port(name) for name in ("otlp-grpc", "otlp-http", "otlp-health"))
    yield Service(
        name="otlp",
        command=lambda: _stepwell(
            "otlp", "--grpc", f"{_LOCAL}:{grpc}", "--http", f"{_LOCAL}:{http}", "--listen", f"{_LOCAL}:{listen}"
        ),
        answers=lambda: _says_yes(f"http://{_LOCAL}:{listen}/readyz"),
        address=f"http://{_LOCAL}:{http} (gRPC: {grpc}; health: {listen})",
        log=directory / "otlp.log",
        ours=True,
    )
    if state.prometheus:
        port = state.port("prometheus")
        targets = [*(f"{_LOCAL}:{first + n}" for n in range(count)), f"{_LOCAL}:{listen}"]
        yield Service(
            name="prometheus",
            command=lambda: _prometheus(directory / "prometheus", port, targets),
            answers=lambda: _says_yes(f"http://{_LOCAL}:{port}/-/ready"),
            address=f"http://{_LOCAL}:{port}",
            log=directory / "prometheus.log",
        )


def client_environment(directory: Path, state: State) -> dict[str, str]:
    """What a shell has to export to work with the set."""
    wanted = {
        "STEPWELL_LOG": f"kafka://{_LOCAL}:{state.port('kafka')}",
        "STEPWELL_DATABASE": _database(directory, state),
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{_LOCAL}:{state.port('otlp-grpc')}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
    }
    if state.registry:
        wanted["STEPWELL_SCHEMA_REGISTRY"] = RegistryPart(directory / "registry", state.port("registry")).url
    return wanted


def foreign_variables(wanted: Mapping[str, str]) -> list[str]:
    """What a shell must not have set to work with the set: it says where something is that the set does not have."""
    return [name for each in _OURS if (name := f"STEPWELL_{each}") not in wanted and each != "HOME"]


def workers_environment(directory: Path, state: State) -> dict[str, str]:
    """The environment of our own processes: the caller's, but for what says where things are.

    They have a home of their own: what a worker keeps on disk belongs to one log.
    """
    inherited = {
        name: value for name, value in os.environ.items() if name not in {f"STEPWELL_{each}" for each in _OURS}
    }
    return inherited | client_environment(directory, state) | {"STEPWELL_HOME": str(directory / "home")}


def _database(directory: Path, state: State) -> str:
    if state.database == "timescaledb":
        return TimescalePart(directory / "timescaledb", state.port("timescaledb")).url
    return f"embedded:{directory / 'database'}" if state.database == "embedded" else state.database


def _stepwell(*words: str) -> list[str]:
    return [sys.executable, "-m", "stepwell", *words]


def alert_rules() -> list[Path]:
    """Files with the alert rules: those of the checkout; the installed package has none."""
    rules = Path(__file__).resolve().parents[3] / "compose" / "prometheus" / "rules"
    return [path for path in sorted(rules.glob("*.yml")) if not path.name.endswith(".test.yml")]


def _prometheus(directory: Path, port: int, targets: list[str]) -> list[str]:
    """Write the configuration."""
    directory.mkdir(parents=True, exist_ok=True)
    found = [str(path) for path in alert_rules()]
    file = directory / "prometheus.yml"
    file.write_text(configuration(targets, found, every_s=_SCRAPE_EVERY_S), encoding="utf-8")
    return [
        debian.program("prometheus"), f"--config.file={file}", f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address={_LOCAL}:{port}", "--storage.tsdb.retention.time=15d",
    ]  # fmt: skip


def _says_yes(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310 (http, on 127.0.0.1)
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _consecutive(state: State, name: str, count: int) -> int:
    """The first of so many ports in a row; chosen on first use."""
    if name not in state.ports:
        for _ in range(200):
            first = free_port()
            if not any(listens(first + n) for n in range(1, count)):
                state.ports[name] = first
                break
        else:
            raise StepwellError(f"No {count} free ports in a row on {_LOCAL} in 200 tries.")
    return state.ports[name]
