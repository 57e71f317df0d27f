"""What the tests of rebuilds share."""

from collections.abc import Callable
from typing import Any

from stepwell.engine.ports import MessageLog
from stepwell.projections.writing.rows import PROJECTED_TOPICS
from tests.integration.projections import facts

Query = Callable[..., list[tuple[Any, ...]]]
HOME = "SELECT schema FROM stepwell.homes WHERE relation = %s"
POSITIONS_NOW = "SELECT topic, partition, next_offset FROM stepwell.sink_offsets WHERE sink = 'stepwell-projector'"


def some_of_everything(log: MessageLog) -> None:
    """Records that fill every table, among them one that the database refuses and one that nobody can read."""
    for number in range(3):
        facts.publish(log, facts.episode(f"e-{number}", 4))
    facts.publish(log, [
        facts.snapshot("e-1"), facts.verdict("e-1"), facts.verdict("e-1", revision=2, outcome="failure"),
        facts.pattern("t-1"), facts.retrain("t-1"), facts.withdrawn("t-1"), facts.answered("t-1", "done"),
        facts.telemetry("w-1", 1), facts.dead_letter(), facts.acknowledged("t-1"), facts.muted("p"), facts.activated(),
        facts.expected("e-1"), facts.step("e-1", 9, occurred_at=5, origin="import"),
    ])  # fmt: skip
    facts.send(log, [facts.unchecked(facts.pattern("t-2"), b"\x01")])


def caught_up(log: MessageLog, query: Query) -> bool:
    """Whether the tables have all that is in the log, whoever writes them."""
    positions = {(topic, partition): at for topic, partition, at in query(POSITIONS_NOW)}
    ends = {
        tuple(source): mark.high for topic in PROJECTED_TOPICS for source, mark in log.admin().watermarks(topic).items()
    }
    return positions == ends
