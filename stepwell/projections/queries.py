"""SQL lives in ``sql/*.sql``: named entries, each opened by a line ``-- name: NAME``."""

import re
from functools import cache
from importlib import resources

__all__ = ["load"]

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


@cache
def load(file: str, package: str = "stepwell.projections") -> dict[str, str]:
    """The entries of ``sql/<file>.sql`` of a package by name."""
    text = resources.files(package).joinpath("sql", f"{file}.sql").read_text(encoding="utf-8")
    parts = _NAME.split(text)[1:]
    return {name: body.strip() for name, body in zip(parts[::2], parts[1::2], strict=True)}
