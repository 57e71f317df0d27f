"""What a record becomes in the tables. Pure: record and position in, rows out.

Every row is a plain copy of what the record says; nothing is counted, summed or judged here, so that the tables can be
thrown away and made again from the log at any time. What PostgreSQL's text cannot hold (a NUL, half of a character) is
written out, so that no row is lost over it.
"""

import base64
import sys
from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from stepwell.engine.ports import RecordBatch
from stepwell.events import model
from stepwell.events.codec import Codec
from stepwell.events.guards import check_sample_times, check_time
from stepwell.events.model import Event, LogRecord, Metric, SequenceRange, Tensor
from stepwell.events.topics import (
    DEAD_LETTERS,
    EPISODE_EVENTS,
    EPISODE_SNAPSHOTS,
    FAILURE_PATTERNS,
    POLICY_EVENTS,
    RETRAIN_REQUESTS,
    RETRAIN_RESULTS,
    RULE_SETS,
    TELEMETRY,
)
from stepwell.projections.sums.standing import EARLIEST_US, LATEST_US
from stepwell.projections.tables import KINDS, Row
from stepwell.projections.writing import rows_telemetry, rows_workers
from stepwell.projections.writing.jsonb import as_json, fits, number, parsed, storable

__all__ = ["PROJECTED_TOPICS", "Source", "project", "rows_of"]

_ARRAY_CODES = {"float32": "f", "float64": "d", "int32": "i", "int64": "q", "uint8": "B", "bool": "B"}
_MAX_INT = 2**31


class Source(NamedTuple):
    """Where a record stands in the log. ``timestamp``: the log's time of append (µs)."""

    topic: str
    partition: int
    offset: int
    timestamp: int


def rows_of(record: LogRecord, source: Source) -> Sequence[Row]:
    """The rows of one record; none for types that no table holds, or that stand on a topic where they do not belong."""
    make = _MAKERS.get((source.topic, type(record)))
    if make is None:
        return ()
    rows = make(record, source)
    for row in rows:
        for position in _TEXTS[row.kind]:
            text = row.values[position]
            if text is not None and not fits(text):
                return [_mended(row) for row in rows]
    return rows


def project(codec: Codec, batch: RecordBatch, index: int) -> Sequence[Row]:
    """The rows of the record at an index of a batch.

    None for a tombstone, and for an episode's event under another key than the episode's id: that is the engine's dead
    letter, and it may stand in another partition and be read before the genuine record whose row it would take.

    Raises:
        EventError: the record cannot be read, or its time is out of the window; the engine refuses it as well.
    """
    topic, partition = batch.source
    value, timestamp = batch.values[index], batch.timestamps[index]
    if value is None and topic == EPISODE_SNAPSHOTS:
        return ()  # how a compacted topic forgets a key
    record = codec.decode(value, batch.headers[index])
    if topic == EPISODE_EVENTS and isinstance(record, Event):
        check_time(record, timestamp)
        if batch.keys[index] != record.episode_id.encode():
            return ()
    elif isinstance(record, model.TelemetrySampled | model.SpansEnded):
        check_sample_times(record, timestamp)
    return rows_of(record, Source(topic, partition, batch.offsets[index], timestamp))


# --- facts about episodes ---


def _step(event: model.StepDone, source: Source) -> tuple[Row, ...]:
    values = (
        event.occurred_at, source.timestamp, event.episode_id, event.attempt, event.step, event.producer_id,
        event.producer_seq, event.event_id, event.action_seq, event.sim_time, event.reward, event.success,
        event.terminated, event.truncated, event.step_wall_s,
        _metrics(event.metrics) if event.metrics else None, event.state_digest, source.partition, source.offset,
    )  # fmt: skip
    return (Row("steps", values),)


def _action(event: model.ActionSent, source: Source) -> tuple[Row, ...]:
    tensor = event.action
    values = (
        event.occurred_at, source.timestamp, event.episode_id, event.attempt, event.first_step, event.n_steps,
        event.producer_id, event.producer_seq, event.event_id, event.sim_time, event.observed_step, event.inference_s,
        tensor.shape, _elements(tensor), tensor.uri, source.partition, source.offset,
    )  # fmt: skip
    return (Row("actions", values),)


def _requested(event: model.EpisodeRequested, source: Source) -> tuple[Row, ...]:
    episode = (
        event.episode_id, event.run_id, event.task, event.policy, event.policy_version, event.checkpoint, event.scene,
        event.perturbation, event.seed, event.repetition, event.cell, event.max_steps, event.requested_by,
        event.occurred_at, event.trace_id, parsed(event.definition_json), event.purpose,
        source.partition, source.offset,
    )  # fmt: skip
    return (
        Row("runs", (event.run_id, event.requested_by, event.occurred_at)),
        Row("episodes", episode),
        Row("attempt_facts", (event.episode_id, event.attempt, event.run_id, event.occurred_at, *[None] * 5)),
    )


def _retry(event: model.RetryRequested, _source: Source) -> tuple[Row, ...]:
    values = (
        event.episode_id, event.attempt, event.run_id, event.occurred_at, event.reason, event.from_checkpoint,
        None, None, None,
    )  # fmt: skip
    return (Row("attempt_facts", values),)


