"""What a record must satisfy beyond its schema, when it is written and when it is read.

Only the head and the fields that steer something are judged. NaN and infinity in actions, observations, rewards and
metrics are facts about what happened: they are kept, and judged by the rules. Text that people wrote (messages,
reasons) is kept as it is; what a database has no form for is its projector's to write out or to refuse.

A timestamp's window is judged apart (`check_time`), because it needs the record's broker time.
"""

import hashlib
import math
from collections.abc import Callable
from functools import lru_cache

from stepwell.events import model
from stepwell.events.catalogue import BY_CLASS
from stepwell.events.model import Event, Headers, LogRecord, Tensor
from stepwell.events.topics import EPISODE_COMMANDS, EPISODE_EVENTS
from stepwell.exceptions import DecodeError

MAX_RECORD_BYTES = 1_000_000
"""The largest value of a record that is written (bytes)."""

MAX_STORED_BYTES = 1_048_000
"""The largest record that every log takes (`stored_bytes`): a Kafka broker takes 1,048,588 with its framing."""

_HEADER_FRAME_BYTES = 10

LETTER_KEY_MAX = 10_000
"""Longest key under which a dead letter goes to the log (bytes); it holds its source's key as well."""

TIME_LIMIT_US = 253_402_300_800_000_000
"""10000-01-01: what lies beyond has no form in RFC 3339, nor in most databases."""
MAX_EVENT_BYTES = 768 * 1024
"""The largest value of an event (bytes), so that it still fits whole into a dead letter. Larger arrays go to the
artifact store, with a reference in the event."""

MAX_ID_CHARACTERS = 200
"""The longest id in a head."""

MAX_PURPOSE_CHARACTERS = 100
"""The longest name of what an episode is run for."""

MAX_AXES = 16
"""The most axes that a tensor may have."""

ITEM_BYTES = {"float32": 4, "float64": 8, "int32": 4, "int64": 8, "uint8": 1, "bool": 1}
"""The dtypes of tensors, and the bytes of one element."""

PAST_WINDOW_US = 90 * 24 * 3600 * 1_000_000
"""How long before its broker time a live event may have happened (µs): 90 days, for sites that were offline."""

FUTURE_WINDOW_US = 10 * 60 * 1_000_000
"""How far a producer's clock may run ahead of the broker's (µs): 10 minutes."""

_HEX = frozenset("0123456789abcdef")


class RefusalError(ValueError):
    """A record says something that no record may say. ``reason`` is a short stable code."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def stored_bytes(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """The bytes that a record takes in a log: key, value, and each header's name and value with their lengths."""
    size = len(key or b"") + len(value or b"")
    for name, content in headers:
        # A name in ASCII, as usual, has as many bytes as characters.
        size += _HEADER_FRAME_BYTES + (len(name) if name.isascii() else len(name.encode("utf-8", "surrogatepass")))
        size += len(content or b"")
    return size


def check_record(record: LogRecord) -> None:
    """Judge a record's head and control fields.

    Raises:
        RefusalError: with the field and what was expected.
    """
    if isinstance(record, Event):
        _check_head(record)
    special = _SPECIAL.get(type(record))
    if special is not None:
        special(record)


def check_time(event: Event, broker_time_us: int) -> None:
    """Judge when a live event says it happened, against the broker's time of append (µs) and never against now.

    Imported recordings may be of any age.

    Raises:
        DecodeError: reason ``timestamp``.
    """
    if event.origin == "import":
        return
    late_us = broker_time_us - event.occurred_at
    if not -FUTURE_WINDOW_US <= late_us <= PAST_WINDOW_US:
        raise DecodeError(
            f"occurred_at {event.occurred_at} lies {abs(late_us) / 1e6:.0f} s {'before' if late_us > 0 else 'after'} "
            f"the broker's time {broker_time_us}; allowed are {PAST_WINDOW_US // 1_000_000} s before and "
            f"{FUTURE_WINDOW_US // 1_000_000} s after (recordings brought in later say origin=import)",
            reason="timestamp",
        )


def check_sample_times(record: model.TelemetrySampled | model.SpansEnded, broker_time_us: int) -> None:
    """Judge when points or spans say they were taken: the same window as for live events (`check_time`).

    Raises:
        DecodeError: reason ``timestamp``.
    """
    times = record.point_at if isinstance(record, model.TelemetrySampled) else [span.end_at for span in record.spans]
    for at in {min(times), max(times)} if times else ():
        if not -FUTURE_WINDOW_US <= broker_time_us - at <= PAST_WINDOW_US:
            raise DecodeError(
                f"{record.TYPE} of {record.worker_id}: a time {at} lies outside the window around the broker's time "
                f"{broker_time_us}; allowed are {PAST_WINDOW_US // 1_000_000} s before and "
                f"{FUTURE_WINDOW_US // 1_000_000} s after",
                reason="timestamp",
            )


