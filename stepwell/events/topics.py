"""The topics, in one place: name, what they hold, how they must be set up.

``partitions`` is the number a new installation gets; an existing topic may have more, never fewer, and partitions are
never added to a topic with records in it (keys would move).
"""

from dataclasses import dataclass

EPISODE_EVENTS = "stepwell.episode-events"
EPISODE_SNAPSHOTS = "stepwell.episode-snapshots"
POLICY_EVENTS = "stepwell.policy-events"
POLICY_SNAPSHOTS = "stepwell.policy-snapshots"
RULE_SETS = "stepwell.rule-sets"
FAILURE_PATTERNS = "stepwell.failure-patterns"
RETRAIN_REQUESTS = "stepwell.retrain-requests"
RETRAIN_RESULTS = "stepwell.retrain-results"
EPISODE_COMMANDS = "stepwell.episode-commands"
TELEMETRY = "stepwell.telemetry"
DEAD_LETTERS = "stepwell.dead-letters"

_DAY_MS = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class Topic:
    """How one topic must be set up.

    Attributes:
        name: the topic's name.
        key: what its records are keyed by.
        partitions: how many partitions a new topic gets.
        compacted: whether only the last record of each key is kept.
        retention_ms: how long records are kept; -1 for ever. Ignored where ``compacted``.
        timestamps: ``log`` (the broker's time of append) or ``producer``.
    """

    name: str
    key: str
    partitions: int
    compacted: bool = False
    retention_ms: int = -1
    timestamps: str = "log"


TOPICS: tuple[Topic, ...] = (
    Topic(EPISODE_EVENTS, "episode_id", partitions=4),
    # Partition p of the snapshots holds what was folded from partition p of the events, so both have as many.
    Topic(EPISODE_SNAPSHOTS, "episode_id/attempt or checkpoint/<partition>", partitions=4, compacted=True),
    Topic(POLICY_EVENTS, "policy", partitions=4),
    # As for episodes: partition p holds what was folded from partition p of the policy events.
    Topic(POLICY_SNAPSHOTS, "policy/<policy> or checkpoint/<partition>", partitions=4, compacted=True),
    # Kept whole, so that one can see which rules were in force when; the last record is the set in force now.
    Topic(RULE_SETS, "rules", partitions=1),
    Topic(FAILURE_PATTERNS, "policy", partitions=4),
    Topic(RETRAIN_REQUESTS, "policy", partitions=4),
    Topic(RETRAIN_RESULTS, "policy", partitions=4),
    Topic(EPISODE_COMMANDS, "episode_id", partitions=4, retention_ms=30 * _DAY_MS),
    Topic(TELEMETRY, "episode_id or worker_id", partitions=4, retention_ms=14 * _DAY_MS),
    Topic(DEAD_LETTERS, "the original key", partitions=4, retention_ms=90 * _DAY_MS),
)
BY_NAME: dict[str, Topic] = {topic.name: topic for topic in TOPICS}

WRITTEN_BY_ENGINE = (EPISODE_EVENTS, EPISODE_SNAPSHOTS, POLICY_EVENTS, DEAD_LETTERS)
WRITTEN_BY_DETECTOR = (POLICY_EVENTS, POLICY_SNAPSHOTS, FAILURE_PATTERNS, RETRAIN_REQUESTS, DEAD_LETTERS)
