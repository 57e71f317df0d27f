"""The tables as the projector writes them: columns with their types, keys, and how rows of one key meet.

A "kind" of row goes through one staging table into one target. Most kinds are named like their target; the status of an
attempt is written by two kinds, because two topics tell parts of it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = ["KINDS", "Kind", "Row", "reduce_rows"]

Values = tuple[Any, ...]


class Row(NamedTuple):
    """One row: its kind's name, and a value for each of the kind's columns (times in µs since 1970, UTC)."""

    kind: str
    values: Values


def _first(old: Values, _new: Values) -> Values:
    return old


def _fill(old: Values, new: Values) -> Values:
    """First request and first claim, each whole: columns 3 to 5 and 6 to 8 of an attempt's facts, told by the time."""
    asked = new[3:6] if old[3] is None else old[3:6]
    claimed = new[6:9] if old[6] is None else old[6:9]
    return (*old[:3], *asked, *claimed)


def _earliest(old: Values, new: Values) -> Values:
    """By time, then by author, so that it does not matter who came first."""
    return min(old, new, key=lambda values: (values[2], values[1]))


def _farthest(old: Values, new: Values) -> Values:
    """By the last offset that a status covers; the later one of two that cover the same."""
    return old if old[14] > new[14] else new


def _newest(old: Values, new: Values) -> Values:
    """What was logged last; its last columns are when, partition and offset."""
    return old if (old[-3], old[-1]) > (new[-3], new[-1]) else new


def _newest_status(old: Values, new: Values) -> Values:
    """The newest report of a worker; columns 10 to 12, last error and last progress, stay where it tells of none."""
    last = _newest(old, new)
    before = old if last is new else new
    error = last[10:12] if last[11] is not None else before[10:12]
    progress = last[12] if last[12] is not None else before[12]
    return (*last[:10], *error, progress, *last[13:])


