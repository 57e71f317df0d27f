"""The SQL files that make the schema, by what they are for.

- ``control/NNNN_name.sql``: numbered migrations of the schema ``stepwell``: what stands beside the tables.
- ``tables/NNNN_name[.timescale|.plain].sql``: numbered migrations of one generation of the tables, with bare names; a
  variant runs only in a generation of that storage.
- ``views/NN_name[.timescale|.plain].sql``: the views as they are to be; made again whenever a file changes.
"""

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

from stepwell.exceptions import MigrationError

__all__ = ["HYPERTABLES", "PLAIN", "SchemaFile", "SchemaFiles", "packaged"]

HYPERTABLES, PLAIN = "hypertables", "plain"
"""How a generation keeps its large tables: as TimescaleDB's hypertables, or as ordinary tables."""

_FILE = re.compile(r"^(\d+)_[a-z0-9_]+(?:\.(timescale|plain))?\.sql$")
_STORAGES = {"timescale": HYPERTABLES, "plain": PLAIN, None: None}


@dataclass(frozen=True, slots=True)
class SchemaFile:
    """One file. ``storage``: the only one that it is for; None: for both."""

    version: int
    name: str
    sql: str
    storage: str | None = None

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()

    def fits(self, storage: str) -> bool:
        """Whether a generation of that storage has it."""
        return self.storage is None or self.storage == storage


@dataclass(frozen=True, slots=True)
class SchemaFiles:
    """All of them, each kind in its order."""

    control: tuple[SchemaFile, ...]
    tables: tuple[SchemaFile, ...]
    views: tuple[SchemaFile, ...] = ()


@cache
def packaged() -> SchemaFiles:
    """Those of this version.

    Raises:
        MigrationError: the numbers of migrations do not run from 1 without a hole.
    """
    return SchemaFiles(_numbered("control"), _numbered("tables"), _in("views"))


def _numbered(folder: str) -> tuple[SchemaFile, ...]:
    found = _in(folder)
    numbers = sorted({file.version for file in found})
    if numbers != list(range(1, len(numbers) + 1)):
        raise MigrationError(f"The packaged migrations are not numbered 1, 2, ...: {[file.name for file in found]}")
    return found


def _in(folder: str) -> tuple[SchemaFile, ...]:
    """In the order of their numbers; what is for one storage comes after what is for both."""
    directory = resources.files(__package__).joinpath(folder)
    found = [
        SchemaFile(int(match[1]), entry.name, entry.read_text(), _STORAGES[match[2]])
        for entry in directory.iterdir()
        if (match := _FILE.match(entry.name))
    ]
    return tuple(sorted(found, key=lambda file: (file.version, file.storage is not None, file.name)))
