"""What tests of workers share: the log in memory, a clock, a report, a log that fails as told."""

import time
from collections.abc import Callable
from typing import Any

from stepwell.adapters.logs.memory import MemoryLog
from stepwell.engine.loop import ExactlyOnceLoop
from stepwell.engine.ports import MessageLog, OutgoingRecord
from stepwell.engine.publish import outgoing
from stepwell.engine.reading import read_range
from stepwell.events.codec import Codec
from stepwell.events.model import Event, LogRecord

CODEC = Codec()


class FakeClock:
    """Real time plus an offset that tests move; half a second passes with every look."""

    def __init__(self) -> None:
        self.offset_us = 0
        self.waited: list[float] = []

    def now_us(self) -> int:
        self.offset_us += 500_000
        return time.time_ns() // 1000 + self.offset_us

    def move(self, seconds: float) -> None:
        self.offset_us += int(seconds * 1e6)

    def wait(self, seconds: float) -> None:
        self.waited.append(seconds)


class Notes:
    def __init__(self) -> None:
        self.said: list[str] = []

    def info(self, event: str, **values: Any) -> None:
        self.said.append(event)

    def warning(self, event: str, **values: Any) -> None:
        self.said.append(event)


def send(log: MessageLog, *records: Event | OutgoingRecord) -> None:
    producer = log.producer()
    producer.send([outgoing(CODEC, record) if isinstance(record, Event) else record for record in records])
    producer.flush(5.0)
    producer.close()


def read(log: MessageLog, topic: str) -> list[LogRecord]:
    out = []
    for source, marks in sorted(log.admin().watermarks(topic).items()):
        for batch in read_range(log, source, marks.low, marks.high):
            out += [CODEC.decode(value, headers) for value, headers in zip(batch.values, batch.headers, strict=True)]
    return out


def drain(loop: ExactlyOnceLoop, silent: int = 3) -> None:
    """Step until nothing comes any more."""
    while silent:
        silent = silent - 1 if loop.step() == 0 else silent


class Flaky:
    """A log whose next calls fail as told; everything else is the real one's."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self.failures: dict[str, list[Exception]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def consumer(self, *args: Any) -> Any:
        return _FlakyPart(self._log.consumer(*args), self.failures)

    def transactional_producer(self, *args: Any) -> Any:
        if self.failures.get("start"):
            raise self.failures["start"].pop(0)
        return _FlakyPart(self._log.transactional_producer(*args), self.failures)


class _FlakyPart:
    def __init__(self, inner: Any, failures: dict[str, list[Exception]]) -> None:
        self._inner = inner
        self._failures = failures

    def __getattr__(self, name: str) -> Any:
        method: Callable[..., Any] = getattr(self._inner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._failures.get(name):
                raise self._failures[name].pop(0)
            if self._failures.get(f"{name} after"):
                method(*args, **kwargs)
                raise self._failures[f"{name} after"].pop(0)
            return method(*args, **kwargs)

        return call
