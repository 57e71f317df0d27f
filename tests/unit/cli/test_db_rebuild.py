"""``stepwell db rebuild``: options that would do nothing are refused, not dropped in silence."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from stepwell.cli import build_app
from stepwell.exceptions import ConfigurationError


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--status", "--keep-old"], "--status makes no tables: leave out --keep-old"),
        (["--status", "--table", "steps", "--accept-differences"], "leave out --table, --accept-differences"),
        (["--cancel", "--json"], "--cancel makes no tables: leave out --json"),
        (["--drop-old", "--from", "disk"], "--drop-old makes no tables: leave out --from"),
        (["--cancel", "--drop-old"], "give one of them"),
    ],
)
def test_options_that_would_do_nothing_are_refused(home: Path, words: list[str], told: str) -> None:
    ended = CliRunner().invoke(build_app(), ["db", "rebuild", *words])
    assert isinstance(ended.exception, ConfigurationError)
    assert told in str(ended.exception)
