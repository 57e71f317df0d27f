"""A home of the test's own, and the log in it: what the commands use."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from stepwell import settings
from stepwell.adapters.logs import open_log
from stepwell.engine.ports import MessageLog


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the commands find their log; none is there yet."""
    monkeypatch.setenv("STEPWELL_HOME", str(tmp_path))
    monkeypatch.setenv("STEPWELL_LOG", f"local:{tmp_path / 'log'}")
    settings.get_settings.cache_clear()
    yield tmp_path
    settings.get_settings.cache_clear()


@pytest.fixture
def log(home: Path) -> Iterator[MessageLog]:
    """The log that the commands use, empty."""
    log = open_log(f"local:{home / 'log'}")
    yield log
    log.close()
