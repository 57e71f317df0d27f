"""The in-memory log passes the conformance cases, but for those with several processes."""

from collections.abc import Mapping

from stepwell.adapters.logs.local_admin import LocalAdmin
from stepwell.adapters.logs.memory import MemoryLog
from stepwell.engine.ports import TopicPartition
from stepwell.testing.log_conformance import LogConformance
from stepwell.testing.log_lab import LogLab


class TestMemoryLog(LogConformance):
    silence_s = 0.1

    def make_log(self) -> MemoryLog:
        return MemoryLog()

    def delete_records(self, lab: LogLab, before: Mapping[TopicPartition, int]) -> None:
        admin = lab.admin()
        assert isinstance(admin, LocalAdmin)
        admin.delete_records(before)
