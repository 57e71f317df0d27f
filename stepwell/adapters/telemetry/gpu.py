"""GPU figures through NVIDIA's management library (NVML).

A host without a GPU, a driver or the Python binding is a normal host: the absence is measured too
(``stepwell.gpu.count`` 0, with the reason as an attribute), never left out and never filled with zeros.
"""

import contextlib
from collections.abc import Callable
from typing import Any

from stepwell.adapters.telemetry.measurements import Measurement
from stepwell.events.model import Attribute

COUNT = "stepwell.gpu.count"


class GpuSampler:
    """Reads all NVIDIA GPUs of this host. ``absence`` says why there is nothing to read; None where there is.

    Metric names follow OpenTelemetry's hardware conventions; utilisation is a fraction (unit ``1``).
    """

    def __init__(self) -> None:
        self.absence: str | None = None
        self._nvml: Any = None
        self._devices: list[tuple[Any, tuple[Attribute, ...]]] = []
        try:
            import pynvml
        except ImportError:
            self.absence = "the Python binding of NVML is not installed (pip install 'stepwell[telemetry]')"
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            self.absence = f"NVML: {error}"
            return
        self._nvml = pynvml
        try:
            for index in range(pynvml.nvmlDeviceGetCount()):
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                self._devices.append((handle, self._attributes(handle, index)))
        except pynvml.NVMLError as error:
            self.absence = f"NVML: {error}"
        if not self._devices and self.absence is None:
            self.absence = "NVML finds no GPU"

    def sample(self) -> list[Measurement]:
        """The figures now. A figure that a device cannot give is left out; a device that fails is named."""
        points = [self._count()]
        for handle, attributes in self._devices:
            points += self._device(handle, attributes)
        return points

    def close(self) -> None:
        """Let go of NVML. Never raises."""
        if self._nvml is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()
            self._nvml = None
            self._devices = []

    def _count(self) -> Measurement:
        reason = (Attribute(name="reason", value=self.absence),) if self.absence else ()
        return Measurement(metric=COUNT, unit="{gpu}", value=float(len(self._devices)), attributes=reason)

    def _attributes(self, handle: Any, index: int) -> tuple[Attribute, ...]:
        out = [Attribute(name="hw.index", value=str(index))]
        for name, read in (("hw.id", self._nvml.nvmlDeviceGetUUID), ("hw.name", self._nvml.nvmlDeviceGetName)):
            with contextlib.suppress(self._nvml.NVMLError):
                out.append(Attribute(name=name, value=str(read(handle))))
        return tuple(out)

    def _device(self, handle: Any, attributes: tuple[Attribute, ...]) -> list[Measurement]:
        nvml = self._nvml
        points: list[Measurement] = []
        failures: set[str] = set()

        def add(read: Callable[[], list[tuple[str, str, float]]]) -> None:
            try:
                found = read()
            except nvml.NVMLError as error:
                if error.value not in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND):
                    failures.add(str(error))
                return
            points.extend(
                Measurement(metric=metric, unit=unit, value=value, attributes=attributes)
                for metric, unit, value in found
            )

        def utilization() -> list[tuple[str, str, float]]:
            return [("hw.gpu.utilization", "1", nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100.0)]

        def memory() -> list[tuple[str, str, float]]:
            info = nvml.nvmlDeviceGetMemoryInfo(handle)
            return [
                ("hw.gpu.memory.usage", "By", float(info.used)),
                ("hw.gpu.memory.limit", "By", float(info.total)),
            ]

        def temperature() -> list[tuple[str, str, float]]:
            celsius = nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
            return [("hw.temperature", "Cel", float(celsius))]

        def power() -> list[tuple[str, str, float]]:
            return [("hw.power", "W", nvml.nvmlDeviceGetPowerUsage(handle) / 1000.0)]

        def pcie() -> list[tuple[str, str, float]]:
            # Each figure is taken over 20 ms, during which this thread sleeps.
            return [
                (f"hw.gpu.pcie.{way}", "By/s", nvml.nvmlDeviceGetPcieThroughput(handle, counter) * 1024.0)
                for way, counter in (("rx", nvml.NVML_PCIE_UTIL_RX_BYTES), ("tx", nvml.NVML_PCIE_UTIL_TX_BYTES))
            ]

        for read in (utilization, memory, temperature, power, pcie):
            add(read)
        up = (*attributes, *(Attribute(name="error.type", value=text) for text in sorted(failures)))
        points.append(Measurement(metric="hw.status", unit="1", value=0.0 if failures else 1.0, attributes=up))
        return points
