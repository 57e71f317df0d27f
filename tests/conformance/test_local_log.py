"""The local log passes the conformance cases."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from stepwell.adapters.logs.local import LocalLog
from stepwell.adapters.logs.local_admin import LocalAdmin
from stepwell.engine.ports import TopicPartition
from stepwell.testing.log_conformance import LogConformance, ProcessConformance
from stepwell.testing.log_lab import LogLab


class TestLocalLog(LogConformance, ProcessConformance):
    silence_s = 0.1

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.directory = tmp_path / "log"

    def make_log(self) -> LocalLog:
        return LocalLog(self.directory)

    def log_url(self) -> str:
        return f"local:{self.directory}"

    def delete_records(self, lab: LogLab, before: Mapping[TopicPartition, int]) -> None:
        admin = lab.admin()
        assert isinstance(admin, LocalAdmin)
        admin.delete_records(before)