def _claimed(event: model.EpisodeClaimed, _source: Source) -> tuple[Row, ...]:
    values = (
        event.episode_id, event.attempt, event.run_id, None, None, None, event.occurred_at, event.host, event.pid,
    )  # fmt: skip
    return (Row("attempt_facts", values),)


def _status(record: model.SnapshotTaken, _source: Source) -> tuple[Row, ...]:
    values = (
        record.episode_id, record.attempt, record.run_id, record.phase, record.paused, record.since_at, record.owes,
        record.owes_seq, record.next_step, record.last_event_at, record.outcome, record.revision,
        record.kind == "sealed", record.first_offset, record.last_offset, record.fold_hash,
    )  # fmt: skip
    return (Row("attempt_status", values),)


# --- verdicts, patterns, requests ---


def _verdict(event: model.VerdictIssued, source: Source) -> tuple[Row, ...]:
    certificate, provenance = event.certificate, event.provenance
    values = (
        event.episode_id, event.attempt, event.revision, event.event_id, event.run_id, event.trace_id,
        event.occurred_at, event.policy, event.policy_version, event.checkpoint, event.task, event.scene,
        event.perturbation, event.seed, event.repetition, event.cell, event.purpose, event.requested_at,
        event.started_at, event.ended_at, event.outcome, event.failure_type, event.fault, event.message, event.labels,
        event.label_steps, event.autonomous, event.n_steps, event.total_reward, event.success_at_end,
        event.success_once, _metrics(event.metrics), certificate.status, certificate.notes, _ranges(certificate.lost),
        _ranges(certificate.late), certificate.lost_count, certificate.late_count, certificate.duplicate_count,
        certificate.violation_count, certificate.nonfinite_count, provenance.partition, provenance.first_offset,
        provenance.last_offset, provenance.fold_hash, provenance.rule_set, provenance.schema_fingerprints,
        provenance.simulator, provenance.simulator_version, provenance.adapter_version, provenance.environment_digest,
        provenance.seed, provenance.checkpoint, source.timestamp, source.partition, source.offset,
    )  # fmt: skip
    return (Row("verdicts", values),)


def _pattern(event: model.PatternDetected, _source: Source) -> tuple[Row, ...]:
    return (Row("failure_patterns", (*_trigger(event), event.promise)),)


def _retrain(event: model.RetrainRequested, _source: Source) -> tuple[Row, ...]:
    weights = [{"scene": w.scene, "perturbation": w.perturbation, "weight": w.weight} for w in event.sampling_weights]
    proposal = (
        as_json(weights), event.weights_formula, _evidence(event.hard_negatives), parsed(event.regression_spec_json),
    )  # fmt: skip
    return (Row("retrain_requests", (*_trigger(event), *proposal, event.requested_by)),)


def _trigger(event: model.PatternDetected | model.RetrainRequested) -> tuple[Any, ...]:
    return (
        event.trigger_id, event.event_id, event.occurred_at, event.rule, event.rule_version, event.rule_key,
        event.policy, event.policy_version, event.checkpoint, event.failure_type, _evidence(event.evidence),
        event.detail,
    )  # fmt: skip


def _evidence(episodes: Sequence[model.EvidenceEpisode]) -> str:
    return as_json([{name: getattr(episode, name) for name in episode.__struct_fields__} for episode in episodes])


def _closed(event: model.RetrainWithdrawn | model.RetrainExpired, _source: Source) -> tuple[Row, ...]:
    how = "expired" if isinstance(event, model.RetrainExpired) else "withdrawn"
    return (Row("retrain_closings", (event.trigger_id, event.policy, how, event.occurred_at, event.reason)),)


def _answered(event: model.RetrainAnswered, source: Source) -> tuple[Row, ...]:
    values = (
        event.event_id, event.trigger_id, event.occurred_at, source.timestamp, event.policy, event.producer_id,
        event.status, event.new_checkpoint, event.detail, source.partition, source.offset,
    )  # fmt: skip
    return (Row("retrain_answers", values),)


def _acknowledged(event: model.RetrainAcknowledged, source: Source) -> tuple[Row, ...]:
    values = (
        event.event_id, event.trigger_id, event.policy, event.occurred_at, source.timestamp, event.acknowledged_by,
        event.detail, source.partition, source.offset,
    )  # fmt: skip
    return (Row("retrain_acknowledgements", values),)


def _muted(event: model.RetrainMuted, source: Source) -> tuple[Row, ...]:
    values = (
        event.event_id, event.policy, event.rule, True, event.until, event.occurred_at, source.timestamp,
        event.muted_by, event.reason, source.partition, source.offset,
    )  # fmt: skip
    return (Row("retrain_mutes", values),)


def _unmuted(event: model.RetrainUnmuted, source: Source) -> tuple[Row, ...]:
    values = (
        event.event_id, event.policy, event.rule, False, None, event.occurred_at, source.timestamp,
        event.unmuted_by, "", source.partition, source.offset,
    )  # fmt: skip
    return (Row("retrain_mutes", values),)


