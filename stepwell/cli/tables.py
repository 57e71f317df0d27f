"""Text and tables for people: nothing is cut off; ids stay in one piece, so that they can be copied.

Into a pipe or a file everything goes unwrapped, whatever the width of the terminal that started it.
"""

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

UNWRAPPED_COLUMNS = 1_000
"""Width of what is no terminal: wider than any table that people can read."""
SHORT_CHARS_MAX = 80
"""So much of a program's last words stands in a table."""
REASON_CHARS_MAX = 160
"""So much of what a worker waits for: what is away, where, and why."""
FLEXIBLE_MIN = 7
"""Columns may be folded down to this width on a narrow terminal, unless what is in them is never broken."""
NAMES = ("episode", "policy", "trigger", "id", "failure type", "failure_type", "failure type (rule)", "cause (fault)")
"""Columns whose words are never broken: what people copy from a table or look for in it."""


def console() -> "Console":
    """Where a command prints its answer: standard output, as wide as the terminal, or unwrapped where there is none."""
    from rich.console import Console

    class Uncut(Console):
        """Lines longer than the terminal go on in its next line; Rich would cut them off."""

        def print(self, *objects: Any, **options: Any) -> None:
            super().print(*objects, **{"crop": False} | options)

    if sys.stdout.isatty():
        return Uncut(highlight=False)
    return Uncut(highlight=False, width=UNWRAPPED_COLUMNS, soft_wrap=True)


def plain_table(
    *columns: str, rows: Iterable[Iterable[object]] = (), whole: tuple[str, ...] = (), title: str | None = None
) -> "Table":
    """A table with these columns; cells of those named in ``whole`` are never wrapped.

    In the columns of `NAMES`, lines are broken between words only; the others share what room is left.

    Cells come from outside: neither Rich's markup nor the terminal's control characters in them take effect. None shows
    as ``?``.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from stepwell.structured_logging import escape_text

    cells = [[_text(cell, escape_text) for cell in row] for row in rows]
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), show_edge=False, title=title, title_justify="left")
    for i, name in enumerate(columns):
        parts = [name, *(row[i] for row in cells)]
        pieces = [piece for part in parts for piece in (part.split("\n") if name in whole else part.split())]
        longest = max(map(len, pieces), default=0)
        least = longest if name in whole or name in NAMES else min(longest, FLEXIBLE_MIN)
        table.add_column(name, no_wrap=name in whole, overflow="fold", min_width=least)
    for row in cells:
        table.add_row(*map(Text, row))
    return table


def _text(cell: object, escape: Any) -> str:
    return "\n".join(map(escape, ("?" if cell is None else str(cell)).split("\n")))


def counted(number: int, noun: str) -> str:
    """``1 attempt``, ``2 attempts``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def first_line(text: str) -> str:
    """The first line, at most `REASON_CHARS_MAX` long: what libraries put below it are guesses and hints."""
    from stepwell.structured_logging import escape_text

    line = escape_text(text.strip().partition("\n")[0].strip())
    return line if len(line) <= REASON_CHARS_MAX else line[: REASON_CHARS_MAX - 1] + "…"


def short_line(text: str) -> str:
    """The last line, at most `SHORT_CHARS_MAX` long: that is where programs say why they failed."""
    from stepwell.structured_logging import escape_text

    line = escape_text(text.strip().rpartition("\n")[2].strip())
    return line if len(line) <= SHORT_CHARS_MAX else line[: SHORT_CHARS_MAX - 1] + "…"
