"""How long it takes until somebody is asked to retrain: from verdict to request, live, with all rules in force.

Two set-ups, on each log. *Chain*: episode events at a steady rate to a running engine, whose verdicts a running
detector judges. *Hop*: verdicts at a steady rate straight to the detector. The reader outside reads committed records
only. What is timed, for every request: ``append`` (an episode's end handed to the log, until its verdict is appended),
``commit`` (until that verdict is readable), ``detector`` (until the request is readable that it brought about), and
``trigger``, the one that counts: verdict appended until request readable. When something was appended the log itself
tells, Kafka in whole milliseconds.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from benchmarks.latency import Sender, staggered
from benchmarks.live_rules import FIRES_AT, LIVE_RULES
from benchmarks.live_workers import milliseconds
from benchmarks.logs import new_log
from benchmarks.measure import finish_child, start_child
from benchmarks.workload import TASK, Workload
from stepwell.adapters.logs import open_log
from stepwell.adapters.rules.activate import activate
from stepwell.engine.ports import TopicPartition
from stepwell.engine.ruleset import RuleSet
from stepwell.events import model
from stepwell.events.codec import Codec
from stepwell.events.ids import derived_event_id
from stepwell.events.model import Event, RetrainRequested, VerdictIssued
from stepwell.events.topics import POLICY_EVENTS, RETRAIN_REQUESTS

STEPS = 18
EVENTS_EACH = 41
EPISODES_EACH = 4
"""Episodes of one policy; all of them fail."""

WARM_S = 4.0
"""Before the clock counts, the workers have joined their groups, and the broker has compiled what it runs."""

WITHIN_S = 120.0


@dataclass(frozen=True)
class Variant:
    """How the workers are set and warmed; the default is as they come.

    Attributes:
        options: of Kafka's driver, on top of ours.
        loop: further arguments of the workers' loops.
        warm_s: how long they run before the clock counts.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    loop: Mapping[str, Any] = field(default_factory=dict)
    warm_s: float = WARM_S


AS_IT_IS = Variant()
EVENTS_PER_S = 1_000
VERDICTS_PER_S = (25, 250)
"""About as many as the chain has, and ten times that."""

STRETCHES = ("trigger", "append", "commit", "detector")