# --- rules ---


def _rules(event: model.RulesActivated, source: Source) -> tuple[Row, ...]:
    """From its home alone: the copies in the partitions that it concerns say the same."""
    values = (
        event.event_id, event.rule_set, event.version, parsed(event.rules_json) or "null", event.sha256,
        event.occurred_at, source.timestamp, event.activated_by, source.partition, source.offset,
    )  # fmt: skip
    return (Row("rule_sets", values),)


def _expected(event: model.VerdictExpected, source: Source) -> tuple[Row, ...]:
    values = (
        event.episode_id, event.event_id, event.run_id, event.policy, event.policy_version, event.checkpoint,
        event.task, event.scene, event.perturbation, event.purpose, event.requested_at, source.timestamp,
        source.partition, source.offset,
    )  # fmt: skip
    return (Row("expected_verdicts", values),)


# --- the rest ---


def _points(record: model.TelemetrySampled, source: Source) -> list[Row]:
    return rows_telemetry.points(record, source.timestamp, source.partition, source.offset)


def _spans(record: model.SpansEnded, source: Source) -> list[Row]:
    return rows_telemetry.spans(record, source.timestamp, source.partition, source.offset)


def _worker(record: model.WorkerReported, source: Source) -> list[Row]:
    return rows_workers.report(record, source.timestamp, source.partition, source.offset)


def _dead_letter(record: model.DeadLetter, _source: Source) -> tuple[Row, ...]:
    """Takes whatever comes: what is set aside here has nowhere else to go, so nothing in it may be refused again."""
    at, attempt = record.source_timestamp, record.attempt
    headers = [
        {"name": h.name, "value": None if h.value is None else base64.b64encode(h.value).decode()}
        for h in record.source_headers
    ]
    values = (
        record.source_topic, record.source_partition, record.source_offset, record.kind, record.reason, record.detail,
        at if EARLIEST_US <= at < LATEST_US else EARLIEST_US, record.source_key, record.source_value, as_json(headers),
        record.episode_id, attempt if attempt is not None and 0 <= attempt < _MAX_INT else None, record.event_type,
        record.reported_by,
    )  # fmt: skip
    return (Row("dead_letters", values),)


def _mended(row: Row) -> Row:
    values = list(row.values)
    for position in _TEXTS[row.kind]:
        text = values[position]
        if text is not None:
            values[position] = storable(text) if isinstance(text, str) else [storable(part) for part in text]
    return row._replace(values=tuple(values))


def _elements(tensor: Tensor) -> list[Any] | None:
    if tensor.uri is not None:
        return None
    elements = array(_ARRAY_CODES[tensor.dtype], tensor.data)
    if sys.byteorder == "big":
        elements.byteswap()
    return elements.tolist()


def _metrics(metrics: Sequence[Metric]) -> str:
    return as_json({m.name: number(m.value) for m in metrics})


def _ranges(ranges: Sequence[SequenceRange]) -> str:
    return as_json([{"producer": r.producer, "first": r.first, "last": r.last} for r in ranges])


_TEXTS = {
    kind.name: [place for place, type_ in enumerate(kind.types) if type_ in ("text", "texts")]
    for kind in KINDS.values()
}
"""Where in a kind's values its texts stand."""

_MAKERS: dict[tuple[str, type], Callable[[Any, Source], Sequence[Row]]] = {
    (EPISODE_EVENTS, model.StepDone): _step,
    (EPISODE_EVENTS, model.ActionSent): _action,
    (EPISODE_EVENTS, model.EpisodeRequested): _requested,
    (EPISODE_EVENTS, model.RetryRequested): _retry,
    (EPISODE_EVENTS, model.EpisodeClaimed): _claimed,
    (EPISODE_SNAPSHOTS, model.SnapshotTaken): _status,
    (POLICY_EVENTS, model.VerdictIssued): _verdict,
    (FAILURE_PATTERNS, model.PatternDetected): _pattern,
    (RETRAIN_REQUESTS, model.RetrainRequested): _retrain,
    (RETRAIN_REQUESTS, model.RetrainWithdrawn): _closed,
    (RETRAIN_REQUESTS, model.RetrainExpired): _closed,
    (RETRAIN_RESULTS, model.RetrainAnswered): _answered,
    (POLICY_EVENTS, model.RetrainAcknowledged): _acknowledged,
    (POLICY_EVENTS, model.RetrainMuted): _muted,
    (POLICY_EVENTS, model.RetrainUnmuted): _unmuted,
    (POLICY_EVENTS, model.VerdictExpected): _expected,
    (RULE_SETS, model.RulesActivated): _rules,
    (TELEMETRY, model.TelemetrySampled): _points,
    (TELEMETRY, model.SpansEnded): _spans,
    (TELEMETRY, model.WorkerReported): _worker,
    (DEAD_LETTERS, model.DeadLetter): _dead_letter,
}

PROJECTED_TOPICS: tuple[str, ...] = tuple(dict.fromkeys(topic for topic, _ in _MAKERS))
"""The topics that the projector reads."""
