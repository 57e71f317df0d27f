"""A real Kafka node passes the cases of every message log."""

from collections.abc import Mapping

import pytest

from stepwell.adapters.logs.kafka import KafkaLog
from stepwell.adapters.logs.kafka_admin import KafkaAdmin
from stepwell.engine.ports import MessageLog, TopicPartition
from stepwell.testing.log_conformance import LogConformance, ProcessConformance
from stepwell.testing.log_lab import LogLab


class _Kafka:
    bootstrap: str

    @pytest.fixture(autouse=True)
    def _broker(self, kafka_bootstrap: str) -> None:
        self.bootstrap = kafka_bootstrap

    def make_log(self) -> MessageLog:
        return KafkaLog(self.bootstrap)

    def log_url(self) -> str:
        return f"kafka://{self.bootstrap}"

    def delete_records(self, lab: LogLab, before: Mapping[TopicPartition, int]) -> None:
        admin = lab.admin()
        assert isinstance(admin, KafkaAdmin)
        admin.delete_records(before)


class TestKafkaLog(_Kafka, LogConformance):
    pass


class TestKafkaLogAcrossProcesses(_Kafka, ProcessConformance):
    pass