def _newest_position(old: Values, new: Values) -> Values:
    """The newest report of a partition; column 8, when it moved, stays where it tells of nothing."""
    last = _newest(old, new)
    before = old if last is new else new
    return (*last[:8], last[8] if last[8] is not None else before[8], *last[9:])


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of row.

    Attributes:
        name: of the kind, and of its staging table (``staging_<name>``).
        columns: names in order.
        types: their types, by the names of `stepwell.projections.writing.copy_format`.
        key: positions of the columns that identify a row.
        target: the table in schema ``stepwell``.
        direct: rows are copied straight into the target (large, append-only tables).
        meet: which values stay when two rows of one batch have the same key.
        merge: name of the query in ``sql/projector.sql`` that moves rows from staging to the target; None: insert, and
            do nothing where the key exists.
    """

    name: str
    columns: tuple[str, ...]
    types: tuple[str, ...]
    key: tuple[int, ...]
    target: str
    direct: bool
    meet: Callable[[Values, Values], Values]
    merge: str | None


def _kind(
    name: str,
    columns: str,
    key: str,
    *,
    target: str | None = None,
    direct: bool = False,
    meet: Callable[[Values, Values], Values] = _first,
    merge: str | None = None,
) -> Kind:
    """``columns``: words ``name:type``; ``key``: words."""
    pairs = [word.split(":") for word in columns.split()]
    names = tuple(pair[0] for pair in pairs)
    positions = tuple(names.index(word) for word in key.split())
    return Kind(name, names, tuple(pair[1] for pair in pairs), positions, target or name, direct, meet, merge)


_EVIDENCE = (
    "trigger_id:text event_id:uuid {at}:time rule:text rule_version:int rule_key:text policy:text policy_version:text "
    "checkpoint:text failure_type:text evidence:json detail:text "
)
_PLACE = " source_partition:int source_offset:long"

# In the order in which one transaction writes them, so that two transactions never wait for each other in a circle.
KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        _kind(
            "runs", "run_id:text requested_by:text first_requested_at:time", "run_id",
            meet=_earliest, merge="merge_runs",
        ),
        _kind(
            "episodes",
            "episode_id:text run_id:text task:text policy:text policy_version:text checkpoint:text scene:text "
            "perturbation:text seed:long repetition:int cell:text max_steps:int requested_by:text requested_at:time "
            "trace_id:text definition:json purpose:text" + _PLACE,
            "episode_id",
        ),
        _kind(
            "attempt_facts",
            "episode_id:text attempt:int run_id:text requested_at:time retry_reason:text from_checkpoint:text "
            "claimed_at:time host:text host_pid:int",
            "episode_id attempt", target="episode_attempts", meet=_fill, merge="merge_attempt_facts",
        ),
        _kind(
            "attempt_status",
            "episode_id:text attempt:int run_id:text phase:text paused:bool since_at:time owes:text owes_seq:long "
            "next_step:int last_event_at:time outcome:text revision:int sealed:bool first_offset:long "
            "last_offset:long fold_hash:text",
            "episode_id attempt", target="episode_attempts", meet=_farthest, merge="merge_attempt_status",
        ),
        _kind(
            "steps",
            "occurred_at:time logged_at:time episode_id:text attempt:int step:int producer_id:text producer_seq:long "
            "event_id:uuid action_seq:long sim_time:float reward:float success:bool terminated:bool truncated:bool "
            "step_wall_s:float metrics:json state_digest:bytes" + _PLACE,
            "episode_id attempt producer_seq producer_id occurred_at", direct=True,
        ),
        _kind(
            "actions",
            "occurred_at:time logged_at:time episode_id:text attempt:int first_step:int n_steps:int producer_id:text "
            "producer_seq:long event_id:uuid sim_time:float observed_step:int inference_s:float shape:ints "
            "action:floats action_uri:text" + _PLACE,
            "episode_id attempt producer_seq producer_id occurred_at", direct=True,
        ),
        _kind(
            "telemetry_series",
            "series_id:long metric:text unit:text kind:text temporality:text worker_id:text host:text resource:json "
            "scope:text attributes:json",
            "series_id", merge="merge_telemetry_series",
        ),
        _kind(
            "telemetry_points",
            "sampled_at:time started_at:time series_id:long value:float measurements:long distribution:json "
            "episode_id:text attempt:int logged_at:time" + _PLACE,
            "series_id sampled_at started_at episode_id attempt", direct=True,
        ),
        _kind(
            "spans",
            "started_at:time ended_at:time trace_id:text span_id:text parent_span_id:text name:text kind:text "
            "status:text status_message:text worker_id:text host:text resource:json scope:text attributes:json "
            "events:json links:json episode_id:text attempt:int logged_at:time" + _PLACE,
            "trace_id span_id started_at", direct=True,
        ),
        _kind(
            "verdicts",
            "episode_id:text attempt:int revision:int event_id:uuid run_id:text trace_id:text issued_at:time "
            "policy:text policy_version:text checkpoint:text task:text scene:text perturbation:text seed:long "
            "repetition:int cell:text purpose:text requested_at:time started_at:time ended_at:time outcome:text "
            "failure_type:text fault:text message:text labels:texts label_steps:ints autonomous:bool n_steps:int "
            "total_reward:float success_at_end:bool success_once:bool metrics:json completeness:text "
            "completeness_notes:texts lost:json late:json lost_count:long late_count:long duplicate_count:long "
            "violation_count:long nonfinite_count:long source_partition:int first_offset:long last_offset:long "
            "fold_hash:text rule_set:text schema_fingerprints:texts simulator:text simulator_version:text "
            "adapter_version:text environment_digest:text reported_seed:long reported_checkpoint:text logged_at:time "
            "verdict_partition:int verdict_offset:long",
            "episode_id attempt revision",
        ),
        # Made of no record, but of the verdicts before and after one: `stepwell.projections.sums.standing`.
        _kind(
            "verdict_changes",
            "at:time episode_id:text change:int sign:int attempt:int revision:int run_id:text policy:text "
            "policy_version:text checkpoint:text task:text scene:text perturbation:text purpose:text outcome:text "
            "failure_type:text fault:text n_steps:int issued_at:time logged_at:time" + _PLACE,
            "episode_id change at", direct=True,
        ),
        _kind("failure_patterns", _EVIDENCE.format(at="detected_at") + "promise:text", "trigger_id"),
        _kind(
            "retrain_requests",
            _EVIDENCE.format(at="requested_at") + "sampling_weights:json weights_formula:text hard_negatives:json "
            "regression_spec:json requested_by:text",
            "trigger_id",
        ),
        _kind(
            "retrain_closings", "trigger_id:text policy:text closed_as:text closed_at:time reason:text", "trigger_id",
        ),
        _kind(
            "retrain_answers",
            "event_id:uuid trigger_id:text answered_at:time logged_at:time policy:text trainer:text status:text "
            "new_checkpoint:text detail:text" + _PLACE,
            "event_id",
        ),
        _kind(
            "retrain_acknowledgements",
            "event_id:uuid trigger_id:text policy:text acknowledged_at:time logged_at:time acknowledged_by:text "
            "detail:text" + _PLACE,
            "event_id",
        ),
        _kind(
            "retrain_mutes",
            "event_id:uuid policy:text rule:text muted:bool muted_until:time said_at:time logged_at:time said_by:text "
            "reason:text" + _PLACE,
            "event_id",
        ),
        _kind(
            "rule_sets",
            "event_id:uuid rule_set:text version:int rules:json sha256:bytes activated_at:time logged_at:time "
            "activated_by:text" + _PLACE,
            "event_id",
        ),
        _kind(
            "expected_verdicts",
            "episode_id:text event_id:uuid run_id:text policy:text policy_version:text checkpoint:text task:text "
            "scene:text perturbation:text purpose:text requested_at:time logged_at:time" + _PLACE,
            "episode_id",
        ),
        _kind(
            "worker_status",
            "worker_id:text kind:text host:text pid:long version:text started_at:time reported_at:time report_seq:long "
            "state:text waits_for:text last_error:text last_error_at:time last_progress_at:time looked_at:time "
            "logged_at:time" + _PLACE,
            "worker_id", meet=_newest_status, merge="merge_worker_status",
        ),
        _kind(
            "worker_partitions",
            "worker_id:text consumer:text topic:text partition:int position:long log_end:long events_per_s:float "
            "arrives_per_s:float progressed_at:time complete_until:time reported_at:time logged_at:time" + _PLACE,
            "worker_id consumer topic partition", meet=_newest_position, merge="merge_worker_partitions",
        ),
        _kind(
            "dead_letters",
            "source_topic:text source_partition:int source_offset:long kind:text reason:text detail:text "
            "logged_at:time source_key:bytes source_value:bytes source_headers:json episode_id:text attempt:int "
            "event_type:text reported_by:text",
            "source_topic source_partition source_offset kind reason logged_at",
        ),
    )
}  # fmt: skip
"""Every kind by name."""


def reduce_rows(kind: Kind, rows: Iterable[Values]) -> list[Values]:
    """One row a key, in the order of first appearance; rows of one key meet as the kind says."""
    kept: dict[Values, Values] = {}
    key, meet = kind.key, kind.meet
    for values in rows:
        identity = tuple([values[position] for position in key])
        known = kept.get(identity)
        kept[identity] = values if known is None else meet(known, values)
    return list(kept.values())
