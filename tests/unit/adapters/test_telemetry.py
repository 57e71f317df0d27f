"""Host and GPU figures, and the thread that publishes them."""

import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stepwell.adapters.logs.memory import MemoryLog
from stepwell.adapters.telemetry import publisher as module
from stepwell.adapters.telemetry.host import HostSampler
from stepwell.adapters.telemetry.measurements import DURATION_BOUNDS_S, Durations, Measurement
from stepwell.adapters.telemetry.publisher import TelemetryPublisher
from stepwell.engine.publish import outgoing
from stepwell.engine.reading import read_range
from stepwell.events.codec import Codec
from stepwell.events.model import TelemetrySampled
from stepwell.events.topics import TELEMETRY
from stepwell.exceptions import LogUnavailableError, MissingPartError

CODEC = Codec()
STUB = Path(__file__).parents[2] / "support" / "nvml_stub.c"

SAMPLE = """
import json
from stepwell.adapters.telemetry.gpu import GpuSampler
gpu = GpuSampler()
points = gpu.sample()
gpu.close()
print(json.dumps([gpu.absence, [[p.metric, p.unit, p.value, {a.name: a.value for a in p.attributes}] for p in points]]))
"""


@pytest.fixture(scope="module")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a library that answers as NVIDIA's does."""
    folder = tmp_path_factory.mktemp("nvml")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", STUB], check=True)
    return folder


def gpu_sample(library: Path | None, **environment: str) -> tuple[str | None, list[Any]]:
    """Absence and points as a process sees them that finds this library (None: the machine's own, if any)."""
    path = {"LD_LIBRARY_PATH": str(library)} if library else {}
    done = subprocess.run(
        [sys.executable, "-c", SAMPLE], env={**os.environ, **path, **environment}, capture_output=True, check=True
    )
    absence, points = json.loads(done.stdout)
    return absence, points


def test_gpus_are_read_with_unit_and_name(nvml: Path) -> None:
    """Two devices, each with utilisation, memory, temperature, power and traffic."""
    absence, points = gpu_sample(nvml, FAKE_GPUS="2", FAKE_GPU_UTIL="42", FAKE_POWER_MW="150000")
    assert absence is None
    assert points[0] == ["stepwell.gpu.count", "{gpu}", 2.0, {}]
    first = {metric: (unit, value) for metric, unit, value, at in points if at.get("hw.index") == "0"}
    assert first == {
        "hw.gpu.utilization": ("1", 0.42),
        "hw.gpu.memory.usage": ("By", float(1 << 30)),
        "hw.gpu.memory.limit": ("By", float(24 << 30)),
        "hw.temperature": ("Cel", 55.0),
        "hw.power": ("W", 150.0),
        "hw.gpu.pcie.rx": ("By/s", 3000 * 1024.0),
        "hw.gpu.pcie.tx": ("By/s", 2000 * 1024.0),
        "hw.status": ("1", 1.0),
    }
    assert {at["hw.id"] for _, _, _, at in points[1:]} == {f"GPU-00000000-0000-0000-0000-{n:012d}" for n in (0, 1)}
    assert {at["hw.name"] for _, _, _, at in points[1:]} == {"Fake GPU"}


def test_a_gpu_that_fails_is_named_and_gives_no_figures(nvml: Path) -> None:
    """Fallen off the bus: no zeros, but a status that says so."""
    _, points = gpu_sample(nvml, FAKE_GPUS="1", FAKE_NVML_FAIL="15")
    (status,) = [point for point in points if point[0] == "hw.status"]
    assert status[2] == 0.0
    assert "lost" in status[3]["error.type"].lower()
    assert {point[0] for point in points} == {"stepwell.gpu.count", "hw.status"}


def test_what_a_gpu_does_not_support_is_left_out(nvml: Path) -> None:
    """Not supported is no failure."""
    _, points = gpu_sample(nvml, FAKE_GPUS="1", FAKE_NVML_FAIL="3")
    assert [(point[0], point[2]) for point in points] == [("stepwell.gpu.count", 1.0), ("hw.status", 1.0)]


