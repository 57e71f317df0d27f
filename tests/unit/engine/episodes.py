"""Facts of whole episodes, for tests of what reads them."""

import time
from typing import Any

from stepwell.events.ids import derived_event_id
from stepwell.events.model import (
    ActionSent,
    AgentStarted,
    EpisodeClaimed,
    EpisodeEnded,
    EpisodeFailed,
    EpisodePaused,
    EpisodeRequested,
    Event,
    RetryRequested,
    SimReady,
    StepDone,
    Tensor,
)

TENSOR = Tensor(name="qpos", dtype="float64", shape=(1,), data=b"\0" * 8)


class Facts:
    """Makes the facts of one attempt, each with its producer's next sequence."""

    def __init__(self, episode_id: str, attempt: int = 1) -> None:
        self.episode_id = episode_id
        self.attempt = attempt
        self._next = {"sim": 0, "agent": 0, "host": 0}

    def head(self, producer: str) -> dict[str, Any]:
        seq = self._next[producer]
        self._next[producer] += 1
        return {
            "event_id": derived_event_id("test", self.episode_id, self.attempt, producer, seq),
            "run_id": "run-1",
            "episode_id": self.episode_id,
            "attempt": self.attempt,
            "producer_id": f"{producer}-1",
            "producer_seq": seq,
            "occurred_at": time.time_ns() // 1000,
            "trace_id": "1" * 32,
        }

    def requested(self, policy: str = "expert") -> Event:
        fields: dict[str, Any] = {
            "task": "metaworld/reach-v3", "policy": policy, "policy_version": "1", "scene": "plain",
            "perturbation": "none", "seed": 1, "repetition": 0, "cell": "c", "max_steps": 100, "requested_by": "test",
        }  # fmt: skip
        if self.attempt > 1:
            return RetryRequested(**self.head("host"), **fields, reason="again")
        return EpisodeRequested(**self.head("host"), **fields)

    def claimed(self) -> Event:
        return EpisodeClaimed(**self.head("host"), host="h", pid=1)

    def ready(self) -> Event:
        return SimReady(
            **self.head("sim"), first_step=0, simulator="s", simulator_version="1", adapter_version="1",
            environment_digest="d", seed=1, observation=(TENSOR,),
        )  # fmt: skip

    def started(self) -> Event:
        return AgentStarted(**self.head("agent"), policy="expert", policy_version="1")

    def step(self, k: int) -> list[Event]:
        action = ActionSent(
            **self.head("agent"), step=k, first_step=k, n_steps=1,
            action=Tensor(name="action", dtype="float64", shape=(1, 1), data=b"\0" * 8),
        )  # fmt: skip
        done = StepDone(
            **self.head("sim"), step=k, action_seq=action.producer_seq, reward=0.1, success=False, terminated=False,
            truncated=False, observation=(TENSOR,),
        )  # fmt: skip
        return [action, done]

    def ended(self, steps: int, *, success: bool = False, announced: bool = True) -> Event:
        return EpisodeEnded(
            **self.head("host"), n_steps=steps, success=success, reason="success" if success else "max_steps",
            last_sim_seq=self._next["sim"] - 1 if announced else None,
            last_agent_seq=self._next["agent"] - 1 if announced else None,
        )  # fmt: skip

    def failed(self, failure_type: str) -> Event:
        return EpisodeFailed(
            **self.head("host"), n_steps=None, failure_type=failure_type, component="sim", message="broke"
        )

    def paused(self) -> Event:
        return EpisodePaused(**self.head("host"), reason="look")

    def begun(self, steps: int = 1, policy: str = "expert") -> list[Event]:
        """An episode that goes on."""
        out = [self.requested(policy), self.claimed(), self.ready(), self.started()]
        for k in range(steps):
            out += self.step(k)
        return out

    def whole(
        self, steps: int = 3, *, success: bool = False, announced: bool = True, policy: str = "expert"
    ) -> list[Event]:
        return [*self.begun(steps, policy), self.ended(steps, success=success, announced=announced)]
