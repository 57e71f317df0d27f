"""GPU and robot: how the machines are that simulate, think and move."""

from stepwell.adapters.dashboards.model import Dashboard, Panel, Threshold
from stepwell.adapters.dashboards.variables import HOST

MACHINES = Dashboard(
    name="machines",
    title="GPU and robot",
    about="Simulator speed, policy latency, GPUs, motors and joints, as the machines measured them.",
    variables=(HOST,),
    since="6h",
    panels=(
        Panel(
            query="simulator_rate", title="Simulator speed", kind="time", unit="/s",
            about="Steps per second of the wall time that simulators spent stepping, waiting left out.",
        ),
        Panel(
            query="step_latency", title="Step time, 99th percentile", kind="time", unit="s",
            about="Wall time of a step that one of a hundred exceeds. Read from buckets of 10 %, so it is off by 4.8 % "
            "at most.",
        ),
        Panel(
            query="inference", title="Policy inference time, mean", kind="time", unit="s",
            about="By the worker that hosts the policy.",
        ),
        Panel(
            query="queues", title="Records waiting to be sent, most", kind="time", unit="count",
            about="A queue that grows means that the log does not keep up with its senders.",
        ),
        Panel(
            query="gpu_utilization", title="GPU utilisation", kind="time", unit="ratio", maximum=1.0,
            about="Share of the time in which the GPU did something.",
        ),
        Panel(
            query="gpu_memory", title="GPU memory in use, most", kind="time", unit="By",
            about="The most that was in use in each bucket.",
        ),
        Panel(
            query="gpu_temperature", title="GPU temperature, most", kind="time", unit="Cel",
            thresholds=(Threshold(80, "warn"), Threshold(90, "bad")),
            about="GPUs slow themselves down near their limit, often from 85 to 95 °C.",
        ),
        Panel(query="gpu_power", title="GPU power", kind="time", unit="W", about="Mean of each bucket."),
        Panel(
            query="pcie", title="PCIe throughput", kind="time", unit="By/s",
            about="Between GPU and host, as seen by the GPU.",
        ),
        Panel(query="cpu", title="CPU utilisation", kind="time", unit="ratio", maximum=1.0, about="Of the whole host."),
        Panel(
            query="torque", title="Joint torque, strongest", kind="time", unit="N.m",
            about="The strongest of either sign in each bucket, by worker and joint.",
        ),
        Panel(
            query="current", title="Motor current, strongest", kind="time", unit="A",
            about="The strongest of either sign in each bucket, by worker and motor.",
        ),
    ),
)  # fmt: skip
