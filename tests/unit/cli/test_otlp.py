"""What ``stepwell otlp`` refuses before it listens."""

from pathlib import Path

import pytest
import typer

from stepwell.cli.otlp import otlp
from stepwell.exceptions import ConfigurationError


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"grpc": "off", "http": "off"}, "nothing to listen on"),
        ({"grpc": "4317"}, "HOST:PORT"),
        ({"grpc": ":4317"}, "HOST:PORT"),
        ({"http": "127.0.0.1:http"}, "HOST:PORT"),
        ({"http": "127.0.0.1:65536"}, "HOST:PORT"),
    ],
)
def test_wrong_addresses_are_told_with_what_was_expected(home: Path, options: dict[str, str], told: str) -> None:
    with pytest.raises(typer.BadParameter, match=told):
        otlp(**options)  # type: ignore[arg-type]


def test_a_token_file_that_is_missing_is_named(home: Path) -> None:
    with pytest.raises(ConfigurationError, match="nowhere"):
        otlp(token_file=home / "nowhere")
