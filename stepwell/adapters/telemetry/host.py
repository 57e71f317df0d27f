"""CPU and memory of this host and this process, through psutil."""

from stepwell.events.model import Attribute, TelemetryPoint
from stepwell.exceptions import MissingPartError


class HostSampler:
    """Reads CPU and memory. Metric names follow OpenTelemetry's system and process conventions.

    CPU figures are means since the last sample: ``system.cpu.utilization`` is a fraction of all cores,
    ``process.cpu.utilization`` a fraction of one core.

    Raises:
        MissingPartError: psutil is not installed.
    """

    def __init__(self) -> None:
        try:
            import psutil
        except ImportError as error:
            raise MissingPartError("host telemetry needs psutil: pip install 'stepwell[telemetry]'") from error
        self._psutil = psutil
        self._process = psutil.Process()
        # The first call has nothing to compare with and would say 0.
        psutil.cpu_percent(interval=None)
        self._process.cpu_percent(interval=None)

    def sample(self) -> list[TelemetryPoint]:
        """The figures now."""
        memory = self._psutil.virtual_memory()
        with self._process.oneshot():
            process_cpu = self._process.cpu_percent(interval=None) / 100.0
            resident = float(self._process.memory_info().rss)
            threads = float(self._process.num_threads())
        total = self._psutil.cpu_percent(interval=None) / 100.0
        used = (Attribute(name="system.memory.state", value="used"),)
        return [
            _point("system.cpu.utilization", "1", total),
            _point("system.cpu.logical.count", "{cpu}", float(self._psutil.cpu_count() or 0)),
            _point("system.memory.usage", "By", float(memory.total - memory.available), used),
            _point("system.memory.limit", "By", float(memory.total)),
            _point("process.cpu.utilization", "1", process_cpu),
            _point("process.memory.usage", "By", resident),
            _point("process.thread.count", "{thread}", threads),
        ]


def _point(metric: str, unit: str, value: float, attributes: tuple[Attribute, ...] = ()) -> TelemetryPoint:
    return TelemetryPoint(metric=metric, unit=unit, value=value, attributes=attributes)
