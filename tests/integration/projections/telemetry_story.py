"""What docs/telemetry.md asks about: two episodes on one machine, told with their telemetry.

In e-1 the simulator slows down to a quarter after 30 of 60 steps, because another job takes the GPU, and the policy's
answers take three times as long; in e-2 nothing happens. A robot's joint and a web service tell theirs meanwhile.
"""

from collections.abc import Iterator

from stepwell.adapters.runs.speed import AttemptSpeed
from stepwell.adapters.telemetry.measurements import Measurement, Origin, gauges
from stepwell.events import model
from stepwell.events.model import Attribute, LogRecord
from tests.integration.projections import facts

HOST = "lab-3"
STEPS = 60


def story(begin_at: int) -> list[LogRecord]:
    """All the records, from a moment on (µs since 1970 UTC)."""
    slow_at = begin_at + 30 * 70_000
    records: list[LogRecord] = []
    records += _episode("e-1", begin_at, slow_from=30)
    records += _episode("e-2", begin_at - 60_000_000, slow_from=STEPS)
    records += _machine(begin_at, slow_at)
    records += _robot(begin_at)
    records += _service(begin_at)
    return records


def _episode(name: str, at: int, slow_from: int) -> Iterator[LogRecord]:
    """Steps with the speed that the host publishes of them."""
    published: list[LogRecord] = []
    clock = [at]
    speed = AttemptSpeed(published.append, Origin("stepwell-run-lab-3", HOST, name, 1), lambda: clock[0])
    yield facts.requested(name, occurred_at=at)
    yield facts.claimed(name, occurred_at=at, host=HOST)
    for number in range(STEPS):
        slow = number >= slow_from
        inference_s, step_s = (0.06, 0.2) if slow else (0.02, 0.05)
        clock[0] += int(inference_s * 1e6)
        speed.inferred(inference_s)
        yield facts.action(name, number, occurred_at=clock[0], inference_s=inference_s)
        clock[0] += int(step_s * 1e6)
        yield facts.step(name, number, occurred_at=clock[0], step_wall_s=step_s)
        speed.stepped(step_s)
    speed.close()
    yield from published
    failed = name == "e-1"
    yield facts.verdict(name, outcome="failure" if failed else "success",
                        failure_type="task_not_completed" if failed else None)  # fmt: skip


def _machine(begin_at: int, slow_at: int) -> Iterator[LogRecord]:
    """The machine's GPU, every second, and how much waits to be written."""
    gpu = (Attribute(name="hw.index", value="0"),)
    queue = (Attribute(name="queue", value="log-writer"),)
    for number in range(75):
        at = begin_at - 61_000_000 + number * 1_000_000
        busy = at >= slow_at
        yield gauges(Origin("stepwell-run-lab-3", HOST), at, number, [
            Measurement("hw.gpu.utilization", "1", 0.99 if busy else 0.4, gpu),
            Measurement("stepwell.queue.depth", "{record}", 600.0 if busy else 3.0, queue),
        ])  # fmt: skip


def _robot(begin_at: int) -> Iterator[LogRecord]:
    """Two joints, ten times a second, in e-1; the elbow strains once."""
    for number in range(40):
        at = begin_at + number * 100_000
        yield gauges(Origin("robot-1", "robot-1", "e-1", 1), at, number, [
            Measurement("stepwell.robot.joint.torque", "N.m", torque, (Attribute(name="joint", value=joint),))
            for joint, torque in (("elbow", 61.5 if number == 14 else 8.0), ("shoulder", 20.0 - number / 10))
        ])  # fmt: skip


def _service(begin_at: int) -> Iterator[LogRecord]:
    """A policy server: a cumulative counter of requests that starts anew once, and its spans."""
    series = model.Series(metric="policy.requests", unit="{request}", kind="counter", temporality="cumulative")
    starts = [begin_at, begin_at + 30_000_000]
    counts = [(starts[0], 10, 100.0), (starts[0], 20, 250.0), (starts[1], 40, 40.0), (starts[1], 50, 90.0)]
    yield model.TelemetrySampled(
        worker_id="policy-server", host="gpu-1", sampled_at=begin_at, sample_seq=0, series=(series,),
        point_series=(0,) * 4, point_start_at=tuple(start for start, _, _ in counts),
        point_at=tuple(begin_at + second * 1_000_000 for _, second, _ in counts),
        point_value=tuple(value for _, _, value in counts),
    )  # fmt: skip
    spans = tuple(
        model.Span(
            trace_id=facts.TRACE, span_id=f"{number:016x}", name=name, kind="server", start_at=begin_at + number * 1000,
            end_at=begin_at + number * 1000 + took_us, status=status, status_message="", attributes=(), events=(),
            links=(),
        )
        for number, (name, took_us, status) in enumerate(
            [("encode image", 12_000, "ok"), ("infer", 48_000, "ok"), ("infer", 900_000, "error")], start=1
        )
    )  # fmt: skip
    yield model.SpansEnded(
        worker_id="policy-server", host="gpu-1", episode_id="e-1", attempt=1, sampled_at=begin_at, sample_seq=1,
        resource=(), scope="policy", spans=spans,
    )  # fmt: skip
