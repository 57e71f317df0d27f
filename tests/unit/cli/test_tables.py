"""Tables keep names in one piece, on a narrow terminal and in a pipe alike; reading commands make no log."""

import io
import sys
from pathlib import Path

import pytest

from stepwell import settings
from stepwell.cli.resources import opened_log
from stepwell.cli.tables import REASON_CHARS_MAX, console, counted, first_line, plain_table
from stepwell.exceptions import LogUnavailableError, NotFoundError, StillQueuedError

EPISODE = "ep-srezpbd6so2h3bwmcxlr"
CAUSE = "task_not_completed (policy)"
SENTENCE = "every " + "word " * 40 + "in one line"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch, columns: int = 80) -> list[str]:
    """A table as `stepwell episodes` prints it, and a sentence."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", stream)
    names = ("episode", "policy", "where", "seed", "outcome", "cause (fault)", "steps")
    row = (EPISODE, "balancer-killed-often", "a-scene-with-a-long-name + slippery", 4, "failure", CAUSE, 120)
    console().print(plain_table(*names, rows=[row], whole=("episode",)))
    console().print(SENTENCE)
    return stream.getvalue().splitlines()


def test_nothing_is_wrapped_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(io.StringIO(), monkeypatch)
    assert len(lines) == 4
    assert lines[-1] == SENTENCE
    assert lines[2].split() == [
        EPISODE, "balancer-killed-often", "a-scene-with-a-long-name", "+", "slippery", "4", "failure",
        "task_not_completed", "(policy)", "120",
    ]  # fmt: skip


@pytest.mark.parametrize("columns", [40, 80, 100])
def test_names_are_never_broken_on_a_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    text = "\n".join(printed(Terminal(), monkeypatch, columns))
    for name in (EPISODE, "balancer-killed-often", "task_not_completed", "outcome", "failure"):
        assert name in text
    assert "a-scene-with-a-long-name" not in text, "the other columns share what room is left"


def test_plural_forms() -> None:
    assert [counted(n, "attempt") for n in (0, 1, 2)] == ["0 attempts", "1 attempt", "2 attempts"]


def test_of_a_reason_the_first_line_is_shown() -> None:
    """libpq puts a question below it."""
    assert first_line("database: refused\n\tIs the server running?") == "database: refused"
    assert first_line("\n a\x1b[31m\tb") == r"a\x1b[31m\tb"
    assert first_line("x" * 200) == "x" * (REASON_CHARS_MAX - 1) + "…"
    assert first_line("") == ""


def test_who_finds_the_log_away_is_told_which_one(tmp_path: Path) -> None:
    with (
        pytest.raises(LogUnavailableError, match=rf"^The log local:{tmp_path}/log is not available: no controller$"),
        opened_log(f"local:{tmp_path}/log"),
    ):
        raise LogUnavailableError("no controller")
    with pytest.raises(StillQueuedError, match=r"^queued$"), opened_log(f"local:{tmp_path}/log"):
        raise StillQueuedError("queued")


def test_a_command_that_reads_makes_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_HOME", str(tmp_path))
    settings.get_settings.cache_clear()
    try:
        with (
            pytest.raises(NotFoundError, match=f"no log at {tmp_path / 'log'}; STEPWELL_HOME"),
            opened_log(must_exist=True),
        ):
            pass
        assert list(tmp_path.iterdir()) == []
        with opened_log():
            pass
        with opened_log(must_exist=True):
            pass
    finally:
        settings.get_settings.cache_clear()
