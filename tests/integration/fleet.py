"""A fleet at work, as facts on the log: episodes of three policies over the last hours, telemetry, reports."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from stepwell.engine.ports import MessageLog
from stepwell.events import model
from tests.integration.projections import facts

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOSTS = ("lab-1", "lab-2", "lab-3")
POLICIES = (("reach-expert", "1", 0.95), ("reach-bc", "1", 0.55), ("reach-bc", "2", 0.78))
TASKS = ("metaworld/reach-v3", "metaworld/push-v3")
SCENES = ("table", "shelf")
PERTURBATIONS = ("none", "dim light", "moved camera")
FAILURES = (("task_not_completed", "policy"), ("collision", "policy"), ("object_dropped", "policy"))


@dataclass(frozen=True)
class Fleet:
    """How much of it there is.

    Attributes:
        repetitions: episodes a cell.
        steps: steps an episode.
        hours: over how long they are spread, up to now.
        samples: telemetry records a host.
    """

    repetitions: int = 2
    steps: int = 6
    hours: float = 3.0
    samples: int = 40


def publish(log: MessageLog, fleet: Fleet = Fleet()) -> str:
    """Append all of it; the episode that failed last."""
    chance = random.Random(7)
    now = facts.now_us()
    cells = [
        (policy, task, scene, perturbation, repetition)
        for repetition in range(fleet.repetitions)
        for policy, task, scene, perturbation in product(POLICIES, TASKS, SCENES, PERTURBATIONS)
    ]
    span = round(fleet.hours * 3600) * SECOND
    failed = ""
    for number, cell in enumerate(cells):
        at = now - span + (number + 1) * span // (len(cells) + 1)
        records, outcome = _episode(f"{cell[0][0]}-{number:04}", number, at, cell, fleet.steps, chance)
        facts.publish(log, records)
        failed = records[0].episode_id if outcome == "failure" else failed
    facts.publish(log, list(_live(now)))
    facts.publish(log, list(_telemetry(now, span, fleet.samples, failed, chance)))
    facts.publish(log, list(_told(now, failed)))
    return failed


def _episode(
    name: str, number: int, at: int, cell: tuple[Any, ...], steps: int, chance: random.Random
) -> tuple[list[Any], str]:
    """One episode with all its facts, and how it ended."""
    (policy, version, skill), task, scene, perturbation, repetition = cell
    about = {"policy": policy, "policy_version": version, "task": task, "scene": scene, "perturbation": perturbation}
    skill -= 0.25 * (perturbation != "none") + 0.2 * (scene == "shelf")
    drawn = chance.random()
    outcome = "error" if drawn < 0.04 else "success" if drawn < 0.04 + skill * 0.96 else "failure"
    failure, fault = (None, None) if outcome == "success" else chance.choice(FAILURES)
    if outcome == "error":
        failure, fault = "simulator_crashed", "simulator"
    records: list[Any] = [
        facts.requested(name, occurred_at=at, repetition=repetition, run_id=f"nightly-{number % 3}", **about),
        facts.claimed(name, occurred_at=at + SECOND, host=HOSTS[number % 3], run_id=f"nightly-{number % 3}"),
    ]
    for step in range(steps):
        moment = at + (2 + step) * SECOND
        wall = chance.lognormvariate(-4.2 + 0.3 * (number % 3), 0.35)
        records.append(facts.action(name, step, occurred_at=moment, inference_s=chance.lognormvariate(-3.4, 0.3)))
        records.append(facts.step(name, step, occurred_at=moment, step_wall_s=wall, reward=chance.random() + step / 4))
    ended = at + (3 + steps) * SECOND
    records.append(
        facts.verdict(
            name,
            outcome=outcome,
            failure_type=failure,
            fault=fault,
            n_steps=steps,
            requested_at=at,
            started_at=at + SECOND,
            ended_at=ended,
            occurred_at=ended,
            repetition=repetition,
            run_id=f"nightly-{number % 3}",
            message="" if outcome == "success" else "the goal was not reached <within> the budget",
            **about,
        )
    )
    return records, outcome


def _live(now: int) -> Iterator[Any]:
    """Two that run, one of them long silent, and one that nobody has taken."""
    old = now - 10 * MINUTE
    # A clock that is ahead keeps the first one busy, however slow the machine is that runs the test.
    for name, since in (("live-busy", now + 5 * MINUTE), ("live-stuck", old)):
        yield facts.requested(name, occurred_at=old)
        yield facts.claimed(name, occurred_at=old, host="lab-2")
        yield facts.snapshot(name, since_at=since, last_event_at=since)
    yield facts.requested("live-waiting", occurred_at=now)


def _telemetry(now: int, span: int, samples: int, episode: str, chance: random.Random) -> Iterator[Any]:
    gauges = [
        ("system.cpu.utilization", "1", (), 0.4), ("hw.gpu.utilization", "1", (("hw.index", "0"),), 0.7),
        ("hw.gpu.memory.usage", "By", (("hw.index", "0"),), 9e9),
        ("hw.gpu.memory.limit", "By", (("hw.index", "0"),), 24e9),
        ("hw.temperature", "Cel", (("hw.index", "0"),), 74.0), ("hw.power", "W", (("hw.index", "0"),), 210.0),
        ("hw.gpu.pcie.rx", "By/s", (("hw.index", "0"),), 3e8), ("hw.gpu.pcie.tx", "By/s", (("hw.index", "0"),), 2e8),
        ("stepwell.queue.depth", "{record}", (), 40.0),
        ("stepwell.robot.joint.torque", "N.m", (("joint", "elbow"),), -12.0),
        ("stepwell.robot.motor.current", "A", (("joint", "elbow"),), 1.8),
    ]  # fmt: skip
    series = tuple(
        model.Series(
            metric=metric, unit=unit, attributes=tuple(model.Attribute(name=name, value=value) for name, value in about)
        )
        for metric, unit, about, _ in gauges
    )
    # Ten answers of 20 to 60 ms in each: what a histogram says is their sum.
    series += (
        model.Series(metric="stepwell.agent.inference.duration", unit="s", kind="histogram", temporality="delta"),
    )
    for number in range(samples):
        at = now - span + (number + 1) * span // (samples + 1)
        for host in HOSTS:
            values = (
                *(level * chance.uniform(0.8, 1.15) for _, _, _, level in gauges),
                10 * chance.uniform(0.02, 0.06),
            )
            answers = model.Distribution(point=len(gauges), count=10, min=0.02, max=0.06)
            last = number == samples - 1 and host == HOSTS[0]
            yield facts.telemetry(
                f"worker-{host}", number, at, host=host, series=series, distributions=(answers,),
                point_series=tuple(range(len(series))), point_start_at=(at,) * len(series),
                point_at=(at,) * len(series), point_value=values,
                **({"episode_id": episode, "attempt": 1} if last else {}),
            )  # fmt: skip


def _latency(at: int, episode: str) -> Any:
    """A policy server's cumulative histogram and counter: 30 answers in 3 s, then 5 in 1 s after a new start."""
    told = [(at, 10, 1.0), (at, 20, 2.0), (at, 30, 3.0), (at + 5 * SECOND, 5, 1.0)]
    series = tuple(
        model.Series(metric=f"policy.{name}", unit="s", kind=kind, temporality="cumulative")
        for name, kind in (("latency", "histogram"), ("busy", "counter"))
    )
    times = tuple(at + (number + 1) * SECOND + (start - at) for number, (start, _, _) in enumerate(told))
    return facts.telemetry(
        "policy-server", 0, at, host=HOSTS[0], series=series, episode_id=episode, attempt=1,
        point_series=(0,) * 4 + (1,) * 4, point_start_at=tuple(start for start, _, _ in told) * 2,
        point_at=times * 2, point_value=tuple(total for _, _, total in told) * 2,
        distributions=tuple(
            model.Distribution(point=number, count=count, min=0.01, max=0.5)
            for number, (_, count, _) in enumerate(told)
        ),
    )  # fmt: skip


def _told(now: int, episode: str) -> Iterator[Any]:
    """What detectors, the engine and the workers say."""
    yield facts.spans("worker-lab-1", 0, episode_id=episode, attempt=1)
    yield _latency(now - 10 * SECOND, episode)
    yield facts.pattern("trigger-1")
    yield facts.retrain("trigger-1")
    yield facts.pattern("trigger-2")
    for offset in range(3):
        yield facts.dead_letter(episode_id=episode, source_offset=100 + offset)
    yield facts.dead_letter(
        kind="unreadable", reason="trailing-bytes", episode_id=None, attempt=None, source_offset=200
    )
    for kind, state in (("engine", "running"), ("detector", "failed")):
        yield model.WorkerReported(
            worker_id=f"stepwell-{kind}-0", kind=kind, host="lab-1", pid=7, version="0.1.0", started_at=now - MINUTE,
            reported_at=now, report_seq=3, state=state, waits_for="",
            last_error="" if state == "running" else "no disk",
            last_error_at=None if state == "running" else now, last_progress_at=now - SECOND, looked_at=now, reads=(),
        )  # fmt: skip
