"""The twenty questions of docs/ops.md, asked of the log of one run of the demo; the page has the very answers.

To write the answers anew, run this file as a module: ``.venv/bin/python -m tests.integration.test_ops_questions``.
"""

import contextlib
import re
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from stepwell.adapters.logs import open_log
from stepwell.engine import restore
from stepwell.engine.detection import restore as detector_restore
from stepwell.projections.on_read import fields
from stepwell.projections.schema.migrate import migrate
from stepwell.projections.writing.projector import Projector
from tests.integration.projections import facts
from tests.integration.projections.conftest import Running
from tests.support import demo_log

PAGE = Path(__file__).resolve().parents[2] / "docs" / "ops.md"
BEFORE_THE_PROJECTOR = {restore.GROUP: restore.TOPICS, detector_restore.GROUP: detector_restore.TOPICS}
CUT_AT = 0.3
"""The first part of the page asks in the middle of the run."""
QUESTION = re.compile(r"^### (\d+)\. (.+?)$.*?^```sql\n(.*?)^```$\n\n^```\n(.*?)^```$", re.MULTILINE | re.DOTALL)

Answers = dict[int, str]


def shown(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
    return f"{value:g}" if isinstance(value, float) else str(value)


def answer(connection: psycopg.Connection[Any], statement: str) -> str:
    """The rows as the page shows them: a head, one line a row, columns two spaces apart."""
    cursor = connection.execute(statement.encode())
    rows = [[column.name for column in cursor.description or ()]]
    rows += [[shown(value) for value in row] for row in cursor.fetchall()]
    if len(rows) == 1:
        rows.append(["(no row)"] + [""] * (len(rows[0]) - 1))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "".join("  ".join(map(str.ljust, row, widths)).rstrip() + "\n" for row in rows)


def asked(url: str, questions: list[tuple[str, ...]]) -> Answers:
    with psycopg.connect(url, autocommit=True) as connection:
        return {int(number): answer(connection, statement) for number, _, statement, _ in questions}


def parts_of(text: str) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """The questions while it runs, and those when it is done."""
    while_it_runs, _, when_done = text.partition("## When it is done")
    return QUESTION.findall(while_it_runs), QUESTION.findall(when_done)


@contextlib.contextmanager
def projected(url: str, log_url: str) -> Iterator[None]:
    """The projector at work, with all of that log in the tables and said to be."""
    log = open_log(log_url)
    try:
        with Running(Projector(log, url, facts.CODEC, watch=BEFORE_THE_PROJECTOR), log) as projector:
            projector.wait_reported()
            yield
    finally:
        log.close()


def answers(url: str, directory: Path, text: str) -> Answers:
    """All answers: of the cut log, then of the whole one in the same tables, as if the run had gone on."""
    while_it_runs, when_done = parts_of(text)
    migrate(url)
    with projected(url, demo_log.unpack(directory / "cut", cut_at=CUT_AT)):
        found = asked(url, while_it_runs)
    with projected(url, demo_log.unpack(directory / "whole")):
        fields.apply(url)
        return found | asked(url, when_done)


@pytest.mark.parametrize("storage", ["postgres", "timescale"])
def test_the_page_has_the_answers(storage: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    url: str = request.getfixturevalue(f"{storage}_url")
    text = PAGE.read_text(encoding="utf-8")
    found = answers(url, tmp_path, text)
    page = {int(number): said for part in parts_of(text) for number, _, _, said in part}
    assert list(page) == list(range(1, 21))
    assert found == page


def test_an_answer_that_drifted_is_noticed(new_database: Callable[[], str]) -> None:
    with psycopg.connect(new_database()) as connection:
        assert answer(connection, "SELECT 1 AS one, NULL AS two, 0.5::float8 AS half, true AS so") == (
            "one  two   half  so\n1    null  0.5   yes\n"
        )
        assert answer(connection, "SELECT 1 AS one WHERE false") == "one\n(no row)\n"


def write_anew() -> None:
    from stepwell.adapters.parts.embedded_postgres import EmbeddedPostgres

    text = PAGE.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as directory:
        server = EmbeddedPostgres(Path(directory, "database"), fast=True)
        try:
            found = answers(server.start(), Path(directory), text)
        finally:
            server.stop(force=True)

    def fill(match: re.Match[str]) -> str:
        start, end = match.span(4)
        begins, ends = start - match.start(), end - match.start()
        return match[0][:begins] + found[int(match[1])] + match[0][ends:]

    PAGE.write_text(QUESTION.sub(fill, text), encoding="utf-8")


if __name__ == "__main__":
    write_anew()
