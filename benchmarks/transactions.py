"""One exactly-once transaction on Kafka after the other, as a worker's loop makes them, under several settings.

The producers take turns on one node, so that what else runs on the machine meets all alike. Here a setting of the
driver shows whether it helps; in the latency of the whole chain it drowns in everything else.
"""

import os
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.logs import new_log
from benchmarks.measure import percentile
from stepwell.adapters.logs.kafka import KafkaLog
from stepwell.engine.ports import OutgoingRecord, TopicPartition, Touches
from stepwell.events.topics import EPISODE_EVENTS, EPISODE_SNAPSHOTS, POLICY_EVENTS

SETTINGS: dict[str, dict[str, Any]] = {
    "as it is": {}, "linger.ms 0": {"linger.ms": 0}, "retry.backoff.ms 1": {"retry.backoff.ms": 1},
}  # fmt: skip
"""Options of the driver on top of ours."""

RECORDS = {3: 300, 300: 150, 10_000: 10}
"""Records of a transaction: how often."""

WARM = 50
JOINED_WITHIN_S = 30.0
VALUE_BYTES = 700
PAUSE_S = 0.005


def transaction_runs(turns: int, share: float = 1.0) -> Iterator[tuple[str, dict[str, Any]]]:
    """Milliseconds of a transaction of so many records; ``share`` of the usual number of them."""
    with new_log("kafka") as url:
        makers = {name: _Maker(url, name, options) for name, options in SETTINGS.items()}
        for maker in makers.values():
            maker.warm()
        for _ in range(turns):
            for count, repeats in RECORDS.items():
                records = _records(count)
                took: dict[str, list[float]] = {name: [] for name in makers}
                names = list(makers)
                for _ in range(max(1, round(repeats * share))):
                    names.append(names.pop(0))
                    for name in names:
                        took[name].append(makers[name].transaction(records))
                        time.sleep(PAUSE_S)
                for name, seconds in took.items():
                    run = {f"p{round(part * 100)}_ms": percentile(seconds, part) * 1000 for part in (0.5, 0.9, 0.99)}
                    yield f"transactions kafka, {count:,} records: {name}", {"transactions": len(seconds), **run}
        for maker in makers.values():
            maker.close()


def _records(count: int) -> list[OutgoingRecord]:
    """Records for two topics; as hard to compress as numbers are."""
    return [
        OutgoingRecord(
            POLICY_EVENTS if number % 3 else EPISODE_SNAPSHOTS, b"key-%d" % number, os.urandom(VALUE_BYTES), (),
            number % 4,
        )
        for number in range(count)
    ]  # fmt: skip


class _Maker:
    """A member of a group of its own that makes transactions."""

    def __init__(self, url: str, name: str, options: dict[str, Any]) -> None:
        log = KafkaLog(url.removeprefix("kafka://"), options)
        group = f"benchmark {name}"
        self._consumer = log.consumer(group, group)
        self._owned: list[TopicPartition] = []
        self._consumer.subscribe([EPISODE_EVENTS], self._owned.extend)
        deadline = time.monotonic() + JOINED_WITHIN_S
        while not self._owned:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{group}: not joined in {JOINED_WITHIN_S:.0f} s")
            self._consumer.poll(1, 0.2)
        touches = Touches((POLICY_EVENTS, EPISODE_SNAPSHOTS), group)
        self._producer = log.transactional_producer(group, touches)
        self._position = 0

    def warm(self) -> None:
        """Let everybody get into their stride."""
        for _ in range(WARM):
            self.transaction(_records(3))

    def transaction(self, records: list[OutgoingRecord]) -> float:
        """Make one; its seconds."""
        self._consumer.poll(1, 0.0)
        self._position += 1
        begun = time.perf_counter()
        self._producer.begin()
        self._producer.send(records)
        self._producer.send_offsets(dict.fromkeys(self._owned[:1], self._position), self._consumer.membership())
        self._producer.commit()
        return time.perf_counter() - begun

    def close(self) -> None:
        """Let go."""
        self._producer.close()
        self._consumer.close()