def check_tensor(tensor: Tensor, place: str) -> None:
    """Judge whether name, dtype, shape and data (or the reference) of a tensor fit together.

    Raises:
        RefusalError: reason ``tensor``.
    """
    item_bytes = ITEM_BYTES.get(tensor.dtype)
    if item_bytes is None:
        raise RefusalError("tensor", f"{place}: dtype {tensor.dtype!r} is none of {', '.join(ITEM_BYTES)}")
    shape = tensor.shape
    if len(shape) > MAX_AXES:
        raise RefusalError("tensor", f"{place}: {len(shape)} axes are more than {MAX_AXES}")
    if shape and min(shape) < 0:
        raise RefusalError("tensor", f"{place}: shape {shape} has a negative axis")
    if tensor.uri is None:
        if tensor.sha256 is not None:
            raise RefusalError("tensor", f"{place}: sha256 is given without uri")
        wanted, found = math.prod(shape) * item_bytes, len(tensor.data)
        if wanted != found:
            raise RefusalError("tensor", f"{place}: shape {shape} of {tensor.dtype} takes {wanted} bytes, not {found}")
        # Without elements, the other axes could claim any number of empty rows.
        if wanted == 0 and math.prod(filter(None, shape)) > MAX_EVENT_BYTES:
            raise RefusalError("tensor", f"{place}: shape {shape} is too large for an empty tensor")
    else:
        if tensor.data:
            raise RefusalError("tensor", f"{place}: data and uri are both given")
        if tensor.sha256 is None or len(tensor.sha256) != 32:
            raise RefusalError("tensor", f"{place}: a reference needs the SHA-256 of the artifact (32 bytes)")


def _check_head(event: Event) -> None:
    """One expression for the usual case; what is wrong is worked out only where something is."""
    _check_ids(type(event), event.run_id, event.episode_id, event.producer_id, event.trace_id)
    step = event.step
    sim_time = event.sim_time
    if (
        event.attempt >= 1
        and event.producer_seq >= 0
        and 0 <= event.occurred_at < TIME_LIMIT_US
        and (step is None or step >= 0)
        and (sim_time is None or math.isfinite(sim_time))
    ):
        return
    _at_least("attempt", event.attempt, 1)
    _at_least("producer_seq", event.producer_seq, 0)
    _time_of("occurred_at", event.occurred_at)
    _at_least("step", step, 0)
    _finite("sim_time", sim_time)


@lru_cache(maxsize=8192)
def _check_ids(cls: type[Event], run_id: str, episode_id: str, producer_id: str, trace_id: str) -> None:
    """The ids of a head, which are the same for all events of a producer in an attempt. (What raises isn't cached.)"""
    needed = BY_CLASS[cls].topic in (EPISODE_EVENTS, EPISODE_COMMANDS)
    _id("run_id", run_id, needed=needed)
    _id("episode_id", episode_id, needed=needed)
    _id("producer_id", producer_id)
    _hex("trace_id", trace_id, 32)


def _id(name: str, text: str, *, needed: bool = True) -> None:
    if needed and not text:
        raise RefusalError("id", f"{name} is empty")
    if len(text) > MAX_ID_CHARACTERS:
        raise RefusalError("id", f"{name} has {len(text)} characters; at most {MAX_ID_CHARACTERS} are allowed")
    if not text.isprintable():
        raise RefusalError("id", f"{name} {text!r} holds control or invisible characters")


def _purpose(purpose: str) -> None:
    _id("purpose", purpose)
    if len(purpose) > MAX_PURPOSE_CHARACTERS:
        most = MAX_PURPOSE_CHARACTERS
        raise RefusalError("id", f"purpose has {len(purpose)} characters; at most {most} are allowed")


def _at_least(name: str, number: int | None, minimum: int) -> None:
    if number is not None and number < minimum:
        raise RefusalError("range", f"{name} is {number}; the least is {minimum}")


def _time_of(name: str, at: int | None) -> None:
    _at_least(name, at, 0)
    if at is not None and at >= TIME_LIMIT_US:
        raise RefusalError("range", f"{name} is {at} µs; the year must be 9999 at most")


def _finite(name: str, number: float | None) -> None:
    if number is not None and not math.isfinite(number):
        raise RefusalError("not-finite", f"{name} is {number}; a finite number is needed")