@pytest.mark.parametrize(
    ("environment", "reason"), [({"FAKE_GPUS": "0"}, "no GPU"), ({"FAKE_NVML_INIT": "9"}, "Driver Not Loaded")]
)
def test_the_absence_of_gpus_is_measured_with_its_reason(nvml: Path, environment: dict[str, str], reason: str) -> None:
    """A count of 0 that says why."""
    absence, points = gpu_sample(nvml, **environment)
    assert absence is not None
    assert reason.lower() in absence.lower()
    assert points == [["stepwell.gpu.count", "{gpu}", 0.0, {"reason": absence}]]


def test_the_host_is_read() -> None:
    """Fractions are fractions, bytes are bytes of this machine."""
    points = {point.metric: point for point in HostSampler().sample()}
    assert 0.0 <= points["system.cpu.utilization"].value <= 1.0
    assert points["system.cpu.logical.count"].value == os.cpu_count()
    assert 0 < points["system.memory.usage"].value < points["system.memory.limit"].value
    assert 1_000_000 < points["process.memory.usage"].value < points["system.memory.limit"].value
    assert points["process.thread.count"].value >= 1


def samples(log: MemoryLog) -> list[TelemetrySampled]:
    out = []
    for source, marks in log.admin().watermarks(TELEMETRY).items():
        for batch in read_range(log, source, marks.low, marks.high):
            out += [CODEC.decode(value, headers) for value, headers in zip(batch.values, batch.headers, strict=True)]
    return [record for record in out if isinstance(record, TelemetrySampled)]


def test_samples_are_published_and_a_last_one_at_the_end() -> None:
    """Under the worker's id, numbered, with host and GPU figures."""
    log = MemoryLog()
    publisher = TelemetryPublisher(
        log,
        "stepwell-engine-0",
        partial(outgoing, CODEC),
        interval_s=0.05,
        more=lambda: [Measurement("stepwell.queue.depth", "{record}", 7.0)],
    )
    publisher.start()
    while len(samples(log)) < 2:
        time.sleep(0.02)
    publisher.stop()
    found = samples(log)
    assert [sample.sample_seq for sample in found] == list(range(len(found)))
    assert {sample.worker_id for sample in found} == {"stepwell-engine-0"}
    last = found[-1]
    named = dict(zip([last.series[place].metric for place in last.point_series], last.point_value, strict=True))
    assert {"system.cpu.utilization", "stepwell.gpu.count"} <= set(named)
    assert named["stepwell.queue.depth"] == 7.0
    assert {series.kind for series in last.series} == {"gauge"}
    assert set(last.point_at) == set(last.point_start_at) == {last.sampled_at}
    log.close()


def test_a_log_that_is_away_stops_no_worker() -> None:
    """Said once; the next sample tries again."""
    log = MemoryLog()
    failures = [LogUnavailableError("away"), LogUnavailableError("away")]
    real = log.producer

    def producer(*, quiet: bool) -> Any:
        assert quiet
        if failures:
            raise failures.pop()
        return real()

    log.producer = producer  # type: ignore[method-assign]
    publisher = TelemetryPublisher(log, "w", partial(outgoing, CODEC), interval_s=0.02)
    publisher.start()
    while not samples(log):
        time.sleep(0.02)
    publisher.stop()
    assert failures == []
    log.close()


def test_without_psutil_there_is_no_telemetry_and_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The optional part is named, the thread ends, the worker goes on."""

    def missing() -> Any:
        raise MissingPartError("host telemetry needs psutil: pip install 'stepwell[telemetry]'")

    monkeypatch.setattr(module, "HostSampler", missing)
    log = MemoryLog()
    publisher = TelemetryPublisher(log, "w", partial(outgoing, CODEC), interval_s=0.02)
    publisher.start()
    publisher.stop()
    assert samples(log) == []
    log.close()


def test_durations_fall_into_buckets_that_hold_their_upper_bound() -> None:
    found = Durations()
    for seconds in (0.0, DURATION_BOUNDS_S[0], 0.0006, DURATION_BOUNDS_S[-1], 11.0):
        found.add(seconds)
    assert (found.count, found.min, found.max) == (5, 0.0, 11.0)
    assert found.buckets == [2, 1, *[0] * (len(DURATION_BOUNDS_S) - 3), 1, 1]
