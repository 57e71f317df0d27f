"""The cases that every message log behind `stepwell.engine.ports.MessageLog` must pass.

Use: subclass, and give a log. The cases make topics, groups and transactional ids of their own, so many can share one
broker::

    class TestMyLog(LogConformance):
        def make_log(self) -> MessageLog:
            return MyLog("127.0.0.1:9092")

        def delete_records(self, lab, before):
            lab.admin().delete_records(before)

`ProcessConformance` holds the cases that kill processes; it needs a URL that `stepwell.adapters.logs.open_log`
understands, for the processes that it starts.
"""

import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite(
    "stepwell.testing.log_lab",
    "stepwell.testing.log_cases_groups",
    "stepwell.testing.log_cases_records",
    "stepwell.testing.log_cases_transactions",
)

from stepwell.engine.ports import MessageLog, OutgoingRecord  # noqa: E402 - after the rewrite is registered
from stepwell.testing.log_cases_groups import GroupCases  # noqa: E402
from stepwell.testing.log_cases_records import PositionCases, RecordCases, TopicCases  # noqa: E402
from stepwell.testing.log_cases_transactions import TransactionCases  # noqa: E402
from stepwell.testing.log_lab import LogLab  # noqa: E402

__all__ = ["LogConformance", "ProcessConformance"]


class _Lab(ABC):
    partitions = 4
    """How many partitions the cases' topics get; at least 2."""

    patience_s = 30.0
    """How long to wait for what must come, in seconds."""

    silence_s = 0.5
    """How long to wait to see that nothing comes, in seconds."""

    @abstractmethod
    def make_log(self) -> MessageLog:
        """The log under test; the case closes it."""

    @pytest.fixture
    def lab(self) -> Iterator[LogLab]:
        """The log under test, with its clients."""
        lab = LogLab(self.make_log(), self.partitions, self.patience_s, self.silence_s)
        try:
            yield lab
        finally:
            lab.close()


class LogConformance(_Lab, RecordCases, PositionCases, TopicCases, GroupCases, TransactionCases):
    """Cases for every log. Override `make_log` and `delete_records`."""


# Child processes: run one statement or two, say how far they are, and stay until they are killed.
_MEMBER = """
import sys
from stepwell.adapters.logs import open_log
url, group, topic = sys.argv[1:]
consumer = open_log(url).consumer(group)
consumer.subscribe([topic], lambda sources: print("owns", len(sources), flush=True))
while True:
    consumer.poll(10, 0.2)
"""
_OPEN_TRANSACTION = """
import sys, time
from stepwell.adapters.logs import open_log
from stepwell.engine.ports import OutgoingRecord
url, transactional_id, topic = sys.argv[1:]
producer = open_log(url).transactional_producer(transactional_id)
producer.begin()
producer.send([OutgoingRecord(topic, b"k", b"%d" % n) for n in range(500)])
time.sleep(1)
print("sent", flush=True)
time.sleep(600)
"""
_APPENDER = """
import sys
from stepwell.adapters.logs import open_log
from stepwell.engine.ports import OutgoingRecord
url, name, topic = sys.argv[1:]
producer = open_log(url).producer()
for start in range(0, 500, 10):
    producer.send([OutgoingRecord(topic, name.encode(), b"%d" % n) for n in range(start, start + 10)])
    producer.flush(60)
producer.close()
print("done", flush=True)
"""


class ProcessConformance(_Lab):
    """Cases with several processes, for logs that outlive a process. Override `make_log` and `log_url`."""

    @abstractmethod
    def log_url(self) -> str:
        """What other processes open the same log with."""

    @pytest.fixture
    def children(self) -> Iterator[list[subprocess.Popen[str]]]:
        """Processes that are killed at the end."""
        started: list[subprocess.Popen[str]] = []
        yield started
        for child in started:
            child.kill()
            child.communicate()

    def _start(self, children: list[subprocess.Popen[str]], script: str, *arguments: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-c", script, self.log_url(), *arguments], stdout=subprocess.PIPE, text=True
        )
        children.append(child)
        return child

    @staticmethod
    def _hear(child: subprocess.Popen[str], word: str) -> None:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith(word):
                return
        pytest.fail(f"the child process ended with {child.wait()} before it said {word!r}")

    def test_the_partitions_of_a_killed_member_go_to_the_others(
        self, lab: LogLab, children: list[subprocess.Popen[str]]
    ) -> None:
        topic, group = lab.topic(), lab.unique("group")
        child = self._start(children, _MEMBER, group, topic)
        self._hear(child, "owns")
        member = lab.member(group, topic)
        lab.poll_until([member], lambda: 0 < len(member.owned) < lab.partitions, "a share of the partitions")
        os.kill(child.pid, signal.SIGKILL)
        lab.settle([member], [topic])

    def test_a_killed_process_leaves_no_half_transaction(
        self, lab: LogLab, children: list[subprocess.Popen[str]]
    ) -> None:
        topic, transactional_id = lab.topic(), lab.unique("worker")
        child = self._start(children, _OPEN_TRANSACTION, transactional_id, topic)
        self._hear(child, "sent")
        os.kill(child.pid, signal.SIGKILL)
        producer = lab.transactional(transactional_id)
        producer.begin()
        producer.send([OutgoingRecord(topic, b"k", b"successor")])
        producer.commit()
        assert [record.value for record in lab.read_settled(topic, 1)] == [b"successor"]

    def test_processes_that_append_at_once_keep_their_order(
        self, lab: LogLab, children: list[subprocess.Popen[str]]
    ) -> None:
        topic = lab.topic(partitions=1)
        names = ["one", "two", "three"]
        for child in [self._start(children, _APPENDER, name, topic) for name in names]:
            self._hear(child, "done")
        seen = lab.read_settled(topic, 1500)
        for name in names:
            values = [int(record.value or b"") for record in seen if record.key == name.encode()]
            assert values == list(range(500)), name
        assert len(seen) == 1500