def _duration(name: str, seconds: float | None) -> None:
    if seconds is not None and not 0.0 <= seconds < math.inf:
        reason = "range" if math.isfinite(seconds) else "not-finite"
        raise RefusalError(reason, f"{name} is {seconds}; a duration is needed")


def _digest(name: str, digest: bytes | None) -> None:
    if digest is not None and len(digest) > 64:
        raise RefusalError("digest", f"{name} has {len(digest)} bytes; a digest has at most 64")


def _request(event: model.Request) -> None:
    _at_least("repetition", event.repetition, 0)
    _at_least("max_steps", event.max_steps, 1)
    _id("policy", event.policy)
    _purpose(event.purpose)


def _ready(event: model.SimReady) -> None:
    _at_least("first_step", event.first_step, 0)
    _duration("step_duration_s", event.step_duration_s)
    _digest("state_digest", event.state_digest)
    for tensor in event.observation:
        check_tensor(tensor, "observation")


def _action(event: model.ActionSent) -> None:
    _at_least("first_step", event.first_step, 0)
    _at_least("n_steps", event.n_steps, 1)
    _at_least("observed_step", event.observed_step, 0)
    _duration("inference_s", event.inference_s)
    if event.step != event.first_step:
        raise RefusalError("step", f"step {event.step} must equal first_step {event.first_step}")
    check_tensor(event.action, "action")


def _step_done(event: model.StepDone) -> None:
    if event.step is None:
        raise RefusalError("step", "step is missing: which step was done?")
    if event.action_seq < 0:
        _at_least("action_seq", event.action_seq, 0)
    if event.step_wall_s is not None:
        _duration("step_wall_s", event.step_wall_s)
    if event.state_digest is not None:
        _digest("state_digest", event.state_digest)
    for tensor in event.observation:
        check_tensor(tensor, "observation")


def _start(event: model.AgentStarted) -> None:
    _id("policy", event.policy, needed=False)


def _end(event: model.EpisodeEnded | model.EpisodeFailed | model.EpisodeAborted) -> None:
    _at_least("n_steps", event.n_steps, 0)
    _at_least("last_sim_seq", event.last_sim_seq, -1)
    _at_least("last_agent_seq", event.last_agent_seq, -1)


def _checkpoint(event: model.CheckpointSaved) -> None:
    _at_least("size_bytes", event.size_bytes, 0)
    if len(event.sha256) != 32:
        raise RefusalError("digest", f"sha256 has {len(event.sha256)} bytes; 32 are needed")


def _silence(event: model.EpisodeStalled | model.EpisodeTimedOut) -> None:
    _at_least("owed_seq", event.owed_seq, 0)
    _at_least("flips", event.flips, 0)
    _duration("idle_s", event.idle_s)


def _verdict(event: model.VerdictIssued) -> None:
    _at_least("revision", event.revision, 0)
    _at_least("n_steps", event.n_steps, 0)
    # Where the request was lost nobody knows the policy; the verdict is given all the same.
    _id("policy", event.policy, needed=False)
    _purpose(event.purpose)
    if event.label_steps:
        if len(event.label_steps) != len(event.labels):
            raise RefusalError("range", f"{len(event.label_steps)} label_steps for {len(event.labels)} labels")
        _at_least("label_steps", min(event.label_steps), -1)


def _expected(event: model.VerdictExpected) -> None:
    _id("episode_id", event.episode_id)
    _id("policy", event.policy)
    _time_of("requested_at", event.requested_at)
    _purpose(event.purpose)


def _rules(event: model.RulesActivated) -> None:
    _id("rule_set", event.rule_set)
    _at_least("version", event.version, 1)
    if hashlib.sha256(event.rules_json.encode()).digest() != event.sha256:
        raise RefusalError("digest", "sha256 is not that of rules_json")


def _tick(event: model.DetectorTicked) -> None:
    _time_of("now", event.now)


def _mute(event: model.RetrainMuted | model.RetrainUnmuted) -> None:
    _id("policy", event.policy)
    if event.rule is not None:
        _id("rule", event.rule)
    if isinstance(event, model.RetrainMuted):
        _time_of("until", event.until)


def _trigger(
    event: model.PatternDetected
    | model.RetrainRequested
    | model.RetrainWithdrawn
    | model.RetrainAnswered
    | model.RetrainExpired
    | model.RetrainAcknowledged,
) -> None:
    _id("trigger_id", event.trigger_id)
    _id("policy", event.policy)


def _retrain(event: model.RetrainRequested) -> None:
    _trigger(event)
    for share in event.sampling_weights:
        _duration("sampling_weights.weight", share.weight)


def _command(event: model.CommandIssued) -> None:
    _id("command_id", event.command_id)


