"""Which tables are made again together: those that one record fills, and those that are made of each other's rows.

A record's rows go in together or not at all, so tables that share a record can only be made again together; so can a
table and the sums over it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stepwell.events.topics import (
    EPISODE_EVENTS,
    EPISODE_SNAPSHOTS,
    FAILURE_PATTERNS,
    POLICY_EVENTS,
    RETRAIN_REQUESTS,
    RETRAIN_RESULTS,
    RULE_SETS,
    TELEMETRY,
)
from stepwell.exceptions import ConfigurationError
from stepwell.projections.writing.rows import PROJECTED_TOPICS

__all__ = ["FAMILIES", "POSITIONS", "Family", "Scope", "scope_of"]


@dataclass(frozen=True, slots=True)
class Family:
    """Tables that are made again together.

    Attributes:
        tables: filled from records, row by row.
        derived: made of those tables' rows, by the projector or by the database.
        topics: what feeds them.
    """

    tables: tuple[str, ...]
    topics: tuple[str, ...]
    derived: tuple[str, ...] = ()

    @property
    def relations(self) -> tuple[str, ...]:
        return (*self.tables, *self.derived)


def _spans(name: str) -> tuple[str, ...]:
    return tuple(f"{name}_{span}" for span in ("minutes", "hours", "days"))


FAMILIES: tuple[Family, ...] = (
    # The sums over steps are by what episodes and attempts say of them.
    Family(
        ("runs", "episodes", "episode_attempts", "steps"),
        (EPISODE_EVENTS, EPISODE_SNAPSHOTS),
        ("step_gaps", *_spans("step")),
    ),
    Family(("actions",), (EPISODE_EVENTS,)),
    Family(("verdicts",), (POLICY_EVENTS,), ("verdict_changes", *_spans("outcome"))),
    Family(("expected_verdicts",), (POLICY_EVENTS,)),
    Family(("retrain_acknowledgements",), (POLICY_EVENTS,)),
    Family(("retrain_mutes",), (POLICY_EVENTS,)),
    Family(("failure_patterns",), (FAILURE_PATTERNS,)),
    Family(("retrain_requests", "retrain_closings"), (RETRAIN_REQUESTS,)),
    Family(("retrain_answers",), (RETRAIN_RESULTS,)),
    Family(("rule_sets",), (RULE_SETS,)),
    Family(("telemetry_series", "telemetry_points"), (TELEMETRY,), _spans("telemetry")),
    Family(("spans",), (TELEMETRY,)),
    Family(("worker_status", "worker_partitions"), (TELEMETRY,)),
    # What the projector sets aside may come from any topic.
    Family(("dead_letters",), PROJECTED_TOPICS),
)
POSITIONS = ("sink_offsets", "consumer_positions")
"""Tables that no record fills: they tell how far everybody is."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What a rebuild makes.

    Attributes:
        families: those that move.
        relations: names of all that moves; None: every relation there is.
        topics: what must be read.
    """

    families: tuple[Family, ...]
    relations: frozenset[str] | None
    topics: tuple[str, ...]


def scope_of(tables: Sequence[str] | None) -> Scope:
    """What is made again for the sake of these tables; None, or one that everything feeds: all.

    Raises:
        ConfigurationError: there is no such table, or it is made of no record.
    """
    everything = Scope(FAMILIES, None, PROJECTED_TOPICS)
    if tables is None:
        return everything
    known = {relation: family for family in FAMILIES for relation in family.relations}
    unknown = sorted(set(tables) - set(known))
    if unknown:
        raise ConfigurationError(f"No table of this name can be made again: {', '.join(unknown)}. {_offer()}")
    families = tuple(family for family in FAMILIES if not set(tables).isdisjoint(family.relations))
    topics = _in_order({topic for family in families for topic in family.topics})
    if any(family.topics == PROJECTED_TOPICS for family in families):
        return everything
    return Scope(families, frozenset(relation for family in families for relation in family.relations), topics)


def _in_order(topics: Iterable[str]) -> tuple[str, ...]:
    wanted = set(topics)
    return tuple(topic for topic in PROJECTED_TOPICS if topic in wanted)


def _offer() -> str:
    return "Those there are: " + ", ".join(sorted(table for family in FAMILIES for table in family.relations))
