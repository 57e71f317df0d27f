"""What a lab's producers would write on a bad day: honest episodes, with everything that can happen to them put in.

A workload follows from its seed alone but for the clock: times start at the moment that it is made.
"""

import random
import time
from collections.abc import Iterator, Sequence

import msgspec

from stepwell.engine.ports import OutgoingRecord
from stepwell.engine.publish import outgoing
from stepwell.events import model
from stepwell.events.codec import Codec
from stepwell.events.ids import derived_event_id
from stepwell.events.model import Event
from stepwell.exceptions import EncodeError
from tests.simulation.bad_records import bad_records
from tests.unit.engine.histories import Plan, act_out, interleave, spoil, with_duplicates, without
from tests.unit.engine.step_rules import dressed

CODEC = Codec()
LIVE_AT_ONCE = 24
DTYPES = ("float64", "float64", "float32", "int32")
OPERATIONS = ("chunk", "chunk", "step", "step", "step", "step", "pause", "checkpoint", "intervene")
WEIGHTS = (10, 10, 12, 12, 12, 12, 2, 2, 1)
# Two policies fail alike again and again, so that detectors have something to find.
POLICIES = {
    "reach-lazy": ("max_steps", "max_steps", "max_steps", "failed_unnamed"),
    "lift-crash": ("failed", "failed", "aborted"),
    "push-mixed": ("success", "max_steps", "unnamed", "none", "failed"),
    "open-good": ("success",),
}
REGRESSION_EVERY = 3
"""One episode in so many is run as a regression: it fails like the others, and no detector may count it."""


class Workload:
    """Records in the order in which they reach the log.

    Args:
        seed: everything but the times follows from it.
        episodes: how many.
    """

    def __init__(self, seed: int, episodes: int) -> None:
        self._dice = random.Random(seed)
        self._seed = seed
        self._start_us = time.time_ns() // 1000
        waiting = [self._episode(number) for number in range(episodes)]
        self.records: list[OutgoingRecord] = list(self._merge(waiting))

    def chunks(self, count: int) -> list[list[OutgoingRecord]]:
        """The records in so many parts of about the same size."""
        size = -(-len(self.records) // count)
        return [self.records[start : start + size] for start in range(0, len(self.records), size)]

    def _merge(self, waiting: list[list[OutgoingRecord]]) -> Iterator[OutgoingRecord]:
        """Some episodes at a time, each in its own order."""
        live: list[list[OutgoingRecord]] = []
        while waiting or live:
            while waiting and len(live) < LIVE_AT_ONCE:
                live.append(waiting.pop()[::-1])
            one = self._dice.choice(live)
            for _ in range(min(len(one), self._dice.randint(1, 4))):
                yield one.pop()
            if not one:
                live.remove(one)

    def _episode(self, number: int) -> list[OutgoingRecord]:
        dice = self._dice
        policy = dice.choice(list(POLICIES))
        facts = list(act_out(self._plan(dice.choice(POLICIES[policy]))).facts)
        if dice.random() < 0.15:
            facts += act_out(self._plan(dice.choice(("success", "failed"))), attempt=2).facts
        facts = dressed(facts, self._seed * 100_003 + number, DTYPES)
        events = self._on_their_way(facts)
        events = [self._placed(event, number, policy, at) for at, event in enumerate(events)]
        return self._written(events)

    def _plan(self, end: str) -> Plan:
        dice = self._dice
        names = dice.choices(OPERATIONS, WEIGHTS, k=dice.randint(4, 30))
        rewards = [dice.choice([dice.uniform(-1, 1)] * 30 + [float("nan"), float("inf")]) for _ in range(4)]
        operations = [(name, dice.randint(0, 9), dice.randint(0, 9)) for name in names]
        return Plan(operations, end, dice.random() < 0.8, 0, rewards)

    def _on_their_way(self, facts: Sequence[Event]) -> list[Event]:
        """Half of the episodes come whole; the others meet with something."""
        dice = self._dice
        events = list(facts)
        if dice.random() < 0.5:
            return interleave(events, dice.getrandbits(32), 3)
        seed = dice.getrandbits(32)
        if dice.random() < 0.4:
            events = spoil(events, [(dice.randint(0, 99), dice.randint(0, 5)) for _ in range(dice.randint(1, 2))])
        lost: list[Event] = []
        if dice.random() < 0.4:
            events, lost = without(events, seed, 0.06)
        events = with_duplicates(interleave(events, seed, dice.choice([0, 4, 12])), seed, dice.choice([0, 0.1]))
        for fact in lost:
            if dice.random() < 0.4:
                events.insert(dice.randint(0, len(events)), fact)
        if events and dice.random() < 0.3:
            changes: dict[str, object] = {"producer_id": "zombie"} if dice.random() < 0.5 else {"run_id": "run-other"}
            events.insert(dice.randint(1, len(events)), msgspec.structs.replace(dice.choice(events), **changes))
        return events

    def _placed(self, event: Event, number: int, policy: str, at: int) -> Event:
        """The same fact as one of this workload's episode, now."""
        changes: dict[str, object] = {
            "episode_id": f"ep-{self._seed}-{number:04d}",
            "run_id": event.run_id if event.run_id != "run-1" else f"run-{self._seed}",
            "event_id": derived_event_id(
                "workload", self._seed, number, event.attempt, event.producer_id, event.producer_seq, event.TYPE
            ),
            # The story's own times, moved: the same fact delivered twice says the same twice.
            "occurred_at": self._start_us + number * 1000 + event.occurred_at % 1_000_000,
        }
        if isinstance(event, model.Request | model.AgentStarted):
            changes["policy"] = policy
        if isinstance(event, model.Request) and number % REGRESSION_EVERY == 0:
            changes["purpose"] = model.REGRESSION
        if isinstance(event, model.EpisodeFailed) and number % 17 == 0:
            changes["message"] = "the driver said \0 and died"  # no database takes this text
        return msgspec.structs.replace(event, **changes)

    def _written(self, events: Sequence[Event]) -> list[OutgoingRecord]:
        """Encoded; what a producer could not write is lost. Now and then a bad record comes between."""
        dice = self._dice
        out = []
        for event in events:
            try:
                out.append(outgoing(CODEC, event))
            except EncodeError:
                continue
            if isinstance(event, model.StepDone) and dice.random() < 0.04:
                out.append(dice.choice(list(bad_records(event))).record)
        return out