def _snapshot(record: model.SnapshotTaken) -> None:
    _id("episode_id", record.episode_id)
    _at_least("attempt", record.attempt, 1)
    _at_least("partition", record.partition, 0)


def _policy_snapshot(record: model.PolicySnapshot) -> None:
    # As in a verdict: the policy may be unknown.
    _id("policy", record.policy, needed=False)
    _at_least("partition", record.partition, 0)
    _at_least("last_offset", record.last_offset, 0)


def _position(record: model.PositionSaved) -> None:
    _at_least("partition", record.partition, 0)
    _at_least("rewind_offset", record.rewind_offset, 0)
    _at_least("committed_offset", record.committed_offset, 0)


def _sender(record: model.TelemetrySampled | model.SpansEnded) -> None:
    _id("worker_id", record.worker_id)
    if record.episode_id is not None:
        _id("episode_id", record.episode_id)
    _at_least("attempt", record.attempt, 1)
    _at_least("sampled_at", record.sampled_at, 0)
    _at_least("sample_seq", record.sample_seq, 0)


def _telemetry(record: model.TelemetrySampled) -> None:
    _sender(record)
    columns = (record.point_series, record.point_start_at, record.point_at, record.point_value)
    count = len(record.point_series)
    if any(len(column) != count for column in columns):
        raise RefusalError("columns", f"the columns of points have {[len(column) for column in columns]} entries")
    if count and not 0 <= min(record.point_series) <= max(record.point_series) < len(record.series):
        raise RefusalError("range", f"point_series names a series beyond the {len(record.series)} of the record")
    for spread in record.distributions:
        if not 0 <= spread.point < count:
            raise RefusalError("range", f"distributions names point {spread.point} of {count}")
        if len(spread.counts) != (len(spread.bounds) + 1 if spread.counts else 0):
            raise RefusalError(
                "columns", f"a distribution has {len(spread.bounds)} bounds and {len(spread.counts)} counts"
            )


def _spans(record: model.SpansEnded) -> None:
    _sender(record)
    for span in record.spans:
        _hex("trace_id", span.trace_id, 32)
        _hex("span_id", span.span_id, 16)
        if span.parent_span_id is not None:
            _hex("parent_span_id", span.parent_span_id, 16)


def _worker(record: model.WorkerReported) -> None:
    _id("worker_id", record.worker_id)
    _id("kind", record.kind)
    _at_least("report_seq", record.report_seq, 0)
    for name in ("started_at", "reported_at", "last_error_at", "last_progress_at", "looked_at"):
        _time_of(name, getattr(record, name))
    for topic in record.reads:
        for each in topic.partitions:
            _at_least("reads.partition", each.partition, 0)
            _at_least("reads.position", each.position, 0)
            _at_least("reads.log_end", each.log_end, 0)
            _duration("reads.rate", each.rate)
            _duration("reads.arrival_rate", each.arrival_rate)
            _time_of("reads.progressed_at", each.progressed_at)
            _time_of("reads.complete_until_at", each.complete_until_at)


def _hex(name: str, text: str, digits: int) -> None:
    if len(text) != digits or not _HEX.issuperset(text) or not text.strip("0"):
        raise RefusalError("trace-id", f"{name} {text[:40]!r}: {digits} lower-case hex digits are needed, not all zero")


_SPECIAL: dict[type[LogRecord], Callable[..., None]] = {
    model.EpisodeRequested: _request,
    model.RetryRequested: _request,
    model.SimReady: _ready,
    model.AgentStarted: _start,
    model.ActionSent: _action,
    model.StepDone: _step_done,
    model.EpisodeEnded: _end,
    model.EpisodeFailed: _end,
    model.EpisodeAborted: _end,
    model.CheckpointSaved: _checkpoint,
    model.EpisodeStalled: _silence,
    model.EpisodeTimedOut: _silence,
    model.VerdictIssued: _verdict,
    model.VerdictExpected: _expected,
    model.RulesActivated: _rules,
    model.DetectorTicked: _tick,
    model.PatternDetected: _trigger,
    model.RetrainRequested: _retrain,
    model.RetrainWithdrawn: _trigger,
    model.RetrainAnswered: _trigger,
    model.RetrainExpired: _trigger,
    model.RetrainAcknowledged: _trigger,
    model.RetrainMuted: _mute,
    model.RetrainUnmuted: _mute,
    model.CommandIssued: _command,
    model.SnapshotTaken: _snapshot,
    model.PolicySnapshot: _policy_snapshot,
    model.PositionSaved: _position,
    model.TelemetrySampled: _telemetry,
    model.SpansEnded: _spans,
    model.WorkerReported: _worker,
}
