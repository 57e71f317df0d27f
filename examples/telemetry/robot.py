"""A robot's driver that tells its motors' currents and joint torques, with OpenTelemetry's own SDK.

    pip install opentelemetry-sdk opentelemetry-exporter-otlp
    stepwell otlp &
    ROBOT_EPISODE_ID=... python examples/telemetry/robot.py

It sends over gRPC to --endpoint, else where OTEL_EXPORTER_OTLP_ENDPOINT says, else to 127.0.0.1:4317.

Nothing here is Stepwell's: any SDK in any language does the same. The resource says who measures (worker.id, host.name)
and for which attempt (stepwell.episode_id, stepwell.attempt). Instruments are plain ones; their units are UCUM codes.

The arm below is a model of two joints under gravity, so that the example runs anywhere; a driver reads its bus instead.
"""

import argparse
import math
import os
import platform
import time
from collections.abc import Iterable

from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

JOINTS = {"shoulder": (8.0, 0.45), "elbow": (3.5, 0.25)}
"""Mass that the joint carries (kg), and how far from it that hangs (m)."""
GRAVITY = 9.81
TORQUE_PER_AMPERE = 1.9


class Arm:
    """Two joints that swing."""

    def __init__(self) -> None:
        self.started = time.monotonic()

    def torques(self) -> dict[str, float]:
        """Torque of each joint now (N.m)."""
        phase = time.monotonic() - self.started
        return {
            joint: mass * GRAVITY * length * math.cos(phase + number)
            for number, (joint, (mass, length)) in enumerate(JOINTS.items())
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--endpoint", help="where stepwell otlp listens for gRPC; default: as OpenTelemetry's environment says"
    )
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rate", type=float, default=10.0, help="samples a second")
    options = parser.parse_args()

    resource = Resource.create({
        "service.name": "robot-driver",
        "worker.id": os.environ.get("WORKER_ID", "robot-1"),
        "host.name": platform.node(),
        "robot.model": "two-joint arm",
        **({"stepwell.episode_id": os.environ["ROBOT_EPISODE_ID"],
            "stepwell.attempt": int(os.environ.get("ROBOT_ATTEMPT", "1"))}
           if "ROBOT_EPISODE_ID" in os.environ else {}),
    })  # fmt: skip
    reader = PeriodicExportingMetricReader(
        OTLPMetricExporter(endpoint=options.endpoint, insecure=True),
        export_interval_millis=1000 / options.rate,
    )
    meters = MeterProvider(resource=resource, metric_readers=[reader])
    tracers = TracerProvider(resource=resource)
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=options.endpoint, insecure=True)))
    drive(Arm(), meters, tracers, options.seconds, options.rate)
    tracers.shutdown()
    meters.shutdown()


def drive(arm: Arm, meters: MeterProvider, tracers: TracerProvider, seconds: float, rate: float) -> None:
    """Measure for so long (s), so many times a second."""
    meter = meters.get_meter("robot.driver", "1.0")
    tracer = tracers.get_tracer("robot.driver", "1.0")

    def torques(_: CallbackOptions) -> Iterable[Observation]:
        return [Observation(torque, {"joint": joint}) for joint, torque in arm.torques().items()]

    def currents(_: CallbackOptions) -> Iterable[Observation]:
        return [Observation(torque / TORQUE_PER_AMPERE, {"joint": joint}) for joint, torque in arm.torques().items()]

    meter.create_observable_gauge("stepwell.robot.joint.torque", [torques], unit="N.m")
    meter.create_observable_gauge("stepwell.robot.motor.current", [currents], unit="A")
    cycle = meter.create_histogram("robot.control.cycle.duration", unit="s")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        begun = time.monotonic()
        with tracer.start_as_current_span("control cycle") as span:
            hottest = max(arm.torques().items(), key=lambda item: abs(item[1]))
            span.set_attribute("robot.joint", hottest[0])
        cycle.record(time.monotonic() - begun)
        time.sleep(1 / rate)


if __name__ == "__main__":
    main()
