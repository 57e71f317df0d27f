"""What ``stepwell dev env`` tells a shell."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from stepwell.adapters.dev.state import State, save
from stepwell.cli.dev import env
from stepwell.settings import get_settings


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("STEPWELL_HOME", str(tmp_path))
    get_settings.cache_clear()
    (tmp_path / "dev").mkdir()
    yield tmp_path / "dev"
    get_settings.cache_clear()


def lines(capsys: pytest.CaptureFixture[str]) -> tuple[list[str], str]:
    env()
    printed = capsys.readouterr()
    return printed.out.splitlines(), printed.err


def test_what_the_set_does_not_have_is_unset(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(directory, State())
    out, _ = lines(capsys)
    assert {line.removeprefix("unset ") for line in out if line.startswith("unset")} == {
        "STEPWELL_DATABASE_PASSWORD_FILE", "STEPWELL_SCHEMA_REGISTRY", "STEPWELL_SCHEMA_REGISTRY_CREDENTIALS_FILE",
    }  # fmt: skip
    save(directory, State(registry=True))
    out, _ = lines(capsys)
    assert any(line.startswith("export STEPWELL_SCHEMA_REGISTRY=http://127.0.0.1:") for line in out)
    assert "unset STEPWELL_SCHEMA_REGISTRY" not in out


def test_the_protocol_is_told_with_the_port(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Else SDKs whose default is HTTP would send that to the port of gRPC."""
    save(directory, State(ports={"otlp-grpc": 4321}))
    out, _ = lines(capsys)
    assert "export OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4321" in out
    assert "export OTEL_EXPORTER_OTLP_PROTOCOL=grpc" in out


def test_a_set_that_is_down_is_told_beside_it(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(directory, State())
    out, err = lines(capsys)
    assert all(line.startswith(("export ", "unset ")) for line in out)
    assert "not all of the set runs (kafka is away, timescaledb is away" in err
    assert "stepwell dev up" in err