def trigger_runs(seconds: float, turns: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Both set-ups on both logs, in turn."""
    for _ in range(turns):
        for kind in ("kafka", "local"):
            yield f"triggers {kind}: chain", chain_run(kind, EVENTS_PER_S, seconds)
            for rate in VERDICTS_PER_S:
                yield f"triggers {kind}: hop, {rate} verdicts/s", hop_run(kind, rate, seconds)


def chain_run(kind: str, events_per_s: int, seconds: float, variant: Variant = AS_IT_IS) -> dict[str, Any]:
    """Episode events through engine and detector; milliseconds per request, and each worker's phases."""

    def feed(sender: Sender, prefix: str, count: int) -> None:
        load = FailingPolicies(prefix, episodes=count * EPISODES_EACH, steps=STEPS, live=40)
        sender.pace((_of_policy(fact) for fact in staggered(load)), events_per_s)

    with new_log(kind) as url:
        run = _measured(url, ("engine", "detector"), events_per_s / EVENTS_EACH, seconds, feed, variant)
    return {"events_per_s": events_per_s, **run}


def hop_run(kind: str, verdicts_per_s: int, seconds: float, variant: Variant = AS_IT_IS) -> dict[str, Any]:
    """Verdicts to the detector alone; milliseconds per request, and the detector's phases."""

    def feed(sender: Sender, prefix: str, count: int) -> None:
        sender.pace(failing_verdicts(prefix, count), verdicts_per_s)

    with new_log(kind) as url:
        run = _measured(url, ("detector",), verdicts_per_s, seconds, feed, variant)
    return {"verdicts_per_s": verdicts_per_s, **run}


Feed = Callable[[Sender, str, int], None]


def _measured(
    url: str, kinds: tuple[str, ...], verdicts_per_s: float, seconds: float, feed: Feed, variant: Variant
) -> dict[str, Any]:
    """Start the workers, feed them, read; what came, and how late."""
    warm, policies = (max(2, round(verdicts_per_s * time_s / EPISODES_EACH)) for time_s in (variant.warm_s, seconds))
    _activate(url, LIVE_RULES)
    watch, sender = Watch(url), Sender(url)
    settings = {"warm_s": variant.warm_s, "options": dict(variant.options), "loop": dict(variant.loop)}
    workers = {kind: start_child("live", kind=kind, log=url, **settings) for kind in kinds}
    try:
        feed(sender, "warm", warm)
        watch.read_until(warm * REQUESTS_EACH)
        thread = threading.Thread(target=feed, args=(sender, "live", policies), daemon=True)
        thread.start()
        watch.read_until((warm + policies) * REQUESTS_EACH)
        thread.join()
        done = {kind: finish_child(process) for kind, process in workers.items()}
    finally:
        for process in workers.values():
            if process.poll() is None:
                process.kill()
        sender.close()
        watch.close()
    check_requests([seen.event for seen in watch.requests], {"warm": warm, "live": policies})
    return {"requests": policies * REQUESTS_EACH, **_late(watch, sender.ended_at), "workers": done}


def _activate(url: str, rules: RuleSet) -> None:
    log = open_log(url)
    activate(log, Codec(), rules, "benchmark")
    log.close()


# --- what is sent -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FailingPolicies(Workload):
    """Every episode fails; see `policy_name` for whose it is."""

    def succeeds(self, number: int) -> bool:
        """Whether episode ``number`` ends in success."""
        del number
        return False


def policy_name(prefix: str, number: int) -> str:
    """The policy of episode ``number``: `EPISODES_EACH` in a row have the same."""
    return f"{prefix}-{number // EPISODES_EACH}"


def _of_policy(fact: Event) -> Event:
    """The request is where an episode's policy comes from; the workload knows of one only."""
    if isinstance(fact, model.EpisodeRequested):
        return msgspec.structs.replace(fact, policy=policy_name(fact.run_id.removeprefix("bench-"), fact.repetition))
    return fact


def failing_verdicts(prefix: str, policies: int) -> Iterator[VerdictIssued]:
    """Failed first attempts, policy after policy, as the engine writes them."""
    for number in range(policies * EPISODES_EACH):
        yield verdict(f"{prefix}-episode-{number}", policy_name(prefix, number), failed=True, seed=number)


CERTIFICATE = model.Certificate(
    status="complete", notes=(), lost=(), late=(), lost_count=0, late_count=0, duplicate_count=0, violation_count=0,
    nonfinite_count=0,
)  # fmt: skip
PROVENANCE = model.Provenance(
    partition=0, first_offset=0, last_offset=EVENTS_EACH, fold_hash="0" * 32, rule_set="step-labels/1",
    schema_fingerprints=(), seed=1, checkpoint=None, simulator="gymnasium", simulator_version="1.0",
    adapter_version="1", environment_digest="0" * 16,
)  # fmt: skip


def verdict(episode: str, policy: str, *, failed: bool, seed: int, scene: str = "plain") -> VerdictIssued:
    """One plain verdict."""
    now = time.time_ns() // 1000
    return VerdictIssued(
        event_id=derived_event_id("verdict", episode), run_id="bench", episode_id=episode, attempt=1,
        producer_id="engine", producer_seq=1, occurred_at=now, trace_id="1" * 32, revision=1, policy=policy,
        policy_version="1", task=TASK, scene=scene, perturbation="none", seed=seed, repetition=0, cell=policy,
        requested_at=now, started_at=now, ended_at=now, outcome="failure" if failed else "success",
        failure_type="task_not_completed" if failed else None, fault="policy" if failed else None, message="",
        labels=(), autonomous=True, n_steps=STEPS, total_reward=4.5, success_at_end=not failed, success_once=not failed,
        metrics=(), certificate=CERTIFICATE, provenance=PROVENANCE,
    )  # fmt: skip


def announced(of: VerdictIssued) -> model.VerdictExpected:
    """What the engine writes when the episode of a verdict is requested."""
    return model.VerdictExpected(
        event_id=derived_event_id("expected", of.episode_id), run_id=of.run_id, episode_id=of.episode_id, attempt=1,
        producer_id="engine", producer_seq=0, occurred_at=of.occurred_at, trace_id=of.trace_id, policy=of.policy,
        policy_version=of.policy_version, task=of.task, scene=of.scene, perturbation=of.perturbation,
        requested_at=of.occurred_at,
    )  # fmt: skip


# --- what is read -----------------------------------------------------------------------------------------------------

REQUESTS_EACH = sum(map(len, FIRES_AT.values()))
"""Requests for each policy."""


class Seen(NamedTuple):
    """A record that came: its event, when it was appended, and when it was readable (s)."""

    event: Any
    appended: float
    came: float


class Watch:
    """Reads verdicts and requests as anybody outside would, and keeps when each one came."""

    def __init__(self, url: str) -> None:
        self._log = open_log(url)
        self._codec = Codec()
        admin = self._log.admin()
        sources = [
            TopicPartition(topic, number)
            for topic in (POLICY_EVENTS, RETRAIN_REQUESTS)
            for number in range(admin.partitions(topic))
        ]
        admin.close()
        self._consumer = self._log.consumer()
        self._consumer.assign(dict.fromkeys(sources, 0))
        self.verdicts: dict[tuple[int, int], Seen] = {}
        self.requests: list[Seen] = []

    def read_until(self, requests: int) -> None:
        """Read until so many requests are there. Raises `TimeoutError`."""
        deadline = time.monotonic() + WITHIN_S
        while len(self.requests) < requests:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(self.requests)} of {requests} requests after {WITHIN_S:.0f} s")
            for batch in self._consumer.poll(10_000, 0.05):
                now = time.time()
                for index, offset in enumerate(batch.offsets):
                    event = self._codec.decode(batch.values[index], batch.headers[index])
                    seen = Seen(event, batch.timestamps[index] / 1e6, now)
                    if isinstance(event, VerdictIssued):
                        self.verdicts[batch.source.partition, offset] = seen
                    elif isinstance(event, RetrainRequested):
                        self.requests.append(seen)

    def close(self) -> None:
        """Let go."""
        self._consumer.close()
        self._log.close()

    def cause(self, request: RetrainRequested) -> Seen:
        """The verdict that brought a request about: every episode failed, so it is the last of the evidence."""
        return self.verdicts[max((item.partition, item.offset) for item in request.evidence)]


