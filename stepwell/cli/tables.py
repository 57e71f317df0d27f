"""Tables on a terminal: nothing is cut off, however narrow it is; ids stay in one piece, so that they can be copied."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def plain_table(*columns: str, whole: tuple[str, ...] = ()) -> "Table":
    """A table with these columns; cells of those named in ``whole`` are never broken."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 1), show_edge=False)
    for name in columns:
        table.add_column(name, no_wrap=name in whole, overflow="fold")
    return table
