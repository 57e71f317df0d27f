"""Tables on a terminal: nothing is cut off, however narrow it is; ids stay in one piece, so that they can be copied."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def plain_table(
    *columns: str, rows: Iterable[Iterable[object]] = (), whole: tuple[str, ...] = (), title: str | None = None
) -> "Table":
    """A table with these columns; cells of those named in ``whole`` are never broken.

    Cells come from outside: neither Rich's markup nor the terminal's control characters in them take effect. None shows
    as ``?``.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from stepwell.structured_logging import escape_text

    table = Table(box=SIMPLE_HEAD, padding=(0, 1), show_edge=False, title=title, title_justify="left")
    for name in columns:
        table.add_column(name, no_wrap=name in whole, overflow="fold")
    for row in rows:
        lines = [("?" if cell is None else str(cell)).split("\n") for cell in row]
        table.add_row(*(Text("\n".join(map(escape_text, cell))) for cell in lines))
    return table
