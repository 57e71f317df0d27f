"""docs/database.md against the schema."""

import re
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

DOCS = Path(__file__).resolve().parents[3] / "docs" / "database.md"


@pytest.mark.parametrize("migrated_url", ["postgres"], indirect=True)
def test_every_table_and_view_is_explained_and_every_statement_runs(
    database: str, query: Callable[..., list[tuple[str, ...]]]
) -> None:
    text = DOCS.read_text()
    names = {name for (name,) in query("SELECT relname FROM pg_class WHERE relkind IN ('r', 'v') AND relnamespace = 'stepwell'::regnamespace")}  # fmt: skip # noqa: E501
    assert names <= set(re.findall(r"`(\w+)`", text)) | set(re.findall(r"stepwell\.(\w+)", text))
    statements = re.findall(r"```sql\n(.*?)```", text, re.DOTALL)
    assert len(statements) == 7
    with psycopg.connect(database) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.rollback()
