"""The verdicts that an analysis rests on: one per episode, of one checkpoint."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from stepwell.adapters.logs.reading import read_all, read_batches
from stepwell.engine.ports import MessageLog
from stepwell.events.codec import Codec
from stepwell.events.model import EVALUATION, VerdictIssued
from stepwell.events.topics import POLICY_EVENTS
from stepwell.exceptions import NotFoundError

NAMES_SHOWN_MAX = 10


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which verdicts of a policy: None leaves open, but of version and checkpoint, then the ones judged last.

    Attributes:
        policy: its name.
        version: its version.
        checkpoint: identifies its weights.
        run_id: only episodes of this run. Without it, regression runs are left out: they try again what failed, by
            choice, with the old checkpoint as well.
        failure_type: which failures are looked into; all of the policy's own where None.
        label: only failures with this label.
    """

    policy: str
    version: str | None = None
    checkpoint: str | None = None
    run_id: str | None = None
    failure_type: str | None = None
    label: str | None = None

    def failed(self, verdict: VerdictIssued) -> bool:
        """Whether the episode failed in the way that is looked into; other failures count as none."""
        return (
            verdict.outcome == "failure"
            and self.failure_type in (None, verdict.failure_type)
            and (self.label is None or self.label in verdict.labels)
        )


@dataclass(frozen=True, slots=True)
class Sample:
    """What was found.

    Attributes:
        version, checkpoint: what was evaluated.
        scored: the last revision of each first attempt that ended by itself in success or failure, by episode id.
        left_out: first attempts that say nothing about the policy (errors, aborted, helped).
    """

    version: str
    checkpoint: str | None
    scored: tuple[VerdictIssued, ...] = field(repr=False)
    left_out: int


def read_sample(log: MessageLog, codec: Codec, wanted: Wanted) -> Sample:
    """The verdicts that an analysis rests on, the same whatever order they were recorded in.

    Raises:
        NotFoundError: the log has no verdict of this kind.
        LogUnavailableError: the log does not answer.
    """
    latest: dict[str, VerdictIssued] = {}
    for verdict in _first_attempts(log, codec, wanted):
        known = latest.get(verdict.episode_id)
        if known is None or verdict.revision >= known.revision:
            latest[verdict.episode_id] = verdict
    if not latest:
        raise NotFoundError(_nothing(log, wanted))
    # The checkpoint evaluated last is the one whose episode ended last, not the one whose late facts came in last.
    last = max(latest.values(), key=lambda verdict: (verdict.ended_at, verdict.episode_id))
    version = last.policy_version if wanted.version is None else wanted.version
    checkpoint = last.checkpoint if wanted.checkpoint is None else wanted.checkpoint
    of_one = [each for each in latest.values() if (each.policy_version, each.checkpoint) == (version, checkpoint)]
    if not of_one:
        raise NotFoundError(f"no verdict of policy {wanted.policy} version {version} with checkpoint {checkpoint}")
    scored = [each for each in of_one if each.outcome in ("success", "failure") and each.autonomous]
    scored.sort(key=lambda verdict: verdict.episode_id)
    return Sample(version, checkpoint, tuple(scored), len(of_one) - len(scored))


def _first_attempts(log: MessageLog, codec: Codec, wanted: Wanted) -> Iterator[VerdictIssued]:
    key = wanted.policy.encode()
    for event in read_all(log, codec, POLICY_EVENTS, keep=key.__eq__):
        if (
            isinstance(event, VerdictIssued)
            and event.attempt == 1
            and (event.purpose == EVALUATION if wanted.run_id is None else event.run_id == wanted.run_id)
            and wanted.version in (None, event.policy_version)
            and wanted.checkpoint in (None, event.checkpoint)
        ):
            yield event


def _nothing(log: MessageLog, wanted: Wanted) -> str:
    named = {"run": wanted.run_id, "version": wanted.version, "checkpoint": wanted.checkpoint}
    narrowed = "".join(f", {name} {value}" for name, value in named.items() if value is not None)
    keys = {key for batch in read_batches(log, POLICY_EVENTS) for key in batch.keys if key is not None}
    names = sorted(
        key.decode("utf-8", "replace") for key in keys if not key.startswith((b"tick/", b"rules/")) and key != b"rules"
    )
    if wanted.policy in names:
        left_out = "" if wanted.run_id else " in an evaluation (--run looks into one run, whatever it is for)"
        return f"the log has no verdict on a first attempt of policy {wanted.policy}{narrowed}{left_out}"
    known = ", ".join(names[:NAMES_SHOWN_MAX]) + (", …" if len(names) > NAMES_SHOWN_MAX else "")
    there = f"it has some on {known}" if names else "it has none at all: nothing was judged yet (stepwell up)"
    return f"the log has no verdict on policy {wanted.policy}; {there}"
