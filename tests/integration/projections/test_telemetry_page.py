"""docs/telemetry.md: every question is asked, and has the answer that stands there."""

import re
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from stepwell.engine.ports import MessageLog
from tests.integration.projections import facts
from tests.integration.projections.telemetry_story import story

PAGE = Path(__file__).resolve().parents[3] / "docs" / "telemetry.md"
QUESTION = re.compile(r"```sql\n(.*?)```\n\n```\n(.*?)```", re.DOTALL)


def shown(database: str, statement: str) -> str:
    """The rows of a statement as columns of text."""
    with psycopg.connect(database) as connection:
        cursor = connection.execute(statement)
        assert cursor.description is not None
        rows = [[column.name for column in cursor.description]]
        rows += [[str(value) for value in row] for row in cursor.fetchall()]
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines) + "\n"


def test_every_question_has_the_answer_that_stands_there(
    log: MessageLog, database: str, drain: Callable[..., None]
) -> None:
    facts.publish(log, story(facts.now_us() - 120_000_000))
    drain()
    text = PAGE.read_text(encoding="utf-8")
    questions = QUESTION.findall(text)
    assert len(questions) == len(re.findall("```sql", text)) >= 7
    renewed = text
    for statement, answer in questions:
        renewed = renewed.replace(
            f"{statement}```\n\n```\n{answer}```", f"{statement}```\n\n```\n{shown(database, statement)}```"
        )
    assert renewed == text


@pytest.mark.parametrize("migrated_url", ["postgres"], indirect=True)
def test_a_step_has_the_sample_of_its_moment(
    log: MessageLog, drain: Callable[..., None], query: Callable[..., list[tuple[object, ...]]]
) -> None:
    """The window that holds it, or the nearest before; of its own episode or machine, and not too old."""
    at = facts.now_us() - 60_000_000
    second = 1_000_000
    begun = at - 9 * second

    def sample(worker: str, host: str, metric: str, when: int, start: int, value: float, episode: str | None = None):  # type: ignore[no-untyped-def]
        temporality = "delta" if start != when else "none"
        return facts.telemetry(
            worker, 0, when, host=host, episode_id=episode, attempt=1 if episode else None,
            series=(facts.model.Series(metric=metric, unit="1", temporality=temporality),), point_series=(0,),
            point_start_at=(start,), point_at=(when,), point_value=(value,), distributions=(),
        )  # fmt: skip

    facts.publish(log, [
        facts.requested("e-1", occurred_at=begun), facts.claimed("e-1", host="lab-3", occurred_at=begun),
        facts.step("e-1", 0, occurred_at=at),
        sample("w", "lab-3", "window", at - second, at - 2 * second, 1.0, "e-1"),
        sample("w", "lab-3", "window", at + second, at - second, 2.0, "e-1"),  # holds the step
        sample("w", "lab-3", "window", at + 2 * second, at + second, 3.0, "e-1"),
        sample("w", "lab-3", "gauge", at - 2 * second, at - 2 * second, 4.0),
        sample("w", "lab-3", "gauge", at - second, at - second, 5.0),  # the nearest before
        sample("w", "lab-3", "gauge", at + 1, at + 1, 6.0),
        sample("w", "lab-3", "old", at - 6 * second, at - 6 * second, 7.0),
        sample("w", "lab-9", "elsewhere", at, at, 8.0),
        sample("w", "lab-9", "of another", at, at, 9.0, "e-2"),
        sample("w", "lab-9", "robot", at, at, 10.0, "e-1"),
    ])  # fmt: skip
    drain()
    assert query("SELECT metric, value, age_s FROM stepwell.step_telemetry ORDER BY metric") == [
        ("gauge", 5.0, 1.0), ("robot", 10.0, 0.0), ("window", 2.0, -1.0),
    ]  # fmt: skip
