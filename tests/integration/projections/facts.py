"""Facts for the projector's tests: one plain episode after another, and a log to put them on."""

import hashlib
import itertools
import struct
import time
from collections.abc import Iterable
from typing import Any

import msgspec

from stepwell.engine.ports import MessageLog, OutgoingRecord
from stepwell.engine.publish import outgoing
from stepwell.engine.ruleset import BUILT_IN, FrozenRule, RuleSet
from stepwell.events import model
from stepwell.events.codec import Codec
from stepwell.events.model import LogRecord
from stepwell.events.routing import key_of, topic_of
from stepwell.events.topics import EPISODE_EVENTS

CODEC = Codec()
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
_ids = itertools.count(1)


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def now_us() -> int:
    return time.time_ns() // 1000


def _head(episode: str, seq: int, producer_id: str, **more: Any) -> dict[str, Any]:
    return {
        "event_id": next(_ids).to_bytes(16, "big"), "run_id": "run-1", "episode_id": episode, "attempt": 1,
        "producer_id": producer_id, "producer_seq": seq, "occurred_at": now_us(), "trace_id": TRACE, **more,
    }  # fmt: skip


def requested(episode: str, **more: Any) -> model.EpisodeRequested:
    fields: dict[str, Any] = {
        **_head(episode, 0, "host-1"), "task": "metaworld/reach-v3", "policy": "reach-expert", "policy_version": "1",
        "scene": "table", "perturbation": "none", "seed": 7, "repetition": 0, "cell": f"cell of {episode}",
        "max_steps": 100, "requested_by": "ada", "definition_json": '{"scene":{"name":"table"}}',
    }  # fmt: skip
    return model.EpisodeRequested(**{**fields, **more})


def claimed(episode: str, **more: Any) -> model.EpisodeClaimed:
    return model.EpisodeClaimed(**{**_head(episode, 1, "host-1"), "host": "lab-3", "pid": 4242, **more})


def retry(episode: str, **more: Any) -> model.RetryRequested:
    """Of the same attempt as `requested`: what a confused requester may send."""
    first = requested(episode)
    fields = {name: getattr(first, name) for name in first.__struct_fields__}
    return model.RetryRequested(**{**fields, "reason": "lost host", "from_checkpoint": "s3://c", **more})


def action(episode: str, seq: int, **more: Any) -> model.ActionSent:
    tensor = model.Tensor(name="action", dtype="float32", shape=(1, 2), data=struct.pack("<2f", seq, float("nan")))
    fields: dict[str, Any] = {
        **_head(episode, seq, "agent-1", step=seq), "first_step": seq, "n_steps": 1, "action": tensor,
        "observed_step": seq, "inference_s": 0.25,
    }  # fmt: skip
    return model.ActionSent(**{**fields, **more})


def step(episode: str, number: int, **more: Any) -> model.StepDone:
    fields: dict[str, Any] = {
        **_head(episode, number + 1, "sim-1", step=number, sim_time=number * 0.1), "action_seq": number,
        "reward": 1.5, "success": False, "terminated": False, "truncated": False, "observation": (),
        "metrics": (model.Metric(name="path_length_m", value=float("nan")),),
    }  # fmt: skip
    return model.StepDone(**{**fields, **more})


def snapshot(episode: str, **more: Any) -> model.SnapshotTaken:
    fields: dict[str, Any] = {
        "run_id": "run-1", "episode_id": episode, "attempt": 1, "kind": "snapshot", "fold_hash": "f", "partition": 0,
        "first_offset": 0, "last_offset": 10, "phase": "AGENT_RUNNING", "paused": False, "since_at": now_us(),
        "owes": "sim", "owes_seq": 3, "next_step": 2, "last_event_at": now_us(), "outcome": None, "revision": 0,
        "state": b"opaque",
    }  # fmt: skip
    return model.SnapshotTaken(**{**fields, **more})


def verdict(episode: str, revision: int = 1, **more: Any) -> model.VerdictIssued:
    certificate = model.Certificate(
        status="complete", notes=(), lost=(), late=(), lost_count=0, late_count=0, duplicate_count=0,
        violation_count=0, nonfinite_count=0,
    )  # fmt: skip
    provenance = model.Provenance(
        partition=0, first_offset=0, last_offset=10, fold_hash="f", rule_set="default/1", schema_fingerprints=("a",),
        seed=7, checkpoint=None, simulator="metaworld", simulator_version="3", adapter_version="1",
        environment_digest="e",
    )  # fmt: skip
    fields: dict[str, Any] = {
        **_head(episode, revision, "engine-1"), "revision": revision, "policy": "reach-expert", "policy_version": "1",
        "task": "metaworld/reach-v3", "scene": "table", "perturbation": "none", "seed": 7, "repetition": 0,
        "cell": f"cell of {episode}", "ended_at": now_us(), "outcome": "success", "message": "", "labels": ("slow",),
        "label_steps": (1,),
        "autonomous": True, "n_steps": 2, "total_reward": 3.0, "metrics": (), "certificate": certificate,
        "provenance": provenance,
    }  # fmt: skip
    return model.VerdictIssued(**{**fields, **more})


