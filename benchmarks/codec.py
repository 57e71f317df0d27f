"""What encoding and decoding one step costs, beside a general Avro library on the same bytes.

    python -m benchmarks.codec

Prints the best of many short runs in microseconds of CPU time per record: on a shared machine the least disturbed run
says most, and the ratios say more than the figures.
"""

import io
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import fastavro
import msgspec

from stepwell.events.arrays import is_finite, tensor
from stepwell.events.codec import Codec
from stepwell.events.model import Metric, StepDone
from stepwell.events.schemas import packaged_schemas, without_logical_types

CALLS, RUNS = 500, 40


def main() -> None:
    for label, figures in sizes():
        print(f"{label}, {figures.pop('bytes'):.0f} bytes")
        for name, microseconds in figures.items():
            print(f"  {name:<44}{microseconds:>8.2f} us")
    action = tensor("action", [0.1] * 7)
    for name, microseconds in best({"is_finite of 7 float64": lambda: is_finite(action)}).items():
        print(f"{name:<46}{microseconds:>8.2f} us")


def sizes(runs: int = RUNS) -> Iterator[tuple[str, dict[str, float]]]:
    """Microseconds by name for a small and a large step."""
    yield "small step", measure(step(parts=1, metrics=()), runs)
    yield "large step", measure(step(parts=3, metrics=(Metric(name="m", value=1.5),)), runs)


def measure(record: StepDone, runs: int = RUNS) -> dict[str, float]:
    """Microseconds by name, and the record's size."""
    codec = Codec()
    value, headers = codec.encode(record)
    body = value[5:]
    schema = fastavro.parse_schema(without_logical_types(packaged_schemas().current(record.TYPE).schema))
    fields = fastavro.schemaless_reader(io.BytesIO(body), schema, None)

    def general_read() -> Any:
        read: Any = fastavro.schemaless_reader(io.BytesIO(body), schema, None)
        read.pop("producer")
        return msgspec.convert(read, StepDone)

    def general_write() -> bytes:
        plain = msgspec.to_builtins(record, builtin_types=(bytes,))
        plain["producer"] = record.PRODUCER
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, plain)
        return out.getvalue()

    def written_again() -> None:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, fields)

    assert general_read() == record
    assert general_write() == body
    calls: dict[str, Callable[[], Any]] = {
        "decode, all guards": lambda: codec.decode(value, headers),
        "fastavro and msgspec.convert, no guards": general_read,
        "  and written again to compare the bytes": written_again,
        "encode, all guards, headers": lambda: codec.encode(record),
        "msgspec.to_builtins and fastavro, no guards": general_write,
    }
    return {"bytes": len(value), **best(calls, runs)}


def best(calls: dict[str, Callable[[], Any]], runs: int = RUNS) -> dict[str, float]:
    """Microseconds per call in each one's least disturbed run. The runs take turns, so a slow phase hits all alike."""
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(runs):
        for name, call in calls.items():
            start = time.thread_time()
            for _ in range(CALLS):
                call()
            least[name] = min(least[name], time.thread_time() - start)
    return {name: seconds / CALLS * 1e6 for name, seconds in least.items()}


def step(parts: int, metrics: tuple[Metric, ...]) -> StepDone:
    sizes = {"qpos": 9, "qvel": 9, "ee_pos": 3}
    observation = tuple(
        tensor(name, struct.pack(f"<{size}d", *[0.1] * size), "float64", (size,))
        for name, size in list(sizes.items())[:parts]
    )
    return StepDone(
        event_id=bytes(range(16)),
        run_id="run-2026-11-30",
        episode_id="ep-0123456789abcdefghij",
        attempt=1,
        producer_id="sim-3f2a",
        producer_seq=120,
        occurred_at=1_795_000_000_123_456,
        trace_id="4bf92f3577b34da6a3ce929d0e0e4736",
        sim_time=1.25,
        step=119,
        action_seq=120,
        reward=0.5,
        success=False,
        terminated=False,
        truncated=False,
        observation=observation,
        metrics=metrics,
        step_wall_s=0.01,
    )


if __name__ == "__main__":
    main()