def check_requests(requests: list[RetrainRequested], policies: Mapping[str, int]) -> None:
    """Every policy is asked about by each rule once, with the right number of failures. Raises `AssertionError`."""
    found = sorted((item.policy, item.rule, len(item.evidence)) for item in requests)
    expected = sorted(
        (f"{prefix}-{number}", rule, failures)
        for prefix, count in policies.items()
        for number in range(count)
        for failures, rules in FIRES_AT.items()
        for rule in rules
    )
    assert found == expected, f"{len(found)} requests, {len(expected)} expected, or other ones"


def _late(watch: Watch, ended_at: Mapping[str, float]) -> dict[str, Any]:
    """Percentiles of each stretch."""
    stretches: dict[str, list[float]] = {name: [] for name in STRETCHES}
    for seen in watch.requests:
        if seen.event.policy.startswith("warm"):
            continue
        cause = watch.cause(seen.event)
        stretches["trigger"].append(seen.came - cause.appended)
        stretches["commit"].append(cause.came - cause.appended)
        stretches["detector"].append(seen.came - cause.came)
        if (ended := ended_at.get(cause.event.episode_id)) is not None:
            stretches["append"].append(cause.appended - ended)
    return {name: milliseconds(values, (0.5, 0.99, 1.0)) for name, values in stretches.items() if values}