def pattern(trigger: str) -> model.PatternDetected:
    return model.PatternDetected(
        **_head("", 0, "detector-1"), trigger_id=trigger, rule="in-a-row", rule_version=1, rule_key="policy=p",
        policy="p", policy_version="1", failure_type="task_not_completed", evidence=(_evidence(),), promise="three",
        detail="3 in a row",
    )  # fmt: skip


def retrain(trigger: str) -> model.RetrainRequested:
    return model.RetrainRequested(
        **_head("", 0, "detector-1"), trigger_id=trigger, rule="in-a-row", rule_version=1, rule_key="policy=p",
        policy="p", policy_version="1", failure_type="task_not_completed", evidence=(_evidence(),),
        sampling_weights=(model.SamplingWeight(scene="table", perturbation="none", weight=1.0),), requested_by="d",
        detail="3 in a row", hard_negatives=(_evidence(),), weights_formula="share of the evidence",
        regression_spec_json='{"format":"stepwell-regression/1"}',
    )  # fmt: skip


def withdrawn(trigger: str) -> model.RetrainWithdrawn:
    return model.RetrainWithdrawn(**_head("", 1, "detector-1"), trigger_id=trigger, policy="p", reason="amended")


def answered(trigger: str, status: str) -> model.RetrainAnswered:
    return model.RetrainAnswered(
        **_head("", 0, "trainer-1"), trigger_id=trigger, policy="p", status=status, new_checkpoint="c2", detail="ok"
    )


def _evidence() -> model.EvidenceEpisode:
    return model.EvidenceEpisode(
        episode_id="e", attempt=1, revision=1, partition=0, offset=5, scene="table", perturbation="none", seed=7,
        n_steps=2, task="metaworld/reach-v3", events_partition=3, first_offset=10, last_offset=20,
    )  # fmt: skip


def expired(trigger: str) -> model.RetrainExpired:
    return model.RetrainExpired(**_head("", 2, "detector-1"), trigger_id=trigger, policy="p", reason="nobody came")


def acknowledged(trigger: str, **more: Any) -> model.RetrainAcknowledged:
    fields = {**_head("", 0, "ada"), "trigger_id": trigger, "policy": "p", "detail": "on it", "acknowledged_by": "ada"}
    return model.RetrainAcknowledged(**{**fields, **more})


def muted(policy: str, rule: str | None = None, **more: Any) -> model.RetrainMuted:
    fields = {**_head("", 0, "ada"), "policy": policy, "rule": rule, "reason": "camera swapped", "muted_by": "ada"}
    return model.RetrainMuted(**{**fields, **more})


def unmuted(policy: str, rule: str | None = None) -> model.RetrainUnmuted:
    return model.RetrainUnmuted(**_head("", 0, "bob"), policy=policy, rule=rule, unmuted_by="bob")


RULES = RuleSet(
    rule_set="lab", version=2, steps=[FrozenRule(kind="frozen", name="stuck_arm", steps=20)], verdicts=BUILT_IN.verdicts
)


def activated(rules: RuleSet = RULES, **more: Any) -> model.RulesActivated:
    fields = {
        **_head("", 0, "ada"), "run_id": "", "rule_set": rules.rule_set, "version": rules.version,
        "rules_json": rules.canonical(), "sha256": rules.sha256(), "activated_by": "ada",
    }  # fmt: skip
    return model.RulesActivated(**{**fields, **more})


def expected(episode: str, **more: Any) -> model.VerdictExpected:
    fields: dict[str, Any] = {
        **_head(episode, 0, "engine-1"), "policy": "reach-expert", "policy_version": "1", "task": "metaworld/reach-v3",
        "scene": "table", "perturbation": "none", "requested_at": now_us(),
    }  # fmt: skip
    return model.VerdictExpected(**{**fields, **more})


