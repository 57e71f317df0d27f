"""Synthetic episodes, as records ready for the log. Everything is seeded: two runs differ in times of day only."""

import random
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from stepwell.engine.ports import OutgoingRecord
from stepwell.engine.publish import outgoing
from stepwell.events import model
from stepwell.events.codec import Codec
from stepwell.events.ids import episode_id_for
from stepwell.events.model import Event, Tensor

EVENTS_BESIDE_STEPS = 5
"""Requested, claimed, ready, started, ended."""

TASK = "gymnasium/HalfCheetah-v5"
FAILS_EACH = 4
"""Every fourth episode reaches its step budget without success; outcomes are counted in every run."""


@dataclass(frozen=True)
class Workload:
    """What is written.

    Attributes:
        name: how tables call it.
        episodes: how many.
        steps: of each; one action and one step each.
        live: episodes at a time; their events alternate.
        observation: float64 elements of the observation; 0: none at all, and no digest of the state.
        action: float64 elements of the action.
    """

    name: str
    episodes: int
    steps: int = 198
    live: int = 50
    observation: int = 17
    action: int = 6

    @property
    def events_each(self) -> int:
        """Events of one episode."""
        return EVENTS_BESIDE_STEPS + 2 * self.steps

    @property
    def events(self) -> int:
        """Events of all episodes."""
        return self.episodes * self.events_each

    def ids(self) -> list[str]:
        """The episodes' ids."""
        return [episode_id_for(f"bench-{self.name}", TASK, "expert", number) for number in range(self.episodes)]

    def succeeds(self, number: int) -> bool:
        """Whether episode ``number`` ends in success."""
        return number % FAILS_EACH != 0

    def outcomes(self) -> dict[str, str]:
        """What each episode must come to."""
        return {episode: "success" if self.succeeds(number) else "failure" for number, episode in enumerate(self.ids())}

    def facts(self) -> Iterator[Event]:
        """The events in the log's order: waves of ``live`` episodes, round robin within a wave."""
        ids = self.ids()
        for wave in range(0, self.episodes, self.live):
            numbers = range(wave, min(wave + self.live, self.episodes))
            streams = [episode_facts(self, ids[number], number) for number in numbers]
            for row in zip(*streams, strict=True):
                yield from row

    def records(self, codec: Codec | None = None) -> Iterator[OutgoingRecord]:
        """The events as records, encoded as any producer of Stepwell does."""
        codec = codec or Codec()
        return (outgoing(codec, fact) for fact in self.facts())


def episode_facts(load: Workload, episode: str, number: int) -> Iterator[Event]:
    """The facts of one whole episode, in a legal order."""
    chance = random.Random(number)
    seqs = {"sim": 0, "agent": 0, "host": 0}
    trace = chance.randbytes(16).hex()

    def head(producer: str, **more: Any) -> dict[str, Any]:
        seq, seqs[producer] = seqs[producer], seqs[producer] + 1
        return {
            "event_id": chance.randbytes(16), "run_id": f"bench-{load.name}", "episode_id": episode, "attempt": 1,
            "producer_id": f"{producer}-3f2a", "producer_seq": seq, "occurred_at": time.time_ns() // 1000,
            "trace_id": trace, **more,
        }  # fmt: skip

    def observation() -> tuple[Tensor, ...]:
        return (_tensor("observation", load.observation, chance),) if load.observation else ()

    digest = chance.randbytes(32) if load.observation else None
    yield model.EpisodeRequested(
        **head("host"), task=TASK, policy="expert", policy_version="1", scene="plain", perturbation="none", seed=number,
        repetition=number, cell="expert", max_steps=load.steps, requested_by="benchmark",
    )  # fmt: skip
    yield model.EpisodeClaimed(**head("host"), host="bench", pid=1)
    yield model.SimReady(
        **head("sim", sim_time=0.0), first_step=0, simulator="gymnasium", simulator_version="1.0",
        adapter_version="1", environment_digest="0" * 16, seed=number, step_duration_s=0.05,
        observation=observation(), state_digest=digest,
    )  # fmt: skip
    yield model.AgentStarted(**head("agent"), policy="expert", policy_version="1")
    success = load.succeeds(number)
    for step in range(load.steps):
        yield model.ActionSent(
            **head("agent", step=step), first_step=step, n_steps=1, action=_tensor("action", load.action, chance, 1),
            observed_step=step, inference_s=0.004,
        )  # fmt: skip
        yield model.StepDone(
            **head("sim", step=step, sim_time=(step + 1) * 0.05), action_seq=step + 1, reward=0.25,
            success=success and step == load.steps - 1, terminated=False, truncated=False, observation=observation(),
            state_digest=digest, step_wall_s=0.001,
        )  # fmt: skip
    yield model.EpisodeEnded(
        **head("host"), n_steps=load.steps, last_sim_seq=load.steps, last_agent_seq=load.steps, success=success,
        reason="success" if success else "max_steps",
    )  # fmt: skip


def _tensor(name: str, size: int, chance: random.Random, rows: int = 0) -> Tensor:
    shape = (rows, size) if rows else (size,)
    # Real numbers hardly compress, so neither may these.
    data = struct.pack(f"<{size}d", *[chance.gauss(0, 1) for _ in range(size)])
    return Tensor(name=name, dtype="float64", shape=shape, data=data)


def realistic(events: int) -> Workload:
    """Episodes like HalfCheetah's: 17 numbers observed, 6 acted."""
    return _sized("realistic", events, observation=17, action=6)


def small(events: int) -> Workload:
    """Steps without an observation, about as large as the events that stream processors are usually compared by."""
    return _sized("small", events, observation=0, action=6)


def _sized(name: str, events: int, observation: int, action: int) -> Workload:
    episodes = max(4, round(events / (EVENTS_BESIDE_STEPS + 2 * 198)))
    return Workload(name, episodes, observation=observation, action=action)
