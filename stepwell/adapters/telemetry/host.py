"""CPU and memory of this host and this process, through psutil."""

from stepwell.adapters.telemetry.measurements import Measurement
from stepwell.events.model import Attribute
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

    def sample(self) -> list[Measurement]:
        """The figures now."""
        memory = self._psutil.virtual_memory()
        with self._process.oneshot():
            process_cpu = self._process.cpu_percent(interval=None) / 100.0
            resident = float(self._process.memory_info().rss)
            threads = float(self._process.num_threads())
        total = self._psutil.cpu_percent(interval=None) / 100.0
        used = (Attribute(name="system.memory.state", value="used"),)
        return [
            Measurement("system.cpu.utilization", "1", total),
            Measurement("system.cpu.logical.count", "{cpu}", float(self._psutil.cpu_count() or 0)),
            Measurement("system.memory.usage", "By", float(memory.total - memory.available), used),
            Measurement("system.memory.limit", "By", float(memory.total)),
            Measurement("process.cpu.utilization", "1", process_cpu),
            Measurement("process.memory.usage", "By", resident),
            Measurement("process.thread.count", "{thread}", threads),
        ]