def telemetry(worker: str, seq: int, at: int | None = None, **more: Any) -> model.TelemetrySampled:
    """A gauge and a histogram, measured at one moment."""
    at = now_us() if at is None else at
    fields: dict[str, Any] = {
        "worker_id": worker, "host": "lab-3", "sampled_at": at, "sample_seq": seq,
        "resource": (model.Attribute(name="service.name", value="robot"),), "scope": "driver 1.2",
        "series": (
            model.Series(
                metric="system.cpu.utilization", unit="1", attributes=(model.Attribute(name="cpu", value="0"),)
            ),
            model.Series(metric="stepwell.agent.inference.duration", unit="s", kind="histogram", temporality="delta"),
        ),
        "point_series": (0, 1), "point_start_at": (at, at - 1_000_000), "point_at": (at, at), "point_value": (0.5, 3.0),
        "distributions": (
            model.Distribution(point=1, count=4, min=0.5, max=float("nan"), bounds=(0.5, 1.0), counts=(1, 3, 0)),
        ),
    }  # fmt: skip
    return model.TelemetrySampled(**{**fields, **more})


def spans(worker: str, seq: int, **more: Any) -> model.SpansEnded:
    """One span with an event and a link."""
    about = (model.Attribute(name="gpu", value="0"),)
    span = model.Span(
        trace_id=TRACE, span_id="00f067aa0ba902b7", name="infer", kind="internal", start_at=now_us() - 250_000,
        end_at=now_us(), status="error", status_message="out of memory", attributes=about,
        events=(model.SpanEvent(name="exception", event_at=1_795_000_000_000_000, attributes=about),),
        links=(model.SpanLink(trace_id=TRACE, span_id="53995c3f42cd8ad8"),),
    )  # fmt: skip
    fields: dict[str, Any] = {
        "worker_id": worker, "host": "lab-3", "sampled_at": now_us(), "sample_seq": seq, "resource": (),
        "scope": "agent", "spans": (span,),
    }  # fmt: skip
    return model.SpansEnded(**{**fields, **more})


def dead_letter(**more: Any) -> model.DeadLetter:
    fields: dict[str, Any] = {
        "kind": "violation", "reason": "foreign", "detail": "another incarnation", "source_timestamp": now_us(),
        "source_topic": "stepwell.episode-events", "source_partition": 0, "source_offset": 3, "source_key": b"k",
        "source_value": b"\x00\xff", "source_headers": (model.HeaderField(name="h", value=b"\x00"),),
        "episode_id": "e-1", "attempt": 1, "event_type": "sim::step_done", "reported_by": "engine-1",
    }  # fmt: skip
    return model.DeadLetter(**{**fields, **more})


def episode(name: str, steps: int) -> list[LogRecord]:
    """The facts of one episode, whole except for its end."""
    facts: list[LogRecord] = [requested(name), claimed(name)]
    for number in range(steps):
        facts += [action(name, number), step(name, number)]
    return facts


def again(event: Any, **changes: Any) -> Any:
    """The same record with some fields changed."""
    return msgspec.structs.replace(event, **changes)


def publish(log: MessageLog, records: Iterable[LogRecord]) -> None:
    """Append records where they belong. Snapshots go where their partition says."""
    send(
        log,
        [outgoing(CODEC, r, r.partition if isinstance(r, model.SnapshotTaken) else None) for r in records],
    )


def unchecked(record: LogRecord, value: bytes) -> OutgoingRecord:
    """A record's place and headers with other bytes."""
    return OutgoingRecord(topic_of(record), key_of(record), value, CODEC.encode(record)[1])


def varint(number: int) -> bytes:
    """A non-negative Avro long."""
    rest, out = number << 1, bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes(out + bytes([rest]))


def send(log: MessageLog, records: Iterable[OutgoingRecord]) -> None:
    producer = log.producer()
    producer.send(records)
    producer.flush(30)
    producer.close()


def worker(worker_id: str, at: int | None = None, **other: Any) -> model.WorkerReported:
    """What a worker says of itself; it has partition 0 of the episodes' events, unless said otherwise."""
    moment = now_us() if at is None else at
    part = model.PartitionProgress(partition=0, position=5, log_end=9, rate=2.0, arrival_rate=1.0, progressed_at=moment)
    reads = (model.TopicProgress(consumer="stepwell-engine", topic=EPISODE_EVENTS, partitions=(part,)),)
    fields: dict[str, Any] = {
        "kind": "engine", "host": "lab-3", "pid": 7, "version": "1.2.3", "started_at": moment, "reported_at": moment,
        "report_seq": 0, "state": "running", "waits_for": "", "last_error": "", "reads": reads,
    }  # fmt: skip
    return model.WorkerReported(worker_id=worker_id, **(fields | other))
