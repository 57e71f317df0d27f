"""A million steps: the state stays as small as after a thousand, and the sum is the sum in order."""

import gc
import sys
from collections.abc import Iterator

from stepwell.engine.fold import apply
from stepwell.engine.snapshot import dump
from stepwell.engine.state import EpisodeState, Position
from stepwell.events import model
from stepwell.events.model import Event
from tests.unit.engine.stories import EPISODE, Story, attempt_of, fold, head, tensor

STEPS = 1_000_000
CHUNK = 20
REWARDS = [0.1, 0.2, 0.3, 1e9, -1e9, 1e-9]


def _facts(first_step: int, last_step: int) -> Iterator[Event]:
    """Actions in chunks of 20, then their steps, made as they are needed."""
    observation = (tensor([0.25, 0.5]),)
    action = tensor([0.5], "action")
    agent, sim = head("agent", 1, 0), head("sim", 1, 0)
    for step in range(first_step, last_step):
        chunk = step // CHUNK
        if step % CHUNK == 0:
            named = agent | {"producer_seq": 1 + chunk, "step": step}
            yield model.ActionSent(**named, first_step=step, n_steps=CHUNK, action=action)
        yield model.StepDone(
            **(sim | {"producer_seq": 1 + step, "step": step}),
            action_seq=1 + chunk,
            reward=REWARDS[step % len(REWARDS)],
            terminated=False,
            truncated=False,
            observation=observation,
        )


def test_a_million_steps_in_constant_memory() -> None:
    state = fold(Story().begin().facts)
    offset = 10
    seen: list[tuple[int, int]] = []
    for first, last in ((0, 1000), (1000, STEPS)):
        for event in _facts(first, last):
            offset += 1
            assert not apply(state, event, Position(0, offset, offset, "f", offset))
        gc.collect()
        seen.append((len(dump(attempt_of(state))), sys.getallocatedblocks()))
    attempt = attempt_of(state)
    assert attempt.next_step == attempt.steps == STEPS
    in_order = 0.0
    for step in range(STEPS):
        in_order += REWARDS[step % len(REWARDS)]
    assert attempt.total_reward == in_order
    (small, blocks), (large, more_blocks) = seen
    assert large <= small + 500  # numbers of more digits
    assert more_blocks - blocks < 5000
    assert state.episode_id == EPISODE
    assert isinstance(state, EpisodeState)
