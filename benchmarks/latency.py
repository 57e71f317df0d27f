"""How long a live verdict takes: from the call that appends the end until an outside reader has the verdict."""

import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from benchmarks.logs import Verdicts, new_log
from benchmarks.measure import finish_child, percentile, start_child
from benchmarks.workload import Workload, episode_facts
from stepwell.adapters.logs import open_log
from stepwell.engine.publish import outgoing
from stepwell.events.codec import Codec
from stepwell.events.model import EpisodeEnded, Event

TICK_S = 0.01
WARM_EPISODES = 4


def latency_run(kind: str, events_per_s: int, seconds: float) -> dict[str, Any]:
    """Send at a steady rate to a running engine; milliseconds per verdict."""
    load = Workload("live", episodes=max(8, round(events_per_s * seconds / 41)), steps=18, live=40)
    with new_log(kind) as url:
        engine = start_child("engine", log=url)
        try:
            sent = _send_and_read(url, load, events_per_s)
            result = finish_child(engine)
        finally:
            if engine.poll() is None:
                engine.kill()
    took = sorted(sent)
    return {
        "verdicts": len(took), "events_per_s": events_per_s, "p50_ms": percentile(took, 0.5),
        "p99_ms": percentile(took, 0.99), "max_ms": took[-1], "transactions": result["transactions"],
    }  # fmt: skip


def _send_and_read(url: str, load: Workload, events_per_s: int) -> list[float]:
    verdicts = Verdicts(url, WARM_EPISODES)
    sender = Sender(url)
    facts = staggered(load)
    try:
        # The engine has joined its group and compiled its readers before the clock counts.
        warm = Workload("warm", episodes=WARM_EPISODES, steps=18)
        sender.send(list(warm.facts()))
        verdicts.wait()
        verdicts.expect(WARM_EPISODES + load.episodes)
        thread = threading.Thread(target=sender.pace, args=(facts, events_per_s), daemon=True)
        thread.start()
        verdicts.wait()
        thread.join()
    finally:
        sender.close()
        verdicts.close()
    live = load.outcomes()
    found = {v.episode_id: v.outcome for v in verdicts.seen if v.episode_id in live}
    assert found == live, "wrong outcomes"
    return [(verdicts.came[episode] - sender.ended_at[episode]) * 1000 for episode in live]


class Sender:
    """Appends facts and notes when each end was handed to the log."""

    def __init__(self, url: str) -> None:
        self._log = open_log(url)
        self._producer = self._log.producer()
        self._codec = Codec()
        self.ended_at: dict[str, float] = {}

    def send(self, facts: list[Event]) -> None:
        """Append them and wait until they are durable."""
        records = [outgoing(self._codec, fact) for fact in facts]
        now = time.time()
        for fact in facts:
            if isinstance(fact, EpisodeEnded):
                self.ended_at[fact.episode_id] = now
        self._producer.send(records)
        self._producer.flush(60)

    def pace(self, facts: Iterator[Event], events_per_s: int) -> None:
        """Send all at a steady rate, what is due each tick."""
        started, count, left = time.monotonic(), 0, True
        while left:
            due = int((time.monotonic() - started) * events_per_s) - count
            some: list[Event] = []
            while len(some) < due:
                fact = next(facts, None)
                if fact is None:
                    left = False
                    break
                some.append(fact)
            if some:
                self.send(some)
                count += len(some)
            time.sleep(TICK_S)

    def close(self) -> None:
        """Let go."""
        self._producer.close()
        self._log.close()


def staggered(load: Workload) -> Iterator[Event]:
    """The events of ``live`` episodes at a time, begun one after the other, so that ends come evenly."""
    waiting = deque(enumerate(load.ids()))
    running: deque[Iterator[Event]] = deque()
    while waiting or running:
        if waiting and len(running) < load.live:
            number, episode = waiting.popleft()
            running.append(episode_facts(load, episode, number))
        for _ in range(len(running)):
            stream = running.popleft()
            fact = next(stream, None)
            if fact is not None:
                running.append(stream)
                yield fact
